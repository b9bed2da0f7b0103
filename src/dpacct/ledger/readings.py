"""What a ledger reads: epsilon at its delta, for one run or for all, and what kind of claim it is.

A reading is proven in this sense: of all ways in which things could have gone, those in which the
ledger reads at most epsilon are (epsilon, delta)-private. The exact statements, and what each kind
of reading assumes, are in docs/derivations/adaptive.md.
"""

from __future__ import annotations

import math
from collections import Counter
from enum import StrEnum

from dpacct.budget import Interval, Spent
from dpacct.ledger.book import Book
from dpacct.ledger.record.charged import (
    Charged,
    achieved_epsilon,
    epsilon_so_far,
    join,
    proven_epsilon,
    together,
)
from dpacct.ledger.record.entries import Reserve
from dpacct.ledger.record.initial import charged_plans, initial_plans, standing_plans
from dpacct.ledger.record.plans import Plan
from dpacct.ledger.record.standing import Holder, Standing
from dpacct.renyi.odometer import Totals
from dpacct.rounds import Phase, Round, Schedule

# So many different rounds are looked at for the achieved side; more change it little.
_WITNESSES = 32


class Guarantee(StrEnum):
    """What kind of claim a reading is."""

    PLANNED = "planned"
    ADAPTIVE = "adaptive"
    NONE = "none"

    @property
    def in_words(self) -> str:
        """One sentence for people; `claims.Claim` has the one with the figures."""
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


class Committed:
    """Which rounds were released, read from the file as far as it has grown since the last time."""

    def __init__(self) -> None:
        self._seen = 0
        self._open: dict[int, Round] = {}
        self._counts: dict[int, Counter[Round]] = {}

    def up_to(self, book: Book) -> dict[int, Counter[Round]]:
        """Each different round of each run with the number of times it was released.

        Args:
            book: as of an entry; never earlier than the last time.
        """
        for entry, closes in book.store.entries(self._seen):
            if entry.kind == "reserve":
                said = book.said(entry)
                if isinstance(said, Reserve):
                    self._open[entry.number] = said.charged
            elif closes is not None:
                round_ = self._open.pop(closes, None)
                if entry.kind == "commit" and round_ is not None:
                    self._counts.setdefault(entry.run, Counter())[round_] += 1
            self._seen = entry.number
        return self._counts


def adaptive_reading(book: Book, spent: Totals, delta: float) -> float:
    """Proven epsilon of rounds that were chosen one by one.

    Args:
        book: of the ledger.
        spent: their Renyi totals.
        delta: what the initial plans leave of the budget's. Beyond the budget, where rounds that
            had run elsewhere were recorded, nothing is left to divide, and all of it counts.
    """
    found = book.mixture.epsilon(spent, delta)
    return found if found <= book.budget.epsilon else book.mixture.epsilon(spent, book.budget.delta)


