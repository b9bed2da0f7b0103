"""How much of a run's plan is used: whether it goes on, and what was spent on it."""

from __future__ import annotations

from dpacct.budget import Interval, Spent
from dpacct.errors import BudgetExceeded
from dpacct.ledger.record.charged import Charged, achieved_epsilon, epsilon_so_far
from dpacct.ledger.record.plans import Plan
from dpacct.ledger.record.state import RunState
from dpacct.rounds import Phase, Schedule


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
    """Epsilon of the first rounds of a plan.

    The lower end leaves out as many rounds of each kind as were charged and not released: which
    of them a crash has lost is not asked.

    Args:
        plan: with its accountant. charged, released: rounds. delta: at which it is read.
    """
    used = Plan(plan.schedule).first(charged)
    upper = epsilon_so_far(plan, used, delta) if charged else 0.0
    lost = charged - released
    certain = Schedule(
        Phase(round_, count - lost) for round_, count in used.distinct().items() if count > lost
    )
    lower = achieved_epsilon(certain, delta) if certain.rounds else 0.0
    return Spent.at(delta, Interval.bracket(lower, upper))
