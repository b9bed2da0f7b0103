"""Promises of other people's proofs: (epsilon, delta)-DP and zero-concentrated DP.

A promise has an upper bound only. It is stated under an adjacency, and it may keep its source.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from dpacct import validate
from dpacct.mechanisms.pure import LARGEST_EPSILON, Promise, source_of_promise, two_atoms
from dpacct.numerics.rounding import decimal
from dpacct.pairs.atoms import MOST_RHO, concentrated_pair
from dpacct.pairs.dominating import Direction, DominatingPair, LossBound
from dpacct.rounds import Adjacency, AdjacencyName


@dataclass(frozen=True, init=False, repr=False, slots=True)
class ApproximateDP(Promise):
    """A release that somebody else proved (epsilon, delta)-DP. It has an upper bound only.

    Args:
        epsilon: of one release, 0 to 600, under ``adjacency``.
        delta: of one release, in (0, 1). No epsilon is enough for a project at a smaller delta.
        adjacency: the neighboring relation of that proof.
        source: where the promise was found. It does not change the cost, or what is equal.
    Raises:
        InvalidParameter: a value out of range.
    Source: Kairouz, Oh, Viswanath 2015 (arXiv:1311.0776), theorem 3.4.
    """

    epsilon: float
    delta: float
    adjacency: Adjacency
    source: str = field(compare=False)

    def __init__(
        self,
        epsilon: float,
        delta: float,
        adjacency: Adjacency | AdjacencyName = Adjacency.ADD_REMOVE,
        *,
        source: str = "",
    ) -> None:
        noun, ends = "the epsilon of one release", (0.0, LARGEST_EPSILON)
        object.__setattr__(self, "epsilon", validate.within("epsilon", epsilon, noun, ends))
        object.__setattr__(self, "delta", validate.delta(delta))
        object.__setattr__(self, "adjacency", Adjacency.parse(adjacency))
        object.__setattr__(self, "source", source_of_promise(source))

    @property
    def loss_bound(self) -> LossBound:
        """Epsilon and delta."""
        return LossBound(decimal(self.epsilon), decimal(self.delta))

    def proven_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return two atoms and an infinite loss of mass delta."""
        del direction
        return {two_atoms(self.epsilon, self.delta): 1}


@dataclass(frozen=True, init=False, repr=False, slots=True)
class ZeroConcentratedDP(Promise):
    """A release that somebody else proved rho-zCDP. It has an upper bound only.

    Args:
        rho: of one release, 1e-8 to 150, under ``adjacency``.
        adjacency: the neighboring relation of that proof.
        source: where the promise was found. It does not change the cost, or what is equal.
    Error: the pair's profile lies up to 1e-5 (relative) above the hull of the conversion.
    Raises:
        InvalidParameter: a value out of range.
    Source: Bun, Steinke 2016 (arXiv:1605.02065), definition 1.1. Conversion at each order: Canonne,
        Kamath, Steinke 2020 (arXiv:2004.00010), proposition 12.
    """

    rho: float
    adjacency: Adjacency
    source: str = field(compare=False)

    def __init__(
        self,
        rho: float,
        adjacency: Adjacency | AdjacencyName = Adjacency.ADD_REMOVE,
        *,
        source: str = "",
    ) -> None:
        ends = (1e-8, MOST_RHO)
        object.__setattr__(self, "rho", validate.within("rho", rho, "rho of zCDP", ends))
        object.__setattr__(self, "adjacency", Adjacency.parse(adjacency))
        object.__setattr__(self, "source", source_of_promise(source))

    def proven_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return the pair of the hull of the conversion. In a schedule their rhos add up."""
        del direction
        return {concentrated_pair(self.rho): 1}
