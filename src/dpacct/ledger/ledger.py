"""The durable record of what was spent on one data set, by whatever ran."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Self

from dpacct import validate
from dpacct.budget import Budget, Spent
from dpacct.display import Drawn, drawn
from dpacct.errors import InvalidParameter, LedgerError
from dpacct.ledger.book import Book
from dpacct.ledger.creation import create
from dpacct.ledger.disk.place import locate, new_place
from dpacct.ledger.disk.store import Store
from dpacct.ledger.elsewhere import record
from dpacct.ledger.readings import Guarantee, Reader
from dpacct.ledger.record.charged import PAIRS
from dpacct.ledger.record.entries import content_of
from dpacct.ledger.record.events import Event, checked_details
from dpacct.ledger.record.plans import schedule_of
from dpacct.ledger.record.position import Position, require
from dpacct.ledger.remaining import rounds_left, rounds_left_as_plan
from dpacct.ledger.report.summary import summarize
from dpacct.ledger.run import Run
from dpacct.ledger.sums import check_runs
from dpacct.ledger.verify import Verification, verify
from dpacct.rounds import Adjacency, Round, Schedule
from dpacct.validate import MAX_ROUNDS


class Ledger:
    """A ledger file; open it with `Ledger.open`, in a ``with`` block.

    One file is for one data set and one unit of privacy. It may be open in several processes; two
    reservations never share the same room. Objects belong to the thread that made them.

    Attributes:
        path: of the file.
        budget: what all runs together may spend.
        unit: what one neighbor differs by, in words.
        note: a sentence on a ledger of version 0.2 whose rounds are read as zero-out from now on;
            empty for any other, and once this is written in the file.
    """

    def __init__(self, book: Book) -> None:
        self._book = book
        self._readings = Reader(book)
        self.path = book.store.path
        self.budget = book.budget
        self.unit = book.unit
        new = book.relabelled and not book.store.relabelled()
        self.note = relabelling(self.path) if new else ""

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
            typical: for a new file: a round, or schedule, like those expected. It chooses the
                orders of the adaptive bound; only tightness depends on it.
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
            store.pass_with_process()
        try:
            ledger = cls(Book(store))
            check_runs(ledger._book)
            if not read_only:
                ledger._book.bring_up_to_date()
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
            raise InvalidParameter("adjacency", adjacency, rule, self.note)

    def close(self) -> None:
        """Close the file. Its runs and tickets cannot be used any more."""
        self._book.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
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
        return tuple(Run(self._book, self._readings, n + 1) for n in range(self._book.state().runs))

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
            position, holder: what was kept, and where; e.g. in ``the checkpoint run.ckpt``.
        Raises:
            LedgerError: it is another ledger, ends before that entry, or has another one there.
        """
        require(self._book.store, position, holder)

    @property
    def guarantee(self) -> Guarantee:
        """What kind of claim `epsilon` is."""
        return self._readings.now().ledger_guarantee()

    def start_run(
        self,
        name: str,
        plan: Schedule | Round | None = None,
        *,
        private: bool = True,
        details: Mapping[str, Any] | None = None,
        accountant: str = PAIRS,
    ) -> Run:
        """Register a run.

        Args:
            name: for people; one line of at most 200 printable characters.
            plan: its schedule, made of what `Event.charged` says; room for all of it is held. None:
                rounds are chosen as the run goes.
            private: False if the noise does not come from a secret source (a seed was given). Then
                no guarantee holds for what the run releases, and the ledger says so.
            details: anything worth keeping, as JSON: configuration, model, who started it.
            accountant: "tight" promises that no client remembers whether it took part.
        Raises:
            BudgetExceeded: the plan does not fit. InvalidParameter: a name or details that are
                none, or a plan of another adjacency. LedgerError: the file cannot be written.
        """
        schedule = None if plan is None else schedule_of("plan", plan)
        number = self._book.start_run(
            validate.line("name", name, "the name of a run"),
            schedule,
            private=bool(private),
            details=checked_details({} if details is None else details),
            standing=self._readings.standing,
            accountant=accountant,
        )
        return Run(self._book, self._readings, number)

    def resume_run(self, run_id: int) -> Run:
        """Go on with a run, after a crash; rounds that were never committed stay spent.

        Raises:
            LedgerError: there is no such run, or it is finished.
        """
        self._book.resume_run(run_id)
        return Run(self._book, self._readings, run_id)

    def charge(
        self,
        name: str,
        rounds: Schedule | Round,
        *,
        private: bool = True,
        over_budget: bool = False,
        details: Mapping[str, Any] | None = None,
        accountant: str = PAIRS,
    ) -> Run:
        """Record rounds that ran elsewhere as a finished run: all of them at once, or none.

        Args:
            rounds: what ran, at most 100,000 (each takes about 2.8 kB and 0.5 ms). If their number
                depends on what they released, give what was planned.
            over_budget: record them even if they do not fit; the ledger then admits nothing more.
            name, private, details, accountant: as for `start_run`.
        Raises:
            BudgetExceeded: they do not fit. Otherwise as `start_run`.
        """
        schedule = schedule_of("rounds", rounds)
        number = record(
            self._book,
            validate.line("name", name, "the name of a run"),
            schedule,
            private=bool(private),
            over_budget=over_budget,
            details=checked_details({} if details is None else details),
            standing=self._readings.standing,
            accountant=accountant,
        )
        return Run(self._book, self._readings, number)

    def epsilon(self) -> Spent:
        """Epsilon of all runs together, with the budget's delta; `guarantee` says of what kind.

        Infinite if a round of a run that is not private is charged. Where all rounds were planned,
        it is that of the planned rounds charged so far, for a number of them that was settled in
        advance; `epsilon_any_stop` holds whatever settled it. The lower end reads each round once.
        """
        return self._readings.now().ledger_interval()

    def upper_epsilon(self) -> float:
        """The upper end of `epsilon` alone: quicker, for once a round."""
        return self._readings.now().ledger_upper()

    def epsilon_any_stop(self) -> float:
        """As `upper_epsilon`, whatever decided how many rounds ran: whole plans count whole."""
        return self._readings.now().ledger_any_stop()

    def remaining(self, round_: Round | Event) -> int:
        """How many more such rounds fit beside what is held for plans, chosen as one goes."""
        return rounds_left(self._book.as_of(), round_)

    def remaining_as_plan(
        self, round_: Round | Event, accountant: str = PAIRS, most: int = MAX_ROUNDS
    ) -> int:
        """How many such rounds a plan (see `start_run`) may have now."""
        return rounds_left_as_plan(self._book.as_of(), round_, accountant, most)

    def verify(self, head: str | None = None) -> Verification:
        """Recompute all from the entries alone; ``head``: a `head` that was kept elsewhere."""
        return verify(self._book.as_of(), head)

    def summary(self) -> dict[str, Any]:
        """The facts, as `dpacct ledger show --json` prints them."""
        return summarize(self._readings.now())

    def report(self) -> dict[str, Any]:
        """The facts with the history of all rounds, as a report needs them; reads every entry."""
        from dpacct.ledger.report.facts import report_of  # noqa: PLC0415 - few ledgers need it

        return report_of(self._readings.now())

    def report_markdown(self) -> str:
        """The report for a reviewer, as Markdown; verifies the ledger first."""
        from dpacct.ledger.report.compose import verified_report  # noqa: PLC0415 - as above

        return verified_report(self._readings.now()).to_markdown()

    def report_html(self) -> str:
        """The report for a reviewer, as one page of HTML; verifies the ledger first."""
        from dpacct.ledger.report.compose import verified_report  # noqa: PLC0415 - as above

        return verified_report(self._readings.now()).to_html()

    def plot(self, *, dark: bool = False) -> Drawn:
        """What was spent, over the rounds and by run, as a picture; refused where no round ran."""
        return drawn("draw_ledger", self.report(), dark=dark)

    def export(self) -> Iterator[dict[str, Any]]:
        """Every entry as it stands in the file, with its hash."""
        for entry, _ in (book := self._book.as_of()).store.entries():
            yield book.named(content_of, entry) | {"hash": entry.hash.hex()}

    def __repr__(self) -> str:
        return f"<Ledger {str(self.path)!r}, {self.budget!r}>"


def relabelling(path: object) -> str:
    """What the relabelling of a ledger of version 0.2 means, in a sentence."""
    return (
        f"dpacct 0.2 charged training to {path} as add-remove, where what was released also showed "
        f"how many clients there are. All its rounds are zero-out from now on, at the same epsilon."
    )
