"""Pairs whose loss takes finitely many values: atoms.

`AtomicPair` holds any finite law of losses, with bounds of its rounding. `profile_of_knots` builds
the pair of a piecewise linear profile, which dominates every profile below its points.
`ConcentratedPair` is that of all rho-zCDP releases. Derivation: docs/derivations/mechanisms.md.

`between` returns two such pairs around a profile that is known at knots.

Rule 1, above: H lies below the chords between knots, which are the profile of a pair.
Rule 2, below: between two knots, H lies above the prolonged chords of both neighboring intervals.
A function that is linear in between is below H if at both knots it is lower by as much as the chord
is above the place where the prolonged chords meet.

Derivation: docs/derivations/profiles.md.
"""

from __future__ import annotations

import math
from functools import cached_property, lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpacct.budget import Interval
from dpacct.errors import InvalidParameter, NotConverged
from dpacct.numerics.fourier import shift_of_nodes
from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, Array, Bounds, ComplexArray, positive_sum
from dpacct.numerics.special import dot
from dpacct.pairs.kinds import AdditivePair, GeneralPair

# A mass may underflow, and its logarithm must not be infinite.
_LEAST_MASS = 1e-300


class AtomicPair(GeneralPair):
    """A pair with P(L = losses[i]) = masses[i], and Q(L = losses[i]) = masses[i] e^{-losses[i]}.

    Args:
        losses: finite, shape (n,), in any order.
        masses: of P, positive, shape (n,). With ``infinite_mass`` they add up to 1.
        infinite_mass: an upper bound of P(L = infinity).
        loss_error: a bound of the absolute error of each loss.
        mass_error: a bound of the relative error of each mass.
    Raises:
        InvalidParameter: shapes differ, or a loss or a mass is out of range.

    Pairs are equal if all their numbers are.
    """

    def __init__(
        self,
        losses: Array,
        masses: Array,
        infinite_mass: float = 0.0,
        loss_error: float = 0.0,
        mass_error: float = 4 * UNIT,
    ) -> None:
        self.losses = np.array(losses, dtype=np.float64)
        self.masses = np.array(masses, dtype=np.float64)
        if self.losses.ndim != 1 or self.losses.shape != self.masses.shape or not len(losses):
            rule = "losses and masses are two arrays of one shape (n,), n >= 1"
            raise InvalidParameter("losses", self.losses.shape, rule)
        if not np.isfinite(self.losses).all():
            raise InvalidParameter("losses", float(np.max(self.losses)), "atoms have finite losses")
        if not (np.isfinite(self.masses).all() and (self.masses > 0.0).all()):
            raise InvalidParameter(
                "masses", float(np.min(self.masses)), "atoms have masses above 0"
            )
        self.losses.setflags(write=False)
        self.masses.setflags(write=False)
        self.infinite_mass = float(infinite_mass)
        self._loss_error, self._mass_error = float(loss_error), float(mass_error)
        self.largest_loss = float(self.losses.max()) + self._loss_error

    @cached_property
    def _key(self) -> tuple[bytes, bytes, float, float, float]:
        errors = (self.infinite_mass, self._loss_error, self._mass_error)
        return (self.losses.tobytes(), self.masses.tobytes(), *errors)

    @cached_property
    def _hash(self) -> int:
        return hash(self._key)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, AtomicPair) and self._key == other._key)

    def __repr__(self) -> str:
        return f"AtomicPair({len(self.losses)} atoms up to {self.largest_loss:.6g})"

    @property
    def errors(self) -> tuple[float, float]:
        """The absolute error of each loss and the relative error of each mass."""
        return self._loss_error, self._mass_error

    def lattice(self) -> tuple[float, float, Array, float] | None:
        """Return first loss, step, masses by place and error, if losses are equally spaced."""
        order = np.argsort(self.losses)
        losses, places = self.losses[order], np.arange(float(len(order)))
        reach = float(losses[-1] - losses[0])
        step = reach / (len(order) - 1) if reach else 0.0
        uneven = float(np.max(np.abs(losses - (losses[0] + step * places))))
        if uneven > _UNEVEN * max(reach, float(np.max(np.abs(losses)))):
            return None
        return float(losses[0]), step, self.masses[order], self._loss_error + 2 * uneven

    def swapped(self) -> AtomicPair:
        """Return the pair of the other direction, Q against P, if P has no infinite loss.

        Q has the mass that the atoms lack where P has none: an infinite loss of the new pair.
        """
        masses = np.maximum(self.masses * np.exp(-self.losses), _LEAST_MASS)
        error = self._mass_error + self._loss_error + FUNCTION_ERROR
        error += 4 * UNIT * float(np.abs(self.losses).max())
        return AtomicPair(-self.losses, masses, self.infinite_mass, self._loss_error, error)

    def delta(self, epsilon: float) -> Interval:
        """See `GeneralPair`. Error: a few roundings of each term, of losses and of masses."""
        beyond = self.losses > epsilon - self._loss_error
        loss, mass = self.losses[beyond], self.masses[beyond]
        if not loss.size:
            return Interval(0.0, min(1.0, self.infinite_mass))
        term = mass * -np.expm1(np.minimum(epsilon - loss, 0.0))
        total, sum_error = positive_sum(term)
        gap = np.minimum(1.0, np.exp(np.minimum(epsilon - loss, 0.0)))
        off = mass * (self._loss_error + 2 * UNIT * (abs(epsilon) + np.abs(loss)))
        off = 1.01 * dot(gap, off)
        slack = (sum_error + self._mass_error + FUNCTION_ERROR + 4 * UNIT) * total + off
        upper = (total + slack + self.infinite_mass) * (1 + 4 * UNIT)
        return Interval(max(0.0, total - slack), min(1.0, upper))

    def falling(self, epsilon: float) -> float:
        """Return about minus the derivative of delta, e^eps Q(L > eps)."""
        beyond = self.losses > epsilon
        return dot(self.masses[beyond], np.exp(epsilon - self.losses[beyond]))

    def atoms(self) -> AtomicPair:
        """See `GeneralPair`: all but infinite losses."""
        if not self.infinite_mass:
            return self
        return AtomicPair(self.losses, self.masses, 0.0, *self.errors)

    def density_decay(self, tilt: float, frequencies: Array) -> Array:
        """See `GeneralPair`."""
        del tilt
        return np.zeros_like(frequencies)

    def _tilted(self, tilt: float) -> tuple[float, Array, Array]:
        """Return log M(c), and weights of e^{cL} P with their relative errors, shape (n,)."""
        log_mass = self._log_masses
        exponent = log_mass + tilt * self.losses
        top = float(exponent.max())
        weights = np.exp(np.maximum(exponent - top, -745.0))
        total, sum_error = positive_sum(weights)
        size = np.abs(log_mass) + np.abs(tilt * self.losses) + abs(top)
        relative = self._mass_error + abs(tilt) * self._loss_error + 2 * FUNCTION_ERROR
        error = relative + sum_error + 4 * UNIT * (size + np.abs(exponent))
        return top + math.log(total), weights / total, error

    @cached_property
    def _log_masses(self) -> Array:
        return np.log(np.maximum(self.masses, _LEAST_MASS))

    def log_moment(self, tilts: Array) -> Bounds:
        """See `GeneralPair`."""
        values = np.empty(len(tilts))
        errors = np.empty(len(tilts))
        for k, tilt in enumerate(np.asarray(tilts, dtype=np.float64).tolist()):
            value, weights, error = self._tilted(tilt)
            values[k] = value
            errors[k] = 1.01 * dot(weights, error) + FUNCTION_ERROR * (1 + abs(value))
        return Bounds(values - errors, values + errors)

    def cumulants(self, tilt: float) -> tuple[float, float, float]:
        """See `GeneralPair`."""
        value, weights, _ = self._tilted(tilt)
        mean = dot(weights, self.losses)
        return value, mean, dot(weights, (self.losses - mean) ** 2)

    def characteristic(self, tilt: float, frequencies: Array) -> tuple[ComplexArray, Array]:
        """See `GeneralPair`."""
        _, weights, error = self._tilted(tilt)
        # Each weight is off by its own error, and all by that of their sum.
        error = error + 1.01 * dot(weights, error) + 4 * UNIT
        return shift_of_nodes(frequencies, self.losses, weights, error, self._loss_error)


