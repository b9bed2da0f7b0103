"""Laws of the loss on a grid, made from values of a privacy profile alone.

H(gamma) = P(loss > log gamma) - gamma Q(loss > log gamma), gamma >= 1, is convex and falls to
zero. Upper: below upper values at grid points runs a convex chain, which lies above H. Lower: below
values that lines under H leave at the grid points. Either chain is the profile of masses at its
corners. Roundings are repaired by one factor on all masses, close to one: a measure need not
be a probability to bound (docs/derivations/fixed-size-game.md).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, Array, Bounds

Points = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Side:
    """Masses of one sign of the loss, under the hypothesis that makes it likely.

    Attributes:
        points: the losses over the step, increasing and above 0, shape (n,).
        masses: at these points.
        infinite: mass of an infinite loss.
        excess: lower and upper bound of the difference of both hypotheses' masses.
    """

    points: Points
    masses: Array
    infinite: float
    excess: tuple[float, float]


@dataclass(frozen=True, slots=True)
class Kernel:
    """A law of the loss on a grid that dominates a round, or is dominated by it.

    Attributes:
        first: loss of the first mass over the step.
        masses: under the first hypothesis, at all points from there on, shape (n,).
        infinite: mass of an infinite loss.
    """

    first: int
    masses: Array
    infinite: float


def grid_points(last: int, spread: int) -> Points:
    """Return points 0 = j_0 < j_1 < ... up to at least ``last``, further apart further out.

    Neighbors are one apart, or the share 1 / ``spread`` of the loss.
    """
    points = [0]
    while points[-1] < last:
        points.append(points[-1] + max(1, points[-1] // spread))
    return np.array(points)


def dominating_side(points: Points, step: float, values: Array) -> Side:
    """Return masses whose profile is >= ``values`` at the points, and so at least H everywhere.

    Args:
        points: as from `grid_points`, shape (n,).
        step: exact multiples of it are assumed: it has few bits.
        values: upper bounds of H at e^(step points), positive.
    """
    ratios = np.exp(step * points)
    values = np.minimum.accumulate(values)
    corners = _convex_chain(ratios, values)
    masses, most = _masses_at(ratios, values, corners), float(values[-1])
    heights = _profile(points, step, masses, most)
    rounding = UNIT * (4 * len(points) + 200)
    lack = float(np.max(values[corners] / heights[corners])) * (1 + rounding)
    factor = max(1.0, lack) * (1 + 4 * UNIT)
    start = float(heights[0]) * factor
    excess = (start * (1 - rounding), start * (1 + rounding))
    return Side(points[1:], factor * masses[1:], factor * most, excess)


def profile_below(side: Side, step: float) -> Array:
    """Return lower bounds of the profile of a side's masses at the loss 0 and at its points.

    Multiplying masses by one or more, as `dominating_kernel` does, keeps them below.
    """
    points, masses = np.append(0, side.points), np.append(0.0, side.masses)
    heights = _profile(points, step, masses, side.infinite)
    return heights * (1 - UNIT * (4 * len(points) + 200))


def dominated_side(points: Points, step: float, left: Array, right: Array) -> Side:
    """Return masses whose profile is at most H everywhere.

    Args:
        points, step: as above, shape (n,).
        left, right: values at the left and right end of each interval of a line below H there,
            of shape (n - 1,). The chain ends where they are not positive.
    """
    ratios = np.exp(step * points)
    values = np.append(np.minimum(left, np.append(np.inf, right[:-1])), 0.0)
    positive = (values > 0) & (np.append(np.inf, right) >= 0)
    end = len(points) - 1 if positive[:-1].all() else int(np.argmin(positive[:-1]))
    # Past the last value the chain is zero, so the line before it must not be below zero there.
    while end > 0 and right[end - 1] < 0:
        end -= 1
    if end < 1:
        # A side within one interval vanishes. A law without it is below all the same.
        return Side(points[1:2], np.zeros(1), 0.0, (0.0, 0.0))
    points, ratios, values = points[: end + 1], ratios[: end + 1], values[: end + 1].copy()
    values[end] = 0.0
    values = np.minimum.accumulate(values)
    corners = _convex_chain(ratios, values)
    masses = _masses_at(ratios, values, corners)
    heights = _profile(points, step, masses, 0.0)
    rounding = UNIT * (4 * len(points) + 200)
    # Everywhere, not at the corners alone: a corner may be missing by a rounding.
    ratios_kept = np.full(end, np.inf)
    np.divide(values[:-1], heights[:-1], out=ratios_kept, where=heights[:-1] > 0)
    ratio = float(np.min(ratios_kept))
    factor = min(1.0, ratio * (1 - rounding)) * (1 - 4 * UNIT)
    start = float(heights[0]) * factor
    return Side(
        points[1:], factor * masses[1:], 0.0, (start * (1 - rounding), start * (1 + rounding))
    )


def dominating_kernel(rising: Side, falling: Side, step: float) -> Kernel:
    """Return a law from the side of positive losses and the mirror image of that of negative ones.

    Both hypotheses' masses are at least one in total, the first's at least the second's.
    """
    factor = max(1.0, falling.excess[1] / rising.excess[0]) * (1 + 8 * FUNCTION_ERROR)
    masses, zero = _laid_out(rising, falling, step)
    masses[zero + 1 :] *= factor
    masses *= 1 + 4 * FUNCTION_ERROR
    infinite = rising.infinite * factor * (1 + 4 * UNIT)
    rest = 1 - math.fsum(masses) - infinite
    masses[zero] = max(0.0, rest) + 8 * UNIT
    return Kernel(-zero, masses, infinite)


def dominated_kernel(rising: Side, falling: Side, step: float) -> Kernel:
    """Return a law below both sides: masses <= 1, the first hypothesis' at most the second's."""
    if min(rising.excess[0], falling.excess[0]) <= 0.0:
        return Kernel(0, np.ones(1), 0.0)
    spare = 16 * FUNCTION_ERROR
    less = min(1.0, falling.excess[0] / rising.excess[1] * (1 - spare))
    enough = min(1.0, rising.excess[1] * less / falling.excess[0] * (1 + spare))
    masses, zero = _laid_out(rising, falling, step)
    masses[zero + 1 :] *= less
    masses[:zero] *= enough
    other = masses * np.exp(-step * (np.arange(len(masses)) - zero))
    total = math.fsum(other) * (1 + 4 * FUNCTION_ERROR)
    # Where lines leave no room for the loss 0, all masses give way.
    masses *= (1 - 4 * FUNCTION_ERROR) / max(1.0, total)
    masses[zero] = max(0.0, 1 - total) * (1 - 8 * UNIT)
    return Kernel(-zero, masses, 0.0)


def _laid_out(rising: Side, falling: Side, step: float) -> tuple[Array, int]:
    """Return masses under the first hypothesis at all points, and the index of the loss 0."""
    zero, most = int(falling.points[-1]), int(rising.points[-1])
    masses = np.zeros(zero + most + 1)
    masses[zero + rising.points] = rising.masses
    masses[zero - falling.points] = falling.masses * np.exp(-step * falling.points)
    return masses, zero


def _convex_chain(ratios: Array, values: Array) -> Points:
    """Return indices of the corners of the lowest convex chain below the points.

    Its corners are corners among any subset of the points, so other points can be dropped.
    """
    kept = np.arange(len(ratios))
    while len(kept) > 2:
        wide, high = np.diff(ratios[kept]), np.diff(values[kept])
        corner = high[:-1] * wide[1:] < high[1:] * wide[:-1]
        if corner.all():
            break
        kept = kept[np.concatenate([[True], corner, [True]])]
    return kept


def _masses_at(ratios: Array, values: Array, corners: Points) -> Array:
    """Return the mass at each point but the first: the ratio times the change of slope, rounded."""
    slopes = np.append(np.diff(values[corners]) / np.diff(ratios[corners]), 0.0)
    masses = np.zeros(len(ratios))
    inner = corners[1:]
    masses[inner] = ratios[inner] * np.maximum(np.diff(slopes), 0.0)
    return masses


def _profile(points: Points, step: float, masses: Array, infinite: float) -> Array:
    """Return the profile of masses at the points, by sums of positive terms.

    Error: at most (3 n + 100) `UNIT`, relative.
    """
    second = masses * np.exp(-step * points)
    beyond = np.append(np.cumsum(second[:0:-1])[::-1], 0.0)
    widths = np.exp(step * points[:-1]) * np.expm1(step * np.diff(points))
    areas = np.append(beyond[:-1] * widths, infinite)
    return np.cumsum(areas[::-1])[::-1]


def line_ends(
    points: Points, step: float, middles: Array, profile: Bounds, slope: Bounds
) -> Bounds:
    """Return values at both ends of each interval of a line that is below H, from a tangent.

    Args:
        middles: where the tangents touch, as losses, one in each interval.
        profile: bounds of H there.
        slope: bounds of -H' there.
    """
    ratios, touch = np.exp(step * points), np.exp(middles)
    rounding = 1 + 8 * FUNCTION_ERROR
    left = touch * -np.expm1(step * points[:-1] - middles)
    right = ratios[1:] * -np.expm1(middles - step * points[1:])
    at_left = profile.lower + slope.lower * left / rounding
    at_right = profile.lower - slope.upper * right * rounding
    return Bounds(
        at_left * (1 - 4 * UNIT), at_right - 4 * UNIT * (profile.lower + slope.upper * right)
    )
