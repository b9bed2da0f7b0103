"""The proven curve eps -> delta of a game: each backward pass has all of it.

A pass is tuned to one delta; it is sharp for all smaller epsilons too, because what its grid adds
to the spread of the loss is the same share there. Between losses of the grid, delta(eps) lies below
its chords: it is convex in e^eps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.rounding import UNIT, Array
from dpacct.pairs.dominating import Direction
from dpacct.rounds import Schedule
from dpacct.tight.game.backward import Frame
from dpacct.tight.game.game import deltas_at
from dpacct.tight.game.rounds import directions

# The deltas that passes are tuned to, and how much further each serves.
_TUNED, _FURTHER = (1e-5, 1e-11), 1.1


@dataclass(frozen=True, slots=True, eq=False)
class _Pass:
    frame: Frame
    deltas: Array
    reach: float

    def at(self, epsilon: float) -> float:
        frame = self.frame
        place = -epsilon / frame.step - frame.first
        i = math.floor(place)
        if not 0 <= i < frame.size - 1:
            return math.inf
        losses = frame.losses()[i : i + 2]
        share = math.expm1(epsilon + float(losses[0])) / math.expm1(-frame.step)
        slack = 64 * UNIT * (1 + epsilon + abs(frame.first) * frame.step) / frame.step
        share = min(1.0, max(0.0, share) + slack)
        less, more = float(self.deltas[i]), float(self.deltas[i + 1])
        return min(1.0, (less + share * max(0.0, more - less)) * (1 + 8 * UNIT))


@lru_cache(maxsize=8)
def _pass(schedule: Schedule, tuned: float, direction: Direction) -> _Pass | None:
    try:
        frame, deltas = deltas_at(schedule, tuned, direction, whole=True)
    except NotConverged:
        return None
    kept = np.minimum.accumulate(deltas[::-1])[::-1]
    reached = np.flatnonzero((kept > tuned) & (frame.losses() <= 0.0))
    reach = -float(frame.losses()[reached[0]]) if reached.size else 0.0
    return _Pass(frame, kept, reach)


def curve_delta(schedule: Schedule, epsilon: float) -> float:
    """Proven delta(eps), eps >= 0; infinite where no pass is worth its time."""
    return max(_at(schedule, epsilon, direction) for direction in directions(schedule))


def _at(schedule: Schedule, epsilon: float, direction: Direction) -> float:
    best = math.inf
    for tuned in _TUNED:
        found = _pass(schedule, tuned, direction)
        if found is None:
            break
        best = min(best, found.at(epsilon))
        if epsilon <= _FURTHER * found.reach:
            break
    return best
