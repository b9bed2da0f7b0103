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
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from dpacct.display import chosen, line, trimmed, up
from dpacct.errors import BudgetExceeded, InvalidParameter, LedgerError
from dpacct.ledger.disk.rows import SCHEMA_VERSION, Rows
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
    Plan,
    PlanRoom,
    plan_room,
    proven_epsilon,
    schedule_cost,
)
from dpacct.ledger.record.state import Charge, RunState, States
from dpacct.pairs.dominating import has_renyi, infinite_mass
from dpacct.renyi.odometer import Totals, add, count_fitting, subtract
from dpacct.rounds import Adjacency, Schedule
from dpacct.rounds import Release as ScheduleItem

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

    def __init__(self, rows: Rows, known: Known) -> None:
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
        if not admitted:
            check_promises(self, schedule)
        run = self.append("run", totals[0].runs, data, totals).run
        for kind, count in schedule:
            event = Event(kind)
            for _ in range(count):
                reservation = self.reserve(run, event, over_budget=admitted)
                if reservation is None:
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
        self.known = Known(opening, relabelled=store.read(Rows.relabelled))
        if not self.known.relabelled and self._to_relabel():
            self.known.relabelled = True
            self.note = (
                f"dpacct 0.2 charged training to {self.path} as add-remove, although its releases "
                f"also showed how many clients there are. All its rounds are zero-out from now on, "
                f"at the same epsilon."
            )
        self.now().check_runs()
        if not read_only and store.read(Rows.version) < SCHEMA_VERSION:
            store.write(self._bring_up_to_date)

    def now(self) -> Snapshot:
        """Return the ledger as of its latest entry."""
        return Snapshot(self.store, self.store.head(), self.known)

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

    def _to_relabel(self) -> bool:
        """Return whether training by version 0.2 charged rounds as add-remove."""
        store = self.store
        if store.read(Rows.version) >= SCHEMA_VERSION or not store.read(Rows.trained):
            return False
        now = self.now()
        if now.state.adjacency != Adjacency.ADD_REMOVE:
            return False
        for entry, _ in now.entries():
            said = now.said(entry)
            try:
                chain.as_zero_out(said)
            except InvalidParameter:
                raise LedgerError(
                    f"{self.path}: training by dpacct 0.2 is only zero-out, and entry "
                    f"{entry.number} has cohorts of fixed size under add-remove: both together "
                    f"have no adjacency. Charge what `dpacct ledger export` of version 0.2 lists "
                    f"to two new ledgers."
                ) from None
        return True

    def _bring_up_to_date(self, rows: Rows) -> None:
        opened = Transaction(rows, self.known)
        if self.note and not rows.relabelled():
            state = rules.relabelled(opened.state)
            opened.append("relabel", 0, {"adjacency": state.adjacency}, (state, None))
        rows.bring_up_to_date()


def exceeds(now: Snapshot, state: RunState, cost: Totals) -> bool:
    """Return whether a round outside a plan exceeds the budget. Its run then holds nothing."""
    after = add(subtract(now.state.charged, state.held), cost)
    return now.mixture.epsilon(after, now.state.delta) > now.budget.epsilon


def check_promises(now: Snapshot, asked: Schedule) -> None:
    """Check that infinite losses fit into the part of delta that is set aside for them.

    Raises:
        BudgetExceeded: they do not.
    """
    # The rounding of an epoch's law may leave an infinite loss, which its divergences cover.
    mass = infinite_mass(Schedule(phase for phase in asked if not has_renyi(phase.round)))
    if not mass:
        return
    promised = now.mixture.promised_delta
    left = now.mixture.promises_left(now.state.charged)
    if mass > left * (1 + 1e-9):
        aside = f"only {max(0.0, left):.4g} of {promised:.4g} is left" if promised else "none is"
        raise BudgetExceeded(
            f"the release does not fit: its loss may be infinite with probability {mass:.4g}. Such "
            f"probabilities add up, in the part of delta that is set aside for them before "
            f"anything runs, and {aside}. Make ledgers with promised_delta= (--promised-delta)."
        )


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
        check_promises(now, plan.schedule)
        if ledger.started:
            after = mixture.epsilon(add(ledger.charged, cost), ledger.delta)
            fits = after <= now.budget.epsilon
        else:
            others = now.initial_plans(unfinished=True).values()
            room = plan_room(mixture, now.budget, [*others, plan])
            fits = room.fits
        if not fits:
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
    what = f"the plan of {plan.rounds} rounds does not fit"
    if ledger.started:
        fewer, kinds = "", list(plan.schedule.distinct())
        if len(kinds) == 1:
            each = mixture.cost(kinds[0])
            most = count_fitting(mixture, ledger.charged, each, budget, ledger.delta)
            fewer = f" What fits: {most} such rounds." if most else " Not one such round fits."
        return _exceeded(now, what, cost, mixture.zero(), fewer)
    alone = proven_epsilon(plan, budget.delta, budget.epsilon)
    others = " with the plans that were registered before" if any(ledger.held) else ""
    return BudgetExceeded(
        f"{what}{others}: alone it needs epsilon {above(alone)} of {_budget(now)}, and "
        f"{_reading(now)}. dpacct.calibrate finds the noise with which it fits."
        f"{_ways_out(now, enough=alone <= budget.epsilon)}"
    )


def round_refused(now: Snapshot, run: int, round_: ScheduleItem) -> BudgetExceeded:
    """Return the error for a round of a run that does not fit."""
    way = " More noise or a lower rate may fit: `dpacct ledger remaining` counts such rounds."
    own, cost = now.run_state(run).held, now.mixture.cost(round_)
    return _exceeded(now, "the round does not fit", cost, own, way)


def part_refused(now: Snapshot, part: str, item: ScheduleItem) -> BudgetExceeded:
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

    def epsilon(totals: Totals) -> float:
        return now.mixture.epsilon(totals, ledger.delta)

    base = subtract(ledger.charged, own)
    before, after = above(epsilon(base)), above(epsilon(add(base, cost)))
    why = f" With it, it would read {after}."
    if before != above(now.any_stop()):
        held = ", with the room held for plans," if any(subtract(ledger.held, own)) else ""
        why = (
            " What is chosen after rounds have run may depend on them, and is charged by the "
            f"adaptive bound. That{held} is epsilon {before} now and would be {after} with it."
        )
    if ledger.plan_delta:
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
