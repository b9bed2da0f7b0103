"""Cells of triangles: {A <= Amax, B <= Bmax, W <= Wmax}, and when such cells cover all triangles.

In missing shares of a right angle, a + b + w = 1, a, b, w >= 0, and a cell is {a >= a0, b >= b0,
w >= w0}: its lower corner, three exact fractions. What it lacks to one, its size, is how far its
triangles lie apart. One of three children holds any triangle of a cell: some
coordinate lies a third of the size above the corner.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from fractions import Fraction
from functools import cache
from typing import NamedTuple


class Cell(NamedTuple):
    """The lower corner of a cell, in missing shares of a right angle."""

    a: Fraction
    b: Fraction
    w: Fraction

    @classmethod
    def whole(cls) -> Cell:
        """All triangles."""
        return cls(Fraction(0), Fraction(0), Fraction(0))

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
Corner = tuple[int, int, int]


def covers(cells: Iterable[Cell]) -> bool:
    """Whether every triangle lies in one of the cells; exact."""
    corners, one = in_whole_numbers(cells)
    return _hold_all(corners, one)


def in_whole_numbers(cells: Iterable[Cell]) -> tuple[list[Corner], int]:
    """Corners as multiples of one unit, and how many of these are one: exact, as the cells are."""
    given = list(cells)
    one = math.lcm(*(part.denominator for cell in given for part in cell))
    return [corner_of(cell, one) for cell in given], one


def corner_of(cell: Cell, one: int) -> Corner:
    """A corner in units of which there are ``one`` in one, a multiple of all denominators."""
    a, b, w = (part.numerator * (one // part.denominator) for part in cell)
    return a, b, w


def are_held(corner: Corner, others: Iterable[Corner], one: int) -> bool:
    """Whether every triangle of a cell lies in one of the others."""
    a, b, w = corner
    size = one - a - b - w
    # Seen from its corner, what others hold of a cell are cells again.
    parts = [(max(o[0] - a, 0), max(o[1] - b, 0), max(o[2] - w, 0)) for o in others]
    return _hold_all([part for part in parts if sum(part) <= size], size)


def _hold_all(corners: list[Corner], one: int) -> bool:
    """Whether cells hold all shares a + b + w = one.

    At one value of a, the cell (a0, b0, w0) with a0 <= a holds b from b0 to 1 - a - w0. As a grows,
    all these right ends and the last b, 1 - a, fall alike; so it is enough to look at the largest a
    of each stretch on which no cell begins.
    """
    if one <= 0:
        return bool(corners) or one < 0
    known = sorted((b, w, a) for a, b, w in corners)
    ends = sorted({a for _, _, a in known} | {one})
    starts = [0, *ends[:-1]] if ends[0] > 0 else ends[:-1]
    for start, end in zip(starts, ends[-len(starts) :], strict=True):
        reached = -1
        for b, w, a in known:
            if a > start:
                continue
            if b > max(reached, 0):
                break
            reached = max(reached, one - end - w)
        if reached < one - end:
            return False
    return True


def without_spare(cells: Cover) -> Cover:
    """The cover without cells that the others make superfluous."""
    corners, one = in_whole_numbers(cells)
    kept = dict(zip(cells, corners, strict=True))
    for cell in sorted(cells, key=lambda cell: -cell.size):
        corner = kept.pop(cell)
        if not are_held(corner, kept.values(), one):
            kept[cell] = corner
    return tuple(cell for cell in cells if cell in kept)


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
    return _read(_DEFAULT)


def _read(corners: tuple[tuple[int, int, int], ...]) -> Cover:
    return tuple(Cell(*(Fraction(part, _PARTS) for part in corner)) for corner in corners)


_PARTS = 3**12
# Found by splitting, on a dozen settings at once, the cells that added most.
_DEFAULT = (
    (0, 0, 295245), (0, 118098, 177147), (0, 255879, 118098), (0, 295245, 78732),
    (0, 373977, 52488), (0, 426465, 0), (52488, 373977, 0), (78732, 177147, 118098),
    (78732, 295245, 52488), (78732, 347733, 0), (118098, 0, 255879), (118098, 78732, 177147),
    (118098, 229635, 78732), (118098, 255879, 52488), (131220, 295245, 0), (170586, 255879, 0),
    (177147, 118098, 131220), (177147, 170586, 78732), (196830, 0, 177147), (196830, 177147, 52488),
    (196830, 229635, 0), (229635, 78732, 118098), (229635, 118098, 78732), (249318, 177147, 0),
    (255879, 0, 170586), (255879, 52488, 118098), (255879, 153090, 52488), (255879, 170586, 34992),
    (295245, 78732, 87480), (295245, 113724, 52488), (308367, 0, 153090), (308367, 34992, 118098),
    (308367, 118098, 34992), (308367, 153090, 0), (330237, 52488, 78732), (330237, 78732, 52488),
    (343359, 0, 118098), (343359, 118098, 0), (347733, 0, 113724), (347733, 34992, 78732),
    (347733, 78732, 34992), (347733, 113724, 0), (373977, 52488, 58320), (373977, 75816, 34992),
    (382725, 0, 102060), (382725, 23328, 78732), (382725, 78732, 23328), (382725, 102060, 0),
    (397305, 34992, 52488), (397305, 52488, 34992), (406053, 0, 78732), (406053, 78732, 0),
    (408969, 0, 75816), (408969, 23328, 52488), (408969, 52488, 23328), (408969, 75816, 0),
    (426465, 23328, 34992), (426465, 34992, 23328), (432297, 0, 52488), (432297, 52488, 0),
    (449793, 0, 50544), (449793, 15552, 34992), (449793, 34992, 0), (461457, 15552, 23328),
    (461457, 23328, 15552), (465345, 0, 34992), (477009, 0, 33696), (477009, 10368, 23328),
    (477009, 23328, 0), (484785, 10368, 15552), (484785, 15552, 0), (487377, 0, 23328),
    (495153, 0, 15552), (500337, 6912, 10368), (500337, 10368, 0), (507249, 0, 10368),
    (510705, 0, 6912), (510705, 6912, 0), (517617, 0, 4608), (517617, 4608, 0), (522225, 0, 3072),
    (522225, 3072, 0), (525297, 0, 2048), (525297, 2048, 0), (527345, 0, 0),
)  # fmt: skip
