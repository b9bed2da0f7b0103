"""Cells that are chosen for a setting: a cover, whatever guides it, and a narrow one."""

from __future__ import annotations

import pytest

from dpacct.rounds import Adjacency, Phase, Round, Schedule, Uniform
from dpacct.tight.game import choose
from dpacct.tight.game.bounds import lower_epsilon, upper_epsilon
from dpacct.tight.game.choose import MOST_EFFORT, affordable, guided_cover
from dpacct.tight.game.plan import effort_above, plan_at_delta, plan_at_epsilon
from dpacct.tight.game.positions import Thinned
from dpacct.tight.game.theorem import Cell, are_held, covers, default_cover, in_whole_numbers
from tests.tight.game.covers import small_cover

SETTINGS = [(5, 0.8, 1e-9), (100, 1.4, 1e-5), (30, 5.0, 1e-3), (400, 0.9, 1e-4)]


@pytest.mark.parametrize(("cohort", "noise", "delta"), SETTINGS)
def test_chosen_cells_cover_all_triangles_and_each_is_needed(
    cohort: int, noise: float, delta: float
) -> None:
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


def test_a_cell_is_held_by_its_children_and_by_no_two_of_them() -> None:
    cell = Cell.whole().children()[0]
    children = cell.children()
    corners, one = in_whole_numbers((cell, *children))
    assert are_held(corners[0], corners[1:], one)
    assert are_held(corners[0], [*corners[1:], corners[0]], one)
    for k in range(1, 4):
        assert not are_held(corners[0], corners[1:k] + corners[k + 1 :], one)
        assert are_held(corners[k], [corners[0]], one)


def test_no_more_cells_than_asked_for_and_what_they_leave_is_told() -> None:
    schedule = 300 * Round(1.4, Uniform(100, 1000))
    plan = plan_at_delta(schedule, 1e-5, 4e-3)
    cells, reached = guided_cover(schedule, plan, 1e-3, 20)
    assert covers(cells)
    assert len(cells) <= 22
    assert reached > 1e-3


def test_few_chosen_cells_leave_little() -> None:
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


def test_a_setting_gets_cells_of_its_own_where_the_usual_ones_take_long() -> None:
    for rounds, usual in ((50, True), (500, False)):
        schedule = rounds * Round(1.0, Uniform(200, 1000))
        _, positions = affordable(
            schedule, lambda share, plays=schedule: plan_at_delta(plays, 1e-5, share)
        )
        assert isinstance(positions, Thinned)
        assert (positions.cover == default_cover()) == usual
        assert covers(positions.cover)


def test_zero_out_and_the_kinds_that_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Round] = []

    def noted(kinds: tuple[tuple[Round, int], ...], *_: object) -> tuple[tuple[Cell, ...], float]:
        asked.extend(round_ for round_, _ in kinds)
        return default_cover(), 0.0

    monkeypatch.setattr(choose, "_cover", noted)
    few, many = Round(2.0, Uniform(10, 100)), Round(2.2, Uniform(10, 100))
    schedule = Schedule((Phase(few, 3), Phase(many, 300)))
    plan = plan_at_delta(schedule, 1e-5, 4e-3)
    guided_cover(schedule, plan, 1e-3)
    assert asked == [many, few]
    zeroed = 20 * Round(2.0, Uniform(10, 100), Adjacency.ZERO_OUT)
    assert guided_cover(zeroed, plan, 1e-3) == (default_cover(), 0.0)
    assert asked == [many, few]


@pytest.mark.slow
def test_a_cover_of_several_kinds_leaves_little_to_each() -> None:
    """Cells chosen for the kind that is worth most leave one percent."""
    schedule = Schedule(Phase(Round(1 + k, Uniform(50 + 50 * k, 1000)), 20) for k in range(3))
    plan = plan_at_delta(schedule, 1e-5, 4e-3)
    cells, _ = guided_cover(schedule, plan, 5e-4)
    assert covers(cells)
    lower = lower_epsilon(schedule, plan, 1e-5)
    assert lower < upper_epsilon(schedule, plan, Thinned(cells), 1e-5) <= lower * 1.006


@pytest.mark.parametrize("noise", [0.45, 1.2])
def test_what_the_usual_cells_can_do_is_not_given_up(noise: float) -> None:
    """Where kinds differ, or chosen cells are not good enough, it is the usual ones that count."""
    schedule = 110 * Round(5.6, Uniform(1, 2)) + 2 * Round(noise, Uniform(8, 10))
    _, positions = affordable(schedule, lambda share: plan_at_epsilon(schedule, 4.0, share))
    assert positions == Thinned(default_cover())


def test_zero_out_over_many_rounds_takes_fewer_angles() -> None:
    schedule = 4000 * Round(1.5, Uniform(50, 1000), Adjacency.ZERO_OUT)
    plan, positions = affordable(schedule, lambda share: plan_at_delta(schedule, 1e-5, share))
    assert effort_above(schedule, plan.upper, positions) <= MOST_EFFORT


def test_a_cell_without_triangles_is_held() -> None:
    assert are_held((3, 2, 4), [(0, 0, 1)], 2)
    assert are_held((3, 2, 4), [], 2)
