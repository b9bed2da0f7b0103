"""Tables and picture of `mnist_smoothing`, from its runs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from dpacct.pictures import Curve, Drawing, Panel, Picture
from dpacct.reproduce import Records, shipped_table, spread
from evidence.pages import bracket, markdown

SMOOTHINGS = (0, 1, 2, 3)
# The name of a target: with noise of the closed-form theorem, which costs less than the printed
# epsilon, and with noise that is calibrated to cost it.
THEOREM, TIGHT = "printed_epsilon", "epsilon"
PRINTED_EPSILONS = (6, 7, 8, 9)
SMALL_EPSILONS = (0.5, 1, 2, 3)
# Instead of smoothing, which leaves 0.72 to 0.86 of a step along the gradient. And shorter rates,
# past the best.
SERVER_RATES = (0.85, 0.7, 0.5, 0.35)
# "unit": pixels in [0, 1], weights start at zero. "standardized": the usual mean and deviation of
# MNIST's pixels are taken out, weights start as PyTorch draws them (seed r in run r).
INPUTS = ("unit", "standardized")
PUBLISHED: dict[str, dict[int, list[tuple[float, float]]]] = {"uniform": {}, "poisson": {}}
for _cell in shipped_table("dp-fed-ls/table-2").cells:
    _printed = _cell.printed or 0.0, _cell.spread or 0.0
    _smoothing = _cell.options["method_options"]["smoothing"]
    PUBLISHED[_cell.options["sampling"]].setdefault(_smoothing, []).append(_printed)
LABELS = {None: "clipped once", **{s: f"smoothing {s}" for s in SMOOTHINGS}}
# The name of a group of runs: its inputs, the source of its noise, and the targets.
GROUPS: dict[str, tuple[str, str, Sequence[float]]] = {
    "theorem, standardized": ("standardized", THEOREM, PRINTED_EPSILONS),
    "theorem, unit": ("unit", THEOREM, PRINTED_EPSILONS),
    "tight, standardized": ("standardized", TIGHT, PRINTED_EPSILONS),
    "tight, unit": ("unit", TIGHT, PRINTED_EPSILONS),
    "tight 0.5, standardized": ("standardized", TIGHT, (0.5,)),
    "tight 0.5 and 1, unit": ("unit", TIGHT, SMALL_EPSILONS[:2]),
    "tight 2 and 3, unit": ("unit", TIGHT, SMALL_EPSILONS[2:]),
}
SPECTRUM = ("noise_in_weights", "noise_in_logits", "progress")
DIFFERENCES = [*(f"{LABELS[s]} - 0" for s in SMOOTHINGS[1:]), "clipped once - smoothing 0"]
# Panels: fixed cohorts. The tables have Poisson cohorts, whose curves run alike.
SAMPLING = "uniform"
SAMPLINGS = ("uniform", "poisson")


def cell(
    sampling: str,
    smoothing: int | None,
    key: str,
    target: float,
    *,
    inputs: str = "unit",
    order: str = "OIHW",
) -> dict[str, Any]:
    """Return one cell of a table. Without smoothing it is DP-FedAvg, clipped once."""
    own = {"inputs": inputs, "sampling": sampling, "smoothing": smoothing, "order": order}
    return own | {key: target}


def slower(sampling: str, server_lr: float, target: float) -> dict[str, Any]:
    """Return DP-Fed with a smaller server rate instead of smoothing, as published otherwise."""
    chosen = {"inputs": "standardized", "sampling": sampling, "server_lr": server_lr}
    return {**chosen, THEOREM: target}


def known_cost(records: Records, sampling: str, noise: float) -> dict[str, float]:
    """Return the recorded `cost` of a noise."""
    wanted = {"quantity": "cost", "sampling": sampling, "noise_multiplier": noise}
    return next(record.result for record in records if record.matches(**wanted))


def accuracies(
    records: Records, smoothing: int | None, group: str, sampling: str
) -> dict[float, list[float]]:
    """Return the accuracies of all runs of a group, by target."""
    inputs, key, targets = GROUPS[group]
    return {
        target: records.values("accuracy", **cell(sampling, smoothing, key, target, inputs=inputs))
        for target in targets
    }


def together(records: Records, pairs: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]]) -> str:
    """Return accuracy of the first choices minus that of the others, in runs of one number."""
    values: list[float] = []
    for pair in pairs:
        one, base = (
            {r.setting["run"]: r.result["accuracy"] for r in records if r.matches(**choice)}
            for choice in pair
        )
        values += [value - base[run] for run, value in one.items() if run in base]
    return difference(values)


def difference(values: Sequence[float]) -> str:
    """Return mean and standard error, the mean alone below three values, a dash for none."""
    if not values:
        return "-"
    if len(values) < 3:
        return f"{statistics.mean(values):+.2f}"
    error = statistics.stdev(values) / math.sqrt(len(values))
    return f"{statistics.mean(values):+.2f} ±{error:.2f}"


def published_difference(sampling: str, smoothing: int) -> str:
    """Return mean over the four budgets, and its standard error from the printed deviations."""
    pairs = list(zip(PUBLISHED[sampling][smoothing], PUBLISHED[sampling][0], strict=True))
    mean = statistics.mean(one[0] - other[0] for one, other in pairs)
    variance = sum((one[1] ** 2 + other[1] ** 2) / 5 for one, other in pairs) / len(pairs) ** 2
    return f"{mean:+.2f} ±{math.sqrt(variance):.2f}"


def noise_table(records: Records) -> str:
    """Return the true cost of the theorem's noise, and the noise that costs the target."""

    def cells(name: str, key: str, target: float) -> list[str]:
        runs = [r.result for r in records if r.matches(sampling=name, **{key: target})]
        if not runs:
            return ["-", "-"]
        noise = runs[0]["noise_multiplier"]
        spent = known_cost(records, name, noise)
        return [f"{noise:.4f}", bracket(spent["epsilon_achieved"], spent["epsilon"], 4)]

    rows = [
        [name, f"{target:g}", *cells(name, THEOREM, target), *cells(name, TIGHT, target)]
        for name, target in product(SAMPLINGS, (*SMALL_EPSILONS, *PRINTED_EPSILONS))
    ]
    header = ["cohorts", "epsilon", "z of the theorem", "[achieved, proven]"]
    return markdown([*header, "z, tight", "[achieved, proven]"], rows)


