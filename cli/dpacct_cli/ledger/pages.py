"""What the commands of `dpacct ledger` show to people."""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Any

from dpacct.budget import Spent
from dpacct.display import line
from dpacct.rounds import Schedule
from dpacct_cli import mechanism
from dpacct_cli.render import Grid, Page, Row, bracket, plain, up

if TYPE_CHECKING:
    from dpacct.ledger import Run
    from dpacct.ledger.verify import Verification

# As in the library's reports; spelled out here so that help stays quick.
CLAIMS = {
    "planned": "every round was planned before the first one: the tight accountant applies",
    "adaptive": "rounds were chosen as results came in: the Renyi odometer, valid for any choice",
    "none": "no guarantee: noise of a run did not come from a secret source (a seed was given)",
}


def _spent_rows(summary: dict[str, Any], spent: Spent) -> list[Row]:
    """What all runs spent; the figure that holds whatever decided when to stop comes first."""
    if not math.isfinite(spent.upper):
        return [Row("epsilon", "none", "  whatever the delta")]
    rows = [mechanism.epsilon_row(spent)]
    if summary["part_of_plan"]:
        whole = Spent(spent.lower, summary["epsilon_any_stop"], spent.delta)
        rows = [
            mechanism.epsilon_row(whole, lead="whatever decided when to stop, "),
            Row("", bracket(spent.interval), "  only if it was settled in advance to stop here"),
        ]
    if spent.upper > summary["budget"]["epsilon"]:
        rows.append(Row("", "more than the budget: no further round is admitted"))
    return rows


def reading(summary: dict[str, Any]) -> Spent:
    """What a summary says was spent, as of its entry."""
    lower, upper = summary["epsilon"]["lower"], summary["epsilon"]["upper"]
    return Spent(lower or 0.0, math.inf if upper is None else upper, summary["delta"])


def _budget_row(summary: dict[str, Any]) -> Row:
    budget = summary["budget"]
    return Row("budget", plain(budget["epsilon"]), f"at delta {plain(budget['delta'])}")


def _privacy_row(summary: dict[str, Any]) -> Row:
    relation = summary["adjacency"] or "adjacency of the first round"
    return Row("unit", f"one {line(summary['unit'], 40)}, {relation}")


def made(summary: dict[str, Any]) -> Page:
    """A new ledger, with a word on a delta that is large for anybody."""
    file = shlex.quote(summary["path"])
    rows = [Row("ledger", summary["path"]), _budget_row(summary), _privacy_row(summary)]
    note = mechanism.delta_note(summary["budget"]["delta"], None)
    return Page(rows, closing=f"dpacct ledger show {file} shows what was spent.", note=note)


def spent(summary: dict[str, Any], reading: Spent) -> Page:
    """What was spent; the reading is that of the summary."""
    count = summary["rounds"]
    rows = [
        *_spent_rows(summary, reading),
        _budget_row(summary),
        _privacy_row(summary),
        Row("rounds", str(count), f"charged, in {len(summary['runs'])} runs"),
        Row("claim", _words(summary)),
    ]
    if summary["relabelled"]:
        rows.append(Row("", "version 0.2 called its rounds add-remove; see the guide to ledgers"))
    if summary["plan_delta"]:
        share = summary["adaptive_delta"] / summary["delta"]
        rows.append(Row("", f"rounds outside the plans have {share:.2g} of delta"))
    lines = [
        [
            str(run["run"]),
            line(run["name"], 40),
            f"{run['committed']}",
            str(run["uncommitted"]),
            "-" if run["planned_rounds"] is None else str(run["planned_rounds"]),
            "none" if run["epsilon_any_stop"] is None else up(run["epsilon_any_stop"]),
            _claim(run),
        ]
        for run in summary["runs"]
    ]
    header = ["run", "name", "released", "not committed", "planned", "epsilon", "claim"]
    file = shlex.quote(summary["path"])
    closing = f"dpacct ledger report {file} -o report.html writes a page for a reviewer."
    return Page(rows, Grid(header, lines) if lines else None, closing=closing)


def _words(summary: dict[str, Any]) -> str:
    if not summary["rounds"]:
        return "nothing ran yet"
    if summary["part_of_plan"]:
        slots = summary["slots"]
        return (
            f"{slots['used']} of {slots['planned']} planned rounds are charged; where results "
            f"decide, the whole plan counts"
        )
    return CLAIMS[summary["guarantee"]]


def _claim(run: dict[str, Any]) -> str:
    if not run["private"]:
        return "none, not private"
    if run["part_of_plan"]:
        part = f"{up(run['epsilon']['upper'])} if settled in advance"
        return f"planned{', finished' if run['finished'] else ''}, {part}"
    if run["left_plan"]:
        return f"{run['guarantee']}, left its plan"
    return f"{run['guarantee']}{', finished' if run['finished'] else ''}"


def verified(found: Verification) -> Page:
    """What a verification found."""
    sound = "sound" if found.sound else "damaged"
    rows = [
        Row("ledger", sound, f"{found.entries} entries, {found.rounds} rounds charged"),
        Row("head", found.head),
    ]
    if found.head_found is not None:
        where = "in the chain" if found.head_found else "not in the chain"
        rows.append(Row("", f"the head you kept is {where}"))
    closing = ""
    if found.sound and found.head_found is None:
        closing = "Keep the head elsewhere: --head HASH then shows if entries were dropped."
    return Page(rows, remarks=[*found.problems, *found.remarks], closing=closing)


def charged(schedule: Schedule, run: int, summary: dict[str, Any], reading: Spent) -> Page:
    """Rounds that ran elsewhere, and where the ledger stands with them."""
    rows = [
        Row("charged", str(schedule.rounds), f"rounds that ran elsewhere, as run {run}"),
        *mechanism.rows(schedule),
        *_spent_rows(summary, reading),
        _budget_row(summary),
    ]
    file = shlex.quote(summary["path"])
    return Page(rows, closing=f"dpacct ledger show {file} shows what was spent.")


def finished(run: Run, freed: int, summary: dict[str, Any]) -> Page:
    """A run that was ended."""
    file = shlex.quote(summary["path"])
    lost = run.rounds - run.committed
    rows = [
        Row("finished", f"run {run.id}", line(run.name, 40)),
        Row("free again", str(freed), "rounds of its plan that were still to come"),
        Row("spent", str(run.rounds), "rounds, which stay spent"
            + (f"; {lost} of them reserved and never released" if lost else "")),
    ]  # fmt: skip
    return Page(rows, closing=f"dpacct ledger show {file} shows what was spent.")


def left(
    schedule: Schedule, chosen: int, planned: int, summary: dict[str, Any], reading: Spent
) -> Page:
    """How many rounds are left."""
    rows = [Row("remaining", str(chosen), "more such rounds, chosen as you go")]
    if planned > chosen:
        rows.append(Row("", str(planned), "if they are registered as a plan before anything runs"))
    rows += mechanism.rows(schedule)
    rows += [*_spent_rows(summary, reading), _budget_row(summary)]
    if summary["held"]:
        rows.append(Row("", "what is held for plans is not available"))
    return Page(rows)
