"""A quick estimate of epsilon, so that a search starts next to its end. Nothing here is proven."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.rounding import Array
from dpacct.pairs.dominating import Direction, proven_pair
from dpacct.rounds import Schedule
from dpacct.tight.composition import Composition
from dpacct.tight.inversion import HEAVY, quick_epsilon, without_far_tail
from dpacct.tight.saddle import epsilon_estimate, tilt_at_delta

_LEAST = 1e-12
# Of more kinds of rounds than this those that are much alike are merged: so many rates, and so many
# noises for each.
_MANY, _RATES, _NOISES = 500, 24, 12


def estimate_epsilon(schedule: Schedule, delta: float) -> float:
    """epsilon(delta) in the remove direction, above 0: the saddle point, or a coarse contour.

    Error: often 1e-4 relative, and some 1e-2 next to a heavy tail, where the saddle point says
        nothing; NaN where the searches need too many nodes.
    """
    composition = merged(Composition.of_schedule(schedule, proven_pair, Direction.REMOVE))
    log_delta = math.log(delta)
    try:
        # Of much noise and tiny rates the moments are those of losses that never occur.
        tilt, cumulants = tilt_at_delta(without_far_tail(composition, delta), log_delta)
        if tilt * math.sqrt(cumulants.variance) > HEAVY:
            return max(quick_epsilon(composition, delta), _LEAST)
    except NotConverged:
        return math.nan
    return max(epsilon_estimate(tilt, cumulants, log_delta), _LEAST)


def merged(composition: Composition) -> Composition:
    """About the same composition, with some hundred kinds of sampled rounds at most."""
    rates, noise, counts = composition.rates, composition.noise, composition.counts
    if len(rates) <= _MANY:
        return composition
    rows: list[Array] = []
    for alike in np.array_split(np.argsort(rates, kind="stable"), _RATES):
        order = alike[np.argsort(noise[alike], kind="stable")]
        for cell in np.array_split(order, _NOISES):
            number = float(counts[cell].sum())
            means = [float(counts[cell] @ part[cell]) / number for part in (rates, noise)]
            rows.append(np.array([*means, number]))
    new_rates, new_noise, new_counts = np.array(rows).T
    return replace(composition, rates=new_rates, noise=new_noise, counts=new_counts)
