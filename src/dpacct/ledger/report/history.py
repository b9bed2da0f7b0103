"""The history of a ledger, read from all entries once: phases, losses, epsilon over the rounds."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from dpacct.errors import LedgerError
from dpacct.ledger.readings import Guarantee, Snapshot
from dpacct.ledger.record.entries import (
    Entry,
    LedgerState,
    Opening,
    Part,
    Reserve,
    Settle,
    Start,
    read_time,
)
from dpacct.ledger.record.plans import (
    Charged,
    Plan,
    achieved_epsilon,
    epsilon_so_far,
    join,
    together,
)
from dpacct.rounds import Phase, Round, Schedule

# The picture's points; with many different rounds each takes longer.
_POINTS = 24
_FEW_POINTS = 6
_MANY_KINDS = 12
MAX_EVENTS = 200


@dataclass(slots=True)
class Stretch:
    """Equal rounds one after the other, as they ran."""

    round: Round
    releases: tuple[Part, ...]
    planned: bool
    rounds: int = 1


@dataclass(slots=True)
class RunHistory:
    """One run.

    Attributes:
        started, ended: times of its first and last entry, as the clocks said.
        stretches: the charged rounds, run-length encoded; at most `MAX_EVENTS`, then the last ones
            are added up in ``more_rounds``.
        abandoned: (round of the ledger, reason), at most `MAX_EVENTS`.
        abandonments: how many.
        resumed: how often another process went on with it.
        left_at: the round of the ledger at which it left its plan, 0 if it did not.
    """

    started: str = ""
    ended: str = ""
    stretches: list[Stretch] = field(default_factory=list[Stretch])
    more_rounds: int = 0
    abandoned: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    abandonments: int = 0
    resumed: int = 0
    left_at: int = 0

    def add(self, said: Reserve) -> None:
        """Add a round that is charged."""
        new = Stretch(said.charged, said.releases, said.slot is not None)
        last = self.stretches[-1] if self.stretches else None
        if last is not None and last == Stretch(new.round, new.releases, new.planned, last.rounds):
            last.rounds += 1
        elif len(self.stretches) < MAX_EVENTS:
            self.stretches.append(new)
        else:
            self.more_rounds += 1

    def take_back(self, round_: Round, said: Settle) -> None:
        """Give a charged round back."""
        self.abandonments += 1
        if len(self.abandoned) < MAX_EVENTS:
            self.abandoned.append((said.round, said.reason))
        for stretch in reversed(self.stretches):
            if stretch.round == round_ and stretch.rounds:
                stretch.rounds -= 1
                break


@dataclass(slots=True)
class History:
    """All of a ledger.

    Attributes:
        points: epsilon after so many rounds, as JSON; ``lower`` is null where it was not computed.
        marks: the events that are marked in the picture, as JSON.
        released: each different round with the number of times it was released.
    """

    created: str = ""
    software: str = ""
    latest: str = ""
    entries: int = 0
    runs: dict[int, RunHistory] = field(default_factory=dict[int, RunHistory])
    points: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    marks: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    released: Counter[Round] = field(default_factory=Counter[Round])


def read_history(now: Snapshot) -> History:
    """Return the history of a ledger, in one pass over its entries."""
    reader = _Reader(now)
    for entry, _ in now.entries():
        reader.step(entry)
    reader.finish()
    return reader.history


class _Reader:
    """Builds a history entry by entry."""

    def __init__(self, now: Snapshot) -> None:
        self.now = now
        self.history = History()
        self.open: dict[int, tuple[Round, int]] = {}
        self.plans: dict[int, Plan] = {}
        self.initial: dict[int, Charged] = {}
        self.cursors: dict[int, int] = {}
        self.total = now.state.rounds
        self.due = _due(self.total, _POINTS)
        self.charged = 0

    def step(self, entry: Entry) -> None:
        """Add one entry."""
        said, time, number = self.now.said(entry), self.now.named(read_time, entry), entry.run
        ledger, state = self.now.totals(entry)
        self.charged = ledger.rounds
        history = self.history
        history.entries += 1
        history.latest = time
        if isinstance(said, Opening):
            history.created, history.software = time, said.software
        if state is None:
            return
        run = history.runs.setdefault(number, RunHistory(started=time))
        run.ended = time
        if state.initial:
            self.cursors[number] = state.cursor
        if isinstance(said, Start):
            if said.plan is not None:
                self.plans[number] = Plan(said.plan)
                if state.initial:
                    self.initial[number] = Charged(said.plan, said.accountant)
            self._mark(f"run {number} starts")
        elif isinstance(said, Reserve):
            self._reserve(entry, said, run, ledger)
        elif isinstance(said, Settle):
            self._settle(entry, said, run)
        elif entry.kind == "resume":
            run.resumed += 1
            lost = sum(owner == number for _, owner in self.open.values())
            self._mark(f"run {number} resumes" + (f", {lost} lost" if lost else ""))

    def finish(self) -> None:
        """Add the last point: what the ledger reads now."""
        if not self.charged:
            return
        planned = self.now.guarantee() is Guarantee.PLANNED
        spent = self.now.interval()
        self._forget(self.charged)
        self._point(spent.upper, spent.lower if self._few() else None, planned=planned)

    def _mark(self, words: str) -> None:
        self.history.marks.append({"round": self.charged, "words": words})

    def _point(self, upper: float, lower: float | None, *, planned: bool) -> None:
        self.history.points.append(
            {
                "round": self.charged,
                "upper": upper if math.isfinite(upper) else None,
                "lower": lower,
                "guarantee": str(Guarantee.PLANNED if planned else Guarantee.ADAPTIVE),
            }
        )

    def _forget(self, rounds: int) -> None:
        """Drop points of so many rounds, or more: some of those were given back."""
        points = self.history.points
        while points and points[-1]["round"] >= rounds:
            points.pop()

    def _reserve(self, entry: Entry, said: Reserve, run: RunHistory, ledger: LedgerState) -> None:
        self.open[entry.number] = (said.charged, entry.run)
        if said.left:
            run.left_at = self.charged
            self._mark(f"run {entry.run} leaves its plan")
        run.add(said)
        points = self.history.points
        turned = points and points[-1]["guarantee"] == Guarantee.PLANNED and ledger.loose
        if turned or self.charged in self.due:
            self._forget(self.charged)
            self._read(ledger)

    def _settle(self, entry: Entry, said: Settle, run: RunHistory) -> None:
        found = self.open.pop(said.round, None)
        if found is None or found[1] != entry.run:
            raise LedgerError(
                f"{self.now.path}: entry {entry.number} settles a round that is not open."
            )
        if entry.kind == "commit":
            self.history.released[found[0]] += 1
        else:
            self._forget(self.charged + 1)
            run.take_back(found[0], said)

    def _read(self, ledger: LedgerState) -> None:
        """Add a point; the round of this entry is reserved, not released: it counts above alone."""
        lower = None
        if self._few() and self.history.released:
            schedule = Schedule(Phase(r, n) for r, n in self.history.released.items())
            lower = achieved_epsilon(schedule, self.now.budget.delta)
        if ledger.loose or ledger.exposed:
            spent = self.now.adaptive(ledger.spent, ledger.delta)
            self._point(math.inf if ledger.exposed else spent, lower, planned=False)
            return
        so_far = join(plan.first(self.cursors.get(n, 0)) for n, plan in self.plans.items())
        whole = together(self.initial.values())
        self._point(epsilon_so_far(whole, so_far, self.now.budget.delta), lower, planned=True)

    def _few(self) -> bool:
        """Return whether there are few enough kinds of rounds for an achieved side here."""
        few = len(self.history.released) <= _MANY_KINDS
        return few or self.charged in _due(self.total, _FEW_POINTS)


def _due(total: int, points: int) -> set[int]:
    """Return the rounds of the points; every reservation counts, abandoned ones too."""
    if total <= 0:
        return set()
    return {max(1, round(total * k / points)) for k in range(points + 1)}
