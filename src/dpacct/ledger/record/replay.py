"""Replaying a ledger: what each entry must have done to the totals.

Rule 1: every number of an entry that is shown or used is computed again from the entries before it
and from what the entry says was done. What cannot be is in `verify.UNVERIFIED`.
Rule 2: what a round costs is computed anew, and may differ by rounding (`COST_TOLERANCE`).
Everything that follows is compared exactly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from operator import gt

from dpacct.budget import Budget
from dpacct.errors import LedgerError
from dpacct.ledger.record.chain import Entry
from dpacct.ledger.record.charged import Charged
from dpacct.ledger.record.entries import Opening, Relabel, Reserve, Said, Settle, Start
from dpacct.ledger.record.events import covers, joint_noise_multiplier, schedule_in_adjacency
from dpacct.ledger.record.order import Released
from dpacct.ledger.record.plans import Plan, left_of, plan_room, schedule_cost
from dpacct.ledger.record.state import (
    LedgerState,
    RunState,
    Slot,
    abandoned,
    committed,
    empty_ledger,
    finished,
    reserved,
    started_run,
)
from dpacct.renyi.odometer import UNBOUNDED, Totals, add, subtract
from dpacct.rounds import Adjacency, Round

COST_TOLERANCE = 1e-9
PLAN_TOLERANCE = 1e-6


@dataclass(slots=True)
class _Open:
    """A reservation that is not settled, with what its place in the plan costs by itself."""

    run: int
    cost: Totals
    slot: Slot | None
    skipped: bool
    owed: Totals


@dataclass(slots=True)
class _Owed:
    """What has to be held for the rest of a plan: its cost, and how much may be missing of it."""

    cost: Totals
    slack: Totals


Found = tuple[LedgerState, RunState | None]


class Replay:
    """The state of all runs while the entries are read one by one.

    Attributes:
        ledger: the totals of all runs behind the latest entry; None before the first.
        dearer: the numbers of entries that were charged by a larger bound than today's.
        elsewhere: runs that record what ran elsewhere, whether there was room for it or not.
    """

    def __init__(self, opening: Opening) -> None:
        self.mixture = opening.mixture
        self.budget = opening.budget
        self.ledger: LedgerState | None = None
        self.runs: dict[int, RunState] = {}
        self.plans: dict[int, tuple[Plan, ...]] = {}
        self._charged: dict[int, Charged] = {}
        self.dearer: list[int] = []
        self._open: dict[int, _Open] = {}
        self._owed: dict[int, _Owed] = {}
        self._released = Released()
        self.elsewhere: set[int] = set()
        self._unchecked = False
        self._number = 0

    def step(self, entry: Entry, said: Said, found: Found) -> None:
        """One entry.

        Args:
            entry: the next one.
            said: what it says.
            found: the totals that it claims.
        Raises:
            LedgerError: it does not follow from those before.
        """
        self._number = entry.number
        if (ledger := self.ledger) and any(map(gt, ledger.charged, found[0].charged)):
            # What is given back now must not hide that there was too much.
            self.check_budget()
        if isinstance(said, Opening):
            expected = self._first(entry.run, found[0])
        elif ledger is None:
            raise LedgerError("a ledger begins with its budget")
        elif isinstance(said, Relabel):
            expected = self._relabel(ledger, entry.run, said)
        elif isinstance(said, Start):
            expected = self._start(ledger, entry.run, said, found[0])
        else:
            expected = self._of_run(ledger, entry, said, found[0])
        if expected != found:
            raise LedgerError("its totals do not follow from the entries before")
        self.ledger, run = found
        if run is not None:
            self._check_held(entry.run, run)
            self.runs[entry.run] = run

    def check_budget(self) -> None:
        """Whether what is charged outside the initial plans stays inside the budget.

        Raises:
            LedgerError: it does not.
        """
        state = self.ledger
        if state is None or not self._unchecked:
            return
        self._unchecked = False
        spent = self.mixture.epsilon(state.charged, state.delta)
        if spent > self.budget.epsilon * (1 + COST_TOLERANCE):
            raise LedgerError("the rounds charged before it exceed the budget")

    def _first(self, run: int, found: LedgerState) -> Found:
        if self.ledger is not None or run:
            raise LedgerError("a ledger begins only once")
        return empty_ledger(self.mixture.zero(), self.budget.delta, found.adjacency), None

    def _start(self, ledger: LedgerState, run: int, said: Start, found: LedgerState) -> Found:
        if run != ledger.runs + 1:
            raise LedgerError("runs are numbered 1, 2, 3, ...")
        if said.over_budget:
            # Until here there was room for everything.
            self.check_budget()
            self.elsewhere.add(run)
        cost, room, adjacency = None, None, ledger.adjacency
        if said.plan is not None:
            plan = Plan(said.plan)
            self._charged[run] = Charged(said.plan, said.accountant)
            self.plans[run] = (plan,)
            costs = [schedule_cost(self.mixture, p.schedule) for p in self.plans[run]]
            cost, owed = self._same(subtract(found.held, ledger.held), costs), costs[0]
            self._owed[run] = _Owed(owed, tuple(_slack(one) + 2 * plan.rounds for one in owed))
            adjacency = self._adjacency(ledger, plan.schedule.adjacency)
            if ledger.started:
                self._unchecked = True
            else:
                room = self._room(found, {run})
        return started_run(
            ledger, private=said.private, plan_cost=cost, adjacency=adjacency, room=room
        )

    def _relabel(self, ledger: LedgerState, run: int, said: Relabel) -> Found:
        if run or ledger.adjacency != Adjacency.ADD_REMOVE:
            raise LedgerError("only the add-remove rounds of a ledger are relabelled")
        for number, plans in self.plans.items():
            schedules = [schedule_in_adjacency(plan.schedule, said.adjacency) for plan in plans]
            self.plans[number] = tuple(map(Plan, schedules))
            self._charged[number] = Charged(schedules[0], self._charged[number].accountant)
        return replace(ledger, adjacency=said.adjacency), None

    def _adjacency(self, ledger: LedgerState, adjacency: str) -> str:
        if ledger.adjacency not in ("", adjacency):
            raise LedgerError("its adjacency is another than that of the ledger")
        return str(adjacency)

    def _room(self, found: LedgerState, also: set[int]) -> LedgerState:
        """The stored division of delta, if it sets enough aside for the initial plans."""
        delta = self.budget.delta
        runs = {n for n, state in self.runs.items() if state.initial and not state.finished} | also
        budget = Budget(self.budget.epsilon * (1 + PLAN_TOLERANCE), delta)
        room = plan_room(self.mixture, budget, [self._charged[n] for n in sorted(runs)])
        enough = found.plan_delta >= room.plan_delta * (1 - PLAN_TOLERANCE)
        if not (room.fits and enough and found.delta == left_of(delta, found.plan_delta)):
            raise LedgerError("its plans do not fit into the budget as it says")
        return found

    def _same(self, found: Totals, bounds: Sequence[Totals]) -> Totals:
        """The stored cost, if it is that of today's bound, the first, or of an earlier one."""
        if any(map(_is_below, found, bounds[0])):
            raise LedgerError("it charges less than its rounds cost")
        if not any(all(map(_is_near, found, bound)) for bound in bounds):
            raise LedgerError("it charges more than its rounds cost: not what it says was done")
        if any(map(_is_above, found, bounds[0])):
            self.dearer.append(self._number)
        return found

    def _of_run(self, ledger: LedgerState, entry: Entry, said: Said, found: LedgerState) -> Found:
        state = self.runs.get(entry.run)
        if state is None:
            raise LedgerError(f"there is no run {entry.run}")
        if isinstance(said, Settle):
            return self._settle(ledger, state, entry, said)
        if state.finished:
            raise LedgerError("its run was finished before")
        if isinstance(said, Reserve):
            return self._reserve(ledger, state, entry, said, found)
        if entry.kind == "resume":
            return ledger, state
        room = None
        if state.initial and not ledger.started:
            self.runs[entry.run] = finished(ledger, state, None)[1]
            room = self._room(found, set())
        return finished(ledger, state, room)

    def _settle(self, ledger: LedgerState, state: RunState, entry: Entry, said: Settle) -> Found:
        settled = self._open.pop(said.round, None)
        if settled is None or settled.run != entry.run:
            raise LedgerError("it settles a round that is not open")
        if entry.kind == "commit":
            self._released.add(entry.run, self._charged.get(entry.run), settled.slot)
            return committed(ledger, state)
        changed = abandoned(ledger, state, settled.cost, settled.slot, skipped=settled.skipped)
        if changed[1].cursor < state.cursor:
            owed = self._owed[entry.run]
            owed.cost = add(owed.cost, settled.owed)
        return changed

    def _reserve(
        self,
        ledger: LedgerState,
        state: RunState,
        entry: Entry,
        said: Reserve,
        found: LedgerState,
    ) -> Found:
        self._check_charge(said)
        adjacency = self._adjacency(ledger, said.charged.adjacency)
        if said.left != (said.slot is None and state.on_plan):
            raise LedgerError("it does not say rightly whether its run left the plan")
        slot, skipped, owed = None, False, self.mixture.zero()
        costs = [self.mixture.cost(said.charged)]
        if said.slot is None:
            self._unchecked |= entry.run not in self.elsewhere
        else:
            plans, number = self._planned(entry.run, state, said.charged, said.slot)
            skipped = number > state.cursor
            freed = [plan.cost(self.mixture, state.cursor, number + 1) for plan in plans]
            owed = freed[0]
            slot = Slot(number, self._freed(subtract(ledger.held, found.held), state, freed))
            self._owed[entry.run].cost = subtract(self._owed[entry.run].cost, owed)
            places = [plan.cost(self.mixture, number, number + 1) for plan in plans]
            costs = [tuple(map(min, *both)) for both in zip(costs, places, strict=False)]
        cost = self._same(subtract(found.spent, ledger.spent), costs)
        self._open[entry.number] = _Open(entry.run, cost, slot, skipped, owed)
        return reserved(ledger, state, cost, slot, adjacency)

    def _check_charge(self, said: Reserve) -> None:
        """What is charged covers all releases together, and the round (`Event.charged`)."""
        if said.noise_multiplier is None:
            return
        joint = joint_noise_multiplier(part.noise_multiplier for part in said.releases)
        least = min(joint, said.noise_multiplier)
        if not least * (1 - COST_TOLERANCE) <= said.charged.noise_multiplier <= least:
            raise LedgerError("what it charges is not what all its releases together cost")

    def _check_held(self, number: int, run: RunState) -> None:
        """Whether what is held for the rest of a run's plan is what that costs."""
        owed = self._owed.get(number)
        if owed is None or not run.on_plan or run.finished:
            return
        if any(map(gt, subtract(owed.cost, owed.slack), run.held)):
            raise LedgerError("it holds less than the rest of its plan costs")

    def _freed(self, found: Totals, state: RunState, bounds: Sequence[Totals]) -> Totals:
        """The stored amount that is no longer held, if it was held and is what that costs."""
        most = [tuple(map(min, bound, state.held)) for bound in bounds]
        inside = all(0 <= part <= held for part, held in zip(found, state.held, strict=True))
        if not inside or not any(all(map(_is_near, found, bound)) for bound in most):
            raise LedgerError("it frees another amount than was held for it")
        return found

    def _planned(
        self, run: int, state: RunState, round_: Round, number: int
    ) -> tuple[tuple[Plan, ...], int]:
        plans = self.plans.get(run, ())
        planned = plans[0].round_at(number) if plans and state.on_plan else None
        if planned is None or number < state.cursor or not covers(planned, round_):
            raise LedgerError("no round of the plan covers it")
        return plans, number


def _slack(cost: int) -> int:
    """What may be missing at a cost: `COST_TOLERANCE` of it, rounded up, and one unit."""
    return cost // int(1 / COST_TOLERANCE) + 2


def _is_below(found: int, cost: int) -> bool:
    return found < cost - _slack(cost)


def _is_above(found: int, cost: int) -> bool:
    return found > cost + _slack(cost)


def _is_near(found: int, cost: int) -> bool:
    """Equal but for rounding; what had no bound then may have one now."""
    return not _is_below(found, cost) and (found >= UNBOUNDED or not _is_above(found, cost))
