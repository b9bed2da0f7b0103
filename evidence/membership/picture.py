"""The picture of the page: mean curves over runs, by client, on logarithmic axes."""

from __future__ import annotations

import statistics
from pathlib import Path

from dpacct.pictures import Curve, Drawing, Panel, Picture
from evidence.membership.play import GRID, limit, pooled, rows
from evidence.records import Records


def draw(path: Path, records: Records) -> None:
    """Write the picture."""
    curves = [Curve("guessing", GRID, GRID, plain=True)]
    means: dict[str, float] = {}
    largest = 0.0
    for method, epsilon, runs in rows(records):
        each = [record.result["loss"]["client"]["tpr"] for record in runs]
        mean = [statistics.mean(values) for values in zip(*each, strict=True)]
        shown = [(rate, tpr) for rate, tpr in zip(GRID, mean, strict=True) if tpr > 0.0]
        curves.append(Curve(method, [x for x, _ in shown], [y for _, y in shown], steps=True))
        means[method] = statistics.mean(pooled(runs, "loss", "client", "auc"))
        largest = max(largest, epsilon or 0.0)
    proven = limit(largest)
    tpr = [proven.tpr(rate) for rate in GRID]
    curves.append(Curve(f"limit, epsilon {largest:g}", GRID, tpr))
    panel = Panel(
        "false positive rate: clients accused who took no part",
        "true positive rate: members found",
        tuple(curves),
        log_x=True,
        log_y=True,
        y_max=1.0,
    )
    best = ", ".join(f"{name} {mean:.2f}" for name, mean in means.items())
    title = f"By the loss of a client, AUC {best}"
    note = "mean over runs; the limit is proven on average over trainings, for the private ones"
    Drawing(Picture(title, (panel,), note)).save(path, replace=True)
