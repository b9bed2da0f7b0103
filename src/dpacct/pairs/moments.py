"""The moment I(a) = E[r(x)^a] of the likelihood ratio of a sampled Gaussian, for any real a.

x ~ N(0, sigma^2) and r(x) = 1 - q + q e^{(2x-1)/(2 sigma^2)}. The integral is `trapezoid`; at the
edges of the parameter range, where it would need too many nodes, simple inequalities are as
tight as double precision. The derivations are in docs/derivations/moments.md.
"""

from __future__ import annotations

import numpy as np

from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, Array, Bounds
from dpacct.pairs.trapezoid import trapezoid_log_moment

# Of orders below 0 the integral needs about 15 (-a)^(1/2) / sigma nodes.
_MANY_NODES = 2e4
# And between 0 and 1 about 40 / sigma^2.
_LITTLE_NOISE = 0.02


def log_moment(order: object, sampling_rate: object, noise_std: object) -> Bounds:
    """Logarithm of the moment I(a) of the likelihood ratio of a sampled Gaussian.

    Args:
        order: a, any real number; shapes of the three arguments broadcast to (n,) or ().
        sampling_rate: q in (0, 1].
        noise_std: sigma > 0, in units of the shift.
    Returns:
        Lower and upper bounds, natural logarithm, of the broadcast shape.
    Error:
        Contained in the bounds, which are typically 1e-13 apart (relative), also for log I(a)
        as small as 1e-300. For 0 < a < 1 the relative width grows as 1 / (1 - a).
    Raises:
        NotConverged: more than 8 million nodes would be needed, which no order from -1e7 to 1e7
            and no noise std from 5e-4 on does that was ever tried.
    Source: Mironov, Talwar, Zhang 2019, arXiv:1908.10530, section 3; docs/derivations/moments.md.
    """
    a, q, sigma = np.broadcast_arrays(
        *(np.asarray(value, dtype=np.float64) for value in (order, sampling_rate, noise_std))
    )
    shape = a.shape
    a, q, sigma = (np.atleast_1d(value).ravel() for value in (a, q, sigma))
    lower, upper = _gaussian(a, sigma)
    unknown = (q < 1) & (a != 0) & (a != 1)
    upper[unknown] = np.nan
    for route, smallest, largest in (
        (_dominated, 1.0, np.inf),
        (_separated, 1.0, 2.0),
        (_absent, -np.inf, 0.0),
        (_subadditive, 0.0, 1.0),
        (_swapped, -np.inf, 0.0),
        (trapezoid_log_moment, -np.inf, np.inf),
    ):
        rows = np.flatnonzero(np.isnan(upper) & (a > smallest) & (a <= largest))
        if rows.size:
            lower[rows], upper[rows] = route(a[rows], q[rows], sigma[rows])
    # What is not a number bounds nothing.
    lower = np.where(np.isnan(lower), -np.inf, lower)
    upper = np.where(np.isnan(upper), np.inf, upper)
    # I(a) >= 1 outside [0, 1], by Jensen's inequality.
    lower = np.where((a < 0) | (a > 1), np.maximum(lower, 0.0), lower)
    return Bounds(lower.reshape(shape), upper.reshape(shape))


def _gaussian(a: Array, sigma: Array) -> Bounds:
    """q = 1: log I(a) = a (a - 1) / (2 sigma^2)."""
    value = a * (a - 1) / (2 * sigma**2)
    slack = 8 * UNIT * np.abs(value)
    return Bounds(value - slack, value + slack)


def _dominated(a: Array, q: Array, sigma: Array) -> Bounds:
    """a > 1 so large that only q e^u matters; NaN elsewhere.

    q e^u <= r gives the lower side, Minkowski's inequality in L^a the upper one:
    0 <= log I(a) - a log q - a (a-1) / (2 sigma^2) <= a (1-q)/q e^{-(a-1)/(2 sigma^2)}.
    """
    gaussian = _gaussian(a, sigma)
    exponent = np.log1p(-q) - np.log(q) - (a - 1) / (2 * sigma**2)
    rest = a * np.exp(np.minimum(exponent, 0.0))
    applies = rest < UNIT * gaussian.upper
    shift, slack = a * np.log(q), FUNCTION_ERROR * np.abs(a * np.log(q))
    return Bounds(
        np.where(applies, gaussian.lower + shift - slack, np.nan),
        np.where(applies, gaussian.upper + shift + slack + 2 * rest, np.nan),
    )


