"""One round on a grid of losses: laws above it, one a cell of a cover, and laws below it."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.rounding import Array
from dpacct.pairs.dominating import Direction, ReplacementPair
from dpacct.pairs.one_round import one_round_delta
from dpacct.tight.game.cover import Cell
from dpacct.tight.game.laws import (
    Kernel,
    Points,
    Side,
    dominated_kernel,
    dominating_kernel,
    dominating_side,
    grid_points,
)
from dpacct.tight.game.strategies import (
    add_pair,
    gaussian_pair,
    middles,
    remove_pair,
    remove_tails,
    replacement_line,
    touching_side,
    two_strategies,
)
from dpacct.tight.game.triangles import Triangle, not_too_flat, profile

# Neighboring grid points of one round's law lie up to this share of the loss apart.
_SPREAD, _FINE = 32, 128
# So many points of a profile are computed at once.
_ROWS = 16
_LEAST = 1e-300
MAX_REACH = 1 << 17


@lru_cache(maxsize=4096)
def cell_side(
    rate: float, noise: float, triangle: Triangle, step: float, reach: int, negligible: float
) -> Side:
    """Masses above a triangle's profile, for losses of one sign."""
    values = known_values(rate, noise, triangle, step, reach, negligible)
    return dominating_side(points_to(reach), step, values)


@lru_cache(maxsize=4096)
def known_values(
    rate: float, noise: float, triangle: Triangle, step: float, reach: int, negligible: float
) -> Array:
    """`side_values` at `points_to`, not to be changed: covers are chosen and bounded by them."""
    losses = grid_losses(points_to(reach), step)
    found = side_values(rate, noise, triangle, losses, negligible)
    found.flags.writeable = False
    return found


def side_values(
    rate: float, noise: float, triangle: Triangle, losses: Array, negligible: float
) -> Array:
    """Upper bounds of a triangle's profile at losses that increase from 0, shape (n,), positive."""
    if triangle.b == 1.0 and triangle.w == 0.0:
        return np.maximum(add_pair(rate, noise, losses)[0].upper, _LEAST)
    triangle = not_too_flat(noise, triangle)

    def upper(part: Array) -> Array:
        return profile(rate, noise, triangle, part).upper

    return until_negligible(upper, losses, negligible)


def until_negligible(upper: Callable[[Array], Array], losses: Array, negligible: float) -> Array:
    """Upper bounds of a profile at losses that increase, computed as far as they matter."""
    values = np.empty(len(losses))
    for start in range(0, len(losses), _ROWS):
        rows = slice(start, start + _ROWS)
        values[rows] = upper(losses[rows])
        if values[rows][-1] <= negligible:
            # A profile falls: what bounds it here bounds it further out.
            values[start + _ROWS :] = values[rows][-1]
            break
    return values


def grid_losses(points: Points, step: float) -> Array:
    """Points as losses; exact, as the step has few bits."""
    return np.asarray(step * points, dtype=np.float64)


def points_to(reach: int) -> Points:
    """The points that laws above have up to there, as `grid_points`."""
    return _points(reach, _SPREAD)


def fine_points_to(reach: int) -> Points:
    """The points that laws below have."""
    return _points(reach, _FINE)


@lru_cache(maxsize=64)
def _points(reach: int, spread: int) -> Points:
    return grid_points(max(reach, 2), spread)


@lru_cache(maxsize=4096)
def cell_kernel(
    rate: float,
    noise: float,
    cell: Cell,
    step: float,
    reach: tuple[int, int],
    negligible: float,
) -> Kernel:
    """A law that dominates every triangle of a cell.

    The profile at gamma >= 1 grows with the angles at b and w, so that the largest ones bound it;
    below one, with b and a exchanged, those at a and w.

    Args:
        rate, noise: q in (0, 1), at least the true one, and z.
        cell: of the cover.
        step: of the grid, with few bits.
        reach: points that losses above and below zero reach at least.
        negligible: probability that may be lost to infinite losses.
    """

    def side(missing: Fraction, reach: int) -> Side:
        triangle = Triangle(float(missing), float(cell.w))
        return cell_side(rate, noise, triangle, step, reach, negligible)

    rising, falling = side(cell.b, reach[0]), side(cell.a, reach[1])
    return dominating_kernel(rising, falling, step)


