"""A ledger as of one entry: its totals and plans, epsilon at its delta, and what is left of it.

A reading is proven in this sense: of all ways in which things could have gone, those in which the
ledger reads at most epsilon are (epsilon, delta)-private. The exact statements, and what each kind
of reading assumes, are in docs/derivations/adaptive.md.

Rule 1: what is read at one time is read as of one entry.
Rule 2: a reading of planned rounds holds for a number of them that was settled in advance; the one
called "any stop" counts whole plans, and holds whatever settled it.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Protocol, TypeVar

from dpacct.budget import Interval, Spent
from dpacct.errors import InvalidParameter, LedgerError
from dpacct.ledger.disk.rows import Rows
from dpacct.ledger.disk.store import Store
from dpacct.ledger.record.admission import Holder, Standing
from dpacct.ledger.record.entries import (
    PAIRS,
    Entry,
    LedgerState,
    Opening,
    Position,
    Reserve,
    RunState,
    Said,
    Start,
    read,
    read_state,
)
from dpacct.ledger.record.events import Event, in_adjacency, schedule_in_adjacency
from dpacct.ledger.record.fields import MAX_WHOLE
from dpacct.ledger.record.plans import (
    Charged,
    Plan,
    accountant_of,
    achieved_epsilon,
    epsilon_so_far,
    join,
    most_planned_rounds,
    proven_epsilon,
    together,
)
from dpacct.ledger.record.state import relabelled
from dpacct.renyi.odometer import Totals, add, count_fitting
from dpacct.rounds import Adjacency, Phase, Round, Schedule
from dpacct.validate import MAX_ROUNDS

# Different rounds of the achieved side; more change it little.
_WITNESSES = 32
T = TypeVar("T")


class Guarantee(StrEnum):
    """The kind of claim that a reading is."""

    PLANNED = "planned"
    ADAPTIVE = "adaptive"
    NONE = "none"

    @property
    def in_words(self) -> str:
        """One sentence for people; the claims of a report have the one with the figures."""
        return _WORDS[self]


_WORDS = {
    Guarantee.PLANNED: (
        "Every round was planned before the first one ran, so the tight accountant applies to what "
        "ran so far; if the choice to stop depends on what was released, the whole plan's epsilon "
        "is the one to promise."
    ),
    Guarantee.ADAPTIVE: (
        "Rounds were chosen as results came in; the Renyi odometer covers every way of choosing "
        "them and of stopping."
    ),
    Guarantee.NONE: (
        "The noise did not come from a secret source (a seed was given), so no guarantee holds."
    ),
}


class Reading(Protocol):
    """A function that reads rows in one transaction; see `Store.read`."""

    def __call__(self, action: Callable[[Rows], T], /) -> T:
        """Return what the action returns."""
        ...


class Known:
    """Facts of a ledger that never change, shared by all its snapshots.

    Attributes:
        opening: the first entry.
        relabelled: the rounds of version 0.2 are read as zero-out.
        starts: of runs, with their plans.
        latest: the entry that was written here last, with the totals behind it.
    """

    def __init__(self, opening: Opening) -> None:
        self.opening = opening
        self.relabelled = False
        self.starts: dict[int, tuple[Start, Plan | None]] = {}
        self.latest: tuple[Entry, LedgerState, RunState | None] | None = None
        # Which rounds were released, as far as the file has been read for that.
        self.seen = 0
        self.open: dict[int, Round] = {}
        self.released: dict[int, Counter[Round]] = {}


class Snapshot:
    """A ledger as of one entry (Rule 1). The cost of a reading does not grow with its rounds.

    Entries are never changed, so that all that is read belongs together, however long the reading
    takes and whatever is written meanwhile, and no lock is held for it.

    Attributes:
        path, budget, mixture, unit: of the ledger.
        read: calls a function with the rows up to the entry, and returns what that returns.
        head: the entry.
        state: the totals of all runs.
    """

    def __init__(self, path: Path, read: Reading, head: Entry, known: Known) -> None:
        self.path = path
        self.read = read
        self.head = head
        self.known = known
        opening = known.opening
        self.budget, self.mixture, self.unit = opening.budget, opening.mixture, opening.unit
        self._states: dict[int, tuple[LedgerState, RunState]] = {}
        if known.latest is not None and known.latest[0] == self.head:
            # An entry is what its text says: one that is on disk as it was written is not parsed.
            _, self.state, run = known.latest
        else:
            self.state, run = self.totals(self.head)
        if run is not None:
            self._states[self.head.run] = self.state, run

    # Entries

    @classmethod
    def of(cls, store: Store, head: Entry, known: Known) -> Snapshot:
        """Return a file as it was when an entry was its latest."""
        return cls(store.path, partial(store.read, limit=head.number), head, known)

    def entry(self, number: int) -> Entry:
        """Return one entry, its hash checked."""
        return self.read(lambda rows: rows.entry(number))

    def entries(self, after: int = 0) -> Iterator[tuple[Entry, int | None]]:
        """Yield all entries behind a number, unchecked, each with what it settles."""
        while chunk := self.read(lambda rows: rows.chunk(after)):  # noqa: B023 - used at once
            yield from chunk
            after = chunk[-1][0].number

    def named(self, reader: Callable[[Entry], T], entry: Entry) -> T:
        """Return what a reader of entries gives; if it refuses, name the file and the entry."""
        try:
            return reader(entry)
        except (LedgerError, InvalidParameter) as error:
            why = str(error).removesuffix(".")
            raise LedgerError(f"{self.path}: entry {entry.number}: {why}.") from None

    def said(self, entry: Entry) -> Said:
        """Return what an entry says, its rounds as they are charged now."""
        return self.named(self._said, entry)

    def _said(self, entry: Entry) -> Said:
        said = read(entry)
        if self.known.relabelled and isinstance(said, Reserve):
            return replace(said, charged=in_adjacency(said.charged, Adjacency.ZERO_OUT))
        if self.known.relabelled and isinstance(said, Start) and said.plan is not None:
            return replace(said, plan=schedule_in_adjacency(said.plan, Adjacency.ZERO_OUT))
        return said

    def totals(self, entry: Entry) -> tuple[LedgerState, RunState | None]:
        """Return the totals behind an entry: of all runs, and of its run."""
        orders = len(self.mixture.orders)
        ledger, run = self.named(lambda entry: read_state(entry, orders), entry)
        if self.known.relabelled and ledger.adjacency:
            ledger = relabelled(ledger)
        return ledger, run

    # Runs

    def run_state(self, run: int) -> RunState:
        """Return the totals of one run."""
        return self._latest_of(run)[1]

    def start(self, run: int) -> Start:
        """Return what was said when a run was started."""
        return self._started(run)[0]

    def plan(self, run: int) -> Plan | None:
        """Return the plan of a run, if it has one."""
        return self._started(run)[1]

    def charged(self, run: int) -> Charged:
        """Return the plan of a run with the accountant that it may be charged by."""
        start, plan = self._started(run)
        return Charged(plan.schedule if plan else Schedule(), start.accountant)

    def _latest_of(self, run: int) -> tuple[LedgerState, RunState]:
        if run not in self._states or type(run) is not int:
            found = _is_number(run)
            entry = self.read(lambda rows: rows.latest_of_run(run)) if found else None
            ledger, state = (None, None) if entry is None else self.totals(entry)
            if ledger is None or state is None:
                raise self._no_run(run)
            self._states[run] = ledger, state
        return self._states[run]

    def _started(self, run: int) -> tuple[Start, Plan | None]:
        starts = self.known.starts
        if run not in starts or type(run) is not int:
            found = _is_number(run)
            entry = self.read(lambda rows: rows.first_of_run(run)) if found else None
            start = None if entry is None else self.said(entry)
            if not isinstance(start, Start):
                raise self._no_run(run)
            starts[run] = start, None if start.plan is None else Plan(start.plan)
        return starts[run]

    def _no_run(self, run: int) -> LedgerError:
        return LedgerError(
            f"{self.path}: there is no run {run!r:.40} (runs are 1 to {self.state.runs})."
        )

    def initial_plans(self, *, unfinished: bool = False) -> dict[int, Plan]:
        """Return the plans registered before the first round; if asked, of unfinished runs only."""
        found: dict[int, Plan] = {}
        for run in range(1, self.state.runs + 1):
            state = self.run_state(run)
            plan = self.plan(run) if state.initial else None
            if plan is not None and not (unfinished and state.finished):
                found[run] = plan
        return found

    def standing_plans(self) -> dict[int, Plan]:
        """Return the initial plans but for those that were given up before anything ran."""
        found = self.initial_plans()
        for run in list(found):
            ledger, state = self._latest_of(run)
            if state.finished and not ledger.started:
                del found[run]
        return found

    def charged_plans(self, plans: dict[int, Plan]) -> list[Charged]:
        """Return plans of runs with the accountants that they may be charged by."""
        return [self.charged(run) for run in plans]

    def check_runs(self) -> None:
        """Refuse a ledger whose runs do not add up to its totals.

        The totals of a run stand in its own latest entry, which an index finds: a damaged index
        finds an older one, with less in it. The cost grows with the number of runs.
        """
        runs = [self.run_state(number) for number in range(1, self.state.runs + 1)]
        zero = self.mixture.zero()
        spent, held = add(zero, *(r.spent for r in runs)), add(zero, *(r.held for r in runs))
        ours = (spent, held, sum(run.rounds for run in runs))
        if ours != (self.state.spent, self.state.held, self.state.rounds):
            raise LedgerError(
                f"{self.path}: the runs do not add up to the totals of the ledger; the file was "
                f"damaged. Restore a copy, and treat what is missing as spent."
            )

    def position(self) -> Position:
        """Return how far the ledger has come."""
        released = sum(self.run_state(n).committed for n in range(1, self.state.runs + 1))
        identity = self.entry(1).hash.hex()
        return Position(identity, self.head.number, self.head.hash.hex(), released)

    def released(self) -> dict[int, Counter[Round]]:
        """Return each different round of each run with the number of times it was released."""
        known = self.known
        if known.seen > self.head.number:
            known = Known(known.opening)
            known.relabelled = self.known.relabelled
        for entry, closes in self.entries(known.seen):
            if entry.kind == "reserve":
                said = self.said(entry)
                if isinstance(said, Reserve):
                    known.open[entry.number] = said.charged
            elif closes is not None:
                round_ = known.open.pop(closes, None)
                if entry.kind == "commit" and round_ is not None:
                    known.released.setdefault(entry.run, Counter())[round_] += 1
            known.seen = entry.number
        return known.released

    # Epsilon of one run by itself, its privacy taken for granted

    def run_guarantee(self, run: int) -> Guarantee:
        """Return the kind of claim of `run_upper`."""
        state = self.run_state(run)
        if not state.private:
            return Guarantee.NONE
        return Guarantee.PLANNED if state.on_plan else Guarantee.ADAPTIVE

    def run_upper(self, run: int) -> float:
        """Return the proven epsilon of one run."""
        state = self.run_state(run)
        if state.on_plan:
            return epsilon_so_far(self.charged(run), self._so_far(run), self.budget.delta)
        return self.adaptive(state.spent, self.state.delta)

    def run_any_stop(self, run: int) -> float:
        """Return `run_upper` with the whole plan (Rule 2)."""
        if not self.run_state(run).on_plan:
            return self.run_upper(run)
        return proven_epsilon(self.charged(run), self.budget.delta, math.inf)

    def run_interval(self, run: int) -> Spent:
        """Return the achieved and proven epsilon of one run."""
        so_far = self._so_far(run) if self.run_state(run).on_plan else None
        released = self.released().get(run, Counter[Round]())
        return self._interval(released, so_far, self.run_upper(run))

    # Epsilon of all runs together

    def guarantee(self) -> Guarantee:
        """Return the kind of claim of `upper`."""
        if self.state.exposed:
            return Guarantee.NONE
        planned = self.state.started and not self.state.loose
        return Guarantee.PLANNED if planned else Guarantee.ADAPTIVE

    def upper(self) -> float:
        """Return the proven epsilon of all runs; infinite if a round was not private."""
        state = self.state
        if state.exposed:
            return math.inf
        if state.loose:
            return self.adaptive(state.spent, state.delta)
        whole = together(self.charged_plans(self.initial_plans()))
        return epsilon_so_far(whole, self._all_so_far(), self.budget.delta)

    def any_stop(self) -> float:
        """Return `upper` with whole plans: the figure to promise (Rule 2)."""
        if self.guarantee() is not Guarantee.PLANNED:
            return self.upper()
        return proven_epsilon(self.whole_plan(), self.budget.delta, math.inf)

    def interval(self) -> Spent:
        """Return the achieved and proven epsilon of all runs together."""
        so_far = None if self.state.loose else self._all_so_far()
        total: Counter[Round] = Counter()
        for counts in self.released().values():
            total.update(counts)
        return self._interval(total, so_far, self.upper())

    def whole_plan(self) -> Charged:
        """Return all that was planned before the first round, with its accountant.

        Where the claim is `Guarantee.PLANNED`, all that was released comes from it.
        """
        return together(self.charged_plans(self.standing_plans()))

    def planned_rounds(self) -> tuple[int, int]:
        """Return how many places in initial plans are used, and how many there are."""
        plans = self.standing_plans()
        used = sum(min(self.run_state(run).cursor, plans[run].rounds) for run in plans)
        return used, sum(plan.rounds for plan in plans.values())

    def adaptive(self, spent: Totals, delta: float) -> float:
        """Return the proven epsilon of rounds that were chosen one by one.

        Args:
            spent: their Renyi totals.
            delta: what the initial plans leave of the budget's. Beyond the budget, where rounds
                that had run elsewhere were recorded, nothing is left to divide: all of it counts.
        """
        found = self.mixture.epsilon(spent, delta)
        over = found > self.budget.epsilon
        return self.mixture.epsilon(spent, self.budget.delta) if over else found

    def standing(self) -> Standing:
        """Return what the ledger reads, and which runs hold room, for a refusal."""
        holders: list[Holder] = []
        for run in range(1, self.state.runs + 1):
            found, plan = self.run_state(run), self.plan(run)
            if any(found.held) and plan is not None:
                holders.append(Holder(run, self.start(run).name, plan.rounds - found.cursor))
        return Standing(self.path, self.budget, self.any_stop(), tuple(holders))

    def _so_far(self, run: int) -> Schedule:
        """Return the part of a run's plan that it has used."""
        plan = self.plan(run)
        return Schedule() if plan is None else plan.first(self.run_state(run).cursor)

    def _all_so_far(self) -> Schedule:
        return join(map(self._so_far, self.initial_plans()))

    def _interval(self, released: Counter[Round], so_far: Schedule | None, upper: float) -> Spent:
        delta = self.budget.delta
        # Fewer rounds than were released cost no more.
        witnesses = Schedule(Phase(r, n) for r, n in released.most_common(_WITNESSES))
        if so_far is not None and so_far.distinct() == released:
            witnesses = so_far
        return Spent.at(delta, Interval.bracket(achieved_epsilon(witnesses, delta), upper))

    # What is left

    def rounds_left(self, asked: Round | Event) -> int:
        """Return how many more such rounds fit beside what is held, chosen as one goes."""
        cost = self.mixture.cost(self._as_charged(asked))
        return count_fitting(self.mixture, self.state.charged, cost, self.budget, self.state.delta)

    def rounds_left_as_plan(
        self, asked: Round | Event, accountant: str = PAIRS, most: int = MAX_ROUNDS
    ) -> int:
        """Return how many such rounds a plan may have that is registered now, up to ``most``."""
        round_, chosen = self._as_charged(asked), self.rounds_left(asked)
        if self.state.started:
            return min(most, chosen)
        plans = self.charged_plans(self.initial_plans(unfinished=True))
        charged_by = accountant_of(2 * round_, accountant)
        return most_planned_rounds(
            self.mixture, self.budget, plans, round_, chosen, charged_by, most
        )

    def _as_charged(self, asked: Round | Event) -> Round:
        event = asked if isinstance(asked, Event) else Event(asked)
        return in_adjacency(event.charged, self.state.adjacency)


def _is_number(run: object) -> bool:
    return type(run) is int and 0 < run <= MAX_WHOLE
