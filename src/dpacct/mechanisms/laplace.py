"""Laplace noise on numbers with a bounded l1 norm."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.pairs.dominating import Direction, DominatingPair, Mechanism
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
        adjacency: Adjacency | AdjacencyName | str = Adjacency.ADD_REMOVE,
    ) -> None:
        relation = Adjacency.parse(adjacency)
        shift = 2.0 if relation is Adjacency.REPLACE_ONE else 1.0
        if (noise_multiplier is None) == (epsilon is None):
            rule = "Laplace noise has either a noise multiplier or an epsilon"
            raise InvalidParameter("noise_multiplier", noise_multiplier, rule)
        if noise_multiplier is None:
            low, high = validate.NOISE_MULTIPLIER_RANGE
            ends = (shift / high, shift / low)
            noise_multiplier = shift / validate.within("epsilon", epsilon, "its epsilon", ends)
        object.__setattr__(self, "noise_multiplier", validate.noise_multiplier(noise_multiplier))
        object.__setattr__(self, "adjacency", relation)

    @property
    def epsilon(self) -> float:
        """The epsilon of the release alone: the largest shift / scale of the noise."""
        return (2.0 if self.adjacency is Adjacency.REPLACE_ONE else 1.0) / self.noise_multiplier

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
