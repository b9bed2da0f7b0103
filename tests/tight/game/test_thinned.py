from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from dpacct.rounds import Round, Uniform
from dpacct.tight.game import positions
from dpacct.tight.game.bounds import upper_epsilon
from dpacct.tight.game.kernels import Grid
from dpacct.tight.game.laws import Kernel
from dpacct.tight.game.plan import plan_at_delta
from dpacct.tight.game.positions import Thinned, below_a_mixture, thinned_laws
from dpacct.tight.game.rounds import laws_above
from dpacct.tight.game.theorem import Cell, Cover, Triangle, covers, profile
from tests.tight.game.covers import rare_cover, small_cover
from tests.tight.game.test_laws import mirrored, own_profile

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


def test_a_mixture_is_found_where_there_is_one() -> None:
    rows = np.array([[1.0, 4.0, 2.0], [3.0, 2.0, 2.0], [0.5, 0.5, 9.0]])
    middle = 0.5 * (rows[0] + rows[1])
    assert below_a_mixture(middle * (1 - 1e-9), rows)
    assert below_a_mixture(np.array([0.9, 3.9, 1.9]), rows)
    assert not below_a_mixture(middle * np.array([1.0, 1.0, 1.001]), rows)
    assert not below_a_mixture(np.array([3.1, 0.1, 0.1]), rows)


def test_what_is_below_by_less_than_roundings_or_where_rows_meet_is_not_proven() -> None:
    """Shares of two rows are about right: no share is ruled out where the rows are the same."""
    rows = np.array([[1.0, 2.0, 5.0], [2.0, 1.0, 5.0]])
    assert below_a_mixture(np.array([1.4, 1.4, 4.9]), rows)
    assert not below_a_mixture(np.array([1.4, 1.4, 5.1]), rows)
    assert not below_a_mixture(np.array([1.5, 1.5, 4.9]), rows)


def test_every_triangle_is_worth_less_than_the_best_law_that_is_kept() -> None:
    laws = thinned_laws(GRID, small_cover()).values()
    assert len(laws) < len(small_cover())
    check_above_all_triangles(list(laws), 11)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("noise", "cohort"), [(1.2, 5), (1.2, 50), (4.0, 20)])
def test_fewer_laws_prove_what_all_of_the_cells_do(noise: float, cohort: int) -> None:
    schedule, delta = 40 * Round(noise, Uniform(cohort, 100)), 1e-5
    plan = plan_at_delta(schedule, delta, 4e-3)
    every = upper_epsilon(schedule, plan, rare_cover(), delta)
    fewer = upper_epsilon(schedule, plan, Thinned(rare_cover()), delta)
    assert fewer == pytest.approx(every, rel=1e-5)
    round_ = schedule.phases[0].round
    kept = laws_above(round_, Thinned(rare_cover()), plan.upper.step, plan.negligible)
    assert len(kept) <= 0.9 * len(rare_cover())


def test_a_cell_that_was_left_out_in_vain_gets_its_law(monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_two_laws_are_the_fewest() -> None:
    """The whole triangle in thirds: the one with less at w lies below the mean of both others."""
    cover = Cell.whole().children()
    assert covers(cover)
    assert len(thinned_laws(GRID, cover)) == 2
