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
    reach = max(below, 0.0) + _REACH * spread + 40.0
    steps = np.unique(np.floor(np.linspace(0.0, min(reach, float(n - 1 - least)), _BLOCKS)))
    widths = np.append(np.diff(steps), float(n - least) + 1 - steps[-1])
    log_mass, error = log_masses(n, rate, least, steps)

    def total(last: Array, sign: float) -> float:
        """Return the sum over blocks with the ratio behind the ``last`` value of each."""
        after = np.maximum(float(n - least) - last, 0.25)
        log_ratio = np.log(after) + math.log(rate) - np.log(least + last + 1) - math.log1p(-rate)
        slack = 16 * UNIT * (np.abs(np.log(after)) + np.abs(math.log(rate)) + 80)
        ratio = log_ratio + sign * slack
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            sums = np.expm1(widths * ratio) / np.expm1(ratio)
        sums = np.where(widths == 1, 1.0, np.where(np.abs(ratio) < 1e-300, widths, sums))
        terms = np.exp(log_mass + sign * error) * sums
        return float(terms.sum()) * (1 + sign * UNIT * (2 * len(terms) + 64))

    lower = total(np.append((steps + widths - 2)[:-1], float(n - least) - 1), -1.0)
    return Interval(max(lower, 0.0), min(total(steps, 1.0), 1.0))
