"""One-dimensional searches: minima, roots, whole numbers. Callers prove the results.

`corrected_root` and `corrected_largest` search with a slow cost by the help of a quick one that is
at least as large. At the place where the slow cost meets its target, the quick one lies above its
own by about the ratio of both. This ratio hardly changes from one try to the next, so two or three
slow evaluations are enough. Costs are given as log(cost / target), positive if the target is
missed.

`least_convex_value` is the exception: its result is a proven bound.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cache

import numpy as np

from dpacct.budget import Interval
from dpacct.numerics.rounding import UNIT, below

_GOLDEN = (math.sqrt(5) - 1) / 2


def minimize_unimodal(
    function: Callable[[float], float],
    start: float,
    bounds: tuple[float, float],
    tolerance: float,
    step: float = 0.4,
) -> float:
    """Return a point within ``tolerance`` of the minimum of a unimodal function.

    It brackets from ``start`` by doubling steps, then takes parabolas through the bracket. The
    function may be infinite away from its minimum. The lowest point evaluated is returned.
    """
    low_end, high_end = bounds
    seen: dict[float, float] = {}

    def at(t: float) -> float:
        if t not in seen:
            seen[t] = function(t)
        return seen[t]

    middle = min(max(start, low_end), high_end)
    reach = step
    left, right = max(low_end, middle - reach), min(high_end, middle + reach)
    while at(left) < at(middle) and left > low_end:
        reach *= 2
        left, middle, right = max(low_end, left - reach), left, middle
    while at(right) < at(middle) and right < high_end:
        reach *= 2
        left, middle, right = middle, right, min(high_end, right + reach)
    _close_in(at, left, middle, right, tolerance)
    return min(seen, key=lambda t: seen[t])


def _close_in(
    at: Callable[[float], float], left: float, best: float, right: float, tolerance: float
) -> None:
    """Evaluate ever closer to the minimum inside a bracket (Brent 1973, chapter 5).

    It takes parabolas through the three best points, or a golden section if steps do not shrink.
    """
    second, third = sorted((left, right), key=at)
    last_step = before_last = right - left
    while max(best - left, right - best) > tolerance:
        probe = _parabola_vertex((third, best, second), (at(third), at(best), at(second)))
        inside = left + tolerance / 4 < probe < right - tolerance / 4
        if not inside or abs(probe - best) > abs(before_last) / 2:
            wider = right - best if right - best > best - left else left - best
            probe = best + (1 - _GOLDEN) * wider
            before_last = wider
        else:
            before_last = last_step
        if abs(probe - best) < tolerance / 2:
            # Next to the best point, on the wider side: closes the bracket once it is found.
            probe = best + math.copysign(tolerance / 2, right - best - (best - left))
        last_step = probe - best
        if at(probe) <= at(best):
            left, right = (left, best) if probe < best else (best, right)
            best, second, third = probe, best, second
        else:
            left, right = (probe, right) if probe < best else (left, probe)
            if at(probe) <= at(second) or second == best:
                second, third = probe, second
            elif at(probe) <= at(third) or third in (best, second):
                third = probe


def _parabola_vertex(x: tuple[float, float, float], y: tuple[float, float, float]) -> float:
    """Return the abscissa of the vertex of a parabola through three points, or NaN."""
    left, right = (x[1] - x[0]) * (y[1] - y[2]), (x[1] - x[2]) * (y[1] - y[0])
    if left == right or not math.isfinite(left - right):
        return math.nan
    return x[1] - 0.5 * ((x[1] - x[0]) * left - (x[1] - x[2]) * right) / (left - right)


def bisect(
    holds: Callable[[float], bool], start: float, relative_tolerance: float
) -> tuple[float, float]:
    """Return a bracket of the point above 0 where a predicate turns from true to false.

    That is the last point seen true, or 0, and the first point seen false.
    """
    low, high = 0.0, start
    while holds(high):
        low, high = high, 2 * high
    while high - low > relative_tolerance * high:
        middle = (low + high) / 2
        if not low < middle < high:
            break
        if holds(middle):
            low = middle
        else:
            high = middle
    return low, high


def largest_count(fits: Callable[[int], bool], least: int, most: int) -> int:
    """Return the largest number from ``least``, which fits, to ``most``: by doubling and halving.

    ``fits`` holds up to some number and for none beyond. It is not asked about ``least``.
    """
    low, step = least, max(1, least)
    while low + step <= most and fits(low + step):
        low, step = low + step, 2 * step
    return largest_between(fits, low, min(low + step, most + 1))


def largest_between(fits: Callable[[int], bool], good: int, bad: int) -> int:
    """Return the largest number that fits, between a good number and a bad one."""
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if fits(middle) else (good, middle)
    return good


def bracket_root(
    function: Callable[[float], float],
    start: float,
    bounds: tuple[float, float],
    tolerance: float,
    step: float = 0.5,
) -> tuple[float, float]:
    """Return a bracket of the root of a decreasing function, at most ``tolerance`` wide.

    The function may be infinite (positive or negative), but not NaN. The search begins at
    ``start`` and stays inside ``bounds``. The result is the last point seen with a positive value
    and the first one with a value <= 0. If the function keeps one sign on ``bounds``, both are the
    end at which it comes closest.
    """
    low_end, high_end = bounds
    t = min(max(start, low_end), high_end)
    value = function(t)
    low = high = (t, value)
    while low[1] <= 0:
        high = low
        if low[0] <= low_end:
            return low_end, low_end
        t = max(low_end, low[0] - step)
        low = (t, function(t))
        step *= 2
    while high[1] > 0:
        low = high
        if high[0] >= high_end:
            return high_end, high_end
        t = min(high_end, high[0] + step)
        high = (t, function(t))
        step *= 2
    previous: tuple[float, float] | None = None
    nudge = 1
    # Closer than a few ulps there is nothing left to evaluate.
    tolerance = max(tolerance, 8 * math.ulp(max(abs(low[0]), abs(high[0]))))
    while high[0] - low[0] > tolerance:
        width = high[0] - low[0]
        guess = _interpolate(low, high, previous)
        # Aim just past the root, on alternating sides, so that both ends of the bracket close.
        guess += 0.4 * nudge * tolerance
        margin = min(0.3 * tolerance, 0.25 * width)
        t = min(max(guess, low[0] + margin), high[0] - margin)
        point = (t, function(t))
        if point[1] > 0:
            previous, low, nudge = low, point, 1
        else:
            previous, high, nudge = high, point, -1
        if high[0] - low[0] > 0.5 * width and high[0] - low[0] > tolerance:
            t = (low[0] + high[0]) / 2
            middle = (t, function(t))
            previous = low if middle[1] > 0 else high
            low, high = (middle, high) if middle[1] > 0 else (low, middle)
    return low[0], high[0]


def settle(
    function: Callable[[float], float],
    start: float,
    slope: float,
    bounds: tuple[float, float],
    tolerance: float,
) -> float | None:
    """Return a point near the root of a decreasing function, with a value <= 0, or None.

    Secants from a good start are aimed about half the tolerance beyond the root. The slope, and
    not a positive value nearby, says that the point is near.

    Args:
        function: a decreasing function, which may be infinite.
        start, slope: about the root, and about minus the derivative there. With NaN, or if the
            secants do not settle inside ``bounds``, the result is None.
    """
    t, value = start, function(start)
    # A good start needs few secants, and short ones.
    for _ in range(7):
        if not (math.isfinite(value) and math.isfinite(slope) and slope > 0):
            return None
        if -tolerance * slope <= value <= 0:
            return t
        new = t + value / slope + 0.5 * tolerance
        if not bounds[0] <= new <= bounds[1] or not abs(new - t) <= 1.0:
            return None
        following = function(new)
        # The slope between values that hardly differ would be noise.
        if abs(new - t) > 3 * tolerance:
            slope = (value - following) / (new - t)
        t, value = new, following
    return None


def _interpolate(
    low: tuple[float, float], high: tuple[float, float], previous: tuple[float, float] | None
) -> float:
    """Return a root by inverse quadratic interpolation, else by the secant, else the midpoint."""
    (x0, y0), (x1, y1) = low, high
    middle = (x0 + x1) / 2
    if not (math.isfinite(y0) and math.isfinite(y1)) or y0 == y1:
        return middle
    guess = x0 + (x1 - x0) * y0 / (y0 - y1)
    if previous is not None and math.isfinite(previous[1]) and previous[1] not in (y0, y1):
        x2, y2 = previous
        quadratic = (
            x0 * y1 * y2 / ((y0 - y1) * (y0 - y2))
            + x1 * y0 * y2 / ((y1 - y0) * (y1 - y2))
            + x2 * y0 * y1 / ((y2 - y0) * (y2 - y1))
        )
        if x0 < quadratic < x1:
            guess = quadratic
    return guess if x0 < guess < x1 else middle


_TRIES = 5


def corrected_root(
    slow: Callable[[float], float],
    solve_quick: Callable[[float, float], float],
    quick: Callable[[float], float],
    first: float,
) -> float:
    """Return about the least t at which a falling cost is at most 0, and surely one at which it is.

    Args:
        slow, quick: slow <= quick, both fall.
        solve_quick: (level, start) -> a point near the start at which quick is at most the level.
        first: a point at which quick is at most 0.
    Error: 2e-4 in the logarithm of the cost, or more if the slow cost is uneven. Never below.
    """
    best, at, margin = first, first, 0.0
    for _ in range(_TRIES):
        excess = slow(at)
        if excess <= 0.0:
            best = min(best, at)
            # Near enough.
            if excess >= -2e-4:
                break
        else:
            margin = 2 * margin or 5e-5
        level = quick(at) - excess - margin
        following = solve_quick(level, at)
        if following == at:
            break
        at = following
    return best


def corrected_largest(
    slow: Callable[[int], float],
    quick: Callable[[int], float],
    most: int,
) -> int:
    """Return the largest n up to ``most`` with slow(n) <= 0 (which holds at 1).

    Both costs grow, and slow <= quick.
    """
    slow = cache(slow)
    if quick(1) > 0.0:
        return largest(slow, most)
    good, bad = largest(quick, most), most + 1
    if slow(good) > 0.0:
        return largest(slow, most)
    for _ in range(_TRIES):
        gain = quick(good) - slow(good)
        following = min(largest(lambda n, gain=gain: quick(n) - gain, most), bad - 1)
        if following <= good:
            break
        if slow(following) > 0.0:
            bad = following
            break
        good = following
    step = 1
    while good + step < bad and slow(good + step) <= 0.0:
        good, step = good + step, 2 * step
    bad = min(bad, good + step)
    return largest_between(lambda n: slow(n) <= 0.0, good, bad)


def largest(excess_at: Callable[[int], float], most: int, guess: float = 2.0) -> int:
    """Return the largest number up to ``most`` with an increasing excess <= 0 (which holds at 1).

    ``guess`` is about the logarithm of the result.
    """
    excess_at = cache(excess_at)

    def lacking(log_number: float) -> float:
        return -excess_at(min(max(1, round(math.exp(log_number))), most))

    # Minus the excess falls in log n. The bracket is then read as whole numbers.
    step = min(max(2 * abs(lacking(guess)), 1e-3), 2.0)
    low, high = bracket_root(lacking, guess, (0.0, math.log(most)), 1e-3, step)
    good, bad = max(1, math.floor(math.exp(low))), min(most, math.ceil(math.exp(high)))
    while good > 1 and excess_at(good) > 0:
        good //= 2
    while bad < most and excess_at(bad) <= 0:
        good, bad = bad, min(most, 2 * bad)
    if excess_at(bad) <= 0:
        return bad
    return largest_between(lambda n: excess_at(n) <= 0, good, bad)


def least_convex_value(points: Sequence[tuple[float, Interval]]) -> float:
    """Return a lower bound of the minimum of F, convex in x = e^eps, from bounds at some points.

    Between two neighbors F is above every line through the left neighbor and a point further left,
    continued, and above every line through the right neighbor and a point further right (with the
    upper bound of the outer and the lower bound of the inner point).

    Args:
        points: (eps, bounds of F), eps increasing, the first -inf. To the right of the last point
            F is not below its lower end.
    Error: rounding is charged. The slack is that of the bounds, and a quarter or less of the
        bending of F between neighbors.
    """
    epsilons = np.array([epsilon for epsilon, _ in points])
    lower = np.array([value.lower for _, value in points])
    upper = np.array([value.upper for _, value in points])

    def fall(inner: int, outer: slice, far: int) -> float:
        """Return the fall of the flattest line through ``inner`` up to ``far``, or infinity."""
        near = np.expm1(epsilons[outer] - epsilons[inner])
        rise = upper[outer] - lower[inner]
        # Through points next to each other a line may rise beyond doubles: it says nothing.
        with np.errstate(over="ignore"):
            ratio = np.abs(np.expm1(epsilons[far] - epsilons[inner]) / near) * (1 + 64 * UNIT)
            return float(np.min(np.where(rise > 0.0, ratio, 1.0) * rise, initial=math.inf))

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
    """Return the value at which two lines, falling from both ends of a cell, cross inside.

    Each has its value at the end and its fall > 0 across the cell. Without a crossing the result
    is -inf.
    """
    (a, fall_a), (b, fall_b) = left, right
    share = (a - b + fall_b) / (fall_a + fall_b)
    if not 0.0 < share < 1.0:
        return -math.inf
    return below(a - share * fall_a, a, fall_a, b, fall_b)
