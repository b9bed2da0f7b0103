"""The totals behind an entry, and the rules by which each kind of entry changes them.

Pure arithmetic on whole numbers. Writing an entry (`writing`) and replaying one (`replay`) call the
same functions.

Rule 1: `spent` holds every round that was reserved and not abandoned.
Rule 2: `held` is the cost of planned rounds still to come. A round within its plan moves its cost
from `held` to `spent`, so their sum grows only by registering plans and by other rounds.
Rule 3: the rounds of a plan are used in its order, and skipped rounds are forfeited. A slot is
given back only by abandoning the run's latest reservation, unless a cheaper round had taken it: its
room may be taken by now.
Rule 4: the charge of a round covers all its releases together.
Rule 5: rounds charged outside the initial plans stay within the budget, except for rounds that had
run elsewhere.
Rule 6: if the charge of a plan depends on the order of its rounds, they are released in it.
Rule 7: the totals are stored once for each run, as of its latest entry, and overwritten. That entry
has their digest. The latest entry of all binds the sum of the numbers of these entries: if stored
totals of any run are older than they should be, the sum is too low.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache, partial
from operator import attrgetter, gt
from typing import Any, NamedTuple

from dpacct.ledger.record.entries import (
    NEXT_OF_SEVERAL,
    Kind,
    Opening,
    Reserve,
    Start,
    reading,
    typed,
    whole,
)
from dpacct.ledger.record.plans import Plan, PlanRoom, proven_epsilon, together
from dpacct.numerics.rounding import decimal_above
from dpacct.renyi.odometer import Mixture, Totals, add, subtract, times
from dpacct.rounds import Adjacency

# Kinds of released rounds that are counted for each run. The achieved epsilon of some of them is at
# most that of all.
_COUNTED = 32


class LedgerState(NamedTuple):
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
    committed: int = 0  # the number of released rounds
    latest: int = 0  # the sum of the numbers of the latest entries of all runs (Rule 7)

    @property
    def charged(self) -> Totals:
        """Spent and held."""
        return add(self.spent, self.held)


class RunState(NamedTuple):
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
    latest: int = 0  # the number of its latest reservation
    row: int = 0  # its latest row of correlated noise
    through: int = 0  # one more than the latest slot of its plan that was released
    exact: int = 0  # released rounds that are just the planned ones
    # How often it released each kind of round, by the number of the entry of the kind: the first
    # kinds, and all with a sum without noise.
    released: tuple[tuple[int, int], ...] = ()

    @property
    def on_plan(self) -> bool:
        """True for a run that has a plan and kept to it."""
        return self.planned and not self.left


# In the place of the totals of a run, for entries of none.
NO_RUN = RunState((), (), 0, 0, 0, False, False, False, False, False)  # noqa: FBT003 - in the order of the fields
# Totals behind an entry: of all runs, and of its run.
States = tuple[LedgerState, RunState | None]


def state_text(ledger: LedgerState, run: RunState | None) -> str:
    """Return the totals as text: canonical JSON."""
    return f'{{"ledger":{_text(ledger)},"run":{"null" if run is None else _text(run)}}}'


def as_of_0_3(ledger: LedgerState, run: RunState | None) -> States:
    """Return totals without what version 0.3 did not store."""
    plain = run and run._replace(latest=0, row=0, through=0, exact=0, released=())
    return ledger._replace(committed=0, latest=0), plain


def _text(state: LedgerState | RunState) -> str:
    template, fields = _FORMS[type(state)]
    values = zip(fields, _GETTERS[type(state)](state), strict=True)
    return template % tuple([write(value) if write else value for write, value in values])


@lru_cache(maxsize=64)
def _totals(totals: Totals) -> str:
    return f"[{','.join(map(int.__repr__, totals))}]"


def _pairs(pairs: tuple[tuple[int, int], ...]) -> str:
    return f"[{','.join([f'[{kind},{count}]' for kind, count in pairs])}]"


# The text of each class, and what writes its values, by their types. `json` takes twice as long.
_WRITERS: dict[str, Callable[[Any], str]] = {
    "Totals": _totals,
    "bool": ("false", "true").__getitem__,
    "str": json.dumps,
    "float | None": json.dumps,
    "tuple[tuple[int, int], ...]": _pairs,
}
_GETTERS = {kind: attrgetter(*sorted(kind._fields)) for kind in (LedgerState, RunState)}
_FORMS = {
    kind: (
        f"{{{','.join(f'{json.dumps(name)}:%s' for name in sorted(kind._fields))}}}",
        [_WRITERS.get(kind.__annotations__[n].__forward_arg__) for n in sorted(kind._fields)],
    )
    for kind in (LedgerState, RunState)
}


def read_state(text: str) -> States:
    """Return the totals that were written as text, or those of an entry of version 0.3."""
    with reading():
        state = json.loads(text)
        state = state.get("state", state)
        own = state["run"]
        found = LedgerState(**_typed(LedgerState, state["ledger"]))
        if found.adjacency:
            Adjacency(found.adjacency)
        return found, None if own is None else RunState(**_typed(RunState, own))


def _typed(kind: type[LedgerState | RunState], values: dict[str, Any]) -> dict[str, Any]:
    """Return totals of a text, which may be foreign, with the types of their fields."""
    types = kind.__annotations__
    return {key: _READERS[types[key].__forward_arg__](value) for key, value in values.items()}


def _share(value: Any) -> float:
    if not 0.0 <= typed(float, value) <= 1.0:
        raise ValueError(f"{value} is no share of delta")
    return value


_READERS: dict[str, Callable[[Any], Any]] = {
    "Totals": whole,
    "bool": partial(typed, bool),
    "str": partial(typed, str),
    "int": lambda value: whole([value])[0],
    "float": _share,
    "float | None": lambda value: None if value is None else _share(value),
    "tuple[tuple[int, int], ...]": lambda pairs: tuple([whole([a, b]) for a, b in pairs]),
}


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
    """The effect of a round, or of several equal ones of a plan, on the totals."""

    cost: Totals  # of all of them
    # the number of the planned round that covers the first, from 0, or None outside a plan.
    slot: int | None = None
    # the part of `held` that ends: the cost of planned rounds and of skipped ones.
    freed: Totals = ()
    skipped: bool = False  # whether planned rounds before it are skipped
    rounds: int = 1  # their number
    kind: int = 0  # the number of the entry that describes the round
    as_planned: bool = False  # whether it is just the planned round

    def one(self, index: int) -> Charge:
        """Return the effect of one of the rounds, from 0."""
        if self.rounds == 1 or self.slot is None:
            return self
        both = self.cost, self.freed
        cost, freed = (tuple(one // self.rounds for one in part) for part in both)
        return self._replace(cost=cost, freed=freed, slot=self.slot + index, rounds=1)


def settled_by(reservation: int, index: int) -> int:
    """Return what settles one of the rounds of a reservation, from 0 (``closes`` of an entry)."""
    return reservation + index * NEXT_OF_SEVERAL


def charge_of(
    mixture: Mixture, plan: Plan | None, run: RunState, kind: Kind, number: int, slot: int | None,
    count: int = 1,
) -> Charge:  # fmt: skip
    """Return the charge of rounds, from a slot of their run's plan on or outside it (Rule 2)."""
    cost, round_ = kind.cost or mixture.cost(kind.charged), kind.charged
    if plan is None or slot is None:
        return Charge(cost, kind=number)
    planned = plan.round_at(slot)
    own = mixture.cost(planned) if planned is not None and planned != round_ else cost
    freed = times(count, own)
    if slot > run.cursor:
        freed = add(freed, plan.cost(mixture, run.cursor, slot))
    # Condition B has the initial plans whole, so their rounds are not beside them.
    cost = tuple(map(min, cost, own))
    cost = mixture.within_plans(cost) if run.initial else cost
    # Another version may have held another amount: never free more than was held.
    freed = tuple(map(min, freed, run.held))
    skipped, same = slot > run.cursor, planned == round_
    return Charge(times(count, cost), slot, freed, skipped, count, number, same)


