"""The history of a ledger, read from all entries once: phases, losses, epsilon over the rounds."""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import Any

from dpacct.display import line
from dpacct.errors import LedgerError
from dpacct.ledger.readings import Guarantee, Snapshot
from dpacct.ledger.record.entries import Entry, Opening, Reserve, Settle, Start
from dpacct.ledger.record.events import round_to_json
from dpacct.ledger.record.plans import Plan, epsilon_so_far, join, together
from dpacct.ledger.record.state import LedgerState
from dpacct.rounds import Release as ScheduleItem

# The picture's points.
_POINTS = 24
MAX_PHASES = 200


class History:
    """All of a ledger, in one pass over its entries.

    Attributes:
        facts: ``created``, ``latest``, ``software``, ``entries``, as JSON.
        runs: the facts of each run, as JSON. ``started`` and ``ended`` are times of the clock.
            ``phases`` are the charged rounds, run-length encoded, at most `MAX_PHASES`. ``left_at``
            is the round at which the run left its plan.
        points: epsilon after a number of rounds, as JSON.
    """

    def __init__(self, now: Snapshot) -> None:
        self.facts: dict[str, Any] = {"created": "", "latest": "", "software": "", "entries": 0}
        self.runs: dict[int, dict[str, Any]] = {}
        self.points: list[dict[str, Any]] = []
        self._now = now
        total = now.state.rounds
        self._due = {max(1, round(total * k / _POINTS)) for k in range(_POINTS + 1)}
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
            self._forget(self._charged)
            self._point(now.upper(), planned=now.guarantee() is Guarantee.PLANNED)

    def _step(self, entry: Entry) -> None:
        """Add one entry."""
        said, time = self._now.said(entry), line(str(entry.content["time"]))
        ledger, state = self._now.totals(entry)
        self._charged = ledger.rounds
        self.facts |= {"latest": time, "entries": self.facts["entries"] + 1}
        if isinstance(said, Opening):
            self.facts |= {"created": time, "software": said.software}
        if state is None:
            return
        if entry.run not in self.runs:
            run = dict[str, Any](started=time, ended="", resumed=0, left_at=None, abandonments=0)
            self.runs[entry.run] = run | {"more_rounds": 0, "phases": []}
        run = self.runs[entry.run]
        run["ended"] = time
        run["resumed"] += entry.kind == "resume"
        if state.initial:
            self._cursors[entry.run] = state.cursor
        match said:
            case Start(plan=plan) if plan is not None and state.initial:
                self._plans[entry.run] = plan
            case Reserve():
                self._reserve(entry, said, run, ledger)
            case Settle():
                self._settle(entry, said, run)
            case _:
                pass

    def _reserve(
        self, entry: Entry, said: Reserve, run: dict[str, Any], ledger: LedgerState
    ) -> None:
        self._open[entry.number] = (said.charged, entry.run)
        if said.left:
            run["left_at"] = self._charged
        phases = run["phases"]
        new = {"planned": said.slot is not None} | round_to_json(said.charged)
        new["releases"] = list(map(asdict, said.releases))
        if phases and phases[-1] == {"rounds": phases[-1]["rounds"], **new}:
            phases[-1]["rounds"] += 1
        elif len(phases) < MAX_PHASES:
            phases.append({"rounds": 1, **new})
        else:
            run["more_rounds"] += 1
        turned = self.points and self.points[-1]["guarantee"] == "planned" and ledger.loose
        if turned or self._charged in self._due:
            self._forget(self._charged)
            self._read(ledger)

    def _settle(self, entry: Entry, said: Settle, run: dict[str, Any]) -> None:
        round_, owner = self._open.pop(said.round, (None, 0))
        if round_ is None or owner != entry.run:
            raise LedgerError(
                f"{self._now.path}: entry {entry.number} settles a round that is not open."
            )
        if entry.kind == "commit":
            return
        self._forget(self._charged + 1)
        run["abandonments"] += 1
        for phase in reversed(run["phases"]):
            if phase["rounds"] and round_to_json(round_).items() <= phase.items():
                phase["rounds"] -= 1
                break

    def _read(self, ledger: LedgerState) -> None:
        """Add a point."""
        if ledger.loose or ledger.exposed:
            spent = self._now.adaptive(ledger.spent, ledger.delta)
            self._point(math.inf if ledger.exposed else spent, planned=False)
            return
        plans = self._plans
        so_far = join(plan.first(self._cursors.get(n, 0)) for n, plan in plans.items())
        upper = epsilon_so_far(together(plans.values()), so_far, self._now.budget.delta)
        self._point(upper, planned=True)

    def _point(self, upper: float, *, planned: bool) -> None:
        kind, proven = "planned" if planned else "adaptive", upper if math.isfinite(upper) else None
        self.points.append({"round": self._charged, "upper": proven, "guarantee": kind})

    def _forget(self, rounds: int) -> None:
        """Drop the points from this number of rounds on: some of the rounds were given back."""
        while self.points and self.points[-1]["round"] >= rounds:
            self.points.pop()
