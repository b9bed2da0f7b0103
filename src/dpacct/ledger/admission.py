"""Whether a whole plan is admitted."""

from __future__ import annotations

from dpacct.budget import Budget
from dpacct.display import chosen, up
from dpacct.errors import BudgetExceeded
from dpacct.ledger.plans import PlanRoom, proven_epsilon
from dpacct.ledger.state import LedgerState
from dpacct.odometer import Mixture, Totals, add
from dpacct.rounds import Schedule


def admit_plan(
    mixture: Mixture,
    budget: Budget,
    ledger: LedgerState,
    plan: Schedule,
    cost: Totals,
    room: PlanRoom | None,
) -> None:
    """Refuse a plan that does not fit.

    Args:
        mixture, budget, ledger: as they are without it.
        plan: what was asked for.
        cost: its Renyi total.
        room: of all initial plans with this one; None once a round was reserved, when a plan may
            depend on what was released and is charged like rounds that are chosen one by one.

    Raises:
        BudgetExceeded: it does not fit.
    """
    budget_words = f"{chosen(budget.epsilon, least=True)} at delta {chosen(budget.delta)}"
    if room is None:
        after = mixture.epsilon(add(ledger.charged, cost), ledger.delta)
        if after > budget.epsilon:
            before = mixture.epsilon(ledger.charged, ledger.delta)
            raise BudgetExceeded(
                f"the plan of {plan.rounds} rounds does not fit: epsilon would be {up(after)} of "
                f"{budget_words}, and is {up(before)} now, what is held for other plans included. "
                f"A plan that is made after rounds have run is charged by the adaptive bound."
            )
    elif not room.fits:
        alone = proven_epsilon(plan, budget.delta, budget.epsilon)
        others = ""
        if any(ledger.held):
            others = " beside the plans that were registered before"
        raise BudgetExceeded(
            f"the plan of {plan.rounds} rounds does not fit{others}: by itself it needs epsilon "
            f"{up(alone)} of {budget_words}. dpacct.calibrate finds the noise with which it fits."
        )
