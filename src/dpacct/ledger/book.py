"""Writing to a ledger: the life of its runs and rounds, each step one transaction.

Rule 1: a round is reserved before data is touched, committed before its noisy value leaves.
Rule 2: a reserved round counts as spent until it is abandoned, whatever becomes of the process.
Rule 3: a round that its run's plan covers was admitted with the plan; any other round is admitted
only while the adaptive bound, with all that is held for plans, stays within the budget.
Rule 4: where the charge of a plan depends on the order of its rounds, they are released in it.
Rule 5: admission and what it admits are one transaction: two processes never share the same room.
Rule 6: a round that is reserved is committed at most once, by whichever process.
Rule 7: rounds that ran elsewhere are recorded together or not at all, each with its entries. If
they do not fit, they are recorded only if it is said that they have happened: outside any plan,
the ledger then reads more than its budget, and no further round fits.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from typing import Any, NamedTuple, TypeVar

from dpacct import validate
from dpacct.budget import Budget
from dpacct.errors import BudgetExceeded, InvalidParameter, LedgerError
from dpacct.ledger.disk.place import Place
from dpacct.ledger.disk.rows import SCHEMA_VERSION, Rows
from dpacct.ledger.disk.store import Store, make_file
from dpacct.ledger.readings import Known, Snapshot
from dpacct.ledger.record.admission import admit_plan, refuse_round
from dpacct.ledger.record.entries import (
    PAIRS,
    Entry,
    LedgerState,
    Reserve,
    RunState,
    Start,
    new_entry,
    read_opening,
    state_to_json,
)
from dpacct.ledger.record.events import (
    Event,
    event_to_json,
    in_adjacency,
    round_to_json,
    schedule_in_adjacency,
    schedule_to_json,
)
from dpacct.ledger.record.plans import Charged, accountant_of, plan_room, schedule_cost
from dpacct.ledger.record.state import (
    Charge,
    abandoned,
    charge_of,
    committed,
    empty_ledger,
    finished,
    relabelled,
    reserved,
    started_run,
)
from dpacct.renyi.odometer import Totals, add, design_mixture, subtract
from dpacct.rounds import Adjacency, Round, Schedule, Uniform

MOST_ELSEWHERE = 100_000
T = TypeVar("T")


class Reservation(NamedTuple):
    """A round that is on disk: the number of its entry, its run, and what was charged."""

    number: int
    run: int
    charge: Charge


class Transaction(Snapshot):
    """A ledger while it is written to: as of the latest entry, which may be one of this block."""

    def __init__(self, rows: Rows, known: Known) -> None:
        super().__init__(rows.path, lambda action: action(rows), rows.head(), known)
        self._rows = rows

    def append(
        self,
        kind: str,
        run: int,
        data: dict[str, Any],
        totals: tuple[LedgerState, RunState | None],
        closes: int | None = None,
    ) -> Entry:
        """Write the entry that follows the latest one, with the totals behind it."""
        self.head = new_entry(self.head, kind, run, data, state_to_json(*totals))
        self._rows.add(self.head, closes)
        self.state, state = totals
        if state is not None:
            self._states[run] = self.state, state
        return self.head

    def of_run(self, run: int) -> RunState:
        """Return the totals of a run, which are at most those of all runs."""
        state = self.run_state(run)
        if not state.within(self.state):
            raise LedgerError(
                f"{self.path}: run {run} has spent more than all runs; the ledger is damaged."
            )
        return state

    def open_run(self, run: int) -> RunState:
        """Return `of_run` of a run that is not finished."""
        state = self.of_run(run)
        if state.finished:
            raise LedgerError(f"{self.path}: run {run} is finished; start another one.")
        return state


def create(
    place: Place, budget: Budget, adjacency: str, unit: str, typical: Round | Schedule | None
) -> None:
    """Make the file, if no other process does at the same time; its first entry never changes.

    Args:
        place: where there is none yet.
        budget, adjacency, unit, typical: as for `Ledger.open`; the adjacency as text, or empty.
    """
    validate.line("unit", unit, "a unit of privacy")
    mixture = design_mixture(budget, typical)
    data: dict[str, Any] = {
        "budget": asdict(budget),
        "orders": list(mixture.orders),
        "weights": list(mixture.weights),
        "unit": unit,
        "software": software(),
    }
    state = state_to_json(empty_ledger(mixture.zero(), budget.delta, adjacency), None)
    make_file(place, new_entry(None, "ledger", 0, data, state))


def software() -> str:
    """Return the version that is installed."""
    # Takes as long to import as half of what a ledger needs.
    from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - as said

    try:
        return f"dpacct {version('dpacct')}"
    except PackageNotFoundError:
        return "dpacct, version unknown"


class Book:
    """An open ledger file with its rules; `Ledger` and `Run` are what users hold."""

    def __init__(self, store: Store, *, read_only: bool) -> None:
        self.store = store
        self.path = store.path
        store.head()
        try:
            self.known = Known(read_opening(store.read(lambda rows: rows.entry(1))))
        except LedgerError as error:
            raise LedgerError(f"{self.path}: entry 1: {error}.") from None
        self.budget, self.unit = self.known.opening.budget, self.known.opening.unit
        self.known.relabelled = store.read(Rows.relabelled)
        # Whether rounds of version 0.2 are read as zero-out, and the file did not say so yet.
        self.newly_relabelled = not self.known.relabelled and self._to_relabel()
        self.known.relabelled |= self.newly_relabelled
        self.now().check_runs()
        if not read_only and store.read(Rows.version) < SCHEMA_VERSION:
            store.write(self._bring_up_to_date)

    def now(self) -> Snapshot:
        """Return the ledger as of its latest entry."""
        return Snapshot.of(self.store, self.store.head(), self.known)

    def _write(self, action: Callable[[Transaction], T]) -> T:
        """Return what ``action`` returns; what it appends is on disk then."""

        def transaction(rows: Rows) -> tuple[T, Transaction]:
            opened = Transaction(rows, self.known)
            return action(opened), opened

        answer, done = self.store.write(transaction)
        state = done.run_state(done.head.run) if done.head.run else None
        self.known.latest = done.head, done.state, state
        return answer

    # A ledger of version 0.2

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
            plan = said.plan if isinstance(said, Start) and said.plan else Schedule()
            rounds = [said.charged] if isinstance(said, Reserve) else plan.distinct()
            if any(isinstance(round_.sampling, Uniform) for round_ in rounds):
                raise LedgerError(
                    f"{self.path}: training by dpacct 0.2 is only zero-out, and entry "
                    f"{entry.number} has cohorts of fixed size under add-remove: both together "
                    f"have no adjacency. Charge what `dpacct ledger export` of version 0.2 lists "
                    f"to two new ledgers."
                )
        return True

    def _bring_up_to_date(self, rows: Rows) -> None:
        opened = Transaction(rows, self.known)
        if self.newly_relabelled and not rows.relabelled():
            state = relabelled(opened.state)
            opened.append("relabel", 0, {"adjacency": state.adjacency}, (state, None))
        rows.bring_up_to_date()

    # Runs

    def start_run(self, start: Start) -> int:
        """Register a run and return its number; a plan is admitted as a whole or refused."""
        while True:
            # Takes long where a game is played, and the file stays open to others meanwhile.
            now = self.now()
            data, totals = _started(now, start)

            def append(opened: Transaction) -> int | None:
                if opened.head != now.head:  # noqa: B023 - used at once
                    # Another process wrote in between; what was computed is out of date.
                    return None
                return opened.append("run", totals[0].runs, data, totals).run  # noqa: B023

            number = self._write(append)
            if number is not None:
                return number

    def resume_run(self, run: int) -> None:
        """Note that another process goes on with a run."""
        self._write(
            lambda opened: opened.append("resume", run, {}, (opened.state, opened.open_run(run)))
        )

    def finish(self, run: int) -> None:
        """End a run; what was held for it is free again."""
        while True:
            now = self.now()
            room = None
            if now.run_state(run).initial and not now.state.started:
                # Delta is divided anew between the other initial plans.
                others = now.initial_plans(unfinished=True)
                others.pop(run, None)
                room = plan_room(now.mixture, now.budget, now.charged_plans(others))

            def append(opened: Transaction) -> Entry | None:
                state = opened.open_run(run)
                if opened.head != now.head:  # noqa: B023 - used at once
                    return None
                return opened.append("finish", run, {}, finished(opened.state, state, room))  # noqa: B023

            if self._write(append) is not None:
                return

    def record(self, start: Start, rounds: Schedule, *, over_budget: bool) -> int:
        """Charge rounds that ran elsewhere as a run of their own, finish it, return its number.

        Args:
            start: of the run, with the rounds as its plan.
            rounds: that ran, in their order.
            over_budget: record them whether the budget has room for them or not.
        """
        if rounds.rounds > MOST_ELSEWHERE:
            rule = f"one call records at most {MOST_ELSEWHERE} rounds, at about 2.8 kB each"
            raise InvalidParameter("rounds", rounds.rounds, rule, "Record more in several calls.")

        def write(opened: Transaction) -> int:
            try:
                data, totals = _started(opened, start)
            except BudgetExceeded:
                if not over_budget:
                    raise
                outside = Start(start.name, None, start.private, start.details, over_budget=True)
                data, totals = _started(opened, outside)
            run = opened.append("run", totals[0].runs, data, totals).run
            for round_, count in rounds:
                event = Event(round_)
                for _ in range(count):
                    reservation = _reserve(opened, run, event, over_budget=True)
                    if reservation is not None:
                        _commit(opened, reservation, {})
            state = opened.open_run(run)
            opened.append("finish", run, {}, finished(opened.state, state, None))
            return run

        return self._write(write)

    # Rounds

    def reserve(self, run: int, event: Event, asks: Callable[[RunState], None]) -> Reservation:
        """Charge a round and put it on disk.

        Args:
            run, event: what is charged, and to which run.
            asks: refuses the round, by an error, for what its run has spent before.
        """
        # Before the file is locked: a round of a new kind takes milliseconds.
        self.known.opening.mixture.cost(event.charged)

        def write(opened: Transaction) -> Reservation | None:
            asks(opened.open_run(run))
            return _reserve(opened, run, event)

        while (found := self._write(write)) is None:
            # Takes a while, and the file is open to others meanwhile, who may free some room.
            now = self.now()
            charged, state = in_adjacency(event.charged, now.state.adjacency), now.run_state(run)
            base = subtract(now.state.charged, state.held)
            if _too_much(now, state, now.mixture.cost(charged)):
                held = any(subtract(now.state.held, state.held))
                raise refuse_round(now.mixture, now.state, base, charged, now.standing(), held=held)
        return found

    def left_behind(self, run: int, event: Event) -> Reservation | None:
        """Return the latest round of a run, if it is this one and is not settled.

        Nothing of it was released, since a round is committed before that (Rule 1). Whoever takes
        it over may draw and release it anew: of those who do, one can commit (Rule 6). What it cost
        is not known, so that it cannot be abandoned.
        """
        now = self.now()
        number = 0
        for entry, _ in now.entries():
            if entry.kind == "reserve" and entry.run == run:
                number = entry.number
        if not number or now.read(lambda rows: rows.is_closed(number)):
            return None
        # Read again, for its hash.
        last = now.entry(number)
        said = now.said(last)
        if not isinstance(said, Reserve) or said.left:
            return None
        charged = in_adjacency(event.charged, now.state.adjacency)
        # As it is read back: a list for a tuple, say.
        ours = json.loads(json.dumps(event_to_json(event, charged)))
        theirs = last.content["data"] | {"charged": round_to_json(said.charged)}
        if ours | {"slot": said.slot, "left": False} != theirs:
            return None
        return Reservation(last.number, run, Charge((), said.slot))

    def commit(self, reservation: Reservation, details: dict[str, Any]) -> RunState:
        """Note that the round's noisy value may leave now, and return the totals of its run."""
        return self._write(lambda opened: _commit(opened, reservation, details))

    def abandon(self, reservation: Reservation, reason: str) -> None:
        """Take a round back for which nothing was drawn; it stays visible."""

        def write(opened: Transaction) -> None:
            state = _unsettled(opened, reservation)
            totals = abandoned(opened.state, state, reservation.charge)
            data = {"round": reservation.number, "reason": reason}
            opened.append("abandon", reservation.run, data, totals, reservation.number)

        self._write(write)


