"""The facts about a ledger as one JSON object: its summary, and with the history of all rounds.

Rule 1: a figure that holds only if results had no say in when to stop is never printed without the
one that holds whatever they had a say in.
Rule 2: what an attacker can do is computed of a promise that was fixed in advance: the whole plan,
or the budget. The reading of an odometer is none: it depends on what was released
(docs/derivations/adaptive.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dpacct.budget import Interval, Spent
from dpacct.display import up
from dpacct.ledger.book import software
from dpacct.ledger.readings import Guarantee, Snapshot
from dpacct.ledger.record.events import round_to_json, schedule_to_json
from dpacct.ledger.record.plans import Charged, achieved_epsilon, proven_epsilon
from dpacct.ledger.report.history import History, RunHistory, read_history
from dpacct.rounds import Adjacency, Phase, Schedule

if TYPE_CHECKING:
    from dpacct.report.front import Promise

SCHEMA = 1


def finite(value: float) -> float | None:
    """Return the value as JSON knows it: null if it is infinite."""
    return value if math.isfinite(value) else None


def both(spent: Interval | Spent) -> dict[str, float | None]:
    """Return both ends of an interval as JSON."""
    return {"lower": finite(spent.lower), "upper": finite(spent.upper)}


@dataclass(frozen=True, slots=True)
class Claim:
    """A reading with all that it takes to print it (Rule 1).

    Attributes:
        guarantee: its kind.
        epsilon: proven, of the rounds that are charged; where they follow a plan, for a number of
            them that was not chosen by looking at results.
        any_stop: proven, whatever decided when to stop: of the whole plan, if there is one.
        rounds: how many are charged.
        used, planned: places of plans that are used, and that there are; 0 without plans.
        first: the plans were registered before any round of the ledger.
    """

    guarantee: Guarantee
    epsilon: float
    any_stop: float
    rounds: int
    used: int = 0
    planned: int = 0
    first: bool = True

    @property
    def partial(self) -> bool:
        """True if it makes a difference why no more rounds ran."""
        return self.guarantee is Guarantee.PLANNED and 0 < self.used < self.planned

    @property
    def words(self) -> str:
        """One sentence, or two."""
        if not self.rounds:
            return "Nothing ran yet."
        if self.guarantee is not Guarantee.PLANNED:
            return self.guarantee.in_words
        if not self.partial:
            when = "the first one ran" if self.first else "the run started"
            return (
                f"Every round was planned before {when}, and all that was planned is charged: the "
                "tight accountant, whatever is done with the results."
            )
        return (
            f"{self.used} of {self.planned} planned rounds are charged. Epsilon is "
            f"{up(self.any_stop)} (the whole plan) if results had, or may get, a say in stopping "
            f"before its end; {up(self.epsilon)} only if it was settled in advance to stop here."
        )

    def to_json(self) -> dict[str, Any]:
        """Return it as it stands in the facts."""
        return {
            "epsilon_any_stop": finite(self.any_stop),
            "claim": self.words,
            "part_of_plan": self.partial,
            "slots": {"used": self.used, "planned": self.planned},
        }


def summarize(now: Snapshot) -> dict[str, Any]:
    """Return the summary of a ledger, as ``show`` prints it, without reading every entry.

    Returns:
        ``path``, ``budget``, ``unit``, ``adjacency``, ``epsilon``, ``epsilon_any_stop``, ``delta``,
        ``guarantee``, ``claim``, ``rounds``, ``runs`` (a list), ``head``, ``entries``. An infinite
        epsilon is null.
    """
    state, budget, spent = now.state, now.budget, now.interval()
    claim = Claim(now.guarantee(), spent.upper, now.any_stop(), state.rounds, *now.planned_rounds())
    return {
        "schema": SCHEMA,
        "path": str(now.path),
        "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
        "unit": now.unit,
        "adjacency": state.adjacency or None,
        "relabelled": now.known.relabelled,
        "epsilon": both(spent),
        **claim.to_json(),
        "delta": budget.delta,
        "guarantee": str(claim.guarantee),
        "plan_delta": state.plan_delta,
        "adaptive_delta": state.delta,
        "held": any(state.held),
        "rounds": state.rounds,
        "runs": [_run(now, number) for number in range(1, state.runs + 1)],
        "head": now.head.hash.hex(),
        "entries": now.head.number,
    }


def _run(now: Snapshot, number: int) -> dict[str, Any]:
    state, start, plan = now.run_state(number), now.start(number), now.plan(number)
    spent, any_stop = now.run_interval(number), now.run_any_stop(number)
    whole = finite(any_stop) if plan is not None and state.on_plan else None
    if not state.private:
        spent, any_stop = spent.without_privacy, math.inf
    slots = (state.cursor, plan.rounds) if plan else (0, 0)
    guarantee = now.run_guarantee(number)
    claim = Claim(guarantee, spent.upper, any_stop, state.rounds, *slots, first=state.initial)
    return {
        "run": number,
        "name": start.name,
        "private": state.private,
        "guarantee": str(guarantee),
        "epsilon": both(spent),
        **claim.to_json(),
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


def promise_of(now: Snapshot, found: dict[str, Any]) -> Promise | None:
    """Return the promise of a ledger to people (Rule 2), or None if it keeps none.

    Args:
        now: of the ledger.
        found: its summary, as of the same entry.
    """
    # A summary needs no report: it is imported by what writes one.
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


def report_of(now: Snapshot) -> dict[str, Any]:
    """Return what `Ledger.report` returns: the summary, and what a reading of all entries adds."""
    from dpacct.report.front import risk_to_json  # noqa: PLC0415
    from dpacct.report.words import LEDGER_ASSUMPTIONS  # noqa: PLC0415

    found, history = summarize(now), read_history(now)
    found |= {
        "created": history.created,
        "latest": history.latest,
        "entries": history.entries,
        "software": history.software,
        "rounds_as_if_planned": as_if_planned(history, now.budget.delta),
        "points": history.points,
        "marks": history.marks,
        "runs": [
            run | _history(history.runs.get(run["run"], RunHistory())) for run in found["runs"]
        ],
    }
    return found | {
        "kind": "ledger",
        "risk": risk_to_json(promise_of(now, found)),
        "assumptions": list(LEDGER_ASSUMPTIONS),
        "reporter": software(),
    }


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
            | {"releases": [part._asdict() for part in stretch.releases]}
            for stretch in run.stretches
            if stretch.rounds
        ],
    }


def as_if_planned(history: History, delta: float) -> dict[str, float | None] | None:
    """Return epsilon that the released rounds would have, had they been fixed in advance."""
    if not history.released:
        return None
    schedule = Schedule(Phase(r, n) for r, n in history.released.items())
    proven = proven_epsilon(Charged(schedule), delta, math.inf)
    return both(Interval.bracket(achieved_epsilon(schedule, delta), proven))
