"""The totals behind an entry, and the rules by which each kind of entry changes them.

Pure arithmetic on whole numbers. Writing an entry (`writing`) and verifying one (`verify`) call the
same functions.

Rule 1: `spent` holds every round that was reserved and not abandoned.
Rule 2: `held` is the cost of planned rounds still to come. A round within its plan moves its cost
from `held` to `spent`, so their sum grows only by registering plans and by other rounds.
Rule 3: the rounds of a plan are used in its order, and skipped rounds are forfeited. A slot is
given back only by abandoning the run's latest reservation.
Rule 4: the charge of a round covers all its releases together.
Rule 5: rounds charged outside the initial plans stay within the budget, except for rounds that had
run elsewhere.
Rule 6: if the charge of a plan depends on the order of its rounds, they are released in it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, NamedTuple

from dpacct.ledger.record.entries import Entry, reading
from dpacct.ledger.record.plans import Plan, PlanRoom, proven_epsilon, together
from dpacct.numerics.rounding import decimal_above
from dpacct.renyi.odometer import Mixture, Totals, add, subtract
from dpacct.rounds import Release


@dataclass(frozen=True, slots=True)
class LedgerState:
    """Totals of all runs."""

    # Renyi totals of every round that was reserved and not abandoned, in units of 2^-64.
    spent: Totals
    held: Totals  # those of planned rounds still to come
    runs: int  # the number of registered runs
    rounds: int  # the number of charged rounds
    exposed: int  # the number of charged rounds of runs that are not private
    started: bool  # whether a round was ever reserved
    loose: bool  # whether a round ran outside the plans that were registered before the first round
    delta: float  # the delta of the adaptive bound, which the initial plans leave of the budget's
    plan_delta: float  # the delta set aside for the initial plans
    adjacency: str  # of all rounds, or empty until the first round or plan
    # The delta set aside for promises. None in ledgers of version 0.3: as it was declared.
    promised_delta: float | None = None

    @property
    def charged(self) -> Totals:
        """Spent and held."""
        return add(self.spent, self.held)


@dataclass(frozen=True, slots=True)
class RunState:
    """Totals of one run."""

    spent: Totals  # as for the ledger
    held: Totals  # as for the ledger
    rounds: int  # the number of charged rounds
    committed: int  # the number of released rounds
    cursor: int  # the number of used slots of its plan
    private: bool  # its noise comes from a secret source
    planned: bool  # it has a plan
    initial: bool  # the plan was registered before the ledger's first round
    left: bool  # it ran a round outside its plan
    finished: bool  # it takes no more rounds

    @property
    def on_plan(self) -> bool:
        """True for a run that has a plan and kept to it."""
        return self.planned and not self.left


# Totals behind an entry: of all runs, and of its run.
States = tuple[LedgerState, RunState | None]
# The division of the budget's delta between the initial plans and other rounds.
Room = PlanRoom | LedgerState


def state_to_json(ledger: LedgerState, run: RunState | None) -> dict[str, Any]:
    """Return the totals in the form of an entry."""
    values = {name: getattr(ledger, name) for name in LedgerState.__slots__}
    return {
        "ledger": {name: value for name, value in values.items() if value is not None},
        "run": None if run is None else {name: getattr(run, name) for name in RunState.__slots__},
    }


def read_state(entry: Entry) -> States:
    """Return the totals behind an entry."""
    state = entry.content["state"]
    with reading():
        ledger = LedgerState(**_with_totals(state["ledger"]))
        return ledger, state["run"] and RunState(**_with_totals(state["run"]))


def _with_totals(values: dict[str, Any]) -> dict[str, Any]:
    return values | {name: tuple(values[name]) for name in ("spent", "held")}


def in_force(mixture: Mixture, ledger: LedgerState) -> Mixture:
    """Return the mixture with the delta that is set aside for promises now."""
    promised = ledger.promised_delta
    return mixture if promised is None else replace(mixture, promised_delta=promised)


def admission_epsilon(
    mixture: Mixture, ledger: LedgerState, charged: Totals,
    plans: Callable[[], Iterable[Plan]], target: float = 0.0,
) -> float:  # fmt: skip
    """Return the least epsilon for which charges satisfy A, B or C (Rule 4 of `plans`).

    Args:
        mixture: that is `in_force`.
        ledger: has the division of delta.
        charged: totals of all charges, held ones included.
        plans: returns the initial plans for which delta was divided.
        target: the search ends at it.
    """
    found = mixture.epsilon(charged, ledger.delta)
    loss = mixture.largest_loss(charged, beside_plans=True)
    if found <= target or loss is None or not ledger.plan_delta:
        return found
    aside = proven_epsilon(together(plans()), ledger.plan_delta, math.inf)
    if math.isinf(aside) or mixture.promises_left(charged) < 0.0:
        return found
    # Compared as decimals, by `decimal_above`.
    return min(found, decimal_above(Fraction(aside) + loss))


# The effect of each kind of entry


class Charge(NamedTuple):
    """The effect of one round on the totals."""

    cost: Totals  # of the round
    # the number of the planned round that covers it, from 0, or None outside a plan.
    slot: int | None = None
    # the part of `held` that ends: the cost of the planned round and of skipped ones.
    freed: Totals = ()
    skipped: bool = False  # whether planned rounds before it are skipped
    # of a part of the data: by how much it raises the total of all runs.
    shared: Totals | None = None


def charge_of(
    mixture: Mixture, plan: Plan | None, run: RunState, round_: Release, slot: int | None
) -> Charge:
    """Return the charge of a round, at a slot of its run's plan or outside it (Rule 2)."""
    cost = mixture.cost(round_)
    if plan is None or slot is None:
        return Charge(cost)
    own = plan.cost(mixture, slot, slot + 1)
    freed = plan.cost(mixture, run.cursor, slot + 1)
    # Another version may have held another amount: never free more than was held.
    held = tuple(map(min, freed, run.held))
    cost = tuple(map(min, cost, own))
    # Condition B has the initial plans whole, so their rounds are not beside them.
    cost = mixture.within_plans(cost) if run.initial else cost
    return Charge(cost, slot, held, slot > run.cursor)