def _started(now: Snapshot, start: Start) -> tuple[dict[str, Any], tuple[LedgerState, RunState]]:
    """Return what the entry of a new run says, and the totals behind it; its plan is admitted."""
    ledger, mixture = now.state, now.mixture
    adjacency = ledger.adjacency
    data: dict[str, Any] = {
        "name": start.name,
        "plan": None,
        "private": start.private,
        "details": start.details,
    } | ({"over_budget": True} if start.over_budget else {})
    cost = room = None
    accountant = accountant_of(start.plan, start.accountant)
    if start.plan is not None:
        plan = schedule_in_adjacency(start.plan, adjacency)
        adjacency = str(plan.adjacency)
        data["plan"] = schedule_to_json(plan)
        if accountant != PAIRS:
            data["accountant"] = accountant
        asked = Charged(plan, accountant)
        cost = schedule_cost(mixture, plan)
        if not ledger.started:
            others = now.charged_plans(now.initial_plans(unfinished=True))
            room = plan_room(mixture, now.budget, [*others, asked])
        admit_plan(mixture, now.budget, ledger, asked, cost, room, now.standing)
    return data, started_run(ledger, cost, adjacency, room, private=start.private)


def _reserve(
    opened: Transaction, run: int, event: Event, *, over_budget: bool = False
) -> Reservation | None:
    """Charge a round; return None if it does not fit (Rule 3)."""
    ledger, mixture = opened.state, opened.mixture
    state, plan = opened.open_run(run), opened.plan(run)
    charged = in_adjacency(event.charged, ledger.adjacency)
    slot = plan.covering(charged, state.cursor) if plan and state.on_plan else None
    charge = charge_of(mixture, plan, state, charged, slot)
    if slot is None and not over_budget and _too_much(opened, state, charge.cost):
        return None
    data = event_to_json(event, charged)
    data |= {"slot": slot, "left": slot is None and state.on_plan}
    totals = reserved(ledger, state, charge, str(charged.adjacency))
    return Reservation(opened.append("reserve", run, data, totals).number, run, charge)


