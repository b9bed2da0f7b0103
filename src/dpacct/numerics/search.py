"""One-dimensional searches: the only ones. What they return is proven by the caller, not here.

`corrected_root` and `corrected_largest` search with a slow cost by the help of a quick one that is
at least as large. Where the slow cost meets its target, the quick one lies above its own by about
the ratio of both, which hardly changes from one try to the next: two or three slow evaluations are
enough. Costs are given as log of (cost / target), positive where the target is missed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

_GOLDEN = (math.sqrt(5) - 1) / 2
# Secants that find a root from a good start, and the longest of them.
_SECANTS, _FARTHEST_SECANT = 7, 1.0


def minimize_unimodal(
    function: Callable[[float], float],
    start: float,
    bounds: tuple[float, float],
    tolerance: float,
    step: float = 0.4,
) -> float:
    """The point evaluated lowest, within ``tolerance`` of the minimum of a unimodal function.

    Brackets from ``start`` by doubling steps, then parabolas through the bracket. The function
    may be infinite away from its minimum.
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

    Parabolas through the three best points; a golden section where steps do not shrink.
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
    """Abscissa of the vertex of the parabola through three points; NaN if degenerate."""
    left, right = (x[1] - x[0]) * (y[1] - y[2]), (x[1] - x[2]) * (y[1] - y[0])
    if left == right or not math.isfinite(left - right):
        return math.nan
    return x[1] - 0.5 * ((x[1] - x[0]) * left - (x[1] - x[2]) * right) / (left - right)


def bisect(
    holds: Callable[[float], bool], start: float, relative_tolerance: float
) -> tuple[float, float]:
    """Bracket of the point above 0 where a predicate turns from true to false.

    Returns:
        (last point seen true, or 0; first point seen false).
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
    """The largest whole number from ``least``, which fits, to ``most``: by doubling, then halving.

    Args:
        fits: holds up to some number and for none beyond.
        least: taken to fit, without being asked.
    """
    low, step = least, max(1, least)
    while low + step <= most and fits(low + step):
        low, step = low + step, 2 * step
    return largest_between(fits, low, min(low + step, most + 1))


def largest_between(fits: Callable[[int], bool], good: int, bad: int) -> int:
    """The largest whole number that fits, from one that does, below one that does not."""
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
    """Bracket of the root of a decreasing function, at most ``tolerance`` wide.

    Args:
        function: decreasing; may be infinite (positive or negative), but not NaN.
        start: where to begin.
        bounds: the search stays inside.
    Returns:
        (last point seen with a positive value, first point seen with a value <= 0). Where the
        function keeps one sign on ``bounds``, both are the end at which it comes closest.
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
        # Aim just beside the root, on alternating sides, so that both ends of the bracket close.
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
    """A point next to the root of a decreasing function where that is <= 0, by few evaluations.

    Secants from a good start, aimed beside the root. That the point is near is concluded from the
    slope, not from a positive value next to it.

    Args:
        function: decreasing; may be infinite.
        start, slope: about the root, and about minus the derivative there; a slope that is no
            positive number settles nothing.
        bounds: the search stays inside.
        tolerance: the point is about half of it beyond the root, and hardly ever more than all.
    Returns:
        The point; None where secants do not settle.
    """
    t, value = start, function(start)
    for _ in range(_SECANTS):
        if not (math.isfinite(value) and math.isfinite(slope) and slope > 0):
            return None
        if -tolerance * slope <= value <= 0:
            return t
        new = t + value / slope + 0.5 * tolerance
        if not bounds[0] <= new <= bounds[1] or not abs(new - t) <= _FARTHEST_SECANT:
            return None
        found = function(new)
        # Of values that hardly differ the slope would be noise.
        if abs(new - t) > 3 * tolerance:
            slope = (value - found) / (new - t)
        t, value = new, found
    return None


def _interpolate(
    low: tuple[float, float], high: tuple[float, float], previous: tuple[float, float] | None
) -> float:
    """Root by inverse quadratic interpolation, else by the secant, else the midpoint."""
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
# How far below the target is near enough, and how much is first added where it was missed.
_NEAR, _AGAIN = 2e-4, 5e-5


def corrected_root(
    slow: Callable[[float], float],
    solve_quick: Callable[[float, float], float],
    quick: Callable[[float], float],
    first: float,
) -> float:
    """About the least t at which a falling function is at most zero; it is so at what is returned.

    Args:
        slow, quick: slow <= quick, both fall.
        solve_quick: where quick is at most a level, near a start.
        first: where quick is at most zero.
    Error: 2e-4 in the logarithm of the cost, or more where the slow cost is uneven; never below.
    """
    best, at, margin = first, first, 0.0
    for _ in range(_TRIES):
        found = slow(at)
        if found <= 0.0:
            best = min(best, at)
            if found >= -_NEAR:
                break
        else:
            margin = 2 * margin or _AGAIN
        level = quick(at) - found - margin
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
    """The largest n up to ``most`` at which a growing function is at most zero; it is at one.

    Args:
        slow, quick: slow <= quick, both grow.
    """
    slow = cache(slow)
    if quick(1) > 0.0:
        return largest(slow, most)
    good, bad = largest(quick, most), most + 1
    if slow(good) > 0.0:
        return largest(slow, most)
    for _ in range(_TRIES):
        gained = quick(good) - slow(good)
        following = min(largest(_lowered(quick, gained), most), bad - 1)
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
    """The largest whole number at which an increasing function is still <= 0; it is at 1.

    Args:
        excess_at: the function. most: no larger number is asked for.
        guess: about the logarithm of what is looked for.
    """
    excess_at = cache(excess_at)

    def lacking(log_number: float) -> float:
        return -excess_at(min(max(1, round(math.exp(log_number))), most))

    # Minus the function falls in log n; the bracket is re-read as whole numbers.
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


def _lowered(cost: Callable[[int], float], by: float) -> Callable[[int], float]:
    return lambda n: cost(n) - by
