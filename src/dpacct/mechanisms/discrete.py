"""Integer noise: discrete Gaussian and discrete Laplace, on one number or on a vector."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral
from typing import Self, cast

import numpy as np

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, Numbers, decimal
from dpacct.pairs.atoms import AtomicPair
from dpacct.pairs.discrete_gaussian import DiscreteGaussianPair
from dpacct.pairs.dominating import Direction, DominatingPair, LossBound, Mechanism
from dpacct.rounds import Adjacency, AdjacencyName

# Ends of sigma, and of the scale of discrete Laplace noise. The most entries and the largest shift.
_GAUSSIAN_SCALES, _LAPLACE_SCALES = (0.03, 1e5), (0.01, 1e8)
_MOST_ENTRIES, _LARGEST_SHIFT = 10**6, 10**4


@dataclass(frozen=True, init=False, repr=False, slots=True)
class _IntegerNoise(Mechanism):
    """Independent integer noise on each number of a vector of integers.

    Args:
        scale: of the noise on each number.
        shift: the integer by which each number moves at most between neighbors: one for a single
            number, a tuple for a vector. A histogram under replace-one moves by (1, -1).
        adjacency: the neighboring relation under which these shifts hold.
    Raises:
        InvalidParameter: a value out of range.
    """

    scale: float
    shift: int | tuple[int, ...]
    adjacency: Adjacency

    def __init__(
        self,
        scale: float,
        shift: int | Numbers = 1,
        adjacency: Adjacency | AdjacencyName = Adjacency.ADD_REMOVE,
    ) -> None:
        ends = self._scales()
        object.__setattr__(self, "scale", validate.within("scale", scale, "the scale", ends))
        object.__setattr__(self, "shift", _checked_shift(shift))
        object.__setattr__(self, "adjacency", Adjacency.parse(adjacency))

    @staticmethod
    def _scales() -> tuple[float, float]:
        raise NotImplementedError

    @property
    def noise_range(self) -> tuple[float, float, float]:
        """The scale and its ends."""
        return (self.scale, *self._scales())

    def scale_noise(self, factor: float) -> Self:
        """Return the release with ``factor`` times its scale."""
        return type(self)(factor * self.scale, self.shift, self.adjacency)

    def _pairs(self, pair: Callable[[float, int], DominatingPair]) -> dict[DominatingPair, int]:
        """Return the pair of each number: a vector is the composition of its coordinates."""
        shifts = self.shift if isinstance(self.shift, tuple) else (self.shift,)
        counts: dict[DominatingPair, int] = {}
        for size in sorted({abs(m) for m in shifts} - {0}):
            counts[pair(self.scale, size)] = sum(abs(m) == size for m in shifts)
        return counts

    def achieved_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return the same: one client moves every number as far as it can."""
        return self.proven_pairs(direction)


class DiscreteGaussian(_IntegerNoise):
    """Integers + noise with masses proportional to e^{-x^2 / (2 scale^2)}, scale 0.03 to 1e5.

    The unit of the sensitivity is ``shift``: the integer by which each number moves at most between
    neighbors, a tuple for a vector. The cost of a vector is that of all its coordinates. One number
    moved by their l2 norm would cost less than the truth.

    Source: Canonne, Kamath, Steinke 2020 (arXiv:2004.00010), and docs/derivations/mechanisms.md.
    """

    __slots__ = ()

    @staticmethod
    def _scales() -> tuple[float, float]:
        return _GAUSSIAN_SCALES

    def proven_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return the pair of each coordinate at its largest shift, the same in both directions."""
        del direction
        return self._pairs(DiscreteGaussianPair)


class DiscreteLaplace(_IntegerNoise):
    """Integers + noise with masses proportional to e^{-|x| / scale}, scale 0.01 to 1e8.

    The unit of the sensitivity is ``shift``: the integer by which each number moves at most between
    neighbors, a tuple for a vector. This is the two-sided geometric mechanism with
    epsilon = |shift| / scale.

    Source: Ghosh, Roughgarden, Sundararajan 2009 (arXiv:0811.2841), and
        docs/derivations/mechanisms.md.
    """

    __slots__ = ()

    @staticmethod
    def _scales() -> tuple[float, float]:
        return _LAPLACE_SCALES

    @property
    def loss_bound(self) -> LossBound:
        """The sum of the shifts' sizes / scale, exactly."""
        shifts = self.shift if isinstance(self.shift, tuple) else (self.shift,)
        return LossBound(sum(map(abs, shifts)) / decimal(self.scale))

    def proven_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return the pair of each coordinate at its largest shift, the same in both directions."""
        del direction
        return self._pairs(discrete_laplace_pair)


@lru_cache(maxsize=256)
def discrete_laplace_pair(scale: float, shift: int) -> AtomicPair:
    """Return the m + 1 losses (2 j - m) / scale, j = 0..m, of integers up to 0, between, from m on.

    With a = e^{-1/scale} the masses are a^m / (1 + a), (1 - a) / (1 + a) a^{m-j}, 1 / (1 + a).
    """
    j = np.arange(float(shift) + 1)
    fallen = np.exp(-(shift - j) / scale) / (1 + math.exp(-1 / scale))
    masses = np.maximum(fallen, 1e-300)
    masses[1:-1] *= -math.expm1(-1 / scale)
    error = 4 * FUNCTION_ERROR + 4 * UNIT * shift / scale
    return AtomicPair((2 * j - shift) / scale, masses, 0.0, 4 * UNIT * shift / scale, error)


def _checked_shift(value: object) -> int | tuple[int, ...]:
    """Return a shift: a whole number, or a tuple of them."""
    if hasattr(value, "__iter__") and getattr(value, "shape", None) != ():
        entries = tuple(_whole(entry) for entry in validate.several("shift", value, "shifts"))
        if not 0 < len(entries) <= _MOST_ENTRIES or not any(entries):
            rule = f"a vector has 1 to {_MOST_ENTRIES:g} numbers, and one of them moves"
            raise InvalidParameter("shift", entries, rule)
        return entries
    one = _whole(value)
    if one == 0:
        raise InvalidParameter("shift", value, "a number that no client moves costs nothing")
    return one


def _whole(value: object) -> int:
    whole = int(value) if isinstance(value, float) and value.is_integer() else value
    known = isinstance(whole, Integral) and not isinstance(whole, bool)
    if not (known and abs(int(cast("int", whole))) <= _LARGEST_SHIFT):
        rule = f"each number moves by a whole number, at most {_LARGEST_SHIFT:g} in size"
        raise InvalidParameter("shift", value, rule, "A tuple gives one for each number.")
    return int(cast("int", whole))
