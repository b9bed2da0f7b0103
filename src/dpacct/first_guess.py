"""A quick estimate of epsilon, so that a search starts next to its end. Nothing here is proven."""

from __future__ import annotations

import math

from dpacct.composition import Composition
from dpacct.dominating import Direction, proven_pair
from dpacct.errors import NotConverged
from dpacct.rounds import Schedule
from dpacct.saddle import epsilon_estimate, tilt_at_delta

_LEAST = 1e-12


def estimate_epsilon(schedule: Schedule, delta: float) -> float:
    """epsilon(delta) in the remove direction by the saddle-point approximation, above 0.

    Error: often 1e-4 relative, nothing useful where the loss is nearly an atom; NaN where the
        search for the saddle point needs too many nodes.
    """
    composition = Composition.of_schedule(schedule, proven_pair, Direction.REMOVE)
    log_delta = math.log(delta)
    try:
        tilt, cumulants = tilt_at_delta(composition, log_delta)
    except NotConverged:
        return math.nan
    return max(epsilon_estimate(tilt, cumulants, log_delta), _LEAST)
