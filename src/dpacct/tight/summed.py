"""The log moment of a composition, summed law by law, and what its roundings cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dpacct.numerics.rounding import UNIT, Array, Bounds

# How often laws occur, and bounds of the log moment of each, shape ().
Moments = Sequence[tuple[float, Bounds]]


def summed_log_moment(
    moments_at: Callable[[float], Moments], tilt: float | Array, precision: float, kinds: int
) -> Bounds:
    """Bounds of log M(c) for one tilt or several: shape () or (k,).

    Args:
        moments_at: the moments of all laws under one tilt.
        precision: variance of the Gaussian loss.
        kinds: at least the number of laws.
    Error: two roundings a law and four more, each at most `UNIT` of the sum of absolute values of
        either end; paid twice over, outward.
    """
    tilts = np.atleast_1d(np.asarray(tilt, dtype=np.float64))
    lower = precision * tilts * (1 + tilts) / 2
    upper, size = lower.copy(), np.abs(lower)
    for k, c in enumerate(tilts.tolist()):
        for count, moment in moments_at(c):
            low, high = count * float(moment.lower), count * float(moment.upper)
            lower[k], upper[k] = lower[k] + low, upper[k] + high
            # Either end may be the larger one: moments of measures may be less than one.
            size[k] += max(abs(low), abs(high))
    slack = UNIT * (4 * kinds + 16) * size
    shape = np.shape(tilt)
    return Bounds((lower - slack).reshape(shape), (upper + slack).reshape(shape))
