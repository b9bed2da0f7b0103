"""Tables and picture of `membership`, from its runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

import numpy as np

from dpacct import Poisson, calibrate
from dpacct.accountant import find_accountant
from dpacct.pictures import Curve, Drawing, Panel, Picture
from dpacct.reproduce import Record, Records
from dpacct.risk.attacks import Attacks
from dpacct.risk.measures import Accusations, accusations
from dpacct.rounds import Round
from evidence.pages import markdown

ROUNDS, SAMPLING, DELTA = 30, Poisson(0.5), 60**-1.1
BUDGETS: dict[str, Sequence[float | None]] = {
    "non-private": (None,),
    "dp-fedavg": (8,),
    "dp-fed-ls": (8,),
}
GRID = tuple(round(float(rate), 5) for rate in np.geomspace(1e-3, 1.0, 61))


def limit(epsilon: float) -> Accusations:
    """Return the proven limit of all attacks on a row."""
    found = calibrate(epsilon=epsilon, delta=DELTA, rounds=ROUNDS, sampling=SAMPLING)
    plan = ROUNDS * Round(found.noise_multiplier, SAMPLING)
    return accusations(Attacks(plan, find_accountant("tight")))


def rows(records: Records) -> list[tuple[str, float | None, list[Record]]]:
    """Return method, epsilon, and the runs of each row."""
    return [
        (method, epsilon, [r for r in records if r.matches(method=method, epsilon=epsilon)])
        for method, budgets in BUDGETS.items()
        for epsilon in budgets
    ]


def pooled(runs: Sequence[Record], attack: str, unit: str, name: str) -> list[float]:
    """Return one figure of all runs of a row, the value of an AUC."""
    found = [record.result[attack][unit][name] for record in runs]
    return [value[0] if isinstance(value, list) else value for value in found]


def _shown(values: Sequence[float]) -> str:
    """Return mean and its standard error over runs."""
    error = statistics.stdev(values) / len(values) ** 0.5
    return f"{statistics.mean(values):.3f} ±{error:.3f}"


def _attacked(runs: Sequence[Record], name: str) -> list[str]:
    return [
        _shown(pooled(runs, attack, unit, name))
        for attack in ("loss", "likelihood")
        for unit in ("client", "example")
    ]


def tables(records: Records) -> dict[str, str]:
    """Return the tables of the page."""
    areas: list[list[str]] = []
    rates: list[list[str]] = []
    for method, epsilon, runs in rows(records):
        proven = None if epsilon is None else limit(epsilon)
        row = [f"`{method}`", "none" if epsilon is None else f"{epsilon:g}"]
        sides = [
            f"{statistics.mean(one.result[side] for one in runs):.1f}"
            for side in ("train_accuracy", "held_out_accuracy")
        ]
        first = runs[0].result["loss"]["client"]["auc"]
        ends = [f"[{first[1]:.2f}, {first[2]:.2f}]", f"{proven.auc:.3f}" if proven else "none"]
        areas.append([*row, *sides, *_attacked(runs, "auc"), *ends])
        last = f"{proven.tpr(0.01):.3f}" if proven else "none"
        rates.append([*row, *_attacked(runs, "tpr_at_1e-2"), last])
    shared = ["loss, example", "ratio, client", "ratio, example"]
    header = ["method", "epsilon", "accuracy, members", "others", "AUC: loss, client", *shared]
    return {
        "auc": markdown([*header, "95 % of the first run's first", "limit"], areas),
        "rates": markdown(
            ["method", "epsilon", "TPR at FPR 0.01: loss, client", *shared, "limit"], rates
        ),
    }


def draw(records: Records) -> Drawing:
    """Return mean curves over runs, by client, on logarithmic axes."""
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
        "false positive rate: non-members who are accused",
        "true positive rate: members who are found",
        tuple(curves),
        log_x=True,
        log_y=True,
        y_max=1.0,
    )
    best = ", ".join(f"{name} {mean:.2f}" for name, mean in means.items())
    title = f"Privacy lowers the AUC of an attack by the loss: {best}"
    note = "Mean over runs. The limit is proven for the private methods, on average over trainings."
    return Drawing(Picture(title, (panel,), note))


PICTURES = {"roc.png": draw}
