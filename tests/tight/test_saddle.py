"""The search for a tilt: its result is the minimizer of Chernoff's bound."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpacct.pairs.dominating import Direction, SampledGaussianPair, SymmetrizedPair
from dpacct.pairs.one_round import gaussian_delta
from dpacct.tight.composition import Composition
from dpacct.tight.contour import (
    epsilon_estimate,
    log_chernoff_factor,
    log_delta_estimate,
    tilt_at_delta,
    tilt_at_epsilon,
)
from tests.strategies import log_uniform


def compose(rate: float, noise: float, rounds: int, direction: Direction) -> Composition:
    return Composition.of({SampledGaussianPair(rate, noise, direction): rounds}, direction)


def chernoff(composition: Composition, tilt: float, epsilon: float) -> float:
    """log of the bound of delta."""
    return float(composition.log_moment(tilt).upper) + log_chernoff_factor(tilt) - tilt * epsilon


SETTINGS = [
    (0.1, 1.3, 300, 1e-5),
    (1e-4, 5.0, 10**6, 1e-8),
    (0.5, 0.8, 20, 1e-20),
    (0.01, 1.0, 3000, 0.3),
    (1.0, 30.0, 1000, 1e-12),
]


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(("rate", "noise", "rounds", "delta"), SETTINGS)
def test_no_other_tilt_is_better(
    rate: float, noise: float, rounds: int, delta: float, direction: Direction
) -> None:
    composition = compose(rate, noise, rounds, direction)
    tilt, at = tilt_at_delta(composition, math.log(delta))

    def cost(c: float) -> float:
        return (chernoff(composition, c, 0.0) - math.log(delta)) / c

    best = cost(tilt)
    for factor in (0.5, 0.9, 1.1, 2.0):
        assert cost(tilt * factor) >= best - 1e-6 * abs(best)
    # The same tilt belongs to the epsilon that it gives.
    tilt_again, _ = tilt_at_epsilon(composition, best)
    assert tilt_again == pytest.approx(tilt, rel=0.01)
    for factor in (0.5, 0.9, 1.1, 2.0):
        at_best = chernoff(composition, tilt_again, best)
        assert chernoff(composition, tilt_again * factor, best) >= at_best - 1e-6
    estimate = epsilon_estimate(tilt, at, math.log(delta))
    assert estimate <= best
    assert log_delta_estimate(tilt, at, estimate) == pytest.approx(math.log(delta), rel=1e-9)


@pytest.mark.parametrize("epsilon", [0.5, 3.0, 10.0])
def test_the_estimate_is_close_where_the_loss_is_gaussian(epsilon: float) -> None:
    composition = compose(1.0, 10.0, 100, Direction.REMOVE)
    tilt, at = tilt_at_epsilon(composition, epsilon)
    exact = gaussian_delta(epsilon, 1.0).upper
    assert log_delta_estimate(tilt, at, epsilon) == pytest.approx(math.log(exact), abs=0.2)


def test_pairs_of_fixed_size_cohorts() -> None:
    composition = Composition.of({SymmetrizedPair(0.05, 1.2): 200}, Direction.REMOVE)
    tilt, at = tilt_at_delta(composition, math.log(1e-5))
    assert 0.5 < tilt < 20
    assert 2.0 < epsilon_estimate(tilt, at, math.log(1e-5)) < 6.0


@settings(max_examples=40)
@given(
    rate=log_uniform(1e-7, 1.0),
    noise=log_uniform(0.2, 1000.0),
    rounds=log_uniform(1, 1e7).map(int),
    delta=log_uniform(1e-20, 0.5),
    direction=st.sampled_from(Direction),
)
def test_any_setting_has_a_usable_tilt(
    rate: float, noise: float, rounds: int, delta: float, direction: Direction
) -> None:
    composition = compose(rate, noise, rounds, direction)
    tilt, at = tilt_at_delta(composition, math.log(delta))
    assert 0 < tilt < math.inf
    assert math.isfinite(epsilon_estimate(tilt, at, math.log(delta)))
    assert at.variance > 0
