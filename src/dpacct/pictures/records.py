"""Pictures of actual runs: ledgers, training runs, and attacks on trained models."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from itertools import accumulate, pairwise
from statistics import fmean
from typing import Any, cast

import numpy as np

from dpacct import validate
from dpacct.display import chosen, line, up
from dpacct.empirical.roc import Roc
from dpacct.errors import InvalidParameter
from dpacct.pictures.picture import Curve, Level, Panel, Picture
from dpacct.pictures.schedules import rates_panel
from dpacct.report.front import of_thousand

# Parts of a stack. Smaller ones are summed up.
MOST_NAMES = 5
ROC_POINTS = 121
# The false positive rate that the title of a ROC picture is about.
TITLE_FPR = 1e-2
# The number of a repeat at the end of a name.
_NUMBERED = re.compile(r"[-_. ](run-?)?\d+$")


def ledger_picture(report: Mapping[str, Any]) -> Picture:
    """Draw the total epsilon of a ledger by date, as what each project added, and its budget.

    Runs without a project stand for themselves. If a total has no bound, epsilon is drawn by round
    as far as it has one.

    Args:
        report: the facts of `Ledger.report`, or of `Ledger.summary`.
    Raises:
        InvalidParameter: no round ran, or no round has a bound.
    """
    budget, total = float(report["budget"]["epsilon"]), report["epsilon_any_stop"]
    unit = line(str(report["unit"]), 40)
    note = f"unit: one {unit}, {report['adjacency']}; {report['rounds']} rounds are charged"
    panel = spent_panel(report)
    if panel is None:
        if all(point["upper"] is None for point in report.get("points", ())):
            rule = "a picture needs at least one round that is bounded"
            raise InvalidParameter("ledger", report["path"], rule)
        return Picture("No bound holds any more", [epsilon_panel(report)], note)
    title = f"Epsilon {up(total, 4)} of {chosen(budget, least=True)} is spent"
    note += "; what each added when it was charged, not its epsilon alone"
    return Picture(title, [panel], note)


def spent_panel(facts: Mapping[str, Any]) -> Panel | None:
    """Stack what the runs added to the total, by project, at the dates of their latest entries.

    Args:
        facts: of `Ledger.summary`, or of `Ledger.report`.
    Returns:
        The panel, by rounds if the ledger was written on one day. None if nothing ran, or a total
        has no bound.
    """
    runs = [run for run in facts["runs"] if run["rounds"]]
    runs.sort(key=lambda run: (run["latest"], run["run"]))
    if not runs or None in (facts["epsilon_any_stop"], *(run["total_after"] for run in runs)):
        return None
    days = [float(date.fromisoformat(run["latest"][:10]).toordinal()) for run in runs]
    dates = days[-1] > days[0]
    before = [0.0, *accumulate((run["total_after"] for run in runs), max)]
    more = [after - at for at, after in pairwise(before)]
    names = [line(run["project"] or run["name"], 24) for run in runs]
    sums = dict.fromkeys(names, 0.0)
    for name, each in zip(names, more, strict=True):
        sums[name] += each
    shown = sorted(sums, key=lambda name: -sums[name])[:MOST_NAMES]
    names = [name if name in shown else "others" for name in names]
    if dates:
        # A part of the axis before the first run and behind the last one.
        margin = max(1.0, (days[-1] - days[0]) / 25)
        xs = [days[0] - margin, *days, days[-1] + margin]
    else:
        xs = [0.0, *accumulate(float(run["rounds"]) for run in runs)]
    curves: list[Curve] = []
    base = [0.0] * len(xs)
    for name in dict.fromkeys(names):
        own = (each if name == other else 0.0 for other, each in zip(names, more, strict=True))
        parts = [0.0, *accumulate(own)]
        parts += parts[-1:] * dates
        top = [low + part for low, part in zip(base, parts, strict=True)]
        curves.append(Curve(name, xs, top, lower=base, steps=dates, filled=True))
        base = top
    label = "" if dates else "rounds charged"
    y = f"epsilon at delta {chosen(float(facts['delta']), 3)}, proven"
    return Panel(label, y, curves, levels=_levels(facts), dates=dates)


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
    label = f"epsilon at delta {chosen(float(report['delta']), 3)}, proven"
    return Panel("rounds charged", label, [curve], levels=_levels(report))


def _levels(report: Mapping[str, Any]) -> list[Level]:
    """Return the budget of a report, if it has one, and the whole plan of which a part ran."""
    levels: list[Level] = []
    if report["budget"] is not None:
        budget = float(report["budget"]["epsilon"])
        levels.append(Level(budget, f"budget {chosen(budget, least=True)}"))
    if report["part_of_plan"] and report["epsilon_any_stop"] is not None:
        whole = float(report["epsilon_any_stop"])
        levels.append(Level(whole, f"whole plan {up(whole, 4)}"))
    return levels


@dataclass(frozen=True, slots=True)
class TrainedRun:
    """Epsilon and accuracy after the rounds in which a run was evaluated.

    ``at`` has their places on another axis of `AXES`, and is empty for epsilon. ``part`` is the
    part of the data that was looked at.
    """

    name: str
    epsilon: tuple[float, ...]
    accuracy: tuple[float, ...]
    delta: float
    at: tuple[float, ...] = ()
    part: str = "test"


# Axes of trained runs, with their labels and how a title says a place on them.
AXES = {
    "epsilon": ("epsilon, as the reports state it", "at epsilon {}"),
    "round": ("round", "after {} rounds"),
    "megabytes": ("megabytes sent and received by a client in every round", "after {} MB"),
}  # fmt: skip


def read_run(path: str | os.PathLike[str], against: str = "epsilon") -> TrainedRun:
    """Read a report of `dpacct train`, which has one JSON object a line.

    ``against`` is one of `AXES`.

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
    validate.one_of("against", against, "the axis", AXES)
    tables = [cast("dict[str, Any]", row) for row in rows if isinstance(row, dict)]
    sent = 0.0
    for row in tables:
        sent += sum(_figure(row.get(key), 0.0) for key in ("bytes_down", "bytes_up")) / 1e6
        row["megabytes"] = sent or None
    names = ("validation_accuracy", "unprotected_validation_accuracy", "test_accuracy")
    seen = next((name for name in names if any(name in row for row in tables)), names[-1])
    part = seen.removesuffix("_accuracy").replace("_", " ")
    keys = ("epsilon_upper", "delta") if against == "epsilon" else (against,)
    rounds = [row for row in tables if all(_figure(row.get(k)) is not None for k in (*keys, seen))]
    if not rounds:
        wanted = "bounded epsilon" if against == "epsilon" else f"place by {against}"
        raise InvalidParameter("report", str(file), f"it holds no {part} accuracy with a {wanted}")
    name = file.name.removesuffix(".jsonl").removesuffix(".report")
    # Without noise, epsilon and delta are null.
    epsilon = tuple(_figure(row.get("epsilon_upper"), math.inf) for row in rounds)
    accuracy, delta = tuple(float(row[seen]) for row in rounds), rounds[-1].get("delta")
    at = () if against == "epsilon" else tuple(float(row[against]) for row in rounds)
    return TrainedRun(line(name, 32), epsilon, accuracy, _figure(delta, math.inf), at, part)


