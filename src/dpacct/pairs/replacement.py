"""Moments of Poisson sampling where one client is replaced by its opposite.

    I(a) = E_Q[(P/Q)^a] = integral of phi r(x)^a r(-x)^(1-a)

for P = (1-q) N(0) + q N(1) and Q = (1-q) N(0) + q N(-1), phi and r as in `moments`. I(a) = I(1-a).
The integral is `trapezoid`; where it would need too many nodes, the moments of `moments` times
(1-q)^(1-a) are as tight as double precision. Derivation: docs/derivations/replacement.md.
"""

from __future__ import annotations

import numpy as np

from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, Array, Bounds
from dpacct.pairs.moments import log_moment
from dpacct.pairs.trapezoid import trapezoid_log_moment

# With less noise, and from this many nodes on, about 2 a^(3/2) / sigma^2, the product is taken.
_SMALL_SIGMA, _MANY_NODES = 0.03, 2e5


def replacement_log_moment(order: object, sampling_rate: object, noise_std: object) -> Bounds:
    """Logarithm of the moment I(a) of a round in which a client may be replaced.

    Args:
        order: a > 0; shapes of the three arguments broadcast to (n,) or ().
        sampling_rate: q in (0, 1].
        noise_std: sigma > 0, in units of the largest contribution.
    Returns:
        Lower and upper bounds, natural logarithm, of the broadcast shape.
    Error:
        Contained in the bounds, which are typically 1e-13 apart (relative), also for log I(a)
        as small as 1e-300. For 0 < a < 1 the relative width grows as 1 / (1 - a), and is that of
        simple inequalities where sigma is below 0.03.
    Source: docs/derivations/replacement.md.
    """
    a, q, sigma = np.broadcast_arrays(
        *(np.asarray(value, dtype=np.float64) for value in (order, sampling_rate, noise_std))
    )
    shape = a.shape
    a, q, sigma = (np.atleast_1d(value).ravel() for value in (a, q, sigma))
    lower, upper = _opposites(a, sigma)
    small = sigma < _SMALL_SIGMA
    for rows, route in (
        (small & (a < 1), _separated),
        ((a > 1) & (small | (a**1.5 > _MANY_NODES * sigma**2)), _product),
        (~small & ((a < 1) | (a**1.5 <= _MANY_NODES * sigma**2)), _integral),
    ):
        some = np.flatnonzero(rows & (q < 1) & (a != 1))
        if some.size:
            found = route(a[some], q[some], sigma[some])
            lower[some] = found.lower
            # A mixture diverges no more than the worst of what it mixes.
            upper[some] = np.where(
                a[some] > 1, np.fmin(found.upper, upper[some]), np.fmin(found.upper, 0.0)
            )
    # What is not a number bounds nothing.
    lower = np.where(np.isnan(lower), -np.inf, lower)
    lower = np.where(a > 1, np.maximum(lower, 0.0), lower)
    return Bounds(lower.reshape(shape), upper.reshape(shape))


def _opposites(a: Array, sigma: Array) -> Bounds:
    """q = 1: N(1) against N(-1), log I(a) = 2 a (a - 1) / sigma^2."""
    value = 2 * a * (a - 1) / sigma**2
    slack = 8 * UNIT * np.abs(value)
    return Bounds(value - slack, value + slack)


def _integral(a: Array, q: Array, sigma: Array) -> Bounds:
    return trapezoid_log_moment(a, q, sigma, mirrored=True)


def _product(a: Array, q: Array, sigma: Array) -> Bounds:
    """a > 1, and N(-1) hardly reaches to where the moment is.

    With y = q / (1-q) e^{u(-x)}, r(-x)^(1-a) = (1-q)^(1-a) (1 + y)^(1-a) lies between (1-q)^(1-a)
    and that less min((a-1) y, ((a-1) y)^(1/2)) times it. The mean of y^s r^a is bounded by
    Minkowski's inequality under phi y^s, a Gaussian around -s.
    """
    b, log_rest, log_odds = a - 1, np.log1p(-q), np.log(q) - np.log1p(-q)
    whole = log_moment(a, q, sigma)
    missing = np.full_like(a, np.inf)
    for share in (0.5, 1.0):
        grown = log_odds + (a - 1 - 2 * share) / (2 * sigma**2)
        mean = share * (log_odds + np.log(b)) - share * (1 - share) / (2 * sigma**2)
        mean += a * (log_rest + np.logaddexp(0.0, grown))
        size = share * (np.abs(log_odds) + np.abs(np.log(b))) + 1 / sigma**2
        size += a * (np.abs(log_rest) + np.abs(log_odds) + a / sigma**2)
        missing = np.minimum(missing, mean + 8 * FUNCTION_ERROR * size - whole.lower)
    shift = -b * log_rest
    slack = FUNCTION_ERROR * (shift + whole.upper)
    lost = np.log1p(-np.exp(np.minimum(missing, -1e-9)))
    return Bounds(whole.lower + shift - slack + 2 * lost, whole.upper + shift + slack)


def _separated(a: Array, q: Array, sigma: Array) -> Bounds:
    """0 < a < 1: P and Q share (1-q) N(0), and (x + y)^a <= x^a + y^a for all else."""
    log_q, log_rest = np.log(q), np.log1p(-q)
    near = -a * (1 - a) / (2 * sigma**2)
    terms = [
        a * log_rest + (1 - a) * log_q + near,
        a * log_q + (1 - a) * log_rest + near,
        log_q + 4 * near,
    ]
    upper = np.logaddexp.reduce(np.stack([log_rest, *terms]))
    slack = 16 * FUNCTION_ERROR * (np.abs(log_rest) + np.abs(upper)) + 2.0**-1000
    return Bounds(log_rest - slack, upper + slack)
