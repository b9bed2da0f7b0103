"""From Renyi differential privacy to (epsilon, delta), minimized over continuous orders.

With b = alpha - 1 > 0 and R = R(alpha), both conversions hold for every order alpha > 1, every
delta in (0, 1) and every mechanism:

    classic   eps = R + log(1/delta) / b                                 (Mironov 2017, prop. 3)
    improved  eps = R + log(b / alpha) - (log delta + log alpha) / b     (Balle et al. 2020, thm 21;
                                                       Canonne, Kamath, Steinke 2020, prop. 12)

The improved one is never larger. A negative result proves epsilon = 0. Since b R is convex in
alpha, so is b eps, hence eps is unimodal in alpha and log delta(eps) is convex: a local minimum is
the minimum, and any order gives a proven value. docs/derivations/conversion.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dpacct.numerics.rounding import FUNCTION_ERROR, above
from dpacct.numerics.search import minimize_unimodal

Conversion = Callable[[float, float, float], float]

# b in [e^-34, e^16] = [2e-15, 9e6]: below, 1 + b loses its digits; above, only where epsilon is
# next to nothing.
_LOG_RANGE = (-34.0, 16.0)
_LOG_TOLERANCE = 2e-6


@dataclass(frozen=True, slots=True)
class AtOrder:
    """A value (epsilon or delta) and the Renyi order at which it was found."""

    value: float
    order: float


def classic_epsilon(order: float, renyi: float, delta: float) -> float:
    """eps = R + log(1/delta) / (alpha - 1), rounded up, at least 0. Mironov 2017, prop. 3."""
    cost = -math.log(delta) / (order - 1)
    return _not_negative(above(renyi + cost, renyi, cost))


def improved_epsilon(order: float, renyi: float, delta: float) -> float:
    """eps = R + log((alpha-1)/alpha) - (log delta + log alpha)/(alpha-1), rounded up, at least 0.

    Source: Balle et al. 2020 (arXiv:1905.09982), theorem 21; Canonne, Kamath, Steinke 2020
        (arXiv:2004.00010), proposition 12.
    """
    b = order - 1
    log_b, log_order, log_delta = math.log(b), math.log(order), math.log(delta)
    value = renyi + (log_b - log_order) - (log_delta + log_order) / b
    return _not_negative(above(value, renyi, log_b, log_order, log_delta / b, log_order / b))


def _not_negative(value: float) -> float:
    """At least 0; what is not a number bounds nothing."""
    return math.inf if math.isnan(value) else max(0.0, value)


def improved_delta(order: float, renyi: float, epsilon: float) -> float:
    """delta = e^{(alpha-1)(R - eps)} / (alpha-1) (1 - 1/alpha)^alpha, rounded up, at most 1.

    Source: Canonne, Kamath, Steinke 2020 (arXiv:2004.00010), proposition 12.
    """
    log_delta = _log_delta(order, renyi, epsilon)
    if math.isnan(log_delta):
        return 1.0
    if log_delta < -690.0:
        return 1e-299
    return min(1.0, math.exp(min(log_delta, 0.0)) * (1 + 2 * FUNCTION_ERROR))


def _log_delta(order: float, renyi: float, epsilon: float) -> float:
    b = order - 1
    parts = (b * renyi, -b * epsilon, b * math.log(b), -order * math.log(order))
    return above(sum(parts), *parts)


def best_epsilon(
    renyi: Callable[[float], float],
    delta: float,
    start: float,
    conversion: Conversion = improved_epsilon,
) -> AtOrder:
    """The smallest epsilon over all orders.

    Args:
        renyi: upper bound of the Renyi divergence as a function of the order.
        delta: in (0, 1).
        start: an order near the best one; only the time depends on it.
        conversion: which formula.
    Error:
        Proven from above whatever the search does. It ends within 2e-6 in log(alpha - 1), where
        epsilon is flat: about 1e-9 above the minimum over orders.
    """
    order = _best_order(lambda order: conversion(order, renyi(order), delta), start)
    return AtOrder(conversion(order, renyi(order), delta), order)


def best_delta(renyi: Callable[[float], float], epsilon: float, start: float) -> AtOrder:
    """The smallest delta over all orders, by the improved conversion; as `best_epsilon`."""
    order = _best_order(lambda order: _log_delta(order, renyi(order), epsilon), start)
    return AtOrder(improved_delta(order, renyi(order), epsilon), order)


def _best_order(function: Callable[[float], float], start: float) -> float:
    log_best = minimize_unimodal(
        lambda t: function(1 + math.exp(t)), math.log(start - 1), _LOG_RANGE, _LOG_TOLERANCE
    )
    return 1 + math.exp(log_best)
