"""The accountant `tight`: exact composition by contour inversion, where the contour converges.

Rounds whose loss is nearly an atom (tiny rates or little noise, and few rounds) are beyond it so
far. There the upper side falls back on Renyi moments and the lower side on
single rounds: a wide bracket, but a proven one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from dpacct.achieved import achieved_delta, achieved_epsilon
from dpacct.budget import Interval
from dpacct.dominating import (
    Direction,
    DominatingPair,
    achieved_pair,
    proven_pair,
)
from dpacct.errors import NotConverged
from dpacct.inversion import Composition, inversion_delta, inversion_epsilon
from dpacct.renyi_accountant import RenyiAccountant
from dpacct.rounds import Round, Schedule

_FALLBACK = RenyiAccountant()


@dataclass(frozen=True, slots=True)
class TightAccountant:
    """Contour inversion of the moments, both directions; Renyi moments where it does not apply."""

    name: str = "tight"

    def upper_epsilon(self, schedule: Schedule, delta: float) -> float:
        """See `Accountant`."""
        upper = _upper(schedule, inversion_epsilon, delta)
        return _FALLBACK.upper_epsilon(schedule, delta) if upper is None else upper

    def epsilon(self, schedule: Schedule, delta: float) -> Interval:
        """See `Accountant`."""
        upper = self.upper_epsilon(schedule, delta)
        lower = max(achieved_epsilon(schedule, delta), _lower(schedule, inversion_epsilon, delta))
        return Interval.bracket(lower, upper)

    def delta(self, schedule: Schedule, epsilon: float) -> Interval:
        """See `Accountant`."""
        upper = _upper(schedule, inversion_delta, epsilon)
        if upper is None:
            upper = _FALLBACK.delta(schedule, epsilon).upper
        lower = max(achieved_delta(schedule, epsilon), _lower(schedule, inversion_delta, epsilon))
        return Interval.bracket(lower, upper)


Inversion = Callable[[Composition, float], Interval]


def _upper(schedule: Schedule, invert: Inversion, at: float) -> float | None:
    """The larger of both directions' upper bounds; None where the inversion lacks one of them."""
    largest = 0.0
    for direction in Direction:
        answer = _one_direction(schedule, proven_pair, direction, invert, at)
        if answer is None:
            return None
        largest = max(largest, answer.upper)
    return largest


def _lower(schedule: Schedule, invert: Inversion, at: float) -> float:
    """The larger of the directions' lower bounds, as far as the inversion has them; at least 0."""
    answers = (
        _one_direction(schedule, achieved_pair, direction, invert, at) for direction in Direction
    )
    return max((answer.lower for answer in answers if answer is not None), default=0.0)


def _one_direction(
    schedule: Schedule,
    pair_of: Callable[[Round, Direction], DominatingPair],
    direction: Direction,
    invert: Inversion,
    at: float,
) -> Interval | None:
    pairs: dict[DominatingPair, int] = {}
    for round_, count in schedule.distinct().items():
        pair = pair_of(round_, direction)
        pairs[pair] = pairs.get(pair, 0) + count
    if not pairs:
        return Interval(0.0, 0.0)
    try:
        return invert(Composition.of(pairs, direction), at)
    except NotConverged:
        return None
