"""Of a plan the least of all valid bounds counts, for epsilon and for delta alike."""

from __future__ import annotations

import math

import pytest
from mpmath import mp, mpf

import dpacct
from dpacct import ApproximateDP, Full, Laplace, Poisson, PureDP, Round, Schedule, Uniform, best_of
from dpacct.pairs.dominating import basic_composition
from dpacct.rounds import Phase, Repeated
from dpacct.tight.accountant import TightAccountant
from dpacct.tight.game import bounds

TIGHT = TightAccountant()
FIXED = 40 * Round(2.4, Uniform(5, 100))
PURE = 2 * Laplace(epsilon=0.05, adjacency="replace-one")


def test_pure_releases_beside_a_game_cost_at_most_their_sum() -> None:
    alone, plan = dpacct.epsilon(FIXED, delta=1e-5), FIXED + PURE
    both = dpacct.epsilon(plan, delta=1e-5)
    assert both.upper <= alone.upper + 0.06
    assert both.upper < TIGHT.of_pairs.epsilon(plan, 1e-5).upper
    assert TIGHT.upper_epsilon(plan, 1e-5) == both.upper
    assert TIGHT.plays(plan)
    assert TIGHT.game_or_why(plan, 1e-5) == "an adaptive game"
    # Read the other way, too.
    back = dpacct.delta(plan, epsilon=both.upper)
    assert back.upper == pytest.approx(1e-5, rel=1e-9)
    assert dpacct.delta(plan, epsilon=0.01).upper <= 1.0


def test_a_promise_beside_rounds_takes_its_own_delta() -> None:
    """Composed as a pair it costs more: then both its parts are spent at once."""
    rounds = 40 * Round(3.0, Uniform(5, 100))
    promise = 1 * ApproximateDP(1e-6, 9e-6, "replace-one")
    found = dpacct.epsilon(rounds + promise, delta=1e-5).upper
    assert found <= dpacct.epsilon(rounds, delta=1e-6).upper + 1e-6 + 1e-12
    assert dpacct.delta(rounds + promise, epsilon=found).upper <= 1e-5 * (1 + 1e-9)


@pytest.mark.parametrize("accountant", ["tight", "pairs"])
def test_many_small_releases_are_composed_and_few_large_ones_added(accountant: str) -> None:
    many, few = 2000 * Laplace(epsilon=0.01), 2 * PureDP(1.0)
    assert dpacct.epsilon(many, delta=1e-5, accountant=accountant).upper < 3.0  # pyright: ignore[reportArgumentType]
    found = dpacct.epsilon(few, delta=1e-9, accountant=accountant)  # pyright: ignore[reportArgumentType]
    assert found.upper <= 2.0


def test_adding_up_is_never_below_the_exact_composition() -> None:
    """Randomized response of .5 beside a Gaussian of mu 1, by the mixture of both losses."""
    plan = 1 * Round(1.0, Full()) + 1 * PureDP(0.5)

    def exact(epsilon: float) -> mpf:
        with mp.workdps(30):

            def gaussian(e: mpf) -> mpf:
                return mp.ncdf(mpf(1) / 2 - e) - mp.exp(e) * mp.ncdf(-mpf(1) / 2 - e)

            top = 1 / (1 + mp.exp(mpf(-1) / 2))
            # E over the bit of its likelihood ratio, against the Gaussian at what is left.
            return top * gaussian(mpf(epsilon) - mpf(1) / 2) + (1 - top) * gaussian(
                mpf(epsilon) + mpf(1) / 2
            )

    for epsilon in (0.6, 2.0, 5.0):
        assert dpacct.delta(plan, epsilon=epsilon).upper >= exact(epsilon)
    for delta in (1e-3, 1e-8):
        assert exact(dpacct.epsilon(plan, delta=delta).upper) <= delta * (1 + 1e-9)


