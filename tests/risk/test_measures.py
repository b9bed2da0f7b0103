"""Attack risks in the bracket, and calibration to them on the safe side."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf

import dpacct
from dpacct import risk
from dpacct.accountant import find_accountant
from dpacct.budget import Interval
from dpacct.calibration.goals import EpsilonGoal, RiskGoal, find_goal
from dpacct.errors import InvalidParameter, NotConverged, Unsupported
from dpacct.risk.measures import tradeoff
from dpacct.rounds import Poisson, Round, Schedule, Uniform
from tests.oracles import neyman_pearson, sampled_gaussian
from tests.oracles.gaussian import delta as gaussian_delta
from tests.strategies import FEWER, log_uniform
from tests.truth import check

TIGHT = find_accountant("tight")
LONG: dict[str, Any] = {"noise_multiplier": 1.0, "rounds": 300, "sampling_rate": 0.1}


# What an attacker can do.


@pytest.mark.parametrize("mu", [1e-4, 0.3, 2.0, 12.0])
def test_everybody_every_round(mu):
    plan = 1 * Round(1 / mu)
    exact = 1 / (1 / mu)
    check(risk.advantage(plan), gaussian_delta(0, exact), 1e-7)
    check(risk.true_positive_rate(plan, fpr=0.01), neyman_pearson.gaussian_tpr(0.01, exact), 1e-7)
    for prior in (0.001, 0.3, 0.5, 0.9):
        check(risk.best_guess(plan, prior=prior), neyman_pearson.gaussian_guess(prior, exact), 1e-7)


@pytest.mark.parametrize(("q", "s"), [(0.1, 1.0), (0.7, 3.0), (0.01, 0.5)])
def test_one_round(q, s):
    plan = Round(s, Poisson(q))
    check(risk.advantage(plan), sampled_gaussian.delta_remove(0.0, q, s), 1e-7)
    for prior in (0.2, 0.5, 0.8):
        rare = min(mpf(prior), 1 - mpf(prior))
        odds = mp.log((1 - rare) / rare)
        sides = (sampled_gaussian.delta_remove, sampled_gaussian.delta_add)
        truth = 1 - rare + rare * max(side(float(odds), q, s) for side in sides)
        found = risk.best_guess(plan, prior=prior)
        # The oracle's epsilon is rounded.
        assert found.lower - 1e-15 <= truth <= found.upper + 1e-15


def test_the_advantage_is_the_widest_gap_of_the_curve():
    curve = tradeoff(**LONG, fpr=[k / 100 for k in range(6, 30, 2)])
    widest = risk.advantage(**LONG)
    gaps = [tpr.upper - fpr for fpr, tpr in zip(curve.fpr, curve.tpr, strict=True)]
    assert max(gaps) <= widest.upper * (1 + 1e-7)
    assert max(gaps) >= widest.lower * (1 - 1e-3)
    assert risk.advantage(**LONG) == Interval(widest.lower, widest.upper)


@FEWER
@given(st.floats(0.01, 0.99), log_uniform(1e-4, 0.99))
def test_no_test_of_the_curve_guesses_better(prior, fpr):
    found = risk.best_guess(**LONG, prior=prior)
    tpr = risk.true_positive_rate(**LONG, fpr=fpr)
    assert max(prior, 1 - prior) <= found.lower
    assert prior * tpr.lower + (1 - prior) * (1 - fpr) <= found.upper * (1 + 1e-12)


def test_at_even_odds_the_guess_is_half_the_advantage():
    advantage, guess = risk.advantage(**LONG), risk.best_guess(**LONG, prior=0.5)
    assert guess.upper == pytest.approx((1 + advantage.upper) / 2, rel=1e-9)
    assert guess.lower == pytest.approx((1 + advantage.lower) / 2, rel=1e-9)


def test_a_posterior_is_bayes_rule():
    tpr = risk.true_positive_rate(**LONG, fpr=0.01)
    for prior in (0.01, 0.5, 0.99):
        found = risk.posterior(**LONG, prior=prior, fpr=0.01)
        with mp.workdps(30):
            for value, rate in ((found.lower, tpr.lower), (found.upper, tpr.upper)):
                odds = mpf(prior) * mpf(rate) / ((1 - mpf(prior)) * mpf(0.01))
                assert value == pytest.approx(float(odds / (1 + odds)), rel=1e-12)
        assert prior < found.lower <= found.upper < 1
    rates = (1e-6, 1e-4, 1e-2, 0.5)
    surer = [risk.posterior(**LONG, prior=0.5, fpr=fpr).upper for fpr in rates]
    assert surer == sorted(surer, reverse=True)
    # Accusing everybody teaches nothing.
    assert risk.posterior(**LONG, prior=0.3, fpr=1.0).upper == pytest.approx(0.3)


def test_pure_epsilon_bounds_the_posterior():
    """The classic bound 1 / (1 + e^-eps) with delta in reserve: TPR <= e^eps FPR + delta."""
    fpr, delta = 0.01, 1e-5
    epsilon = dpacct.epsilon(**LONG, delta=delta, accountant="tight").upper
    tpr = math.exp(epsilon) * fpr + delta
    assert risk.posterior(**LONG, prior=0.5, fpr=fpr).upper <= tpr / (tpr + fpr)


def test_the_empty_schedule_teaches_nothing():
    assert risk.advantage(Schedule()) == Interval(0.0, 0.0)
    assert risk.best_guess(Schedule(), prior=0.2).upper == pytest.approx(0.8, rel=1e-14)


def test_fixed_size_cohorts_have_both_sides():
    plan = 50 * Round(2.4, Uniform(100, 2000))
    pair = 50 * Round(1.2, Poisson(0.05))
    found = risk.advantage(plan)
    assert found.lower == pytest.approx(risk.advantage(pair).lower, rel=1e-7)
    assert found.upper > found.lower * 1.01


calibrate = partial(dpacct.calibrate, rounds=3, sampling_rate=0.1)


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: risk.true_positive_rate(**LONG, fpr=2), "fpr"),
        (lambda: risk.posterior(**LONG, prior=0.5, fpr=0), "fpr"),
        (lambda: risk.posterior(**LONG, prior=0, fpr=0.1), "prior"),
        (lambda: risk.posterior(**LONG, prior=1, fpr=0.1), "prior"),
        (lambda: risk.best_guess(**LONG, prior=math.nan), "prior"),
        (lambda: risk.best_guess(**LONG, prior=1e-300), "prior"),
        (lambda: risk.advantage(**(LONG | {"sampling_rate": 10})), "sampling_rate"),
        (lambda: risk.advantage(**LONG, accountant="x"), "accountant"),
        (lambda: calibrate(advantage=0), "advantage"),
        (lambda: calibrate(advantage=1), "advantage"),
        (lambda: calibrate(advantage="much"), "advantage"),
        (lambda: calibrate(tpr=0.1, fpr=0.1), "tpr"),
        (lambda: calibrate(tpr=0.1, fpr=0.2), "tpr"),
        (lambda: calibrate(tpr=1.0, fpr=0.2), "tpr"),
        (lambda: calibrate(tpr=0.1), "fpr"),
        (lambda: calibrate(fpr=0.1), "fpr"),
        (lambda: calibrate(epsilon=1, delta=1e-5, fpr=0.1), "fpr"),
        (lambda: calibrate(epsilon=1, delta=1e-5, advantage=0.1), "advantage"),
        (lambda: calibrate(advantage=0.1, tpr=0.3, fpr=0.1), "tpr"),
        (lambda: calibrate(advantage=0.1, delta=2), "delta"),
        (
            lambda: calibrate(advantage=0.1, solve="epsilon", delta=1e-5, noise_multiplier=1),
            "advantage",
        ),
        (lambda: calibrate(tpr=0.1, solve="delta", epsilon=1, noise_multiplier=1), "tpr"),
    ],
)
def test_bad_input(call, name):
    with pytest.raises(InvalidParameter) as caught:
        call()
    assert caught.value.name == name


# Calibration to a risk.


def check_noise(plan: Schedule, cost: Any, target: float) -> None:
    """On target from below, and a little less noise would break it."""
    assert cost(plan) <= target
    assert cost(plan.scale_noise(1 - 1e-6)) > target


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "parts",
    [
        {"rounds": 300, "sampling_rate": 0.1},
        {"rounds": 9, "adjacency": "replace-one"},
        {"rounds": 1000, "sampling": Uniform(100, 2000)},
        {"rounds": 1, "sampling_rate": 0.3},
    ],
)
def test_noise_for_a_risk(parts):
    # A game would be solved to a few parts in ten thousand.
    accountant = "pairs" if isinstance(parts.get("sampling"), Uniform) else "tight"
    parts = {**parts, "accountant": accountant}
    found = dpacct.calibrate(advantage=0.1, **parts)
    assert found.goal == "advantage"
    assert found.target == 0.1
    assert found.risk == risk.advantage(found.schedule, accountant=accountant)
    check_noise(found.schedule, lambda p: risk.advantage(p, accountant=accountant).upper, 0.1)
    assert found.delta == 1e-5
    assert found.epsilon == dpacct.epsilon(found.schedule, delta=1e-5, accountant=accountant)

    found = dpacct.calibrate(tpr=0.1, fpr=0.01, delta=1e-6, **parts)
    assert found.goal == "TPR at FPR 0.01"
    assert found.risk is not None
    assert found.risk.upper <= 0.1
    assert found.delta == 1e-6
    rate = {"fpr": 0.01, "accountant": accountant}
    check_noise(found.schedule, lambda p: risk.true_positive_rate(p, **rate).upper, 0.1)


@pytest.mark.parametrize("mu", [0.01, 0.5, 3.0])
def test_noise_for_a_risk_against_everybody_every_round_is_exact(mu):
    advantage = float(gaussian_delta(0, mu))
    found = dpacct.calibrate(advantage=advantage, rounds=4, accountant="gdp")
    assert 2 / mu <= found.noise_multiplier * (1 + 1e-12)
    assert found.noise_multiplier <= 2 / mu * (1 + 1e-6)
    tpr = float(neyman_pearson.gaussian_tpr(0.01, mu))
    found = dpacct.calibrate(tpr=tpr, fpr=0.01, rounds=4, accountant="tight")
    assert 2 / mu * (1 - 1e-12) <= found.noise_multiplier <= 2 / mu * (1 + 1e-6)


def test_a_schedule_is_scaled_by_one_factor():
    plan = 100 * Round(1.0, Poisson(0.1)) + 200 * Round(2.0, Poisson(0.05))
    found = dpacct.calibrate(schedule=plan, advantage=0.2, accountant="tight")
    assert found.schedule == plan.scale_noise(found.noise_scale)
    check_noise(found.schedule, lambda p: risk.advantage(p).upper, 0.2)


def test_rounds_and_rate_for_a_risk():
    parts: dict[str, Any] = {"advantage": 0.1, "noise_multiplier": 2.0, "accountant": "tight"}
    found = dpacct.calibrate(**parts, sampling_rate=0.1, solve="rounds")
    one_more = (found.rounds + 1) * Round(2.0, Poisson(0.1))
    assert found.risk is not None
    assert found.risk.upper <= 0.1 < risk.advantage(one_more).upper
    found = dpacct.calibrate(**parts, rounds=50, solve="sampling_rate")
    denser = 50 * Round(2.0, Poisson(found.sampling_rate * (1 + 1e-6)))
    assert risk.advantage(found.schedule).upper <= 0.1 < risk.advantage(denser).upper


@FEWER
@given(log_uniform(0.1, 0.5), log_uniform(1e-2, 0.3), st.floats(0.05, 0.15))
def test_a_larger_limit_needs_no_more_noise(rate, fpr, share):
    tpr = fpr + share * (1 - fpr)
    parts: dict[str, Any] = {"rounds": 100, "sampling_rate": rate, "accountant": "tight"}
    strict = dpacct.calibrate(tpr=fpr + 0.8 * (tpr - fpr), fpr=fpr, **parts).noise_multiplier
    found = dpacct.calibrate(tpr=tpr, fpr=fpr, **parts)
    assert found.noise_multiplier <= strict * (1 + 1e-6)
    assert found.risk is not None
    assert found.risk.upper <= tpr


def test_a_risk_that_sampling_alone_excludes_needs_hardly_any_noise():
    """Who takes part with probability 0.1 once cannot be told apart with more advantage."""
    found = dpacct.calibrate(advantage=0.2, rounds=1, sampling_rate=0.1, accountant="tight")
    assert found.noise_multiplier == pytest.approx(1e-3)


def test_what_no_noise_in_range_reaches():
    with pytest.raises(NotConverged, match=r"gives advantage 1e-12"):
        dpacct.calibrate(advantage=1e-12, rounds=10**6)
    with pytest.raises(NotConverged, match=r"one round alone costs TPR at FPR 0.1 0\.\d+, more"):
        dpacct.calibrate(tpr=0.2, fpr=0.1, noise_multiplier=1, solve="rounds", accountant="gdp")
    with pytest.raises(Unsupported):
        dpacct.calibrate(advantage=0.1, rounds=3, sampling_rate=0.1, accountant="gdp")


def test_which_goal_is_meant():
    assert find_goal(TIGHT, epsilon=2, delta=1e-5) == EpsilonGoal(TIGHT, 2.0, 1e-5)
    assert find_goal(TIGHT, epsilon=None, delta=None, advantage=0.1) == RiskGoal(TIGHT, 0.1)
    found = find_goal(TIGHT, epsilon=None, delta=None, tpr=0.1, fpr=0.01)
    assert found == RiskGoal(TIGHT, 0.1, 0.01)
