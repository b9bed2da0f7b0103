"""What there is to know of a ledger without reading every entry, as a JSON object."""

from __future__ import annotations

import math
from typing import Any

from dpacct.budget import Interval, Spent
from dpacct.ledger.readings import Readings
from dpacct.ledger.record.events import schedule_to_json
from dpacct.ledger.report.claims import Claim


def finite(value: float) -> float | None:
    """The value as JSON knows it: null where it is infinite."""
    return value if math.isfinite(value) else None


def summarize(readings: Readings) -> dict[str, Any]:
    """The summary of a ledger, as ``show`` prints it.

    Args:
        readings: as of an entry, so that all of it belongs together.
    Returns:
        ``path``, ``budget``, ``unit``, ``adjacency``, ``epsilon``, ``epsilon_any_stop``, ``delta``,
        ``guarantee``, ``claim``, ``rounds``, ``runs`` (a list), ``head``, ``entries``. An infinite
        epsilon is null.
    """
    book = readings.book
    state, budget, head = book.state(), book.budget, book.store.head()
    spent = readings.ledger_interval()
    used, planned = readings.planned_rounds()
    claim = Claim(
        readings.ledger_guarantee(), spent.upper, readings.ledger_any_stop(), state.rounds, used,
        planned,
    )  # fmt: skip
    return {
        "schema": 1,
        "path": str(book.store.path),
        "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
        "unit": book.unit,
        "adjacency": state.adjacency or None,
        "relabelled": book.relabelled,
        "epsilon": both(spent),
        **_promised(claim),
        "delta": budget.delta,
        "guarantee": str(claim.guarantee),
        "plan_delta": state.plan_delta,
        "adaptive_delta": state.delta,
        "held": any(state.held),
        "rounds": state.rounds,
        "runs": [_run(readings, number) for number in range(1, state.runs + 1)],
        "head": head.hash.hex(),
        "entries": head.number,
    }


def both(spent: Interval | Spent) -> dict[str, float | None]:
    """Both ends of a bracket as JSON."""
    return {"lower": finite(spent.lower), "upper": finite(spent.upper)}


def _promised(claim: Claim) -> dict[str, Any]:
    return {
        "epsilon_any_stop": finite(claim.any_stop),
        "claim": claim.words,
        "part_of_plan": claim.partial,
        "slots": {"used": claim.used, "planned": claim.planned},
    }


def _run(readings: Readings, number: int) -> dict[str, Any]:
    book = readings.book
    state, start, plan = book.run_state(number), book.start(number), book.plan(number)
    spent, any_stop = readings.run_interval(number), readings.run_any_stop(number)
    whole = finite(any_stop) if plan is not None and state.on_plan else None
    if not state.private:
        spent, any_stop = spent.without_privacy, math.inf
    claim = Claim(
        readings.run_guarantee(number), spent.upper, any_stop, state.rounds,
        state.cursor if plan else 0, plan.rounds if plan else 0, first=state.initial,
    )  # fmt: skip
    return {
        "run": number,
        "name": start.name,
        "private": state.private,
        "guarantee": str(claim.guarantee),
        "epsilon": both(spent),
        **_promised(claim),
        "rounds": state.rounds,
        "committed": state.committed,
        "uncommitted": state.rounds - state.committed,
        "finished": state.finished,
        "planned_rounds": None if plan is None else plan.rounds,
        "planned_epsilon": whole,
        "planned_first": state.initial,
        "left_plan": state.left,
        "accountant": None if plan is None else start.accountant,
        "plan": None if plan is None else schedule_to_json(plan.schedule),
        "details": start.details,
    }
