"""The durable record of what was spent on one data set, by whatever ran."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dpacct import validate
from dpacct.budget import Budget, Interval
from dpacct.errors import InvalidParameter, LedgerError
from dpacct.ledger.book import Book
from dpacct.ledger.chain import new_entry
from dpacct.ledger.document import Block
from dpacct.ledger.events import Event, checked_details
from dpacct.ledger.history import read_history
from dpacct.ledger.initial import initial_plans
from dpacct.ledger.plans import most_planned_rounds
from dpacct.ledger.position import Position, require
from dpacct.ledger.readings import Committed, Guarantee, Readings
from dpacct.ledger.report import compose
from dpacct.ledger.report_html import to_html
from dpacct.ledger.report_markdown import to_markdown
from dpacct.ledger.run import Run
from dpacct.ledger.state import empty_ledger
from dpacct.ledger.state_json import state_to_json
from dpacct.ledger.store import Store
from dpacct.ledger.summary import summarize, with_history
from dpacct.ledger.verify import Verification, verify
from dpacct.odometer import count_fitting, design_mixture
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
        self._committed = Committed()
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
        Raises:
            LedgerError: the file is missing (without a budget), damaged, foreign or of a later
                version, or it cannot be written.
            InvalidParameter: budget or adjacency contradict those of the file.
        """
        file = Path(path)
        if budget is not None and not isinstance(budget, Budget):
            raise InvalidParameter("budget", budget, "a budget is Budget(epsilon, delta)")
        relation = "" if adjacency is None else str(Adjacency.parse(adjacency))
        if budget is not None and not read_only and not file.exists():
            _create(file, budget, relation, unit, typical)
        store = Store.open(file, read_only=read_only)
        try:
            ledger = cls(Book(store))
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
        return tuple(Run(self._book, self._committed, n) for n in range(1, count + 1))

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
        return self._now().ledger_guarantee()

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
            name: for people; one line of at most 200 printable characters.
            plan: its schedule, made of what `Event.charged` says; room for all of it is held. None:
                rounds are chosen as the run goes.
            private: False if the noise does not come from a secret source (a seed was given). Then
                no guarantee holds for what the run releases, and the ledger says so.
            details: anything worth keeping, as JSON: configuration, model, who started it.
        Raises:
            BudgetExceeded: the plan does not fit. InvalidParameter: a name or details that are
                none, or a plan of another adjacency. LedgerError: the file cannot be written.
        """
        validate.line("name", name, "the name of a run")
        schedule = 1 * plan if isinstance(plan, Round) else plan
        if schedule is not None and not schedule.rounds:
            raise InvalidParameter("plan", plan, "a plan has at least one round")
        kept = checked_details({} if details is None else details)
        number = self._book.start_run(name, schedule, private=bool(private), details=kept)
        return Run(self._book, self._committed, number)

    def resume_run(self, run_id: int) -> Run:
        """Go on with a run, after a crash or in another process.

        Rounds that were reserved and never committed stay spent.

        Raises:
            LedgerError: there is no such run, or it is finished.
        """
        self._book.resume_run(run_id)
        return Run(self._book, self._committed, run_id)

    def epsilon(self) -> Interval:
        """Epsilon of all runs together, at the budget's delta; `guarantee` says of what kind.

        Infinite if a round of a run that is not private is charged. Where all rounds were planned,
        it is that of the planned rounds charged so far, for a number of them that was settled in
        advance; `epsilon_any_stop` holds whatever settled it. The upper end takes the same time
        however many rounds there are; for the lower end the released rounds are read once.
        """
        return self._now().ledger_interval()

    def upper_epsilon(self) -> float:
        """The upper end of `epsilon` alone: quicker, for once a round."""
        return self._now().ledger_upper()

    def epsilon_any_stop(self) -> float:
        """Proven epsilon of all runs together whatever decided how many rounds ran.

        Where all rounds were planned, that of the whole plans; else the upper end of `epsilon`.
        """
        return self._now().ledger_any_stop()

    def _now(self) -> Readings:
        """Readings as of the latest entry: what they say belongs together."""
        return Readings(self._book.as_of(), self._committed)

    def remaining(self, round_: Round | Event) -> int:
        """How many more such rounds fit, chosen as one goes; at most 10^12.

        What is held for plans is not available. Before anything has run, a plan of such rounds may
        be longer: `remaining_as_plan`.
        """
        return self._remaining(self._book.as_of(), round_)

    def _remaining(self, book: Book, round_: Round | Event) -> int:
        charged = round_.charged if isinstance(round_, Event) else round_
        state = book.state()
        book.adjacency_with(state, charged.adjacency)
        cost = book.mixture.cost(charged)
        return count_fitting(book.mixture, state.charged, cost, book.budget, state.delta)

    def remaining_as_plan(self, round_: Round | Event) -> int:
        """How many such rounds a plan may have that is registered now; at most 10^12."""
        charged = round_.charged if isinstance(round_, Event) else round_
        book = self._book.as_of()
        chosen = self._remaining(book, round_)
        if book.state().started:
            return chosen
        plans = [plan.schedule for plan in initial_plans(book, unfinished=True).values()]
        return most_planned_rounds(book.mixture, self.budget, plans, charged, chosen)

    def verify(self, head: str | None = None) -> Verification:
        """Recompute the chain, the cost of every round and every total, from the entries alone.

        Args:
            head: a `head` that was kept elsewhere. Without one, entries that somebody dropped from
                the end of the file leave no trace.
        """
        return verify(self._book.as_of(), head)

    def summary(self) -> dict[str, Any]:
        """The facts, as `dpacct ledger show --json` prints them."""
        now = self._now()
        return summarize(now.book, now)

    def report(self) -> dict[str, Any]:
        """The facts with the history of all rounds, as a report needs them; reads every entry."""
        return self._report(self._now())

    def _report(self, now: Readings) -> dict[str, Any]:
        found = with_history(summarize(now.book, now), read_history(now.book, now))
        return found | {"reporter": software()}

    def _blocks(self) -> list[Block]:
        now = self._now()
        return compose(self._report(now), verify(now.book))

    def report_markdown(self) -> str:
        """The report for a reviewer, as Markdown; verifies the ledger first."""
        return to_markdown(self._blocks())

    def report_html(self) -> str:
        """The report for a reviewer, as one page of HTML; verifies the ledger first."""
        return to_html(self._blocks())

    def export(self) -> Iterator[dict[str, Any]]:
        """Every entry as it stands in the file, with its hash."""
        book = self._book.as_of()
        for entry, _ in book.store.entries():
            yield book.content(entry) | {"hash": entry.hash.hex()}

    def __repr__(self) -> str:
        return f"<Ledger {str(self.path)!r}, {self.budget!r}>"


def software() -> str:
    """The version that is installed."""
    try:
        return f"dpacct {version('dpacct')}"
    except PackageNotFoundError:
        return "dpacct, version unknown"


def _create(
    file: Path, budget: Budget, adjacency: str, unit: str, typical: Round | Schedule | None
) -> None:
    validate.line("unit", unit, "a unit of privacy")
    if not file.parent.is_dir():
        raise LedgerError(f"{file}: no ledger can be made: there is no folder {file.parent}.")
    mixture = design_mixture(budget, typical)
    data: dict[str, Any] = {
        "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
        "orders": list(mixture.orders),
        "weights": list(mixture.weights),
        "unit": unit,
        "software": software(),
    }
    state = state_to_json(empty_ledger(mixture.zero(), budget.delta, adjacency), None)
    Store.create(file, new_entry(None, "ledger", 0, data, state))