def as_said(mixture: Mixture, run: RunState, kind: Kind, said: Reserve, slot: int | None) -> Charge:
    """Return the charge that an entry states, where it does not say more than its kind."""
    cost = times(said.count, kind.cost)
    cost = mixture.within_plans(cost) if slot is not None and run.initial else cost
    cost, freed = said.cost or cost, said.freed
    if slot is not None and not freed:
        freed = tuple(map(min, cost, run.held))
    return Charge(cost, slot, freed, slot is not None and slot > run.cursor, said.count, said.kind)


def empty_ledger(opening: Opening) -> LedgerState:
    """Return the totals before the first run."""
    mixture, delta = opening.mixture, opening.budget.delta
    zero, promised = mixture.zero(), mixture.promised_delta if mixture.adds_up else None
    return LedgerState(zero, zero, 0, 0, 0, False, False, delta, 0.0, opening.adjacency, promised)  # noqa: FBT003 - in the order of the fields


def started_run(
    ledger: LedgerState, start: Start, shared: Totals | None = None
) -> tuple[LedgerState, RunState]:
    """Register a run, and hold room for its plan. The releases of a charge are spent at once.

    ``shared`` is by how much a charge raises the total of all runs, if it is not its cost.
    """
    zero, planned = (0,) * len(ledger.spent), start.plan is not None
    held = start.cost if planned else zero
    initial = planned and not ledger.started
    run = RunState(zero, held, 0, 0, 0, start.private, planned, initial, left=False, finished=False)
    adjacency = str(start.schedule.adjacency) if start.schedule else ledger.adjacency
    ledger = ledger._replace(runs=ledger.runs + 1, held=add(ledger.held, held), adjacency=adjacency)
    ledger = _divided(ledger, start.room)
    if start.rounds is None:
        return ledger, run
    count, back = start.rounds.rounds, tuple(-part for part in held)
    ledger, run = _changed(ledger, run, start.cost, back, count, shared)
    loose, committed = ledger.loose or not initial, ledger.committed + count
    ledger = ledger._replace(started=True, loose=loose, committed=committed)
    used = count if planned else 0
    return ledger, run._replace(
        committed=count, cursor=used, exact=used, through=used, finished=True
    )