def empty_ledger(mixture: Mixture, delta: float, adjacency: str) -> LedgerState:
    """Return the totals before the first run."""
    zero, promised = mixture.zero(), mixture.promised_delta if mixture.adds_up else None
    return LedgerState(zero, zero, 0, 0, 0, False, False, delta, 0.0, adjacency, promised)  # noqa: FBT003 - in the order of the fields


def started_run(
    ledger: LedgerState, plan_cost: Totals | None, adjacency: str, room: Room, *,
    private: bool,
) -> tuple[LedgerState, RunState]:  # fmt: skip
    """Register a run, and hold room for its plan, if it has one with this Renyi total.

    ``room`` is the division of delta from now on: that of ``ledger`` if it does not change.
    """
    zero = (0,) * len(ledger.spent)
    planned, held = plan_cost is not None, plan_cost or zero
    initial = planned and not ledger.started
    run = RunState(zero, held, 0, 0, 0, private, planned, initial, left=False, finished=False)
    held = add(ledger.held, held)
    ledger = replace(ledger, runs=ledger.runs + 1, held=held, adjacency=adjacency)
    return _divided(ledger, room), run


def reserved(
    ledger: LedgerState, run: RunState, charge: Charge, adjacency: str
) -> tuple[LedgerState, RunState]:
    """Charge a round. A round outside the plan of its run leaves it, and frees the held room."""
    leaves = charge.slot is None and run.on_plan
    freed = run.held if leaves else charge.freed or (0,) * len(charge.cost)
    loose = ledger.loose or charge.slot is None or not run.initial
    back = tuple(-part for part in freed)
    ledger, run = _changed(ledger, run, charge.cost, back, 1, charge.shared)
    ledger = replace(ledger, started=True, loose=loose, adjacency=adjacency)
    cursor = run.cursor if charge.slot is None else charge.slot + 1
    return ledger, replace(run, cursor=cursor, left=run.left or leaves)


def committed(ledger: LedgerState, run: RunState) -> tuple[LedgerState, RunState]:
    """Count a reserved round as released."""
    return ledger, replace(run, committed=run.committed + 1)


def abandoned(ledger: LedgerState, run: RunState, charge: Charge) -> tuple[LedgerState, RunState]:
    """Take back a reserved round for which nothing was drawn, and its slot by Rule 3."""
    latest = charge.slot is not None and run.cursor == charge.slot + 1
    again = latest and run.on_plan and not run.finished and not charge.skipped
    back = charge.freed if again else (0,) * len(charge.cost)
    cost = tuple(-part for part in charge.cost)
    ledger, run = _changed(ledger, run, cost, back, -1)
    return ledger, replace(run, cursor=run.cursor - again)


def finished(ledger: LedgerState, run: RunState, room: Room) -> tuple[LedgerState, RunState]:
    """End the run and free its held room. ``room`` is as for `started_run`."""
    ledger = _divided(replace(ledger, held=subtract(ledger.held, run.held)), room)
    return ledger, replace(run, finished=True, held=(0,) * len(run.held))


def _divided(ledger: LedgerState, room: Room) -> LedgerState:
    return replace(
        ledger,
        delta=room.delta,
        plan_delta=room.plan_delta,
        promised_delta=room.promised_delta,
    )


def _changed(
    ledger: LedgerState, run: RunState, spent: Totals, held: Totals, rounds: int,
    shared: Totals | None = None,
) -> tuple[LedgerState, RunState]:  # fmt: skip
    """Add to the totals of a run and of all runs. Amounts taken back are negative.

    ``shared`` is added to the total of all runs, if it is not ``spent``.
    """
    ledger = replace(
        ledger,
        spent=add(ledger.spent, spent if shared is None else shared),
        held=add(ledger.held, held),
        rounds=ledger.rounds + rounds,
        exposed=ledger.exposed + (0 if run.private else rounds),
    )
    spent, held = add(run.spent, spent), add(run.held, held)
    return ledger, replace(run, spent=spent, held=held, rounds=run.rounds + rounds)
