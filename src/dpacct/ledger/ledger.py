"""The durable record of the privacy budget that all runs spend on one data set, and its terms.

An epsilon has a meaning only at its delta. So a run shares the terms of its ledger, or is rejected
before anything is computed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, cast

from dpacct import validate
from dpacct.budget import Budget, Spent
from dpacct.display import Drawn, chosen, drawn, html_table, up
from dpacct.errors import BudgetExceeded, InvalidParameter, LedgerError
from dpacct.ledger.disk.place import locate, new_place
from dpacct.ledger.disk.store import Store, make_file
from dpacct.ledger.disk.witness import require
from dpacct.ledger.postgres.address import Address
from dpacct.ledger.readings import Guarantee, Snapshot, naming
from dpacct.ledger.record.entries import MOST_AHEAD, Opening, Position, Start, new_entry, reading
from dpacct.ledger.record.events import Event, checked_details
from dpacct.ledger.record.parts import check_part, checked_partitions
from dpacct.ledger.record.plans import PAIRS, Plan, accountant_of, schedule_of
from dpacct.ledger.record.state import empty_ledger, state_text
from dpacct.ledger.run import Run
from dpacct.ledger.verify import Verification, verify
from dpacct.ledger.writing import LedgerFile, Transaction, admitted
from dpacct.renyi.odometer import design_mixture
from dpacct.rounds import AccountantName, Adjacency, AdjacencyName, Release, Schedule
from dpacct.validate import MAX_ROUNDS

if TYPE_CHECKING:
    from dpacct.ledger.postgres.organization import Organization
    from dpacct.outputs import LedgerReport, LedgerSummary
    from dpacct.report import Report


# The version of the running code, for entries and reports. The package imports the ledger: an
# import statement would be a circle.
SOFTWARE = f"dpacct {sys.modules['dpacct'].__version__}"


class Ledger:
    """A ledger file. Open it with `Ledger.open`, in a ``with`` block.

    One file is for one data set and one unit of privacy. It may be open in several processes. Two
    reservations never share the same room. Objects belong to the thread that made them.

    Attributes:
        path: of the file.
        budget: for all runs together.
        unit: the privacy unit, e.g. ``client``.
        note: a sentence on a ledger of version 0.3 with totals that are too low. It is empty for
            other ledgers, and once something was written to the file.
    """

    def __init__(self, file: LedgerFile) -> None:
        if not isinstance(file, LedgerFile):
            rule = "a ledger is opened by Ledger.open(path, budget)"
            raise InvalidParameter("ledger", str(file), rule)
        self._file = file
        self.path = file.path
        self.budget = file.known.opening.budget
        self.unit = file.known.opening.unit
        self.note = file.note

    @classmethod
    def open(
        cls,
        path: str | os.PathLike[str] | Address,
        budget: Budget | None = None,
        *,
        adjacency: Adjacency | AdjacencyName | None = None,
        unit: str = "client",
        typical: Release | Schedule | None = None,
        promised_delta: float = 0.0,
        partitions: Mapping[str, Iterable[str]] | None = None,
        read_only: bool = False,
        passing: bool = False,
    ) -> Ledger:
        """Make a ledger, or open an existing one.

        Args:
            path: of the file, on a local disk, or an address in a database that machines share:
                ``postgresql://USER@HOST/DATABASE#NAME``.
            budget: needed for a new file. For an existing file it must be equal, or None.
            adjacency: of all rounds. Default: that of the first round. A zero-out ledger also takes
                add-remove rounds, unless their cohorts have a fixed size, and charges them as
                zero-out.
            unit: of privacy, for a new file: the difference of neighboring data sets.
            typical: for a new file: a round, or schedule, like those expected. It chooses the
                orders of the adaptive bound. Only tightness depends on it.
            promised_delta: for a new file: the part of the budget's delta for promises whose loss
                may be infinite, such as `ApproximateDP`. All other rounds have the rest. All of
                delta allows promises and pure releases alone, whose epsilons add up.
            partitions: for a new file: its parts by name, such as {"country": ["DE", "FR"]}. Each
                client belongs to one of them, by a public rule that no release changes.
            read_only: open an existing file for reading only.
            passing: it will be deleted with its process, so that nothing is flushed to disk.
        Raises:
            LedgerError: the file is missing (without a budget), damaged, or of a later version, or
                it cannot be written.
            InvalidParameter: the file is not a ledger, or budget or adjacency contradict it.
        """
        if budget is not None and not isinstance(budget, Budget):
            raise InvalidParameter("budget", budget, "a budget is Budget(epsilon, delta)")
        validate.flag("read_only", read_only)
        validate.flag("passing", passing)
        relation = "" if adjacency is None else str(Adjacency.parse(adjacency))
        find, name, make, opened = _words(path)
        place = find(path)
        if place is None:
            place = name(path)
            if budget is None or read_only:
                raise LedgerError(
                    f"{place.path}: no ledger can be opened: No such file or directory."
                )
            # If another process makes it at the same time, that first entry counts.
            validate.line("unit", unit, "a unit of privacy")
            mixture = design_mixture(budget, typical, promised_delta)
            declared = checked_partitions(partitions)
            data: dict[str, Any] = {"budget": asdict(budget), "unit": unit, "software": SOFTWARE}
            data |= {"orders": mixture.orders, "weights": mixture.weights, "adds_up": True}
            data |= {"promised_delta": mixture.promised_delta} if mixture.promised_delta else {}
            data |= {"partitions": declared} if declared else {}
            data |= {"adjacency": relation} if relation else {}
            opening = Opening(budget, mixture, unit, SOFTWARE, declared, relation)
            totals = state_text(empty_ledger(opening), None)
            make(place, new_entry(None, "ledger", 0, data, totals), totals)
        store = opened.open(place, read_only=read_only)
        if passing:
            store.pass_with_process()
        try:
            ledger = cls(LedgerFile(store))
            ledger._agree(budget, relation)
        except BaseException:
            store.close()
            raise
        return ledger

    def _agree(self, budget: Budget | None, adjacency: str) -> None:
        of_file = f"the ledger at {str(self.path)!r} has"
        if budget is not None and budget != self.budget:
            rule = f"{of_file} {self.budget!r}"
            raise InvalidParameter("budget", budget, rule, "A budget is chosen once.")
        if adjacency and self.adjacency not in (None, adjacency):
            raise InvalidParameter("adjacency", adjacency, f"{of_file} {self.adjacency}", self.note)

    def close(self) -> None:
        """Close the file. Its runs and tickets cannot be used any more.

        Rounds that are reserved ahead and not taken are given back.
        """
        for give_back in self._file.give_back:
            with suppress(LedgerError):
                give_back()
        self._file.store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_failure: object) -> None:
        self.close()

    # Writing

    def start_run(
        self,
        name: str,
        plan: Schedule | Release | None = None,
        *,
        private: bool = True,
        details: Mapping[str, Any] | None = None,
        accountant: AccountantName = PAIRS,
        project: str = "",
        ahead: int = 1,
    ) -> Run:
        """Register a run.

        Args:
            name: one line of at most 200 printable characters.
            plan: its schedule, made of `Event.charged` rounds. Room for all of it is held. None:
                rounds are chosen as the run goes.
            private: False if the noise does not come from a secret source (a seed was given). Then
                no guarantee holds for the releases of the run, and the ledger records that.
            details: anything worth keeping, as JSON: configuration, model, user.
            accountant: "tight" promises that no client remembers whether it took part.
            project: the group of runs that it belongs to, which `summary` adds up.
            ahead: how many equal rounds of the plan one entry reserves, see `Run.reserve`.
        Raises:
            BudgetExceeded: the plan does not fit. InvalidParameter: the name or the details are
                invalid, or the plan has another adjacency. LedgerError: the file cannot be written.
        """
        schedule = None if plan is None else schedule_of("plan", plan)
        start = _start(name, schedule, details, accountant, private=private, project=project)

        # A tight accountant takes long, and the file stays open to other processes meanwhile.
        def compute(now: Snapshot) -> Callable[[Transaction], int]:
            found = admitted(now, start)
            return lambda opened: opened.register(found)

        ahead = validate.count("ahead", ahead, "the number of rounds ahead", MOST_AHEAD)
        return Run(self._file, self._file.write_computed(compute), ahead=ahead)

    def resume_run(self, run_id: int, *, ahead: int = 1) -> Run:
        """Continue a run after a crash. Rounds that may have been drawn stay spent.

        Rounds that the earlier process had reserved ahead of these are given back, and it can
        release none of them any more. ``ahead`` is as for `start_run`.

        Raises:
            LedgerError: there is no such run, or it is finished.
        """
        ahead = validate.count("ahead", ahead, "the number of rounds ahead", MOST_AHEAD)

        def go_on(opened: Transaction) -> None:
            opened.append("resume", run_id, {}, (opened.state, opened.open_run(run_id)))
            opened.give_back_ahead(run_id)

        self._file.write(go_on)
        return Run(self._file, run_id, ahead=ahead)

    def charge(
        self,
        *what: str | Schedule | Release,
        name: str | None = None,
        rounds: Schedule | Release | None = None,
        private: bool = True,
        over_budget: bool = False,
        details: Mapping[str, Any] | None = None,
        accountant: AccountantName = PAIRS,
        project: str = "",
        part: str = "",
    ) -> Run:
        """Charge releases at once, or none of them, as a finished run. They are on disk on return.

        ``ledger.charge(Laplace(epsilon=0.1), name="age histogram")`` charges a release before it is
        made. Rounds that ran elsewhere are recorded in the same way.

        Args:
            what: a name and the releases, in any order, or the releases alone with ``name``.
            name: one line of at most 200 printable characters.
            rounds: the releases. Any number of equal ones takes 2 kB. If their number depends on
                released values, give the planned ones.
            over_budget: record them even if they do not fit. The ledger then admits nothing more.
            part: the part of the data that they use, such as "country=DE", of a partition that was
                declared when the ledger was made. A partition costs as much as its worst part.
            private, details, accountant, project: as for `start_run`.
        Raises:
            BudgetExceeded: they do not fit. InvalidParameter: the part is not declared, or
                neighbors differ in two parts (replace-one). Otherwise as `start_run`.
        """
        named, asked = _name_and_rounds(what, name, rounds)
        schedule = schedule_of("rounds", asked)
        validate.flag("over_budget", over_budget)
        if part:
            check_part(part, self._file.known.opening.partitions, str(schedule.adjacency))
        start = _start(named, schedule, details, accountant, private=private, project=project)
        # Parts cost the largest total of a part, which no accountant of plans computes.
        start = replace(start, plan=None if part else start.plan, part=part, rounds=schedule)
        self._file.prepare(schedule)

        try:
            number = self._file.write(lambda opened: opened.record(start))
        except BudgetExceeded:
            if not over_budget:
                raise
            outside = replace(start, plan=None, over_budget=True)
            number = self._file.write(lambda opened: opened.record(outside))
        return Run(self._file, number)

    # Readings

    @property
    def adjacency(self) -> Adjacency | None:
        """The neighboring relation of all rounds, or None before the first."""
        name = self._file.now().state.adjacency
        return Adjacency(name) if name else None

    @property
    def rounds(self) -> int:
        """The number of charged rounds of all runs."""
        return self._file.now().state.rounds

    @property
    def runs(self) -> tuple[Run, ...]:
        """All runs, in the order in which they were started."""
        now = self._file.now()
        return tuple(Run(self._file, number, now.start(number)) for number in now.runs())

    @property
    def head(self) -> str:
        """The hash of the latest entry, in hex. A copy of it elsewhere exposes a truncated file."""
        return self._file.now().head.hash.hex()

    @property
    def last_written(self) -> str:
        """The time of the latest entry, as ISO 8601 in UTC."""
        return self._file.now().head.time

    @property
    def position(self) -> Position:
        """The present end of the ledger. `require` compares it later, in this file or a copy."""
        return self._file.now().position()

    def require(self, position: Position, holder: str) -> None:
        """Reject a ledger that has lost entries that a `position` of it had.

        Args:
            position, holder: the kept position, and its place, e.g. ``the checkpoint run.ckpt``.
        Raises:
            LedgerError: it is another ledger, ends before that entry, or has another one there.
        """
        self._file.store.read(lambda rows: require(rows, position, holder))

    @property
    def guarantee(self) -> Guarantee:
        """The kind of claim that `epsilon` is."""
        return self._file.now().guarantee()

    def epsilon(self) -> Spent:
        """Return epsilon of all runs together, with the budget's delta (see `guarantee`).

        Infinite if a round of a run that is not private is charged. If all rounds were planned, it
        covers the planned rounds charged so far, for a number of rounds that was fixed in advance.
        `epsilon_any_stop` holds for every rule of stopping. The lower end reads each round once.
        """
        return self._file.now().interval()

    def upper_epsilon(self) -> float:
        """Return only the upper bound of `epsilon`. This is quicker, for use in every round."""
        return self._file.now().upper()

    def epsilon_any_stop(self) -> float:
        """Return `upper_epsilon` with whole plans: valid even if results decide when to stop."""
        return self._file.now().any_stop()

    def would_read(self, schedule: Schedule | Release, accountant: AccountantName = PAIRS) -> Spent:
        """Return what `epsilon` would be after `charge` of these releases. Nothing is written.

        Args:
            schedule, accountant: as for `charge`.
        Raises:
            BudgetExceeded: they do not fit. InvalidParameter: as for `charge`.
        """
        asked = schedule_of("schedule", schedule)
        start = _start("tried", asked, None, accountant, private=True, project="")
        start = replace(start, rounds=asked)
        self._file.prepare(asked)
        return self._file.tried(lambda opened: (opened.record(start), opened.interval())[1])

    def remaining(self, round_: Release | Schedule | Event) -> int:
        """Return the number of such rounds that one `charge` may hold now, beside all plans.

        With a schedule, it is the number of its repetitions. It is `remaining_as_plan` by pairs.
        Rounds that are reserved one by one may be fewer.
        """
        return self._file.now().rounds_left_as_plan(round_)

    def remaining_one_by_one(self, round_: Release | Schedule | Event) -> int:
        """Return the number of such rounds that fit if they are chosen as results come in."""
        return self._file.now().rounds_left(round_)

    def remaining_as_plan(
        self,
        round_: Release | Schedule | Event,
        accountant: AccountantName = PAIRS,
        most: int = MAX_ROUNDS,
    ) -> int:
        """Return the number of such rounds that a plan (see `start_run`) may have now."""
        most = validate.count("most", most, "the number of rounds")
        return self._file.now().rounds_left_as_plan(round_, accountant, most)

    def verify(
        self, head: str | None = None, *, all_entries: bool = True, keep: bool = False
    ) -> Verification:
        """Recompute everything from the entries.

        Args:
            head: a `head` that was kept elsewhere, to be found in the chain.
            all_entries: False goes on where an earlier verification ended that was kept.
            keep: keep in the file up to where it is sound. It is open for writing.
        """
        return verify(self._file.now(), self._file.store, head, all_entries=all_entries, keep=keep)

    def summary(self) -> LedgerSummary:
        """Return the facts, as `dpacct ledger show --json` prints them."""
        # Few ledgers need reports.
        from dpacct.ledger.report.facts import summarize  # noqa: PLC0415 - few need it

        return summarize(self._file.now())

    def report(self) -> LedgerReport:
        """Return the facts with the history of all rounds, for a report, from all entries."""
        from dpacct.ledger.report.facts import report_of  # noqa: PLC0415 - as above

        return report_of(self._file.now(), self._file.store, SOFTWARE)[0]

    def report_document(self) -> Report:
        """Verify the ledger, and return the report for a reviewer in all its forms."""
        from dpacct.ledger.report.compose import verified_report  # noqa: PLC0415 - as above

        return verified_report(self._file.now(), self._file.store, SOFTWARE)

    def report_markdown(self) -> str:
        """Verify the ledger, and return the report for a reviewer as Markdown."""
        return self.report_document().to_markdown()

    def report_html(self) -> str:
        """Verify the ledger, and return the report for a reviewer as one page of HTML."""
        return self.report_document().to_html()

    def plot(self) -> Drawn:
        """Return a picture of the spent epsilon, by round and by run, of at least one round."""
        return drawn("ledger_picture", self.report())

    def export(self) -> Iterator[dict[str, Any]]:
        """Yield every entry of the file, with its time and the text that its hash is of.

        ``data`` is what happened. The charged round stands in each reservation.
        """
        now, kinds = self._file.now(), dict[int, dict[str, Any]]()
        for entry in now.entries():
            with naming(self.path, entry), reading():
                index = {key: getattr(entry, key) for key in ("number", "run", "kind", "closes")}
                data = entry.data
                if entry.kind == "kind":
                    kinds[entry.number] = {k: data[k] for k in data if k not in ("cost", "t")}
                data = {**kinds.get(data.get("k", 0), {}), **data}
                found = {**index, "time": entry.time, "data": data}
            yield {**found, "text": entry.text, "hash": entry.hash.hex()}

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        budget = f"of {chosen(self.budget.epsilon, least=True)}, at delta {self.budget.delta:g}"
        return html_table([
            ("epsilon", up(self.epsilon_any_stop(), 5), f"spent, {budget}"),
            ("rounds", f"{self.rounds:,}", f"charged, in {len(self.runs)} runs"),
            ("unit", self.unit, str(self.adjacency or "")),
            ("ledger", str(self.path), ""),
        ])  # fmt: skip

    @property
    def organization(self) -> Organization:
        """The teams of a ledger in a database: rights, quotas, requests for approval.

        Raises:
            LedgerError: the ledger is a file.
        """
        from dpacct.ledger.postgres.organization import Organization  # noqa: PLC0415 - as above

        return Organization(self._file.store, self.charge)

    def __repr__(self) -> str:
        return f"<Ledger {str(self.path)!r}, {self.budget!r}>"


def is_there(path: str | os.PathLike[str] | Address) -> bool:
    """Return whether a ledger exists: a file, or one of a database."""
    place = as_place(path)
    return place.exists() if isinstance(place, Path) else _words(path)[0](path) is not None


def as_place(path: str | os.PathLike[str] | Address) -> Path | Address:
    """Return the path of a file, or an address without its password."""
    if isinstance(path, Address) or validate.is_address(path):
        return Address.parse(cast("str | Address", path))
    return Path(path)


def _words(path: object) -> tuple[Any, Any, Any, Any]:
    """Return how to find, name, make and open a ledger: a file, or one in a database."""
    if not validate.is_address(path):
        return locate, new_place, make_file, Store
    from dpacct.ledger.postgres import store  # noqa: PLC0415 - few ledgers need psycopg

    return store.locate, store.new_place, store.make_file, store.Store


def _start(
    name: str,
    schedule: Schedule | None,
    details: Mapping[str, Any] | None,
    accountant: AccountantName,
    *,
    private: bool,
    project: str,
) -> Start:
    """Return the checked content of the entry of a run."""
    charged_by = accountant_of(schedule, accountant)
    return Start(
        validate.line("name", name, "the name of a run"),
        None if schedule is None else Plan(schedule, charged_by),
        validate.flag("private", private),
        checked_details(details),
        project=validate.line("project", project, "the name of a project") if project else "",
    )


def _name_and_rounds(
    what: tuple[object, ...], name: object, rounds: object
) -> tuple[str, Schedule | Release]:
    """Return the name and the releases, which may stand in any order."""
    given: list[object] = [*what, *(one for one in (name, rounds) if one is not None)]
    names = [one for one in given if isinstance(one, str)]
    asked = [one for one in given if isinstance(one, Schedule | Release)]
    if len(names) != 1 or len(asked) != 1 or len(given) != 2:
        rule = "a charge has one name, and one schedule or release"
        raise InvalidParameter("rounds", rounds if rounds is not None else what, rule)
    return names[0], asked[0]


# Units of privacy of runs. A ledger may have any other word.
CLIENT, EXAMPLE = "client", "example"


@dataclass(frozen=True, slots=True)
class Terms:
    """The terms of one ledger, with attributes as for `Ledger`."""

    path: Path | Address
    budget: Budget
    adjacency: Adjacency | None
    unit: str = CLIENT
    note: str = ""

    @classmethod
    def of(cls, ledger: Ledger) -> Terms:
        """Return those of an open ledger."""
        return cls(ledger.path, ledger.budget, ledger.adjacency, ledger.unit, ledger.note)

    def check(
        self, delta: float | None, adjacency: Adjacency | None = None, unit: str = ""
    ) -> float:
        """Return the delta of a run: the ledger's.

        Args:
            delta: that the run asked for, or None.
            adjacency: of the run, if it is known.
            unit: that the run protects, if it is known. A client may have any other name in the
                ledger but that of an example.
        Raises:
            InvalidParameter: the run asked for another delta, adjacency or unit.
        """
        own = self.budget.delta
        if delta is not None and delta != own:
            rule = f"the ledger {self.path} has delta {own!r}, which all its runs share"
            raise InvalidParameter(
                "delta", delta, rule, f"Leave it out, give {own!r}, or charge another ledger."
            )
        # `record.events.in_adjacency` decides which add-remove rounds become zero-out.
        weaker = self.adjacency is Adjacency.ZERO_OUT and adjacency is Adjacency.ADD_REMOVE
        if adjacency is not None and self.adjacency not in (None, adjacency) and not weaker:
            rule = f"all rounds of a ledger share one, and {self.path} has {self.adjacency}"
            hint = "Take that one, or charge another ledger."
            if self.adjacency is Adjacency.ADD_REMOVE and adjacency is Adjacency.ZERO_OUT:
                hint = (
                    "Declare a public number of clients with public_size=, which allows "
                    "add-remove, or charge another ledger."
                )
            raise InvalidParameter("adjacency", str(adjacency), rule, hint)
        named = unit == CLIENT and self.unit != EXAMPLE
        if unit and unit != self.unit and not named:
            rule = f"the ledger {self.path} protects one {self.unit}, and the run one {unit}"
            raise InvalidParameter("ledger", str(self.path), rule, "Charge another ledger.")
        return own


def known_terms(ledger: Ledger | Address | str | os.PathLike[str] | None) -> Terms | None:
    """Return the terms of an existing ledger, or None if a new one will be made."""
    if ledger is None or isinstance(ledger, Ledger):
        return None if ledger is None else Terms.of(ledger)
    if not is_there(ledger):
        return None
    with Ledger.open(ledger, read_only=True) as found:
        return Terms.of(found)