@lru_cache(maxsize=256)
def strategy_kernels(
    rate: float, noise: float, step: float, reach: tuple[int, int]
) -> tuple[Kernel, Kernel]:
    """Laws dominated by the remove pair and by the add pair."""
    return two_strategies(rate, noise, step, _points(reach[0], _FINE), _points(reach[1], _FINE))


@lru_cache(maxsize=64)
def sampled_above(
    rate: float, noise: float, step: float, reach: tuple[int, int], direction: Direction
) -> Kernel:
    """A law above the remove pair or the add pair."""
    pairs = (remove_pair, add_pair) if direction is Direction.REMOVE else (add_pair, remove_pair)
    sides = [
        dominating_side(
            points,
            step,
            np.maximum(pair(rate, noise, grid_losses(points, step))[0].upper, _LEAST),
        )
        for pair, points in zip(pairs, map(points_to, reach), strict=True)
    ]
    return dominating_kernel(sides[0], sides[1], step)


def far_loss(rate: float, noise: float, least: float, probability: float) -> float:
    """About the loss of one round beyond which there is this probability; at least ``least``."""
    losses = np.geomspace(least, 600.0, 400)
    small = remove_tails(rate, noise, losses) <= probability
    return float(losses[min(int(np.argmax(small)), len(losses) - 1)])


def reach_of(rate: float, noise: float, step: float, negligible: float) -> tuple[int, int]:
    """Points beyond which one round's loss lies with about this probability.

    Raises:
        NotConverged: more than `MAX_REACH`.
    """
    far = far_loss(rate, noise, step, negligible)
    # The same on both sides, so that a cell and its mirror image share what they need.
    points = max(4, _counted(far, step))
    return points, points


def _counted(loss: float, step: float) -> int:
    if loss > MAX_REACH * step:
        raise NotConverged(f"the loss of one round needs more than {MAX_REACH} points of the grid")
    return math.ceil(loss / step)


def gaussian_reach(noise: float, step: float, negligible: float) -> tuple[int, int]:
    """The same where everybody takes part."""
    mu = 2 / noise
    far = mu * (mu / 2 + math.sqrt(max(0.0, -2 * math.log(negligible))))
    points = max(4, _counted(far, step))
    return points, points


@lru_cache(maxsize=64)
def gaussian_above(noise: float, step: float, reach: tuple[int, int]) -> Kernel:
    """A law that dominates a round in which everybody takes part and one client is replaced."""
    points = _points(reach[0], _FINE)
    side = dominating_side(points, step, gaussian_pair(noise, grid_losses(points, step))[0].upper)
    return dominating_kernel(side, side, step)


@lru_cache(maxsize=64)
def poisson_above(rate: float, noise: float, step: float, reach: tuple[int, int]) -> Kernel:
    """A law that dominates a round of Poisson sampling in which one client is replaced."""
    points = _points(reach[0], _FINE)
    pair = ReplacementPair(rate, noise)
    upper = [one_round_delta(float(loss), pair).upper for loss in grid_losses(points, step)]
    side = dominating_side(points, step, np.maximum(upper, 1e-300))
    return dominating_kernel(side, side, step)


@lru_cache(maxsize=64)
def poisson_below(rate: float, noise: float, step: float, reach: tuple[int, int]) -> Kernel:
    """A law dominated by such a round."""
    points = _points(reach[0], _FINE)
    side = touching_side(replacement_line(rate, noise, middles(points, step)), points, step)
    return dominated_kernel(side, side, step)


@lru_cache(maxsize=64)
def gaussian_below(noise: float, step: float, reach: tuple[int, int]) -> Kernel:
    """A law dominated by such a round."""
    points = _points(reach[0], _FINE)
    side = touching_side(gaussian_pair(noise, middles(points, step)), points, step)
    return dominated_kernel(side, side, step)