def accuracy_table(records: Records, sampling: str) -> str:
    """Return the printed table, cell by cell, with the same noise and with the same epsilon."""
    rows: list[list[str]] = []
    for smoothing, label in LABELS.items():
        if smoothing is not None:
            printed = PUBLISHED[sampling][smoothing]
            rows.append([label, "published", *(f"{mean:.2f} ±{std:.2f}" for mean, std in printed)])
        for group in list(GROUPS)[:4]:
            found = accuracies(records, smoothing, group, sampling).values()
            if any(found):
                rows.append([label, group, *map(spread, found)])
    return markdown(["", "noise, inputs", *map(str, PRINTED_EPSILONS)], rows)


def small_table(records: Records) -> str:
    """Return tight noise for small budgets."""
    groups = (*list(GROUPS)[-2:], "tight 0.5, standardized")
    rows = [
        [name, label, *(
            spread(found) for group in groups
            for found in accuracies(records, smoothing, group, name).values()
        )]
        for name, (smoothing, label) in product(SAMPLINGS, LABELS.items())
    ]  # fmt: skip
    header = [*(f"{target:g}" for target in SMALL_EPSILONS), "0.5, standardized"]
    return markdown(["cohorts", "", *header], rows)


def gains(
    records: Records, sampling: str, inputs: str, key: str, targets: Sequence[float]
) -> list[str]:
    """Return paired differences to smoothing 0, all targets together."""

    def one(smoothing: int | None, target: float) -> dict[str, Any]:
        return cell(sampling, smoothing, key, target, inputs=inputs)

    return [
        together(records, [(one(smoothing, target), one(0, target)) for target in targets])
        for smoothing in (*SMOOTHINGS[1:], None)
    ]


def gain_table(records: Records) -> str:
    """Return differences to DP-Fed, all budgets of a group together."""
    rows: list[list[str]] = []
    for name in SAMPLINGS:
        published = [published_difference(name, smoothing) for smoothing in SMOOTHINGS[1:]]
        rows.append([name, "published", *published, "-"])
        rows += [[name, group, *gains(records, name, *chosen)] for group, chosen in GROUPS.items()]
    return markdown(["cohorts", "runs", *DIFFERENCES], rows)


