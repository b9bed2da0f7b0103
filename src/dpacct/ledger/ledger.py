"""The durable record of what was spent on one data set, by whatever ran."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from dpacct.budget import Budget, Interval
from dpacct.errors import InvalidParameter, LedgerError
from dpacct.ledger.book import Book
from dpacct.ledger.creation import create, software
from dpacct.ledger.events import Event, checked_details
from dpacct.ledger.history import read_history
from dpacct.ledger.place import locate, new_place
from dpacct.ledger.plans import most_planned_rounds
from dpacct.ledger.position import Position, require
from dpacct.ledger.readings import Guarantee, Readings
from dpacct.ledger.report import compose
from dpacct.ledger.report_html import to_html
from dpacct.ledger.report_markdown import to_markdown
from dpacct.ledger.run import Run
from dpacct.ledger.store import Store
from dpacct.ledger.summary import summarize, with_history
from dpacct.ledger.sums import check_runs
from dpacct.ledger.verify import Verification, verify
from dpacct.odometer import count_fitting
from dpacct.rounds import Adjacency, Round, Schedule


class Ledger:
    """A ledger file; open it with `Ledger.open`, in a ``with`` block.

    One file is for one data set and one unit of privacy. It may be open in several processes; two
    reservations never share the same room. Objects belong to the thread that made them.

    Attributes:
        path: of the file.
        budget: what all runs together may spend.
        unit: what one neighbor differs by, in words.
    """

    def __init__(self, book: Book) -> None:
        self._book = book
        self._readings = Readings(book)
        self.path = book.store.path
        self.budget = book.budget
        self.unit = book.unit

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str],
        budget: Budget | None = None,
        *,
        adjacency: Adjacency | str | None = None,
        unit: str = "client",
        typical: Round | Schedule | None = None,
        read_only: bool = False,
        passing: bool = False,
    ) -> Ledger:
        """Make a ledger, or open the one that is there.

        Args:
            path: of the file, on a local disk.
            budget: needed for a new file; for an existing one it must be equal, or None.
            adjacency: of all rounds; default that of the first one.
            unit: of privacy, for a new file: whose data one neighbor lacks.
            typical: a round, or schedule, like those expected, for a new file. The orders of the
                adaptive bound are chosen for it; only tightness depends on it.
            read_only: open an existing file for looking only.
            passing: it will be deleted with its process, so that nothing is flushed to disk.
        Raises:
            LedgerError: the file is missing (without a budget), damaged, foreign or of a later
                version, or it cannot be written.
            InvalidParameter: budget or adjacency contradict those of the file.
        """
        if budget is not None and not isinstance(budget, Budget):
            raise InvalidParameter("budget", budget, "a budget is Budget(epsilon, delta)")
        relation = "" if adjacency is None else str(Adjacency.parse(adjacency))
        place = locate(path)
        if place is None:
            place = new_place(path)
            if budget is None or read_only:
                raise LedgerError(f"{path}: no ledger can be opened: No such file or directory.")
            create(place, budget, relation, unit, typical)
        store = Store.open(place, read_only=read_only)
        if passing:
            store.database.connection.execute("PRAGMA synchronous=OFF")
        try:
            ledger = cls(Book(store))
            check_runs(ledger._book)
            ledger._agree(budget, relation)
        except BaseException:
            store.close()
            raise
        return ledger

    def _agree(self, budget: Budget | None, adjacency: str) -> None:
        if budget is not None and budget != self.budget:
            rule = f"the ledger at {str(self.path)!r} has {self.budget!r}"
            raise InvalidParameter("budget", budget, rule, "A budget is chosen once.")
        if adjacency and self.adjacency not in (None, adjacency):
            rule = f"the ledger at {str(self.path)!r} has {self.adjacency}"
            raise InvalidParameter("adjacency", adjacency, rule)

    def close(self) -> None:
        """Close the file. Its runs and tickets cannot be used any more."""
        self._book.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    @property
    def adjacency(self) -> Adjacency | None:
        """The neighboring relation of all rounds; None before the first."""
        name = self._book.state().adjacency
        return Adjacency(name) if name else None

    @property
    def rounds(self) -> int:
        """How many rounds of all runs are charged."""
        return self._book.state().rounds

    @property
    def runs(self) -> tuple[Run, ...]:
        """All runs, in the order in which they were started."""
        count = self._book.state().runs
        return tuple(Run(self._book, self._readings, n) for n in range(1, count + 1))

    @property
    def head(self) -> str:
        """Hash of the latest entry, in hex; kept elsewhere, it witnesses all that came before."""
        return self._book.store.head().hash.hex()

    @property
    def position(self) -> Position:
        """How far the ledger has come; `require` compares it later, in this file or a copy."""
        return self._book.position()

    def require(self, position: Position, holder: str) -> None:
        """Refuse to go on where the ledger has lost what a `position` of it says it had.

        Args:
            position: kept elsewhere, e.g. in a checkpoint.
            holder: who kept it, for the message, e.g. ``the checkpoint run.ckpt``.
        Raises:
            LedgerError: the file is another ledger, ends before that entry, or has another one in
                its place.
        """
        require(self._book.store, position, holder)

    @property
    def guarantee(self) -> Guarantee:
        """What kind of claim `epsilon` is."""
        return self._readings.ledger_guarantee()

    def start_run(
        self,
        name: str,
        plan: Schedule | Round | None = None,
        *,
        private: bool = True,
        details: Mapping[str, Any] | None = None,
    ) -> Run:
        """Register a run.

        Args:
            name: for people.
            plan: its schedule, made of what `Event.charged` says; room for all of it is held. None:
                rounds are chosen as the run goes.
            private: False if the noise does not come from a secret source (a seed was given). Then
                no guarantee holds for what the run releases, and the ledger says so.
            details: anything worth keeping, as JSON: configuration, model, who started it.
        Raises:
            BudgetExceeded: the plan does not fit. InvalidParameter: a name or details that are
                none, or a plan of another adjacency. LedgerError: the file cannot be written.
        """
        if not isinstance(name, str) or not name.strip():
            raise InvalidParameter("name", name, "a run has a name")
        schedule = 1 * plan if isinstance(plan, Round) else plan
        if schedule is not None and not schedule.rounds:
            raise InvalidParameter("plan", plan, "a plan has at least one round")
        kept = checked_details({} if details is None else details)
        number = self._book.start_run(name, schedule, private=bool(private), details=kept)
        return Run(self._book, self._readings, number)

    def resume_run(self, run_id: int) -> Run:
        """Go on with a run, after a crash or in another process.

        Rounds that were reserved and never committed stay spent.

        Raises:
            LedgerError: there is no such run, or it is finished.
        """
        self._book.resume_run(run_id)
        return Run(self._book, self._readings, run_id)

    def epsilon(self) -> Interval:
        """Epsilon of all runs together, at the budget's delta; `guarantee` says of what kind.

        Infinite if a round of a run that is not private is charged. The upper end takes the same
        time however many rounds there are; for the lower end the released rounds are read once.
        """
        return self._readings.ledger_interval()

    def upper_epsilon(self) -> float:
        """The upper end of `epsilon` alone: quicker, for once a round."""
        return self._readings.ledger_upper()

    def remaining(self, round_: Round | Event) -> int:
        """How many more such rounds fit, chosen as one goes; at most 10^12.

        What is held for plans is not available. Before anything has run, a plan of such rounds may
        be longer: `remaining_as_plan`.
        """
        charged = round_.charged if isinstance(round_, Event) else round_
        state, book = self._book.state(), self._book
        self._check_adjacency(charged)
        cost = book.mixture.cost(charged)
        return count_fitting(book.mixture, state.charged, cost, book.budget, state.delta)

    def remaining_as_plan(self, round_: Round | Event) -> int:
        """How many such rounds a plan may have that is registered now; at most 10^12."""
        charged = round_.charged if isinstance(round_, Event) else round_
        chosen = self.remaining(round_)
        if self._book.state().started:
            return chosen
        plans = self._book.initial_plans(unfinished=True).values()
        return most_planned_rounds(
            self._book.mixture, self.budget, [plan.schedule for plan in plans], charged, chosen
        )

    def verify(self, head: str | None = None) -> Verification:
        """Recompute the chain, the cost of every round and every total, from the entries alone.

        Args:
            head: a `head` that was kept elsewhere. Without one, entries that somebody dropped from
                the end of the file leave no trace.
        """
        return verify(self._book, head)

    def summary(self) -> dict[str, Any]:
        """The facts, as `dpacct ledger show --json` prints them."""
        return summarize(self._book, self._readings)

    def report(self) -> dict[str, Any]:
        """The facts with the history of all rounds, as a report needs them; reads every entry."""
        found = with_history(self.summary(), read_history(self._book))
        return found | {"reporter": software()}

    def report_markdown(self) -> str:
        """The report for a reviewer, as Markdown; verifies the ledger first."""
        return to_markdown(compose(self.report(), self.verify()))

    def report_html(self) -> str:
        """The report for a reviewer, as one page of HTML; verifies the ledger first."""
        return to_html(compose(self.report(), self.verify()))

    def export(self) -> Iterator[dict[str, Any]]:
        """Every entry as it stands in the file, with its hash."""
        for entry, _ in self._book.store.entries():
            yield entry.content | {"hash": entry.hash.hex()}

    def _check_adjacency(self, round_: Round) -> None:
        if self.adjacency not in (None, round_.adjacency):
            rule = f"all rounds of a ledger share one adjacency, and this one has {self.adjacency}"
            raise InvalidParameter("adjacency", str(round_.adjacency), rule)

    def __repr__(self) -> str:
        return f"<Ledger {str(self.path)!r}, {self.budget!r}>"
