"""Covers of all triangles: the default one, those chosen for a setting, and laws left out."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpacct.rounds import Adjacency, Phase, Round, Schedule, Uniform
from dpacct.tight.game import choose, positions
from dpacct.tight.game.bounds import lower_epsilon, upper_epsilon
from dpacct.tight.game.choose import MOST_EFFORT, affordable, guided_cover
from dpacct.tight.game.kernels import Grid
from dpacct.tight.game.laws import Kernel
from dpacct.tight.game.plan import effort_above, plan_at_delta, plan_at_epsilon
from dpacct.tight.game.positions import Thinned, below_a_mixture, thinned_laws
from dpacct.tight.game.rounds import laws_above
from dpacct.tight.game.theorem import (
    Cell,
    Cover,
    Triangle,
    are_held,
    covers,
    default_cover,
    in_whole_numbers,
    profile,
    without_spare,
)
from tests.tight.game.covers import rare_cover, small_cover
from tests.tight.game.test_laws import mirrored, own_profile

SETTINGS = [(5, 0.8, 1e-9), (100, 1.4, 1e-5), (30, 5.0, 1e-3), (400, 0.9, 1e-4)]


@pytest.mark.parametrize(("cohort", "noise", "delta"), SETTINGS)
def test_chosen_cells_cover_all_triangles_and_each_is_needed(cohort, noise, delta):
    schedule = 300 * Round(noise, Uniform(cohort, 1000))
    plan = plan_at_delta(schedule, delta, 4e-3)
    sizes: list[int] = []
    for tolerance in (0.02, 0.002):
        cells, reached = guided_cover(schedule, plan, tolerance)
        assert 0.0 < reached <= tolerance
        assert covers(cells)
        corners, one = in_whole_numbers(cells)
        for k, corner in enumerate(corners):
            others = corners[:k] + corners[k + 1 :]
            assert not are_held(corner, others, one)
            assert not covers([*cells[:k], *cells[k + 1 :]])
        sizes.append(len(cells))
    assert sizes[0] < sizes[1]


def test_a_cell_is_held_by_its_children_and_by_no_two_of_them():
    assert are_held((3, 2, 4), [(0, 0, 1)], 2)
    assert are_held((3, 2, 4), [], 2)
    cell = Cell.whole().children()[0]
    children = cell.children()
    corners, one = in_whole_numbers((cell, *children))
    assert are_held(corners[0], corners[1:], one)
    assert are_held(corners[0], [*corners[1:], corners[0]], one)
    for k in range(1, 4):
        assert not are_held(corners[0], corners[1:k] + corners[k + 1 :], one)
        assert are_held(corners[k], [corners[0]], one)


def test_no_more_cells_than_asked_for_and_what_they_leave_is_told():
    schedule = 300 * Round(1.4, Uniform(100, 1000))
    plan = plan_at_delta(schedule, 1e-5, 4e-3)
    cells, reached = guided_cover(schedule, plan, 1e-3, 20)
    assert covers(cells)
    assert len(cells) <= 22
    assert reached > 1e-3


def test_few_chosen_cells_leave_little():
    """A quarter of a percent, which 30 that serve many settings exceed."""
    schedule, delta = 100 * Round(0.9, Uniform(200, 1000)), 1e-5
    plan = plan_at_delta(schedule, delta, 2e-3)
    lower = lower_epsilon(schedule, plan, delta)
    cells, _ = guided_cover(schedule, plan, 5e-4)
    found, others = (
        upper_epsilon(schedule, plan, Thinned(c), delta) for c in (cells, small_cover())
    )
    assert len(cells) <= 40
    assert lower < found <= lower * 1.003 < others


def test_a_setting_gets_cells_of_its_own_where_the_usual_ones_take_long():
    for rounds, usual in ((50, True), (500, False)):
        schedule = rounds * Round(1.0, Uniform(200, 1000))
        _, positions = affordable(
            schedule, lambda share, plays=schedule: plan_at_delta(plays, 1e-5, share)
        )
        assert isinstance(positions, Thinned)
        assert (positions.cover == default_cover()) == usual
        assert covers(positions.cover)


def test_zero_out_and_the_kinds_that_matter():
    few, many = Round(2.0, Uniform(10, 100)), Round(2.2, Uniform(10, 100))
    schedule = Schedule((Phase(few, 3), Phase(many, 300)))
    assert list(choose._looked_at(schedule)) == [many, few]
    plan = plan_at_delta(schedule, 1e-5, 4e-3)
    zeroed = 20 * Round(2.0, Uniform(10, 100), Adjacency.ZERO_OUT)
    assert guided_cover(zeroed, plan, 1e-3) == (default_cover(), 0.0)


@pytest.mark.slow
def test_a_cover_of_several_kinds_leaves_little_to_each():
    """Cells chosen for the kind that is worth most leave one percent."""
    schedule = Schedule(Phase(Round(1 + k, Uniform(50 + 50 * k, 1000)), 20) for k in range(3))
    plan = plan_at_delta(schedule, 1e-5, 4e-3)
    cells, _ = guided_cover(schedule, plan, 5e-4)
    assert covers(cells)
    lower = lower_epsilon(schedule, plan, 1e-5)
    assert lower < upper_epsilon(schedule, plan, Thinned(cells), 1e-5) <= lower * 1.006


@pytest.mark.parametrize("noise", [0.45, 1.2])
def test_what_the_usual_cells_can_do_is_not_given_up(noise):
    """Where kinds differ, or chosen cells are not good enough, it is the usual ones that count."""
    schedule = 110 * Round(5.6, Uniform(1, 2)) + 2 * Round(noise, Uniform(8, 10))
    _, positions = affordable(schedule, lambda share: plan_at_epsilon(schedule, 4.0, share))
    assert positions == Thinned(default_cover())


def test_zero_out_over_many_rounds_takes_fewer_angles():
    schedule = 4000 * Round(1.5, Uniform(50, 1000), Adjacency.ZERO_OUT)
    plan, positions = affordable(schedule, lambda share: plan_at_delta(schedule, 1e-5, share))
    assert effort_above(schedule, plan.upper, positions) <= MOST_EFFORT


WHOLE = Cell.whole()


@pytest.mark.parametrize(
    "cells", [default_cover(), rare_cover(), small_cover()], ids=["default", "rare", "small"]
)
def test_the_cells_cover_all_triangles_and_each_is_needed(cells):
    assert covers(cells)
    for cell in cells:
        assert not covers([other for other in cells if other != cell])


@given(choices=st.lists(st.integers(0, 1000), max_size=6))
def test_splitting_keeps_a_cover(choices):
    cells = (WHOLE,)
    for choice in choices:
        cell = cells[choice % len(cells)]
        rest = tuple(other for other in cells if other != cell)
        cells = without_spare(tuple(dict.fromkeys((*rest, *cell.children()))))
    assert covers(cells)
    assert without_spare(cells) == cells


def test_a_missing_child_is_noticed():
    children = WHOLE.children()
    assert covers(children)
    for k in range(3):
        rest = children[:k] + children[k + 1 :]
        assert not covers(rest)
        assert covers((*rest, *children[k].children()))
    assert not covers([])


@pytest.mark.parametrize("parts", [7, 16])
def test_the_exact_answer_is_that_of_a_lattice(parts):
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


RATE, NOISE, STEP = 0.2, 8.0, 2.0**-8

NEGLIGIBLE = 1e-12
GRID = Grid.of(RATE, NOISE, STEP, NEGLIGIBLE)


def check_above_all_triangles(laws: Sequence[Kernel], seed: int) -> None:
    """At any convex v with v(0) = 0: sums of hockey sticks of either side, scaled at random."""
    losses = STEP * np.array([0.0, 0.5, 3.0, 11.3, 30.0])
    above = np.array(
        [
            np.concatenate([own_profile(law, STEP, losses), mirrored(law, STEP, losses)])
            for law in laws
        ]
    )
    generator = np.random.default_rng(seed)
    for _ in range(60):
        missing = generator.dirichlet([0.5, 0.5, 0.5])
        if max(missing[:2]) > 0.99:
            continue
        sides = [
            profile(RATE, NOISE, Triangle(float(x), float(missing[2])), losses).lower
            for x in (missing[1], missing[0])
        ]
        exact = np.concatenate(sides)
        for weights in generator.dirichlet(np.full(len(exact), 0.3), size=40):
            assert weights @ exact <= (above @ weights).max()


def test_a_mixture_is_found_where_there_is_one():
    rows = np.array([[1.0, 4.0, 2.0], [3.0, 2.0, 2.0], [0.5, 0.5, 9.0]])
    middle = 0.5 * (rows[0] + rows[1])
    assert below_a_mixture(middle * (1 - 1e-9), rows)
    assert below_a_mixture(np.array([0.9, 3.9, 1.9]), rows)
    assert not below_a_mixture(middle * np.array([1.0, 1.0, 1.001]), rows)
    assert not below_a_mixture(np.array([3.1, 0.1, 0.1]), rows)


def test_what_is_below_by_less_than_roundings_or_where_rows_meet_is_not_proven():
    """Shares of two rows are about right: no share is ruled out where the rows are the same."""
    rows = np.array([[1.0, 2.0, 5.0], [2.0, 1.0, 5.0]])
    assert below_a_mixture(np.array([1.4, 1.4, 4.9]), rows)
    assert not below_a_mixture(np.array([1.4, 1.4, 5.1]), rows)
    assert not below_a_mixture(np.array([1.5, 1.5, 4.9]), rows)


def test_every_triangle_is_worth_less_than_the_best_law_that_is_kept():
    laws = thinned_laws(GRID, small_cover()).values()
    assert len(laws) < len(small_cover())
    check_above_all_triangles(list(laws), 11)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("noise", "cohort"), [(1.2, 5), (1.2, 50), (4.0, 20)])
def test_fewer_laws_prove_what_all_of_the_cells_do(noise, cohort):
    schedule, delta = 40 * Round(noise, Uniform(cohort, 100)), 1e-5
    plan = plan_at_delta(schedule, delta, 4e-3)
    every = upper_epsilon(schedule, plan, rare_cover(), delta)
    fewer = upper_epsilon(schedule, plan, Thinned(rare_cover()), delta)
    assert fewer == pytest.approx(every, rel=1e-5)
    round_ = schedule.phases[0].round
    kept = laws_above(round_, Thinned(rare_cover()), plan.upper.step, plan.negligible)
    assert len(kept) <= 0.9 * len(rare_cover())


def test_a_cell_that_was_left_out_in_vain_gets_its_law(monkeypatch):
    """The choice is a guess; a guess that keeps two corners must not lower the bound."""

    def two_corners(cover: Cover, *_: object) -> list[int]:
        return [cover.index(max(cover)), cover.index(max(cover, key=lambda cell: cell.b))]

    found = thinned_laws(GRID, small_cover())
    thinned_laws.cache_clear()
    monkeypatch.setattr(positions, "_kept_cells", two_corners)
    guessed = thinned_laws(GRID, small_cover())
    thinned_laws.cache_clear()
    assert len(guessed) > 2
    losses = STEP * np.array([1.0, 5.0, 20.0])

    def best(laws: dict[int, Kernel]) -> list[float]:
        profiles = [own_profile(law, STEP, losses) for law in laws.values()]
        return [max(profile[k] for profile in profiles) for k in range(3)]

    assert best(guessed) == pytest.approx(best(found), rel=1e-6)


def test_two_laws_are_the_fewest():
    """The whole triangle in thirds: the one with less at w lies below the mean of both others."""
    cover = Cell.whole().children()
    assert covers(cover)
    assert len(thinned_laws(GRID, cover)) == 2
