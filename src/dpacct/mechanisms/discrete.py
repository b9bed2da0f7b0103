"""Integer noise: discrete Gaussian and discrete Laplace, on one number or on a vector.

The pair of discrete Gaussian noise is N_Z(m, sigma^2) against N_Z(0, sigma^2), m >= 1. N_Z(m,
sigma^2) has masses e^{-(x - m)^2 / (2 sigma^2)} / S(0) at the integers, with

    S(mu) = sum over x of e^{-(x - mu)^2 / (2 sigma^2)}
          = sigma sqrt(2 pi) sum over k of e^{2 pi i k mu - 2 pi^2 sigma^2 k^2}        (Poisson).

The loss at x is m (2 x - m) / (2 sigma^2), and with mu = (1 + c) m

    M(c) = e^{c (1 + c) m^2 / (2 sigma^2)} S(mu) / S(0).

Under the tilt x has masses e^{-(x - mu)^2 / (2 sigma^2)} / S(mu). Sums over x serve for little
noise, sums over k for much. Derivation: docs/derivations/mechanisms.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral
from typing import Self, cast

import numpy as np

from dpacct import validate
from dpacct.budget import Interval
from dpacct.errors import InvalidParameter
from dpacct.numerics.fourier import shift_of_nodes
from dpacct.numerics.rounding import (
    FUNCTION_ERROR,
    UNIT,
    Array,
    Bounds,
    ComplexArray,
    Numbers,
    decimal,
    positive_sum,
)
from dpacct.pairs.atoms import AtomicPair
from dpacct.pairs.dominating import Direction, DominatingPair, GeneralPair, LossBound, Mechanism
from dpacct.rounds import Adjacency, AdjacencyName

# From this noise on, sums over k are short: their third term is below e^-44.
_MUCH_NOISE, _LEFT_OUT = 1.0, 1e-18
# Sums over x reach this many standard deviations: e^-800 is left out.
_REACH, _NOTHING = 40.0, 1e-300


@dataclass(frozen=True)
class DiscreteGaussianPair(GeneralPair):
    """The pair of the module's head. Both directions are mirror images.

    Attributes:
        scale: sigma, from 0.03 to 1e5.
        shift: m, at least 1.
    """

    scale: float
    shift: int

    @property
    def _gap(self) -> float:
        """m / sigma^2, the distance of losses."""
        return self.shift / self.scale**2

    def delta(self, epsilon: float) -> Interval:
        """See `GeneralPair`. Error: roundings of the terms, 1e-300 for masses that underflow."""
        m, variance = self.shift, self.scale**2
        first = math.floor((epsilon / self._gap + m / 2) * (1 - 8 * UNIT))
        last = max(first, m) + math.ceil(_REACH * self.scale) + 1
        if not last < 2**53:
            return Interval(0.0, _NOTHING)
        x = np.arange(float(first), float(last) + 1)
        exponent, loss = -((x - m) ** 2) / (2 * variance), self._gap * (x - m / 2)
        gap = np.maximum(loss - epsilon, 0.0)
        log_whole = math.log(self._sum(0.0))
        mass = np.exp(np.maximum(exponent - log_whole, -745.0))
        term = mass * -np.expm1(-gap)
        total, sum_error = positive_sum(term)
        relative = UNIT * (8 * np.abs(exponent) + 8 * abs(log_whole) + 64)
        off = mass * (relative * np.minimum(gap, 1.0) + 8 * UNIT * (np.abs(loss) + epsilon))
        slack = total * (sum_error + 8 * UNIT) + 1.01 * float(off.sum()) + _NOTHING
        return Interval(max(0.0, total - slack), min(1.0, total + slack))

    def _sum(self, mean: float) -> float:
        """Return S(mean), within `_sum_error`."""
        place = mean - round(mean)
        if self.scale < _MUCH_NOISE:
            return float(np.exp(-((self._window() - place) ** 2) / (2 * self.scale**2)).sum())
        return self.scale * math.sqrt(2 * math.pi) * (1 + self._ripple(place))

    def _sum_error(self, mean: float) -> float:
        """Return the relative error of S(mean): that of its place among the integers, too."""
        steep = 1 / self.scale**2 if self.scale < _MUCH_NOISE else 1e-6
        return UNIT * (128 + 4 * abs(mean) * steep)

    def _window(self) -> Array:
        width = math.ceil(_REACH * self.scale) + 1
        return np.arange(-float(width), float(width) + 1)

    def _ripple(self, place: float) -> float:
        """Return S / (sigma sqrt(2 pi)) - 1 for much noise."""
        first = 2 * math.exp(-2 * (math.pi * self.scale) ** 2)
        second = 2 * math.exp(-8 * (math.pi * self.scale) ** 2)
        return first * math.cos(2 * math.pi * place) + second * math.cos(4 * math.pi * place)

    def log_moment(self, tilts: Array) -> Bounds:
        """See `GeneralPair`. Error: that of S, relative, and roundings of the exponent."""
        values, errors = np.empty(len(tilts)), np.empty(len(tilts))
        for k, c in enumerate(np.asarray(tilts, dtype=np.float64).tolist()):
            exponent = c * (1 + c) * self.shift * self._gap / 2
            mean = (1 + c) * self.shift
            if self.scale < _MUCH_NOISE:
                ratio = math.log(self._sum(mean)) - math.log(self._sum(0.0))
                error = self._sum_error(mean) + self._sum_error(0.0)
            else:
                still = self._ripple(0.0)
                change = self._ripple(mean - round(mean)) - still
                ratio = math.log1p(change / (1 + still))
                error = ripple_error(self.scale, mean)
            values[k] = exponent + ratio
            errors[k] = error + FUNCTION_ERROR * (2 * abs(exponent) + 4 * abs(ratio))
        return Bounds(values - errors, values + errors)

    def cumulants(self, tilt: float) -> tuple[float, float, float]:
        """See `GeneralPair`."""
        value = float(self.log_moment(np.array([tilt])).upper[0])
        if self.scale >= _MUCH_NOISE:
            return value, self.shift * self._gap * (tilt + 0.5), self.shift * self._gap
        losses, weights = self._atoms(tilt)
        mean = float(weights @ losses)
        return value, mean, max(float(weights @ (losses - mean) ** 2), 1e-300)

    def _atoms(self, tilt: float) -> tuple[Array, Array]:
        """Return losses and tilted masses of the integers near the mean, for little noise."""
        mean = (1 + tilt) * self.shift
        x, place = self._window(), mean - round(mean)
        weights = np.exp(-((x - place) ** 2) / (2 * self.scale**2))
        losses = self._gap * (x + round(mean) - self.shift / 2)
        return losses, weights / float(weights.sum())

    def characteristic(self, tilt: float, frequencies: Array) -> tuple[ComplexArray, Array]:
        """See `GeneralPair`."""
        mean = (1 + tilt) * self.shift
        if self.scale < _MUCH_NOISE:
            losses, weights = self._atoms(tilt)
            x, place = self._window(), mean - round(mean)
            error = self._sum_error(mean) + UNIT * 4 * (x - place) ** 2 / self.scale**2
            error = error + UNIT * 4 * abs(mean) * (np.abs(x) + 1) / self.scale**2
            return shift_of_nodes(frequencies, losses, weights, error, 8 * UNIT * np.abs(losses))
        variance, place = self.scale**2, mean - round(mean)
        beta = frequencies * self._gap
        center = self.shift * self._gap * (tilt + 0.5)
        # e^{it (mean loss)} e^{-beta^2 sigma^2 / 2} - 1, the term k = 0, without cancellation.
        fall, angle = -variance * beta**2 / 2, frequencies * center
        grown, half = np.exp(fall), np.sin(angle / 2)
        value = np.expm1(fall) - 2 * grown * half**2 + 1j * (grown * np.sin(angle))
        nearest = np.rint(beta / (2 * math.pi))
        size = np.minimum(np.abs(fall) + np.abs(angle), 2.0) + np.abs(fall) * grown
        for step in (-1.0, 0.0, 1.0):
            k = nearest + step
            rest = beta - 2 * math.pi * k
            width = np.exp(-variance * rest**2 / 2) * (k != 0.0)
            turn = angle - 2 * math.pi * np.mod(k * place, 1.0)
            value = value + width * np.exp(1j * turn)
            # The rounding of beta moves the peak, and the mean the phase.
            off = variance * np.abs(rest) * (beta + 2 * math.pi * np.abs(k))
            size = size + width * (off + np.abs(k) * (abs(mean) + 1) * 8 + 8)
        ripple = self._ripple(place)
        shift = (value - ripple) / (1 + ripple)
        error = UNIT * (16 * size + 16 * np.abs(angle) + 16 * np.abs(fall) * grown)
        return shift, error + (_LEFT_OUT + ripple_error(self.scale, mean)) * np.minimum(beta, 1.0)


def ripple_error(scale: float, mean: float) -> float:
    """Return a bound of the error of the ripple, whose place is as uncertain as the mean."""
    return 2 * math.exp(-2 * (math.pi * scale) ** 2) * UNIT * (64 + 32 * abs(mean))


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
    """Integers with noise of masses proportional to e^{-x^2 / (2 scale^2)}, scale 0.03 to 1e5.

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
    """Integers with noise of masses proportional to e^{-|x| / scale}, scale 0.01 to 1e8.

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
