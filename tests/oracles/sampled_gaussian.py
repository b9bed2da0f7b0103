"""The Poisson-sampled Gaussian: moments, Renyi divergences and one-round delta.

Pairs: remove is P = phi r against Q = phi; add is P = phi against Q = phi r.
"""

from __future__ import annotations

import math

from mpmath import mp, mpf

from tests.oracles.panels import integrate, panels

DIGITS = 50
RELATIVE_DIGITS = 25


def _lost_digits(order: float, q: float, s: float) -> float:
    """Upper estimate of -log10 |I(a) - 1|: what cancellation and truncation must spare."""
    tiny = abs(order * (order - 1)) * q * q * min(1.0, 1 / (s * s))
    return max(0.0, -math.log10(tiny)) if tiny > 0 else 0.0


def log_moment_closed(order: float, s: float) -> mpf:
    """log I(a) at q = 1: a (a - 1) / (2 s^2)."""
    with mp.workdps(DIGITS):
        a = mpf(order)
        return a * (a - 1) / (2 * mpf(s) ** 2)


def excess(order: float, q: float, s: float) -> mpf:
    """I(a) - 1 = E[r^a - 1 - a (r - 1)] for x ~ N(0, s^2), to full relative precision; any real a.

    E[r] = 1, so the subtracted term changes nothing but the cancellation.
    Source: definition in Mironov, Talwar, Zhang 2019 (arXiv:1908.10530), section 3.
    """
    if q == 1.0:
        with mp.workdps(DIGITS):
            return mp.expm1(log_moment_closed(order, s))
    if order in (0.0, 1.0):
        return mpf(0)
    lost = _lost_digits(order, q, s)
    with mp.workdps(math.ceil(DIGITS + lost)):
        a, rate, std = mpf(order), mpf(q), mpf(s)
        inverse = 1 / std**2

        def f(x: mpf) -> mpf:
            shift = rate * (mp.exp((x - 0.5) * inverse) - 1)
            return mp.exp(-x * x * inverse / 2) * (mp.exp(a * mp.log(1 + shift)) - 1 - a * shift)

        intervals = panels((0.0, 1.0, order), q, s, RELATIVE_DIGITS + lost + 2)
        return integrate(f, intervals) / (std * mp.sqrt(2 * mp.pi))


def log_moment(order: float, q: float, s: float) -> mpf:
    """log I(a) = log E[r^a], to full relative precision; any real a."""
    if q == 1.0:
        return log_moment_closed(order, s)
    if 0.0 < order < 1.0 and s < 0.5:
        return _log_moment_direct(order, q, s)
    beyond = excess(order, q, s)
    with mp.workdps(DIGITS):
        return mp.log1p(beyond)


def _log_moment_direct(order: float, q: float, s: float) -> mpf:
    """log of the integral of phi r^a; for 0 < a < 1, where I(a) can be close to zero."""
    with mp.workdps(DIGITS):
        a, rate, std = mpf(order), mpf(q), mpf(s)
        inverse = 1 / std**2

        def f(x: mpf) -> mpf:
            ratio = 1 - rate + rate * mp.exp((x - 0.5) * inverse)
            return mp.exp(a * mp.log(ratio) - x * x * inverse / 2)

        intervals = panels((order,), q, s, RELATIVE_DIGITS + 4)
        return mp.log(integrate(f, intervals) / (std * mp.sqrt(2 * mp.pi)))


def binomial_log_moment(order: int, q: float, s: float) -> mpf:
    """log I(a) for integer a >= 0 as log(1 + sum_k C(a,k) (1-q)^(a-k) q^k (e^{k(k-1)/(2s^2)} - 1)).

    Source: Mironov, Talwar, Zhang 2019 (arXiv:1908.10530), section 3.3.
    """
    with mp.workdps(DIGITS):
        rate, inverse = mpf(q), 1 / mpf(s) ** 2
        total = mpf(0)
        for k in range(2, order + 1):
            hit = mp.binomial(order, k) * (1 - rate) ** (order - k) * rate**k
            total += hit * mp.expm1(k * (k - 1) * inverse / 2)
        return mp.log1p(total)


def renyi_remove(order: float, q: float, s: float) -> mpf:
    """Renyi divergence of order a of phi r from phi: log I(a) / (a - 1)."""
    with mp.workdps(DIGITS):
        return log_moment(order, q, s) / (mpf(order) - 1)


def renyi_add(order: float, q: float, s: float) -> mpf:
    """Renyi divergence of order a >= 1 of phi from phi r: log I(1 - a) / (a - 1).

    1 - a is exact in floating point for every double a >= 1.
    """
    with mp.workdps(DIGITS):
        return log_moment(1.0 - order, q, s) / (mpf(order) - 1)


def renyi(order: float, q: float, s: float) -> mpf:
    """The larger of both directions: Poisson sampling, one client added or removed."""
    return max(renyi_remove(order, q, s), renyi_add(order, q, s))


def delta_remove(epsilon: float, q: float, s: float) -> mpf:
    """Hockey-stick divergence P(r > e^eps) - e^eps Q(r > e^eps) of phi r from phi.

    r exceeds e^eps where e^u > 1 + (e^eps - 1)/q, which is a half-line; both measures of it
    are normal tails.
    """
    with mp.workdps(DIGITS):
        rate, std = mpf(q), mpf(s)
        growth = mp.expm1(epsilon)
        level = 1 + growth / rate
        if level <= 0:
            return -growth
        edge = 0.5 + std**2 * mp.log(level)
        base, moved = _tail(edge / std), _tail((edge - 1) / std)
        return (1 - rate) * base + rate * moved - mp.exp(epsilon) * base


def delta_add(epsilon: float, q: float, s: float) -> mpf:
    """Hockey-stick divergence of phi from phi r: the half-line is where r < e^-eps."""
    # For q = 1 the level is e^-eps, as the difference of numbers next to one.
    with mp.workdps(DIGITS + min(int(epsilon), 1000)):
        rate, std = mpf(q), mpf(s)
        level = 1 + mp.expm1(-mpf(epsilon)) / rate
        if level <= 0:
            return mpf(0)
        edge = 0.5 + std**2 * mp.log(level)
        base, moved = _tail(-edge / std), _tail((1 - edge) / std)
        return base - mp.exp(epsilon) * ((1 - rate) * base + rate * moved)


def _tail(t: mpf) -> mpf:
    return mp.erfc(t / mp.sqrt(2)) / 2
