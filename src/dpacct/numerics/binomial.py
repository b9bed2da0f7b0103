"""Tails of the binomial distribution between proven bounds, for any size of the population.

By Stirling, with delta(m) = log m! - log(sqrt(2 pi m) (m / e)^m) and phi(x) = (1+x) log(1+x) - x,

    P(X = k) = sqrt(n / (2 pi k (n-k))) e^{delta(n) - delta(k) - delta(n-k) - D},
    D = nq phi(x) + n(1-q) phi(y),    k = nq (1 + x),    n - k = n(1-q) (1 + y)

for 0 < k < n (Loader 2000). The series of delta is
alternating and enveloping. The ratios of neighboring masses fall. So in a block of w values from k,
the masses lie between two geometric series: with the first ratio (above) and the last (below).
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

import numpy as np

from dpacct.budget import Interval
from dpacct.numerics.rounding import UNIT, Array

# Blocks, and the distance behind the first value or the mean that they cover, in deviations.
_BLOCKS, _REACH = 8192, 7.0
# Up to so many trials the masses are products, each within 2 n units.
_FEW = 300
# So many deviations below the mean the tail is 1 as far as a double tells: e^{-38^2 / 2} is left.
_CERTAIN = 38.0
# The series of delta from 16 on, and delta itself below. 1/1188 is the next coefficient.
_STIRLING = (1 / 12, -1 / 360, 1 / 1260, -1 / 1680)
_EXACT = [0.0] + [
    math.log(math.factorial(m)) - (m + 0.5) * math.log(m) + m - 0.5 * math.log(2 * math.pi)
    for m in range(1, 16)
]
_SMALL, _TERMS = 0.1, 16


def _stirling(m: Array) -> Array:
    """Return about delta(m) for m > 0. Error: 2e-14."""
    large = np.maximum(m, 16.0)
    series = np.polyval(_STIRLING[::-1], large**-2.0) / large
    return np.where(m < 16, np.take(_EXACT, np.minimum(m, 15.0).astype(int)), series)


def _phi(x: Array) -> Array:
    """Return phi(x) for x >= -1. Error: relative, 256 units."""
    small, far = np.where(np.abs(x) < _SMALL, x, 0.0), np.maximum(x, UNIT - 1)
    series = np.polyval([(-1.0) ** j / ((j + 1) * (j + 2)) for j in range(_TERMS)][::-1], small)
    return np.where(np.abs(x) < _SMALL, small**2 * series, (1 + far) * np.log1p(far) - far)


def log_masses(n: int, rate: float, least: int, steps: Array) -> tuple[Array, Array]:
    """Return about log P(X = k) for 0 < k = least + steps < n, and its absolute errors."""
    exact = Fraction(rate)
    start, others = float(least - n * exact), n * (1 - exact)
    mean, rest, away = float(n * exact), float(others), start + steps
    k, left = least + steps, float(n - least) - steps
    x, y = away / mean, -away / rest
    spent = mean * _phi(x) + rest * _phi(y)
    slopes = np.abs(np.log1p(np.maximum(x, UNIT - 1))), np.abs(np.log1p(np.maximum(y, UNIT - 1)))
    logs = 0.5 * (math.log(n / (2 * math.pi)) - np.log(k) - np.log(left))
    value = logs + _stirling(np.array(float(n))) - _stirling(k) - _stirling(left) - spent
    # Roundings of x and y weigh by the slopes of phi.
    moved = (np.abs(away) + abs(start)) * (slopes[0] + slopes[1])
    return value, 1e-13 + UNIT * (256 * spent + 8 * moved + 8 * np.abs(logs) + 8 * np.log(k * left))


# Calibration asks again for each noise.
@lru_cache(maxsize=256)
def binomial_tail(n: int, rate: float, least: int) -> Interval:
    """Return P(X >= least) for a binomial X of n trials with a rate in (0, 1].

    Args:
        n: any number of trials. rate: taken as the exact value of the double.
    Error: the bounds are proven. For up to 1e15 trials they are within about 1e-6 (relative), or
        within 1e-10 if the standard deviation is below 1000.
    Source: Loader 2000, "Fast and accurate computation of binomial probabilities";
        docs/derivations/dominating-pairs.md.
    """
    if least > n:
        return Interval(0.0, 0.0)
    if least <= 0 or rate == 1.0:
        return Interval(1.0, 1.0)
    if least == n:
        log = n * math.log(rate)
        off = UNIT * (16 * abs(log) + 16)
        return Interval(math.exp(log - off), math.exp(log + off))
    spread = math.sqrt(n * rate * (1 - rate))
    below = float(n * Fraction(rate) - least)
    if below > _CERTAIN * max(spread, 1.0):
        return Interval(1 - UNIT, 1.0)
    lower, upper = (_blocks(n, rate, least, sign)[1] for sign in (-1.0, 1.0))
    slack = UNIT * (2 * len(upper) + 64)
    most = min(float(upper.sum()) * (1 + slack), 1.0)
    return Interval(max(float(lower.sum()) * (1 - slack), 0.0), most)


def binomial_blocks(n: int, rate: float, least: int) -> tuple[Array, Array]:
    """Return the first values of blocks of {least, ..., n}, and lower bounds of their masses.

    Values far below the mean are left out. Blocks hold one value if the standard deviation is
    below 500, but for the last block. Both arrays have shape (k,), and may be empty.

    Error: as for `binomial_tail`, rate < 1.
    """
    if n <= _FEW:
        few = range(max(least, 0), n + 1)
        each = [math.comb(n, k) * rate**k * (1 - rate) ** (n - k) for k in few]
        return np.array(few, dtype=np.float64), np.array(each) * (1 - 4 * UNIT * (n + 16))
    spread = math.sqrt(n * rate * (1 - rate))
    first = max(least, 1, math.floor(n * Fraction(rate) - Fraction(_REACH * spread)) - 40)
    if first >= n:
        return np.empty(0), np.empty(0)
    steps, masses = _blocks(n, rate, first, -1.0)
    return first + steps, masses


def _blocks(n: int, rate: float, least: int, sign: float) -> tuple[Array, Array]:
    """Return where blocks begin, less ``least``, and bounds of masses: above (1) or below (-1)."""
    spread = math.sqrt(n * rate * (1 - rate))
    below = float(n * Fraction(rate) - least)
    reach = max(below, 0.0) + _REACH * spread + 40.0
    steps = np.unique(np.floor(np.linspace(0.0, min(reach, float(n - 1 - least)), _BLOCKS)))
    widths = np.append(np.diff(steps), float(n - least) + 1 - steps[-1])
    log_mass, error = log_masses(n, rate, least, steps)
    # The ratio behind the first value of a block bounds from above, that of the last from below.
    last = steps if sign > 0 else np.append((steps + widths - 2)[:-1], float(n - least) - 1)
    after = np.maximum(float(n - least) - last, 0.25)
    log_ratio = np.log(after) + math.log(rate) - np.log(least + last + 1) - math.log1p(-rate)
    slack = 16 * UNIT * (np.abs(np.log(after)) + np.abs(math.log(rate)) + 80)
    ratio = log_ratio + sign * slack
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        sums = np.expm1(widths * ratio) / np.expm1(ratio)
    sums = np.where(widths == 1, 1.0, np.where(np.abs(ratio) < 1e-300, widths, sums))
    return steps, np.exp(log_mass + sign * error) * sums
