"""The facts about a ledger as one JSON object: its summary, and with the history of all rounds.

Rule 1: some epsilons hold only if results did not influence when to stop. They are never printed
without the epsilon of the whole plan, which holds in any case.
Rule 2: an attacker's success is computed from a promise that was fixed in advance: the whole plan,
or the budget. The reading of an odometer is no such promise: it depends on released values
(docs/derivations/adaptive.md).
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from dpacct.budget import Interval, Spent
from dpacct.display import chosen, up
from dpacct.items import release_entry
from dpacct.ledger.disk.store import Store
from dpacct.ledger.readings import WORDS, Guarantee, Snapshot
from dpacct.ledger.record.entries import Entry, Reserve, Said, Start
from dpacct.ledger.record.events import NoisySum, schedule_to_json
from dpacct.ledger.record.plans import Plan, join, schedule_cost
from dpacct.ledger.record.replay import Replay
from dpacct.ledger.record.state import LedgerState, settled_by
from dpacct.ledger.verify import Verification, verify
from dpacct.outputs import (
    Ends,
    LedgerReport,
    LedgerRun,
    LedgerSummary,
    LedgerTotals,
    Point,
    ProjectKeys,
    Reading,
    RunHistory,
)
from dpacct.renyi.odometer import add, subtract
from dpacct.rounds import Adjacency, Release

if TYPE_CHECKING:
    from dpacct.report.front import Promise

# The picture's points.
_POINTS = 24
MAX_PHASES = 200


def _finite(value: float) -> float | None:
    """Return the value for JSON: null if it is infinite."""
    return value if math.isfinite(value) else None


def _both(spent: Interval | Spent) -> Ends:
    return {"lower": _finite(spent.lower), "upper": _finite(spent.upper)}


def claim_of(
    guarantee: Guarantee,
    spent: Spent,
    any_stop: float,
    rounds: int,
    slots: tuple[int, int],
    *,
    first: bool = True,
    why: str = "",
    beside: float = 0.0,
) -> Reading:
    """Return a reading with everything that is printed with it, as JSON (Rule 1).

    ``spent`` is epsilon of the charged rounds, and ``any_stop`` that of the whole plan. ``slots``
    are the used slots of plans, and all slots. ``first``: the plans came before any round. ``why``:
    the reason for no guarantee. ``beside``: the sum of epsilons of pure rounds beside the plans,
    which both readings hold.
    """
    used, planned = slots
    partial = guarantee is Guarantee.PLANNED and 0 < used < planned
    if not rounds:
        words = "Nothing ran yet."
    elif guarantee is Guarantee.NONE:
        words = f"{why[:1].upper()}{why[1:]}, so no guarantee holds."
    elif guarantee is not Guarantee.PLANNED:
        words = WORDS[guarantee]
    elif partial:
        words = (
            f"{used} of {planned} planned rounds are charged. If results influence, or may come to "
            f"influence, when to stop, epsilon is {up(any_stop)}: that of the whole plan. It is "
            f"{up(spent.upper)} only if stopping here was decided in advance."
        )
    else:
        when = "the first one ran" if first else "the run started"
        words = (
            f"Every round was planned before {when}, and all planned rounds are charged. The tight "
            "accountant applies, whatever use is made of the results."
        )
    if rounds and guarantee is Guarantee.PLANNED and beside:
        words = words.replace("Every round was", "Every round that is not pure was").replace(
            "The tight accountant applies", "The tight accountant applies to the plans"
        )
        words += (
            f" The pure rounds beside the plans add {chosen(beside)} in all, whatever results they "
            "were chosen by."
        )
    return {
        "guarantee": str(guarantee),
        "epsilon": _both(spent),
        "epsilon_any_stop": _finite(any_stop),
        "claim": words,
        "part_of_plan": partial,
        "slots": {"used": used, "planned": planned},
    }


def summarize(now: Snapshot) -> LedgerSummary:
    """Return the summary of a ledger, as ``show`` prints it. An infinite epsilon is null."""
    state, budget = now.state, now.budget
    beside = now.mixture.largest_loss(state.spent, beside_plans=True)
    return {
        "schema": 1,
        "path": str(now.path),
        "budget": {"epsilon": budget.epsilon, "delta": budget.delta},
        "unit": now.unit,
        "adjacency": state.adjacency or None,
        **claim_of(
            now.guarantee(),
            now.interval(),
            now.any_stop(),
            state.rounds,
            now.planned_rounds(),
            why=now.why_not_private(),
            beside=float(beside or 0),
        ),
        "pure_beside_plans": None if beside is None else float(beside),
        "delta": budget.delta,
        "plan_delta": state.plan_delta,
        "adaptive_delta": state.delta,
        "promised_delta": now.mixture.promised_delta,
        "promised_delta_left": now.mixture.promises_left(state.charged),
        "partitions": {name: list(parts) for name, parts in now.known.opening.partitions.items()},
        "projects": _projects(now),
        "held": any(state.held),
        "rounds": state.rounds,
        "runs": [_run(now, number) for number in now.runs()],
        "head": now.head.hash.hex(),
        "entries": now.head.number,
        "verified": (now.verified() or (0,))[0],
    }


def _projects(now: Snapshot) -> list[ProjectKeys]:
    """Return the groups of runs, each with its own epsilon."""
    groups: dict[str, list[int]] = {}
    for run in now.runs():
        if now.start(run).project:
            groups.setdefault(now.start(run).project, []).append(run)
    found: list[ProjectKeys] = []
    for name, runs in groups.items():
        rounds, epsilon = sum(now.run_state(run).rounds for run in runs), _finite(now.alone(runs))
        found.append({"name": name, "runs": runs, "rounds": rounds, "epsilon": epsilon})
    return found


def _run(now: Snapshot, number: int) -> LedgerRun:
    state, start = now.run_state(number), now.start(number)
    plan, guarantee = start.plan, now.guarantee(number)
    spent, any_stop = now.interval(number), now.any_stop(number)
    if not state.private:
        spent, any_stop = spent.without_privacy, math.inf
    whole = _finite(any_stop) if plan is not None and state.on_plan else None
    slots, why = (state.cursor, plan.rounds) if plan else (0, 0), now.why_not_private(number)
    first, last = now.first_entry(number), now.entry(now.latest_of(number)[0])
    return {
        "run": number,
        "name": start.name,
        "project": start.project,
        "part": start.part,
        "private": state.private,
        **claim_of(guarantee, spent, any_stop, state.rounds, slots, first=state.initial, why=why),
        "rounds": state.rounds,
        "committed": state.committed,
        "uncommitted": state.rounds - state.committed,
        "finished": state.finished,
        "started": first.time,
        "latest": last.time,
        "total_after": _finite(now.behind(number).upper()),
        "planned_rounds": plan and plan.rounds,
        "planned_epsilon": whole,
        "planned_first": state.initial,
        "left_plan": state.left,
        "accountant": plan and plan.accountant,
        "plan": plan and schedule_to_json(plan.schedule),
        "details": start.details,
    }


def promise_of(now: Snapshot, found: LedgerTotals) -> Promise | None:
    """Return the promise of a ledger with this summary (Rule 2), or None if it keeps none."""
    # A summary needs no report: only its writers import it.
    from dpacct.report.front import Promise, risks_of_rounds  # noqa: PLC0415

    epsilon, budget = found["epsilon_any_stop"], found["budget"]["epsilon"]
    if epsilon is None or not found["rounds"]:
        return None
    unit, relation, delta = found["unit"], Adjacency(found["adjacency"]), found["delta"]
    if now.guarantee() is Guarantee.PLANNED and not now.state.loose:
        whole = now.whole_plan()
        risks = risks_of_rounds(whole.schedule, whole.accountant)
        return Promise(unit, relation, epsilon, delta, risks)
    return None if epsilon > budget else Promise(unit, relation, budget, delta, spent=epsilon)


def report_of(now: Snapshot, store: Store, reporter: str) -> tuple[LedgerReport, Verification]:
    """Return the summary of a ledger with the facts that only all entries show, and their check."""
    from dpacct.report.front import LEDGER_ASSUMPTIONS, risk_to_json  # noqa: PLC0415

    found, history = summarize(now), History(now)
    checked = verify(now, store, watch=history.step)
    history.end()
    report: LedgerReport = {
        **found,
        "created": now.entry(1).time,
        "latest": now.head.time,
        "software": now.known.opening.software,
        "points": history.points,
        "runs": [{**run, **history.of_run(run["run"])} for run in found["runs"]],
        "kind": "ledger",
        "risk": risk_to_json(promise_of(now, found)),
        "assumptions": list(LEDGER_ASSUMPTIONS),
        "reporter": reporter,
    }
    return report, checked


class History:
    """The runs of a ledger, and epsilon over its rounds, in one pass over its entries.

    Attributes:
        points: epsilon after a number of rounds, as JSON.
    """

    def __init__(self, now: Snapshot) -> None:
        self.points: list[Point] = []
        self._now = now
        self._runs: dict[int, RunHistory] = {}
        total = now.state.rounds
        self._due = sorted({max(1, round(total * k / _POINTS)) for k in range(_POINTS + 1)})
        # What settles each reserved round, with the phase that counts it.
        self._open: dict[int, dict[str, Any]] = {}
        self._more: dict[int, dict[str, Any]] = {}
        # Of each run: its latest entry, and its latest phase with what it consists of.
        self._latest: dict[int, Entry] = {}
        self._phases: dict[int, tuple[object, dict[str, Any]]] = {}
        # No round precedes a registration of these plans.
        self._plans, self._cursors = now.initial_plans(), dict[int, int]()
        self._kind = (False, False)
        self._before = LedgerState((), (), 0, 0, 0, False, False, 0.0, 0.0, "")  # noqa: FBT003 - in the order of the fields
        self._charged = 0

    def of_run(self, number: int) -> RunHistory:
        """Return the facts of a run, as JSON.

        ``ended`` is a time of the clock. ``phases`` are the charged rounds, run-length encoded, at
        most `MAX_PHASES`. ``more_rounds`` counts the others. ``left_at`` is the round at which the
        run left its plan.
        """
        if number not in self._runs:
            self._more[number] = {"rounds": 0}
            self._runs[number] = {
                "ended": "", "resumed": 0, "left_at": None,
                "abandonments": 0, "more_rounds": 0, "phases": [],
            }  # fmt: skip
        return self._runs[number]

    def end(self) -> None:
        """Finish the phases and the points."""
        for number, run in self._runs.items():
            run["phases"] = [phase for phase in run["phases"] if phase["rounds"]]
            run["more_rounds"] = self._more[number]["rounds"]
            run["ended"] = self._latest[number].time
        if self._charged:
            # The last point is the present reading.
            self._forget(self._charged)
            now = self._now
            self._point(now.state.rounds, now.upper(), planned=now.guarantee() is Guarantee.PLANNED)

    def step(self, entry: Entry, said: Said, replay: Replay) -> None:
        """Add one entry, behind which a replay is."""
        before, self._before = self._before, replay.ledger
        self._charged = replay.ledger.rounds
        if not entry.run:
            return
        run, state = self.of_run(entry.run), replay.runs[entry.run][2]
        self._latest[entry.run] = entry
        run["resumed"] += entry.kind == "resume"
        self._cursors[entry.run] = state.cursor
        if isinstance(said, Start) and said.rounds is not None:
            for kind, count in said.rounds:
                self._phase(entry.run, kind, (), count, planned=state.planned)
            self._rounds(entry.run, before, replay.ledger, said)
        elif isinstance(said, Reserve):
            if state.left and run["left_at"] is None:
                run["left_at"] = self._charged
            kind = replay.kind(said.kind)
            made_of = kind.charged, kind.releases
            phase = self._phase(entry.run, *made_of, said.count, planned=state.on_plan)
            for n in range(said.count):
                self._open[settled_by(entry.number, n)] = phase
            self._rounds(entry.run, before, replay.ledger)
        elif entry.closes is not None:
            phase = self._open.pop(entry.closes)
            if entry.kind == "abandon":
                self._forget(self._charged + 1)
                run["abandonments"] += 1
                phase["rounds"] -= 1

    def _phase(
        self, run: int, charged: Release, releases: tuple[NoisySum, ...], rounds: int, *,
        planned: bool,
    ) -> dict[str, Any]:  # fmt: skip
        """Count rounds in the latest phase of a run, or in a new one, and return the phase."""
        made_of, phases = (charged, releases, planned), self._runs[run]["phases"]
        latest, phase = self._phases.get(run, (None, self._more[run]))
        if latest != made_of:
            phase = self._more[run]
            if len(phases) < MAX_PHASES:
                phase = {"rounds": 0, "planned": planned, **release_entry(charged, alone=True)}
                phase["releases"] = list(map(asdict, releases))
                phases.append(phase)
            self._phases[run] = made_of, phase
        phase["rounds"] += rounds
        return phase

    def _rounds(
        self, run: int, before: LedgerState, after: LedgerState, start: Start | None = None
    ) -> None:
        """Add the points of the rounds that one entry charges. ``start``: of a charge."""
        # Rounds beside the plans, and among them one that is not pure, turn the curve.
        beside = self._now.mixture.largest_loss(after.spent, beside_plans=True)
        kind, cursor = (after.loose, beside is None), self._cursors[run]
        turns = after.loose and kind != self._kind
        first, last = (bisect_right(self._due, n) for n in (before.rounds, after.rounds))
        due = {*self._due[first:last], *([before.rounds + 1] if turns else ())}
        for rounds in sorted(due):
            self._cursors[run] = cursor - (after.rounds - rounds)
            self._forget(rounds)
            self._read(self._within(before, after, rounds, start))
        self._kind, self._cursors[run] = kind, cursor

    def _within(
        self, before: LedgerState, after: LedgerState, rounds: int, start: Start | None
    ) -> LedgerState:
        """Return the totals after some of the rounds that one entry charges."""
        some, count = rounds - before.rounds, after.rounds - before.rounds
        if some == count:
            return after
        schedule = start and start.schedule
        if start is None or schedule is None or start.part or len(schedule.phases) == 1:
            # Of equal rounds, a share rounded up. About a part it is at most too large.
            whole = subtract(after.spent, before.spent)
            spent = tuple(-(-some * part // count) for part in whole)
        else:
            spent = schedule_cost(self._now.mixture, Plan(schedule).first(some))
            if start.plan is not None and not before.started:
                spent = self._now.mixture.within_plans(spent)
        return after._replace(spent=add(before.spent, spent), rounds=rounds)

    def _read(self, ledger: LedgerState) -> None:
        """Add a point."""
        if ledger.exposed or not self._now.is_planned(ledger):
            spent = self._now.adaptive(ledger.spent, ledger.delta)
            spent = math.inf if ledger.exposed else spent
            self._point(ledger.rounds, spent, planned=False)
            return
        so_far = join(plan.first(self._cursors.get(n, 0)) for n, plan in self._plans.items())
        upper = self._now.planned(ledger, self._plans.values(), so_far)
        self._point(ledger.rounds, upper, planned=True)

    def _point(self, rounds: int, upper: float, *, planned: bool) -> None:
        kind = "planned" if planned else "adaptive"
        self.points.append({"round": rounds, "upper": _finite(upper), "guarantee": kind})

    def _forget(self, rounds: int) -> None:
        """Drop the points from this number of rounds on: some of the rounds were given back."""
        while self.points and self.points[-1]["round"] >= rounds:
            self.points.pop()
