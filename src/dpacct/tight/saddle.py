"""Where to cross the real line: the tilt of a contour. A search; nothing here is proven.

With K(c) = log M(c) and k(c) = c log c - (1 + c) log(1 + c), Chernoff's bound is
delta(eps) <= e^{K(c) + k(c) - c eps}. Its best tilt at a given eps or delta solves an equation in
the derivatives of K, the cumulants of the loss under the tilted law.
"""

from __future__ import annotations

import math
from collections.abc import Callable

from dpacct.errors import NotConverged
from dpacct.tight.laws.cumulants import Cumulants, Tiltable

# Tolerance of log c, which stays within 14 of 0 or of where a Gaussian loss would have it.
_TOLERANCE, _RANGE = 1e-3, 14.0
_STEPS = 60


def tilt_at_delta(composition: Tiltable, log_delta: float) -> tuple[float, Cumulants]:
    """The tilt with the least Chernoff bound of epsilon: c (K + k)' = K + k - log delta."""

    def excess(tilt: float, at: Cumulants) -> tuple[float, float]:
        bend = at.variance + 1 / (tilt * (1 + tilt))
        slope = at.mean - math.log1p(1 / tilt)
        return tilt * slope - at.log_moment - log_chernoff_factor(
            tilt
        ) + log_delta, tilt * tilt * bend

    return _solve(composition, excess)


def tilt_at_epsilon(composition: Tiltable, epsilon: float) -> tuple[float, Cumulants]:
    """The tilt with the least Chernoff bound of delta: (K + k)' = eps."""

    def excess(tilt: float, at: Cumulants) -> tuple[float, float]:
        bend = at.variance + 1 / (tilt * (1 + tilt))
        return at.mean - math.log1p(1 / tilt) - epsilon, tilt * bend

    return _solve(composition, excess)


def log_delta_estimate(tilt: float, at: Cumulants, epsilon: float) -> float:
    """log delta(eps) by the saddle-point approximation; may be positive."""
    bend = at.variance + 1 / tilt**2 + 1 / (1 + tilt) ** 2
    log_kernel = -math.log(tilt) - math.log1p(tilt) - 0.5 * math.log(2 * math.pi * bend)
    return at.log_moment - tilt * epsilon + log_kernel


def epsilon_estimate(tilt: float, at: Cumulants, log_delta: float) -> float:
    """The epsilon at which the same approximation gives delta; may be negative."""
    return (log_delta_estimate(tilt, at, 0.0) - log_delta) / tilt


def log_chernoff_factor(tilt: float) -> float:
    """log of c^c / (1 + c)^(1 + c): times M(c) e^{-c eps} it bounds delta(eps), any c > 0."""
    return -tilt * math.log1p(1 / tilt) - math.log1p(tilt)


def _solve(
    composition: Tiltable, excess: Callable[[float, Cumulants], tuple[float, float]]
) -> tuple[float, Cumulants]:
    """Root in log c of an increasing function with its derivative: Newton, kept in a bracket."""
    likely = _start(composition)
    low, high = min(0.0, likely) - _RANGE, max(0.0, likely) + _RANGE
    t = min(max(likely, low + 1), 3.0)
    at = composition.cumulants(math.exp(t))
    for _ in range(_STEPS):
        value, slope = excess(math.exp(t), at)
        low, high = (t, high) if value < 0 else (low, t)
        step = -value / slope if slope > 0 else math.inf
        step = math.copysign(min(abs(step), 2.0), -value)
        new = t + step
        if not low < new < high:
            new = (low + high) / 2
        if abs(new - t) < _TOLERANCE:
            break
        try:
            at, t = composition.cumulants(math.exp(new)), new
        except NotConverged:
            # Too many nodes out there: the nearest tilt that can be had will do.
            high = new
    return math.exp(t), at


def _start(composition: Tiltable) -> float:
    """log of a tilt for about a thousandth of probability, as if the loss were Gaussian."""
    return math.log(3.5) - 0.5 * math.log(composition.cumulants(0.5).variance)
