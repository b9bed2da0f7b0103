"""A quick estimate of epsilon, so that a search starts next to its end. Nothing here is proven."""

from __future__ import annotations

import math

from dpacct.errors import NotConverged
from dpacct.pairs.dominating import Direction, proven_pair
from dpacct.rounds import Schedule
from dpacct.tight.composition import Composition
from dpacct.tight.inversion import coarse_epsilon
from dpacct.tight.saddle import epsilon_estimate, tilt_at_delta

_LEAST = 1e-12
# A tilt times the standard deviation of the loss under it; more only where a tail is heavy.
_HEAVY = 12.0


def estimate_epsilon(schedule: Schedule, delta: float) -> float:
    """epsilon(delta) in the remove direction, above 0: the saddle point, or a coarse contour.

    Error: often 1e-4 relative, and 1e-2 next to a heavy tail, where the saddle point says
        nothing; NaN where the searches need too many nodes.
    """
    composition = Composition.of_schedule(schedule, proven_pair, Direction.REMOVE)
    log_delta = math.log(delta)
    try:
        tilt, cumulants = tilt_at_delta(composition, log_delta)
        if tilt * math.sqrt(cumulants.variance) > _HEAVY:
            return max(coarse_epsilon(composition, delta), _LEAST)
    except NotConverged:
        return math.nan
    return max(epsilon_estimate(tilt, cumulants, log_delta), _LEAST)
