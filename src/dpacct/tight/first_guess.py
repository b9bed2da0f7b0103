"""A quick estimate of epsilon, so that a search starts next to its end. Nothing here is proven."""

from __future__ import annotations

import math

import numpy as np

from dpacct.errors import NotConverged
from dpacct.pairs.dominating import Direction, proven_pair
from dpacct.rounds import Phase, Poisson, Round, Schedule
from dpacct.tight.composition import Composition
from dpacct.tight.inversion import HEAVY, quick_epsilon, without_far_tail
from dpacct.tight.saddle import epsilon_estimate, tilt_at_delta
from dpacct.tight.sketch import MANY, alike

_LEAST = 1e-12
# The same as `HEAVY` in units of what it is of a Gaussian loss.
_HEAVIER = 1.7


def estimate_epsilon(schedule: Schedule, delta: float, near: float) -> float:
    """epsilon(delta) in the remove direction, above 0: the saddle point, or a coarse contour.

    ``near``: about what it is, where that is known; a target that is looked for.

    Error: often 1e-4 relative, and some 1e-2 next to a heavy tail, where the saddle point says
        nothing; NaN where the searches need too many nodes.
    """
    composition = Composition.of_schedule(schedule, proven_pair, Direction.REMOVE)
    log_delta = math.log(delta)
    try:
        # Of much noise and tiny rates the moments are those of losses that never occur.
        tilt, cumulants = tilt_at_delta(without_far_tail(composition, delta), log_delta)
        usual = math.sqrt(-2 * log_delta)
        if tilt * math.sqrt(cumulants.variance) > min(HEAVY, _HEAVIER * usual):
            return max(quick_epsilon(composition, delta, near), _LEAST)
    except NotConverged:
        return math.nan
    return max(epsilon_estimate(tilt, cumulants, log_delta), _LEAST)


def merged(schedule: Schedule) -> Schedule:
    """About the same schedule: of many kinds of Poisson rounds some hundred are left."""
    kinds = schedule.distinct()
    drawn = [pair for pair in kinds.items() if isinstance(pair[0].sampling, Poisson)]
    if len(drawn) <= MANY:
        return schedule
    rows = [(round_.sampling_rate, round_.noise_multiplier, float(n)) for round_, n in drawn]
    phases = [Phase(*pair) for pair in kinds.items() if not isinstance(pair[0].sampling, Poisson)]
    for rate, noise, count in zip(*alike(*np.array(rows).T), strict=True):
        round_ = Round(float(noise), Poisson(float(rate)), schedule.adjacency)
        phases.append(Phase(round_, int(count)))
    return Schedule(phases)
