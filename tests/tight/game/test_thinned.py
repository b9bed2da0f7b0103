from __future__ import annotations

import numpy as np
import pytest

from dpacct.rounds import Round, Uniform
from dpacct.tight.game import positions
from dpacct.tight.game.bounds import upper_epsilon
from dpacct.tight.game.kernels import Grid
from dpacct.tight.game.laws import Kernel
from dpacct.tight.game.plan import plan_at_delta
from dpacct.tight.game.positions import Thinned, thinned_laws
from dpacct.tight.game.rounds import laws_above
from dpacct.tight.game.theorem import Cell, Cover, covers
from tests.tight.game.covers import rare_cover, small_cover
from tests.tight.game.test_laws import own_profile
from tests.tight.game.test_mixtures import NOISE, RATE, STEP, check_above_all_triangles

NEGLIGIBLE = 1e-12
GRID = Grid.of(RATE, NOISE, STEP, NEGLIGIBLE)


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
