"""The accountant `rdp`: numeric Renyi moments at continuous orders."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpacct.budget import Interval
from dpacct.pairs.achieved import achieved_delta, achieved_epsilon
from dpacct.renyi.conversion import (
    AtOrder,
    best_delta,
    best_epsilon,
    improved_delta,
    improved_epsilon,
)
from dpacct.renyi.curve import RenyiCurve
from dpacct.rounds import Schedule


@dataclass(frozen=True, slots=True)
class RenyiAccountant:
    """Numeric Renyi moments at continuous orders, improved conversion."""

    name: str = "rdp"

    def best_order(self, schedule: Schedule, delta: float) -> float:
        """The Renyi order that gives the smallest epsilon."""
        return self._best(RenyiCurve(schedule), delta).order

    def upper_epsilon(self, schedule: Schedule, delta: float) -> float:
        """See `Accountant`."""
        if not schedule.rounds:
            return 0.0
        curve = RenyiCurve(schedule)
        order = self._best(curve, delta).order
        return improved_epsilon(order, curve.upper(order), delta)

    def epsilon(self, schedule: Schedule, delta: float) -> Interval:
        """See `Accountant`."""
        upper = self.upper_epsilon(schedule, delta)
        return Interval.bracket(achieved_epsilon(schedule, delta), upper)

    def delta(self, schedule: Schedule, epsilon: float) -> Interval:
        """See `Accountant`."""
        upper = self.upper_delta(schedule, epsilon)
        return Interval.bracket(achieved_delta(schedule, epsilon), upper)

    def upper_delta(self, schedule: Schedule, epsilon: float) -> float:
        """Proven upper bound of delta at a valid epsilon."""
        if not schedule.rounds:
            return 0.0
        curve = RenyiCurve(schedule)
        start = _gaussian_order(curve.search(2.0) / 2, 1 + epsilon)
        order = best_delta(curve.search, epsilon, start).order
        return improved_delta(order, curve.upper(order), epsilon)

    @staticmethod
    def _best(curve: RenyiCurve, delta: float) -> AtOrder:
        start = _gaussian_order(curve.search(2.0) / 2, -math.log(delta))
        return best_epsilon(curve.search, delta, start)


def _gaussian_order(rho: float, cost: float) -> float:
    """The order at which rho-zCDP trades best against ``cost``: where a search begins."""
    return 1 + math.sqrt(cost / max(rho, 1e-12))
