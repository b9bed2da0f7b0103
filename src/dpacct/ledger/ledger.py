"""The durable record of what was spent on one data set, by whatever ran."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from typing import Any, Self

from dpacct import validate
from dpacct.budget import Budget, Spent
from dpacct.display import Drawn, drawn
from dpacct.errors import InvalidParameter, LedgerError
from dpacct.ledger.book import Book, create
from dpacct.ledger.disk.place import locate, new_place
from dpacct.ledger.disk.store import Store
from dpacct.ledger.disk.witness import require
from dpacct.ledger.readings import Guarantee
from dpacct.ledger.record.entries import PAIRS, Entry, Position, Start
from dpacct.ledger.record.events import Event, checked_details
from dpacct.ledger.record.plans import schedule_of
from dpacct.ledger.run import Run
from dpacct.ledger.verify import Verification, verify
from dpacct.rounds import Adjacency, Round, Schedule
from dpacct.validate import MAX_ROUNDS


class Ledger:
    """A ledger file; open it with `Ledger.open`, in a ``with`` block.

    One file is for one data set and one unit of privacy. It may be open in several processes; two
    reservations never share the same room. Objects belong to the thread that made them.

    Attributes:
        path: of the file.
        budget: for all runs together.
        unit: whose data one neighbor lacks, in a word.
        note: a sentence on a ledger of version 0.2 whose rounds are read as zero-out from now on;
            empty for any other, and once this is written in the file.
    """

    def __init__(self, book: Book) -> None:
        if not isinstance(book, Book):
            rule = "a ledger is opened by Ledger.open(path, budget)"
            raise InvalidParameter("ledger", str(book), rule)
        self._book = book
        self.path = book.path
        self.budget = book.budget
        self.unit = book.unit
        self.note = ""
        if book.newly_relabelled:
            self.note = (
                f"dpacct 0.2 charged training to {self.path} as add-remove, where what was "
                f"released also showed how many clients there are. All its rounds are zero-out "
                f"from now on, at the same epsilon."
            )

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
            adjacency: of all rounds; default that of the first one. A zero-out ledger also takes
                add-remove rounds, unless their cohorts have a fixed size, and charges them as
                zero-out.
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
            ledger = cls(Book(store, read_only=read_only))
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
        name = self._book.now().state.adjacency
        return Adjacency(name) if name else None

    @property
    def rounds(self) -> int:
        """The number of charged rounds of all runs."""
        return self._book.now().state.rounds

    @property
    def runs(self) -> tuple[Run, ...]:
        """All runs, in the order in which they were started."""
        now = self._book.now()
        return tuple(Run(self._book, n, now.start(n)) for n in range(1, now.state.runs + 1))

    @property
    def head(self) -> str:
        """Hash of the latest entry, in hex; kept elsewhere, it witnesses all that came before."""
        return self._book.now().head.hash.hex()

    @property
    def position(self) -> Position:
        """The present end of the ledger; `require` compares it later, in this file or a copy."""
        return self._book.now().position()

    def require(self, position: Position, holder: str) -> None:
        """Refuse to go on where the ledger has lost what a `position` of it says it had.

        Args:
            position, holder: what was kept, and where; e.g. in ``the checkpoint run.ckpt``.
        Raises:
            LedgerError: it is another ledger, ends before that entry, or has another one there.
        """
        self._book.store.read(lambda rows: require(rows, position, holder))

    @property
    def guarantee(self) -> Guarantee:
        """The kind of claim that `epsilon` is."""
        return self._book.now().guarantee()

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
        start = _start(name, schedule, details, accountant, private=private)
        return Run(self._book, self._book.start_run(start))

    def resume_run(self, run_id: int) -> Run:
        """Go on with a run, after a crash; rounds that were never committed stay spent.

        Raises:
            LedgerError: there is no such run, or it is finished.
        """
        self._book.resume_run(run_id)
        return Run(self._book, run_id)

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
        start = _start(name, schedule, details, accountant, private=private)
        return Run(self._book, self._book.record(start, schedule, over_budget=over_budget))

    def epsilon(self) -> Spent:
        """Epsilon of all runs together, with the budget's delta; `guarantee` says of what kind.

        Infinite if a round of a run that is not private is charged. Where all rounds were planned,
        it is that of the planned rounds charged so far, for a number of them that was settled in
        advance; `epsilon_any_stop` holds whatever settled it. The lower end reads each round once.
        """
        return self._book.now().interval()

    def upper_epsilon(self) -> float:
        """The upper end of `epsilon` alone: quicker, for once a round."""
        return self._book.now().upper()

    def epsilon_any_stop(self) -> float:
        """Return `upper_epsilon` with whole plans: true whatever decided how many rounds ran."""
        return self._book.now().any_stop()

    def remaining(self, round_: Round | Event) -> int:
        """Return the number of such rounds that fit, chosen as you go; plans keep their room."""
        return self._book.now().rounds_left(round_)

    def remaining_as_plan(
        self, round_: Round | Event, accountant: str = PAIRS, most: int = MAX_ROUNDS
    ) -> int:
        """Return the number of such rounds that a plan (see `start_run`) may have now."""
        return self._book.now().rounds_left_as_plan(round_, accountant, most)

    def verify(self, head: str | None = None) -> Verification:
        """Recompute all from the entries alone; ``head``: a `head` that was kept elsewhere."""
        return verify(self._book.now(), self._book.store, head)

    def summary(self) -> dict[str, Any]:
        """The facts, as `dpacct ledger show --json` prints them."""
        # Few ledgers need it.
        from dpacct.ledger.report.facts import summarize  # noqa: PLC0415 - as said

        return summarize(self._book.now())

    def report(self) -> dict[str, Any]:
        """The facts with the history of all rounds, as a report needs them; reads every entry."""
        from dpacct.ledger.report.facts import report_of  # noqa: PLC0415 - as above

        return report_of(self._book.now())

    def report_markdown(self) -> str:
        """The report for a reviewer, as Markdown; verifies the ledger first."""
        from dpacct.ledger.report.compose import verified_report  # noqa: PLC0415 - as above

        return verified_report(self._book.now(), self._book.store).to_markdown()

    def report_html(self) -> str:
        """The report for a reviewer, as one page of HTML; verifies the ledger first."""
        from dpacct.ledger.report.compose import verified_report  # noqa: PLC0415 - as above

        return verified_report(self._book.now(), self._book.store).to_html()

    def plot(self, *, dark: bool = False) -> Drawn:
        """Return a picture of the spent epsilon, by round and by run; refused if no round ran."""
        return drawn("draw_ledger", self.report(), dark=dark)

    def export(self) -> Iterator[dict[str, Any]]:
        """Every entry as it stands in the file, with its hash."""
        now = self._book.now()
        for entry, _ in now.entries():
            yield now.named(_content, entry) | {"hash": entry.hash.hex()}

    def __repr__(self) -> str:
        return f"<Ledger {str(self.path)!r}, {self.budget!r}>"


def _start(
    name: str,
    plan: Schedule | None,
    details: Mapping[str, Any] | None,
    accountant: str,
    *,
    private: bool,
) -> Start:
    """Return what the entry of a run is to say, checked."""
    return Start(
        validate.line("name", name, "the name of a run"),
        plan,
        bool(private),
        checked_details({} if details is None else details),
        accountant=accountant,
    )


def _content(entry: Entry) -> dict[str, Any]:
    return entry.content
