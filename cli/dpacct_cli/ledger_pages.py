"""What the commands of `dpacct ledger` show to people."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from dpacct.rounds import Schedule
from dpacct_cli import mechanism
from dpacct_cli.render import Grid, Page, Row, down, plain, up

if TYPE_CHECKING:
    from dpacct.ledger.verify import Verification

# As in the library's reports; spelled out here so that help stays quick.
CLAIMS = {
    "planned": "every round was planned before the first one: the tight accountant applies",
    "adaptive": "rounds were chosen as results came in: the Renyi odometer, valid for any choice",
    "none": "no guarantee: noise of a run did not come from a secret source (a seed was given)",
}


def _bracket(epsilon: dict[str, float | None]) -> str:
    upper, lower = epsilon["upper"], epsilon["lower"]
    proven = "none" if upper is None else f"{up(upper)} proven"
    return proven if lower is None or upper is None else f"{proven}    {down(lower)} achieved"


def _budget_row(summary: dict[str, Any]) -> Row:
    budget = summary["budget"]
    return Row("budget", plain(budget["epsilon"]), f"at delta {plain(budget['delta'])}")


def _privacy_row(summary: dict[str, Any]) -> Row:
    relation = summary["adjacency"] or "adjacency of the first round"
    return Row("unit", f"one {summary['unit']}, {relation}")


def made(summary: dict[str, Any]) -> Page:
    """A new ledger."""
    file = shlex.quote(summary["path"])
    rows = [Row("ledger", summary["path"]), _budget_row(summary), _privacy_row(summary)]
    return Page(rows, closing=f"dpacct ledger show {file} shows what was spent.")


def spent(summary: dict[str, Any]) -> Page:
    """What was spent."""
    count = summary["rounds"]
    rows = [
        Row("epsilon", _bracket(summary["epsilon"]), f"  at delta {plain(summary['delta'])}"),
        _budget_row(summary),
        _privacy_row(summary),
        Row("rounds", str(count), f"charged, in {len(summary['runs'])} runs"),
        Row("claim", CLAIMS[summary["guarantee"]] if summary["rounds"] else "nothing ran yet"),
    ]
    if summary["plan_delta"]:
        share = summary["adaptive_delta"] / summary["delta"]
        rows.append(Row("", f"rounds outside the plans have {share:.2g} of delta"))
    lines = [
        [
            str(run["run"]),
            run["name"],
            f"{run['committed']}",
            str(run["uncommitted"]),
            "-" if run["planned_rounds"] is None else str(run["planned_rounds"]),
            "none" if run["epsilon"]["upper"] is None else up(run["epsilon"]["upper"]),
            _claim(run),
        ]
        for run in summary["runs"]
    ]
    header = ["run", "name", "released", "not committed", "planned", "epsilon", "claim"]
    file = shlex.quote(summary["path"])
    closing = f"dpacct ledger report {file} -o report.html writes a page for a reviewer."
    return Page(rows, Grid(header, lines) if lines else None, closing=closing)


def _claim(run: dict[str, Any]) -> str:
    if not run["private"]:
        return "none, not private"
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


def left(schedule: Schedule, chosen: int, planned: int, summary: dict[str, Any]) -> Page:
    """How many rounds are left."""
    rows = [Row("remaining", str(chosen), "more such rounds, chosen as you go")]
    if planned > chosen:
        rows.append(Row("", str(planned), "if they are registered as a plan before anything runs"))
    rows += mechanism.rows(schedule)
    rows += [Row("spent", _bracket(summary["epsilon"])), _budget_row(summary)]
    if summary["held"]:
        rows.append(Row("", "what is held for plans is not available"))
    return Page(rows)
