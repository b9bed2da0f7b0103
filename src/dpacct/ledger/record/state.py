"""The rules of the totals: what each kind of entry does to them, and the replay that verifies it.

Pure arithmetic on whole numbers. Writing an entry and verifying one call the same functions.

Rule 1: `spent` holds every round that was reserved and not abandoned.
Rule 2: `held` is the cost of planned rounds still to come. A round within its plan moves its cost
from `held` to `spent`, so their sum grows only by registering plans and by other rounds.
Rule 3: the rounds of a plan are used in its order; skipped ones are forfeited. A slot is given back
only by abandoning the run's latest reservation.
Rule 4: what is charged covers all releases of a round together.
Rule 5: what is charged outside the initial plans stays within the budget, except for rounds that
had run elsewhere.
Rule 6: where the charge of a plan depends on the order of its rounds, they are released in it.

In a replay every number is computed again from the entries before and compared exactly, with two
exceptions: a cost may differ by rounding (`COST_TOLERANCE`), and the delta that is set aside for
plans by the accuracy of the accountants (`PLAN_TOLERANCE`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from operator import gt
from typing import NamedTuple

from dpacct.budget import Budget
from dpacct.errors import InvalidParameter, LedgerError
from dpacct.ledger.record.entries import (
    Entry,
    LedgerState,
    Opening,
    Relabel,
    Reserve,
    RunState,
    Said,
    Settle,
    Start,
)
from dpacct.ledger.record.events import (
    covers,
    in_adjacency,
    joint_noise_multiplier,
    schedule_in_adjacency,
)
from dpacct.ledger.record.plans import Charged, Plan, PlanRoom, left_of, plan_room, schedule_cost
from dpacct.renyi.odometer import Mixture, Totals, add, subtract
from dpacct.rounds import Adjacency, Round

COST_TOLERANCE = 1e-9
PLAN_TOLERANCE = 1e-6


# How the budget's delta is divided between the initial plans and anything else.
Room = PlanRoom | LedgerState


class Charge(NamedTuple):
    """The effect of one round on the totals.

    Attributes:
        cost: of the round.
        slot: the number of the planned round that covers it, from 0; None outside a plan.
        freed: what is no longer held: the cost of that planned round and of those skipped.
        skipped: whether planned rounds before it are skipped.
    """

    cost: Totals
    slot: int | None = None
    freed: Totals = ()
    skipped: bool = False


def charge_of(
    mixture: Mixture, plan: Plan | None, run: RunState, round_: Round, slot: int | None
) -> Charge:
    """Return what a round costs, at a place of its run's plan or outside it (Rule 2)."""
    cost = mixture.cost(round_)
    if plan is None or slot is None:
        return Charge(cost)
    own = plan.cost(mixture, slot, slot + 1)
    freed = plan.cost(mixture, run.cursor, slot + 1)
    # Another version may have held another amount: never free more than was held.
    held = tuple(map(min, freed, run.held))
    return Charge(tuple(map(min, cost, own)), slot, held, slot > run.cursor)


def empty_ledger(zero: Totals, delta: float, adjacency: str) -> LedgerState:
    """Return the totals before anything has happened."""
    return LedgerState(zero, zero, 0, 0, 0, False, False, delta, 0.0, adjacency)  # noqa: FBT003 - in the order of the fields


def started_run(
    ledger: LedgerState,
    plan_cost: Totals | None,
    adjacency: str,
    room: Room | None,
    *,
    private: bool,
) -> tuple[LedgerState, RunState]:
    """Register a run, and hold room for its plan.

    Args:
        ledger: the totals before.
        plan_cost: the Renyi total of its plan, if it has one.
        adjacency: of all rounds of the ledger.
        room: how delta is divided from now on; None where that does not change.
        private: its noise comes from a secret source.
    """
    zero = (0,) * len(ledger.spent)
    planned, held = plan_cost is not None, plan_cost or zero
    initial = planned and not ledger.started
    run = RunState(zero, held, 0, 0, 0, private, planned, initial, left=False, finished=False)
    ledger = replace(
        _divided(ledger, room),
        runs=ledger.runs + 1,
        held=add(ledger.held, held),
        adjacency=adjacency,
    )
    return ledger, run


