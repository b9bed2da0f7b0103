"""An open ledger file: what it says, and the life of its runs; rounds are in `reservation`.

Rule 1: what is read at one time is read as of one entry (`Book.as_of`).
Rule 2: admission and what it admits are one transaction: two processes never share the same room.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from dpacct.errors import LedgerError
from dpacct.ledger.disk.rows import SCHEMA_VERSION
from dpacct.ledger.disk.store import Store
from dpacct.ledger.record.admission import admit_plan
from dpacct.ledger.record.chain import Entry, new_entry
from dpacct.ledger.record.charged import PAIRS, Charged, accountant_of
from dpacct.ledger.record.entries import Reserve, Said, Start, read, read_opening, read_state
from dpacct.ledger.record.events import in_adjacency, schedule_in_adjacency, schedule_to_json
from dpacct.ledger.record.fields import MAX_WHOLE
from dpacct.ledger.record.initial import room_with, room_without
from dpacct.ledger.record.plans import Plan, schedule_cost
from dpacct.ledger.record.position import Position
from dpacct.ledger.record.standing import Standing
from dpacct.ledger.record.state import LedgerState, RunState, finished, started_run
from dpacct.ledger.record.state_json import state_to_json
from dpacct.rounds import Adjacency, Schedule, Uniform

T = TypeVar("T")


class Book:
    """An open ledger file with its rules; `Ledger` and `Run` are what users hold.

    Args:
        store: the file, or the file as it was at an entry.
        known: a book of the same file, whose first entry and plans need not be read again.

    Raises:
        LedgerError: the first entry is damaged, or the latest.
    """

    def __init__(self, store: Store, known: Book | None = None) -> None:
        self.store = store
        # Entries never change, so that these need to be read once; totals only in the past.
        self.starts: dict[int, tuple[Start, Plan | None]] = {}
        self._states: dict[int, tuple[LedgerState, RunState]] | None = None
        # Rounds of version 0.2 that are read as zero-out, in the file or as far as it is read here.
        self.relabelled = False
        # The entry that was written here last, and what is in it.
        self._last: tuple[Entry, tuple[LedgerState, RunState | None]] | None = None
        if known is None:
            self.opening = self.named(read_opening, store.entry(1))
            store.head()
        else:
            self.starts, self.opening, self._states = known.starts, known.opening, {}
            self.relabelled = known.relabelled
        self.budget, self.mixture = self.opening.budget, self.opening.mixture
        self.unit = self.opening.unit
        if known is None:
            self.relabelled = store.relabelled() or self._to_relabel()

    def as_of(self, number: int | None = None) -> Book:
        """The book as it was when entry ``number``, by default the latest, had been written.

        All that is read from it belongs together; nothing can be written to it.

        Raises:
            LedgerError: there is no such entry.
        """
        return Book(self.store.as_of(number), self)

    def said(self, entry: Entry) -> Said:
        """What an entry says, its rounds as they are charged now."""
        return self.named(self._said, entry)

    def _said(self, entry: Entry) -> Said:
        said = read(entry)
        if not self.relabelled:
            return said
        if isinstance(said, Reserve):
            return replace(said, charged=in_adjacency(said.charged, Adjacency.ZERO_OUT))
        if isinstance(said, Start) and said.plan is not None:
            return replace(said, plan=schedule_in_adjacency(said.plan, Adjacency.ZERO_OUT))
        return said

    def _to_relabel(self) -> bool:
        """Whether the file is of version 0.2 with rounds of a trainer, charged as add-remove.

        Raises:
            LedgerError: they stand beside cohorts of fixed size, which zero-out does not cover.
        """
        if self.store.version() >= SCHEMA_VERSION or not self.store.trained():
            return False
        if self.state().adjacency != Adjacency.ADD_REMOVE:
            return False
        for entry, _ in self.store.entries():
            said = self.said(entry)
            plan = said.plan if isinstance(said, Start) and said.plan else Schedule()
            rounds = [said.charged] if isinstance(said, Reserve) else plan.distinct()
            if any(isinstance(round_.sampling, Uniform) for round_ in rounds):
                raise LedgerError(
                    f"{self.store.path}: training by dpacct 0.2 is only zero-out, and entry "
                    f"{entry.number} has cohorts of fixed size under add-remove: both together "
                    f"have no adjacency. Charge what `dpacct ledger export` of version 0.2 lists to "
                    f"two new ledgers."
                )
        return True

    def bring_up_to_date(self) -> None:
        """Write down, in a file of version 0.2, that its rounds are read as zero-out."""
        if self.store.version() >= SCHEMA_VERSION:
            return
        with self.store.writing():
            if self.relabelled and not self.store.relabelled():
                head = self.store.head()
                ledger, _ = read_state(head, len(self.mixture.orders))
                ledger = replace(ledger, adjacency=str(Adjacency.ZERO_OUT))
                self.append(head, "relabel", 0, {"adjacency": ledger.adjacency}, ledger, None)
            self.store.bring_up_to_date()

    def totals(self, entry: Entry) -> tuple[LedgerState, RunState | None]:
        """The totals behind an entry: of all runs, and of its run."""
        ledger, run = self.named(partial(read_state, orders=len(self.mixture.orders)), entry)
        if self.relabelled and ledger.adjacency:
            ledger = replace(ledger, adjacency=str(Adjacency.ZERO_OUT))
        return ledger, run

    def named(self, reader: Callable[[Entry], T], entry: Entry) -> T:
        """What a reader of entries gives; where it refuses, the file and the entry are named.

        Raises:
            LedgerError: the entry is damaged.
        """
        try:
            return reader(entry)
        except LedgerError as error:
            raise LedgerError(f"{self.store.path}: entry {entry.number}: {error}.") from None

    def state(self) -> LedgerState:
        """The totals of all runs, as of the latest entry."""
        return self.totals(self.store.head())[0]

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
        return self._latest_of(run)[1]

    def dropped(self, run: int) -> bool:
        """Whether a run ended before any round of any run was reserved."""
        ledger, state = self._latest_of(run)
        return state.finished and not ledger.started

    def _latest_of(self, run: int) -> tuple[LedgerState, RunState]:
        """The totals behind the latest entry of a run."""
        if not _is_number(run):
            raise self._no_run(run)
        if self._states is not None and run in self._states:
            return self._states[run]
        entry = self.store.latest_of_run(run)
        ledger, state = (None, None) if entry is None else self.totals(entry)
        if ledger is None or state is None:
            raise self._no_run(run)
        if self._states is not None:
            self._states[run] = ledger, state
        return ledger, state

    def start(self, run: int) -> Start:
        """What was said when a run was started.

        Raises:
            LedgerError: there is no such run.
        """
        return self._started(run)[0]

    def plan(self, run: int) -> Plan | None:
        """The plan of a run, if it has one."""
        return self._started(run)[1]

    def _started(self, run: int) -> tuple[Start, Plan | None]:
        if not _is_number(run) or run not in self.starts:
            entry = self.store.first_of_run(run) if _is_number(run) else None
            start = None if entry is None else self.said(entry)
            if not isinstance(start, Start):
                raise self._no_run(run)
            self.starts[run] = start, None if start.plan is None else Plan(start.plan)
        return self.starts[run]

    def _no_run(self, run: int) -> LedgerError:
        known = self.state().runs
        return LedgerError(
            f"{self.store.path}: there is no run {run!r:.40} (runs are 1 to {known})."
        )

    def start_run(
        self,
        name: str,
        plan: Schedule | None,
        *,
        private: bool,
        details: dict[str, Any],
        standing: Callable[[], Standing],
        over_budget: bool = False,
        accountant: str = PAIRS,
    ) -> int:
        """Register a run; a plan is admitted as a whole or refused.

        Args:
            name, plan, private, details: as they are kept.
            standing: what a refusal says beside the rules.
            over_budget: it records what has happened, whether the budget has room for it or not.
            accountant: that the plan may be charged by.
        Returns:
            Its number.
        Raises:
            BudgetExceeded: the plan does not fit. InvalidParameter: its adjacency is another.
        """
        plan = None if plan is None else self.as_charged(self.state(), plan)
        charged_by = accountant_of(plan, accountant)
        data: dict[str, Any] = {
            "name": name,
            "plan": None if plan is None else schedule_to_json(plan),
            "private": private,
            "details": details,
        } | ({"over_budget": True} if over_budget else {})
        if charged_by != PAIRS:
            data["accountant"] = charged_by
        cost = None if plan is None else schedule_cost(self.mixture, plan)
        while True:
            now = self.as_of()
            head = now.store.head()
            room = None
            if plan is not None and not now.state().started:
                room = room_with(now, Charged(plan, charged_by))
            with self.store.writing():
                latest = self.store.head()
                if latest.hash != head.hash:
                    # Somebody wrote in between; what was computed is out of date.
                    continue
                ledger, _ = self.totals(latest)
                plan = None if plan is None else self.as_charged(ledger, plan)
                adjacency = ledger.adjacency if plan is None else str(plan.adjacency)
                if plan is not None and cost is not None:
                    asked = Charged(plan, charged_by)
                    admit_plan(self.mixture, self.budget, ledger, asked, cost, room, standing)
                ledger, run = started_run(
                    ledger, private=private, plan_cost=cost, adjacency=adjacency, room=room
                )
                self.append(latest, "run", ledger.runs, data, ledger, run)
            return ledger.runs

    def resume_run(self, run: int) -> None:
        """Note that another process goes on with a run.

        Raises:
            LedgerError: there is no such run, or it is finished.
        """
        with self.store.writing():
            head, ledger, state = self.open_run(run)
            self.append(head, "resume", run, {}, ledger, state)

    def finish(self, run: int) -> None:
        """End a run; what was held for it is free again.

        Raises:
            LedgerError: there is no such run, or it is finished.
        """
        while True:
            now = self.as_of()
            head, room = now.store.head(), room_without(now, run)
            with self.store.writing():
                latest, ledger, state = self.open_run(run)
                if latest.hash != head.hash:
                    continue
                ledger, state = finished(ledger, state, room)
                self.append(latest, "finish", run, {}, ledger, state)
            return

    def as_charged(self, ledger: LedgerState, plan: Schedule) -> Schedule:
        """A plan in the adjacency of the ledger.

        Raises:
            InvalidParameter: it has another one.
        """
        return schedule_in_adjacency(plan, ledger.adjacency)

    def open_run(self, run: int) -> tuple[Entry, LedgerState, RunState]:
        """As `latest`, of a run that takes more rounds.

        Raises:
            LedgerError: there is no such run, or it is finished.
        """
        head, ledger, state = self.latest(run)
        if state.finished:
            raise LedgerError(f"{self.store.path}: run {run} is finished; start another one.")
        return head, ledger, state

    def latest(self, run: int) -> tuple[Entry, LedgerState, RunState]:
        """The latest entry, the totals behind it, and those of a run.

        Raises:
            LedgerError: there is no such run, or its totals are more than those of all runs.
        """
        head = self.store.head()
        # An entry is what its text says: one that is on disk as it was written need not be parsed.
        known = self._last is not None and self._last[0] == head
        ledger, latest = self._last[1] if self._last and known else self.totals(head)
        state = latest if latest is not None and head.run == run else self.run_state(run)
        if not state.within(ledger):
            raise LedgerError(
                f"{self.store.path}: run {run} has spent more than all runs; the ledger is damaged."
            )
        return head, ledger, state

    def append(
        self,
        previous: Entry,
        kind: str,
        run: int,
        data: dict[str, Any],
        ledger: LedgerState,
        state: RunState | None,
        closes: int | None = None,
    ) -> Entry:
        """Write the entry that follows ``previous``, inside a transaction of the store."""
        entry = new_entry(previous, kind, run, data, state_to_json(ledger, state))
        self.store.append(entry, closes)
        self._last = entry, (ledger, state)
        return entry


def _is_number(run: object) -> bool:
    return type(run) is int and 0 < run <= MAX_WHOLE
