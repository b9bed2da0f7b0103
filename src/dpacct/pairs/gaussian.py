"""The Gaussian mechanism exactly: full participation, zCDP and mu-GDP.

A release with noise std sigma per unit of shift has mu = 1 / sigma. T of them compose to one with
mu^2 = sum of mu_t^2. With a = eps/mu - mu/2, b = eps/mu + mu/2 and the Mills ratio
R(x) = (1 - Phi(x)) / phi(x),

    delta(eps) = (1 - Phi(a)) - e^eps (1 - Phi(b)) = phi(a) (R(a) - R(b)).

Source: Balle, Wang 2018 (arXiv:1805.06530), theorem 8; docs/derivations/gaussian.md.
"""

from __future__ import annotations

import math

from dpacct.budget import Interval
from dpacct.numerics.rounding import UNIT
from dpacct.numerics.search import bisect

# From here on the continued fraction gives all digits in `_FRACTION_TERMS` steps.
_FRACTION_FROM = 4.0
_FRACTION_TERMS = 80
# phi(_FAR) is below 1e-290; deltas below are bounded by the Gaussian tail alone.
_FAR = 40.0
_SMALLEST_DELTA = 1e-280


def mills_ratio(x: float) -> Interval:
    """R(x) = (1 - Phi(x)) / phi(x), x >= -30.

    Error: inside the interval; for x >= 4 two convergents of the continued fraction
        1/(x + 1/(x + 2/(x + 3/(x + ...)))), which lie on both sides, relative width 1e-14.
    """
    if x < _FRACTION_FROM:
        value = 0.5 * math.erfc(x / math.sqrt(2)) * math.sqrt(2 * math.pi) * math.exp(x * x / 2)
        error = value * UNIT * (8 * x * x + 32)
        return Interval(value - error, value + error)
    tails = [x, x + _FRACTION_TERMS / x]
    for k in range(_FRACTION_TERMS - 1, 0, -1):
        tails = [x + k / tail for tail in tails]
    # Each step shrinks the tail's relative error to less than 0.7 of it: 4 roundings in all.
    first, second = sorted(1 / tail for tail in tails)
    return Interval(first * (1 - 8 * UNIT), second * (1 + 8 * UNIT))


def _slope(x: float, ratio: Interval) -> Interval:
    """-R'(x) = 1 - x R(x), which lies in (0, infinity)."""
    products = (x * ratio.lower, x * ratio.upper)
    error = 4 * UNIT * (1 + abs(x) * ratio.upper)
    return Interval(max(0.0, 1 - max(products) - error), 1 - min(products) + error)


def _difference(a: float, b: float, mu: float) -> Interval:
    """R(a) - R(b) for b = a + mu > a.

    Two bounds, the better of each side: the plain difference, and mu times the slope
    g(x) = -R'(x) = 1 - x R(x), which is convex (R is completely monotone), so that
    mu g(midpoint) <= R(a) - R(b) <= mu (g(a) + g(b)) / 2: no cancellation as mu -> 0.
    """
    points = (a, (a + b) / 2, b)
    ratios = [mills_ratio(x) for x in points]
    slopes = [_slope(x, ratio) for x, ratio in zip(points, ratios, strict=True)]
    # a and b carry rounding errors relative to their parts; g(a) is the steepest slope in reach.
    shift = 8 * UNIT * (abs(a) + abs(b) + mu)
    lower = ratios[0].lower - ratios[2].upper - shift * slopes[0].upper
    upper = ratios[0].upper - ratios[2].lower + shift * slopes[0].upper
    # |g'| = R'' = (1 + x^2) R - x, largest at a, bounds what the shift does to the slopes.
    bend = shift * ((1 + a * a) * ratios[0].upper + abs(a))
    lower = max(0.0, lower, mu * (slopes[1].lower - bend) * (1 - 4 * UNIT))
    upper = min(upper, mu * ((slopes[0].upper + slopes[2].upper) / 2 + bend) * (1 + 4 * UNIT))
    return Interval(lower, max(lower, upper))


def gaussian_delta(epsilon: float, mu: float) -> Interval:
    """delta(eps) of the Gaussian mechanism with mu = shift / noise std, eps >= 0.

    Error: inside the interval; relative width below 1e-8 for mu in [1e-9, 300], delta > 1e-30.
    Source: Balle, Wang 2018 (arXiv:1805.06530), theorem 8.
    """
    if mu == 0.0:
        return Interval(0.0, 0.0)
    a, b = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if a > _FAR:
        return Interval(0.0, 1e-290)
    # The exponent a^2/2 inherits the error of a, which is relative to eps/mu + mu/2.
    exponent_error = UNIT * (8 * abs(a) * b + 4 * a * a)
    density = math.exp(-a * a / 2) / math.sqrt(2 * math.pi)
    if a < -5.0:
        tail = 0.5 * math.erfc(a / math.sqrt(2))
        error = 8 * UNIT + 4 * UNIT * b * density
        spread, norm = exponent_error + 32 * UNIT, math.sqrt(2 * math.pi)
        most = math.exp(min(0.0, spread - a * a / 2)) / norm
        least = math.exp(-spread - a * a / 2) / norm
        hidden = mills_ratio(b)
        lower, upper = tail - most * hidden.upper, tail - least * hidden.lower
        return Interval(max(0.0, lower - error), min(1.0, upper + error))
    difference = _difference(a, b, mu)
    if density < 1e-290:
        return Interval(0.0, 1e-290 * difference.upper)
    lower = density * difference.lower * (1 - exponent_error - 32 * UNIT)
    upper = density * difference.upper * (1 + exponent_error + 32 * UNIT)
    return Interval(max(0.0, lower), min(1.0, upper))


def gaussian_epsilon(delta: float, mu: float) -> Interval:
    """eps(delta) of the Gaussian mechanism with mu = shift / noise std, never negative.

    Error: inside the interval; relative width about 1e-12 beyond that of `gaussian_delta`.
    """
    if mu == 0.0:
        return Interval(0.0, 0.0)
    at_zero = gaussian_delta(0.0, mu)
    # delta(eps) <= e^{-a^2/2} / 2 for a >= 0, so this epsilon is always enough.
    enough = mu * (mu / 2 + math.sqrt(-2 * math.log(delta))) * (1 + 32 * UNIT)
    lower = 0.0
    if at_zero.lower > delta:
        lower = bisect(lambda eps: gaussian_delta(eps, mu).lower > delta, enough, 1e-13)[0]
    upper = 0.0
    if delta < _SMALLEST_DELTA:
        upper = enough
    elif at_zero.upper > delta:
        upper = bisect(lambda eps: gaussian_delta(eps, mu).upper > delta, enough, 1e-13)[1]
    return Interval(lower, upper)