def _divided(ledger: LedgerState, room: Room | None) -> LedgerState:
    return ledger if room is None else replace(ledger, delta=room.delta, plan_delta=room.plan_delta)


def reserved(
    ledger: LedgerState, run: RunState, charge: Charge, adjacency: str
) -> tuple[LedgerState, RunState]:
    """Charge a round; one outside the plan of its run leaves it, and frees what was held."""
    zero = (0,) * len(charge.cost)
    inside = charge.slot is not None
    leaves = not inside and run.on_plan
    freed = charge.freed if inside else run.held if leaves else zero
    ledger = replace(
        ledger,
        spent=add(ledger.spent, charge.cost),
        held=subtract(ledger.held, freed),
        rounds=ledger.rounds + 1,
        exposed=ledger.exposed + (not run.private),
        started=True,
        loose=ledger.loose or not (inside and run.initial),
        adjacency=adjacency,
    )
    run = replace(
        run,
        spent=add(run.spent, charge.cost),
        held=subtract(run.held, freed),
        rounds=run.rounds + 1,
        cursor=run.cursor if charge.slot is None else charge.slot + 1,
        left=run.left or leaves,
    )
    return ledger, run


def committed(ledger: LedgerState, run: RunState) -> tuple[LedgerState, RunState]:
    """Count a reserved round as released."""
    return ledger, replace(run, committed=run.committed + 1)


def abandoned(ledger: LedgerState, run: RunState, charge: Charge) -> tuple[LedgerState, RunState]:
    """Take back a reserved round for which nothing was drawn, and its slot by Rule 3."""
    latest = charge.slot is not None and run.cursor == charge.slot + 1
    again = latest and run.on_plan and not run.finished and not charge.skipped
    back = charge.freed if again else (0,) * len(charge.cost)
    ledger = replace(
        ledger,
        spent=subtract(ledger.spent, charge.cost),
        held=add(ledger.held, back),
        rounds=ledger.rounds - 1,
        exposed=ledger.exposed - (not run.private),
    )
    run = replace(
        run,
        spent=subtract(run.spent, charge.cost),
        held=add(run.held, back),
        rounds=run.rounds - 1,
        cursor=run.cursor - again,
    )
    return ledger, run


def finished(ledger: LedgerState, run: RunState, room: Room | None) -> tuple[LedgerState, RunState]:
    """End the run and free what was held for it; ``room`` as for `started_run`."""
    ledger = replace(_divided(ledger, room), held=subtract(ledger.held, run.held))
    return ledger, replace(run, finished=True, held=(0,) * len(run.held))


def relabelled(ledger: LedgerState) -> LedgerState:
    """Charge all rounds of version 0.2, before and after, as zero-out."""
    return replace(ledger, adjacency=str(Adjacency.ZERO_OUT))


@dataclass(slots=True)
class _Planned:
    """The plan of a run, and the latest of its rounds that was released (Rule 6)."""

    plan: Plan
    charged: Charged
    released: int = 0


Found = tuple[LedgerState, RunState | None]