# The profile is raised by this share, which pays for the rounding of slopes and of their sums.
_RAISED = 1e-10


# Compositions of lattices are exact up to so many losses of one kind, and in all.
_MOST_OF_ONE, _MOST_LOSSES = 20_000, 200_000
# Losses count as equally spaced if they are off by this share of their range.
_UNEVEN = 1e-14


@lru_cache(maxsize=16)
def convolved(pairs: tuple[tuple[AtomicPair, int], ...]) -> AtomicPair | None:
    """Return the composition of pairs with few, equally spaced losses, or None for others.

    None as well if all its masses are below 1e-300: then no loss is left to count.

    Error: masses are sums of positive products, each rounded. Masses below 1e-300 count as infinite
        losses.
    """
    total = 1
    for pair, count in pairs:
        size = count * (len(pair.losses) - 1) + 1
        total *= size
        if size > _MOST_OF_ONE or total > _MOST_LOSSES:
            return None
    losses, masses = np.zeros(1), np.ones(1)
    kept, loss_error, mass_error = 0.0, 0.0, 16 * UNIT
    for pair, count in pairs:
        lattice = pair.lattice()
        if lattice is None:
            return None
        first, step, each, uneven = lattice
        some = _power(each, count)
        spread = count * first + step * np.arange(float(len(some)))
        losses = np.add.outer(losses, spread).ravel()
        masses = np.multiply.outer(masses, some).ravel()
        far = float(np.max(np.abs(spread)))
        loss_error += count * uneven + 8 * UNIT * (far + float(np.max(np.abs(losses))))
        # Products of n factors, and sums of as many terms as the shorter factor has, log2 n times.
        mass_error += count * pair.errors[1] + UNIT * 4 * len(some) * (math.log2(count) + 2)
        kept += count * math.log1p(-min(pair.infinite_mass, 1 - UNIT))
    held = masses >= _LEAST_MASS
    if not held.any():
        return None
    infinite = -math.expm1(kept) * (1 + 16 * UNIT * (len(pairs) + 1))
    infinite += _LEAST_MASS * int(np.sum(~held))
    return AtomicPair(losses[held], masses[held], min(infinite, 1.0), loss_error, mass_error)


