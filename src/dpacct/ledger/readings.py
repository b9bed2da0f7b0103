"""A ledger as of one entry: its totals and plans, epsilon at its delta, and the remaining budget.

A reading is proven in this sense: of all possible courses of events, those in which the ledger
reads at most epsilon are (epsilon, delta)-private. The exact statements, and the assumptions
of each kind of reading, are in docs/derivations/adaptive.md.

Rule 1: all that is read at one time is read as of one entry. Totals that are stored are those of
the digests of their entries, and none is older than it should be.
Rule 2: a reading of planned rounds holds for a number of rounds that was fixed in advance. The
reading called "any stop" counts whole plans, and holds even if results decide when to stop.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from copy import copy
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import TypeVar

from dpacct.budget import Interval, Spent
from dpacct.display import line
from dpacct.errors import InvalidParameter, LedgerError
from dpacct.ledger.disk.rows import StoredEntries
from dpacct.ledger.disk.store import Store
from dpacct.ledger.record import entries as chain
from dpacct.ledger.record import plans as planning
from dpacct.ledger.record import state as rules
from dpacct.ledger.record.entries import Entry, Kind, Opening, Position, Reserve, Start
from dpacct.ledger.record.events import Event, schedule_in_adjacency
from dpacct.ledger.record.parts import PartTotals
from dpacct.ledger.record.plans import PAIRS, Plan
from dpacct.ledger.record.replay import Replay
from dpacct.ledger.record.state import LedgerState, RunState
from dpacct.numerics.rounding import decimal_above
from dpacct.renyi.odometer import Mixture, Totals, add, count_fitting
from dpacct.rounds import AccountantName, Phase, Release, Schedule
from dpacct.validate import MAX_ROUNDS

# Why a run without a stated reason is not private.
_UNKNOWN = "the noise did not come from a secret source"
# Readings that differ by less count as the same.
_SAME = 1e-6
# Different rounds of the lower bound. More rounds change it little.
_WITNESSES = 32
T = TypeVar("T")


class Guarantee(StrEnum):
    """The kind of claim that an epsilon read from a ledger is."""

    PLANNED = "planned"
    ADAPTIVE = "adaptive"
    NONE = "none"


# A sentence for each kind of claim. The claims of a report add the figures.
WORDS = {
    Guarantee.PLANNED: (
        "Every round was planned before the first one ran, so the tight accountant applies to the "
        "rounds so far. If released values influence when to stop, quote the epsilon of the whole "
        "plan."
    ),
    Guarantee.ADAPTIVE: (
        "Rounds were chosen as results came in. The epsilon holds however they were chosen and "
        "whenever the process stops (Renyi odometer)."
    ),
}


@contextmanager
def naming(path: Path, entry: Entry) -> Generator[None]:
    """Name the file and the entry in the errors of what reads it."""
    try:
        yield
    except (LedgerError, InvalidParameter) as error:
        why = str(error).removesuffix(".")
        raise LedgerError(f"{path}: entry {entry.number}: {why}.") from None


# Of one run: the number of its latest entry, and the totals of all runs and its own as of it.
Latest = tuple[int, LedgerState, RunState]


class Known:
    """Facts of a ledger that never change, and its latest totals, shared by all its snapshots."""

    def __init__(self, opening: Opening) -> None:
        self.opening = opening
        self.starts: dict[int, Start] = {}
        # Kinds of rounds by the numbers of their entries, and the reverse for those of writers.
        self.kinds: dict[int, Kind] = {}
        self.numbers: dict[Kind, int] = {}
        # The latest entry that was read, and the totals of each run then.
        self.seen = 0
        self.states: dict[int, Latest] = {}
        # Of a file of version 0.3: its entries, from which its totals are counted.
        self.replay: Replay | None = None

    def apart(self) -> Known:
        """Return the facts for a transaction. What it learns ends with it, if it fails."""
        own = copy(self)
        own.starts, own.kinds, own.numbers = dict(self.starts), dict(self.kinds), dict(self.numbers)
        return own


class Snapshot:
    """A ledger as of one entry (Rule 1). The cost of a reading does not grow with its rounds.

    Entries are never changed, and the totals are read at once. So all readings of a snapshot belong
    together, no matter how long they take and which entries are added meanwhile. They need no lock.

    Attributes:
        head: the entry.
        state: the totals of all runs.
    """

    def __init__(self, source: Store | StoredEntries, rows: StoredEntries, known: Known) -> None:
        self.path = source.path
        self.head = rows.head()
        self.known = known
        self.budget, self.unit = known.opening.budget, known.opening.unit
        self._source = source
        if rows.old:
            self._replay(rows)
        elif known.seen != self.head.number:
            self._read_totals(rows)
        self._states = known.states
        self.state = known.states[0][1] if self.head.run == 0 else known.states[self.head.run][1]

    def _read_totals(self, rows: StoredEntries) -> None:
        """Read the totals of the runs that have entries since the last reading."""
        known, found = self.known, dict(self.known.states)
        zero = known.opening.mixture.zero()
        for number, run, text in rows.states(known.seen):
            with naming(self.path, rows.entry(number)):
                ledger, own = rules.read_state(text)
                totals = [ledger.spent, ledger.held, *((own.spent, own.held) if own else ())]
                if {len(one) for one in totals} != {len(zero)} or (own is None) is not (run == 0):
                    raise LedgerError("its totals have another form than those of the ledger")
            found[run] = number, ledger, own or rules.NO_RUN
        ledger = found[self.head.run][1]
        numbers = [number for run, (number, *_) in found.items() if run]
        if (sum(numbers), len(numbers)) != (ledger.latest, ledger.runs):
            raise LedgerError(
                f"{self.path}: the totals of a run are older than its latest entry. The file was "
                f"damaged. Restore a copy, and treat the missing rounds as spent."
            )
        known.states, known.seen = found, self.head.number

    def _replay(self, rows: StoredEntries) -> None:
        """Count the totals of a file of version 0.3 from its entries."""
        known = self.known
        replay = known.replay = known.replay or Replay(known.opening)
        while chunk := rows.chunk(replay.number):
            for entry in chunk:
                with naming(self.path, entry):
                    replay.take(entry)
        known.starts.update(replay.starts)
        known.states = {0: (1, replay.ledger, rules.NO_RUN)} | replay.runs

    @property
    def mixture(self) -> Mixture:
        """The orders of the adaptive bound, with the delta that is set aside for promises."""
        return rules.in_force(self.known.opening.mixture, self.state)

    # Entries

    def read(self, action: Callable[[StoredEntries], T]) -> T:
        """Return the result of a function of the rows up to the entry, in one transaction."""
        if isinstance(self._source, StoredEntries):
            return action(self._source)
        return self._source.read(action, limit=self.head.number)

    def entry(self, number: int) -> Entry:
        """Return one entry, its hash checked."""
        return self.read(lambda rows: rows.entry(number))

    def entries(self, after: int = 0) -> Iterator[Entry]:
        """Yield all entries behind a number, unchecked."""
        while chunk := self.read(lambda rows: rows.chunk(after)):  # noqa: B023 - used at once
            yield from chunk
            after = chunk[-1].number

    def kind(self, number: int) -> Kind:
        """Return the kind of round that an entry describes."""
        kinds = self.known.kinds
        if number not in kinds:
            entry = self.entry(number)
            with naming(self.path, entry):
                kinds[number] = chain.kind_of(entry)
        return kinds[number]

    # Runs

    def runs(self) -> range:
        """Return the numbers of all runs."""
        return range(1, self.state.runs + 1)

    def run_state(self, run: int) -> RunState:
        """Return the totals of one run."""
        return self.latest_of(run)[2]

    def start(self, run: int) -> Start:
        """Return the registration of a run."""
        starts = self.known.starts
        if run not in starts:
            self.latest_of(run)
            entry = self.first_entry(run)
            with naming(self.path, entry):
                start = chain.read(entry)
                if not isinstance(start, Start):
                    raise LedgerError("it registers no run")
            starts[run] = start
        return starts[run]

    def first_entry(self, run: int) -> Entry:
        """Return the entry that registered a run."""
        found = self.read(lambda rows: rows.of_run(run, first=True))
        if found is None:
            raise LedgerError(f"{self.path}: the ledger is damaged: run {run} has no entry.")
        return found

    def plan(self, run: int) -> Plan | None:
        """Return the plan of a run, if it has one."""
        return self.start(run).plan

    def latest_of(self, run: int) -> Latest:
        """Return the number of the latest entry of a run, and the totals as of it."""
        # Python finds 1 in a table under True and 1.0, too.
        if type(run) is not int or not 0 < run <= self.state.runs:
            raise LedgerError(
                f"{self.path}: there is no run {run!r:.40} (runs are 1 to {self.state.runs})."
            )
        if run not in self._states:
            raise LedgerError(f"{self.path}: the ledger is damaged: run {run} has no totals.")
        return self._states[run]

    def behind(self, run: int) -> Snapshot:
        """Return the ledger as it was behind the latest entry of a run."""
        then, (number, ledger, _) = copy(self), self.latest_of(run)
        then.state = ledger
        then._states = {  # noqa: SLF001 - a copy of its own
            n: self._as_it_was(n, number) for n in range(1, ledger.runs + 1)
        }
        return then

    def _as_it_was(self, run: int, number: int) -> Latest:
        """Return the totals of a run behind an earlier entry, as far as plans need them."""
        latest, ledger, state = self.latest_of(run)
        if latest > number and state.initial:
            last = self.read(lambda rows: rows.of_run(run, kind="reserve", until=number))
            said = last and chain.read(last)
            used = 0
            if isinstance(said, Reserve):
                # A round outside of the plan, or one that was given back: all that was ever used.
                used = state.cursor if said.slot is None else said.slot + said.count
            state = state._replace(cursor=min(used, state.cursor), finished=False)
        return latest, ledger, state

    def initial_plans(self, *, unfinished: bool = False) -> dict[int, Plan]:
        """Return the plans registered before the first round, if asked only of unfinished runs."""
        found = {run: self.plan(run) for run in self.runs() if self.run_state(run).initial}
        return {
            run: plan
            for run, plan in found.items()
            if plan is not None and not (unfinished and self.run_state(run).finished)
        }

    def standing_plans(self) -> dict[int, Plan]:
        """Return the initial plans but for those that were given up before anything ran."""

        def given_up(run: int) -> bool:
            _, ledger, state = self.latest_of(run)
            return state.finished and not ledger.started

        return {run: plan for run, plan in self.initial_plans().items() if not given_up(run)}

    def check_runs(self) -> None:
        """Check that the totals of all runs add up to those of the ledger.

        The cost grows with the number of runs.

        Raises:
            LedgerError: they do not.
        """
        runs = [self.run_state(number) for number in self.runs()]
        held = add(self.mixture.zero(), *(run.held for run in runs))
        counts = sum(run.rounds for run in runs), sum(run.committed for run in runs)
        ledger, spent = self.state, self.part_totals().total()
        theirs = ledger.spent, ledger.held, (ledger.rounds, ledger.committed)
        if (spent, held, counts) != theirs:
            raise LedgerError(
                f"{self.path}: the runs do not add up to the totals of the ledger. The file was "
                f"damaged. Restore a copy, and treat the missing rounds as spent."
            )

    def latest_row(self, run: int) -> int:
        """Return the latest row of correlated noise that a run has taken, 0 before the first."""
        return self.run_state(run).row

    def part_of(self, run: int) -> str:
        """Return the part of the data that a run uses, or empty for all."""
        return self.start(run).part if self.known.opening.partitions else ""

    def part_totals(self, runs: Iterable[int] | None = None) -> PartTotals:
        """Return the totals of the parts of the data, of all runs or of some of them."""
        numbers = self.runs() if runs is None else runs
        spent = ((self.part_of(n), self.run_state(n).spent) for n in numbers)
        return PartTotals(spent, self.mixture.zero())

    def of_one_client(self) -> set[int]:
        """Return runs that may all use the data of one client: of each partition one part."""
        by_part: dict[str, list[int]] = {}
        for run in self.runs():
            by_part.setdefault(self.part_of(run), []).append(run)
        found = set(by_part.pop("", []))
        for name in self.known.opening.partitions:
            parts = [runs for part, runs in by_part.items() if part.startswith(f"{name}=")]
            spent = [sum(self.run_state(run).spent[0] for run in runs) for runs in parts]
            if parts:
                found.update(parts[spent.index(max(spent))])
        return found

    def verified(self) -> tuple[int, bytes, str] | None:
        """Return the latest entry up to which the file was verified, as rows keep it, or None."""
        kept = self.read(lambda rows: rows.verified())
        if kept is None or kept[0] > self.head.number or self.entry(kept[0]).hash != kept[1]:
            return None
        return kept

    def position(self) -> Position:
        """Return how far the ledger has come."""
        identity = self.entry(1).hash.hex()
        return Position(identity, self.head.number, self.head.hash.hex(), self.state.committed)

    def released(self, run: int) -> Counter[Kind]:
        """Return how often a run released each of its kinds of rounds, or of the first ones."""
        start = self.start(run)
        if start.rounds is not None:
            return Counter({Kind(r, None, (), ()): n for r, n in start.rounds.distinct().items()})
        found = Counter[Kind]()
        for kind, count in self.run_state(run).released:
            found[self.kind(kind)] += count
        return found

    # Epsilon of all runs together, or of one run alone, as if its noise were secret

    def guarantee(self, run: int = 0) -> Guarantee:
        """Return the kind of claim of `upper`."""
        if run:
            exposed, planned = not self.run_state(run).private, self.run_state(run).on_plan
        else:
            exposed, planned = (
                self.state.exposed,
                self.state.started and self.is_planned(self.state),
            )
        if exposed:
            return Guarantee.NONE
        return Guarantee.PLANNED if planned else Guarantee.ADAPTIVE

    def why_not_private(self, run: int = 0) -> str:
        """Return why no guarantee holds for a run, or for all runs together, in words."""
        numbers = [run] if run else self.runs()
        starts = [self.start(n) for n in numbers if not self.run_state(n).private]
        known = (start.details.get("not_private_because", _UNKNOWN) for start in starts)
        return "; ".join(dict.fromkeys(line(str(why)) for why in known))

    def upper(self, run: int = 0) -> float:
        """Return the proven epsilon, infinite if a round of any run was not private."""
        if not run and self.state.exposed:
            return math.inf
        plans = self._plans_of(run)
        if plans is None:
            spent = self.run_state(run).spent if run else self.state.spent
            return self.adaptive(spent, self.state.delta)
        used = self._used(plans)
        if not run:
            return self.planned(self.state, plans.values(), used)
        return planning.epsilon_so_far(planning.together(plans.values()), used, self.budget.delta)

    def any_stop(self, run: int = 0) -> float:
        """Return `upper` with whole plans: the figure to promise (Rule 2)."""
        plans = self._plans_of(run)
        if run and plans is not None:
            return planning.proven_epsilon(
                planning.together(plans.values()), self.budget.delta, math.inf
            )
        if not run and self.guarantee() is Guarantee.PLANNED:
            return self.planned(self.state, self.standing_plans().values())
        return self.upper(run)

    def alone(self, runs: Sequence[int]) -> float:
        """Return the proven epsilon of a group of runs by itself, whatever the others release.

        It holds for every rule of stopping.
        """
        states, plans = [self.run_state(run) for run in runs], self.standing_plans()
        if any(state.rounds and not state.private for state in states):
            return math.inf
        loose = any(state.left or (state.rounds and not state.initial) for state in states)
        group = self.state._replace(spent=self.part_totals(runs).total(), loose=loose)
        return min(
            self.mixture.epsilon(group.spent, self.budget.delta),
            self.planned(group, [plans[run] for run in runs if run in plans]),
            self.any_stop(runs[0]) if len(runs) == 1 else math.inf,
        )

    def planned(
        self, ledger: LedgerState, plans: Iterable[Plan], used: Schedule | None = None
    ) -> float:
        """Return the proven epsilon of initial plans, with that of pure rounds beside them.

        Infinite if another round ran beside the plans.

        Args:
            ledger: the totals, of all runs or of a group of them.
            plans: all their initial plans, or whole plans without those that were given up.
            used: the used rounds of the plans, or None for all of them.
        """
        whole, delta, loss = planning.together(plans), self.budget.delta, None
        if ledger.loose:
            loss = self.mixture.largest_loss(ledger.spent, beside_plans=True)
            delta = self.mixture.without_promises(delta)
            if loss is None or self.mixture.promises_left(ledger.spent) < 0.0:
                return math.inf
        found, rounds = 0.0, whole.rounds if used is None else used.rounds
        if rounds and delta <= 0.0:
            return math.inf
        if rounds:
            used = whole.schedule if used is None else used
            found = planning.epsilon_so_far(whole, used, delta)
        return decimal_above(Fraction(found) + loss) if loss and math.isfinite(found) else found

    def is_planned(self, ledger: LedgerState) -> bool:
        """Return True if no round ran beside the plans, or pure ones and the odometer says more.

        If both say the same, the claim of the odometer assumes less.
        """
        if not ledger.loose:
            return True
        adaptive = self.adaptive(ledger.spent, ledger.delta)
        return self.planned(ledger, self.standing_plans().values()) < adaptive * (1 - _SAME)

    def interval(self, run: int = 0) -> Spent:
        """Return the achieved and proven epsilon."""
        plans, delta = self._plans_of(run), self.budget.delta
        released, bare = Counter[Release](), Counter[Release]()
        # Whether just the planned rounds were released.
        as_planned = plans is not None
        for number in {run} if run else self.of_one_client():
            state = self.run_state(number)
            used = state.cursor if plans is not None and number in plans else 0
            as_planned &= used == state.exact == state.committed
            for kind, count in self.released(number).items():
                released[kind.charged] += count
                bare[kind.charged] += count if kind.is_bare else 0
        # A sum without noise shows whether a client that moves it took part.
        if planning.exposure(Schedule(Phase(r, n) for r, n in bare.items() if n)) > delta:
            return Spent(math.inf, math.inf, delta)
        # Some of the released rounds never cost more than all of them.
        witnesses = Schedule(Phase(r, n) for r, n in released.most_common(_WITNESSES))
        if plans is not None and as_planned:
            witnesses = self._used(plans)
        whole = plans is not None and witnesses == planning.join(p.schedule for p in plans.values())
        achieved = planning.achieved_epsilon(witnesses, delta, whole=whole)
        return Spent.at(delta, Interval.bracket(achieved, self.upper(run)))

    def _plans_of(self, run: int) -> dict[int, Plan] | None:
        """Return the plans whose bound the reading is, or None if it is that of the odometer."""
        if not run:
            return self.initial_plans() if self.is_planned(self.state) else None
        plan = self.plan(run)
        return {run: plan} if plan is not None and self.run_state(run).on_plan else None

    def _used(self, plans: dict[int, Plan]) -> Schedule:
        """Return the used rounds of plans of runs."""
        return planning.join(plan.first(self.run_state(run).cursor) for run, plan in plans.items())

    def whole_plan(self) -> Plan:
        """Return all rounds that were planned before the first one ran, for `PLANNED` claims."""
        return planning.together(self.standing_plans().values())

    def planned_rounds(self) -> tuple[int, int]:
        """Return the number of used slots of initial plans, and of all their slots."""
        plans = self.standing_plans()
        used = sum(min(self.run_state(run).cursor, plans[run].rounds) for run in plans)
        return used, sum(plan.rounds for plan in plans.values())

    def adaptive(self, spent: Totals, delta: float) -> float:
        """Return the proven epsilon of rounds that were chosen one by one, with these totals."""
        found = self.mixture.epsilon(spent, delta)
        if found > self.budget.epsilon:
            # Rounds from elsewhere exceed the budget: no plan needs its share of delta any more.
            return self.mixture.epsilon(spent, self.budget.delta)
        return found

    # Remaining budget

    def admission_epsilon(self, charged: Totals, target: float = 0.0) -> float:
        """Return the epsilon that the budget is compared with when a round asks for room."""
        plans = self.standing_plans
        return rules.admission_epsilon(
            self.mixture, self.state, charged, lambda: plans().values(), target
        )

    def aside(self) -> float | None:
        """Return the epsilon of the initial plans, if pure releases beside them need it to fit."""
        ledger, mixture = self.state, self.mixture
        if not ledger.plan_delta or not mixture.largest_loss(ledger.charged, beside_plans=True):
            return None
        if mixture.epsilon(ledger.charged, ledger.delta) <= self.budget.epsilon:
            return None
        plans = planning.together(self.standing_plans().values())
        return planning.proven_epsilon(plans, ledger.plan_delta, math.inf)

    def fits(self, charged: Totals) -> bool:
        """Return whether all charges together, with these totals, are within the budget."""
        epsilon = self.budget.epsilon
        return self.admission_epsilon(charged, epsilon) <= epsilon

    def rounds_left(self, asked: Release | Schedule | Event) -> int:
        """Return how many more such rounds fit, chosen one by one. Plans keep their room.

        With a schedule, it is the number of its repetitions.
        """
        step = self._as_charged(asked)
        cost = planning.schedule_cost(self.mixture, step)
        return count_fitting(self.fits, self.state.charged, cost, planning.most_steps(step))

    def rounds_left_as_plan(
        self,
        asked: Release | Schedule | Event,
        accountant: AccountantName = PAIRS,
        most: int = MAX_ROUNDS,
    ) -> int:
        """Return how many such rounds a plan may have that is registered now, up to ``most``."""
        step, chosen = self._as_charged(asked), self.rounds_left(asked)
        charged_by = planning.accountant_of(min(2, planning.most_steps(step)) * step, accountant)
        most = min(most, planning.most_steps(step))
        if self.state.started:
            return min(most, chosen)
        plans = list(self.initial_plans(unfinished=True).values())
        return planning.most_planned_rounds(
            self.mixture, self.budget, plans, step, charged_by, chosen, most
        )

    def _as_charged(self, asked: Release | Schedule | Event) -> Schedule:
        if not isinstance(asked, Schedule):
            asked = 1 * (asked if isinstance(asked, Event) else Event(asked)).charged
        if not asked.rounds:
            raise InvalidParameter("round_", repr(asked), "a step has at least one round")
        return schedule_in_adjacency(asked, self.state.adjacency)
