"""Writing to a ledger: the life of its runs and rounds, each step in one transaction.

Rule 1: a round is reserved before data is touched, committed before its noisy value leaves.
Rule 2: a reserved round counts as spent until it is abandoned, even if its process dies.
Rule 3: a round that its run's plan covers was admitted with the plan. Any other round is admitted
only while the adaptive bound, with all that is held for plans, stays within the budget.
Rule 4: if the charge of a plan depends on the order of its rounds, they are released in it.
Rule 5: a check and the entry that it admits are one transaction: two processes never share room.
Rule 6: a reserved round is committed at most once, by one process.
Rule 7: rounds that ran elsewhere are recorded together or not at all, each with its entries. Rounds
that do not fit are recorded only if the caller declares that they ran. They are outside any plan,
the ledger then reads more than its budget, and no further round fits.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable
from contextlib import closing
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from dpacct.display import chosen, line, trimmed, up
from dpacct.errors import BudgetExceeded, LedgerError
from dpacct.items import count_of
from dpacct.ledger.disk.rows import StoredEntries
from dpacct.ledger.disk.store import Store
from dpacct.ledger.readings import Known, Snapshot, naming
from dpacct.ledger.record import entries as chain
from dpacct.ledger.record import events
from dpacct.ledger.record import state as rules
from dpacct.ledger.record.entries import Entry, Opening, Start
from dpacct.ledger.record.events import Event
from dpacct.ledger.record.parts import PartTotals
from dpacct.ledger.record.plans import (
    PAIRS,
    TIGHT,
    Plan,
    PlanRoom,
    accountant_of,
    plan_room,
    proven_epsilon,
    schedule_cost,
)
from dpacct.ledger.record.state import Charge, RunState, States
from dpacct.renyi.odometer import Totals, add, count_fitting, subtract
from dpacct.rounds import Release, Schedule

T = TypeVar("T")
# Runs that hold room which an error names.
_NAMED = 3


class Reservation(NamedTuple):
    """A round that is on disk: the number of its entry, its run, and its charge."""

    number: int
    run: int
    charge: Charge


class Transaction(Snapshot):
    """A ledger while it is written to: as of the latest entry, which may be one of this block."""

    def __init__(self, rows: StoredEntries, known: Known) -> None:
        super().__init__(rows, rows.head(), known.apart())
        self._rows = rows
        self._parts: PartTotals | None = None

    def append(
        self, kind: str, run: int, data: dict[str, Any], totals: States, closes: int | None = None
    ) -> Entry:
        """Write the entry that follows the latest one, with the totals behind it."""
        self.head = chain.new_entry(self.head, kind, run, data, rules.state_to_json(*totals))
        self._rows.add(self.head, closes)
        self.state, state = totals
        if state is not None:
            self._states[run] = self.state, state
        return self.head

    def open_run(self, run: int) -> RunState:
        """Return the totals of a run that is not finished."""
        state = self.run_state(run)
        if state.finished:
            raise LedgerError(f"{self.path}: run {run} is finished. Start another run.")
        return state

    def reserve(self, run: int, event: Event, *, over_budget: bool = False) -> Reservation | None:
        """Charge a round, or return None if it does not fit (Rule 3)."""
        state, plan = self.open_run(run), self.plan(run)
        charged = events.in_adjacency(event.charged, self.state.adjacency)
        slot = plan.covering(charged, state.cursor) if plan and state.on_plan else None
        charge = rules.charge_of(self.mixture, plan, state, charged, slot)
        cost = charge.cost
        if part := self.part_of(run):
            if self._parts is None:
                self._parts = self.part_totals()
            # A charge of a part is undone as a whole if this round does not fit.
            cost = self._parts.charge(part, cost)
            charge = charge._replace(shared=cost)
        if slot is None and not over_budget and exceeds(self, state, cost):
            return None
        data = events.event_to_json(event, charged)
        data |= {"slot": slot, "left": slot is None and state.on_plan}
        totals = rules.reserved(self.state, state, charge, str(charged.adjacency))
        return Reservation(self.append("reserve", run, data, totals).number, run, charge)

    def record(self, start: Start, schedule: Schedule) -> int:
        """Charge releases as a new run that is finished, and return its number (Rule 7)."""
        data, totals = registered(self, start)
        # Releases about a part have no plan: each has to fit.
        admitted = start.plan is not None or start.over_budget
        run = self.append("run", totals[0].runs, data, totals).run
        for kind, count in schedule:
            event = Event(kind)
            for _ in range(count):
                reservation = self.reserve(run, event, over_budget=admitted)
                if reservation is None:
                    self.mixture.check_promises(self.state.charged, 1 * kind)
                    raise part_refused(self, start.part, kind)
                self.commit(reservation, {})
        self.finish(run)
        return run

    def commit(self, reservation: Reservation, details: dict[str, Any]) -> RunState:
        """Release a round (Rules 4 and 6), and return the totals of its run."""
        number, run, charge = reservation
        state, plan = self._unsettled(reservation), self.plan(run)
        if charge.slot is not None and plan and plan.keeps_order:
            later: set[int | None] = set()
            for entry, closes in self.entries(number):
                if entry.kind == "reserve" and entry.run == run:
                    later.add(entry.number)
                elif entry.kind == "commit" and closes in later:
                    raise LedgerError(
                        f"{self.path}: round {closes}, a later one of the same plan, was released "
                        f"before round {number}, and the plan is charged by a game with one "
                        "order: nothing of this round may be released. It counts as spent."
                    )
        totals = rules.committed(self.state, state)
        data = {"round": number} | ({"details": details} if details else {})
        self.append("commit", run, data, totals, number)
        return totals[1]

    def abandon(self, reservation: Reservation, reason: str) -> None:
        """Take back a round for which nothing was drawn. It stays visible."""
        number, run, charge = reservation
        totals = rules.abandoned(self.state, self._unsettled(reservation), charge)
        self.append("abandon", run, {"round": number, "reason": reason}, totals, number)

    def take_row(self, run: int) -> int:
        """Take the next row of correlated noise for a run, and return its number, from 1."""
        state, row = self.open_run(run), self.latest_row(run) + 1
        self.append("row", run, {"row": row}, (self.state, state))
        return row

    def finish(self, run: int, room: PlanRoom | None = None) -> None:
        """End a run. ``room`` is the new division of delta, if it changes."""
        totals = rules.finished(self.state, self.open_run(run), room or self.state)
        self.append("finish", run, {}, totals)

    def _unsettled(self, reservation: Reservation) -> RunState:
        """Return the totals of the run of a round that is not settled (Rule 6)."""
        if self.read(lambda rows: rows.is_closed(reservation.number)):
            raise LedgerError(
                f"{self.path}: round {reservation.number} was committed or abandoned before."
            )
        return self.run_state(reservation.run)


class LedgerFile:
    """An open file with its unchanging facts, shared by `Ledger`, `Run` and `Ticket`."""

    def __init__(self, store: Store, *, read_only: bool) -> None:
        self.store = store
        self.path = store.path
        self.note = ""
        store.head()
        first = store.read(lambda rows: rows.entry(1))
        with naming(self.path, first):
            opening = chain.read(first)
            if not isinstance(opening, Opening):
                raise LedgerError("a ledger begins with its budget")
        self.known = Known(opening)
        if any(missing := self.now().check_runs()):
            self.note = (
                f"dpacct 0.3 charged a run of {self.path} to a part of the data that it does not "
                f"use, and so too little. All readings count it whole from now on."
            )
            self.known.missing = missing
            if not read_only:
                self.known.missing = ()
                store.write(self._recount)

    def now(self) -> Snapshot:
        """Return the ledger as of its latest entry."""
        return Snapshot(self.store, self.store.head(), self.known)

    def prepare(self, kinds: Iterable[Release]) -> None:
        """Compute, and keep, what the admission of releases needs. The file is not locked yet.

        A round of a new kind takes milliseconds. The epsilon of the initial plans, beside which
        pure releases are added, may take seconds.
        """
        mixture = self.known.opening.mixture
        costs = [mixture.cost(kind) for kind in kinds]
        if any(mixture.largest_loss(cost) is not None for cost in costs):
            now = self.now()
            now.admission_epsilon(now.state.charged)

    def tried(self, action: Callable[[Transaction], T]) -> T:
        """Return the result of ``action`` on a copy in memory. The file is only read."""
        with closing(self.store.read(lambda rows: rows.in_memory())) as memory:
            return action(Transaction(StoredEntries(self.path, memory), self.known))

    def write(self, action: Callable[[Transaction], T]) -> T:
        """Return the result of ``action``. The entries that it appends are on disk then."""
        return self.store.write(lambda rows: action(Transaction(rows, self.known)))

    def write_computed(self, compute: Callable[[Snapshot], Callable[[Transaction], T]]) -> T:
        """Return the result of an action that takes long to compute, which needs no lock.

        It is computed again if another process wrote in between.
        """
        while True:
            now = self.now()
            action = compute(now)

            def unless_changed(opened: Transaction) -> tuple[T] | None:
                return (action(opened),) if opened.head == now.head else None  # noqa: B023

            if done := self.write(unless_changed):
                return done[0]

    def _recount(self, rows: StoredEntries) -> None:
        opened = Transaction(rows, self.known)
        if any(missing := opened.check_runs()):
            state = replace(opened.state, spent=add(opened.state.spent, missing))
            opened.append("recount", 0, {}, (state, None))
            # Earlier programs do not know this kind of entry.
            rows.bring_up_to_date()


def exceeds(now: Snapshot, state: RunState, cost: Totals) -> bool:
    """Return whether a round outside a plan exceeds the budget. Its run then holds nothing."""
    return not now.fits(add(subtract(now.state.charged, state.held), cost))


def registered(now: Snapshot, start: Start) -> tuple[dict[str, Any], States]:
    """Return the entry of a new run and the totals behind it, if its plan fits."""
    ledger, mixture = now.state, now.mixture
    adjacency = ledger.adjacency
    data: dict[str, Any] = {
        "name": start.name,
        "plan": None,
        "private": start.private,
        "details": start.details,
    } | {key: value for key in ("over_budget", "project", "part") if (value := getattr(start, key))}
    cost, room = None, ledger
    if start.plan is not None:
        plan = Plan(
            events.schedule_in_adjacency(start.plan.schedule, adjacency), start.plan.accountant
        )
        adjacency = str(plan.schedule.adjacency)
        data["plan"] = events.schedule_to_json(plan.schedule)
        if plan.accountant != PAIRS:
            data["accountant"] = plan.accountant
        cost = schedule_cost(mixture, plan.schedule)
        if ledger.started:
            fits = now.fits(add(ledger.charged, cost))
        else:
            others = now.initial_plans(unfinished=True).values()
            room = plan_room(mixture, now.budget, [*others, plan])
            fits, cost = room.fits, mixture.within_plans(cost)
        if not fits:
            mixture.check_promises(ledger.charged, plan.schedule)
            raise plan_refused(now, plan, cost)
    return data, rules.started_run(ledger, cost, adjacency, room, private=start.private)


# The errors for a round or a plan that does not fit. Each states the reading that
# `dpacct ledger show` prints first, which holds for every rule of stopping. If another bound
# decides, it gives that bound and the reason. Runs that hold room for planned rounds are named,
# with the ways to free it.


def above(value: float | None) -> str:
    """Return a proven bound for display, rounded up."""
    return "none (infinite)" if value is None else trimmed(up(value))


def plan_refused(now: Snapshot, plan: Plan, cost: Totals) -> BudgetExceeded:
    """Return the error for a plan, with its Renyi total, that does not fit."""
    budget, ledger, mixture = now.budget, now.state, now.mixture
    what = f"the plan of {count_of(plan.rounds, 'round')} does not fit"
    if ledger.started:
        fewer, kinds = "", list(plan.schedule.distinct())
        if len(kinds) == 1:
            each = mixture.cost(kinds[0])
            most = count_fitting(now.fits, ledger.charged, each)
            fewer = f" What fits: {most} such rounds." if most else " Not one such round fits."
        return _exceeded(now, what, cost, mixture.zero(), fewer)
    alone = proven_epsilon(plan, budget.delta, budget.epsilon)
    way = "dpacct.calibrate finds the noise with which it fits."
    if plan.accountant == PAIRS != accountant_of(plan.schedule, TIGHT):
        # What calibrate finds fits by the game alone.
        way = (
            'With accountant="tight" (--accountant tight) you state that no client remembers '
            "whether it took part. Cohorts of fixed size are then charged as calibrate does."
        )
    others = " with the plans that were registered before" if any(ledger.held) else ""
    return BudgetExceeded(
        f"{what}{others}: alone it needs epsilon {above(alone)} of {_budget(now)}, and "
        f"{_reading(now)}. {way}"
        f"{_ways_out(now, enough=alone <= budget.epsilon)}"
    )


def round_refused(now: Snapshot, run: int, round_: Release) -> BudgetExceeded:
    """Return the error for a round of a run that does not fit."""
    way = " More noise or a lower rate may fit: `dpacct ledger remaining` counts such rounds."
    own, cost = now.run_state(run).held, now.mixture.cost(round_)
    return _exceeded(now, "the round does not fit", cost, own, way)


def part_refused(now: Snapshot, part: str, item: Release) -> BudgetExceeded:
    """Return the error for a release about a part of the data that does not fit."""
    return BudgetExceeded(
        f"the release {item!r} about {part} does not fit: with all releases about this part, the "
        f"adaptive bound would exceed epsilon {_budget(now)}. The largest part of each partition "
        "counts."
    )


def _exceeded(now: Snapshot, what: str, cost: Totals, own: Totals, fits: str) -> BudgetExceeded:
    """Return the error for a round or a plan that the adaptive bound rejects.

    ``cost`` is its Renyi total, and ``own`` the room that its run gives up. ``fits``: what fits.
    """
    ledger, budget = now.state, now.budget
    base = subtract(ledger.charged, own)
    pure = ledger.plan_delta and now.mixture.largest_loss(add(base, cost), beside_plans=True)

    def epsilon(totals: Totals) -> float:
        # Beside a plan, the epsilon of a pure release may be added.
        return now.admission_epsilon(totals) if pure else now.mixture.epsilon(totals, ledger.delta)

    before, after = above(epsilon(base)), above(epsilon(add(base, cost)))
    why = f" With it, it would read {after}."
    if before != above(now.any_stop()):
        held = ", with the room held for plans," if any(subtract(ledger.held, own)) else ""
        why = (
            " What is chosen after rounds have run may depend on them, and is charged by the "
            f"adaptive bound. That{held} is epsilon {before} now and would be {after} with it."
        )
        if pure:
            why = (
                " What is chosen after rounds have run may depend on them. So delta is divided "
                f"between the plans and the rest. Then epsilon is {before}, and would be {after} "
                "with it."
            )
    if ledger.plan_delta and not pure:
        left = budget.delta - ledger.plan_delta
        why += (
            f" Both are at delta {left:.2g}: the earlier plans use the rest of the budget's delta. "
            "Rounds with at least a plan's noise and at most its rate still run."
        )
    enough = epsilon(add(ledger.spent, cost)) <= budget.epsilon
    return BudgetExceeded(f"{what}: {_reading(now)}.{why}{fits}{_ways_out(now, enough=enough)}")


def _budget(now: Snapshot) -> str:
    return f"{now.budget.epsilon:.7g} at delta {chosen(now.budget.delta)}"


def _reading(now: Snapshot) -> str:
    return f"the ledger reads epsilon {above(now.any_stop())} of {_budget(now)} now"


def _ways_out(now: Snapshot, *, enough: bool) -> str:
    """Return the runs that hold room, and two ways out. ``enough``: they would help."""
    holders = [run for run in now.runs() if any(now.run_state(run).held)]
    if not holders:
        return ""
    named = [
        f"run {run} ({line(now.start(run).name)!r}, "
        f"{plan.rounds - now.run_state(run).cursor} rounds)"
        for run in holders
        if (plan := now.plan(run)) is not None
    ]
    if len(named) > _NAMED:
        named[_NAMED:] = [f"{len(named) - _NAMED} more"]
    file = shlex.quote(str(now.path))
    less = "" if enough else ", which would not be enough here"
    return (
        f" Room for rounds to come is held by {', '.join(named)}: "
        f"`dpacct ledger finish {file} --run {holders[0]}` frees it{less}, and "
        f"`dpacct train --resume --ledger {file}` goes on with it."
    )