def _power(masses: Array, count: int) -> Array:
    """Return the masses of the sum of ``count`` independent places."""
    power, square = np.ones(1), masses
    while count:
        if count % 2:
            power = np.convolve(power, square)
        count //= 2
        if count:
            square = np.convolve(square, square)
    return power


class Atoms(NamedTuple):
    """Losses, masses of P, infinite mass, and errors, as for `AtomicPair`."""

    losses: Array
    masses: Array
    infinite_mass: float
    loss_error: float
    mass_error: float


def profile_of_knots(
    epsilons: Array,
    deltas: Array,
    others: Array | None = None,
    other_deltas: Array | None = None,
    *,
    least: bool = False,
) -> Atoms:
    """Return the atoms of the pair whose profile is the lower convex hull of some points.

    Every profile U(k) = E_Q(e^L - k)_+ is convex in k = e^eps. So it lies below the hull of points
    above it, which is the profile of atoms. Left of k = 1 it is 1 - k + k S(1/k), with S that of
    the other direction: lines stay lines, and an atom of S at log k of mass m under its Q is one
    of mass m under P at -log k. At k = 1, U lies below the chord of any knot on either side.

    Args:
        epsilons: increasing from 0 on, shape (n,).
        deltas: upper bounds of the profile there. The last one becomes the mass of infinite loss.
        others, other_deltas: the same of the other direction. Default: a symmetric profile.
        least: round down, for points of a function that is linear in between and below a profile.
    """
    share = 1 - _RAISED if least else 1 + _RAISED
    own = np.minimum(np.asarray(deltas, dtype=np.float64) * share, 1.0)
    other = own if other_deltas is None else np.minimum(other_deltas * share, 1.0)
    others = epsilons if others is None else others
    # k - 1, of which small differences keep their digits.
    x, y = np.expm1(epsilons), np.expm1(others)
    # At k = 1: the hull of both sides together.
    places = np.concatenate([(-y / (1 + y))[:0:-1], [0.0], x[1:]])
    values = np.concatenate([((y + other) / (1 + y))[:0:-1], [min(own[0], other[0])], own[1:]])
    # Far left the places round to the same number.
    places, apart = np.unique(places, return_index=True)
    values = values[apart]
    hull = lower_hull(places, values)
    top = float(np.interp(0.0, places[hull], values[hull]))
    slopes, losses, masses = 0.0, [0.0], [1 - top]
    for places, known, size, sign in ((x, own, epsilons, 1), (y, other, others, -1)):
        values = np.append(top, known[1:])
        hull = lower_hull(places, values)
        slope = np.append(np.diff(values[hull]) / np.diff(places[hull]), 0.0)
        slopes += float(slope[0])
        under_q = np.diff(slope)
        losses += [*(sign * size[hull[1:]])]
        masses += [*(under_q * (1 + places[hull[1:]]) if sign > 0 else under_q)]
    masses[0] += slopes
    places_of_mass, weights = np.array(losses), np.array(masses)
    some = weights > _LEAST_MASS
    errors = (4 * UNIT * float(np.abs(places_of_mass).max()), 64 * UNIT)
    return Atoms(places_of_mass[some], weights[some], float(own[-1]), *errors)