class Reader:
    """Readings of an open ledger, as of whenever they are asked for."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self._committed = Committed()

    def now(self) -> Readings:
        """Readings as of the latest entry: what they say belongs together."""
        return Readings(self._book.as_of(), self._committed)

    def standing(self) -> Standing:
        """What the ledger reads, and who holds room, for a refusal."""
        return self.now().standing()


class Readings:
    """Epsilon of a ledger as of an entry. Cost per call does not grow with the number of rounds.

    Args:
        book: as of an entry, so that all readings belong together.
        committed: what was read before.
    """

    def __init__(self, book: Book, committed: Committed) -> None:
        self.book = book
        self._committed = committed

    def run_guarantee(self, run: int) -> Guarantee:
        """The kind of claim of `run_upper`."""
        state = self.book.run_state(run)
        if not state.private:
            return Guarantee.NONE
        return Guarantee.PLANNED if state.on_plan else Guarantee.ADAPTIVE

    def run_upper(self, run: int) -> float:
        """Proven epsilon of one run by itself, its privacy taken for granted."""
        state = self.book.run_state(run)
        if state.on_plan:
            plan = self.book.plan(run)
            whole = Charged(Schedule()) if plan is None else self._charged(run, plan)
            return epsilon_so_far(whole, self._so_far(run), self.book.budget.delta)
        return adaptive_reading(self.book, state.spent, self.book.state().delta)

    def run_any_stop(self, run: int) -> float:
        """As `run_upper`, but whatever decided how many rounds ran."""
        plan = self.book.plan(run)
        if plan is None or not self.book.run_state(run).on_plan:
            return self.run_upper(run)
        return proven_epsilon(self._charged(run, plan), self.book.budget.delta, math.inf)

    def run_interval(self, run: int) -> Spent:
        """Achieved and proven epsilon of one run by itself, its privacy taken for granted."""
        so_far = self._so_far(run) if self.book.run_state(run).on_plan else None
        released = self._committed.up_to(self.book).get(run, Counter[Round]())
        return self._interval(released, so_far, self.run_upper(run))

    def ledger_guarantee(self) -> Guarantee:
        """The kind of claim of `ledger_upper`."""
        state = self.book.state()
        if state.exposed:
            return Guarantee.NONE
        return Guarantee.PLANNED if state.started and not state.loose else Guarantee.ADAPTIVE

    def ledger_upper(self) -> float:
        """Proven epsilon of all runs together; infinite if a round was not private."""
        state = self.book.state()
        if state.exposed:
            return math.inf
        if state.loose:
            return adaptive_reading(self.book, state.spent, state.delta)
        plans = initial_plans(self.book, unfinished=False)
        whole = together(charged_plans(self.book, plans))
        return epsilon_so_far(whole, self._all_so_far(), self.book.budget.delta)

    def ledger_any_stop(self) -> float:
        """As `ledger_upper`, but whatever decided how many rounds ran: the figure to promise."""
        if self.ledger_guarantee() is not Guarantee.PLANNED:
            return self.ledger_upper()
        return proven_epsilon(self.whole_plan(), self.book.budget.delta, math.inf)

    def whole_plan(self) -> Charged:
        """All that was planned before the first round, with the accountant that it is charged by.

        Where the claim is `Guarantee.PLANNED`, all that was released comes from it.
        """
        return together(charged_plans(self.book, standing_plans(self.book)))

    def planned_rounds(self) -> tuple[int, int]:
        """How many places in initial plans are used, and how many there are."""
        plans = standing_plans(self.book)
        used = sum(min(self.book.run_state(run).cursor, plans[run].rounds) for run in plans)
        return used, sum(plan.rounds for plan in plans.values())

    def ledger_interval(self) -> Spent:
        """Achieved and proven epsilon of all runs together."""
        so_far = None if self.book.state().loose else self._all_so_far()
        total: Counter[Round] = Counter()
        for counts in self._committed.up_to(self.book).values():
            total.update(counts)
        return self._interval(total, so_far, self.ledger_upper())

    def standing(self) -> Standing:
        """What the ledger reads, and who holds room, for a refusal."""
        state, book = self.book.state(), self.book
        holders: list[Holder] = []
        for run in range(1, state.runs + 1):
            found, plan = book.run_state(run), book.plan(run)
            if any(found.held) and plan is not None:
                holders.append(Holder(run, book.start(run).name, plan.rounds - found.cursor))
        return Standing(book.store.path, book.budget, self.ledger_any_stop(), tuple(holders))

    def _charged(self, run: int, plan: Plan) -> Charged:
        return Charged(plan.schedule, self.book.start(run).accountant)

    def _so_far(self, run: int) -> Schedule:
        """The part of a run's plan that it has used."""
        plan = self.book.plan(run)
        return Schedule() if plan is None else plan.first(self.book.run_state(run).cursor)

    def _all_so_far(self) -> Schedule:
        return join(self._so_far(run) for run in initial_plans(self.book, unfinished=False))

    def _interval(self, released: Counter[Round], so_far: Schedule | None, upper: float) -> Spent:
        delta = self.book.budget.delta
        # Fewer rounds than were released cost no more.
        witnesses = Schedule(Phase(r, n) for r, n in released.most_common(_WITNESSES))
        if so_far is not None and so_far.distinct() == released:
            witnesses = so_far
        return Spent.at(delta, Interval.bracket(achieved_epsilon(witnesses, delta), upper))
