"""From a Renyi curve to (epsilon, delta), by brute force over continuous orders."""

from __future__ import annotations

import math
from collections.abc import Callable

from mpmath import mp, mpf

DIGITS = 50
Curve = Callable[[float], "mpf | float"]


def classic(order: float, renyi: mpf | float, delta: float) -> mpf:
    """eps = R(a) + log(1/delta) / (a - 1).

    Source: Mironov 2017 (arXiv:1702.07476), proposition 3.
    """
    with mp.workdps(DIGITS):
        return mpf(renyi) - mp.log(mpf(delta)) / (mpf(order) - 1)


def improved(order: float, renyi: mpf | float, delta: float) -> mpf:
    """eps = R(a) + log((a-1)/a) - (log delta + log a) / (a - 1).

    Source: Balle, Barthe, Gaboardi, Hsu, Sato 2020 (arXiv:1905.09982), theorem 21.
    """
    with mp.workdps(DIGITS):
        a = mpf(order)
        return mpf(renyi) + mp.log((a - 1) / a) - (mp.log(mpf(delta)) + mp.log(a)) / (a - 1)


def classic_delta(order: float, renyi: mpf | float, epsilon: float) -> mpf:
    """delta = e^{(a-1)(R - eps)}, the first formula solved for delta."""
    with mp.workdps(DIGITS):
        return min(mpf(1), mp.exp((mpf(order) - 1) * (mpf(renyi) - epsilon)))


def improved_delta(order: float, renyi: mpf | float, epsilon: float) -> mpf:
    """delta = e^{(a-1)(R - eps)} / (a - 1) (1 - 1/a)^a, the second formula solved for delta.

    Source: Canonne, Kamath, Steinke 2020 (arXiv:2004.00010), proposition 12.
    """
    with mp.workdps(DIGITS):
        a = mpf(order)
        factor = (1 - 1 / a) ** a / (a - 1)
        return min(mpf(1), mp.exp((a - 1) * (mpf(renyi) - epsilon)) * factor)


def minimize(
    value: Callable[[float], mpf],
    low: float = 1.0001,
    high: float = 1e5,
    points: int = 120,
) -> tuple[float, mpf]:
    """Order and value of the least value(order): scans in log(order - 1), ever closer."""
    first, last = left, right = math.log(low - 1), math.log(high - 1)
    for number in (points, 50, 50, 50, 50):
        gap = (right - left) / (number - 1)
        orders = [1 + math.exp(left + gap * k) for k in range(number)]
        order = min(orders, key=value)
        best = math.log(order - 1)
        left, right = max(first, best - gap), min(last, best + gap)
    return order, value(order)


def epsilon_classic(curve: Curve, delta: float, low: float = 1.0001, high: float = 1e5) -> mpf:
    """The classic conversion at its best order, never below zero."""
    return max(mpf(0), minimize(lambda a: classic(a, curve(a), delta), low, high)[1])


def epsilon_improved(curve: Curve, delta: float, low: float = 1.0001, high: float = 1e5) -> mpf:
    """The improved conversion at its best order, never below zero."""
    return max(mpf(0), minimize(lambda a: improved(a, curve(a), delta), low, high)[1])
