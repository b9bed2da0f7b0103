"""The running totals of a ledger and of its runs, and what each kind of entry does to them.

Pure arithmetic on whole numbers: writing an entry and verifying one run the same functions.

Rule 1: `spent` holds every round that was reserved and not abandoned.
Rule 2: `held` is the cost of planned rounds still to come; a round within its plan moves its cost
from `held` to `spent`, so the sum of both grows only by registering plans and by other rounds.
Rule 3: the rounds of a plan are used in their order; some may be skipped, which forfeits them. A
slot is given back only by abandoning the run's latest reservation.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import le
from typing import NamedTuple, Protocol

from dpacct.renyi.odometer import Totals, add, subtract


class Room(Protocol):
    """How the budget's delta is divided between the initial plans and anything else."""

    @property
    def delta(self) -> float:
        """For the adaptive bound."""
        ...

    @property
    def plan_delta(self) -> float:
        """For the plans."""
        ...


@dataclass(frozen=True, slots=True)
class LedgerState:
    """Totals of all runs.

    Attributes:
        spent, held: Renyi totals, in units of 2^-64.
        runs: how many were started.
        rounds: how many are charged.
        exposed: how many of them belong to runs that are not private.
        started: whether a round was ever reserved.
        loose: whether a round ran outside the plans that were registered before the first round.
        delta: the delta of the adaptive bound; what the initial plans leave of the budget's.
        plan_delta: what is set aside for the initial plans.
        adjacency: of all rounds; empty until the first one, or the first plan.
    """

    spent: Totals
    held: Totals
    runs: int
    rounds: int
    exposed: int
    started: bool
    loose: bool
    delta: float
    plan_delta: float
    adjacency: str

    @property
    def charged(self) -> Totals:
        """Spent and held."""
        return add(self.spent, self.held)


@dataclass(frozen=True, slots=True)
class RunState:
    """Totals of one run.

    Attributes:
        spent, held: as for the ledger.
        rounds: how many are charged.
        committed: how many of them were released.
        cursor: how many slots of its plan are used.
        private: its noise comes from a secret source.
        planned: it has a plan.
        initial: the plan was registered before the ledger's first round.
        left: it ran a round outside its plan.
        finished: it takes no more rounds.
    """

    spent: Totals
    held: Totals
    rounds: int
    committed: int
    cursor: int
    private: bool
    planned: bool
    initial: bool
    left: bool
    finished: bool

    @property
    def on_plan(self) -> bool:
        """It has a plan and kept to it."""
        return self.planned and not self.left

    def within(self, ledger: LedgerState) -> bool:
        """Whether the run's totals are not more than those of all runs."""
        return (
            self.rounds <= ledger.rounds
            and all(map(le, self.spent, ledger.spent))
            and all(map(le, self.held, ledger.held))
        )


def empty_ledger(zero: Totals, delta: float, adjacency: str) -> LedgerState:
    """Nothing has happened yet."""
    return LedgerState(zero, zero, 0, 0, 0, False, False, delta, 0.0, adjacency)  # noqa: FBT003 - in the order of the fields


def started_run(
    ledger: LedgerState,
    *,
    private: bool,
    plan_cost: Totals | None,
    adjacency: str,
    room: Room | None,
) -> tuple[LedgerState, RunState]:
    """A run is registered; room is held for its plan.

    Args:
        ledger: the totals before.
        private: its noise comes from a secret source.
        plan_cost: Renyi total of its plan, if it has one.
        adjacency: of all rounds of the ledger.
        room: how the delta is divided from now on; None where that does not change.
    """
    zero = (0,) * len(ledger.spent)
    held = zero if plan_cost is None else plan_cost
    run = RunState(
        spent=zero,
        held=held,
        rounds=0,
        committed=0,
        cursor=0,
        private=private,
        planned=plan_cost is not None,
        initial=plan_cost is not None and not ledger.started,
        left=False,
        finished=False,
    )
    changed = replace(
        _divided(ledger, room),
        runs=ledger.runs + 1,
        held=add(ledger.held, held),
        adjacency=adjacency,
    )
    return changed, run


def _divided(ledger: LedgerState, room: Room | None) -> LedgerState:
    if room is None:
        return ledger
    return replace(ledger, delta=room.delta, plan_delta=room.plan_delta)


def left_plan(ledger: LedgerState, run: RunState) -> tuple[LedgerState, RunState]:
    """The run leaves its plan: nothing is held for it any more."""
    zero = (0,) * len(run.held)
    changed = replace(ledger, held=subtract(ledger.held, run.held))
    return changed, replace(run, left=True, held=zero)


class Slot(NamedTuple):
    """A place in a plan that a round takes.

    Attributes:
        number: of the planned round that covers it, from 0.
        freed: what is no longer held: the cost of that round and of those that were skipped.
    """

    number: int
    freed: Totals


def reserved(
    ledger: LedgerState, run: RunState, cost: Totals, slot: Slot | None, adjacency: str
) -> tuple[LedgerState, RunState]:
    """A round is charged.

    Args:
        ledger, run: the totals before.
        cost: of the round.
        slot: the place in the run's plan; None outside a plan.
        adjacency: of the round.
    """
    if slot is None and run.on_plan:
        ledger, run = left_plan(ledger, run)
    cursor = run.cursor if slot is None else slot.number + 1
    freed = (0,) * len(cost) if slot is None else slot.freed
    inside = slot is not None and run.initial
    ledger = replace(
        ledger,
        spent=add(ledger.spent, cost),
        held=subtract(ledger.held, freed),
        rounds=ledger.rounds + 1,
        exposed=ledger.exposed + (not run.private),
        started=True,
        loose=ledger.loose or not inside,
        adjacency=adjacency,
    )
    run = replace(
        run,
        spent=add(run.spent, cost),
        held=subtract(run.held, freed),
        rounds=run.rounds + 1,
        cursor=cursor,
    )
    return ledger, run


def committed(ledger: LedgerState, run: RunState) -> tuple[LedgerState, RunState]:
    """A reserved round was released."""
    return ledger, replace(run, committed=run.committed + 1)


def abandoned(
    ledger: LedgerState, run: RunState, cost: Totals, slot: Slot | None, *, skipped: bool
) -> tuple[LedgerState, RunState]:
    """A reserved round for which nothing was drawn is taken back.

    Args:
        ledger, run: the totals before.
        cost: what `reserved` charged.
        slot: as for `reserved`.
        skipped: whether planned rounds before it were skipped.
    """
    latest = slot is not None and run.cursor == slot.number + 1
    again = latest and run.on_plan and not run.finished and not skipped
    back = slot.freed if slot is not None and again else (0,) * len(cost)
    ledger = replace(
        ledger,
        spent=subtract(ledger.spent, cost),
        held=add(ledger.held, back),
        rounds=ledger.rounds - 1,
        exposed=ledger.exposed - (not run.private),
    )
    run = replace(
        run,
        spent=subtract(run.spent, cost),
        held=add(run.held, back),
        rounds=run.rounds - 1,
        cursor=run.cursor - again,
    )
    return ledger, run


def finished(ledger: LedgerState, run: RunState, room: Room | None) -> tuple[LedgerState, RunState]:
    """The run ends; what was held for it is free. ``room`` as for `started_run`."""
    zero = (0,) * len(run.held)
    changed = replace(_divided(ledger, room), held=subtract(ledger.held, run.held))
    return changed, replace(run, finished=True, held=zero)
