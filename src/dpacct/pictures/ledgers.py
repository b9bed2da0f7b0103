"""What a ledger says was spent: epsilon over its rounds, and by run."""

from __future__ import annotations

from typing import Any

from dpacct.display import chosen, line, up
from dpacct.errors import InvalidParameter
from dpacct.pictures.picture import Bar, Curve, Level, Panel, Picture

MOST_RUNS = 12


def ledger_picture(report: dict[str, Any]) -> Picture:
    """Epsilon over the rounds of a ledger beside its budget, and what each run may spend.

    Args:
        report: of `Ledger.report`.
    Raises:
        InvalidParameter: no round ran, or nothing is bounded.
    """
    points = [point for point in report["points"] if point["upper"] is not None]
    if not points:
        rule = "a picture needs at least one round that is bounded"
        raise InvalidParameter("ledger", report["path"], rule)
    budget, delta = float(report["budget"]["epsilon"]), float(report["delta"])
    xs = [0.0, *(float(point["round"]) for point in points)]
    known = all(point["lower"] is not None for point in points)
    curve = Curve(
        f"{up(points[-1]['upper'], 4)} so far",
        xs,
        [0.0, *(point["upper"] for point in points)],
        lower=[0.0, *(point["lower"] for point in points)] if known else (),
    )
    levels = [Level(budget, f"budget {chosen(budget, least=True)}")]
    if report["part_of_plan"] and report["epsilon_any_stop"] is not None:
        whole = float(report["epsilon_any_stop"])
        levels.append(Level(whole, f"whole plan {up(whole, 4)}"))
    over_rounds = Panel(
        "rounds charged, all runs",
        f"epsilon at delta {chosen(delta, 3)}, proven",
        (curve,),
        levels=tuple(levels),
    )
    return Picture(_title(report, budget), (over_rounds, *_by_run(report, budget)), _note(report))


def _title(report: dict[str, Any], budget: float) -> str:
    promise = report["epsilon_any_stop"]
    if promise is None:
        return "No bound holds any more"
    return f"Epsilon {up(promise, 4)} of {chosen(budget, least=True)} is spent"


def _note(report: dict[str, Any]) -> str:
    unit = line(str(report["unit"]), 40)
    return f"unit: one {unit}, {report['adjacency']}; {report['rounds']} rounds are charged"


def _by_run(report: dict[str, Any], budget: float) -> list[Panel]:
    runs = [run for run in report["runs"] if run["rounds"]][-MOST_RUNS:]
    if not runs:
        return []
    bars = [
        Bar(
            f"{run['run']} {line(str(run['name']), 24)}",
            float("inf") if run["epsilon_any_stop"] is None else float(run["epsilon_any_stop"]),
            words="no bound" if run["epsilon_any_stop"] is None else "",
        )
        for run in runs
    ]
    label = "epsilon of each run alone, whatever decided when it stopped; together they cost less"
    return [Panel(label, "", bars=tuple(bars), levels=(Level(budget, "budget"),))]
