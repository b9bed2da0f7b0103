"""The accountant `tight`: exact composition by contour inversion, where the contour converges.

Rounds whose loss is nearly an atom (tiny rates or little noise, and few rounds) and the pair of
C_q are beyond it so far. There the upper side falls back on Renyi moments and the lower side on
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
    SampledGaussianPair,
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
        uppers = [
            answer.upper
            for answer in _each_direction(schedule, proven_pair, inversion_epsilon, delta)
            if answer is not None
        ]
        if len(uppers) == len(Direction):
            return max(uppers)
        # Renyi bounds both directions, so it also bounds those that were inverted.
        return _FALLBACK.upper_epsilon(schedule, delta)

    def epsilon(self, schedule: Schedule, delta: float) -> Interval:
        """See `Accountant`."""
        upper = self.upper_epsilon(schedule, delta)
        lowers = [
            answer.lower
            for answer in _each_direction(schedule, achieved_pair, inversion_epsilon, delta)
            if answer is not None
        ]
        lower = max([achieved_epsilon(schedule, delta), *lowers])
        return Interval(min(lower, upper), upper)

    def delta(self, schedule: Schedule, epsilon: float) -> Interval:
        """See `Accountant`."""
        answers = _each_direction(schedule, proven_pair, inversion_delta, epsilon)
        uppers = [answer.upper for answer in answers if answer is not None]
        if len(uppers) == len(Direction):
            upper = max(uppers)
        else:
            upper = _FALLBACK.delta(schedule, epsilon).upper
        answers = _each_direction(schedule, achieved_pair, inversion_delta, epsilon)
        lowers = [answer.lower for answer in answers if answer is not None]
        lower = max([achieved_delta(schedule, epsilon), *lowers])
        return Interval(min(lower, upper), upper)


def _each_direction(
    schedule: Schedule,
    pair_of: Callable[[Round, Direction], DominatingPair],
    invert: Callable[[Composition, float], Interval],
    at: float,
) -> list[Interval | None]:
    """What the inversion says of each direction; None where it does not apply."""
    return [_one_direction(schedule, pair_of, direction, invert, at) for direction in Direction]


def _one_direction(
    schedule: Schedule,
    pair_of: Callable[[Round, Direction], DominatingPair],
    direction: Direction,
    invert: Callable[[Composition, float], Interval],
    at: float,
) -> Interval | None:
    pairs: dict[SampledGaussianPair, int] = {}
    for round_, count in schedule.distinct().items():
        pair = pair_of(round_, direction)
        if not isinstance(pair, SampledGaussianPair):
            return None
        pairs[pair] = pairs.get(pair, 0) + count
    if not pairs:
        return Interval(0.0, 0.0)
    try:
        return invert(Composition.of(pairs, direction), at)
    except NotConverged:
        return None
