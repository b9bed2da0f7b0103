"""Two pairs with finitely many losses around a profile that is known at knots.

Rule 1, above: H lies below the chords between knots, which are the profile of a pair.
Rule 2, below: between two knots, H lies above the prolonged chords of both neighboring intervals.
A function that is linear in between is below H if at both knots it is lower by as much as the chord
is above the place where the prolonged chords meet.

Derivation: docs/derivations/profiles.md.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dpacct.numerics.rounding import UNIT, Array, Bounds, ComplexArray
from dpacct.pairs.atoms import AtomicPair, profile_of_knots
from dpacct.pairs.kinds import GeneralPair

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