def _too_much(now: Snapshot, state: RunState, cost: Totals) -> bool:
    """Return whether a round outside a plan exceeds the budget; its run then holds nothing."""
    after = add(subtract(now.state.charged, state.held), cost)
    return now.mixture.epsilon(after, now.state.delta) > now.budget.epsilon


def _commit(opened: Transaction, reservation: Reservation, details: dict[str, Any]) -> RunState:
    """Release a round (Rules 4 and 6)."""
    number, run, charge = reservation
    state = _unsettled(opened, reservation)
    if charge.slot is not None and opened.charged(run).keeps_order:
        later: set[int | None] = set()
        for entry, closes in opened.entries(number):
            if entry.kind == "reserve" and entry.run == run:
                later.add(entry.number)
            elif entry.kind == "commit" and closes in later:
                raise LedgerError(
                    f"{opened.path}: round {closes}, a later one of the same plan, was released "
                    f"before round {number}, and the plan is charged by a game that knows one "
                    "order: nothing of this round may be released; it counts as spent."
                )
    totals = committed(opened.state, state)
    data = {"round": number} | ({"details": details} if details else {})
    opened.append("commit", run, data, totals, number)
    return totals[1]


def _unsettled(opened: Transaction, reservation: Reservation) -> RunState:
    """Return the totals of the run of a round that is neither committed nor abandoned (Rule 6)."""
    if opened.read(lambda rows: rows.is_closed(reservation.number)):
        raise LedgerError(
            f"{opened.path}: round {reservation.number} was committed or abandoned before."
        )
    return opened.of_run(reservation.run)
