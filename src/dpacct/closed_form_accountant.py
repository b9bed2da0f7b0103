"""The accountant `closed-form`: published formulas, where their conditions hold."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpacct.achieved import achieved_delta, achieved_epsilon
from dpacct.budget import Interval
from dpacct.closed_form import closed_form_renyi, interpolated_renyi
from dpacct.conversion import best_delta, best_epsilon, improved_delta, improved_epsilon
from dpacct.errors import Unsupported
from dpacct.rounding import UNIT
from dpacct.rounds import Schedule


@dataclass(frozen=True, slots=True)
class ClosedFormAccountant:
    """The closed forms of `closed_form` at integer orders, improved conversion."""

    name: str = "closed-form"

    def upper_epsilon(self, schedule: Schedule, delta: float) -> float:
        """See `Accountant`.

        Raises:
            Unsupported: no closed form applies at any order.
        """
        if not schedule.rounds:
            return 0.0
        self._require(schedule)
        found = best_epsilon(lambda order: self._renyi(schedule, order), delta, 2.0).order
        return min(
            improved_epsilon(order, self._renyi(schedule, order), delta)
            for order in _integers_near(found)
        )

    def epsilon(self, schedule: Schedule, delta: float) -> Interval:
        """See `Accountant`."""
        upper = self.upper_epsilon(schedule, delta)
        return Interval(min(achieved_epsilon(schedule, delta), upper), upper)

    def delta(self, schedule: Schedule, epsilon: float) -> Interval:
        """See `Accountant`."""
        if not schedule.rounds:
            return Interval(0.0, 0.0)
        self._require(schedule)
        found = best_delta(lambda order: self._renyi(schedule, order), epsilon, 2.0).order
        upper = min(
            improved_delta(order, self._renyi(schedule, order), epsilon)
            for order in _integers_near(found)
        )
        return Interval(min(achieved_delta(schedule, epsilon), upper), upper)

    @staticmethod
    def _renyi(schedule: Schedule, order: float) -> float:
        counts = schedule.distinct()
        total = sum(count * interpolated_renyi(order, round_) for round_, count in counts.items())
        return total * (1 + 2 * UNIT * (len(counts) + 2))

    @staticmethod
    def _require(schedule: Schedule) -> None:
        # The conditions bound the order from above, so order 2 is the first to look at.
        for round_ in schedule.distinct():
            bound, reasons = closed_form_renyi(2, round_)
            if math.isinf(bound):
                setting = f"{round_.sampling!r} with noise {round_.noise_multiplier:.6g}"
                raise Unsupported(f"no closed form applies to {setting}: {' | '.join(reasons)}")


def _integers_near(order: float) -> tuple[float, ...]:
    below = max(2, math.floor(order))
    return (float(below), float(below + 1))
