"""Fixed-size sampling without replacement, one client replaced: moments and a published bound.

Here s is the noise standard deviation in units of the shift, so half the noise multiplier.
"""

from __future__ import annotations

import math

from mpmath import mp, mpf

from tests.oracles.panels import integrate, panels
from tests.oracles.sampled_gaussian import DIGITS, RELATIVE_DIGITS


def symmetrized_excess(order: float, q: float, s: float) -> mpf:
    """E_Q[(P/Q)^a] - 1 for the pair of the trade-off function C_q(Gaussian); any real a.

    The pair has loss log r with density phi r (under P) for x > 1/2, the mirror image with
    density phi, and the remaining mass a0 at loss zero, so
    E = integral over x > 1/2 of phi (r^a + r^(1-a)) + a0, and subtracting
    1 = a0 + integral of phi (1 + r) leaves phi (r^a - r)(1 - r^-a).
    Source: Dong, Roth, Su 2022 (arXiv:1905.02383), section 4.1.
    """
    tiny = abs(order * (order - 1)) * q * q * min(1.0, 1 / (s * s))
    lost = max(0.0, -math.log10(tiny))
    with mp.workdps(math.ceil(DIGITS + lost)):
        a, rate, std = mpf(order), mpf(q), mpf(s)
        inverse = 1 / std**2

        def f(x: mpf) -> mpf:
            log_ratio = mp.log(1 + rate * (mp.exp((x - 0.5) * inverse) - 1))
            power = mp.exp(a * log_ratio)
            return mp.exp(-x * x * inverse / 2) * (power - mp.exp(log_ratio)) * (1 - 1 / power)

        exponents = (0.0, 1.0, order, 1.0 - order)
        intervals = panels(exponents, q, s, RELATIVE_DIGITS + lost + 2, start=0.5)
        return integrate(f, intervals) / (std * mp.sqrt(2 * mp.pi))


def symmetrized_renyi(order: float, q: float, s: float) -> mpf:
    """Renyi divergence of the pair of C_q(Gaussian): log(E) / (a - 1)."""
    beyond = symmetrized_excess(order, q, s)
    with mp.workdps(DIGITS):
        return mp.log1p(beyond) / (mpf(order) - 1)


def _log_sum(order: int, q: float, s: float) -> mpf:
    """(a - 1) times the bound of theorem 9 at an integer order a >= 1."""
    rate, inverse = mpf(q), 1 / mpf(s) ** 2
    total = mpf(1)
    if order >= 2:
        growth = mp.exp(inverse)  # e^{e_2}, e_j = j / (2 s^2)
        total += rate**2 * mp.binomial(order, 2) * min(4 * (growth - 1), 2 * growth)
    for j in range(3, order + 1):
        total += 2 * rate**j * mp.binomial(order, j) * mp.exp((j - 1) * j * inverse / 2)
    return mp.log(total)


def wang_renyi(order: float, q: float, s: float) -> mpf:
    """Upper bound on the Renyi divergence, linear in (a - 1) R(a) between integer orders.

    Source: Wang, Balle, Kasiviswanathan 2019 (arXiv:1808.00087), theorem 9 with eps(inf)
    infinite; corollary 10 for the interpolation.
    """
    with mp.workdps(DIGITS):
        below = math.floor(order)
        weight = mpf(order) - below
        value = (1 - weight) * _log_sum(below, q, s)
        if weight > 0:
            value += weight * _log_sum(below + 1, q, s)
        return value / (mpf(order) - 1)
