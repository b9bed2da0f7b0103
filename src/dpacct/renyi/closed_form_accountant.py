"""The accountant `closed-form`: published formulas, where their conditions hold."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dpacct.budget import Interval
from dpacct.errors import Unsupported
from dpacct.numerics.rounding import UNIT
from dpacct.pairs.achieved import achieved_delta, achieved_epsilon
from dpacct.renyi.closed_form import closed_form_renyi, interpolated_renyi
from dpacct.renyi.conversion import best_delta, best_epsilon, improved_delta, improved_epsilon
from dpacct.rounds import Schedule

_START_ORDERS = [2 * 3**k for k in range(12)]


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
        curve = self._curve(schedule)
        found = [best_epsilon(curve, delta, start).order for start in _starts(curve)]
        return min(improved_epsilon(order, curve(order), delta) for order in _integers_near(found))

    def epsilon(self, schedule: Schedule, delta: float) -> Interval:
        """See `Accountant`."""
        upper = self.upper_epsilon(schedule, delta)
        return Interval.bracket(achieved_epsilon(schedule, delta), upper)

    def delta(self, schedule: Schedule, epsilon: float) -> Interval:
        """See `Accountant`."""
        if not schedule.rounds:
            return Interval(0.0, 0.0)
        curve = self._curve(schedule)
        found = [best_delta(curve, epsilon, start).order for start in _starts(curve)]
        upper = min(improved_delta(order, curve(order), epsilon) for order in _integers_near(found))
        return Interval.bracket(achieved_delta(schedule, epsilon), upper)

    @staticmethod
    def _curve(schedule: Schedule) -> Callable[[float], float]:
        """Upper bound of the Renyi divergence at any order, infinite where there is none."""
        counts = schedule.distinct()
        for round_ in counts:
            # The conditions bound the order from above, so order 2 is the first to look at.
            bound, reasons = closed_form_renyi(2, round_)
            if math.isinf(bound):
                setting = f"{round_.sampling!r} with noise {round_.noise_multiplier:.6g}"
                raise Unsupported(f"no closed form applies to {setting}: {' | '.join(reasons)}")
        rounding = 1 + 2 * UNIT * (len(counts) + 2)

        def curve(order: float) -> float:
            parts = (count * interpolated_renyi(order, r) for r, count in counts.items())
            return rounding * sum(parts)

        return curve


def _starts(curve: Callable[[float], float]) -> list[float]:
    """Orders to search from. Each form alone has one valley; their minimum may have several."""
    return [float(order) for order in _START_ORDERS if math.isfinite(curve(float(order)))]


def _integers_near(orders: list[float]) -> list[float]:
    floors = {max(2, math.floor(order)) for order in orders}
    return [float(order) for below in floors for order in (below, below + 1)]
