"""Where the bounds of delta cross a target: the step from delta(eps) to eps(delta)."""

from __future__ import annotations

import math
from typing import Protocol

from dpacct.budget import Interval
from dpacct.errors import NotConverged
from dpacct.numerics.rounding import FUNCTION_ERROR

_TINY = 1e-320
_NEWTON_STEPS, _FARTHEST = 30, 1e9


class Bounding(Protocol):
    """Bounds of delta for every epsilon near the one that they were made for."""

    @property
    def blur(self) -> float:
        """Zero where both bounds are as close as rounding allows."""
        ...

    def delta(self, epsilon: float) -> Interval:
        """Lower and upper bound of delta at one epsilon >= 0."""
        ...

    def delta_and_slope(self, epsilon: float) -> tuple[Interval, float]:
        """The same, and about the derivative of log delta; of that nothing is proven."""
        ...


def crossing(contour: Bounding, guess: float, log_upper: float, log_lower: float) -> Interval:
    """Where the bounds of delta on a contour cross e^log_upper and e^log_lower; at least 0."""
    # Both logarithms may be off by their functions' errors: each end has that much to spare.
    spare = 4 * FUNCTION_ERROR * (1 - log_lower)

    def above(epsilon: float) -> tuple[float, float]:
        found, slope = contour.delta_and_slope(epsilon)
        if not slope < 0.0:
            raise NotConverged("delta does not fall on this contour")
        return math.log(max(found.upper, _TINY)) - log_upper + spare, slope

    def below(epsilon: float) -> float:
        return math.log(max(contour.delta(epsilon).lower, _TINY)) - log_lower - spare

    # Newton's iteration in epsilon; where it ends is proven by what follows.
    tolerance = (1e-9 if contour.blur else 3e-11) * guess
    center, move = guess, math.inf
    excess, slope = above(center)
    for _ in range(_NEWTON_STEPS):
        move = max(-excess / slope, -0.75 * center)
        if abs(move) <= tolerance:
            break
        center += min(move, 4 * center + 1.0)
        excess, slope = above(center)
    upper, step = center + max(0.0, -excess / slope) + tolerance, tolerance
    # Written so that what is no number proves nothing.
    while not above(upper)[0] <= 0:
        upper, step = upper + step, 2 * step
        if not upper < _FARTHEST:
            raise NotConverged("delta does not fall to its target on this contour")
    if upper <= 4 * tolerance and above(0.0)[0] <= 0:
        return Interval(0.0, 0.0)
    lower = min(center, upper) - 1.02 * max(0.0, below(center) / slope) - tolerance
    step = max(tolerance, 0.1 * (center - lower))
    while lower > 0 and not below(lower) >= 0:
        lower, step = lower - step, 2 * step
    return Interval(max(lower, 0.0), upper)
