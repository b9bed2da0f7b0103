from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpacct.tight.game.theorem import Cell, Cover, covers, default_cover, without_spare
from tests.tight.game.covers import rare_cover, small_cover

WHOLE = Cell.whole()


@pytest.mark.parametrize(
    "cells", [default_cover(), rare_cover(), small_cover()], ids=["default", "rare", "small"]
)
def test_the_cells_cover_all_triangles_and_each_is_needed(cells: Cover) -> None:
    assert covers(cells)
    for cell in cells:
        assert not covers([other for other in cells if other != cell])


@given(choices=st.lists(st.integers(0, 1000), max_size=6))
def test_splitting_keeps_a_cover(choices: list[int]) -> None:
    cells = (WHOLE,)
    for choice in choices:
        cell = cells[choice % len(cells)]
        rest = tuple(other for other in cells if other != cell)
        cells = without_spare(tuple(dict.fromkeys((*rest, *cell.children()))))
    assert covers(cells)
    assert without_spare(cells) == cells


def test_a_missing_child_is_noticed() -> None:
    children = WHOLE.children()
    assert covers(children)
    for k in range(3):
        rest = children[:k] + children[k + 1 :]
        assert not covers(rest)
        assert covers((*rest, *children[k].children()))
    assert not covers([])


@pytest.mark.parametrize("parts", [7, 16])
def test_the_exact_answer_is_that_of_a_lattice(parts: int) -> None:
    """On cells with corners in a lattice a lattice twice as fine decides."""
    cells = [
        Cell(Fraction(i, parts), Fraction(j, parts), Fraction(max(0, parts - 3 - i - j), parts))
        for i in range(0, parts, 2)
        for j in range(0, parts - i, 3)
    ]
    fine = 6 * parts
    points = [
        (Fraction(2 * i + 1, 2 * fine), Fraction(2 * j + 1, 2 * fine))
        for i in range(fine)
        for j in range(fine - i - 1)
    ]
    everywhere = all(
        any(a >= c.a and b >= c.b and 1 - a - b >= c.w for c in cells) for a, b in points
    )
    assert covers(cells) == everywhere
