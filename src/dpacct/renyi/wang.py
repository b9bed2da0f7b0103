"""Renyi moments of fixed-size sampling by the bound of Wang, Balle, Kasiviswanathan 2019.

It is stated at integer orders; between them the logarithm of a moment is convex and interpolated.
The pair of C_q(Gaussian) (`dpacct.pairs.symmetrized`) has the smaller moments wherever both were
compared; both are reported.
"""

from __future__ import annotations

import math

import numpy as np

from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT

MAX_WANG_ORDER = 1024


def wang_log_moment(order: float, sampling_rate: float, noise_std: float) -> float:
    """Upper bound of log E_Q[(P/Q)^a] by Wang et al., at any real order a > 1.

    At integers a <= 1024: 1 + q^2 C(a,2) min(4 (e^{e2} - 1), 2 e^{e2})
    + sum_{j>=3} 2 q^j C(a,j) e^{(j-1) e_j} with e_j = j / (2 sigma^2), the Gaussian's own order-j
    divergence. Between integers log E is convex in a, so it is interpolated linearly; it is 0 at 1.

    Returns:
        The bound, rounded up; infinity for a > 1024.
    Source: Wang, Balle, Kasiviswanathan 2019 (arXiv:1808.00087), theorem 9 and corollary 10.
    """
    below = math.floor(order)
    if below + 1 > MAX_WANG_ORDER:
        return math.inf
    at_below = _wang_integer(below, sampling_rate, noise_std) if below >= 2 else 0.0
    if order == below:
        return at_below
    above = _wang_integer(below + 1, sampling_rate, noise_std)
    share = order - below
    return ((1 - share) * at_below + share * above) * (1 + 8 * UNIT)


def _wang_integer(a: int, q: float, sigma: float) -> float:
    j = np.arange(2.0, a + 1)
    growth = j * (j - 1) / (2 * sigma**2)
    log_factor = np.full_like(j, math.log(2.0)) + growth
    second = 1 / sigma**2
    log_factor[0] = min(math.log(4.0) + second + math.log(-math.expm1(-second)), log_factor[0])
    log_choose = _log_binomials(a)[2:]
    exponent = j * math.log(q) + log_choose + log_factor
    error = 2 * FUNCTION_ERROR * (-j * math.log(q) + log_choose + growth + 4)
    top = float(np.max(exponent + error))
    total = float(np.sum(np.exp(exponent + error - top))) * (1 + 2 * UNIT * (a + 16))
    value = float(np.logaddexp(0.0, top + math.log(total) + 4 * UNIT * abs(top)))
    return value * (1 + 2 * FUNCTION_ERROR)


def _log_binomials(order: int) -> np.ndarray:
    """log C(a, k) for k = 0..a, each within 4 ulp: the integers are exact before the logarithm."""
    values = np.empty(order + 1)
    coefficient = 1
    for k in range(order + 1):
        values[k] = math.log(coefficient)
        coefficient = coefficient * (order - k) // (k + 1)
    return values
