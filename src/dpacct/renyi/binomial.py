"""The moment I(a) at integer orders as a finite sum: a second route beside the integral.

    I(a) = sum_{k=0}^{a} C(a, k) (1-q)^(a-k) q^k e^{k(k-1) / (2 sigma^2)}.

The weights sum to one, so I(a) - 1 is the same sum with e^y - 1 for e^y: all terms positive.
"""

from __future__ import annotations

import math

import numpy as np

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, Bounds

MAX_BINOMIAL_ORDER = 4096


def log_binomials(order: int) -> np.ndarray:
    """log C(a, k) for k = 0..a, each within 4 ulp: the integers are exact before the logarithm."""
    values = np.empty(order + 1)
    coefficient = 1
    for k in range(order + 1):
        values[k] = math.log(coefficient)
        coefficient = coefficient * (order - k) // (k + 1)
    return values


def binomial_log_moment(order: int, sampling_rate: float, noise_std: float) -> Bounds:
    """Logarithm of I(a) for an integer order a >= 2, by the binomial sum.

    Args:
        order: a, a whole number from 2 to 4096.
        sampling_rate: q in (0, 1].
        noise_std: sigma > 0, in units of the shift.
    Returns:
        Lower and upper bounds (0-dimensional arrays), natural logarithm.
    Error:
        Inside the bounds: the rounding of exponents, exponentials and the sum.
    Raises:
        InvalidParameter: the order is not such a number.
    Source: Mironov, Talwar, Zhang 2019, arXiv:1908.10530, section 3.3.
    """
    a = validate.count("order", order, "an order of the binomial sum", MAX_BINOMIAL_ORDER)
    if a < 2:
        raise InvalidParameter("order", a, "the binomial sum starts at order 2")
    q, sigma = sampling_rate, noise_std
    k = np.arange(2.0, a + 1)
    log_choose = log_binomials(a)[2:]
    log_hit = k * math.log(q)
    if q < 1:
        log_miss = (a - k) * math.log1p(-q)
    else:
        log_miss = np.where(k == a, 0.0, -np.inf)
    growth = k * (k - 1) / (2 * sigma**2)
    # log(e^y - 1) without overflow, relative precision also for small y.
    log_growth = growth + np.log(-np.expm1(-growth))
    exponent = log_choose + log_hit + log_miss + log_growth
    finite = np.isfinite(exponent)
    magnitude = (log_choose - log_hit + growth + np.abs(log_growth - growth))[finite]
    magnitude = magnitude - log_miss[finite]
    exponent = exponent[finite]
    error = 2 * FUNCTION_ERROR * (magnitude + 1)
    top = float(np.max(exponent))
    slack = 2 * UNIT * (a + 16)
    high = top + math.log(float(np.sum(np.exp(exponent + error - top))) * (1 + slack))
    low = top + math.log(float(np.sum(np.exp(exponent - error - top))) * (1 - slack))
    rounding = 2 * FUNCTION_ERROR * (abs(top) + abs(high - top) + 1)
    lower, upper = np.logaddexp(0.0, low - rounding), np.logaddexp(0.0, high + rounding)
    return Bounds(lower * (1 - 2 * FUNCTION_ERROR), upper * (1 + 2 * FUNCTION_ERROR))