def lower_hull(x: Array, y: Array) -> NDArray[np.int64]:
    """Return the numbers of the points on the lower convex hull, x increasing."""
    hull = np.arange(len(x))
    while True:
        # A point above the chord of its neighbors is not on the hull.
        bends = np.diff(np.diff(y[hull]) / np.diff(x[hull])) > 0.0
        if bends.all():
            return hull
        hull = hull[np.concatenate([[True], bends, [True]])]


# Losses up to 600 matter then, and e^600 is a double.
MOST_RHO = 150.0

# Points for each standard deviation of the loss. Beyond the last point e^-_FAR of mass is left.
_POINTS, _FAR = 400, 280.0
_HALVINGS, _WIDEST = 60, 40.0
# Relative error of the conversion's exponent, which is below 300 in size.
_ROUNDING = 1e-12


class ConcentratedPair(AtomicPair, AdditivePair):
    """The pair that dominates every rho-zCDP release. `concentrated_pair` makes it.

    Renyi divergences of order a are at most a rho. For each order a > 1 that bounds delta(eps), and
    the convex hull of the least of these bounds is the profile of a pair. Releases with rho_1,
    rho_2, ... are together (rho_1 + rho_2 + ...)-zCDP, which is less than their pairs compose to,
    so `pairs_of` adds their rhos up.
    """

    def __init__(self, rho: float) -> None:
        spread = math.sqrt(2 * rho)
        last = rho + 2 * math.sqrt(rho * _FAR)
        epsilons = np.linspace(0.0, last, math.ceil(last / spread * _POINTS) + 2)
        deltas = concentrated_delta(rho, epsilons)
        # The Kullback-Leibler divergence is at most rho: Pinsker's inequality.
        deltas[0] = min(deltas[0], math.sqrt(rho / 2) * (1 + _ROUNDING))
        super().__init__(*profile_of_knots(epsilons, deltas))
        self.rho = rho

    def with_sum(self, rho: float) -> AdditivePair:
        """See `AdditivePair`."""
        return concentrated_pair(rho)

    def renyi_moment(self, order: float) -> Bounds:
        """Return bounds for all rho-zCDP releases: (a - 1) a rho and 0."""
        exponent = (order - 1) * order * self.rho * (1 + FUNCTION_ERROR)
        return Bounds(np.array(min(0.0, exponent)), np.array(max(0.0, exponent)))


class LargeConcentratedPair(AdditivePair):
    """The same for a rho above `MOST_RHO`, by bounds of delta and of moments alone.

    Ratios of probabilities overflow there, so it has no atoms, and composes by Renyi moments.
    """

    def __init__(self, rho: float) -> None:
        self.rho = rho

    with_sum = ConcentratedPair.with_sum
    renyi_moment = ConcentratedPair.renyi_moment

    def delta(self, epsilon: float) -> Interval:
        """See `GeneralPair`."""
        upper = float(concentrated_delta(self.rho, np.array([epsilon]))[0])
        # The exponent is a difference of numbers up to about (rho + eps) (1 + eps / rho).
        error = 64 * UNIT * (self.rho + epsilon) * (1 + epsilon / self.rho)
        return Interval(0.0, min(1.0, upper * math.exp(min(error, 600.0)) + 1e-300))

    def log_moment(self, tilts: Array) -> Bounds:
        """See `GeneralPair`: a (a - 1) rho at order a = 1 + c, or 0."""
        exponent = tilts * (1 + tilts) * self.rho
        exponent = exponent + 4 * FUNCTION_ERROR * np.abs(exponent)
        return Bounds(np.minimum(0.0, exponent), np.maximum(0.0, exponent))

    def cumulants(self, tilt: float) -> tuple[float, float, float]:
        """See `GeneralPair`: those of a Gaussian loss."""
        return tilt * (1 + tilt) * self.rho, (1 + 2 * tilt) * self.rho, 2 * self.rho

    def characteristic(self, tilt: float, frequencies: Array) -> tuple[ComplexArray, Array]:
        """See `GeneralPair`."""
        del tilt, frequencies
        raise NotConverged("promises of zCDP with a large rho have moments alone")


