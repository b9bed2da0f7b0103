"""A quick estimate of epsilon, so that a search starts next to its end. Nothing here is proven."""

from __future__ import annotations

import math

from dpacct.composition import Composition
from dpacct.dominating import Direction, achieved_pair, proven_pair
from dpacct.errors import NotConverged
from dpacct.inversion import coarse_epsilon
from dpacct.rounds import Schedule
from dpacct.saddle import epsilon_estimate, tilt_at_delta
from dpacct.tight.game.rounds import is_played

_LEAST = 1e-12
# A tilt times the standard deviation of the loss under it; more only where a tail is heavy.
_HEAVY = 12.0
# What the proven end of the game usually exceeds the remove pair by.
_PLAYED = 1.011


def estimate_epsilon(schedule: Schedule, delta: float) -> float:
    """epsilon(delta) in the remove direction, above 0: the saddle point, or a coarse contour.

    Error: often 1e-4 relative, and 1e-2 next to a heavy tail, where the saddle point says
        nothing; NaN where the searches need too many nodes.
    """
    played = is_played(schedule)
    pair_of, factor = (achieved_pair, _PLAYED) if played else (proven_pair, 1.0)
    composition = Composition.of_schedule(schedule, pair_of, Direction.REMOVE)
    log_delta = math.log(delta)
    try:
        tilt, cumulants = tilt_at_delta(composition, log_delta)
        if tilt * math.sqrt(cumulants.variance) > _HEAVY:
            return max(factor * coarse_epsilon(composition, delta), _LEAST)
    except NotConverged:
        return math.nan
    return max(factor * epsilon_estimate(tilt, cumulants, log_delta), _LEAST)