@pytest.mark.parametrize("runs", ["geometric:5", "poisson:5"])
def test_the_best_of_several_runs_costs_at_least_one(runs: str) -> None:
    one = 20 * Round(3.0, Poisson(0.1))
    best = 1 * best_of(one, runs)
    none = best_of(one, runs).runs.none
    assert none == (math.exp(-5) if "poisson" in runs else 0.0)
    lower = dpacct.epsilon(best, delta=1e-5).lower
    assert lower >= dpacct.epsilon(one, delta=1e-5 / (1 - none)).lower * (1 - 1e-9) > 0.0
    at = dpacct.delta(best, epsilon=0.5)
    assert at.lower >= (1 - none) * dpacct.delta(one, epsilon=0.5).lower * (1 - 1e-9)
    for epsilon_or_delta in (dpacct.epsilon(best, delta=1e-5), at):
        assert epsilon_or_delta.lower <= epsilon_or_delta.upper


def test_moments_are_never_below_what_is_made_from_them() -> None:
    best = 1 * best_of(1 * Round(2.0, Full()), "geometric:10")
    tight, rdp = (
        dpacct.epsilon(best, delta=1e-5, accountant=name).upper for name in ("tight", "rdp")
    )
    assert tight <= rdp


PLANS = {
    "replace-one": 6 * Round(2.0, Uniform(10, 100)),
    "zero-out": 3 * Round(2.0, Uniform(10, 40), "zero-out"),
    "two kinds": 2 * Round(2.0, Uniform(10, 100)) + 2 * Round(3.0, Uniform(20, 100)),
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize(("delta", "factor"), [(3.1e-5, 1.2), (1e-5, 1.0)])
def test_epsilon_and_delta_of_a_game_lead_back(name: str, delta: float, factor: float) -> None:
    plan = PLANS[name]
    spent = dpacct.epsilon(plan, delta=delta)
    assert spent.upper == TIGHT.upper_epsilon(plan, delta)
    back = dpacct.delta(plan, epsilon=spent.upper)
    assert back.upper == pytest.approx(delta, rel=1e-9)
    solved = dpacct.calibrate(schedule=plan, epsilon=spent.upper, solve="delta")
    assert solved.delta == back.upper
    epsilon = round(factor * spent.upper, 2)
    at = dpacct.delta(plan, epsilon=epsilon).upper
    assert epsilon * (1 - 1e-4) <= dpacct.epsilon(plan, delta=at).upper <= epsilon * (1 + 1e-9)


def test_the_common_end_of_two_cells_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cells that point to each other: the upper one has a delta below its end, the lower above."""
    plan = 3 * Round(2.0, Uniform(10, 100))
    end = 0.8 * 0.05623
    for start in (4e-2, 6e-2):
        monkeypatch.setattr(
            bounds, "estimate_at_epsilon", lambda *_, at=start: (0, 0, math.log(at))
        )
        monkeypatch.setattr(bounds, "_read", lambda _, cell, *__: {5: 0.03, 6: 0.046}[cell])
        assert bounds._upper_delta(plan, 1.0, bounds.Direction.REMOVE)[0] == pytest.approx(end)


@pytest.mark.parametrize("delta", [0.999, 0.8, 0.7, 1e-5, 1.0000001e-5, 0.8e-5, 0.79e-5, 1e-17])
def test_each_delta_has_one_cell(delta: float) -> None:
    cell = bounds._cell(delta)
    assert 0.8 * bounds._rung(cell) <= delta
    assert not cell or delta < 0.8 * bounds._rung(cell - 1)
    assert bounds._rung(20) == 1e-5


def test_a_schedule_without_some_releases_keeps_its_order() -> None:
    a, b, c = Round(1.0), Laplace(epsilon=0.5), Round(2.0)
    plan = 3 * (2 * a + 1 * b + 1 * c) + 4 * b + 2 * c
    only = plan.only(lambda kind: isinstance(kind, Round))
    assert only.parts == (Repeated(2 * a + 1 * c, 3), Phase(c, 2))
    assert plan.only(lambda kind: kind == b) == 7 * b
    assert plan.only(lambda _: False) == Schedule()
    assert basic_composition(plan.only(lambda kind: kind == b)) is not None