class Replay:
    """The state of all runs while the entries are read one by one.

    Attributes:
        ledger: the totals of all runs behind the latest entry; None before the first.
        elsewhere: runs that record what ran elsewhere, whether there was room for it or not.
    """

    def __init__(self, opening: Opening) -> None:
        self.mixture, self.budget = opening.mixture, opening.budget
        self.ledger: LedgerState | None = None
        self.elsewhere: set[int] = set()
        self._runs: dict[int, RunState] = {}
        self._plans: dict[int, _Planned] = {}
        # Reservations that are not settled, with their run.
        self._open: dict[int, tuple[int, Charge]] = {}
        self._unchecked = False

    def step(self, entry: Entry, said: Said, found: Found) -> None:
        """Apply one entry.

        Args:
            entry: the next one.
            said: what it says.
            found: the totals that it claims.
        """
        ledger, run = self.ledger, self._runs.get(entry.run)
        if ledger and any(map(gt, ledger.charged, found[0].charged)):
            # What is given back now must not hide that there was too much.
            self.check_budget()
        if isinstance(said, Opening):
            expected = self._first(entry.run, found[0])
        elif ledger is None:
            raise LedgerError("a ledger begins with its budget")
        elif isinstance(said, Relabel):
            expected = self._relabel(ledger, entry.run)
        elif isinstance(said, Start):
            expected = self._start(ledger, entry.run, said, found[0])
        elif run is None:
            raise LedgerError(f"there is no run {entry.run}")
        else:
            expected = self._of_run(ledger, run, entry, said, found[0])
        if expected != found:
            raise LedgerError("its totals do not follow from the entries before")
        self.ledger, state = found
        if state is not None:
            self._runs[entry.run] = state

    def check_budget(self) -> None:
        """Check Rule 5 as of now."""
        state = self.ledger
        if state is not None and self._unchecked:
            self._unchecked = False
            spent = self.mixture.epsilon(state.charged, state.delta)
            if spent > self.budget.epsilon * (1 + COST_TOLERANCE):
                raise LedgerError("the rounds charged before it exceed the budget")

    def _first(self, run: int, found: LedgerState) -> Found:
        if self.ledger is not None or run:
            raise LedgerError("a ledger begins only once")
        return empty_ledger(self.mixture.zero(), self.budget.delta, found.adjacency), None

    def _of_run(
        self, ledger: LedgerState, run: RunState, entry: Entry, said: Said, found: LedgerState
    ) -> Found:
        if isinstance(said, Settle):
            return self._settle(ledger, run, entry, said)
        if run.finished:
            raise LedgerError("its run was finished before")
        if isinstance(said, Reserve):
            return self._reserve(ledger, run, entry, said, found)
        if entry.kind == "resume":
            return ledger, run
        divided = run.initial and not ledger.started
        room = self._room(found, without=entry.run) if divided else None
        return finished(ledger, run, room)

    def _relabel(self, ledger: LedgerState, run: int) -> Found:
        if run or ledger.adjacency != Adjacency.ADD_REMOVE:
            raise LedgerError("only the add-remove rounds of a ledger are relabelled")
        ledger = relabelled(ledger)
        for own in self._plans.values():
            own.plan = Plan(schedule_in_adjacency(own.plan.schedule, ledger.adjacency))
            own.charged = own.charged._replace(schedule=own.plan.schedule)
        return ledger, None

    def _start(self, ledger: LedgerState, run: int, said: Start, found: LedgerState) -> Found:
        if run != ledger.runs + 1:
            raise LedgerError("runs are numbered 1, 2, 3, ...")
        if said.over_budget:
            # Until here there was room for everything.
            self.check_budget()
            self.elsewhere.add(run)
        if said.plan is None:
            return started_run(ledger, None, ledger.adjacency, None, private=said.private)
        plan, cost = Plan(said.plan), schedule_cost(self.mixture, said.plan)
        adjacency = _same_adjacency(ledger, next(iter(said.plan)).round)
        self._plans[run] = _Planned(plan, Charged(said.plan, said.accountant))
        held = _as_found(cost, subtract(found.held, ledger.held))
        self._unchecked |= ledger.started
        room = None if ledger.started else self._room(found, also=run)
        return started_run(ledger, held, adjacency, room, private=said.private)

    def _room(self, found: LedgerState, also: int = 0, without: int = 0) -> LedgerState:
        """Return the stored division of delta, if it sets enough aside for the initial plans."""
        runs = [n for n, state in self._runs.items() if state.initial and not state.finished]
        kept = sorted({*runs, *([also] if also else [])} - {without})
        delta = self.budget.delta
        budget = Budget(self.budget.epsilon * (1 + PLAN_TOLERANCE), delta)
        room = plan_room(self.mixture, budget, [self._plans[n].charged for n in kept])
        enough = found.plan_delta >= room.plan_delta * (1 - PLAN_TOLERANCE)
        if not (room.fits and enough and found.delta == left_of(delta, found.plan_delta)):
            raise LedgerError("its plans do not fit into the budget as it says")
        return found

    def _reserve(
        self, ledger: LedgerState, run: RunState, entry: Entry, said: Reserve, found: LedgerState
    ) -> Found:
        if said.noise_multiplier is not None:
            joint = joint_noise_multiplier(part.noise_multiplier for part in said.releases)
            least = min(joint, said.noise_multiplier)
            if not least * (1 - COST_TOLERANCE) <= said.charged.noise_multiplier <= least:
                raise LedgerError("what it charges is not what all its releases together cost")
        if said.left != (said.slot is None and run.on_plan):
            raise LedgerError("it does not say rightly whether its run left the plan")
        adjacency = _same_adjacency(ledger, said.charged)
        own = self._plans.get(entry.run)
        if said.slot is None:
            self._unchecked |= entry.run not in self.elsewhere
        else:
            planned = own.plan.round_at(said.slot) if own and run.on_plan else None
            if planned is None or said.slot < run.cursor or not covers(planned, said.charged):
                raise LedgerError("no round of the plan covers it")
        plan = own.plan if own else None
        charge = charge_of(self.mixture, plan, run, said.charged, said.slot)
        cost = _as_found(charge.cost, subtract(found.spent, ledger.spent))
        charge = charge._replace(cost=cost)
        if said.slot is not None:
            freed = subtract(ledger.held, found.held)
            inside = all(0 <= part <= held for part, held in zip(freed, run.held, strict=True))
            if not (inside and all(map(_is_near, freed, charge.freed))):
                raise LedgerError("it frees another amount than was held for it")
            charge = charge._replace(freed=freed)
        self._open[entry.number] = entry.run, charge
        return reserved(ledger, run, charge, adjacency)

    def _settle(self, ledger: LedgerState, run: RunState, entry: Entry, said: Settle) -> Found:
        owner, charge = self._open.pop(said.round, (0, Charge(())))
        if owner != entry.run:
            raise LedgerError("it settles a round that is not open")
        own = self._plans.get(entry.run)
        if entry.kind == "commit":
            if own and charge.slot is not None and own.charged.keeps_order:
                if charge.slot < own.released:
                    raise LedgerError("it releases a round of a plan after a later one of it")
                own.released = charge.slot
            return committed(ledger, run)
        return abandoned(ledger, run, charge)


def _same_adjacency(ledger: LedgerState, round_: Round) -> str:
    try:
        same = in_adjacency(round_, ledger.adjacency) == round_
    except InvalidParameter:
        same = False
    if not same:
        raise LedgerError("its adjacency is another than that of the ledger")
    return str(round_.adjacency)


def _as_found(cost: Totals, found: Totals) -> Totals:
    """Return a stored cost, if it is the one that is computed."""
    if not all(map(_is_near, found, cost)):
        less = any(a < b and not _is_near(a, b) for a, b in zip(found, cost, strict=True))
        raise LedgerError(
            "it charges less than its rounds cost"
            if less
            else "it charges more than its rounds cost: not what it says was done"
        )
    return found


def _is_near(found: int, cost: int) -> bool:
    """Return whether both are equal but for rounding: `COST_TOLERANCE`, and one unit."""
    return abs(found - cost) <= cost // int(1 / COST_TOLERANCE) + 2
