"""Writing to a ledger: the life of its runs and rounds, each step in one transaction.

Rule 1: a round is reserved before data is touched, committed before its noisy value leaves.
Rule 2: a reserved round counts as spent until it is abandoned, even if its process dies.
Rule 3: a round that its run's plan covers was admitted with the plan. Any other round is admitted
only while the adaptive bound, with all that is held for plans, stays within the budget.
Rule 4: if the charge of a plan depends on the order of its rounds, they are released in it.
Rule 5: a check and the entry that it admits are one transaction: two processes never share room.
Rule 6: a reserved round is committed at most once, by one process.
Rule 7: rounds that ran elsewhere are recorded together or not at all, by one entry. Rounds
that do not fit are recorded only if the caller declares that they ran. They are outside any plan,
the ledger then reads more than its budget, and no further round fits.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
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
from dpacct.ledger.record.entries import Entry, Kind, Opening, Reserve, Start
from dpacct.ledger.record.events import Event
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
from dpacct.rounds import Release, Schedule, as_schedule

T = TypeVar("T")
# Runs that hold room which an error names.
_NAMED = 3
# Kinds of rounds among which one is looked for. Another entry of the same kind harms nothing.
_REMEMBERED, _MOST_REMEMBERED = 256, 4096


class Reservation(NamedTuple):
    """A round that is on disk: the number of its entry, its run, its charge, and its place."""

    number: int
    run: int
    charge: Charge
    place: int = 0  # among the rounds of the entry, from 0

    @property
    def closes(self) -> int:
        """What settles it."""
        return rules.settled_by(self.number, self.place)


class Transaction(Snapshot):
    """A ledger while it is written to: as of the latest entry, which may be one of this block.

    ``tried``: nothing is written, and it only seems to be.
    """

    def __init__(self, rows: StoredEntries, known: Known, *, tried: bool = False) -> None:
        super().__init__(rows, rows, known.apart())
        self._rows, rows.aside = rows, self.aside
        self._tried = tried
        self._states = dict(self._states)

    def append(
        self, kind: str, run: int, data: dict[str, Any], totals: States, closes: int | None = None
    ) -> Entry:
        """Write the entry that follows the latest one, with the totals behind it."""
        ledger, state = totals
        number, earlier = self.head.number + 1, self._states.get(run)
        latest = number - (earlier[0] if earlier else 0) if run else 0
        self.state = ledger._replace(latest=ledger.latest + latest)
        self._states[run] = number, self.state, state or self._states[0][2]
        return self._add(kind, run, data, rules.state_text(self.state, state), closes)

    def teach(self, known: Known) -> None:
        """Keep what is true once all of it is on disk."""
        own = self.known
        known.starts, known.kinds, known.numbers = own.starts, own.kinds, own.numbers
        known.states, known.seen, known.replay = self._states, self.head.number, None

    def _add(
        self, kind: str, run: int, data: dict[str, Any], totals: str | None = None,
        closes: int | None = None,
    ) -> Entry:  # fmt: skip
        self.head = chain.new_entry(self.head, kind, run, data, totals, closes)
        if not self._tried:
            self._rows.add(self.head, totals)
        return self.head

    def open_run(self, run: int) -> RunState:
        """Return the totals of a run that is not finished."""
        state = self.run_state(run)
        if state.finished:
            raise LedgerError(f"{self.path}: run {run} is finished. Start another run.")
        return state

    def reserve(self, run: int, event: Event, ahead: int = 1) -> list[Reservation]:
        """Charge a round, or return nothing if it does not fit (Rule 3).

        ``ahead``: charge up to so many equal rounds of the plan at once.
        """
        state, plan = self.open_run(run), self.plan(run)
        charged = events.in_adjacency(event.charged, self.state.adjacency)
        slot = plan.covering(charged, state.cursor) if plan and state.on_plan else None
        # A plan does not get the round back that a cheaper one took.
        exact = plan is not None and slot is not None and plan.round_at(slot) == charged
        count = (
            min(ahead, plan.alike(state.cursor)) if plan and exact and slot == state.cursor else 1
        )
        noise = event.noise_multiplier if event.releases else None
        kind = Kind(charged, noise, event.releases, self.mixture.cost(charged))
        charge = rules.charge_of(self.mixture, plan, state, kind, 0, slot, count)
        if slot is None and exceeds(self, state, charge.cost):
            return []
        charge = charge._replace(kind=self._number_of(kind))
        data: dict[str, Any] = {"k": charge.kind}
        data |= {"s": slot} if state.on_plan else {}
        data |= {"n": count} if count > 1 else {}
        implied = rules.as_said(self.mixture, state, kind, Reserve(0, slot, count=count), slot)
        # Of several rounds both are said, so that `give_back` knows them.
        several, same = count > 1, (charge.cost == implied.cost, charge.freed == implied.freed)
        data |= {"cost": charge.cost} if several or not same[0] else {}
        data |= {"freed": charge.freed} if several or not same[1] else {}
        data |= {"details": dict(event.details)} if event.details else {}
        number = self.head.number + 1
        totals = rules.reserved(self.state, state, charge, str(charged.adjacency), number)
        self.append("reserve", run, data, totals)
        return [Reservation(number, run, charge.one(n), n) for n in range(count)]

    def _number_of(self, kind: Kind) -> int:
        """Return the number of an entry that describes a kind of round, a new one if need be.

        An earlier one counts only if it has just the cost that is computed here.
        """
        numbers = self.known.numbers
        if not 0 < len(numbers) < _MOST_REMEMBERED:
            numbers.clear()
            for number in self.read(lambda rows: rows.latest_kinds(_REMEMBERED)):
                numbers[self.kind(number)] = number
        if kind not in numbers:
            numbers[kind] = self._add("kind", 0, chain.kind_to_json(kind)).number
            self.known.kinds[numbers[kind]] = kind
        return numbers[kind]

    def record(self, start: Start) -> int:
        """Charge releases at once as a new run that is finished, and return its number (Rule 7)."""
        shared = None
        if start.plan is not None:
            start = admitted(self, start)
        elif start.rounds is not None:
            schedule = events.schedule_in_adjacency(start.rounds, self.state.adjacency)
            start = replace(start, rounds=schedule, cost=schedule_cost(self.mixture, schedule))
            if start.part:
                shared = self.part_totals().charge(start.part, start.cost)
            cost = start.cost if shared is None else shared
            if not start.over_budget and not self.fits(add(self.state.charged, cost)):
                self.mixture.check_promises(self.state.charged, schedule)
                raise part_refused(self, start.part, schedule.phases[0].round)
        return self.register(start, shared)

    def register(self, start: Start, shared: Totals | None = None) -> int:
        """Begin a run, or charge it at once, and return its number."""
        totals = rules.started_run(self.state, start, shared)
        run, kind = totals[0].runs, "run" if start.rounds is None else "charge"
        self.known.starts[run] = start
        return self.append(kind, run, chain.start_to_json(start), totals).run

    def commit(self, reservation: Reservation, details: dict[str, Any]) -> RunState:
        """Release a round (Rules 4 and 6), and return the totals of its run."""
        charge = reservation.charge
        state, plan = self._unsettled(reservation), self.plan(reservation.run)
        if charge.slot is not None and plan and plan.keeps_order and charge.slot < state.through:
            raise LedgerError(
                f"{self.path}: a later round of the same plan was released before round "
                f"{reservation.number}, and the plan is charged by a game with one order: nothing "
                "of this round may be released. It counts as spent."
            )
        totals = rules.committed(self.state, state, charge, self.kind)
        data = {"details": details} if details else {}
        self.append("commit", reservation.run, data, totals, reservation.closes)
        return self.run_state(reservation.run)

    def abandon(self, reservation: Reservation, reason: str) -> None:
        """Take back a round for which nothing was drawn. It stays visible."""
        totals = rules.abandoned(self.state, self._unsettled(reservation), reservation.charge)
        self.append("abandon", reservation.run, {"reason": reason}, totals, reservation.closes)

    def give_back_ahead(self, run: int) -> None:
        """Give back the rounds that an earlier process had reserved ahead of the one it was in.

        A process draws one at a time of the rounds of an entry, in their order. So of those that
        are open the first may have been drawn, and stays spent. For the others nothing was.
        """
        number = self.run_state(run).latest
        said = chain.read(self.entry(number)) if number else None
        if not isinstance(said, Reserve) or not (said.cost and said.freed):
            return
        whole = Charge(said.cost, said.slot, said.freed, rounds=said.count, kind=said.kind)
        places = [Reservation(number, run, whole.one(n), n) for n in range(said.count)]
        open_ = [place for place in places if not self.is_settled(place)]
        for reservation in reversed(open_[1:]):
            self.abandon(reservation, "reserved ahead by a process that ended")

    def take_row(self, run: int) -> int:
        """Take the next row of correlated noise for a run, and return its number, from 1."""
        state = self.open_run(run)
        state = state._replace(row=state.row + 1)
        self.append("row", run, {}, (self.state, state))
        return state.row

    def finish(self, run: int, room: PlanRoom | None = None) -> None:
        """End a run. ``room`` is the new division of delta, if it changes."""
        totals = rules.finished(self.state, self.open_run(run), room)
        self.append("finish", run, chain.room_to_json(room), totals)

    def is_settled(self, reservation: Reservation) -> bool:
        """Return whether a round was committed or abandoned."""
        return self.read(lambda rows: rows.is_closed(reservation.closes))

    def _unsettled(self, reservation: Reservation) -> RunState:
        """Return the totals of the run of a round that is not settled (Rule 6)."""
        if self.is_settled(reservation):
            raise LedgerError(
                f"{self.path}: round {reservation.number} was committed or abandoned before."
            )
        return self.run_state(reservation.run)


class LedgerFile:
    """An open file with its unchanging facts, shared by `Ledger`, `Run` and `Ticket`."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.path = store.path
        self.note = ""
        # What gives back rounds that are reserved ahead and not taken, before the file is closed.
        self.give_back: set[Callable[[], None]] = set()
        first = store.read(lambda rows: rows.entry(1))
        with naming(self.path, first):
            opening = chain.read(first)
            if not isinstance(opening, Opening):
                raise LedgerError("a ledger begins with its budget")
        self.known = Known(opening)
        self.now().check_runs()
        replay = self.known.replay
        if replay is not None and replay.low_from:
            self.note = (
                f"dpacct 0.3 charged a run of {self.path} to a part of the data that it does not "
                f"use, and so too little. All readings count it whole from now on."
            )

    def now(self) -> Snapshot:
        """Return the ledger as of its latest entry."""
        return self.store.read(lambda rows: Snapshot(self.store, rows, self.known))

    def prepare(self, releases: Release | Schedule) -> None:
        """Compute, and keep, what the admission of releases needs. The file is not locked yet.

        A round of a new kind takes milliseconds. The epsilon of the initial plans, beside which
        pure releases are added, may take seconds.
        """
        mixture = self.known.opening.mixture
        cost = schedule_cost(mixture, as_schedule(releases))
        if mixture.largest_loss(cost) is not None:
            now = self.now()
            now.admission_epsilon(now.state.charged)

    def tried(self, action: Callable[[Transaction], T]) -> T:
        """Return the result of ``action``, of which nothing is written."""
        return self.store.read(lambda rows: action(Transaction(rows, self.known, tried=True)))

    def write(self, action: Callable[[Transaction], T]) -> T:
        """Return the result of ``action``. The entries that it appends are on disk then."""

        def transaction(rows: StoredEntries) -> tuple[Transaction, T]:
            if rows.old:
                self._go_on(rows)
            opened = Transaction(rows, self.known)
            return opened, action(opened)

        opened, found = self.store.write(transaction)
        # It is on disk: what it has learned stays true.
        opened.teach(self.known)
        return found

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

    def _go_on(self, rows: StoredEntries) -> None:
        """Bring a file of version 0.3 into the present form, for all entries from now on."""
        opened = Transaction(rows, self.known)
        rows.bring_up_to_date()
        digests: dict[str, str] = {}
        for run in opened.runs():
            number, ledger, state = opened.latest_of(run)
            text = rules.state_text(ledger, state)
            rows.put_totals(number, run, text)
            digests[str(run)] = chain.digest_of(text)
        opened.append("recount", 0, {"runs": digests}, (opened.state, None))


