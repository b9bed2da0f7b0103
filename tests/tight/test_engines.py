"""Which engine answers: closed forms where there are some, and both engines agree where not."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mpf

from dpacct.budget import Interval
from dpacct.errors import NotConverged
from dpacct.pairs.dominating import Direction, DominatingPair, SampledGaussianPair, SymmetrizedPair
from dpacct.pairs.one_round import gaussian_delta, gaussian_epsilon, one_round_delta
from dpacct.tight import engines
from dpacct.tight.composition import Composition
from dpacct.tight.engines import composed_delta, composed_epsilon
from tests.oracles.contour import one_round
from tests.strategies import log_uniform

REMOVE, ADD = Direction.REMOVE, Direction.ADD


def compose(pairs: dict[DominatingPair, int], direction: Direction = REMOVE) -> Composition:
    return Composition.of(pairs, direction)


def alone(rate: float, noise: float, direction: Direction) -> Composition:
    return compose({SampledGaussianPair(rate, noise, direction): 1}, direction)


def refuse(composition: Composition, at: float) -> Interval:
    raise NotConverged(f"{composition} is not asked for at {at}")


@settings(max_examples=40)
@given(
    rate=log_uniform(1e-7, 1.0),
    noise=log_uniform(0.05, 1000.0),
    delta=log_uniform(1e-60, 0.5),
    direction=st.sampled_from(Direction),
)
def test_one_round_is_its_closed_form(
    rate: float, noise: float, delta: float, direction: Direction
) -> None:
    composition = alone(rate, noise, direction)
    found = composed_epsilon(composition, delta)
    assert 0 <= found.lower <= found.upper < math.inf
    # By 40-digit arithmetic: the proven end is high enough, the other one too low.
    remove = direction is REMOVE
    slack = mpf(10) ** -14
    assert one_round(found.upper, rate, noise, remove=remove) <= delta * (1 + slack)
    if found.lower > 0:
        assert one_round(found.lower, rate, noise, remove=remove) >= delta * (1 - slack)
    if found.upper > 1e-12:
        assert found.width <= 1e-6 * found.upper
    if rate < 1:
        closed = one_round_delta(0.7, SampledGaussianPair(rate, noise, direction))
        spent = composed_delta(composition, 0.7)
        assert spent.lower == closed.lower
        # Below 1e-290 the closed form stops, and Chernoff's bound says more.
        assert spent.upper == closed.upper or 0.0 < spent.upper < closed.upper < 1e-280


@pytest.mark.parametrize("rate", [1e-6, 0.05, 0.9])
@pytest.mark.parametrize("delta", [1e-12, 1e-5, 0.2])
def test_one_round_of_a_cohort_is_the_remove_pair(rate: float, delta: float) -> None:
    cohort = compose({SymmetrizedPair(rate, 1.3): 1}, ADD)
    assert composed_epsilon(cohort, delta) == composed_epsilon(alone(rate, 1.3, REMOVE), delta)
    assert composed_delta(cohort, 0.3) == composed_delta(alone(rate, 1.3, REMOVE), 0.3)


@pytest.mark.parametrize("delta", [1e-100, 1e-20, 2e-13, 1e-5, 0.4])
def test_gaussians_compose_to_one(delta: float, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("inversion_epsilon", "inversion_delta"):
        monkeypatch.setattr(engines, name, refuse)
    pairs = {SampledGaussianPair(1.0, z, REMOVE): n for z, n in ((30.0, 1000), (7.0, 3), (0.9, 1))}
    mu = math.sqrt(1000 / 900 + 3 / 49 + 1 / 0.81)
    found, closed = composed_epsilon(compose(pairs), delta), gaussian_epsilon(delta, mu)
    assert found.lower <= closed.upper * (1 + 1e-12)
    assert closed.lower <= found.upper * (1 + 1e-12)
    assert found.upper == pytest.approx(closed.upper, rel=1e-9)
    there, exact = composed_delta(compose(pairs), 2.0), gaussian_delta(2.0, mu)
    assert there.lower <= exact.upper * (1 + 1e-12)
    assert exact.lower <= there.upper * (1 + 1e-12)


@pytest.mark.parametrize(
    "pairs",
    [
        {SampledGaussianPair(1e-3, 100.0, REMOVE): 1000},
        {SymmetrizedPair(1e-3, 100.0): 1000},
        {SampledGaussianPair(1.0, 1e4, REMOVE): 10, SampledGaussianPair(1e-4, 50.0, REMOVE): 100},
    ],
)
def test_what_moves_less_than_delta_costs_nothing(pairs: dict[DominatingPair, int]) -> None:
    total = 0.0
    for pair, count in pairs.items():
        remove = SampledGaussianPair(pair.sampling_rate, pair.noise_std, REMOVE)
        total += count * one_round_delta(0.0, remove).upper
    composition = compose(pairs)
    assert composed_epsilon(composition, total * 1.001) == Interval(0.0, 0.0)
    # The sum of the total variations is only a bound: somewhat below it delta(0) decides.
    below = composed_epsilon(composition, total * 0.3 / sum(pairs.values()))
    assert below.upper > 0
