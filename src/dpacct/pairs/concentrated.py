"""The pair that dominates every rho-zCDP release, and the profile of such releases.

Renyi divergences of order a are at most a rho. For each order a > 1 that bounds delta(eps), and the
convex hull of the least of these bounds is the profile of a pair. Releases with rho_1, rho_2, ...
are together (rho_1 + rho_2 + ...)-zCDP, which is less than their pairs compose to, so `pairs_of`
adds their rhos up. Derivation: docs/derivations/mechanisms.md.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from dpacct.errors import Unsupported
from dpacct.numerics.rounding import FUNCTION_ERROR, Array, Bounds
from dpacct.pairs.atoms import AtomicPair, symmetric_profile
from dpacct.pairs.dominating import AdditivePair

# Losses up to 600 matter then, and e^600 is a double.
MOST_RHO = 150.0

# Points for each standard deviation of the loss. Beyond the last point e^-_FAR of mass is left.
_POINTS, _FAR = 400, 280.0
_HALVINGS, _WIDEST = 60, 40.0
# Relative error of the conversion's exponent, which is below 300 in size.
_ROUNDING = 1e-12


class ConcentratedPair(AtomicPair, AdditivePair):
    """The pair of the module's head, as atoms. `concentrated_pair` makes it."""

    def __init__(self, rho: float) -> None:
        spread = math.sqrt(2 * rho)
        last = rho + 2 * math.sqrt(rho * _FAR)
        epsilons = np.linspace(0.0, last, math.ceil(last / spread * _POINTS) + 2)
        deltas = concentrated_delta(rho, epsilons)
        # The Kullback-Leibler divergence is at most rho: Pinsker's inequality.
        deltas[0] = min(deltas[0], math.sqrt(rho / 2) * (1 + _ROUNDING))
        super().__init__(*symmetric_profile(epsilons, deltas))
        self.rho = rho

    def with_sum(self, rho: float) -> ConcentratedPair:
        """See `AdditivePair`."""
        return concentrated_pair(rho)

    def renyi_moment(self, order: float) -> Bounds:
        """Return bounds for all rho-zCDP releases: (a - 1) a rho and 0."""
        exponent = (order - 1) * order * self.rho * (1 + FUNCTION_ERROR)
        return Bounds(np.array(min(0.0, exponent)), np.array(max(0.0, exponent)))


@lru_cache(maxsize=64)
def concentrated_pair(rho: float) -> ConcentratedPair:
    """Return the pair that dominates every rho-zCDP release.

    Raises:
        Unsupported: rho exceeds `MOST_RHO`.
    """
    if rho > MOST_RHO:
        raise Unsupported(
            f"promises of zCDP with a rho of {rho:.6g} in all exceed {MOST_RHO:g}, beyond which "
            f"their ratios of probabilities overflow; the accountant rdp covers them"
        )
    return ConcentratedPair(rho)


def concentrated_delta(rho: float, epsilons: Array) -> Array:
    """Return upper bounds of delta at each epsilon >= 0, by the best order that a search finds.

    delta(eps) <= e^{(a - 1)(a rho - eps)} (1 - 1/a)^a / (a - 1) for each order a > 1. The logarithm
    has the derivative (2 a - 1) rho - eps + log(1 - 1/a), which increases in a.
    """
    low, high = np.full_like(epsilons, -_WIDEST), np.full_like(epsilons, _WIDEST)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        gap = np.exp(middle)
        rising = (2 * gap + 1) * rho - epsilons - np.log1p(1 / gap) > 0
        low, high = np.where(rising, low, middle), np.where(rising, middle, high)
    gap = np.exp(high)
    exponent = gap * ((1 + gap) * rho - epsilons) - np.log(gap) - (1 + gap) * np.log1p(1 / gap)
    return np.minimum(np.exp(exponent) * (1 + _ROUNDING), 1.0)
