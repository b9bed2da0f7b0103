"""Plans: schedules that are registered before they run, and their cost.

Rule 1: plans registered before the ledger's first round ("initial") compose tightly, since nothing
that they could depend on has been released. They are admitted if the proven epsilon of all of them
together meets the budget. `PlanRoom` divides delta between them and other rounds.
Rule 2: a plan is charged by fixed pairs (`PAIRS`). If its run promised that no client remembers
whether it took part, it is charged by the game (`TIGHT`). The entry of the run records which.
Rule 3: the game is proven for rounds in the order of their plan. An attacker with a later release
could otherwise choose the data of an earlier round by it. So plans are charged together by the game
only if all their rounds are equal. A plan of different rounds releases them in its order.
Rule 4: rounds outside the plans are admitted while all charges, those that are held for plans among
them, satisfy one of three conditions. A: the reading of the odometer meets the budget. B: all of
them outside the plans are pure, and their epsilons fit beside that of the plans. C: all charges are
pure, and their epsilons fit. A and C are one reading, of `Mixture.epsilon`.

Proofs: docs/derivations/adaptive.md, "Pure releases beside plans" (theorem 3a), and federated.md,
"Client memories".
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from typing import NamedTuple

from dpacct.accountant import ACCOUNTANTS
from dpacct.budget import Budget
from dpacct.errors import InvalidParameter, NotConverged, Unsupported
from dpacct.ledger.record.events import covers
from dpacct.numerics.rounding import decimal
from dpacct.numerics.search import largest_count
from dpacct.pairs import achieved
from dpacct.renyi.curve import RenyiCurve
from dpacct.renyi.odometer import Mixture, Totals, add, fixed_point, times
from dpacct.rounds import AccountantName, Phase, Release, Schedule
from dpacct.tight.accountant import TightAccountant
from dpacct.validate import MAX_ROUNDS

PAIRS: AccountantName = "pairs"
TIGHT: AccountantName = "tight"
# Accountants tried after `PAIRS` and `TIGHT`, in this order. Each upper bound is proven.
_OTHERS: tuple[AccountantName, ...] = ("rdp", "closed-form", "gdp")
# A report asks for the same schedule several times.
_KEPT = 256
_GAME = TightAccountant()
# Phases of a plan that are searched for one that covers a round.
_LOOK_AHEAD = 1000
# Different rounds that are summed one by one.
_FEW = 64
# The share of delta for the side that needs less of it: the initial plans, or rounds outside them.
_LESSER = 1 / 8


@dataclass(frozen=True)
class Plan:
    """A schedule and the accountant that it may be charged by: `PAIRS` or `TIGHT`."""

    schedule: Schedule
    accountant: AccountantName = PAIRS

    @cached_property
    def _ends(self) -> list[int]:
        return list(accumulate(count for _, count in self.schedule))

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return self._ends[-1] if self._ends else 0

    @property
    def keeps_order(self) -> bool:
        """True if the charge depends on the order of the rounds (Rule 3)."""
        return self.accountant == TIGHT and len(self._ends) > 1

    def round_at(self, number: int) -> Release | None:
        """Return the round with a number from 0, or None past the end."""
        if number >= self.rounds:
            return None
        return self.schedule.phases[bisect_right(self._ends, number)].round

    def alike(self, number: int) -> int:
        """Return how many equal rounds of one phase come from a number on."""
        index = bisect_right(self._ends, number)
        return self._ends[index] - number if index < len(self._ends) else 0

    def covering(self, round_: Release, start: int) -> int | None:
        """Return the number of the first round, from ``start`` on, that covers the given one."""
        phase = bisect_right(self._ends, start)
        for index in range(phase, min(len(self._ends), phase + _LOOK_AHEAD)):
            if covers(self.schedule.phases[index].round, round_):
                return max(start, self._ends[index] - self.schedule.phases[index].rounds)
        return None

    def cost(self, mixture: Mixture, start: int, end: int) -> Totals:
        """Return the Renyi total of the rounds with numbers from ``start`` to ``end - 1``."""
        total, position = mixture.zero(), start
        while position < end:
            index = bisect_right(self._ends, position)
            count = min(self._ends[index], end) - position
            total = add(total, times(count, mixture.cost(self.schedule.phases[index].round)))
            position += count
        return total

    def first(self, rounds: int) -> Schedule:
        """Return the schedule of the first rounds."""
        phases: list[Phase] = []
        for round_, count in self.schedule:
            if rounds <= 0:
                break
            phases.append(Phase(round_, min(count, rounds)))
            rounds -= count
        return Schedule(phases)


def schedule_of(name: str, plan: object) -> Schedule:
    """Return a plan that is given as a schedule or as a single round."""
    schedule = 1 * plan if isinstance(plan, Release) else plan
    if not isinstance(schedule, Schedule) or not schedule.rounds:
        raise InvalidParameter(name, plan, "a Round, or a Schedule of at least one, is asked for")
    return schedule


def accountant_of(plan: Schedule | None, name: object) -> AccountantName:
    """Return the accountant that makes a difference for a plan: `PAIRS` if no game is played."""
    if name not in (PAIRS, TIGHT):
        rule = (
            f"a plan is charged by {PAIRS}, or by {TIGHT} where no client remembers whether it "
            "took part"
        )
        raise InvalidParameter("accountant", name, rule)
    return TIGHT if name == TIGHT and plan is not None and _GAME.plays(plan) else PAIRS


def join(schedules: Iterable[Schedule]) -> Schedule:
    """Return all rounds of several schedules."""
    return Schedule(part for schedule in schedules for part in schedule.parts)


def together(parts: Iterable[Plan]) -> Plan:
    """Return all rounds of several plans, with the accountant that they share (Rule 3)."""
    plans = [part for part in parts if part.rounds]
    whole = join(part.schedule for part in plans)
    promised = all(part.accountant == TIGHT for part in plans)
    ordered = len(plans) == 1 or len(whole.distinct()) == 1
    return Plan(whole, TIGHT if plans and promised and ordered else PAIRS)


@lru_cache(maxsize=_KEPT)
def proven_epsilon(plan: Plan, delta: float, target: float = 0.0) -> float:
    """Return the smallest proven epsilon of all accountants. The search ends at the target."""
    best = math.inf
    # If the plan fits by fixed pairs, the game is not played.
    names = (TIGHT,) if math.isinf(target) else (PAIRS, TIGHT)
    for name in (*(names if plan.accountant == TIGHT else (PAIRS,)), *_OTHERS):
        try:
            best = min(best, ACCOUNTANTS[name].upper_epsilon(plan.schedule, delta))
        except (Unsupported, NotConverged):
            continue
        except InvalidParameter:
            # Infinite losses have that much mass.
            break
        if best <= target:
            break
    return best


def epsilon_so_far(whole: Plan, used: Schedule, delta: float) -> float:
    """Return the proven epsilon of the used rounds of plans: the first rounds of each."""
    if used == whole.schedule:
        return proven_epsilon(whole, delta, math.inf)
    best = proven_epsilon(Plan(used), delta, math.inf)
    if whole.accountant == TIGHT and used.rounds:
        best = min(best, _GAME.upper_epsilon_of_first(whole.schedule, used.rounds, delta))
    return best


@lru_cache(maxsize=_KEPT)
def achieved_epsilon(schedule: Schedule, delta: float, *, whole: bool = False) -> float:
    """Return the achieved epsilon of a schedule that was fixed in advance.

    Of a ``whole`` plan that a game may be played of, whoever promised what: an adversary without
    memories is one with memories as well. A part has the end by pairs, since a game takes seconds.
    """
    try:
        return ACCOUNTANTS[TIGHT if whole else PAIRS].epsilon(schedule, delta).lower
    except (Unsupported, NotConverged, InvalidParameter):
        # The last one: infinite losses have a mass of delta, or more.
        return achieved.achieved_epsilon(schedule, delta)


def exposure(schedule: Schedule) -> float:
    """Return the probability with which a client takes part in some round, rounded down."""
    rates = ((getattr(kind, "sampling_rate", 1.0), n) for kind, n in schedule)
    logs = (n * math.log1p(-rate) if rate < 1 else -math.inf for rate, n in rates)
    return -math.expm1(sum(logs)) * (1 - 1e-12)


def schedule_cost(mixture: Mixture, schedule: Schedule) -> Totals:
    """Return the Renyi total of a schedule, a little above the sum for many different rounds."""
    distinct = schedule.distinct()
    if len(distinct) <= _FEW or len(schedule.only_rounds()) < len(distinct):
        parts = [times(count, mixture.cost(r)) for r, count in distinct.items()]
        return add(mixture.zero(), *parts)
    # One curve for all is much faster. The held total has to cover the rounds one by one.
    curve = RenyiCurve(schedule)
    found = tuple(fixed_point(curve.upper(order) * (1 + 1e-9)) for order in mixture.orders)
    # No round has infinite losses, or a largest one.
    others = mixture.cost(schedule.phases[0].round)[len(found) :]
    return (*found, *times(schedule.rounds, others))


class PlanRoom(NamedTuple):
    """The division of the budget's delta before the first round."""

    fits: bool  # the plans meet the budget
    delta: float  # the delta of the adaptive bound, with the part that is set aside for promises
    # The delta set aside for the plans, or 0 if the adaptive bound covers them too.
    plan_delta: float
    # The delta set aside for promises: as declared, or what the plans need. None: as declared.
    promised_delta: float | None


