"""Fewer laws than cells: a law below a mixture of two laws gains no more than the better law.

The game's value is linear in the law of a round. So a cell of a cover needs no separate law if it
lies below a mixture of two kept laws (`thinned_laws`). A few laws bound every triangle
(`mixing_laws`): the laws of triangles on the longest side, with a little less noise. The noise is
reduced more if that hardly changes the answer, so that large cells suffice. Over many rounds the
two one-dimensional strategies gain more than all others by a margin.

The choice of laws is a guess. The proof checks, cell by cell, that their mixtures cover all.
Proof: docs/derivations/fixed-size-game.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.rounding import UNIT, Array
from dpacct.tight.game.kernels import Grid, known_values, side_values
from dpacct.tight.game.laws import (
    Kernel,
    Points,
    Side,
    dominating_kernel,
    dominating_side,
    profile_below,
)
from dpacct.tight.game.theorem import LARGEST_SHIFT, Cell, Cover, Triangle

LAWS = 9
# A law's noise is at most this share smaller.
_LARGEST_SHARE, _BISECTIONS = 0.3, 9
# Number of cells to look at, a larger number for little removed noise, and the smallest size.
_MOST_CELLS, _MORE_CELLS, _LITTLE, _SMALLEST = 2500, 6000, 1e-3, 2e-4
# Missing shares at a and w, and the size, of cells that fail first.
_NARROW_A, _NARROW_W, _NARROW = (0.75, 0.8, 0.7, 0.55, 0.65, 0.85), (0.05, 0.1, 0.15, 0.25), 0.012
# Losses beyond those that matter count as infinite for the laws, a little earlier for the cells.
FLOOR = 2.0
# One point in this number is checked first.
_SPARSE = 16
# Tilts at which the laws are weighed, relative to that of the answer.
_TILTS = (0.5, 1.0, 2.0)


@dataclass(frozen=True, slots=True)
class Mixing:
    """Laws by mixtures: how much of the noise may be given away, and the tilt of the answer."""

    slack: float
    tilt: float


@lru_cache(maxsize=64)
def mixing_laws(grid: Grid, mixing: Mixing) -> tuple[Kernel, ...]:
    """Return laws of which some mixture of two dominates any triangle.

    Raises:
        NotConverged: no such laws are found.
    """
    sides: list[tuple[Side, Side]] = []
    for b, noise in _mixing_positions(grid, mixing):
        given = replace(grid, noise=noise)
        law = side_values(given, Triangle(b, 0.0)), side_values(given, Triangle(1 - b, 0.0))
        sides.append(_law(grid, law))
    rows = np.array([_row(pair, grid.step) for pair in sides])
    if mixing.slack >= _LITTLE:
        _check_narrow_cells(grid, rows)
    _check_all_triangles(grid, rows, _MORE_CELLS if mixing.slack < _LITTLE else _MOST_CELLS)
    return tuple(dominating_kernel(rising, falling, grid.step) for rising, falling in sides)


def _check_narrow_cells(grid: Grid, rows: Array) -> None:
    """Look where cells have to be smallest: if these are too large, so are thousands of others.

    Raises:
        NotConverged: one is not below a mixture.
    """
    for a in _NARROW_A:
        for w in _NARROW_W:
            b = 1 - a - w - _NARROW
            if b > 0:
                sides = [side_values(grid, Triangle(part, w)) for part in (b, a)]
                if not below_a_mixture(np.concatenate(sides), rows):
                    raise NotConverged("a few laws do not bound all positions")


def _check_all_triangles(grid: Grid, rows: Array, most: int) -> None:
    """Split all triangles into cells until each is below a mixture of two rows.

    Raises:
        NotConverged: one is not, however small.
    """
    known: dict[tuple[float, float], Array] = {}

    def values(b: float, w: float) -> Array:
        if (b, w) not in known:
            known[b, w] = side_values(grid, Triangle(b, w))
        return known[b, w]

    tested, waiting = 0, [Cell.whole()]
    while waiting:
        cell = waiting.pop()
        tested += 1
        a, b, w = float(cell.a), float(cell.b), float(cell.w)
        if below_a_mixture(np.concatenate([values(b, w), values(a, w)]), rows):
            continue
        if tested >= most or cell.size < _SMALLEST:
            raise NotConverged("a few laws do not bound all positions")
        waiting.extend(cell.children())


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


def _mixing_positions(grid: Grid, mixing: Mixing) -> list[tuple[float, float]]:
    """Return positions on the longest side, as the missing share at b and noise, without proof."""
    least = 2.0 / LARGEST_SHIFT

    def less(share: float) -> float:
        return max(least, grid.noise / (1 + share))

    def growth(b: float, share: float) -> Array:
        noise = less(share)
        given = replace(grid, noise=noise)
        rising, falling = (side_values(given, Triangle(x, 0.0)) for x in (b, 1 - b))
        return _growth(grid, rising, falling, mixing.tilt)

    goal = growth(0.0, mixing.slack)
    found: list[tuple[float, float]] = []
    for b in np.linspace(0.0, 1.0, LAWS).tolist():
        low, high = mixing.slack, _LARGEST_SHARE
        for _ in range(_BISECTIONS):
            middle = 0.5 * (low + high)
            fits = bool((growth(b, middle) <= goal).all())
            low, high = (middle, high) if fits else (low, middle)
        found.append((b, less(low)))
    return found


def _growth(grid: Grid, rising: Array, falling: Array, tilt: float) -> Array:
    """Estimate M(tilt) - 1 of the law with these profiles, at a few tilts."""
    losses = grid.losses
    found: list[float] = []
    for order in (share * tilt for share in _TILTS):
        weighed = np.exp(order * losses) * rising + np.exp(-(order + 1) * losses) * falling
        found.append(order * (order + 1) * float(np.trapezoid(weighed, losses)))
    return np.array(found)


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
