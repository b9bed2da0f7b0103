"""The picture of the comparison on MNIST: accuracy over proven epsilon, smoothed and not."""

from __future__ import annotations

import statistics
from pathlib import Path

from dpacct.pictures import Curve, Drawing, Panel, Picture
from evidence.mnist_smoothing.runs import INPUTS, THEOREM, TIGHT, known_cost
from evidence.records import Records

# Panels: fixed cohorts. The tables have Poisson cohorts, whose curves run alike.
SAMPLING = "uniform"


def points(records: Records, smoothing: int, inputs: str) -> list[tuple[float, float, float]]:
    """Return proven epsilon, mean accuracy and worst accuracy for each target, by epsilon."""
    wanted = {"smoothing": smoothing, "sampling": SAMPLING, "inputs": inputs, "order": "OIHW"}
    found: dict[float, list[float]] = {}
    for record in records:
        if record.matches(**wanted) and {THEOREM, TIGHT} & record.setting.keys():
            cost = known_cost(records, SAMPLING, record.result["noise_multiplier"])
            found.setdefault(cost["epsilon"], []).append(record.result["accuracy"])
    return sorted((spent, statistics.mean(some), min(some)) for spent, some in found.items())


def draw(path: Path, records: Records) -> None:
    """Draw a panel for each way to feed the pixels, a curve without smoothing and one with it."""
    panels: list[Panel] = []
    for inputs in INPUTS:
        curves: list[Curve] = []
        for smoothing, name in ((0, "no smoothing"), (1, "smoothing 1")):
            spent, means, worst = zip(*points(records, smoothing, inputs), strict=True)
            curves.append(Curve(name, spent, means, worst))
        label = f"pixels {'from 0 to 1' if inputs == 'unit' else 'standardized'}: test accuracy [%]"
        panels.append(
            Panel("epsilon spent, proven", label, tuple(curves), log_x=True, from_zero=False)
        )
    title = "Smoothing pays where the noise is large, most with standardized pixels"
    note = (
        "Fixed cohorts of 50 of 1,000 clients, replace-one. Lines are means over runs. Bands reach "
        "down to the worst run."
    )
    Drawing(Picture(title, tuple(panels), note)).save(path, replace=True)