def plan_room(mixture: Mixture, budget: Budget, plans: Iterable[Plan]) -> PlanRoom:
    """Return whether initial plans of unfinished runs fit together, and the division of delta.

    Plans of pure releases whose epsilons fit need no delta. Otherwise it is divided: an eighth goes
    to the side that needs less. Ledgers of version 0.3 give the plans what they need, and no more.
    """
    whole, epsilon = together(plans), budget.epsilon
    aside = mixture.with_promises(schedule_cost(mixture, whole.schedule))
    promised = aside.promised_delta if mixture.adds_up else None
    plan_delta = _plan_delta_by_totals(aside, budget, whole)
    rest = _rest_for(aside, budget, whole)
    if plan_delta is None and rest is not None:
        bound = ACCOUNTANTS[whole.accountant].delta(whole.schedule, epsilon).upper
        if bound <= rest.delta or _meets(whole, rest):
            most = (1 - _LESSER) * rest.delta if mixture.adds_up else 0.0
            plan_delta = min(max(bound, most), rest.delta)
    if plan_delta is None:
        return PlanRoom(False, budget.delta, 0.0, promised)  # noqa: FBT003 - in the order of the fields
    return PlanRoom(True, left_of(budget.delta, plan_delta), plan_delta, promised)  # noqa: FBT003 - likewise


