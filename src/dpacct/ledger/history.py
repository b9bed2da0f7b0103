"""What happened, read from all entries once: phases, releases, losses, epsilon over the rounds."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from dpacct.accountant import ACCOUNTANTS
from dpacct.errors import LedgerError, NotConverged, Unsupported
from dpacct.ledger.book import Book
from dpacct.ledger.events import round_from_json
from dpacct.ledger.plans import Plan, join, proven_epsilon
from dpacct.ledger.readings import adaptive_reading
from dpacct.ledger.state import LedgerState, state_from_json
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
    releases: tuple[tuple[str, float, float | None], ...]
    planned: bool
    rounds: int = 0


@dataclass(slots=True)
class RunHistory:
    """One run.

    Attributes:
        started, ended: times of its first and last entry, as the clocks said.
        stretches: the charged rounds, run-length encoded; at most `MAX_EVENTS`, then the last ones
            are added up in ``more_rounds``.
        open: rounds that were reserved and not settled.
        abandoned: (round of the ledger, reason), at most `MAX_EVENTS`.
        abandonments: how many.
        resumed: how often another process went on with it.
        left_at: the round of the ledger at which it left its plan, 0 if it did not.
    """

    started: str = ""
    ended: str = ""
    stretches: list[Stretch] = field(default_factory=list[Stretch])
    more_rounds: int = 0
    open: int = 0
    abandoned: list[tuple[int, str]] = field(default_factory=list[tuple[int, str]])
    abandonments: int = 0
    resumed: int = 0
    left_at: int = 0


@dataclass(frozen=True, slots=True)
class Point:
    """Epsilon after so many rounds; ``lower`` is None where it was not computed."""

    round: int
    upper: float
    lower: float | None
    planned: bool


@dataclass(frozen=True, slots=True)
class Mark:
    """Something worth a mark in the picture."""

    round: int
    words: str


@dataclass(slots=True)
class History:
    """All of a ledger."""

    created: str = ""
    software: str = ""
    latest: str = ""
    entries: int = 0
    runs: dict[int, RunHistory] = field(default_factory=dict[int, RunHistory])
    points: list[Point] = field(default_factory=list[Point])
    marks: list[Mark] = field(default_factory=list[Mark])
    released: Counter[Round] = field(default_factory=Counter[Round])


class _Reader:
    """Builds a history entry by entry."""

    def __init__(self, book: Book) -> None:
        self.book = book
        self.history = History()
        self.open: dict[int, tuple[Round, int]] = {}
        self.plans: dict[int, Plan] = {}
        self.cursors: dict[int, int] = {}
        total = book.state().rounds
        self.due = _due(total, _POINTS)
        self.reserved = 0
        self.latest: LedgerState | None = None

    def step(self, content: dict[str, Any], closes: int | None) -> None:
        """One entry."""
        kind, number, data = content["kind"], content["run"], content["data"]
        history = self.history
        history.entries += 1
        history.latest = content["time"]
        if kind == "ledger":
            history.created, history.software = content["time"], data["software"]
            return
        run = history.runs.setdefault(number, RunHistory(started=content["time"]))
        run.ended = content["time"]
        if kind == "run":
            plan = self.book.plan(number)
            if plan is not None:
                self.plans[number] = plan
            history.marks.append(Mark(self.reserved, f"run {number} starts"))
        elif kind == "resume":
            run.resumed += 1
            lost = sum(owner == number for _, owner in self.open.values())
            words = f"run {number} resumes" + (f", {lost} lost" if lost else "")
            history.marks.append(Mark(self.reserved, words))
        elif kind == "reserve":
            self._reserve(content, run)
        elif closes is not None:
            round_, _ = self.open.pop(closes)
            if kind == "commit":
                history.released[round_] += 1
            else:
                self.reserved -= 1
                self._abandon(content, run, round_, int(closes))

    def finish(self) -> None:
        """The last point, if it was not due."""
        points = self.history.points
        if self.latest is not None and (not points or points[-1].round < self.reserved):
            points.append(self._point(self.latest))

    def _reserve(self, content: dict[str, Any], run: RunHistory) -> None:
        data, number = content["data"], content["run"]
        round_ = round_from_json(data["charged"])
        self.open[content["number"]] = (round_, number)
        ledger, state = state_from_json(content["state"])
        self.latest, self.reserved = ledger, ledger.rounds
        if data["left"]:
            run.left_at = self.reserved
            self.history.marks.append(Mark(self.reserved, f"run {number} leaves its plan"))
        planned = data["slot"] is not None
        releases = tuple(
            (r["name"], r["noise_multiplier"], r["sensitivity"]) for r in data.get("releases", ())
        )
        last = run.stretches[-1] if run.stretches else None
        same = last is not None and (last.round, last.releases, last.planned) == (
            round_,
            releases,
            planned,
        )
        if last is None or (not same and len(run.stretches) < MAX_EVENTS):
            last = Stretch(round_, releases, planned)
            run.stretches.append(last)
            same = True
        if same:
            last.rounds += 1
        else:
            run.more_rounds += 1
        self.cursors[number] = 0 if state is None or not state.initial else state.cursor
        points = self.history.points
        turned = bool(points) and points[-1].planned and ledger.loose
        wanted = turned or self.reserved in self.due
        if wanted and (not points or points[-1].round < self.reserved):
            self.history.points.append(self._point(ledger))

    def _abandon(
        self, content: dict[str, Any], run: RunHistory, round_: Round, reserved: int
    ) -> None:
        run.abandonments += 1
        if len(run.abandoned) < MAX_EVENTS:
            run.abandoned.append((reserved, content["data"]["reason"]))
        for stretch in reversed(run.stretches):
            if stretch.round == round_ and stretch.rounds:
                stretch.rounds -= 1
                break

    def _point(self, ledger: LedgerState) -> Point:
        delta = self.book.budget.delta
        released = self.history.released
        if ledger.loose:
            upper = adaptive_reading(self.book, ledger.spent, ledger.delta)
            return Point(self.reserved, upper, self._lower(released), planned=False)
        so_far = join(plan.first(self.cursors.get(n, 0)) for n, plan in self.plans.items())
        upper = proven_epsilon(so_far, delta, math.inf)
        # The round of this entry is reserved, not released, so the counts differ by one.
        return Point(self.reserved, upper, self._lower(released), planned=True)

    def _lower(self, released: Counter[Round]) -> float | None:
        few = len(released) <= _MANY_KINDS or self.reserved in _due(max(self.due), _FEW_POINTS)
        if not few or not released:
            return None
        schedule = Schedule(Phase(r, n) for r, n in released.items())
        try:
            return ACCOUNTANTS["tight"].epsilon(schedule, self.book.budget.delta).lower
        except (NotConverged, Unsupported):
            return None


def _due(total: int, points: int) -> set[int]:
    """The rounds at which a point is drawn; every reservation counts, abandoned ones too."""
    if total <= 0:
        return set()
    return {max(1, round(total * k / points)) for k in range(points + 1)}


def read_history(book: Book) -> History:
    """All of a ledger, in one pass over its entries.

    Raises:
        LedgerError: an entry is damaged.
    """
    reader = _Reader(book)
    for entry, closes in book.store.entries():
        try:
            reader.step(entry.content, closes)
        except (KeyError, TypeError) as error:
            raise LedgerError(f"entry {entry.number} cannot be read ({error})") from None
    for _, number in reader.open.values():
        reader.history.runs[number].open += 1
    reader.finish()
    return reader.history
