"""Whether a whole plan is admitted."""

from __future__ import annotations

from collections.abc import Callable

from dpacct.budget import Budget
from dpacct.errors import BudgetExceeded
from dpacct.ledger.charged import Charged, proven_epsilon
from dpacct.ledger.figures import above, told
from dpacct.ledger.plans import PlanRoom
from dpacct.ledger.standing import Standing
from dpacct.ledger.state import LedgerState
from dpacct.odometer import Mixture, Totals, add, count_fitting
from dpacct.rounds import Schedule


def admit_plan(
    mixture: Mixture,
    budget: Budget,
    ledger: LedgerState,
    plan: Charged,
    cost: Totals,
    room: PlanRoom | None,
    standing: Callable[[], Standing],
) -> None:
    """Refuse a plan that does not fit.

    Args:
        mixture, budget, ledger: as they are without it.
        plan: what was asked for.
        cost: its Renyi total.
        room: of all initial plans with this one; None once a round was reserved, when a plan may
            depend on what was released and is charged like rounds that are chosen one by one.
        standing: what the ledger reads, and who holds room; asked for in a refusal.

    Raises:
        BudgetExceeded: it does not fit.
    """
    rounds = plan.schedule.rounds
    if room is None:
        after = mixture.epsilon(add(ledger.charged, cost), ledger.delta)
        if after > budget.epsilon:
            now = standing()
            fewer = _fewer(mixture, budget, ledger, plan.schedule)
            freed = mixture.epsilon(add(ledger.spent, cost), ledger.delta)
            raise BudgetExceeded(
                f"the plan of {rounds} rounds does not fit: {now.reading}. "
                f"{_late(mixture, budget, ledger, after)}{fewer}"
                f"{now.ways(enough=freed <= budget.epsilon)}"
            )
    elif not room.fits:
        alone = proven_epsilon(plan, budget.delta, budget.epsilon)
        now = standing()
        others = " beside the plans that were registered before" if any(ledger.held) else ""
        raise BudgetExceeded(
            f"the plan of {rounds} rounds does not fit{others}: by itself it needs epsilon "
            f"{above(alone)} of {budget.epsilon:.7g} at delta {told(budget.delta)}, and "
            f"{now.reading}. dpacct.calibrate finds the noise with which it fits."
            f"{now.ways(enough=alone <= budget.epsilon)}"
        )


def _late(mixture: Mixture, budget: Budget, ledger: LedgerState, after: float) -> str:
    """By which bound a plan is judged that comes after rounds have run."""
    before = mixture.epsilon(ledger.charged, ledger.delta)
    held = ", what is held for other plans included" if any(ledger.held) else ""
    rest = ""
    if ledger.plan_delta > 0.0:
        rest = (
            f", at the {budget.delta - ledger.plan_delta:.2g} of delta that the first plans leave"
        )
    return (
        f"A plan that is made after rounds have run may depend on them, and is charged by the "
        f"adaptive bound: that is {above(before)}{held}, and would be {above(after)}{rest}."
    )


def _fewer(mixture: Mixture, budget: Budget, ledger: LedgerState, plan: Schedule) -> str:
    """How many of its rounds would fit, where they are all alike."""
    distinct = list(plan.distinct())
    if len(distinct) != 1:
        return ""
    cost = mixture.cost(distinct[0])
    most = count_fitting(mixture, ledger.charged, cost, budget, ledger.delta)
    return f" What fits: {most} such rounds." if most else " Not one such round fits."