def _separated(a: Array, q: Array, sigma: Array) -> Bounds:
    """1 < a <= 2 and sigma so small that N(0) and N(1) hardly overlap; NaN elsewhere.

    With A = 1 - q, B = q e^u: A^a + B^a <= (A + B)^a <= A^a + B^a + a 2^(a-1) (A B)^(a/2), hence
    I(a) - 1 = (1-q) (e^{b log(1-q)} - 1) + q (e^{b (log q + a/(2 sigma^2))} - 1), b = a - 1, up to
    a 2^(a-1) (q (1-q))^(a/2) e^{-a (2-a) / (8 sigma^2)}.
    """
    b, log_q, log_rest = a - 1, np.log(q), np.log1p(-q)
    log_overlap = np.log(4 * a) + a / 2 * (log_q + log_rest) - a * (2 - a) / (8 * sigma**2)
    overlap = np.exp(np.minimum(log_overlap, 0.0))
    growth = np.minimum(b * (log_q + a / (2 * sigma**2)), 600.0)
    hit, miss = q * np.expm1(growth), (1 - q) * np.expm1(b * log_rest)
    excess = hit + miss
    slack = UNIT * (32 * (hit - miss) + 16 * q * np.exp(growth) * b * (a / sigma**2 - log_q))
    applies = (growth > 0) & (growth < 600.0) & (overlap < UNIT * excess)
    excess, slack = np.where(applies, excess, 1.0), np.where(applies, slack, 0.0)
    return Bounds(
        np.where(applies, np.log1p(excess - slack) * (1 - FUNCTION_ERROR), np.nan),
        np.where(applies, np.log1p(excess + slack + overlap) * (1 + FUNCTION_ERROR), np.nan),
    )


def _absent(a: Array, q: Array, sigma: Array) -> Bounds:
    """a < 0 and sigma so small that q e^u hardly matters where N(0) is; NaN elsewhere.

    r >= 1 - q gives the upper side; left of x = 0.4 r is at most (1 - q) (1 + y),
    y = q / (1 - q) e^{-1 / (10 sigma^2)}, and of N(0) at most e^{-0.08 / sigma^2} / 2 lies beyond.
    """
    value = a * np.log1p(-q)
    log_y = np.log(q) - np.log1p(-q) - 0.1 / sigma**2
    rest = -a * np.exp(np.minimum(log_y, 0.0)) + np.exp(-0.08 / sigma**2)
    slack = FUNCTION_ERROR * value
    applies = rest < UNIT * value
    return Bounds(
        np.where(applies, value - slack - 2 * rest, np.nan),
        np.where(applies, value + slack, np.nan),
    )


def _subadditive(a: Array, q: Array, sigma: Array) -> Bounds:
    """0 < a < 1 and so little noise that the integral has many nodes; NaN elsewhere.

    A^a <= (A + B)^a <= A^a + B^a with A = 1 - q, B = q e^u; the mean of e^{a u} is that of a
    Gaussian. And no affinity exceeds 1.
    """
    log_rest, log_hit = a * np.log1p(-q), a * np.log(q) - a * (1 - a) / (2 * sigma**2)
    upper = np.logaddexp(log_rest, log_hit)
    slack = 4 * FUNCTION_ERROR * (np.abs(log_rest) + np.abs(upper)) + 2.0**-1000
    few = sigma < _LITTLE_NOISE
    return Bounds(
        np.where(few, log_rest - slack, np.nan), np.where(few, np.minimum(upper + slack, 0), np.nan)
    )


def _swapped(a: Array, q: Array, sigma: Array) -> Bounds:
    """a < 0 of a size at which the integral has millions of nodes; NaN elsewhere.

    1 <= I(a) <= I(1 - a): no divergence of the add direction exceeds that of the remove direction.

    Source: Mironov, Talwar, Zhang 2019 (arXiv:1908.10530), theorem 5.
    """
    upper = np.full_like(a, np.nan)
    rows = np.flatnonzero(np.sqrt(-a) > _MANY_NODES * sigma)
    if rows.size:
        upper[rows] = log_moment(1 - a[rows], q[rows], sigma[rows]).upper
    return Bounds(np.zeros_like(a), upper)