def tight_table(records: Records) -> str:
    """Return accuracy with tight noise minus that with the theorem's, at one stated epsilon."""

    def gain(name: str, inputs: str, target: float, smoothing: int) -> str:
        both = [cell(name, smoothing, key, target, inputs=inputs) for key in (TIGHT, THEOREM)]
        return together(records, [(both[0], both[1])])

    rows = [
        [name, inputs, str(target), *(gain(name, inputs, target, s) for s in SMOOTHINGS)]
        for name, inputs, target in product(SAMPLINGS, INPUTS, PRINTED_EPSILONS)
    ]
    return markdown(["cohorts", "inputs", "epsilon", *(LABELS[s] for s in SMOOTHINGS)], rows)


def rate_table(records: Records) -> str:
    """Return a smaller server rate instead of smoothing: differences to DP-Fed with rate 1."""

    def over(name: str, rate: float) -> str:
        base = [cell(name, 0, THEOREM, t, inputs="standardized") for t in PRINTED_EPSILONS]
        slow = [slower(name, rate, target) for target in PRINTED_EPSILONS]
        return together(records, list(zip(slow, base, strict=True)))

    smooth = "standardized", THEOREM, PRINTED_EPSILONS
    rows = [
        [name, *(over(name, rate) for rate in SERVER_RATES), *gains(records, name, *smooth)[:-1]]
        for name in SAMPLINGS
    ]
    header = [f"server rate {rate:g}" for rate in SERVER_RATES]
    return markdown(["cohorts", *header, *(LABELS[s] for s in SMOOTHINGS[1:])], rows)


def order_table(records: Records) -> str:
    """Return neighbors in an image, or neighboring classes of one pixel, at epsilon 1."""
    rows: list[list[str]] = []
    for name, smoothing in product(SAMPLINGS, (1, 3)):
        one, other = (cell(name, smoothing, TIGHT, 1, order=order) for order in ("OIHW", "IOHW"))
        values = [spread(records.values("accuracy", **each)) for each in (one, other)]
        rows.append([name, str(smoothing), *values, together(records, [(one, other)])])
    return markdown(["cohorts", "smoothing", "pixels", "classes", "pixels - classes"], rows)


def spectrum_table(records: Records) -> str:
    """Return the remaining noise in weights and logits, and progress along a gradient."""
    rows = [
        [
            "pixels" if record.setting["order"] == "OIHW" else "classes",
            str(record.setting["smoothing"]),
            *(f"{record.result[name]:.2f}" for name in SPECTRUM),
        ]
        for record in records
        if record.matches(quantity="spectrum")
    ]
    header = ["noise variance in a weight", "noise variance in a logit", "progress"]
    return markdown(["neighbors", "smoothing", *header], rows)


def tables(records: Records) -> dict[str, str]:
    """Return all tables of the page."""
    return {
        "noise": noise_table(records),
        **{name: accuracy_table(records, name) for name in SAMPLINGS},
        "gain": gain_table(records),
        "small": small_table(records),
        "tight": tight_table(records),
        "rates": rate_table(records),
        "order": order_table(records),
        "spectrum": spectrum_table(records),
    }


def points(records: Records, smoothing: int, inputs: str) -> list[tuple[float, float, float]]:
    """Return proven epsilon, mean accuracy and worst accuracy for each target, by epsilon."""
    wanted = {"smoothing": smoothing, "sampling": SAMPLING, "inputs": inputs, "order": "OIHW"}
    found: dict[float, list[float]] = {}
    for record in records:
        if record.matches(**wanted) and {THEOREM, TIGHT} & record.setting.keys():
            cost = known_cost(records, SAMPLING, record.result["noise_multiplier"])
            found.setdefault(cost["epsilon"], []).append(record.result["accuracy"])
    return sorted((spent, statistics.mean(some), min(some)) for spent, some in found.items())


def draw(records: Records) -> Drawing:
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
    return Drawing(Picture(title, tuple(panels), note))


PICTURES = {"picture.png": draw}
