"""Cells of triangles: {A <= Amax, B <= Bmax, W <= Wmax}, and when such cells cover all triangles.

In missing shares of a right angle, a + b + w = 1, a, b, w >= 0, and a cell is {a >= a0, b >= b0,
w >= w0}: its lower corner, three exact fractions. What it lacks to one, its size, is how far its
triangles lie apart. One of three children holds any triangle of a cell: some coordinate lies a third
of the size above the corner.
"""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from functools import cache
from typing import NamedTuple


class Cell(NamedTuple):
    """The lower corner of a cell, in missing shares of a right angle."""

    a: Fraction
    b: Fraction
    w: Fraction

    @property
    def size(self) -> Fraction:
        """One less the sum; zero where the cell is a single triangle."""
        return 1 - self.a - self.b - self.w

    def children(self) -> tuple[Cell, Cell, Cell]:
        """Three cells that together hold all triangles of this one."""
        third = self.size / 3
        a, b, w = self
        return Cell(a + third, b, w), Cell(a, b + third, w), Cell(a, b, w + third)


Cover = tuple[Cell, ...]


def covers(cells: Iterable[Cell]) -> bool:
    """Whether every triangle lies in one of the cells; exact.

    At one value of a, the cell (a0, b0, w0) with a0 <= a holds b from b0 to 1 - a - w0. As a grows,
    all these right ends and the last b, 1 - a, fall alike; so it is enough to look at the largest a
    of each stretch on which no cell begins.
    """
    known = sorted(cells)
    ends = sorted({cell.a for cell in known} | {Fraction(1)})
    starts = [Fraction(0), *ends[:-1]] if ends[0] > 0 else ends[:-1]
    for start, end in zip(starts, ends[-len(starts) :], strict=True):
        reached = Fraction(-1)
        for b, w in sorted((cell.b, cell.w) for cell in known if cell.a <= start):
            if b > max(reached, 0):
                break
            reached = max(reached, 1 - end - w)
        if reached < 1 - end:
            return False
    return True


def without_spare(cells: Cover) -> Cover:
    """The cover without cells that the others make superfluous."""
    kept = list(cells)
    for cell in sorted(cells, key=lambda cell: -cell.size):
        others = [other for other in kept if other != cell]
        if covers(others):
            kept = others
    return tuple(kept)


def split(cells: Cover, chosen: Iterable[Cell]) -> Cover:
    """The cover with the chosen cells replaced by their children."""
    marked = set(chosen)
    found: list[Cell] = []
    for cell in cells:
        found.extend(cell.children() if cell in marked else (cell,))
    return without_spare(tuple(dict.fromkeys(found)))


@cache
def default_cover() -> Cover:
    """The cells that serve most settings; `covers` is true of them."""
    return tuple(Cell(*(Fraction(part, _PARTS) for part in row)) for row in _CORNERS)


_PARTS = 6561
_CORNERS: tuple[tuple[int, int, int], ...] = (  # fmt: skip
    (0, 0, 3645), (0, 1458, 3159), (972, 2187, 1458), (1458, 0, 3159), (0, 3645, 972),
    (0, 3159, 1458), (1458, 972, 2187), (1458, 3159, 0), (0, 4617, 0), (972, 1458, 2187),
    (2430, 0, 2187), (0, 2430, 2187), (2187, 2106, 972), (2187, 1620, 1458), (1458, 2835, 972),
    (2187, 972, 2106), (2835, 1458, 972), (2835, 972, 1458), (2106, 2187, 972), (3159, 648, 1458),
    (3159, 2106, 0), (2430, 2835, 0), (3807, 1458, 0), (3078, 2187, 0), (972, 3645, 648),
    (2430, 2187, 648), (3159, 1458, 648), (3807, 0, 1458), (3645, 972, 648), (4293, 972, 0),
    (972, 4293, 0), (3159, 0, 2106), (3645, 648, 1404), (5265, 432, 0), (4617, 432, 648),
    (4725, 0, 972), (5049, 648, 0), (4077, 648, 972), (4617, 648, 432), (4293, 0, 1404),
    (4293, 432, 972), (5049, 0, 648), (5553, 0, 432), (5697, 288, 0), (5265, 288, 432),
    (6177, 0, 0), (5889, 0, 288), (5985, 192, 0), (5697, 192, 288), (5985, 0, 192),
)