def exceeds(now: Snapshot, state: RunState, cost: Totals) -> bool:
    """Return whether a round outside a plan exceeds the budget. Its run then holds nothing."""
    return not now.fits(add(subtract(now.state.charged, state.held), cost))


def admitted(now: Snapshot, start: Start) -> Start:
    """Return a run as its entry states it, if its plan fits."""
    ledger, mixture, plan = now.state, now.mixture, start.plan
    if plan is None:
        return start
    schedule = events.schedule_in_adjacency(plan.schedule, ledger.adjacency)
    plan = Plan(schedule, plan.accountant)
    cost, room = schedule_cost(mixture, schedule), None
    if ledger.started:
        fits = now.fits(add(ledger.charged, cost))
    else:
        others = now.initial_plans(unfinished=True).values()
        room = plan_room(mixture, now.budget, [*others, plan])
        fits, cost = room.fits, mixture.within_plans(cost)
    if not fits:
        mixture.check_promises(ledger.charged, schedule)
        raise plan_refused(now, plan, cost)
    rounds = None if start.rounds is None else schedule
    return replace(start, plan=plan, rounds=rounds, cost=cost, room=room)


# The errors for a round or a plan that does not fit. The ways out come first. Then each states the
# reading that `dpacct ledger show` prints first, which holds for every rule of stopping. If another
# bound decides, it gives that bound and the reason. Runs that hold room for planned rounds are
# named, with the ways to free it.


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
            fewer = f" What fits: {most} such rounds." if most else " Not a single such round fits."
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
        f"{what}{others}. {way}{_ways_out(now, enough=alone <= budget.epsilon)} Why: alone it "
        f"needs epsilon {above(alone)} of {_budget(now)}, and {_reading(now)}."
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
        held = ", with the budget held for plans" if any(subtract(ledger.held, own)) else ""
        why = (
            " A charge after rounds have run may depend on them, so it is charged by the "
            f"adaptive bound{held}: epsilon {before} now, {after} with this charge."
        )
        if pure:
            why = (
                " A charge after rounds have run may depend on them, so delta is divided "
                f"between the plans and other charges: epsilon {before} now, {after} with this "
                "charge."
            )
    if ledger.plan_delta and not pure:
        left = budget.delta - ledger.plan_delta
        why += (
            f" Both are at delta {left:.2g}, because the registered plans hold the rest of the "
            "budget's delta. The rounds of these plans can still run."
        )
    enough = epsilon(add(ledger.spent, cost)) <= budget.epsilon
    ways = _ways_out(now, enough=enough)
    return BudgetExceeded(f"{what}.{fits}{ways} Why: {_reading(now)}.{why}")


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
        f" Budget for planned rounds is held by {', '.join(named)}: "
        f"`dpacct ledger finish {file} --run {holders[0]}` frees it{less}, and "
        f"`dpacct train --resume --ledger {file}` (in Python: `resume()`) continues the run."
    )