@lru_cache(maxsize=64)
def concentrated_pair(rho: float) -> ConcentratedPair | LargeConcentratedPair:
    """Return the pair that dominates every rho-zCDP release."""
    return ConcentratedPair(rho) if rho <= MOST_RHO else LargeConcentratedPair(rho)


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


# A pair that dominates, and one that is dominated.
Between = tuple[AtomicPair, AtomicPair]


class Side(NamedTuple):
    """Bounds of delta of one direction at knots, from epsilon 0 on. Shapes (n,)."""

    epsilons: Array
    lower: Array
    upper: Array


def between(own: Side, other: Side) -> Between:
    """Return the two finite pairs around a direction, of which ``other`` is the other one."""
    above = profile_of_knots(own.epsilons, own.upper, other.epsilons, other.upper)
    below = profile_of_knots(*_lowered(own, other), *_lowered(other, own), least=True)
    return AtomicPair(*above), AtomicPair(*below)


def _lowered(own: Side, other: Side) -> tuple[Array, Array]:
    """Return knots and values of a function below H that is linear in between. See Rule 2."""
    k = np.exp(own.epsilons)
    # One more knot on either side: that of the other direction next to k = 1, and H >= 0 beyond.
    before = math.exp(-other.epsilons[1])
    first = 1 - before + before * other.upper[1]
    left_k, left_h = np.concatenate([[before], k[:-2]]), np.concatenate([[first], own.upper[:-2]])
    here, there = k[:-1], k[1:]
    low, high = own.lower[:-1], own.lower[1:]
    rising = (low - left_h) / (here - left_k)
    falling = np.concatenate([(own.upper[2:] - high[:-1]) / (k[2:] - there[:-1]), [0.0]])
    chord = (high - low) / (there - here)
    # Distances from `here` at which the prolonged chords meet. NaN: both are the chord itself.
    with np.errstate(invalid="ignore", divide="ignore"):
        meet = (high - low - falling * (there - here)) / (rising - falling)
    meet = np.clip(np.nan_to_num(meet, nan=0.0), 0.0, there - here)
    rest = there - here - meet
    gap = np.maximum(0.0, np.maximum((chord - rising) * meet, (falling - chord) * rest))
    gap = np.concatenate([[0.0], gap, [0.0]])
    lowered = own.lower - np.maximum(gap[:-1], gap[1:])
    # A line that ends below zero is not lower once that end is raised to zero: it gets a knot
    # where it is zero, rounded to the left.
    low, high, x = lowered[:-1], lowered[1:], np.expm1(own.epsilons)
    share = low / np.where(low > high, low - high, 1.0) * (1 - 1e-9)
    zero = np.log1p(x[:-1] + np.diff(x) * np.clip(share, 0.0, 1.0)) * (1 - 8 * UNIT)
    crossing = (low > 0.0) & (high < 0.0)
    known = crossing & (own.epsilons[:-1] < zero) & (zero < own.epsilons[1:])
    values = np.maximum(0.0, lowered)
    values[:-1][crossing & ~known] = 0.0
    values[1:][low < 0.0] = 0.0
    number = np.flatnonzero(known) + 1
    return np.insert(own.epsilons, number, zero[known]), np.insert(values, number, 0.0)


class HullPair(GeneralPair):
    """A pair that knows delta at once, and atoms for compositions when they are needed."""

    @cached_property
    def hull(self) -> AtomicPair:
        """The atoms."""
        raise NotImplementedError

    def atoms(self) -> AtomicPair:
        """See `GeneralPair`."""
        return self.hull.atoms()

    def log_moment(self, tilts: Array) -> Bounds:
        """See `GeneralPair`."""
        return self.hull.log_moment(tilts)

    def cumulants(self, tilt: float) -> tuple[float, float, float]:
        """See `GeneralPair`."""
        return self.hull.cumulants(tilt)

    def characteristic(self, tilt: float, frequencies: Array) -> tuple[ComplexArray, Array]:
        """See `GeneralPair`."""
        return self.hull.characteristic(tilt, frequencies)

    def density_decay(self, tilt: float, frequencies: Array) -> Array:
        """See `GeneralPair`."""
        return self.hull.density_decay(tilt, frequencies)
