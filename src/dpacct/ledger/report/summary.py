"""The facts about a ledger, once as a JSON object: for ``show``, ``report`` and ``export``."""

from __future__ import annotations

import math
from typing import Any

from dpacct.budget import Interval, Spent
from dpacct.ledger.creation import software
from dpacct.ledger.readings import Readings
from dpacct.ledger.record.charged import Charged, achieved_epsilon, proven_epsilon
from dpacct.ledger.record.events import round_to_json, schedule_to_json
from dpacct.ledger.report.claims import Claim
from dpacct.ledger.report.history import History, RunHistory, read_history
from dpacct.ledger.report.promise import promise_of
from dpacct.report.assumptions import OF_LEDGER
from dpacct.report.front import risk_to_json
from dpacct.rounds import Phase, Schedule


def finite(value: float) -> float | None:
    """The value as JSON knows it: null where it is infinite."""
    return value if math.isfinite(value) else None


def summarize(readings: Readings) -> dict[str, Any]:
    """What there is to know without reading every entry.

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
        "path": str(book.store.path),
        "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
        "unit": book.unit,
        "adjacency": state.adjacency or None,
        "epsilon": _both(spent),
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


def _both(spent: Interval | Spent) -> dict[str, float | None]:
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
        "epsilon": _both(spent),
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


def report_of(now: Readings) -> dict[str, Any]:
    """What `Ledger.report` returns, as of the entry that the readings are of."""
    found = with_history(summarize(now), read_history(now))
    return found | {
        "kind": "ledger",
        "risk": risk_to_json(promise_of(now, found)),
        "assumptions": list(OF_LEDGER),
        "reporter": software(),
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
    if not history.released:
        return None
    schedule = Schedule(Phase(r, n) for r, n in history.released.items())
    spent = Interval.bracket(
        achieved_epsilon(schedule, delta), proven_epsilon(Charged(schedule), delta, math.inf)
    )
    return _both(spent)
