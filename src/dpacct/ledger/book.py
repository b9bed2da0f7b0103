"""The rules of a ledger: which entry may follow, and what it does to the totals.

Rule 1: a round is reserved before data is touched, committed before its noisy value leaves.
Rule 2: a reserved round counts as spent until it is abandoned, whatever becomes of the process.
Rule 3: a round that its run's plan covers was admitted with the plan; any other round is admitted
only while the adaptive bound, with all that is held for plans, stays within the budget.
Rule 4: admission and reservation are one transaction: two processes never share the same room.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from dpacct.budget import Budget
from dpacct.errors import InvalidParameter, LedgerError
from dpacct.ledger.admission import admit_plan
from dpacct.ledger.chain import Entry, new_entry
from dpacct.ledger.events import Event, event_to_json, schedule_from_json, schedule_to_json
from dpacct.ledger.plans import Plan, PlanRoom, plan_room, schedule_cost
from dpacct.ledger.position import Position
from dpacct.ledger.refusal import refuse
from dpacct.ledger.standing import Standing
from dpacct.ledger.state import (
    LedgerState,
    RunState,
    Slot,
    abandoned,
    committed,
    finished,
    reserved,
    started_run,
    state_from_json,
    state_to_json,
)
from dpacct.ledger.store import Store
from dpacct.odometer import Mixture, Totals, add, subtract
from dpacct.rounds import Adjacency, Schedule


class Reservation(NamedTuple):
    """A round that is on disk.

    Attributes:
        number: its entry.
        run: its run.
        cost: what was charged.
        slot: the place in its run's plan, or None.
        skipped: whether planned rounds before it were skipped.
    """

    number: int
    run: int
    cost: Totals
    slot: Slot | None
    skipped: bool


class Book:
    """An open ledger file with its rules; `Ledger` and `Run` are what users hold."""

    def __init__(self, store: Store) -> None:
        self.store = store
        # Entries never change, so that these need to be read once.
        self._plans: dict[int, Plan | None] = {}
        first = store.entry(1)
        data: dict[str, Any] = first.content["data"]
        try:
            self.budget = Budget(data["budget"]["epsilon"], data["budget"]["delta"])
            self.mixture = Mixture(tuple(data["orders"]), tuple(data["weights"]))
            self.unit = str(data["unit"])
        except (KeyError, TypeError, InvalidParameter) as error:
            raise LedgerError(f"{store.path}: the first entry cannot be read: {error}") from None
        store.head()

    def as_of(self, number: int | None = None) -> Book:
        """The book as it was when entry ``number``, by default the latest, had been written.

        All that is read from it belongs together; nothing can be written to it.

        Raises:
            LedgerError: there is no such entry.
        """
        return Book(self.store.as_of(number))

    def state(self) -> LedgerState:
        """The totals of all runs, as of the latest entry."""
        return state_from_json(self.store.head().content["state"])[0]

    def position(self) -> Position:
        """How far the ledger has come; its cost grows with the number of runs, not of rounds."""
        now = self.as_of()
        head = now.store.head()
        committed = sum(now.run_state(n).committed for n in range(1, now.state().runs + 1))
        return Position(now.store.entry(1).hash.hex(), head.number, head.hash.hex(), committed)

    def run_state(self, run: int) -> RunState:
        """The totals of one run.

        Raises:
            LedgerError: there is no such run.
        """
        entry = self.store.latest_of_run(run) if run > 0 else None
        if entry is None:
            known = self.state().runs
            raise LedgerError(f"{self.store.path}: there is no run {run} (runs are 1 to {known}).")
        state = state_from_json(entry.content["state"])[1]
        if state is None:
            raise LedgerError(f"{self.store.path}: entry {entry.number} has no totals of its run.")
        return state

    def run_data(self, run: int) -> dict[str, Any]:
        """What was said when the run was started: ``name``, ``plan``, ``private``, ``details``."""
        entry = self.store.first_of_run(run) if run > 0 else None
        if entry is None:
            self.run_state(run)
            raise LedgerError(f"{self.store.path}: run {run} cannot be read.")
        return entry.content["data"]

    def plan(self, run: int) -> Plan | None:
        """The plan of a run, if it has one."""
        if run not in self._plans:
            phases = self.run_data(run)["plan"]
            self._plans[run] = None if phases is None else Plan(schedule_from_json(phases))
        return self._plans[run]

    def initial_plans(self, *, unfinished: bool) -> dict[int, Plan]:
        """Plans that were registered before the first round, by their run."""
        found: dict[int, Plan] = {}
        for run in range(1, self.state().runs + 1):
            state = self.run_state(run)
            plan = self.plan(run) if state.initial else None
            if plan is not None and not (unfinished and state.finished):
                found[run] = plan
        return found

    def start_run(
        self,
        name: str,
        plan: Schedule | None,
        *,
        private: bool,
        details: dict[str, Any],
        standing: Callable[[], Standing],
        over_budget: bool = False,
    ) -> int:
        """Register a run; a plan is admitted as a whole or refused.

        Args:
            name, plan, private, details: as they are kept.
            standing: what a refusal says beside the rules.
            over_budget: it records what has happened, whether the budget has room for it or not.
        Returns:
            Its number.
        Raises:
            BudgetExceeded: the plan does not fit. InvalidParameter: its adjacency is another.
        """
        data: dict[str, Any] = {
            "name": name,
            "plan": None if plan is None else schedule_to_json(plan),
            "private": private,
            "details": details,
        } | ({"over_budget": True} if over_budget else {})
        cost = None if plan is None else schedule_cost(self.mixture, plan)
        relation = None if plan is None else plan.adjacency
        while True:
            head = self.store.head()
            room = None if plan is None or self.state().started else self._room_with(plan)
            with self.store.writing():
                latest = self.store.head()
                if latest.hash != head.hash:
                    # Somebody wrote in between; what was computed is out of date.
                    continue
                ledger, _ = state_from_json(latest.content["state"])
                adjacency = self._adjacency(ledger, relation)
                if plan is not None and cost is not None:
                    admit_plan(self.mixture, self.budget, ledger, plan, cost, room, standing)
                ledger, run = started_run(
                    ledger, private=private, plan_cost=cost, adjacency=adjacency, room=room
                )
                self._append(latest, "run", ledger.runs, data, ledger, run)
            return ledger.runs

    def resume_run(self, run: int) -> None:
        """Note that another process goes on with a run.

        Raises:
            LedgerError: there is no such run, or it is finished.
        """
        with self.store.writing():
            head, ledger, state = self._open_run(run)
            self._append(head, "resume", run, {}, ledger, state)

    def reserve(
        self,
        run: int,
        plan: Plan | None,
        event: Event,
        standing: Callable[[], Standing],
        *,
        over_budget: bool = False,
    ) -> Reservation:
        """Charge a round and put it on disk; ``standing`` and ``over_budget`` as for `start_run`.

        Raises:
            BudgetExceeded: it does not fit; nothing is written.
            InvalidParameter: its adjacency is another than the ledger's.
            LedgerError: the run is finished, or the file cannot be written.
        """
        charged = event.charged
        # Before the file is locked: a round of a new kind takes milliseconds.
        cost = self.mixture.cost(charged)
        with self.store.writing():
            head, ledger, state = self._open_run(run)
            adjacency = self._adjacency(ledger, charged.adjacency)
            number = plan.covering(charged, state.cursor) if plan and state.on_plan else None
            slot: Slot | None = None
            base = ledger.charged
            if plan is None or number is None:
                base = subtract(base, state.held)
                after = self.mixture.epsilon(add(base, cost), ledger.delta)
                fits = over_budget or after <= self.budget.epsilon
            else:
                freed = plan.cost(self.mixture, state.cursor, number + 1)
                # Another version may have held another amount: never free more than was held.
                slot, fits = Slot(number, tuple(map(min, freed, state.held))), True
                cost = tuple(map(min, cost, plan.cost(self.mixture, number, number + 1)))
            if fits:
                left = slot is None and state.on_plan
                skipped = number is not None and number > state.cursor
                ledger, state = reserved(ledger, state, cost, slot, adjacency)
                data = event_to_json(event) | {"slot": number, "left": left}
                entry = self._append(head, "reserve", run, data, ledger, state)
                return Reservation(entry.number, run, cost, slot, skipped)
        held = any(subtract(ledger.held, state.held))
        raise refuse(self.mixture, self.budget, ledger, base, charged, standing(), held=held)

    def commit(self, reservation: Reservation, details: dict[str, Any]) -> None:
        """Note that the round's noisy value may leave now.

        Raises:
            LedgerError: the round was committed or abandoned before, or the file cannot be written.
        """
        with self.store.writing():
            head, ledger, state = self._settle(reservation)
            ledger, state = committed(ledger, state)
            data = {"round": reservation.number} | ({"details": details} if details else {})
            run = reservation.run
            self._append(head, "commit", run, data, ledger, state, reservation.number)

    def abandon(self, reservation: Reservation, reason: str) -> None:
        """Take a round back for which nothing was drawn; it stays visible.

        Raises:
            LedgerError: as for `commit`.
        """
        with self.store.writing():
            head, ledger, state = self._settle(reservation)
            cost, slot, skipped = reservation.cost, reservation.slot, reservation.skipped
            ledger, state = abandoned(ledger, state, cost, slot, skipped=skipped)
            data = {"round": reservation.number, "reason": reason}
            run = reservation.run
            self._append(head, "abandon", run, data, ledger, state, reservation.number)

    def finish(self, run: int) -> None:
        """End a run; what was held for it is free again.

        Raises:
            LedgerError: there is no such run, or it is finished.
        """
        while True:
            head = self.store.head()
            state = self.run_state(run)
            room = None
            if state.initial and not self.state().started:
                others = self.initial_plans(unfinished=True)
                others.pop(run, None)
                room = plan_room(
                    self.mixture, self.budget, [plan.schedule for plan in others.values()]
                )
            with self.store.writing():
                latest, ledger, state = self._open_run(run)
                if latest.hash != head.hash:
                    continue
                ledger, state = finished(ledger, state, room)
                self._append(latest, "finish", run, {}, ledger, state)
            return

    def _room_with(self, plan: Schedule) -> PlanRoom:
        plans = [other.schedule for other in self.initial_plans(unfinished=True).values()]
        # A plan of another adjacency is refused in words, later.
        same = [other for other in plans if other.adjacency is plan.adjacency]
        return plan_room(self.mixture, self.budget, [*same, plan])

    def _adjacency(self, ledger: LedgerState, relation: Adjacency | None) -> str:
        if relation is None or str(relation) == ledger.adjacency:
            return ledger.adjacency
        if ledger.adjacency:
            rule = (
                f"all rounds of a ledger share one adjacency, and this one has {ledger.adjacency}"
            )
            raise InvalidParameter("adjacency", str(relation), rule)
        return str(relation)

    def _open_run(self, run: int) -> tuple[Entry, LedgerState, RunState]:
        state = self.run_state(run)
        if state.finished:
            raise LedgerError(f"{self.store.path}: run {run} is finished; start another one.")
        head = self.store.head()
        return head, state_from_json(head.content["state"])[0], state

    def _settle(self, reservation: Reservation) -> tuple[Entry, LedgerState, RunState]:
        if self.store.is_closed(reservation.number):
            raise LedgerError(
                f"{self.store.path}: round {reservation.number} was committed or abandoned before."
            )
        state = self.run_state(reservation.run)
        head = self.store.head()
        return head, state_from_json(head.content["state"])[0], state

    def _append(
        self,
        previous: Entry,
        kind: str,
        run: int,
        data: dict[str, Any],
        ledger: LedgerState,
        state: RunState,
        closes: int | None = None,
    ) -> Entry:
        entry = new_entry(previous, kind, run, data, state_to_json(ledger, state))
        self.store.append(entry, closes)
        return entry
