"""The cells of a cover, of which many need no law of their own.

A cell that lies below a mixture of the laws of two others gains no more than the better of these.
Which laws are kept is a guess; that each cell has its own, or lies below a mixture of two that are
kept, is proven, cell by cell. Proof: docs/derivations/fixed-size-game.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpacct.numerics.rounding import Array
from dpacct.tight.game.cover import Cover
from dpacct.tight.game.kernels import known_values, points_to
from dpacct.tight.game.laws import Kernel, Side, dominating_kernel, dominating_side, profile_below
from dpacct.tight.game.mixtures import FLOOR, Grid, below_a_mixture
from dpacct.tight.game.triangles import Triangle

# About this share of a cover's laws is kept, for what it costs.
USUAL_SHARE = 0.6
# When laws are chosen, a cell has to lie below by more than roundings.
_MARGIN = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class Thinned:
    """A cover's cells, by fewer laws."""

    cover: Cover


@lru_cache(maxsize=128)
def thinned_laws(
    rate: float, noise: float, step: float, reach: int, negligible: float, cover: Cover
) -> dict[int, Kernel]:
    """Laws such that each cell of the cover is below one, or below a mixture of two.

    Args:
        rate, noise: q in (0, 1), at least the true one, and z.
        step: of the grid, with few bits.
        reach: points that losses of either sign reach at least.
        negligible: probability that may be lost to infinite losses.
        cover: at least three cells.
    Returns:
        The laws, by the places of their cells in the cover.
    """
    grid = Grid(rate, noise, step, points_to(reach), negligible)

    def values(b: float, w: float) -> Array:
        return known_values(rate, noise, Triangle(b, w), step, reach, negligible)

    halves = [
        (values(float(cell.b), float(cell.w)), values(float(cell.a), float(cell.w)))
        for cell in cover
    ]
    every = np.array([np.concatenate(pair) for pair in halves])
    kept = _chosen(cover, every, np.maximum(every, FLOOR * negligible))
    laws = {k: _law(grid, halves[k]) for k in kept}
    rows = np.array([_row(law, step) for law in laws.values()])
    for k in set(range(len(cover))) - laws.keys():
        if not below_a_mixture(every[k], rows):
            laws[k] = _law(grid, halves[k])
    return {k: dominating_kernel(rising, falling, step) for k, (rising, falling) in laws.items()}


def _chosen(cover: Cover, values: Array, rows: Array) -> list[int]:
    """Cells that seem to need a law, if those have about these ``rows``; not proven."""
    left = list(range(len(values)))
    for k in sorted(left, key=lambda k: (cover[k].size, k)):
        others = [j for j in left if j != k]
        if len(others) > 1 and below_a_mixture(values[k] * _MARGIN, rows[others]):
            left = others
    return left


def _law(grid: Grid, halves: tuple[Array, Array]) -> tuple[Side, Side]:
    rising, falling = (
        dominating_side(grid.points, grid.step, np.maximum(half, FLOOR * grid.negligible))
        for half in halves
    )
    return rising, falling


def _row(law: tuple[Side, Side], step: float) -> Array:
    return np.concatenate([profile_below(side, step) for side in law])
