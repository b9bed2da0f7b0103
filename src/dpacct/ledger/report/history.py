"""The history of a ledger, read from all entries once: phases, losses, epsilon over the rounds."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import asdict
from typing import Any

from dpacct.errors import LedgerError
from dpacct.ledger.readings import Guarantee, Snapshot
from dpacct.ledger.record.entries import Entry, Opening, Reserve, Settle, Start, read_time
from dpacct.ledger.record.events import round_to_json
from dpacct.ledger.record.plans import Plan, achieved_epsilon, epsilon_so_far, join, together
from dpacct.ledger.record.state import LedgerState
from dpacct.rounds import Phase, Schedule
from dpacct.rounds import Release as ScheduleItem

# The picture's points. With many different rounds each takes longer.
_POINTS = 24
_FEW_POINTS = 6
_MANY_KINDS = 12
MAX_EVENTS = 200


class History:
    """All of a ledger, in one pass over its entries.

    Attributes:
        facts: ``created``, ``latest``, ``software``, ``entries``, as JSON.
        runs: the facts of each run, as JSON. ``started`` and ``ended`` are times of the clock.
            ``phases`` and ``abandoned`` have at most `MAX_EVENTS` items. ``phases`` are the charged
            rounds, run-length encoded. ``left_at`` is the round at which the run left its plan.
        points: epsilon after a number of rounds, as JSON. ``lower`` is null if not computed.
        marks: the events that are marked in the picture, as JSON.
        released: each different round with the number of times it was released, of the runs that
            may all use the data of one client.
    """

    def __init__(self, now: Snapshot) -> None:
        self.facts: dict[str, Any] = {"created": "", "latest": "", "software": "", "entries": 0}
        self.runs: dict[int, dict[str, Any]] = {}
        self.points: list[dict[str, Any]] = []
        self.marks: list[dict[str, Any]] = []
        self.released: Counter[ScheduleItem] = Counter()
        self._now = now
        self._of_client = now.of_one_client()
        self._open: dict[int, tuple[ScheduleItem, int]] = {}
        self._plans: dict[int, Plan] = {}
        self._cursors: dict[int, int] = {}
        self._charged = 0
        for entry, _ in now.entries():
            self._step(entry)
        for run in self.runs.values():
            run["phases"] = [phase for phase in run["phases"] if phase["rounds"]]
        if self._charged:
            # The last point is the present reading.
            spent, planned = now.interval(), now.guarantee() is Guarantee.PLANNED
            self._forget(self._charged)
            self._point(spent.upper, spent.lower if self._few() else None, planned=planned)

    def _step(self, entry: Entry) -> None:
        """Add one entry."""
        said, time = self._now.said(entry), self._now.named(read_time, entry)
        ledger, state = self._now.totals(entry)
        self._charged = ledger.rounds
        self.facts |= {"latest": time, "entries": self.facts["entries"] + 1}
        if isinstance(said, Opening):
            self.facts |= {"created": time, "software": said.software}
        if state is None:
            return
        if entry.run not in self.runs:
            run = dict[str, Any](started=time, ended="", resumed=0, left_at=None, abandonments=0)
            self.runs[entry.run] = run | {"abandoned": [], "more_rounds": 0, "phases": []}
        run = self.runs[entry.run]
        run["ended"] = time
        if state.initial:
            self._cursors[entry.run] = state.cursor
        match said:
            case Start(plan=plan):
                if plan is not None and state.initial:
                    self._plans[entry.run] = plan
                self._mark(f"run {entry.run} starts")
            case Reserve():
                self._reserve(entry, said, run, ledger)
            case Settle():
                self._settle(entry, said, run)
            case _ if entry.kind == "resume":
                run["resumed"] += 1
                lost = sum(owner == entry.run for _, owner in self._open.values())
                self._mark(f"run {entry.run} resumes" + (f", {lost} lost" if lost else ""))
            case _:
                pass

    def _reserve(
        self, entry: Entry, said: Reserve, run: dict[str, Any], ledger: LedgerState
    ) -> None:
        self._open[entry.number] = (said.charged, entry.run)
        if said.left:
            run["left_at"] = self._charged
            self._mark(f"run {entry.run} leaves its plan")
        phases = run["phases"]
        new = {"planned": said.slot is not None} | round_to_json(said.charged)
        new["releases"] = list(map(asdict, said.releases))
        if phases and phases[-1] == {"rounds": phases[-1]["rounds"], **new}:
            phases[-1]["rounds"] += 1
        elif len(phases) < MAX_EVENTS:
            phases.append({"rounds": 1, **new})
        else:
            run["more_rounds"] += 1
        turned = self.points and self.points[-1]["guarantee"] == "planned" and ledger.loose
        if turned or self._is_due(_POINTS):
            self._forget(self._charged)
            self._read(ledger)

    def _settle(self, entry: Entry, said: Settle, run: dict[str, Any]) -> None:
        round_, owner = self._open.pop(said.round, (None, 0))
        if round_ is None or owner != entry.run:
            raise LedgerError(
                f"{self._now.path}: entry {entry.number} settles a round that is not open."
            )
        if entry.kind == "commit":
            if owner in self._of_client:
                self.released[round_] += 1
            return
        self._forget(self._charged + 1)
        run["abandonments"] += 1
        if len(run["abandoned"]) < MAX_EVENTS:
            run["abandoned"].append({"entry": said.round, "reason": said.reason})
        for phase in reversed(run["phases"]):
            if phase["rounds"] and round_to_json(round_).items() <= phase.items():
                phase["rounds"] -= 1
                break

    def _mark(self, words: str) -> None:
        self.marks.append({"round": self._charged, "words": words})

    def _read(self, ledger: LedgerState) -> None:
        """Add a point. The round of this entry is not released yet, and counts above alone."""
        delta, lower = self._now.budget.delta, None
        if self._few() and self.released:
            lower = achieved_epsilon(self.released_schedule(), delta)
        if ledger.loose or ledger.exposed:
            spent = self._now.adaptive(ledger.spent, ledger.delta)
            self._point(math.inf if ledger.exposed else spent, lower, planned=False)
            return
        plans = self._plans
        so_far = join(plan.first(self._cursors.get(n, 0)) for n, plan in plans.items())
        upper = epsilon_so_far(together(plans.values()), so_far, delta)
        self._point(upper, lower, planned=True)

    def released_schedule(self) -> Schedule:
        """Return all released rounds as a schedule."""
        return Schedule(Phase(round_, count) for round_, count in self.released.items())

    def _point(self, upper: float, lower: float | None, *, planned: bool) -> None:
        kind, proven = "planned" if planned else "adaptive", upper if math.isfinite(upper) else None
        point = {"round": self._charged, "upper": proven, "lower": lower, "guarantee": kind}
        self.points.append(point)

    def _forget(self, rounds: int) -> None:
        """Drop the points from this number of rounds on: some of the rounds were given back."""
        while self.points and self.points[-1]["round"] >= rounds:
            self.points.pop()

    def _few(self) -> bool:
        """Return whether there are few enough different rounds for an achieved side here."""
        return len(self.released) <= _MANY_KINDS or self._is_due(_FEW_POINTS)

    def _is_due(self, points: int) -> bool:
        """Return whether one of ``points`` points, evenly spread over the rounds, is here."""
        total = self._now.state.rounds
        return total > 0 and any(
            self._charged == max(1, round(total * k / points)) for k in range(points + 1)
        )
