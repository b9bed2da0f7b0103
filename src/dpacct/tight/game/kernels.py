"""One round on a grid of losses: laws above it, one a cell of a cover, and laws below it."""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.rounding import Array
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
    remove_tail,
    touching_side,
    two_strategies,
)
from dpacct.tight.game.triangles import Triangle, profile

# Neighboring grid points of one round's law lie up to this share of the loss apart.
_SPREAD, _FINE = 32, 128
MAX_REACH = 1 << 17


@lru_cache(maxsize=4096)
def _side(rate: float, noise: float, triangle: Triangle, step: float, reach: int) -> Side:
    points = _points(reach, _SPREAD)
    return dominating_side(
        points, step, profile(rate, noise, triangle, _losses(points, step)).upper
    )


def _losses(points: Points, step: float) -> Array:
    return np.asarray(step * points, dtype=np.float64)


@lru_cache(maxsize=64)
def _points(reach: int, spread: int) -> Points:
    return grid_points(max(reach, 2), spread)


@lru_cache(maxsize=4096)
def cell_kernel(
    rate: float, noise: float, cell: Cell, step: float, reach: tuple[int, int]
) -> Kernel:
    """A law that dominates every triangle of a cell.

    The profile at gamma >= 1 grows with the angles at b and w, so that the largest ones bound it;
    below one, with b and a exchanged, those at a and w.

    Args:
        rate, noise: q in (0, 1), at least the true one, and z.
        cell: of the cover.
        step: of the grid, with few bits.
        reach: points that losses above and below zero reach at least.
    """
    rising = _side(rate, noise, Triangle(float(cell.b), float(cell.w)), step, reach[0])
    falling = _side(rate, noise, Triangle(float(cell.a), float(cell.w)), step, reach[1])
    return dominating_kernel(rising, falling, step)


@lru_cache(maxsize=256)
def strategy_kernels(
    rate: float, noise: float, step: float, reach: tuple[int, int]
) -> tuple[Kernel, Kernel]:
    """Laws dominated by the remove pair and by the add pair."""
    return two_strategies(rate, noise, step, _points(reach[0], _FINE), _points(reach[1], _FINE))


def remove_above(rate: float, noise: float, step: float, reach: tuple[int, int]) -> Kernel:
    """A law above the remove pair, but for its largest losses of less than zero; for plans."""
    sides = [
        dominating_side(points, step, pair(rate, noise, _losses(points, step))[0].upper)
        for pair, points in (
            (remove_pair, _points(reach[0], _SPREAD)),
            (add_pair, _points(reach[1], _SPREAD)),
        )
    ]
    return dominating_kernel(sides[0], sides[1], step)


def reach_of(rate: float, noise: float, step: float, negligible: float) -> tuple[int, int]:
    """Points beyond which one round's loss lies with about this probability.

    Raises:
        NotConverged: more than `MAX_REACH`.
    """
    losses = np.geomspace(step, 600.0, 400)
    tails = np.array([remove_tail(rate, noise, float(loss)) for loss in losses])
    ends: list[int] = []
    for weight in (tails, tails * np.exp(-losses)):
        far = losses[min(int(np.argmax(weight <= negligible)), 399)]
        ends.append(max(4, _counted(float(far), step)))
    return ends[0], ends[1]


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
    side = dominating_side(points, step, gaussian_pair(noise, _losses(points, step))[0].upper)
    return dominating_kernel(side, side, step)


@lru_cache(maxsize=64)
def gaussian_below(noise: float, step: float, reach: tuple[int, int]) -> Kernel:
    """A law dominated by such a round."""
    points = _points(reach[0], _FINE)
    side = touching_side(gaussian_pair(noise, middles(points, step)), points, step)
    return dominated_kernel(side, side, step)
