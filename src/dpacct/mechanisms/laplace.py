"""Laplace noise on numbers with a bounded l1 norm."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.numerics.rounding import decimal, decimal_above
from dpacct.pairs.dominating import Direction, DominatingPair, LossBound, Mechanism
from dpacct.pairs.half_power import HalfPowerPair
from dpacct.rounds import Adjacency, AdjacencyName


@dataclass(frozen=True, init=False, repr=False, slots=True)
class Laplace(Mechanism):
    """One release of a sum of vectors + independent Laplace noise on each number.

    The unit of the sensitivity is the largest l1 norm of one client's contribution: 1 for a
    histogram to which a client adds one entry. A contribution that comes or goes moves the sum by
    up to one unit, a replaced one by two.

    Args:
        noise_multiplier: scale of the noise / largest l1 norm of one client's contribution, 0.001
            to 1e10. The same number whatever the adjacency.
        epsilon: instead, the epsilon of the release alone under its adjacency.
        adjacency: the neighboring relation. Default: add-remove.
    Raises:
        InvalidParameter: none or both of noise and epsilon, or a value out of range.
    Source: docs/derivations/mechanisms.md.
    """

    noise_multiplier: float
    adjacency: Adjacency

    def __init__(
        self,
        noise_multiplier: float | None = None,
        *,
        epsilon: float | None = None,
        adjacency: Adjacency | AdjacencyName = Adjacency.ADD_REMOVE,
    ) -> None:
        relation = Adjacency.parse(adjacency)
        shift = _shift(relation)
        if (noise_multiplier is None) == (epsilon is None):
            rule = "Laplace noise has either a noise multiplier or an epsilon"
            raise InvalidParameter("noise_multiplier", noise_multiplier, rule)
        if noise_multiplier is None:
            low, high = validate.NOISE_MULTIPLIER_RANGE
            ends = (shift / high, shift / low)
            epsilon = validate.within("epsilon", epsilon, "its epsilon", ends)
            noise_multiplier = shift / epsilon
            while decimal(noise_multiplier) * decimal(epsilon) < shift:
                # Rounded up, so that ten releases of 0.07 cost no more than 0.7.
                noise_multiplier = math.nextafter(noise_multiplier, math.inf)
        object.__setattr__(self, "noise_multiplier", validate.noise_multiplier(noise_multiplier))
        object.__setattr__(self, "adjacency", relation)

    @property
    def epsilon(self) -> float:
        """The epsilon of the release alone, rounded up: the largest shift / scale of the noise."""
        return _epsilon(self.adjacency, self.noise_multiplier)

    @property
    def loss_bound(self) -> LossBound:
        """The largest shift / scale of the noise, exactly."""
        return LossBound(_exact_epsilon(self.adjacency, self.noise_multiplier))

    def scale_noise(self, factor: float) -> Laplace:
        """Return the release with ``factor`` times its noise."""
        return Laplace(factor * self.noise_multiplier, adjacency=self.adjacency)

    def proven_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return Lap(1) against Lap(0): all of the largest l1 norm in one number is the worst."""
        del direction
        return {HalfPowerPair(self.epsilon, 0.5): 1}

    def achieved_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return the same: one client contributes the largest number."""
        return self.proven_pairs(direction)


def _shift(adjacency: Adjacency) -> float:
    """Return the largest l1 distance between neighbors, in contributions."""
    return 2.0 if adjacency is Adjacency.REPLACE_ONE else 1.0


def _exact_epsilon(adjacency: Adjacency, noise_multiplier: float) -> Fraction:
    return Fraction(_shift(adjacency)) / decimal(noise_multiplier)


@lru_cache(maxsize=256)
def _epsilon(adjacency: Adjacency, noise_multiplier: float) -> float:
    return decimal_above(_exact_epsilon(adjacency, noise_multiplier))
