"""Error rates of likelihood ratio tests of sampled Gaussian rounds, in x space.

With the client the density of a round is phi r, without it phi (see `sampled_gaussian`). By the
lemma of Neyman and Pearson no test with the same false positive rate is right more often than the
one that accuses where the likelihood ratio exceeds a level, and r increases in x.
"""

from __future__ import annotations

from typing import NamedTuple

from mpmath import mp, mpf

from tests.oracles.sampled_gaussian import _tail

DIGITS = 40


class Rates(NamedTuple):
    """Of one test."""

    fpr: mpf
    tpr: mpf


def gaussian_tpr(fpr: float, mu: float) -> mpf:
    """Phi(Phi^-1(FPR) + mu), the best TPR against everybody in every round.

    Source: Dong, Roth, Su 2022 (arXiv:1905.02383), definition 2.6.
    """
    with mp.workdps(DIGITS):
        quantile = mp.sqrt(2) * mp.erfinv(2 * mpf(fpr) - 1)
        return mp.ncdf(quantile + mpf(mu))


def gaussian_guess(prior: float, mu: float) -> mpf:
    """The best guess which of N(0, 1) and N(mu, 1) it is, the second with this prior."""
    with mp.workdps(DIGITS):
        p, scale = mpf(prior), mpf(mu)
        odds = mp.log(p / (1 - p)) / scale
        return p * mp.ncdf(scale / 2 + odds) + (1 - p) * mp.ncdf(scale / 2 - odds)


def one_round(edge: float, q: float, s: float, *, accuse_presence: bool) -> Rates:
    """The test that accuses of presence where x > edge, or of absence where x < edge."""
    with mp.workdps(DIGITS):
        rate, std, x = mpf(q), mpf(s), mpf(edge)
        absent = _tail(x / std)
        present = (1 - rate) * absent + rate * _tail((x - 1) / std)
        return Rates(absent, present) if accuse_presence else Rates(1 - present, 1 - absent)


def two_rounds(
    level: float,
    first: tuple[float, float],
    second: tuple[float, float],
    *,
    accuse_presence: bool,
) -> Rates:
    """The test that compares the sum of both log r with a level; (q, s) of both rounds.

    The inner probability is a normal tail, the outer integral a trapezoid sum of a smooth
    function, which converges exponentially.
    """
    with mp.workdps(DIGITS):
        (q, s), (rate, std) = (tuple(map(mpf, pair)) for pair in (first, second))
        step = s / 16
        low, high = int(-14 * s / step), int((14 * s + 1) / step) + 1
        absent = present = mpf(0)
        for k in range(low, high + 1):
            x = k * step
            ratio = 1 - q + q * mp.exp((2 * x - 1) / (2 * s * s))
            weight = mp.npdf(x / s) * step / s
            # r_2 > e^level / r_1 is a half-line in the second round's x.
            needed = (mp.exp(level) / ratio - 1 + rate) / rate
            if needed <= 0:
                tail = moved = mpf(1)
            else:
                edge = mpf(0.5) + std**2 * mp.log(needed)
                tail, moved = _tail(edge / std), _tail((edge - 1) / std)
            absent += weight * tail
            present += weight * ratio * ((1 - rate) * tail + rate * moved)
        return Rates(absent, present) if accuse_presence else Rates(1 - present, 1 - absent)
