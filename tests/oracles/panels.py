"""Integrals over the real line of combinations of phi r^b, in multiprecision.

The line is cut where the integrand lives: around the maxima of log(phi r^b) for each exponent b
that occurs, down to a threshold; each piece is cut further until no term varies by more than a
few e-folds and the branch points of r^b, at x* +- i pi s^2 with x* = 1/2 + s^2 log((1-q)/q), stay
well outside the convergence ellipse of a 48-point Gauss-Legendre rule.
Source: Trefethen, Approximation Theory and Practice (2013), theorem 19.3 for the convergence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache
from itertools import pairwise

from mpmath import mp, mpf
from mpmath.calculus.quadrature import GaussLegendre

MAX_VARIATION = 16.0
MAX_WIDTH = 4.0


def log_ratio(x: float, q: float, s: float) -> float:
    """log r(x) in double precision; good enough to place panels."""
    u = (2 * x - 1) / (2 * s * s)
    if q == 1.0:
        return u
    low, high = sorted((math.log1p(-q), math.log(q) + u))
    return high + math.log1p(math.exp(low - high))


def log_term(x: float, b: float, q: float, s: float) -> float:
    """log(phi r^b) without the normalization of phi."""
    return -0.5 * (x / s) ** 2 + b * log_ratio(x, q, s)


def _slope(x: float, b: float, q: float, s: float) -> float:
    """x - b w(x), w = q e^u / r: minus s^2 times the derivative of `log_term`."""
    odds = (math.log1p(-q) if q < 1.0 else -math.inf) - math.log(q) - (2 * x - 1) / (2 * s * s)
    weight = 0.0 if odds > 700 else 1.0 / (1.0 + math.exp(odds))
    return x - b * weight


def _root(f: Callable[[float], float], low: float, high: float) -> float:
    sign = f(low) > 0
    for _ in range(200):
        middle = 0.5 * (low + high)
        if middle in (low, high):
            break
        if (f(middle) > 0) == sign:
            low = middle
        else:
            high = middle
    return 0.5 * (low + high)


def stationary_points(b: float, q: float, s: float) -> list[float]:
    """All maxima and minima of `log_term`: one, or three where two humps are apart."""
    low, high = min(b, 0.0) - 1.0, max(b, 0.0) + 1.0
    cuts = [low, high]
    if q < 1.0 and b > 4 * s * s:
        # The slope turns where b w (1 - w) = s^2.
        center = 0.5 + s * s * math.log((1 - q) / q)
        half = math.sqrt(0.25 - s * s / b)
        reach = s * s * math.log((0.5 + half) ** 2 / (s * s / b))
        cuts = [low, *sorted(c for c in (center - reach, center + reach) if low < c < high), high]

    def slope(x: float) -> float:
        return _slope(x, b, q, s)

    return [
        _root(slope, left, right)
        for left, right in pairwise(cuts)
        if (slope(left) > 0) != (slope(right) > 0)
    ]


def _support(b: float, q: float, s: float, threshold: float) -> list[tuple[float, float]]:
    """Where log_term(x, b) exceeds the threshold, as intervals."""

    def above(x: float) -> float:
        return log_term(x, b, q, s) - threshold

    points = stationary_points(b, q, s)
    far = s
    while above(points[0] - far) > 0:
        far *= 2
    left = points[0] - far
    far = s
    while above(points[-1] + far) > 0:
        far *= 2
    # log_term is monotone between neighbors in this list.
    knots = [left, *points, points[-1] + far]
    pieces: list[tuple[float, float]] = []
    for start, end in pairwise(knots):
        at_start, at_end = above(start) > 0, above(end) > 0
        if at_start and at_end:
            pieces.append((start, end))
        elif at_start or at_end:
            edge = _root(above, start, end)
            pieces.append((start, edge) if at_start else (edge, end))
    return pieces


def panels(
    exponents: Iterable[float],
    q: float,
    s: float,
    digits: float,
    start: float = -math.inf,
) -> list[tuple[float, float]]:
    """Panels that cover all x > start at which some phi r^b is within 10^-digits of the largest."""
    orders = sorted(set(exponents))

    def largest(b: float) -> float:
        points = [max(x, start) for x in stationary_points(b, q, s)]
        return max(log_term(x, b, q, s) for x in points)

    threshold = max(map(largest, orders)) - digits * math.log(10)
    pieces = sorted(p for b in orders for p in _support(b, q, s, threshold) if p[1] > start)
    merged: list[list[float]] = []
    for left, right in pieces:
        if merged and left <= merged[-1][1]:
            merged[-1][1] = max(merged[-1][1], right)
        else:
            merged.append([max(left, start), right])
    center = 0.5 + s * s * math.log((1 - q) / q) if q < 1.0 else math.inf
    result: list[tuple[float, float]] = []
    todo = [(left, right) for left, right in reversed(merged)]
    while todo:
        left, right = todo.pop()
        width, middle = right - left, 0.5 * (left + right)
        distance = math.hypot(max(left - center, center - right, 0.0), math.pi * s * s)
        fits = width <= MAX_WIDTH * s and width <= 1.5 * distance
        if fits:
            for b in orders:
                sampled = [left + width * k / 8 for k in range(9)]
                values = [max(log_term(x, b, q, s), threshold) for x in sampled]
                fits = fits and max(values) - min(values) <= MAX_VARIATION
        if fits:
            result.append((left, right))
        else:
            todo += [(middle, right), (left, middle)]
    return result


@lru_cache(maxsize=16)
def _rule(precision: int) -> list[tuple[mpf, mpf]]:
    return GaussLegendre(mp).calc_nodes(5, precision)


def integrate(f: Callable[[mpf], mpf], intervals: Iterable[tuple[float, float]]) -> mpf:
    """Sum of the integrals of f, by the 48-point Gauss-Legendre rule on each interval."""
    nodes = _rule(mp.prec)
    total = mpf(0)
    for left, right in intervals:
        half, middle = (mpf(right) - mpf(left)) / 2, (mpf(right) + mpf(left)) / 2
        total += half * mp.fsum(weight * f(middle + half * node) for node, weight in nodes)
    return total
