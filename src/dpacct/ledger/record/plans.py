"""Plans: schedules registered before they run, what they cost, and how far a run has come.

Plans that are registered before the ledger's first round compose tightly. They are admitted where
the proven epsilon of all of them together meets the budget; `PlanRoom` says what remains for
anything else. Why this is valid: docs/derivations/adaptive.md, "Plans and a budget".
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import NamedTuple

from dpacct.budget import Budget
from dpacct.errors import InvalidParameter
from dpacct.ledger.record.charged import PAIRS, Charged, fits, proven_delta, together
from dpacct.ledger.record.events import covers
from dpacct.numerics.search import largest_count
from dpacct.renyi.curve import RenyiCurve
from dpacct.renyi.odometer import Mixture, Totals, add, fixed_point, times
from dpacct.rounds import Phase, Round, Schedule
from dpacct.validate import MAX_ROUNDS

# So many phases of a plan are searched for one that covers a round.
_LOOK_AHEAD = 1000
# Up to so many different rounds are summed one by one.
_FEW = 64


class Plan:
    """A schedule that knows its rounds by their number."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self._ends = list(accumulate(count for _, count in schedule))

    @property
    def rounds(self) -> int:
        """How many there are."""
        return self._ends[-1] if self._ends else 0

    def round_at(self, number: int) -> Round | None:
        """The round with a number from 0; None past the end."""
        if number >= self.rounds:
            return None
        return self.schedule.phases[bisect_right(self._ends, number)].round

    def covering(self, round_: Round, start: int) -> int | None:
        """The number of the first round, from ``start`` on, that covers the given one."""
        phase = bisect_right(self._ends, start)
        for index in range(phase, min(len(self._ends), phase + _LOOK_AHEAD)):
            if covers(self.schedule.phases[index].round, round_):
                return max(start, self._ends[index] - self.schedule.phases[index].rounds)
        return None

    def cost(self, mixture: Mixture, start: int, end: int) -> Totals:
        """The Renyi total of the rounds with numbers from ``start`` to ``end - 1``."""
        total, position = mixture.zero(), start
        while position < end:
            index = bisect_right(self._ends, position)
            count = min(self._ends[index], end) - position
            total = add(total, times(count, mixture.cost(self.schedule.phases[index].round)))
            position += count
        return total

    def first(self, rounds: int) -> Schedule:
        """The first so many rounds."""
        phases: list[Phase] = []
        for round_, count in self.schedule:
            if rounds <= 0:
                break
            phases.append(Phase(round_, min(count, rounds)))
            rounds -= count
        return Schedule(phases)


class PlanRoom(NamedTuple):
    """How the budget's delta is divided before the first round.

    Attributes:
        fits: the plans meet the budget.
        delta: what the adaptive bound may use.
        plan_delta: what is set aside for the plans; 0 where the adaptive bound covers them too.
    """

    fits: bool
    delta: float
    plan_delta: float


def schedule_of(name: str, plan: object) -> Schedule:
    """A plan as it is given: a schedule, or a single round.

    Raises:
        InvalidParameter: it is neither, or has no rounds.
    """
    schedule = 1 * plan if isinstance(plan, Round) else plan
    if not isinstance(schedule, Schedule) or not schedule.rounds:
        raise InvalidParameter(name, plan, "a Round, or a Schedule of at least one, is asked for")
    return schedule


def schedule_cost(mixture: Mixture, schedule: Schedule) -> Totals:
    """The Renyi total of a schedule; of one with many different rounds a little above their sum."""
    distinct = schedule.distinct()
    if len(distinct) <= _FEW:
        parts = [times(count, mixture.cost(r)) for r, count in distinct.items()]
        return add(mixture.zero(), *parts)
    # All at once is much faster; what is held has to be enough for the rounds one by one.
    curve = RenyiCurve(schedule)
    return tuple(fixed_point(curve.upper(order) * (1 + 1e-9)) for order in mixture.orders)


def plan_room(mixture: Mixture, budget: Budget, plans: Iterable[Charged]) -> PlanRoom:
    """Whether the plans fit into the budget together, and what they leave.

    Args:
        mixture: the orders of the adaptive bound.
        budget: of the ledger.
        plans: all that were registered before the first round and are not finished.
    """
    whole = together(plans)
    if _needs_nothing(mixture, budget, whole):
        return PlanRoom(fits=True, delta=budget.delta, plan_delta=0.0)
    admitted = fits(whole, budget.delta, budget.epsilon)
    bound = proven_delta(whole, budget.epsilon)
    if not admitted and bound > budget.delta:
        return PlanRoom(fits=False, delta=budget.delta, plan_delta=0.0)
    plan_delta = min(bound, budget.delta)
    return PlanRoom(fits=True, delta=left_of(budget.delta, plan_delta), plan_delta=plan_delta)


def _needs_nothing(mixture: Mixture, budget: Budget, whole: Charged) -> bool:
    """Whether the adaptive bound covers the plans too."""
    return mixture.epsilon(schedule_cost(mixture, whole.schedule), budget.delta) <= budget.epsilon


def left_of(delta: float, plan_delta: float) -> float:
    """What is left of a budget's delta if so much is set aside; rounded down."""
    if plan_delta == 0.0:
        return delta
    return max(0.0, math.nextafter(delta - plan_delta, 0.0))


def most_planned_rounds(
    mixture: Mixture,
    budget: Budget,
    plans: list[Charged],
    round_: Round,
    fewest: int,
    accountant: str,
    most: int = MAX_ROUNDS,
) -> int:
    """How many equal rounds a further initial plan may have, up to ``most``.

    At least ``fewest``, which fit.
    """

    def fit(count: int) -> bool:
        whole = together([*plans, Charged(count * round_, accountant)])
        return (
            _needs_nothing(mixture, budget, whole)
            or fits(whole, budget.delta, budget.epsilon)
            or (whole.accountant == PAIRS and proven_delta(whole, budget.epsilon) <= budget.delta)
        )

    # Who wants so many is seldom refused.
    if fewest >= most or (most < MAX_ROUNDS and fit(most)):
        return most
    return largest_count(fit, fewest, most if most == MAX_ROUNDS else most - 1)
