"""Fewer laws than cells: a law below a mixture of two laws gains no more than the better law.

The game's value is linear in the law of a round. So a cell of a cover needs no separate law if it
lies below a mixture of two kept laws (`thinned_laws`).

The choice of laws is a guess. The proof checks, cell by cell, that their mixtures cover all.
Proof: docs/derivations/fixed-size-game.md.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpacct.numerics.rounding import UNIT, Array
from dpacct.tight.game.kernels import Grid, known_values
from dpacct.tight.game.laws import (
    Kernel,
    Points,
    Side,
    dominating_kernel,
    dominating_side,
    profile_below,
)
from dpacct.tight.game.theorem import Cover, Triangle

# Losses beyond those that matter count as infinite for the laws, a little earlier for the cells.
FLOOR = 2.0
# One point in this number is checked first.
_SPARSE = 16


def below_a_mixture(values: Array, rows: Array) -> bool:
    """Return True if the values surely lie below x times one row plus 1 - x times another row.

    Args:
        values: shape (n,), upper bounds.
        rows: shape (k, n), k > 1, positive lower bounds.
    """
    first, second = np.triu_indices(len(rows), 1)
    # Few pairs pass at a few points already.
    for points in (slice(None, None, _SPARSE), slice(None)):
        least, most = _shares(values[points], rows[:, points], first, second)
        passes = least <= most
        if not passes.any():
            return False
        first, second = first[passes], second[passes]
        least, most = least[passes], most[passes]
    best = int(np.argmax(most - least))
    # Any share is valid if it passes, roundings included.
    share = min(1.0, max(0.0, float(0.5 * (least[best] + most[best]))))
    mixed = share * rows[first[best]] + (1 - share) * rows[second[best]]
    return bool((values <= mixed * (1 - 8 * UNIT)).all())


def _shares(values: Array, rows: Array, first: Points, second: Points) -> tuple[Array, Array]:
    """Estimate the least and the largest share of the first with which the values lie below."""
    change, need = rows[first] - rows[second], values - rows[second]
    with np.errstate(divide="ignore", invalid="ignore"):
        at = need / change
    least = np.where(change > 0, at, 0.0).max(axis=1, initial=0.0)
    most = np.where(change < 0, at, 1.0).min(axis=1, initial=1.0)
    return least, most


# Share of a cover's laws that is kept, for estimates of cost.
USUAL_SHARE = 0.6
# When laws are chosen, a cell has to lie below by more than roundings.
_MARGIN = 1 + 1e-9


@dataclass(frozen=True, slots=True)
class Thinned:
    """A cover's cells, by fewer laws."""

    cover: Cover


@lru_cache(maxsize=128)
def thinned_laws(grid: Grid, cover: Cover) -> dict[int, Kernel]:
    """Return laws such that each cell is below one, or below a mixture of two.

    ``cover`` has at least three cells. The keys are the places of their cells in it.
    """

    def values(b: float, w: float) -> Array:
        return known_values(grid, Triangle(b, w))

    halves = [
        (values(float(cell.b), float(cell.w)), values(float(cell.a), float(cell.w)))
        for cell in cover
    ]
    every = np.array([np.concatenate(pair) for pair in halves])
    kept = _kept_cells(cover, every, np.maximum(every, FLOOR * grid.negligible))
    laws = {k: _law(grid, halves[k]) for k in kept}
    rows = np.array([_row(law, grid.step) for law in laws.values()])
    for k in set(range(len(cover))) - laws.keys():
        if not below_a_mixture(every[k], rows):
            laws[k] = _law(grid, halves[k])
    return {k: dominating_kernel(*law, grid.step) for k, law in laws.items()}


def _kept_cells(cover: Cover, values: Array, rows: Array) -> list[int]:
    """Return cells that seem to need a law if the laws have about these ``rows``. Not proven."""
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