def reserved(
    ledger: LedgerState, run: RunState, charge: Charge, adjacency: str, number: int,
    shared: Totals | None = None,
) -> tuple[LedgerState, RunState]:  # fmt: skip
    """Charge rounds by an entry. A round outside the plan of its run leaves it, and frees the room.

    ``shared`` is by how much it raises the total of all runs, if it is not its cost.
    """
    leaves = charge.slot is None and run.on_plan
    freed = run.held if leaves else charge.freed or (0,) * len(charge.cost)
    loose = ledger.loose or charge.slot is None or not run.initial
    back = tuple(-part for part in freed)
    ledger, run = _changed(ledger, run, charge.cost, back, charge.rounds, shared)
    ledger = ledger._replace(started=True, loose=loose, adjacency=adjacency)
    cursor = run.cursor if charge.slot is None else charge.slot + charge.rounds
    return ledger, run._replace(cursor=cursor, left=run.left or leaves, latest=number)


def committed(
    ledger: LedgerState, run: RunState, charge: Charge, kind_at: Callable[[int], Kind]
) -> tuple[LedgerState, RunState]:
    """Count a reserved round as released. ``kind_at`` returns the kind of an entry."""
    released, kind, number = dict(run.released), kind_at(charge.kind), charge.kind
    if number not in released:
        # Version 0.3 describes each round again.
        number = next((n for n in released if kind_at(n)[:3] == kind[:3]), number)
    if number in released or len(released) < _COUNTED or kind.is_bare:
        released[number] = released.get(number, 0) + 1
    through = run.through if charge.slot is None else max(run.through, charge.slot + 1)
    return ledger._replace(committed=ledger.committed + 1), run._replace(
        committed=run.committed + 1,
        through=through,
        exact=run.exact + charge.as_planned,
        released=tuple(released.items()),
    )


def abandoned(
    ledger: LedgerState, run: RunState, charge: Charge, *, old: bool = False
) -> tuple[LedgerState, RunState]:
    """Take back a reserved round for which nothing was drawn, and its slot by Rule 3.

    ``old``: by an entry of version 0.3, which also gave back the slot of a cheaper round.
    """
    latest = charge.slot is not None and run.cursor == charge.slot + 1
    again = latest and run.on_plan and not run.finished and not charge.skipped
    again = again and (old or not any(map(gt, charge.freed, charge.cost)))
    back = charge.freed if again else (0,) * len(charge.cost)
    cost = tuple(-part for part in charge.cost)
    ledger, run = _changed(ledger, run, cost, back, -1)
    return ledger, run._replace(cursor=run.cursor - again)


def finished(
    ledger: LedgerState, run: RunState, room: PlanRoom | None
) -> tuple[LedgerState, RunState]:
    """End the run and free its held room. ``room``: the new division of delta, if it changes."""
    ledger = _divided(ledger._replace(held=subtract(ledger.held, run.held)), room)
    return ledger, run._replace(finished=True, held=(0,) * len(run.held))


def _divided(ledger: LedgerState, room: PlanRoom | None) -> LedgerState:
    if room is None:
        return ledger
    return ledger._replace(
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
    ledger = ledger._replace(
        spent=add(ledger.spent, spent if shared is None else shared),
        held=add(ledger.held, held),
        rounds=ledger.rounds + rounds,
        exposed=ledger.exposed + (0 if run.private else rounds),
    )
    spent, held = add(run.spent, spent), add(run.held, held)
    return ledger, run._replace(spent=spent, held=held, rounds=run.rounds + rounds)
