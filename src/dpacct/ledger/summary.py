"""The facts about a ledger, once as a JSON object: for ``show``, ``report`` and ``export``."""

from __future__ import annotations

import math
from typing import Any

from dpacct.accountant import ACCOUNTANTS
from dpacct.budget import Spent
from dpacct.errors import NotConverged, Unsupported
from dpacct.ledger.book import Book
from dpacct.ledger.events import round_to_json
from dpacct.ledger.history import History, RunHistory
from dpacct.ledger.plans import proven_epsilon
from dpacct.ledger.readings import Readings
from dpacct.rounds import Phase, Round, Schedule


def finite(value: float) -> float | None:
    """The value as JSON knows it: null where it is infinite."""
    return value if math.isfinite(value) else None


def summarize(book: Book, readings: Readings) -> dict[str, Any]:
    """What there is to know without reading every entry.

    Returns:
        ``path``, ``budget``, ``unit``, ``adjacency``, ``epsilon``, ``delta``, ``guarantee``,
        ``rounds``, ``runs`` (a list), ``head``. An infinite epsilon is null.
    """
    state, budget = book.state(), book.budget
    return {
        "path": str(book.store.path),
        "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
        "unit": book.unit,
        "adjacency": state.adjacency or None,
        "epsilon": _both(readings.ledger_interval()),
        "delta": budget.delta,
        "guarantee": str(readings.ledger_guarantee()),
        "plan_delta": state.plan_delta,
        "adaptive_delta": state.delta,
        "held": any(state.held),
        "rounds": state.rounds,
        "runs": [_run(book, readings, number) for number in range(1, state.runs + 1)],
        "head": book.store.head().hash.hex(),
    }


def _both(spent: Spent) -> dict[str, float | None]:
    return {"lower": finite(spent.lower), "upper": finite(spent.upper)}


def _run(book: Book, readings: Readings, number: int) -> dict[str, Any]:
    state, data, plan = book.run_state(number), book.run_data(number), book.plan(number)
    spent = readings.run_interval(number)
    if not state.private:
        spent = spent.without_privacy
    whole = None
    if plan is not None and state.on_plan:
        whole = finite(proven_epsilon(plan.schedule, book.budget.delta, math.inf))
    return {
        "run": number,
        "name": data["name"],
        "private": state.private,
        "guarantee": str(readings.run_guarantee(number)),
        "epsilon": _both(spent),
        "rounds": state.rounds,
        "committed": state.committed,
        "uncommitted": state.rounds - state.committed,
        "finished": state.finished,
        "planned_rounds": None if plan is None else plan.rounds,
        "planned_epsilon": whole,
        "planned_first": state.initial,
        "left_plan": state.left,
        "plan": data["plan"],
        "details": data["details"],
    }


def with_history(summary: dict[str, Any], history: History) -> dict[str, Any]:
    """The summary with what only a reading of all entries tells."""
    found = dict(summary)
    found |= {
        "created": history.created,
        "latest": history.latest,
        "entries": history.entries,
        "software": history.software,
        "rounds_as_if_planned": as_if_planned(history, float(summary["delta"])),
        "points": [
            {
                "round": p.round,
                "upper": finite(p.upper),
                "lower": p.lower,
                "guarantee": "planned" if p.planned else "adaptive",
            }
            for p in history.points
        ],
        "marks": [{"round": mark.round, "words": mark.words} for mark in history.marks],
    }
    found["runs"] = [
        run | _history(history.runs.get(run["run"], RunHistory())) for run in summary["runs"]
    ]
    return found


def _history(run: RunHistory) -> dict[str, Any]:
    return {
        "started": run.started,
        "ended": run.ended,
        "resumed": run.resumed,
        "left_at": run.left_at or None,
        "abandonments": run.abandonments,
        "abandoned": [{"entry": number, "reason": reason} for number, reason in run.abandoned],
        "more_rounds": run.more_rounds,
        "phases": [
            {"rounds": stretch.rounds, "planned": stretch.planned}
            | round_to_json(stretch.round)
            | {
                "releases": [
                    {"name": name, "noise_multiplier": z, "sensitivity": sensitivity}
                    for name, z, sensitivity in stretch.releases
                ]
            }
            for stretch in run.stretches
            if stretch.rounds
        ],
    }


def as_if_planned(history: History, delta: float) -> dict[str, float | None] | None:
    """Epsilon that the released rounds would have, had they been fixed in advance."""
    counts: dict[Round, int] = dict(history.released)
    if not counts:
        return None
    try:
        spent = ACCOUNTANTS["tight"].epsilon(
            Schedule(Phase(r, n) for r, n in counts.items()), delta
        )
    except (NotConverged, Unsupported):
        return None
    return {"lower": finite(spent.lower), "upper": finite(spent.upper)}
