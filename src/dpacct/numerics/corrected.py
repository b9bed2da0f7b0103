"""Searches with a slow cost by the help of a quick one that is at least as large.

Where the slow cost meets its target, the quick one lies above its own by about the ratio of both,
which hardly changes from one try to the next: two or three slow evaluations are enough. What is
returned was checked by the slow cost.

Both costs are given as log of (cost / target), positive where the target is missed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

from dpacct.numerics.search import bracket_root, largest_between

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
