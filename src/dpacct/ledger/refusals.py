"""The errors for a round or a plan that does not fit.

Rule 1: an error states the reading that `dpacct ledger show` prints first, which holds for every
rule of stopping. If another bound decides, it gives that bound and the reason.
Rule 2: if runs hold room for planned rounds, they are named, with the ways to free it.
"""

from __future__ import annotations

import shlex

from dpacct.display import chosen, line, trimmed, up
from dpacct.errors import BudgetExceeded
from dpacct.ledger.readings import Snapshot
from dpacct.ledger.record.plans import Plan, proven_epsilon
from dpacct.renyi.odometer import Totals, add, count_fitting, subtract
from dpacct.rounds import Release as ScheduleItem

_NAMED = 3


def above(value: float | None) -> str:
    """Return a proven bound for display, rounded up."""
    return "none (infinite)" if value is None else trimmed(up(value))


def plan_refused(now: Snapshot, plan: Plan, cost: Totals) -> BudgetExceeded:
    """Return the error for a plan, with its Renyi total, that does not fit."""
    budget, ledger, mixture = now.budget, now.state, now.mixture
    what = f"the plan of {plan.rounds} rounds does not fit"
    if ledger.started:
        fewer, kinds = "", list(plan.schedule.distinct())
        if len(kinds) == 1:
            each = mixture.cost(kinds[0])
            most = count_fitting(mixture, ledger.charged, each, budget, ledger.delta)
            fewer = f" What fits: {most} such rounds." if most else " Not one such round fits."
        return _exceeded(now, what, cost, mixture.zero(), fewer)
    alone = proven_epsilon(plan, budget.delta, budget.epsilon)
    others = " with the plans that were registered before" if any(ledger.held) else ""
    return BudgetExceeded(
        f"{what}{others}: alone it needs epsilon {above(alone)} of {_budget(now)}, and "
        f"{_reading(now)}. dpacct.calibrate finds the noise with which it fits."
        f"{_ways_out(now, enough=alone <= budget.epsilon)}"
    )


def round_refused(now: Snapshot, run: int, round_: ScheduleItem) -> BudgetExceeded:
    """Return the error for a round of a run that does not fit."""
    way = " More noise or a lower rate may fit: `dpacct ledger remaining` counts such rounds."
    own, cost = now.run_state(run).held, now.mixture.cost(round_)
    return _exceeded(now, "the round does not fit", cost, own, way)


def part_refused(now: Snapshot, part: str, item: ScheduleItem) -> BudgetExceeded:
    """Return the error for a release about a part of the data that does not fit."""
    return BudgetExceeded(
        f"the release {item!r} about {part} does not fit: with all releases about this part, the "
        f"adaptive bound would exceed epsilon {_budget(now)}. The largest part of each partition "
        "counts."
    )


def _exceeded(now: Snapshot, what: str, cost: Totals, own: Totals, fits: str) -> BudgetExceeded:
    """Return the error for a round or a plan that the adaptive bound rejects.

    ``cost`` is its Renyi total, and ``own`` the room that its run gives up. ``fits``: what fits.
    """
    ledger, budget = now.state, now.budget

    def epsilon(totals: Totals) -> float:
        return now.mixture.epsilon(totals, ledger.delta)

    base = subtract(ledger.charged, own)
    before, after = above(epsilon(base)), above(epsilon(add(base, cost)))
    why = f" With it, it would read {after}."
    if before != above(now.any_stop()):
        held = ", with the room held for plans," if any(subtract(ledger.held, own)) else ""
        why = (
            " What is chosen after rounds have run may depend on them, and is charged by the "
            f"adaptive bound. That{held} is epsilon {before} now and would be {after} with it."
        )
    if ledger.plan_delta:
        left = budget.delta - ledger.plan_delta
        why += (
            f" Both are at delta {left:.2g}: the earlier plans use the rest of the budget's delta. "
            "Rounds with at least a plan's noise and at most its rate still run."
        )
    enough = epsilon(add(ledger.spent, cost)) <= budget.epsilon
    return BudgetExceeded(f"{what}: {_reading(now)}.{why}{fits}{_ways_out(now, enough=enough)}")


def _budget(now: Snapshot) -> str:
    return f"{now.budget.epsilon:.7g} at delta {chosen(now.budget.delta)}"


def _reading(now: Snapshot) -> str:
    return f"the ledger reads epsilon {above(now.any_stop())} of {_budget(now)} now"


def _ways_out(now: Snapshot, *, enough: bool) -> str:
    """Return the runs that hold room, and two ways out. ``enough``: they would help."""
    holders = [run for run in now.runs() if any(now.run_state(run).held)]
    if not holders:
        return ""
    named = [
        f"run {run} ({line(now.start(run).name)!r}, "
        f"{plan.rounds - now.run_state(run).cursor} rounds)"
        for run in holders
        if (plan := now.plan(run)) is not None
    ]
    if len(named) > _NAMED:
        named[_NAMED:] = [f"{len(named) - _NAMED} more"]
    file = shlex.quote(str(now.path))
    less = "" if enough else ", which would not be enough here"
    return (
        f" Room for rounds to come is held by {', '.join(named)}: "
        f"`dpacct ledger finish {file} --run {holders[0]}` frees it{less}, and "
        f"`dpacct train --resume --ledger {file}` goes on with it."
    )
