"""What a few values of a convex function say about all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dpacct.budget import Interval
from dpacct.numerics.rounding import UNIT, below


def least_convex_value(points: Sequence[tuple[float, Interval]]) -> float:
    """A lower bound of the minimum of F, convex in x = e^eps, from bounds at some points.

    Between two neighbors F is above every line through their left one and a point further left,
    continued, and above every line through their right one and a point further right (taking the
    upper bound of the outer and the lower bound of the inner point).

    Args:
        points: (eps, bounds of F), eps increasing, the first -inf; to the right of the last one F
            is not below that one's lower end.
    Error: rounding is charged; the slack is that of the bounds, and a quarter or less of what F
        bends between neighbors.
    """
    epsilons = np.array([epsilon for epsilon, _ in points])
    lower = np.array([value.lower for _, value in points])
    upper = np.array([value.upper for _, value in points])

    def fall(inner: int, outer: slice, far: int) -> float:
        """How far the flattest line through ``inner`` falls up to ``far``; infinite if none."""
        near = np.expm1(epsilons[outer] - epsilons[inner])
        ratio = np.abs(np.expm1(epsilons[far] - epsilons[inner]) / near) * (1 + 64 * UNIT)
        return float(np.min(ratio * (upper[outer] - lower[inner]), initial=math.inf))

    least = float(lower[-1])
    for i in range(len(points) - 1):
        falls = fall(i, slice(0, i), i + 1), fall(i + 1, slice(i + 2, None), i)
        ends = float(lower[i]), float(lower[i + 1])
        # The least value of one line is at an end of the cell, that of both may be inside.
        floor = max(end - max(0.0, drop) for end, drop in zip(ends, falls, strict=True))
        if min(falls) > 0.0 and max(falls) < math.inf:
            floor = max(floor, _crossing((ends[0], falls[0]), (ends[1], falls[1])))
        least = min(least, floor)
    return least


def _crossing(left: tuple[float, float], right: tuple[float, float]) -> float:
    """Where a line falling from the left end meets one falling from the right end of a cell.

    Args:
        left, right: value at the end, and fall > 0 across the cell.
    Returns:
        The least value of the larger line, if they cross inside, else that of either.
    """
    (a, fall_a), (b, fall_b) = left, right
    share = (a - b + fall_b) / (fall_a + fall_b)
    if not 0.0 < share < 1.0:
        return -math.inf
    return below(a - share * fall_a, a, fall_a, b, fall_b)
