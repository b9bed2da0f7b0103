"""Tilted densities of privacy losses, in a coordinate that keeps its digits.

A piece is a monotone stretch of one round's loss under P weighted by e^{cL}. Its coordinate is a
real number d; `SampledPiece` counts d = log r - log(1 - q) > 0, so that r - (1 - q), which vanishes
at the end of the loss, is never formed by subtraction; `GaussianPiece` counts the loss itself. The
other variable, U for the first and the standardized loss for the second, is where panels are laid
where the density in d is not smooth.

Derivation: docs/derivations/grid.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.quadrature import ERROR_FACTOR, IMAGINARY_AXIS, REAL_AXIS
from dpacct.numerics.rounding import UNIT, Array

# Beyond, expm1 is taken apart so that it cannot overflow, even times 1 / q = 1e150.
_LARGE = 300.0
_SCAN_POINTS = 4000
# Largest excess of the exponent between two points of the scan; beyond it a bound says nothing.
_COARSEST = 500.0


@dataclass(frozen=True, slots=True)
class Reach:
    """Where a piece is kept, and what is lost.

    Attributes:
        low, high: ends in the panel variable.
        beyond: bound of the mass outside, in the units of the piece.
    """

    low: float
    high: float
    beyond: float


class Piece(Protocol):
    """One stretch of a tilted loss; all masses in units of e^peak times a constant."""

    reach: Reach

    def density(self, coordinate: Array) -> Array:
        """Mass per unit of the coordinate."""
        ...

    def smoothness(self, left: Array, right: Array, tilt: float) -> Array:
        """A radius around the cells [left, right] within which the density is tame.

        In the complex plane, within this distance of any point of the cell, the density times
        e^{(2 tilt + 2) (d' - d)} is at most e^3 times its value at that point.
        """
        ...

    def panel_variable(self, coordinate: Array) -> Array:
        """The variable of the panels, increasing, infinite where the coordinate has left."""
        ...

    def panel_width(self, left: Array, right: Array) -> Array:
        """How wide panels between these ends may be."""
        ...

    def at(self, variable: Array) -> tuple[Array, Array]:
        """The coordinate there, and the mass per unit of the variable."""
        ...

    def panel_error(self, center: Array, half: Array) -> Array:
        """Quadrature error on panels, for a factor of modulus at most one."""
        ...

    def rounding(self, low: Array, high: Array) -> Array:
        """Relative error of densities and masses for coordinates between these ends."""
        ...


class SampledPiece:
    """phi r^order for U between ``start`` and infinity, U = (2x - 1) / (2 sigma^2).

    In U its mass is sigma / sqrt(2 pi) e^{-(sigma U + 1/(2 sigma))^2 / 2 + order (d - shift)};
    the factor sigma / sqrt(2 pi) and e^peak are left out of all masses.

    Args:
        order, rate, noise: a, q in (0, 1) and sigma.
        accuracy: tails of about e^-accuracy of the largest density are cut off.
        shift: see above; with -log(1 - q) the power is that of r itself, with 0 of r / (1 - q).
        start: left end in U.
        peak: logarithm of the unit; by default the largest exponent.
    """

    def __init__(
        self,
        order: float,
        rate: float,
        noise: float,
        accuracy: float,
        shift: float = 0.0,
        start: float = -math.inf,
        peak: float | None = None,
    ) -> None:
        self._order, self._noise, self._shift = order, noise, shift
        self._log_odds = math.log1p(-rate) - math.log(rate)
        self._odds = (1 - rate) / rate
        self._offset = 0.5 / noise
        points, exponent = self._scan(start, accuracy)
        self.peak: float = float(np.max(exponent)) if peak is None else peak
        self.reach: Reach = self._cut(points, exponent, accuracy, start)

    def _exponent(self, variable: Array) -> tuple[Array, Array]:
        """d and the exponent without ``peak``."""
        coordinate = np.logaddexp(0.0, variable - self._log_odds)
        v = self._noise * variable + self._offset
        return coordinate, self._order * (coordinate - self._shift) - v * v / 2

    def _scan(self, start: float, accuracy: float) -> tuple[Array, Array]:
        """Points between which all modes lie, 9 and more standard deviations from the last."""
        sigma, a = self._noise, self._order
        spread = sigma * math.sqrt(2 * (accuracy + 8))
        left = max(self._lowest_mode() - spread, -1e300)
        low, high = (left - 0.5) / sigma**2, (max(a, 0.0) + spread - 0.5) / sigma**2
        low = max(low, start)
        points = np.linspace(low, max(high, low + 1), _SCAN_POINTS)
        return points, self._exponent(points)[1]

    def _lowest_mode(self) -> float:
        """At or left of the first mode, in x: for a < 0 it solves x = a p(x)."""
        a, sigma = self._order, self._noise
        if a >= 0:
            return 0.0
        mode = a
        for _ in range(60):
            # p increases, so that the mode lies between the iterates.
            p = 1 / (1 + math.exp(min(self._log_odds - (mode / 2 - 0.5) / sigma**2, 700.0)))
            if a * p > mode / 2:
                mode /= 2
            else:
                break
        return mode

    def _cut(self, points: Array, exponent: Array, accuracy: float, start: float) -> Reach:
        """Cut where nothing matters any more, and bound what was cut off."""
        sigma, a = self._noise, self._order
        inside = np.flatnonzero(exponent > self.peak - accuracy)
        first = max(0, int(inside[0]) - 1) if inside.size else 0
        last = min(len(points) - 1, int(inside[-1]) + 1) if inside.size else 1
        gap = float(points[1] - points[0])
        # Between points a function stays below the larger end plus gap^2 / 8 of its curvature.
        bend = (sigma**2 + abs(a) / 4) * gap**2 / 8
        if not bend < _COARSEST:
            raise NotConverged("points between which the loss is looked for lie too far apart")
        highest = np.maximum(exponent[:-1], exponent[1:]) - self.peak + bend
        # Both ends of a panel that is cut off lie below the peak, so that no exponential overflows.
        beyond = gap * float(np.exp(np.concatenate([highest[:first], highest[last:]])).sum())
        # Past the ends of the scan the slope has one sign and grows.
        right = sigma * self._scaled(float(points[-1])) - max(a, 0.0)
        left = -sigma * self._scaled(float(points[0])) + min(a, 0.0) * self._share(float(points[0]))
        if right <= 0 or (left <= 0 and start == -math.inf):
            raise NotConverged("the tails of the loss are not reached")
        beyond += math.exp(min(float(exponent[-1]) - self.peak, 700.0)) / right
        if start == -math.inf:
            beyond += math.exp(min(float(exponent[0]) - self.peak, 700.0)) / left
        return Reach(float(points[first]), float(points[last]), 1.01 * beyond)

    def _scaled(self, variable: float) -> float:
        return self._noise * variable + self._offset

    def _share(self, variable: float) -> float:
        """p = q e^U / r."""
        return 1 / (1 + math.exp(min(self._log_odds - variable, 700.0)))

    def panel_variable(self, coordinate: Array) -> Array:
        """See `Piece`: U, minus infinity at d <= 0."""
        near = np.minimum(np.maximum(coordinate, 0.0), _LARGE)
        with np.errstate(divide="ignore"):
            return np.log(self._odds * np.expm1(near)) + np.maximum(coordinate - near, 0.0)

    def density(self, coordinate: Array) -> Array:
        """See `Piece`; coordinates are positive."""
        variable = self.panel_variable(coordinate)
        v = self._noise * variable + self._offset
        # log p = U - log odds - d for p = 1 - e^-d = dd / dU.
        constant = self._log_odds - self.peak - self._order * self._shift
        return np.exp((self._order + 1) * coordinate - variable - v * v / 2 + constant)

    def smoothness(self, left: Array, right: Array, tilt: float) -> Array:
        """See `Piece`.

        Within half of ``left`` p is at least 1 - e^{-left/2}, and the logarithm of the density has
        the slope a - sigma v / p - (1 - p) / p.
        """
        tame = np.full_like(left, -1.0)
        some = left > 0
        low, high = left[some], right[some]
        p = -np.expm1(-low / 2)
        ends = (self.panel_variable(low), self.panel_variable(high))
        v = np.maximum(*(np.abs(self._noise * end + self._offset) for end in ends))
        slope = self._noise * v / p + abs(self._order) + 2 * tilt + 2 + 1 / p
        tame[some] = np.minimum(np.minimum(low / 2, 1 / slope), p / self._noise)
        return tame

    def panel_width(self, left: Array, right: Array) -> Array:
        """See `Piece`."""
        p = 1 / (1 + np.exp(np.clip(self._log_odds - right - 1, -700.0, 700.0)))
        lowest = 1 / (1 + np.exp(np.clip(self._log_odds - left + 1, -700.0, 700.0)))
        spread = np.where(p < 0.5, p * (1 - p), np.where(lowest > 0.5, lowest * (1 - lowest), 0.25))
        bend = np.sqrt(self._noise**2 + abs(self._order) * spread)
        return np.minimum(1.0, 1.4 / bend)

    def at(self, variable: Array) -> tuple[Array, Array]:
        """See `Piece`."""
        coordinate, exponent = self._exponent(variable)
        return coordinate, np.exp(exponent - self.peak)

    def panel_error(self, center: Array, half: Array) -> Array:
        """See `Piece`: the supremum on an ellipse, from the center and the slopes."""
        sigma, a = self._noise, self._order
        reach, height = REAL_AXIS * half, IMAGINARY_AXIS * half
        high = 1 / (1 + np.exp(np.clip(self._log_odds - center - reach, -700.0, 700.0)))
        steep = sigma * (np.abs(sigma * center + self._offset) + sigma * reach) + abs(a) * high
        rise = reach * steep + sigma**2 * height**2 / 2
        if a < 0:
            # |r(v + it)|^2 >= r(v)^2 (1 - 4 p (1 - p) sin^2(t/2)), and 4 p (1 - p) <= 4 p.
            loss = np.minimum(1.0, 4 * high) * np.sin(np.minimum(height, 3.0) / 2) ** 2
            rise = rise - a * np.where(height < 3.0, -np.log1p(-loss) / 2, np.inf)
        exponent = self._exponent(center)[1] - self.peak + rise
        return ERROR_FACTOR * half * np.exp(np.minimum(exponent, 700.0))

    def rounding(self, low: Array, high: Array) -> Array:
        """See `Piece`: what moves U moves the exponent by the slope of the density in U."""
        ends = np.stack([low, high])
        variable = np.clip(self.panel_variable(ends), self.reach.low - 1, self.reach.high + 1)
        u = np.max(np.abs(variable), axis=0)
        v = np.max(np.abs(self._noise * variable + self._offset), axis=0)
        shift, order = abs(self._shift), abs(self._order)
        slope = self._noise * v + order + 1
        moved = 15 + 12 * u + 3 * high + 2 * shift
        sizes = 8 * v * v + 8 * order * (high + shift) + 4 * abs(self.peak)
        return UNIT * (slope * moved + sizes + 12 * (u + abs(self._log_odds) + high) + 400)


class GaussianPiece:
    """N(mean, deviation^2), in units of 1 / (deviation sqrt(2 pi)) per unit of the loss.

    ``relative``: error of the mean and of the variance.
    """

    def __init__(self, mean: float, deviation: float, accuracy: float, relative: float) -> None:
        self._mean, self._deviation, self._relative = mean, deviation, relative
        end = math.sqrt(2 * accuracy)
        tail = 2 * math.exp(-end * end / 2) / end
        self.reach: Reach = Reach(-end, end, 1.01 * deviation * tail)

    def panel_variable(self, coordinate: Array) -> Array:
        """See `Piece`: the standardized loss."""
        return (coordinate - self._mean) / self._deviation

    def density(self, coordinate: Array) -> Array:
        """See `Piece`."""
        t = self.panel_variable(coordinate)
        return np.exp(-t * t / 2)

    def smoothness(self, left: Array, right: Array, tilt: float) -> Array:
        """See `Piece`: the logarithm has the slope -t / deviation."""
        ends = (self.panel_variable(left), self.panel_variable(right))
        t = np.maximum(*(np.abs(end) for end in ends))
        return np.minimum(1 / (t / self._deviation + 2 * tilt + 2), self._deviation)

    def panel_width(self, left: Array, right: Array) -> Array:  # noqa: ARG002 - the protocol has it
        """See `Piece`."""
        return np.ones_like(left)

    def at(self, variable: Array) -> tuple[Array, Array]:
        """See `Piece`."""
        mass = self._deviation * np.exp(-variable * variable / 2)
        return self._mean + self._deviation * variable, mass

    def panel_error(self, center: Array, half: Array) -> Array:
        """See `Piece`."""
        nearest = np.maximum(0.0, np.abs(center) - REAL_AXIS * half)
        exponent = (IMAGINARY_AXIS * half) ** 2 / 2 - nearest**2 / 2
        return ERROR_FACTOR * half * self._deviation * np.exp(exponent)

    def rounding(self, low: Array, high: Array) -> Array:
        """See `Piece`."""
        ends = np.maximum(np.abs(low), np.abs(high))
        t = self.reach.high + 1
        size = (ends + abs(self._mean)) / self._deviation
        return (UNIT + self._relative) * (t * (4 * size + 8 * t) + 400)
