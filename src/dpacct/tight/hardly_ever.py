"""A bound of delta where epsilon lies so far out that hardly anything is left of it.

What moments say there is far too much: they are those of losses that never occur. So the far ends
of the losses are cut off first, at a probability of next to nothing, and the rest is bounded by
Chernoff's inequality, whatever its tilt.

Derivation: docs/derivations/few-large-losses.md.
"""

from __future__ import annotations

import math

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.rounding import UNIT
from dpacct.tight.composition import Composition
from dpacct.tight.saddle import log_chernoff_factor
from dpacct.tight.truncation import TruncatedComposition

# What is cut off: less than `moment_bounds.NEXT_TO_NOTHING`.
_LOST = 1e-297
# Tilts, in units of 1 / epsilon, from the largest one on: it is good where nothing is left at all.
_TILTS = np.geomspace(3e4, 40.0, 10)
# Exponents below this are nothing.
_ENOUGH = -690.0


def far_delta(composition: Composition, epsilon: float) -> float:
    """An upper bound of delta(eps) of one direction, at most 1; never rounded down to zero."""
    if not (epsilon > 0.0 and TruncatedComposition.applies(composition)):
        return 1.0
    rest = TruncatedComposition.losing(composition, _LOST)
    least = 0.0
    for tilt in (_TILTS / epsilon).tolist():
        # The order is 1 + c: where that is rounded, c has to be what it stands for.
        c = (1 + tilt) - 1
        try:
            log_moment = float(rest.log_moment(c).upper)
        except NotConverged:
            continue
        exponent = log_moment + log_chernoff_factor(c) - c * epsilon
        exponent += 16 * UNIT * (abs(log_moment) + c * epsilon + 2 * c + 8)
        least = min(least, exponent)
        if least < _ENOUGH:
            break
    return min(1.0, math.exp(max(least, -700.0)) * (1 + 4 * UNIT) + rest.lost * (1 + 4 * UNIT))
