from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from dpacct.errors import NotConverged
from dpacct.rounds import Round, Uniform
from dpacct.tight.game import positions
from dpacct.tight.game.bounds import lower_epsilon, upper_epsilon
from dpacct.tight.game.kernels import Grid
from dpacct.tight.game.laws import Kernel
from dpacct.tight.game.plan import plan_at_delta
from dpacct.tight.game.positions import Mixing, below_a_mixture, mixing_laws
from dpacct.tight.game.theorem import Triangle, default_cover, profile
from tests.tight.game.test_laws import mirrored, own_profile

RATE, NOISE, STEP = 0.2, 8.0, 2.0**-8
MIXING = Mixing(0.01, 1.2)


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


def test_every_triangle_is_worth_less_than_the_best_law() -> None:
    laws = mixing_laws(Grid.of(RATE, NOISE, STEP, 1e-12), MIXING)
    assert len(laws) == positions.LAWS
    check_above_all_triangles(laws, 7)


@pytest.mark.parametrize("law", range(positions.LAWS))
def test_each_law_may_stand_above(law: int) -> None:
    found = mixing_laws(Grid.of(RATE, NOISE, STEP, 1e-12), MIXING)[law]
    other = found.masses * np.exp(-STEP * (found.first + np.arange(len(found.masses))))
    first = math.fsum(found.masses) + found.infinite
    assert 1 <= first < 1 + 1e-9
    assert math.fsum(other) <= first


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


def test_laws_that_leave_triangles_out_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without any noise given away there is no room for cells of a size."""
    monkeypatch.setattr(positions, "_MOST_CELLS", 300)
    monkeypatch.setattr(positions, "_MORE_CELLS", 300)
    with pytest.raises(NotConverged, match="do not bound all positions"):
        mixing_laws(Grid(RATE, NOISE, STEP, 400, 1e-12), Mixing(1e-7, 1.2))


@pytest.mark.slow
def test_mixtures_agree_with_cells() -> None:
    schedule = 40 * Round(8.0, Uniform(200, 1000))
    plan = plan_at_delta(schedule, 1e-4)
    lower = lower_epsilon(schedule, plan, 1e-4)
    by_mixtures = upper_epsilon(schedule, plan, Mixing(0.004, plan.upper.tilt), 1e-4)
    by_cells = upper_epsilon(schedule, plan, default_cover(), 1e-4)
    assert lower <= min(by_mixtures, by_cells)
    assert by_mixtures == pytest.approx(by_cells, rel=0.01)
    assert by_mixtures <= lower * 1.015


@pytest.mark.slow
def test_mixtures_leave_a_narrow_gap_over_thousands_of_rounds() -> None:
    schedule, delta, width = 3000 * Round(4.0, Uniform(50, 1000)), 1e-5, 0.003
    plan = plan_at_delta(schedule, delta)
    mixing = Mixing(0.2 * width, plan.upper.tilt)
    upper = upper_epsilon(schedule, plan, mixing, delta)
    assert upper <= lower_epsilon(schedule, plan, delta) * (1 + 1.1 * width)