def _figure(value: object, otherwise: Any = None) -> Any:
    """Return a number of a report, which may be anything, as a float."""
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 else otherwise


def runs_picture(runs: Sequence[TrainedRun], against: str = "epsilon") -> Picture:
    """Draw accuracy against the epsilon spent so far, or another axis of `AXES`.

    Runs whose names differ by a number at the end, such as ``a-1`` and ``a-2``, are repeats: their
    line is the mean, in a band from the worst to the best of them.
    """
    groups: dict[str, list[TrainedRun]] = {}
    for run in runs:
        name = _NUMBERED.sub("", run.name)
        groups.setdefault(
            name if _places(groups.get(name, [run])[0]) == _places(run) else run.name, []
        ).append(run)
    curves: list[Curve] = []
    for name, repeats in groups.items():
        columns = list(zip(*(run.accuracy for run in repeats), strict=True))
        low, high = ([of(each) for each in columns] for of in (min, max))
        band = (low, high) if len(repeats) > 1 else (None, None)
        xs = _places(repeats[0])
        curves.append(Curve(name, xs, [*map(fmean, columns)], *band, points=len(xs) == 1))
    best = max(curves, key=lambda curve: curve.y[-1])
    few, many = (of(curves, key=lambda curve: curve.x[-1]) for of in (min, max))
    title = f"{best.name} ends best, with accuracy {chosen(best.y[-1], 3, least=True)}"
    label, place = AXES[against]
    title += f" {place.format(chosen(best.x[-1], 4))}"
    if against == "epsilon" and best is many and few.x[-1] < 0.9 * many.x[-1]:
        points = 100 * (many.y[-1] - few.y[-1])
        ends = f"{chosen(few.x[-1], 3)} instead of {chosen(many.x[-1], 3)}"
        title = f"Epsilon {ends} costs {points:.0f} points of accuracy"
    deltas = {run.delta for run in runs}
    at = f"at delta {chosen(deltas.pop(), 3)}" if len(deltas) == 1 else "each at its own delta"
    label += f", {at}" if against == "epsilon" else ""
    looked = "accuracy on " + " and ".join(f"the {part} set" for part in {r.part: 0 for r in runs})
    panel = Panel(label, looked, curves, from_zero=False)
    note = "epsilon of a run that was planned to stop there; test data are not protected"
    if len(runs) > len(curves):
        note = f"lines: means of repeats, in a band from the worst to the best; {note}"
    return Picture(title, [panel], note)


def _places(run: TrainedRun) -> tuple[float, ...]:
    return run.at or run.epsilon


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


def _tpr_at(roc: Roc, fpr: float) -> float:
    """Return the largest observed TPR at a false positive rate of at most ``fpr``."""
    last = int(np.searchsorted(roc.fpr, fpr * (1 + 1e-12), side="right")) - 1
    return float(roc.tpr[last])
