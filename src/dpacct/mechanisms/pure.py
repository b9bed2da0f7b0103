"""Randomized response, and promises of other people's proofs: pure, (epsilon, delta) and zCDP.

A promise has an upper bound only. It is stated under an adjacency, and it may keep its source.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, decimal
from dpacct.pairs.atoms import MOST_RHO, AtomicPair, concentrated_pair
from dpacct.pairs.dominating import Direction, DominatingPair, LossBound, Mechanism
from dpacct.rounds import Adjacency, AdjacencyName

# A larger epsilon has no meaning: its masses leave the range of doubles.
LARGEST_EPSILON = 600.0


def two_atoms(epsilon: float, delta: float = 0.0) -> AtomicPair:
    """Return the pair of all (epsilon, delta)-DP mechanisms: losses eps and -eps, and infinity."""
    top = 1 / (1 + math.exp(-epsilon))
    masses = np.array([top, math.exp(-epsilon) * top]) * (1 - delta)
    error = 2 * FUNCTION_ERROR + UNIT * (8 + 2 * epsilon)
    return AtomicPair(np.array([epsilon, -epsilon]), masses, delta, 0.0, error)


def release_epsilon(value: object) -> float:
    """Return the epsilon of one release, above 0."""
    return validate.within("epsilon", value, "the epsilon of one release", (1e-10, LARGEST_EPSILON))


def three_atoms(epsilon: float, others: int) -> AtomicPair:
    """Return the pair of randomized response with two answers and ``others`` that cost nothing.

    With D = e^eps + 1 + others the losses eps, -eps and 0 have the masses e^eps / D, 1 / D and
    others / D.
    """
    least = math.exp(-epsilon)
    whole = 1 + (1 + others) * least
    masses = np.array([1.0, least, others * least]) / whole
    error = 2 * FUNCTION_ERROR + UNIT * (12 + 2 * epsilon)
    return AtomicPair(np.array([epsilon, -epsilon, 0.0]), masses, 0.0, 0.0, error)


@dataclass(frozen=True, init=False, repr=False, slots=True)
class RandomizedResponse(Mechanism):
    """One bit per client, reported truthfully with probability e^eps / (1 + e^eps), else flipped.

    Args:
        epsilon: of one release, 1e-10 to 600. Neighboring data sets differ in the bit.
        adjacency: the neighboring relation under which a client's bit may be the other one.
        answers: the number k of possible answers, 2 to 1e6. The true one has the probability
            e^eps / (e^eps + k - 1), and the others share the rest.
    Raises:
        InvalidParameter: a value out of range.
    Source: Kairouz, Oh, Viswanath 2015 (arXiv:1311.0776), theorem 3.4, and
        docs/derivations/mechanisms.md.
    """

    epsilon: float
    adjacency: Adjacency
    answers: int

    def __init__(
        self,
        epsilon: float,
        adjacency: Adjacency | AdjacencyName = Adjacency.ADD_REMOVE,
        *,
        answers: int = 2,
    ) -> None:
        count = validate.count("answers", answers, "the number of answers", 10**6)
        if count == 1:
            raise InvalidParameter("answers", answers, "a single answer tells nothing")
        object.__setattr__(self, "epsilon", release_epsilon(epsilon))
        object.__setattr__(self, "adjacency", Adjacency.parse(adjacency))
        object.__setattr__(self, "answers", count)

    @property
    def loss_bound(self) -> LossBound:
        """Epsilon."""
        return LossBound(decimal(self.epsilon))

    def proven_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return two atoms, and with more answers one without loss."""
        del direction
        if self.answers > 2:
            return {three_atoms(self.epsilon, self.answers - 2): 1}
        return {two_atoms(self.epsilon): 1}

    def achieved_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return the same: any two true answers."""
        return self.proven_pairs(direction)


class Promise(Mechanism):
    """An upper bound that was proven elsewhere. It may be far above the truth."""

    __slots__ = ()

    def achieved_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return nothing: no data sets are known."""
        del direction
        return {}


@dataclass(frozen=True, init=False, repr=False, slots=True)
class PureDP(Promise):
    """A release that was proven epsilon-DP elsewhere. It has an upper bound only.

    Args:
        epsilon: of one release, 1e-10 to 600, under ``adjacency``.
        adjacency: the neighboring relation of that proof.
        source: where the promise was found. It does not change the cost, or what is equal.
    Raises:
        InvalidParameter: a value out of range.
    Source: Kairouz, Oh, Viswanath 2015 (arXiv:1311.0776), theorem 3.4.
    """

    epsilon: float
    adjacency: Adjacency
    source: str = field(compare=False)

    def __init__(
        self,
        epsilon: float,
        adjacency: Adjacency | AdjacencyName = Adjacency.ADD_REMOVE,
        *,
        source: str = "",
    ) -> None:
        object.__setattr__(self, "epsilon", release_epsilon(epsilon))
        object.__setattr__(self, "adjacency", Adjacency.parse(adjacency))
        object.__setattr__(self, "source", source_of_promise(source))

    @property
    def loss_bound(self) -> LossBound:
        """Epsilon."""
        return LossBound(decimal(self.epsilon))

    def proven_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return the pair of randomized response."""
        del direction
        return {two_atoms(self.epsilon): 1}


def source_of_promise(source: object) -> str:
    """Return where a promise was found: one line, or nothing."""
    return validate.line("source", source, "the source of a promise") if source != "" else ""


@dataclass(frozen=True, init=False, repr=False, slots=True)
class ApproximateDP(Promise):
    """A release that was proven (epsilon, delta)-DP elsewhere. It has an upper bound only.

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
    """A release that was proven rho-zCDP elsewhere. It has an upper bound only.

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
