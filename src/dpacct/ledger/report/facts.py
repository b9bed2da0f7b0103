"""The facts about a ledger as one JSON object: its summary, and with the history of all rounds.

Rule 1: some epsilons hold only if results did not influence when to stop. They are never printed
without the epsilon of the whole plan, which holds in any case.
Rule 2: an attacker's success is computed from a promise that was fixed in advance: the whole plan,
or the budget. The reading of an odometer is no such promise: it depends on released values
(docs/derivations/adaptive.md).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from dpacct.budget import Interval, Spent
from dpacct.display import up
from dpacct.ledger.readings import WORDS, Guarantee, Snapshot
from dpacct.ledger.record.events import schedule_to_json
from dpacct.ledger.report.history import History
from dpacct.rounds import Adjacency

if TYPE_CHECKING:
    from dpacct.report.front import Promise

SCHEMA = 1


def _finite(value: float) -> float | None:
    """Return the value for JSON: null if it is infinite."""
    return value if math.isfinite(value) else None


def _both(spent: Interval | Spent) -> dict[str, float | None]:
    return {"lower": _finite(spent.lower), "upper": _finite(spent.upper)}


def claim_of(
    guarantee: Guarantee,
    spent: Spent,
    any_stop: float,
    rounds: int,
    slots: tuple[int, int],
    *,
    first: bool = True,
) -> dict[str, Any]:
    """Return a reading with everything that is printed with it, as JSON (Rule 1).

    ``spent`` is epsilon of the charged rounds, and ``any_stop`` that of the whole plan. ``slots``
    are the used slots of plans, and all slots. ``first``: the plans came before any round.
    """
    used, planned = slots
    partial = guarantee is Guarantee.PLANNED and 0 < used < planned
    if not rounds:
        words = "Nothing ran yet."
    elif guarantee is not Guarantee.PLANNED:
        words = WORDS[guarantee]
    elif partial:
        words = (
            f"{used} of {planned} planned rounds are charged. If results influence, or may come to "
            f"influence, when to stop, epsilon is {up(any_stop)}: that of the whole plan. It is "
            f"{up(spent.upper)} only if stopping here was decided in advance."
        )
    else:
        when = "the first one ran" if first else "the run started"
        words = (
            f"Every round was planned before {when}, and all planned rounds are charged. The tight "
            "accountant applies, whatever use is made of the results."
        )
    return {
        "guarantee": str(guarantee),
        "epsilon": _both(spent),
        "epsilon_any_stop": _finite(any_stop),
        "claim": words,
        "part_of_plan": partial,
        "slots": {"used": used, "planned": planned},
    }


def summarize(now: Snapshot) -> dict[str, Any]:
    """Return the summary of a ledger, as ``show`` prints it. An infinite epsilon is null."""
    state, budget = now.state, now.budget
    return {
        "schema": SCHEMA,
        "path": str(now.path),
        "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
        "unit": now.unit,
        "adjacency": state.adjacency or None,
        "relabelled": now.known.relabelled,
        **claim_of(
            now.guarantee(), now.interval(), now.any_stop(), state.rounds, now.planned_rounds()
        ),
        "delta": budget.delta,
        "plan_delta": state.plan_delta,
        "adaptive_delta": state.delta,
        "promised_delta": now.mixture.promised_delta,
        "promised_delta_left": now.mixture.promises_left(state.charged),
        "partitions": {name: list(parts) for name, parts in now.known.opening.partitions.items()},
        "projects": _projects(now),
        "held": any(state.held),
        "rounds": state.rounds,
        "runs": [_run(now, number) for number in now.runs()],
        "head": now.head.hash.hex(),
        "entries": now.head.number,
    }


def _projects(now: Snapshot) -> list[dict[str, Any]]:
    """Return the groups of runs, each with its own epsilon by the adaptive bound."""
    groups: dict[str, list[int]] = {}
    for run in now.runs():
        if now.start(run).project:
            groups.setdefault(now.start(run).project, []).append(run)
    found: list[dict[str, Any]] = []
    for name, runs in groups.items():
        states = [now.run_state(run) for run in runs]
        total = now.part_totals(runs).total()
        private = all(state.private or not state.rounds for state in states)
        epsilon = now.mixture.epsilon(total, now.budget.delta) if private else math.inf
        rounds = sum(state.rounds for state in states)
        found.append({"name": name, "runs": runs, "rounds": rounds, "epsilon": _finite(epsilon)})
    return found


def _run(now: Snapshot, number: int) -> dict[str, Any]:
    state, start = now.run_state(number), now.start(number)
    plan, guarantee = start.plan, now.guarantee(number)
    spent, any_stop = now.interval(number), now.any_stop(number)
    whole = _finite(any_stop) if plan is not None and state.on_plan else None
    if not state.private:
        spent, any_stop = spent.without_privacy, math.inf
    slots = (state.cursor, plan.rounds) if plan else (0, 0)
    return {
        "run": number,
        "name": start.name,
        "project": start.project,
        "part": start.part,
        "private": state.private,
        **claim_of(guarantee, spent, any_stop, state.rounds, slots, first=state.initial),
        "rounds": state.rounds,
        "committed": state.committed,
        "uncommitted": state.rounds - state.committed,
        "finished": state.finished,
        "planned_rounds": plan and plan.rounds,
        "planned_epsilon": whole,
        "planned_first": state.initial,
        "left_plan": state.left,
        "accountant": plan and plan.accountant,
        "plan": plan and schedule_to_json(plan.schedule),
        "details": start.details,
    }


def promise_of(now: Snapshot, found: dict[str, Any]) -> Promise | None:
    """Return the promise of a ledger with this summary (Rule 2), or None if it keeps none."""
    # A summary needs no report: only its writers import it.
    from dpacct.report.front import Promise  # noqa: PLC0415
    from dpacct.report.risks import risks_of_rounds  # noqa: PLC0415

    epsilon, budget = found["epsilon_any_stop"], found["budget"]["epsilon"]
    if epsilon is None or not found["rounds"]:
        return None
    unit, relation, delta = found["unit"], Adjacency(found["adjacency"]), found["delta"]
    if now.guarantee() is Guarantee.PLANNED:
        whole = now.whole_plan()
        risks = risks_of_rounds(whole.schedule, whole.accountant)
        return Promise(unit, relation, epsilon, delta, risks)
    return None if epsilon > budget else Promise(unit, relation, budget, delta, spent=epsilon)


def report_of(now: Snapshot, reporter: str) -> dict[str, Any]:
    """Return the summary of a ledger, and the facts that only all entries show."""
    from dpacct.report.front import risk_to_json  # noqa: PLC0415
    from dpacct.report.words import LEDGER_ASSUMPTIONS  # noqa: PLC0415

    found, history = summarize(now), History(now)
    return found | {
        **history.facts,
        "points": history.points,
        "runs": [run | history.runs[run["run"]] for run in found["runs"]],
        "kind": "ledger",
        "risk": risk_to_json(promise_of(now, found)),
        "assumptions": list(LEDGER_ASSUMPTIONS),
        "reporter": reporter,
    }
