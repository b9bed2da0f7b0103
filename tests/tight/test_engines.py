"""Which engine answers: closed forms where there are some, and both engines agree where not."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mpf

from dpacct.budget import Interval
from dpacct.errors import NotConverged
from dpacct.pairs.dominating import Direction, SampledGaussianPair, SymmetrizedPair
from dpacct.pairs.one_round import gaussian_delta, gaussian_epsilon, one_round_delta
from dpacct.rounds import Poisson, Round, Schedule
from dpacct.tight import composition, engines
from dpacct.tight.accountant import TightAccountant
from dpacct.tight.composition import Composition
from dpacct.tight.contour import (
    epsilon_estimate,
    log_chernoff_factor,
    log_delta_estimate,
    tilt_at_delta,
    tilt_at_epsilon,
)
from dpacct.tight.engines import composed_delta, composed_epsilon
from tests.oracles.contour import one_round
from tests.strategies import log_uniform
from tests.tight.compositions import ADD, REMOVE, compose


def refuse(composition: Composition, at: float) -> Interval:
    raise NotConverged(f"{composition} is not asked for at {at}")


@given(
    rate=log_uniform(1e-7, 1.0),
    noise=log_uniform(0.05, 1000.0),
    delta=log_uniform(1e-60, 0.5),
    direction=st.sampled_from(Direction),
)
def test_one_round_is_its_closed_form(rate, noise, delta, direction):
    composition = compose([(rate, noise, 1)], direction)
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
def test_one_round_of_a_cohort_is_the_remove_pair(rate, delta):
    cohort = Composition.of({SymmetrizedPair(rate, 1.3): 1}, ADD)
    assert composed_epsilon(cohort, delta) == composed_epsilon(compose([(rate, 1.3, 1)]), delta)
    assert composed_delta(cohort, 0.3) == composed_delta(compose([(rate, 1.3, 1)]), 0.3)


@pytest.mark.parametrize("delta", [1e-100, 1e-20, 2e-13, 1e-5, 0.4])
def test_gaussians_compose_to_one(delta, monkeypatch):
    for name in ("inversion_epsilon", "inversion_delta"):
        monkeypatch.setattr(engines, name, refuse)
    composition = compose([(1.0, 30.0, 1000), (1.0, 7.0, 3), (1.0, 0.9, 1)])
    mu = math.sqrt(1000 / 900 + 3 / 49 + 1 / 0.81)
    found, closed = composed_epsilon(composition, delta), gaussian_epsilon(delta, mu)
    assert found.upper == pytest.approx(closed.upper, rel=1e-9)
    there, exact = composed_delta(composition, 2.0), gaussian_delta(2.0, mu)
    for one, other in ((found, closed), (there, exact)):
        assert one.lower <= other.upper * (1 + 1e-12)
        assert other.lower <= one.upper * (1 + 1e-12)


@pytest.mark.parametrize(
    "pairs",
    [
        {SampledGaussianPair(1e-3, 100.0, REMOVE): 1000},
        {SymmetrizedPair(1e-3, 100.0): 1000},
        {SampledGaussianPair(1.0, 1e4, REMOVE): 10, SampledGaussianPair(1e-4, 50.0, REMOVE): 100},
    ],
)
def test_what_moves_less_than_delta_costs_nothing(pairs):
    total = 0.0
    for pair, count in pairs.items():
        remove = SampledGaussianPair(pair.sampling_rate, pair.noise_std, REMOVE)
        total += count * one_round_delta(0.0, remove).upper
    composition = Composition.of(pairs, REMOVE)
    assert composed_epsilon(composition, total * 1.001) == Interval(0.0, 0.0)
    # The sum of the total variations is only a bound: somewhat below it delta(0) decides.
    below = composed_epsilon(composition, total * 0.3 / sum(pairs.values()))
    assert below.upper > 0


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
def test_no_other_tilt_is_better(rate, noise, rounds, delta, direction):
    composition = compose([(rate, noise, rounds)], direction)
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


@given(
    rate=log_uniform(1e-7, 1.0),
    noise=log_uniform(0.2, 1000.0),
    rounds=log_uniform(1, 1e7).map(int),
    delta=log_uniform(1e-20, 0.5),
    direction=st.sampled_from(Direction),
)
def test_any_setting_has_a_usable_tilt(rate, noise, rounds, delta, direction):
    composition = compose([(rate, noise, rounds)], direction)
    tilt, at = tilt_at_delta(composition, math.log(delta))
    assert 0 < tilt < math.inf
    assert math.isfinite(epsilon_estimate(tilt, at, math.log(delta)))
    assert at.variance > 0


OF_KINDS = (composition._cumulants_of, composition._moments_of, composition._losses_of)


def test_answers_do_not_depend_on_what_was_asked_before() -> None:
    """What a kind of round has at a tilt is kept, whatever the counts, delta and epsilon."""
    kinds = [Round(1.3, Poisson(0.02)), Round(2.0, Poisson(0.1), "replace-one")]
    plans = [count * kind for kind in kinds for count in (30, 300, 333)]
    plans.append(300 * kinds[0] + 20 * Round(0.9, Poisson(0.01)))
    asked = [(plan, delta) for plan in plans for delta in (1e-5, 1e-7)]

    def answer(question: tuple[Schedule, float], *, alone: bool = False) -> Interval:
        for kept in (engines.by_pairs, *(OF_KINDS if alone else ())):
            kept.cache_clear()
        return TightAccountant().epsilon(*question)

    fresh = [answer(question, alone=True) for question in asked]
    assert fresh == [answer(question) for question in asked]
    assert fresh[::-1] == [answer(question) for question in asked[::-1]]
