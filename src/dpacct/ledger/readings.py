"""What a ledger reads: epsilon at its delta, for one run or for all, and what kind of claim it is.

A reading is proven in this sense: of all ways in which things could have gone, those in which the
ledger reads at most epsilon are (epsilon, delta)-private. The exact statements, and what each kind
of reading assumes, are in docs/derivations/adaptive.md.
"""

from __future__ import annotations

import math
from collections import Counter
from enum import StrEnum

from dpacct.accountant import ACCOUNTANTS
from dpacct.achieved import achieved_epsilon
from dpacct.budget import Interval, Spent
from dpacct.errors import NotConverged, Unsupported
from dpacct.ledger.book import Book
from dpacct.ledger.events import round_from_json
from dpacct.ledger.plans import join, proven_epsilon
from dpacct.ledger.standing import Holder, Standing
from dpacct.odometer import Totals
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
        """One sentence for people."""
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

    def __init__(self, book: Book) -> None:
        self._book = book
        self._seen = 0
        self._open: dict[int, Round] = {}
        self._counts: dict[int, Counter[Round]] = {}
        self._rounds: dict[str, Round] = {}

    def of_run(self, run: int) -> Counter[Round]:
        """Each different round of a run with the number of times it was released."""
        self._refresh()
        return self._counts.get(run, Counter())

    def of_all(self) -> Counter[Round]:
        """Of all runs."""
        self._refresh()
        total: Counter[Round] = Counter()
        for counts in self._counts.values():
            total.update(counts)
        return total

    def _refresh(self) -> None:
        for entry, closes in self._book.store.entries(self._seen):
            if entry.kind == "reserve":
                self._open[entry.number] = round_from_json(entry.content["data"]["charged"])
            elif closes is not None:
                round_ = self._open.pop(closes, None)
                if entry.kind == "commit" and round_ is not None:
                    self._counts.setdefault(entry.run, Counter())[round_] += 1
            self._seen = entry.number


def adaptive_reading(book: Book, spent: Totals, delta: float) -> float:
    """Proven epsilon of rounds that were chosen one by one.

    Args:
        spent: their Renyi totals.
        delta: what the initial plans leave of the budget's. Beyond the budget, where rounds that
            had run elsewhere were recorded, nothing is left to divide, and all of it counts.
    """
    found = book.mixture.epsilon(spent, delta)
    return found if found <= book.budget.epsilon else book.mixture.epsilon(spent, book.budget.delta)


class Readings:
    """Epsilon of an open ledger. Cost per call does not grow with the number of rounds."""

    def __init__(self, book: Book) -> None:
        self._book = book
        self.committed = Committed(book)

    def run_guarantee(self, run: int) -> Guarantee:
        """The kind of claim of `run_upper`."""
        state = self._book.run_state(run)
        if not state.private:
            return Guarantee.NONE
        return Guarantee.PLANNED if state.on_plan else Guarantee.ADAPTIVE

    def run_upper(self, run: int) -> float:
        """Proven epsilon of one run by itself, its privacy taken for granted."""
        state = self._book.run_state(run)
        ledger = self._book.state()
        if state.on_plan:
            return proven_epsilon(self._so_far(run), self._book.budget.delta, math.inf)
        return adaptive_reading(self._book, state.spent, ledger.delta)

    def run_interval(self, run: int) -> Spent:
        """Achieved and proven epsilon of one run by itself, its privacy taken for granted."""
        so_far = self._so_far(run) if self._book.run_state(run).on_plan else None
        return self._interval(self.committed.of_run(run), so_far, self.run_upper(run))

    def ledger_guarantee(self) -> Guarantee:
        """The kind of claim of `ledger_upper`."""
        state = self._book.state()
        if state.exposed:
            return Guarantee.NONE
        return Guarantee.PLANNED if state.started and not state.loose else Guarantee.ADAPTIVE

    def ledger_upper(self) -> float:
        """Proven epsilon of all runs together; infinite if a round was not private."""
        state = self._book.state()
        if state.exposed:
            return math.inf
        if state.loose:
            return adaptive_reading(self._book, state.spent, state.delta)
        return proven_epsilon(self._all_so_far(), self._book.budget.delta, math.inf)

    def ledger_interval(self) -> Spent:
        """Achieved and proven epsilon of all runs together."""
        so_far = None if self._book.state().loose else self._all_so_far()
        return self._interval(self.committed.of_all(), so_far, self.ledger_upper())

    def standing(self) -> Standing:
        """What the ledger reads, and who holds room, for a refusal."""
        state, book = self._book.state(), self._book
        holders: list[Holder] = []
        for run in range(1, state.runs + 1):
            found, plan = book.run_state(run), book.plan(run)
            if any(found.held) and plan is not None:
                holders.append(Holder(run, book.run_data(run)["name"], plan.rounds - found.cursor))
        return Standing(book.store.path, book.budget, self.ledger_upper(), tuple(holders))

    def _so_far(self, run: int) -> Schedule:
        """The part of a run's plan that it has used."""
        plan = self._book.plan(run)
        return Schedule() if plan is None else plan.first(self._book.run_state(run).cursor)

    def _all_so_far(self) -> Schedule:
        return join(self._so_far(run) for run in self._book.initial_plans(unfinished=False))

    def _interval(self, released: Counter[Round], so_far: Schedule | None, upper: float) -> Spent:
        delta = self._book.budget.delta
        if so_far is not None and so_far.distinct() == released:
            exact = ACCOUNTANTS["tight"].epsilon(so_far, delta)
            return Spent.at(delta, Interval.bracket(exact.lower, upper))
        # Fewer rounds than were released cost no more.
        witnesses = Schedule(Phase(r, n) for r, n in released.most_common(_WITNESSES))
        try:
            lower = ACCOUNTANTS["tight"].epsilon(witnesses, delta).lower
        except (Unsupported, NotConverged):
            lower = achieved_epsilon(witnesses, delta)
        return Spent.at(delta, Interval.bracket(lower, upper))
