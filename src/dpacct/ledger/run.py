"""A run inside a ledger, and the ticket of one of its rounds."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from dpacct import validate
from dpacct.budget import Spent
from dpacct.errors import InvalidParameter, LedgerError
from dpacct.ledger import writing
from dpacct.ledger.postgres.address import Address
from dpacct.ledger.readings import Guarantee, Snapshot
from dpacct.ledger.record.entries import MOST_AHEAD, Reserve, Start, read
from dpacct.ledger.record.events import Event, checked_details, in_adjacency
from dpacct.ledger.record.plans import PAIRS, plan_room
from dpacct.ledger.record.state import Charge, RunState, settled_by
from dpacct.ledger.writing import LedgerFile, Reservation, Transaction
from dpacct.rounds import Release, Schedule


class Ticket:
    """One reserved round: it is on disk and counts as spent.

    Call ``draw()`` before the cohort or any noise is drawn, and ``commit()`` before the noisy value
    leaves. A ticket that is lost, with its process or without, stays spent.

    Attributes:
        number: of its entry in the ledger.
        event: the round that was reserved.
        totals: of its run, as of its commit, or None before that.
    """

    def __init__(self, run: Run, reservation: Reservation, event: Event) -> None:
        self._run, self._file = run, run.file
        self._reservation = reservation
        self._process = os.getpid()
        self._state = "reserved"
        self.number = reservation.number
        self.event = event
        self.totals: RunState | None = None

    @property
    def state(self) -> str:
        """``reserved``, ``drawn``, ``committed`` or ``abandoned``."""
        return self._state

    def draw(self) -> None:
        """Note that randomness is about to be drawn: from here on the round cannot be abandoned.

        Nothing is written: only this object could abandon the round, and it will not.

        Raises:
            LedgerError: the round was committed or abandoned.
        """
        self._require("drawn", "reserved", "drawn")
        self._state = "drawn"

    def commit(self, details: Mapping[str, Any] | None = None) -> None:
        """Release the round. Call it before the noisy value leaves. It is on disk on return.

        Args:
            details: public facts that are known by now, as JSON.
        Raises:
            LedgerError: the round was committed or abandoned, or the file cannot be written. Also
                if a plan is charged in its order, and a later round of it was committed before.
                Then nothing may be released, and the round stays spent.
            InvalidParameter: the details are not JSON.
        """
        self._require("committed", "reserved", "drawn")
        kept = checked_details(details)
        # From here on it cannot be abandoned, even if writing fails.
        self._state = "drawn"

        def write(opened: Transaction) -> RunState:
            self._run.forget_given_back(opened)
            return opened.commit(self._reservation, kept)

        self.totals = self._file.write(write)
        self._state = "committed"

    def abandon(self, reason: str) -> None:
        """Give a round back for which nothing was drawn. The ledger keeps it, with the reason.

        Those that its run has reserved ahead are given back first: a plan gets only its latest
        round back.

        Args:
            reason: one line of at most 200 printable characters.
        Raises:
            InvalidParameter: the reason is not such a line. The round is still reserved.
            LedgerError: something was drawn or committed, or the file cannot be written.
        """
        self._require("abandoned", "reserved")
        validate.line("reason", reason, "a reason")
        self._run.give_back()
        self._file.write(lambda opened: opened.abandon(self._reservation, reason))
        self._state = "abandoned"

    def _require(self, becomes: str, *states: str) -> None:
        if os.getpid() != self._process:
            raise LedgerError(
                f"round {self.number} was reserved by another process, which alone can settle it."
            )
        if self._state not in states:
            raise LedgerError(
                f"round {self.number} is {self._state} and cannot become {becomes}. "
                f"It {'does not count' if self._state == 'abandoned' else 'counts as spent'}."
            )

    def __repr__(self) -> str:
        return f"<Ticket of round {self.number}, {self._state}>"


class Run:
    """A run of a ledger. `Ledger.start_run` and `Ledger.resume_run` return it.

    Attributes:
        id: its number in the ledger, from 1.
        ledger_path: the file or address of the ledger that it is charged to.
        name: as it was started.
        plan: the schedule that was registered, or None.
        private: whether its noise comes from a secret source.
        project: the group of runs that it belongs to, or empty.
        part: the part of the data that it uses, such as ``country=DE``, or empty for all.
        details: as it was started.
        accountant: of its plan: "pairs", or "tight" if that was promised and makes a difference.
        ahead: how many equal rounds of its plan one entry reserves, see `reserve`.
    """

    def __init__(
        self, file: LedgerFile, number: int, start: Start | None = None, ahead: int = 1
    ) -> None:
        self.file = self._file = file
        self.ahead = ahead
        # Rounds that were reserved ahead by this process, and what they are. Its latest ticket is
        # settled before one of them is taken: `Transaction.give_back_ahead` relies on that.
        self._latest: Ticket | None = None
        self._ahead: list[Reservation] = []
        self._ahead_of: Event | None = None
        self._process = os.getpid()
        start = start or self._file.now().start(number)
        self.id = number
        self.ledger_path: Path | Address = file.path
        self.name = start.name
        self.plan: Schedule | None = start.plan and start.plan.schedule
        self.private = start.private
        self.project, self.part = start.project, start.part
        self.details: dict[str, Any] = start.details
        self.accountant = start.plan.accountant if start.plan else PAIRS

    def totals(self) -> RunState:
        """Return its totals, of one reading of the file."""
        return self._file.now().run_state(self.id)

    @property
    def rounds(self) -> int:
        """The number of charged rounds: reserved and not abandoned, committed or not."""
        return self.totals().rounds

    @property
    def committed(self) -> int:
        """The number of released rounds."""
        return self.totals().committed

    @property
    def on_plan(self) -> bool:
        """True for a run that has a plan and has kept to it."""
        return self.totals().on_plan

    @property
    def finished(self) -> bool:
        """True for a run that takes no more rounds."""
        return self.totals().finished

    @property
    def held(self) -> int:
        """The number of rounds of its plan for which budget is held."""
        state = self.totals()
        if self.plan is None or not state.on_plan or state.finished:
            return 0
        return self.plan.rounds - state.cursor

    @property
    def guarantee(self) -> Guarantee:
        """The kind of claim that `epsilon` is."""
        return self._file.now().guarantee(self.id)

    def reserve(
        self,
        event: Event | Release,
        *,
        ahead: int | None = None,
        asks: Callable[[RunState], None] | None = None,
    ) -> Ticket:
        """Charge a round, before any data is touched. It is on disk when this returns.

        A round that the plan's next one covers (same scheme, at least its noise, at most its rate)
        was admitted with the plan. Any other round leaves the plan, for good, and is admitted by
        the adaptive bound.

        Args:
            event: the round with all its releases.
            ahead: charge up to so many equal rounds of the plan by one entry, from 1 to 1024. The
                next calls with the same round take them without a write. Room for the plan is held
                anyway, so only readings so far are larger. Those that are left are given back when
                another round is reserved, or one while the one before is not settled, and when the
                run is finished, closed or, after a crash, resumed. Default: that of the run.
            asks: rejects the round, by an error, because of the earlier rounds of the run. It is
                called in the transaction that charges the round.
        Raises:
            BudgetExceeded: it does not fit. The message names the remaining budget, the needed
                epsilon, and a round that fits.
            InvalidParameter: its adjacency is not the ledger's, or a private run has no noise.
            LedgerError: the run is finished, or the file cannot be written. Nothing counts then.
        """
        ahead = self.ahead if ahead is None else ahead
        ahead = validate.count("ahead", ahead, "the number of rounds ahead", MOST_AHEAD)
        whole = event if isinstance(event, Event) else Event(event)
        if whole.is_bare and self.private:
            rule = "no epsilon covers a sum without noise: start its run with private=False"
            raise InvalidParameter("noise_multiplier", 0.0, rule)
        # What its admission needs is computed before the file is locked.
        self._file.prepare(whole.charged)
        settled = self._latest is None or self._latest.state in ("committed", "abandoned")
        if self.reserved_ahead and settled and self._ahead_of == whole:
            self._latest = Ticket(self, self._ahead.pop(0), whole)
            return self._latest

        def charge(opened: Transaction) -> list[Reservation]:
            self._give_back(opened)
            state = opened.open_run(self.id)
            if asks is not None:
                asks(state)
            return opened.reserve(self.id, whole, ahead if settled else 1)

        while True:
            reserved = self._file.write(charge)
            self._ahead, self._ahead_of, self._process = reserved[1:], whole, os.getpid()
            if self._ahead:
                self._file.give_back.add(self.give_back)
            if reserved:
                self._latest = Ticket(self, reserved[0], whole)
                return self._latest
            # A rejection takes a while. Other processes may free some room meanwhile.
            now = self._file.now()
            charged = in_adjacency(whole.charged, now.state.adjacency)
            if writing.exceeds(now, now.run_state(self.id), now.mixture.cost(charged)):
                now.mixture.check_promises(now.state.charged, 1 * charged)
                raise writing.round_refused(now, self.id, charged)

    @property
    def reserved_ahead(self) -> int:
        """The number of rounds that are reserved and not taken. They count as spent until then."""
        return len(self._ahead) if os.getpid() == self._process else 0

    def give_back(self) -> None:
        """Give back the rounds that are reserved ahead and not taken.

        Raises:
            LedgerError: the file cannot be written. They stay spent.
        """
        if self.reserved_ahead:
            self._file.write(self._give_back)
        self._ahead = []

    def _give_back(self, opened: Transaction) -> None:
        if os.getpid() == self._process:
            for reservation in reversed(self._ahead):
                if not opened.is_settled(reservation):
                    opened.abandon(reservation, "reserved ahead, and not needed")

    def forget_given_back(self, opened: Transaction) -> None:
        """Take none of the rounds ahead if a process that resumed the run has given them back.

        It leaves the first open one to this process, which looks here before it takes the second.
        """
        if self.reserved_ahead and opened.is_settled(self._ahead[-1]):
            self._ahead = []

    def take_row(self) -> int:
        """Take the next row of correlated noise, 1, 2, ..., which is on disk when this returns.

        No row is given out twice, whatever happens to the process that took it. The rows cost
        nothing: the rounds of the plan charge all of them.

        Raises:
            LedgerError: the run is finished, or the file cannot be written.
        """
        return self._file.write(lambda opened: opened.take_row(self.id))

    @property
    def latest_row(self) -> int:
        """The latest row of correlated noise that was taken, 0 before the first."""
        return self._file.now().latest_row(self.id)

    def unsettled(self) -> Ticket | None:
        """Return the ticket of the latest charge of the run, or None if that was settled.

        A process that ended has left it. Its ticket cannot be abandoned. If the process is alive
        after all, the first to commit may release the round, and the other one may not.

        Raises:
            LedgerError: the file is damaged.
        """
        now = self._file.now()
        number = now.run_state(self.id).latest
        if not number:
            return None
        entry = now.entry(number)
        said = read(entry)
        if not isinstance(said, Reserve):
            raise LedgerError(f"{self.ledger_path}: the ledger is damaged: entry {number}.")
        closed = [
            now.read(lambda rows: rows.is_closed(settled_by(number, n)))  # noqa: B023 - used at once
            for n in range(said.count)
        ]
        if all(closed):
            return None
        kind, plan = now.kind(said.kind), now.plan(self.id)
        index = closed.index(False)
        slot = None if said.slot is None else said.slot + index
        same = plan is not None and slot is not None and plan.round_at(slot) == kind.charged
        # Its cost is not known here, so it cannot be abandoned.
        charge = Charge((), slot, kind=said.kind, as_planned=same)
        ticket = Ticket(self, Reservation(number, self.id, charge, index), Event(kind.charged))
        ticket.draw()
        return ticket

    def finish(self) -> None:
        """End the run: it takes no more rounds, and the budget held for its plan is free again.

        Raises:
            LedgerError: it is finished already, or the file cannot be written.
        """

        def compute(now: Snapshot) -> Callable[[Transaction], None]:
            room = None
            if now.run_state(self.id).initial and not now.state.started:
                # Delta is divided again between the other initial plans.
                others = now.initial_plans(unfinished=True)
                others.pop(self.id, None)
                room = plan_room(now.mixture, now.budget, others.values())

            def finish(opened: Transaction) -> None:
                self._give_back(opened)
                opened.finish(self.id, room)

            return finish

        self._file.write_computed(compute)
        self._ahead = []

    def epsilon(self) -> Spent:
        """Return epsilon of this run alone, with the ledger's delta (see `guarantee`).

        Planned: the tight accountant on the slots used so far, for a number of rounds that was
        fixed in advance. `planned_epsilon` holds for every rule of stopping. Adaptive: the Renyi
        odometer. Without privacy: infinite. The lower end is that of the released rounds.
        """
        found = self.nominal_epsilon()
        return found if self.private else found.without_privacy

    def upper_epsilon(self) -> float:
        """Return only the upper bound of `epsilon`. This is quicker, for use in every round."""
        return self._file.now().upper(self.id) if self.private else math.inf

    def nominal_epsilon(self) -> Spent:
        """Return `epsilon` as if the noise were secret: for tests that need a seed."""
        return self._file.now().interval(self.id)

    def planned_epsilon(self) -> float:
        """Return the proven epsilon of the whole plan, which covers stopping early for any reason.

        Infinite without privacy.

        Raises:
            LedgerError: the run has no plan, or has left it.
        """
        if self.plan is None or not self.on_plan:
            raise LedgerError(f"run {self.id} has no plan that it kept to.")
        return self._file.now().any_stop(self.id) if self.private else math.inf

    def __repr__(self) -> str:
        return f"<Run {self.id} {self.name!r} of {str(self.ledger_path)!r}>"
