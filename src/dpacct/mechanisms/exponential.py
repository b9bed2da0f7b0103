"""The exponential mechanism: a choice among candidates by their scores."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from dpacct.mechanisms.pure import release_epsilon
from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, decimal
from dpacct.pairs.atoms import AtomicPair
from dpacct.pairs.dominating import Direction, DominatingPair, LossBound, Mechanism
from dpacct.pairs.half_power import HalfPowerPair
from dpacct.rounds import Adjacency, AdjacencyName

# The place of t, as a share of epsilon.
_SHARE = 0.6


@dataclass(frozen=True, init=False, repr=False, slots=True)
class ExponentialMechanism(Mechanism):
    """One candidate y, chosen with probability proportional to e^{epsilon u(y) / (2 D)}.

    The unit of the sensitivity is D: the score u of a candidate differs by at most D between
    neighbors. Where all scores rise or fall together, e^{epsilon u(y) / D} has the same cost.
    Report noisy max with Gumbel noise of scale 2 D / epsilon is the same release. With Laplace or
    exponential noise it is another one.

    Args:
        epsilon: of one release, 1e-10 to 600.
        adjacency: the neighboring relation under which D holds.
    Raises:
        InvalidParameter: a value out of range.
    Source: Dong, Durfee, Rogers 2020 (arXiv:1909.13830), section 3, and
        docs/derivations/mechanisms.md.
    """

    epsilon: float
    adjacency: Adjacency
    # Scores that depend on earlier releases choose t again.
    has_choice = True

    def __init__(
        self,
        epsilon: float,
        adjacency: Adjacency | AdjacencyName = Adjacency.ADD_REMOVE,
    ) -> None:
        object.__setattr__(self, "epsilon", release_epsilon(epsilon))
        object.__setattr__(self, "adjacency", Adjacency.parse(adjacency))

    @property
    def loss_bound(self) -> LossBound:
        """Epsilon."""
        return LossBound(decimal(self.epsilon))

    def proven_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return the pair of all losses in an interval of length epsilon."""
        del direction
        return {HalfPowerPair(self.epsilon, 0.0): 1}

    def achieved_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return the losses t and t - epsilon, t = 0.6 epsilon.

        The scores of some candidates rise by D, and those of all others fall by D. The other
        scores decide t. Near this one the cost of five to a thousand releases is largest.
        """
        pair = self.pair_at(_SHARE)
        return {pair if direction is Direction.REMOVE else pair.swapped(): 1}

    def pair_at(self, share: float) -> AtomicPair:
        """Return the pair of the losses t and t - epsilon, t = ``share`` * epsilon."""
        high = share * self.epsilon
        # P(L = t) = (1 - e^{t - eps}) / (1 - e^{-eps}).
        top = math.expm1(high - self.epsilon) / math.expm1(-self.epsilon)
        rest = -math.exp(high - self.epsilon) * math.expm1(-high) / -math.expm1(-self.epsilon)
        losses = np.array([high, high - self.epsilon])
        error = 8 * FUNCTION_ERROR + UNIT * (8 + 4 * self.epsilon)
        return AtomicPair(losses, np.array([top, rest]), 0.0, 4 * UNIT * self.epsilon, error)

    def alone_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return the proven pair: at each epsilon other scores, with another t, reach its delta."""
        return self.proven_pairs(direction)
