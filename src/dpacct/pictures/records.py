"""Pictures of actual runs: ledgers, training runs, and attacks on trained models."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from dpacct import validate
from dpacct.display import chosen, line, up
from dpacct.empirical.roc import Roc
from dpacct.errors import InvalidParameter
from dpacct.pictures.picture import Bar, Curve, Level, Panel, Picture
from dpacct.pictures.schedules import rates_panel
from dpacct.report.risks import of_thousand

MOST_RUNS = 12
ROC_POINTS = 121
# The false positive rate that the title of a ROC picture is about.
TITLE_FPR = 1e-2


def ledger_picture(report: Mapping[str, Any]) -> Picture:
    """Draw the epsilon of a ledger by round with its budget, and the epsilon of each run.

    Args:
        report: the facts of `Ledger.report`.
    Raises:
        InvalidParameter: no round ran, or no round has a bound.
    """
    if all(point["upper"] is None for point in report["points"]):
        rule = "a picture needs at least one round that is bounded"
        raise InvalidParameter("ledger", report["path"], rule)
    budget, total = float(report["budget"]["epsilon"]), report["epsilon_any_stop"]
    title = "No bound holds any more"
    if total is not None:
        title = f"Epsilon {up(total, 4)} of {chosen(budget, least=True)} is spent"
    unit = line(str(report["unit"]), 40)
    note = f"unit: one {unit}, {report['adjacency']}; {report['rounds']} rounds are charged"
    panels = [epsilon_panel(report)]
    bars = [
        Bar(f"{run['run']} {line(str(run['name']), 24)}", run["epsilon_any_stop"])
        for run in report["runs"]
        if run["rounds"]
    ][-MOST_RUNS:]
    if bars:
        label = "epsilon of each run alone"
        alone = [math.inf if bar.upper is None else bar.upper for bar in bars]
        if total is not None and total < sum(alone):
            label = "epsilon of each run alone; together the runs cost less than the sum"
        panels.append(Panel(label, "", bars=bars, levels=[Level(budget, "budget")]))
    return Picture(title, panels, note)


def epsilon_chart(report: Mapping[str, Any]) -> Picture:
    """Draw the chart of a report: epsilon by round, without a title."""
    return Picture("", [epsilon_panel(report)])


def epsilon_panel(report: Mapping[str, Any]) -> Panel:
    """Draw epsilon by round from the facts of a report.

    Args:
        report: ``points``, ``delta``, ``epsilon_any_stop``, ``part_of_plan``, and ``budget``,
            which may be null. At least one point has a bound.
    """
    points = [point for point in report["points"] if point["upper"] is not None]
    xs = [0.0, *(float(point["round"]) for point in points)]
    known = all(point.get("lower") is not None for point in points)
    curve = Curve(
        f"{up(points[-1]['upper'], 4)}{'' if report['budget'] is None else ' so far'}",
        xs,
        [0.0, *(point["upper"] for point in points)],
        lower=[0.0, *(point["lower"] for point in points)] if known else None,
    )
    levels: list[Level] = []
    if report["budget"] is not None:
        budget = float(report["budget"]["epsilon"])
        levels.append(Level(budget, f"budget {chosen(budget, least=True)}"))
    if report["part_of_plan"] and report["epsilon_any_stop"] is not None:
        whole = float(report["epsilon_any_stop"])
        levels.append(Level(whole, f"whole plan {up(whole, 4)}"))
    label = f"epsilon at delta {chosen(float(report['delta']), 3)}, proven"
    return Panel("rounds charged", label, [curve], levels=levels)


@dataclass(frozen=True, slots=True)
class TrainedRun:
    """Epsilon and accuracy after the rounds in which a run was evaluated."""

    name: str
    epsilon: tuple[float, ...]
    accuracy: tuple[float, ...]
    delta: float


def read_run(path: str | os.PathLike[str]) -> TrainedRun:
    """Read a report of `dpacct train`, which has one JSON object a line.

    Raises:
        InvalidParameter: the file cannot be read, is not such a report, or holds no accuracy
            with a finite epsilon.
    """
    file = validate.file_path("report", path)
    text = validate.file_text("report", file, "a report")
    try:
        rows = [json.loads(row) for row in text.splitlines() if row]
    except (ValueError, RecursionError):
        rule = "a report holds one JSON object a line, as dpacct train writes it"
        raise InvalidParameter("report", str(file), rule) from None
    keys = ("epsilon_upper", "test_accuracy", "delta")
    tables = [cast("dict[str, Any]", row) for row in rows if isinstance(row, dict)]
    rounds = [row for row in tables if all(isinstance(row.get(key), int | float) for key in keys)]
    if not rounds:
        rule = "it holds no test accuracy with a bounded epsilon"
        raise InvalidParameter("report", str(file), rule)
    name = file.name.removesuffix(".jsonl").removesuffix(".report")
    epsilon, accuracy = (tuple(float(row[key]) for row in rounds) for key in keys[:2])
    return TrainedRun(line(name, 32), epsilon, accuracy, float(rounds[-1]["delta"]))


def runs_picture(runs: Sequence[TrainedRun]) -> Picture:
    """Draw accuracy against the epsilon spent so far, with one line a run."""
    best = max(runs, key=lambda run: run.accuracy[-1])
    curves = [
        Curve(run.name, run.epsilon, run.accuracy, points=len(run.epsilon) == 1) for run in runs
    ]
    ends = f"{chosen(best.accuracy[-1], 3, least=True)} at epsilon {chosen(best.epsilon[-1], 4)}"
    deltas = {run.delta for run in runs}
    at = f"at delta {chosen(deltas.pop(), 3)}" if len(deltas) == 1 else "each at its own delta"
    panel = Panel(
        f"epsilon, as the reports state it, {at}",
        "accuracy on the test set",
        curves,
        from_zero=False,
    )
    note = "epsilon of a run that was planned to stop there; test data are not protected"
    return Picture(f"{best.name} ends best, with accuracy {ends}", [panel], note)


def roc_picture(
    observed: Sequence[tuple[str, Roc]],
    limit: Callable[[float], float | None] | None,
    note: str = "",
) -> Picture:
    """Draw observed true positive rates by false positive rate below the proven limit.

    Args:
        observed: attacks with their names. The title is about the first.
        limit: the largest TPR at an FPR in (0, 1), proven, None if there is no bound.
        note: text on the whole picture.
    """
    least = min(0.1, *(1 / roc.nonmembers for _, roc in observed))
    decades = math.floor(math.log10(least))
    rates = [10.0 ** (decades * (1 - k / (ROC_POINTS - 1))) for k in range(ROC_POINTS)]
    curves = [Curve("guessing", rates, rates, plain=True)]
    for name, roc in observed:
        points = [(rate, tpr) for rate in rates if (tpr := _tpr_at(roc, rate)) > 0.0]
        curves.append(Curve(name, [x for x, _ in points], [y for _, y in points], steps=True))
    proven = None if limit is None else [limit(rate) for rate in rates[::5]]
    if proven is not None and None not in proven:
        curves.append(Curve("proven limit", rates[::5], [rate or 0.0 for rate in proven]))
    name, roc = observed[0]
    seen = chosen(1000 * _tpr_at(roc, TITLE_FPR), 3)
    name = name[:1].upper() + name[1:]
    title = f"{name}: {seen} of 1,000 members found at 10 false positives in 1,000"
    most = None if limit is None else limit(TITLE_FPR)
    known = "no limit is proven" if most is None else f"the proven limit is {of_thousand(most)}"
    return Picture(f"{title}; {known}", [rates_panel(curves)], note)


def _tpr_at(found: Roc, fpr: float) -> float:
    """Return the largest observed TPR at a false positive rate of at most ``fpr``."""
    last = int(np.searchsorted(found.fpr, fpr * (1 + 1e-12), side="right")) - 1
    return float(found.tpr[last])