def _plan_delta_by_totals(mixture: Mixture, budget: Budget, whole: Plan) -> float | None:
    """Return the delta of initial plans if condition C or A holds for them, or else None."""
    cost = schedule_cost(mixture, whole.schedule)
    loss, plan_delta = mixture.largest_loss(cost), 0.0
    pure = loss is not None and loss <= decimal(budget.epsilon)
    if mixture.adds_up and not pure:
        plan_delta = _LESSER * mixture.without_promises(budget.delta)
    fits = mixture.promised_delta <= budget.delta
    delta = left_of(budget.delta, plan_delta)
    return plan_delta if fits and mixture.epsilon(cost, delta) <= budget.epsilon else None


def _rest_for(mixture: Mixture, budget: Budget, plan: Plan) -> Budget | None:
    """Return the budget without the delta of infinite losses, or None if those do not fit."""
    delta = mixture.without_promises(budget.delta)
    if delta <= 0.0 or mixture.promises_left(schedule_cost(mixture, plan.schedule)) < 0.0:
        return None
    return Budget(budget.epsilon, delta)


def left_of(delta: float, plan_delta: float) -> float:
    """Return the rest of a budget's delta behind the part set aside, rounded down."""
    if plan_delta == 0.0:
        return delta
    return max(0.0, math.nextafter(delta - plan_delta, 0.0))


def most_steps(step: Schedule) -> int:
    """Return how often a step may run in one schedule."""
    return MAX_ROUNDS // step.rounds


def most_planned_rounds(
    mixture: Mixture, budget: Budget, plans: list[Plan], step: Schedule,
    accountant: AccountantName, fewest: int, most: int,
) -> int:  # fmt: skip
    """Return how many equal steps one more initial plan may have, up to ``most``.

    ``fewest`` steps are known to fit.
    """
    unlimited = most_steps(step)

    def with_steps(count: int) -> list[Plan]:
        return [*plans, Plan(count * step, accountant)]

    def fit(count: int) -> bool:
        whole = together(with_steps(count))
        aside = mixture.with_promises(schedule_cost(mixture, whole.schedule))
        if _plan_delta_by_totals(aside, budget, whole) is not None:
            return True
        rest, bound = _rest_for(aside, budget, whole), ACCOUNTANTS[PAIRS].delta
        if rest is None or _meets(whole, rest):
            return rest is not None
        # The game takes long, so its delta is left to the end of the search.
        return whole.accountant == PAIRS and bound(whole.schedule, rest.epsilon).upper <= rest.delta

    if fewest >= most or (most < unlimited and fit(most)):
        return most
    found = largest_count(fit, fewest, most if most == unlimited else most - 1)
    # Delta may show that a plan fits which epsilon does not.
    game = accountant == TIGHT
    while game and found < most and plan_room(mixture, budget, with_steps(found + 1)).fits:
        found += 1
    return found


def _meets(plan: Plan, budget: Budget) -> bool:
    """Return whether the proven epsilon meets the budget. Cheap accountants come first."""
    epsilon, delta = budget.epsilon, budget.delta
    if proven_epsilon(Plan(plan.schedule), delta, epsilon) <= epsilon:
        return True
    if plan.accountant != TIGHT or achieved_epsilon(plan.schedule, delta) > epsilon:
        return False
    return proven_epsilon(plan, delta, epsilon) <= epsilon
