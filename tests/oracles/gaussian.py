"""The Gaussian mechanism with everybody in every round, exactly."""

from __future__ import annotations

from mpmath import mp, mpf

DIGITS = 50


def delta(epsilon: float, mu: float) -> mpf:
    """delta(eps) = Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu); mu = shift / noise std.

    T rounds are one with mu sqrt(T).
    Source: Balle, Wang 2018 (arXiv:1805.06530), theorem 8.
    """
    with mp.workdps(2 * DIGITS):
        eps, scale = mpf(epsilon), mpf(mu)
        head = mp.ncdf(scale / 2 - eps / scale)
        return head - mp.exp(eps) * mp.ncdf(-scale / 2 - eps / scale)


def epsilon(target: float, mu: float) -> mpf:
    """The eps >= 0 at which delta(eps) is the target; 0 where delta(0) is not above it."""
    with mp.workdps(2 * DIGITS):
        goal = mpf(target)
        if delta(0, mu) <= goal:
            return mpf(0)
        low, high = mpf(0), mpf(1)
        while delta(high, mu) > goal:
            low, high = high, 2 * high
        for _ in range(170):
            middle = (low + high) / 2
            if delta(middle, mu) > goal:
                low = middle
            else:
                high = middle
        return high
