"""How much of a run's plan is used: whether it goes on, and what was spent on it."""

from __future__ import annotations

from dpacct.budget import Interval, Spent
from dpacct.errors import BudgetExceeded
from dpacct.ledger.record.charged import Charged, achieved_epsilon, epsilon_so_far
from dpacct.ledger.record.state import RunState
from dpacct.rounds import Schedule


def check_plan_goes_on(plan: Schedule | None, state: RunState) -> None:
    """Refuse a round behind the last one of a plan, which would be charged outside of it.

    Args:
        plan: of the run, None without one. state: its totals before the round.
    Raises:
        BudgetExceeded: all rounds of the plan are charged.
    """
    if plan is not None and state.on_plan and state.rounds >= plan.rounds:
        raise BudgetExceeded(
            f"all {plan.rounds} rounds of the plan are charged, those that a crash lost among them"
        )


def spent_on(plan: Charged, charged: int, released: int, delta: float) -> Spent:
    """Epsilon of the first rounds of a plan of equal rounds.

    Args:
        plan: with its accountant. charged, released: rounds. delta: at which it is read.
    """
    [round_] = plan.schedule.distinct()
    upper, lower = 0.0, 0.0
    if charged:
        upper = epsilon_so_far(plan, charged * round_, delta)
    if released:
        lower = achieved_epsilon(released * round_, delta)
    return Spent.at(delta, Interval.bracket(lower, upper))
