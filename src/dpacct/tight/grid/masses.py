"""From integrals over cells to masses on grid points: above the law, and below it.

Let w be the law of the ratio e^L under Q and H(a) = E_w (y - a)_+ its profile, convex in a. A law
on the grid with the same mass and mean whose profile is nowhere below (above) H dominates (is
dominated), also under composition.

*Upper*: H is replaced by its chords. *Lower*: the chords are lowered at each grid point until they
pass below a tangent of H in each cell, at its middle or, where the density is steep, partly at an
end. In terms of masses, a point takes back what the half cells next to it had sent away. Both are
off by the order of step^2.

Source of the upper law: Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022 (arXiv:2207.04380).
Both are proven in docs/derivations/grid.md.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpacct.numerics.rounding import UNIT, Array
from dpacct.tight.grid.cells import Cells

_HULL_PASSES = 40
_LINE_PASSES = 8
# Negative masses below this share of all are left to the hull.
_NEGLIGIBLE = 1e-12
# What is charged counts about this much more than what is missing.
EXCESS_COST = 20.0


class Atom(NamedTuple):
    """Tilted mass at the grid point 0, and its relative error."""

    mass: float = 0.0
    error: float = 0.0


class GridMasses(NamedTuple):
    """Tilted masses at the points first, first + 1, ...

    Attributes:
        first: index of the first point.
        upper, lower: shape (n,).
        excess: mass that the lower law has too much, to be charged.
    """

    first: int
    upper: Array
    lower: Array
    excess: float


def grid_masses(cells: Cells, tilt: float, step: float, atom: Atom) -> GridMasses:
    """Masses of the dominating and of the dominated law of one round."""
    # One point more on either side, for what the lower law takes from there.
    points = len(cells.error) + 3
    kept, spare = np.zeros(points), np.zeros(points)
    kept[2:-1] += cells.right.sum(axis=1)
    kept[1:-2] += cells.left.sum(axis=1)
    spare[2:-1] += cells.error
    spare[1:-2] += cells.error
    if atom.mass > 0.0:
        kept[1 - cells.first] += atom.mass
        spare[1 - cells.first] += atom.mass * atom.error
    spare += 8 * UNIT * kept
    upper = (kept + spare) * (1 + 4 * UNIT)
    lower, excess = _Lines(cells, kept, spare, tilt, step).best()
    return GridMasses(cells.first - 1, upper, lower, excess)


class _Lines:
    """Lines below the profile, one per cell, and what they make the grid points ask for.

    A cell asks its left point to take back ``asked[0]`` and its right point ``asked[1]``; a point
    takes back the larger of what its two cells ask, from both neighbors, such that the mean of the
    ratio stays.
    """

    def __init__(self, cells: Cells, kept: Array, spare: Array, tilt: float, step: float) -> None:
        c, h = tilt, step
        self._kept, self._spare = kept, spare
        self._growth, self._step = (1 + c) * h, h
        grow = 1 + 64 * UNIT * (1 + (2 * c + 2) * h)
        to_left = (1 + math.exp(-h)) * math.exp(-c * h) * grow
        to_right = (1 + math.exp(h)) * math.exp(c * h) * grow
        self._from_left = math.exp(c * h) / (1 + math.exp(-h)) * grow
        self._from_right = math.exp(-c * h) / (1 + math.exp(h)) * grow
        right, left, error = cells.right, cells.left, cells.error
        self._middle = np.stack([(right[:, 0] + error) * to_left, (left[:, 1] + error) * to_right])
        self._ends = np.stack(
            [(right.sum(axis=1) + error) * to_left, (left.sum(axis=1) + error) * to_right]
        )

    def best(self) -> tuple[Array, float]:
        """Masses and excess with tangents at the middle, or with others where those fail."""
        plain = self._masses(self._middle)
        missing = -float(plain[plain < 0].sum())
        if missing <= _NEGLIGIBLE * float(self._kept.sum()):
            return plain, make_convex(plain, self._growth, self._step)
        steep = self._masses(self._steep(plain))
        found = [
            (masses, make_convex(masses, self._growth, self._step)) for masses in (plain, steep)
        ]
        return max(found, key=lambda pair: float(pair[0].sum()) - EXCESS_COST * pair[1])

    def _masses(self, asked: Array) -> Array:
        """Masses of the lower law, reduced by all errors; a few may be negative."""
        back = np.zeros(len(self._kept))
        back[1:-2] = asked[0]
        back[2:-1] = np.maximum(back[2:-1], asked[1])
        sizes = self._kept + back
        lower = sizes - self._spare
        lower[1:] -= self._from_left * back[:-1]
        lower[:-1] -= self._from_right * back[1:]
        sizes[1:] += self._from_left * back[:-1]
        sizes[:-1] += self._from_right * back[1:]
        return lower - 16 * UNIT * sizes

    def _steep(self, lower: Array) -> Array:
        """Lines between the tangents at the middle and at an end, where masses became negative.

        The mean of two lines below the profile is one. The weights make both cells next to a
        point ask for the same, and are found by passes over the cells concerned.
        """
        middle, asked = self._middle, self._middle
        rising = np.zeros(middle.shape[1], dtype=bool)
        falling = rising.copy()
        before, after = np.append(0.0, middle[1, :-1]), np.append(middle[0, 1:], 0.0)
        for _ in range(_LINE_PASSES):
            # Cell k lies between the points k + 1 and k + 2.
            missing = lower < -2 * self._spare
            free = ~(rising | falling)
            rise = missing[:-3] & (middle[0] > before) & free
            fall = missing[3:] & (middle[1] > after) & free
            steeper = middle[0] * after > middle[1] * before
            rise, fall = rise & (~fall | steeper), fall & ~(rise & steeper)
            if not (rise.any() or fall.any()):
                break
            rising, falling = rising | rise, falling | fall
            asked = middle.copy()
            for chosen, near, limit in ((rising, 0, before), (falling, 1, after)):
                cells, far = np.flatnonzero(chosen), 1 - near
                weight = limit[cells] / middle[near, cells]
                asked[near, cells] = limit[cells]
                line = weight * middle[far, cells] + (1 - weight) * self._ends[far, cells]
                asked[far, cells] = line
            asked *= 1 + 16 * UNIT
            lower = self._masses(asked)
        return asked


def make_convex(masses: Array, growth: float, step: float) -> float:
    """Move negative masses outward, which lowers the profile, until (almost) none is left.

    Args:
        masses: tilted, changed in place.
        growth: (1 + c) step, by which the logarithm of a tilted mass exceeds that of its Q-mass.
        step: of the grid.
    Returns:
        Negative mass that was set to zero instead.
    """
    total = float(np.sum(np.abs(masses)))
    rounding = 0.0
    removed = np.zeros(len(masses), dtype=bool)
    for _ in range(_HULL_PASSES):
        negative = np.flatnonzero(masses < 0)
        if -float(masses[negative].sum()) <= 1e-17 * total:
            break
        removed[negative] = True
        remaining = np.flatnonzero(~removed)
        place = np.searchsorted(remaining, negative)
        # Nothing can be moved right of the last point; left of the first all goes right.
        negative, place = negative[place < len(remaining)], place[place < len(remaining)]
        if not negative.size:
            break
        after, before = remaining[place], remaining[np.maximum(place - 1, 0)]
        to_after = (after - negative) * step
        to_before = np.maximum(negative - before, 0) * step
        # Q-masses keep their sum and the mean of the ratio e^loss; then the tilt of each point.
        span = -np.expm1(-(to_after + to_before))
        share = np.where(place > 0, -np.expm1(-to_before) * np.exp(-to_after) / span, 1.0)
        rest = np.where(place > 0, -np.expm1(-to_after) / span, 0.0)
        rate = growth / step
        amount = masses[negative] * (1 + 64 * UNIT * (1 + rate * (to_after + to_before)))
        masses[negative] = 0.0
        touched = np.abs(masses[after]) + np.abs(masses[before]) + np.abs(amount)
        rounding += 8 * len(negative) * UNIT * float(touched.sum())
        np.add.at(masses, after, amount * share * np.exp(rate * to_after))
        np.add.at(masses, before, amount * rest * np.exp(-rate * to_before))
    negative = masses < 0
    excess = -float(masses[negative].sum()) * (1 + 1e-9) + rounding
    masses[negative] = 0.0
    return excess
