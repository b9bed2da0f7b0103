"""Initial plans: those that were registered before the ledger's first round.

Nothing that they could depend on had been released, so that they compose tightly, and the budget's
delta is divided for them before anything runs. docs/derivations/adaptive.md, "Plans and a budget".
"""

from __future__ import annotations

from typing import Protocol

from dpacct.budget import Budget
from dpacct.ledger.record.charged import Charged
from dpacct.ledger.record.entries import Start
from dpacct.ledger.record.plans import Plan, PlanRoom, plan_room
from dpacct.ledger.record.state import LedgerState, RunState
from dpacct.renyi.odometer import Mixture


class Reader(Protocol):
    """What is read of a ledger here."""

    @property
    def budget(self) -> Budget:
        """Of the ledger."""
        ...

    @property
    def mixture(self) -> Mixture:
        """Orders and weights of the adaptive bound."""
        ...

    def state(self) -> LedgerState:
        """Totals of all runs."""
        ...

    def run_state(self, run: int) -> RunState:
        """Totals of one run."""
        ...

    def plan(self, run: int) -> Plan | None:
        """The plan of a run."""
        ...

    def start(self, run: int) -> Start:
        """What was said when a run was started."""
        ...

    def dropped(self, run: int) -> bool:
        """Whether a run ended before any round was reserved."""
        ...


def initial_plans(book: Reader, *, unfinished: bool) -> dict[int, Plan]:
    """The initial plans by their run; if asked for, only those of runs that are not finished."""
    found: dict[int, Plan] = {}
    for run in range(1, book.state().runs + 1):
        state = book.run_state(run)
        plan = book.plan(run) if state.initial else None
        if plan is not None and not (unfinished and state.finished):
            found[run] = plan
    return found


def standing_plans(book: Reader) -> dict[int, Plan]:
    """The initial plans by their run, but for those that were given up before anything ran."""
    plans = initial_plans(book, unfinished=False)
    return {run: plan for run, plan in plans.items() if not book.dropped(run)}


def charged_plans(book: Reader, plans: dict[int, Plan]) -> list[Charged]:
    """Plans of runs with the accountants that they may be charged by."""
    return [Charged(plan.schedule, book.start(run).accountant) for run, plan in plans.items()]


def room_with(book: Reader, plan: Charged) -> PlanRoom:
    """How delta is divided if one more plan is registered before the first round."""
    plans = charged_plans(book, initial_plans(book, unfinished=True))
    # A plan of another adjacency is refused in words, later.
    same = [other for other in plans if other.schedule.adjacency is plan.schedule.adjacency]
    return plan_room(book.mixture, book.budget, [*same, plan])


def room_without(book: Reader, run: int) -> PlanRoom | None:
    """How delta is divided if a run ends; None where that does not change."""
    if not book.run_state(run).initial or book.state().started:
        return None
    others = initial_plans(book, unfinished=True)
    others.pop(run, None)
    return plan_room(book.mixture, book.budget, charged_plans(book, others))
