"""Replaying a ledger: what each entry must have done to the totals."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dpacct.budget import Budget
from dpacct.errors import LedgerError
from dpacct.ledger.book import Book
from dpacct.ledger.events import covers, round_from_json, schedule_from_json
from dpacct.ledger.plans import Plan, plan_room, schedule_cost
from dpacct.ledger.state import (
    LedgerState,
    RunState,
    Slot,
    abandoned,
    committed,
    empty_ledger,
    finished,
    reserved,
    started_run,
    state_from_json,
)
from dpacct.odometer import Totals, subtract
from dpacct.rounds import Round

COST_TOLERANCE = 1e-9
PLAN_TOLERANCE = 1e-6


@dataclass(slots=True)
class _Open:
    """A reservation that is not settled."""

    run: int
    cost: Totals
    slot: Slot | None
    skipped: bool


class Replay:
    """The state of all runs while the entries are read one by one."""

    def __init__(self, book: Book) -> None:
        self.mixture = book.mixture
        self.budget = book.budget
        self.ledger: LedgerState | None = None
        self.runs: dict[int, RunState] = {}
        self.plans: dict[int, Plan] = {}
        self.open: dict[int, _Open] = {}
        self.unchecked = False
        self.over_budget = False
        self.dearer = 0

    def step(self, content: dict[str, Any], closes: int | None) -> None:
        """One entry.

        Raises:
            LedgerError: it does not follow from those before.
        """
        kind, run, data = content["kind"], content["run"], content["data"]
        found_ledger, found_run = state_from_json(content["state"])
        if (closes is None) == (kind in ("commit", "abandon")):
            raise LedgerError("it settles no round, or one that it cannot settle")
        if kind == "ledger":
            expected = self._first(found_ledger)
        elif self.ledger is None:
            raise LedgerError("a ledger begins with its budget")
        elif kind == "run":
            expected = self._run(self.ledger, run, data, found_ledger)
        else:
            expected = self._round(kind, self.ledger, run, content, closes)
        if expected != (found_ledger, found_run):
            raise LedgerError("its totals do not follow from the entries before")
        self.ledger = found_ledger
        if found_run is not None:
            self.runs[run] = found_run

    def within_budget(self) -> bool:
        """Whether what is charged outside the initial plans stays inside the budget.

        Rounds that had run elsewhere may have been recorded beyond it; then this is not asked.
        """
        state = self.ledger
        if state is None or not self.unchecked or self.over_budget:
            return True
        self.unchecked = False
        slack = 1 + COST_TOLERANCE
        return self.mixture.epsilon(state.charged, state.delta) <= self.budget.epsilon * slack

    def _first(self, found: LedgerState) -> tuple[LedgerState, None]:
        if self.ledger is not None:
            raise LedgerError("a ledger begins only once")
        weights, orders = self.mixture.weights, self.mixture.orders
        valid = all(w > 0 for w in weights) and sum(map(Fraction, weights)) <= 1
        if not valid or len(weights) != len(orders) or not all(order > 1 for order in orders):
            raise LedgerError("its orders and weights are not those of an odometer")
        return empty_ledger(self.mixture.zero(), self.budget.delta, found.adjacency), None

    def _run(
        self, ledger: LedgerState, run: int, data: dict[str, Any], found: LedgerState
    ) -> tuple[LedgerState, RunState]:
        if run != ledger.runs + 1:
            raise LedgerError("runs are numbered 1, 2, 3, ...")
        self.over_budget |= "over_budget" in data
        cost, room, adjacency = None, None, ledger.adjacency
        if data["plan"] is not None:
            plan = Plan(schedule_from_json(data["plan"]))
            self.plans[run] = plan
            cost = self._enough(
                schedule_cost(self.mixture, plan.schedule), subtract(found.held, ledger.held)
            )
            adjacency = str(plan.schedule.adjacency)
            if ledger.started:
                self.unchecked = True
            else:
                room = self._room(found, {run})
        return started_run(
            ledger, private=data["private"], plan_cost=cost, adjacency=adjacency, room=room
        )

    def _room(self, found: LedgerState, also: set[int]) -> LedgerState:
        """The stored division of delta, if it sets enough aside for the initial plans."""
        runs = {n for n, state in self.runs.items() if state.initial and not state.finished} | also
        budget = Budget(self.budget.epsilon * (1 + PLAN_TOLERANCE), self.budget.delta)
        room = plan_room(self.mixture, budget, [self.plans[n].schedule for n in runs])
        enough = found.plan_delta >= room.plan_delta * (1 - PLAN_TOLERANCE)
        if not (room.fits and enough and found.delta + found.plan_delta <= self.budget.delta):
            raise LedgerError("its plans do not fit into the budget as it says")
        return found

    def _enough(self, expected: Totals, found: Totals) -> Totals:
        """The stored cost, if it is not below the recomputed one."""
        for one, other in zip(expected, found, strict=True):
            if other < one - COST_TOLERANCE * one - 1:
                raise LedgerError("it charges less than its rounds cost")
        self.dearer += any(
            f > e + COST_TOLERANCE * e + 1 for e, f in zip(expected, found, strict=True)
        )
        return found

    def _round(
        self,
        kind: str,
        ledger: LedgerState,
        run: int,
        content: dict[str, Any],
        closes: int | None,
    ) -> tuple[LedgerState, RunState]:
        state = self.runs.get(run)
        if state is None:
            raise LedgerError(f"there is no run {run}")
        found_ledger, _ = state_from_json(content["state"])
        if kind == "reserve":
            return self._reserve(ledger, state, run, content, found_ledger)
        if kind == "resume":
            return ledger, state
        if kind == "finish":
            room = None
            if state.initial and not ledger.started:
                self.runs[run] = finished(ledger, state, None)[1]
                room = self._room(found_ledger, set())
            return finished(ledger, state, room)
        settled = self.open.pop(closes or 0, None)
        if settled is None or settled.run != run:
            raise LedgerError("it settles a round that is not open")
        if kind == "commit":
            return committed(ledger, state)
        if kind == "abandon":
            return abandoned(ledger, state, settled.cost, settled.slot, skipped=settled.skipped)
        raise LedgerError(f"its kind {kind!r} is unknown")

    def _reserve(
        self,
        ledger: LedgerState,
        state: RunState,
        run: int,
        content: dict[str, Any],
        found: LedgerState,
    ) -> tuple[LedgerState, RunState]:
        data = content["data"]
        if state.finished:
            raise LedgerError("its run was finished before")
        round_ = round_from_json(data["charged"])
        if ledger.adjacency not in ("", str(round_.adjacency)):
            raise LedgerError("its adjacency is another than that of the ledger")
        slot, skipped = None, False
        cost = self.mixture.cost(round_)
        if data["slot"] is None:
            self.unchecked = True
        else:
            plan, number = self._planned(run, state, round_, data["slot"])
            skipped = number > state.cursor
            freed = plan.cost(self.mixture, state.cursor, number + 1)
            slot = Slot(number, self._freed(freed, state, subtract(ledger.held, found.held)))
            cost = tuple(map(min, cost, plan.cost(self.mixture, number, number + 1)))
        cost = self._enough(cost, subtract(found.spent, ledger.spent))
        changed = reserved(ledger, state, cost, slot, str(round_.adjacency))
        self.open[content["number"]] = _Open(run, cost, slot, skipped)
        return changed

    def _freed(self, expected: Totals, state: RunState, found: Totals) -> Totals:
        """The stored amount that is no longer held, if it was held and is not too much."""
        for one, other, held in zip(expected, found, state.held, strict=True):
            if other < 0 or other > held:
                raise LedgerError("it frees more room than was held for it")
            self.dearer += other > one + COST_TOLERANCE * one + 1
        return found

    def _planned(self, run: int, state: RunState, round_: Round, number: int) -> tuple[Plan, int]:
        plan = self.plans.get(run)
        planned = plan.round_at(number) if plan is not None and state.on_plan else None
        if plan is None or planned is None or number < state.cursor or not covers(planned, round_):
            raise LedgerError("no round of the plan covers it")
        return plan, number
