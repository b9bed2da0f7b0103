"""Quick upper bounds of delta from the moments of a composition."""

from __future__ import annotations

import math

from dpacct.numerics.rounding import UNIT
from dpacct.tight.composition import Composition
from dpacct.tight.saddle import log_chernoff_factor, tilt_at_epsilon

# A bound of delta that is as good as zero: nobody asks how far below it the truth is.
NEXT_TO_NOTHING = 1e-290
# Where the Renyi divergence is nearly that of Kullback and Leibler; 1 + c is exact.
_PINSKER_TILT = 2.0**-10


def chernoff_delta(composition: Composition, epsilon: float) -> float:
    """A quick upper bound of delta(eps) of one direction, at most 1; rarely 20 times too high."""
    if epsilon >= composition.largest_loss:
        return 0.0
    tilt, _ = tilt_at_epsilon(composition.alike(), epsilon)
    # The order is 1 + c: where that is rounded, c has to be what it stands for.
    tilt = (1 + tilt) - 1
    log_moment = float(composition.log_moment(tilt).upper)
    exponent = log_moment + log_chernoff_factor(tilt) - tilt * epsilon
    slack = 16 * UNIT * (abs(log_moment) + tilt * epsilon + 2 * tilt + 8)
    # Never rounded down to zero.
    return math.exp(min(max(exponent + slack, -700.0), 0.0))


def pinsker_delta(composition: Composition) -> float:
    """A quick upper bound of delta(0), at most 1: about 1.3 times it where that is small.

    The total variation is at most (KL / 2)^(1/2), and KL at most the Renyi divergence of any order
    above one.

    Raises:
        NotConverged: the moments do not converge.
    """
    log_moment = max(float(composition.log_moment(_PINSKER_TILT).upper), 0.0)
    bound = math.sqrt(log_moment / (2 * _PINSKER_TILT)) * (1 + 8 * UNIT)
    return min(max(bound, math.exp(-700.0)), 1.0)
