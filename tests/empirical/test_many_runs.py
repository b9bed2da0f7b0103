"""Many runs on two data sets: bounds that hold, and come close."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy.stats import norm

from dpacct import Adjacency, Full, Poisson, Round, epsilon
from dpacct.empirical.audits import Promise, Separated, separate
from dpacct.errors import InvalidParameter

DELTA = 1e-5


def for_epsilon(test):
    return test.epsilon(DELTA, 0.05)


def drawn(rng, runs, noise, rate=1.0, other=0.0):
    inside = (rng.random(runs) < rate) + noise * rng.normal(size=runs)
    outside = other * (rng.random(runs) < rate) + noise * rng.normal(size=runs)
    return inside, outside


def test_epsilon_is_that_of_the_limits():
    test = Separated(90, 10, 5, 95)
    tpr, fpr = test.tpr(0.025).lower, test.fpr(0.025).upper
    assert tpr < 0.9 < test.tpr(0.025).upper
    assert test.fpr(0.025).lower < 0.05 < fpr
    direct, turned = math.log((tpr - DELTA) / fpr), math.log((1 - fpr - DELTA) / (1 - tpr))
    found = test.epsilon(DELTA, 0.05)
    assert max(direct, turned) - 1e-9 < found <= max(direct, turned)
    # The other way round the better of both is the other one.
    turned_test = Separated(95, 5, 10, 90)
    assert turned_test.epsilon(DELTA, 0.05) == pytest.approx(found, rel=1e-6)


def test_nothing_shows_nothing():
    assert Separated(50, 50, 50, 50).epsilon(DELTA, 0.05) == 0.0
    assert Separated(0, 100, 0, 100).epsilon(DELTA, 0.05) == 0.0
    assert Separated(5, 95, 90, 10).epsilon(DELTA, 0.05) == 0.0
    assert math.isinf(Separated(50, 50, 50, 50).noise(1.0, 0.05, replaced=False))


def test_the_threshold_is_chosen_on_the_first_half_alone():
    # The second halves are the other way round: whoever looked at them would choose otherwise.
    inside = np.array([1.0] * 50 + [0.0] * 50)
    outside = np.array([0.0] * 50 + [1.0] * 50)
    assert separate(inside, outside, for_epsilon) == Separated(0, 50, 50, 0)


def test_the_gap_is_found_among_many_values():
    inside = np.array([*np.linspace(9, 12, 403), *[4.0, 6.0] * 201])
    outside = np.array([*np.linspace(-2, 1, 302), *[4.0, 6.0] * 151])
    # The middle of the gap of the first halves is 5, which halves the second ones.
    assert separate(inside, outside, for_epsilon) == Separated(201, 201, 151, 151)


@pytest.mark.parametrize(
    ("round_", "other"),
    [
        (Round(1.0, Full()), 0.0),
        pytest.param(Round(0.7, Poisson(0.4)), 0.0, marks=pytest.mark.slow),
        pytest.param(Round(1.5, Full(), Adjacency.REPLACE_ONE), -1.0, marks=pytest.mark.slow),
    ],
)
def test_bounds_hold_and_come_close(round_, other):
    rng = np.random.default_rng(1)
    truth = epsilon(round_, delta=DELTA)
    sigma, rate = round_.noise_multiplier, round_.sampling_rate
    promise = Promise.of(1 * round_)
    wrong = [0, 0, 0]
    shown: list[float] = []
    for _ in range(20):
        inside, outside = drawn(rng, 1000, sigma, rate, other)
        test = separate(inside, outside, for_epsilon)
        wide = separate(inside, outside, lambda tried: tried.distance(rate, 0.1))
        noise = wide.noise(rate, 0.1, replaced=other != 0)
        wrong[0] += test.epsilon(DELTA, 0.1) > truth.upper
        wrong[1] += noise < sigma
        wrong[2] += test.refutes(promise, 0.1)
        shown.append(noise)
        assert not test.refutes(promise, 1e-6)
    # 2 of 20 are allowed; 12 and more have a probability below 1e-7 then.
    assert max(wrong) < 12
    assert np.median(shown) < 1.5 * sigma


def test_half_of_epsilon_is_shown_by_the_gaussian_form():
    rng = np.random.default_rng(2)
    inside, outside = drawn(rng, 4000, 1.0)
    test = separate(inside, outside, lambda tried: tried.distance(1.0, 0.05))
    assert epsilon(Round(test.noise(1.0, 0.05, replaced=False), Full()), delta=DELTA).lower > 3.0
    assert separate(inside, outside, for_epsilon).epsilon(DELTA, 0.05) > 1.5


def test_the_gaussian_form_inverts_the_trade_off():
    # Counts so large that limits are the shares.
    alpha, runs = 0.1, 10**9
    tpr = norm.sf(norm.isf(alpha) - 1 / 0.8)
    test = Separated(round(tpr * runs), round((1 - tpr) * runs), runs // 10, runs * 9 // 10)
    assert test.noise(1.0, 0.05, replaced=False) == pytest.approx(0.8, rel=1e-3)
    assert test.noise(1.0, 0.05, replaced=True) == pytest.approx(1.6, rel=1e-3)
    sampled = 0.3 * tpr + 0.7 * alpha
    found = Separated(
        round(sampled * runs), round((1 - sampled) * runs), runs // 10, runs * 9 // 10
    )
    assert found.noise(0.3, 0.05, replaced=False) == pytest.approx(0.8, rel=1e-3)


@pytest.mark.parametrize("noise", [0.2, 0.4])
def test_less_noise_than_promised_is_seen(noise):
    rng = np.random.default_rng(3)
    inside, outside = drawn(rng, 1000, noise)
    test = separate(inside, outside, for_epsilon)
    assert test.refutes(Promise.of(1 * Round(1.0, Full())), 1e-6)


@pytest.mark.parametrize("bad", [np.zeros(3), np.array([0.0, 1.0, np.nan, 2.0])])
def test_bad_numbers_are_refused(bad):
    with pytest.raises(InvalidParameter, match="inside"):
        separate(bad, np.zeros(10), for_epsilon)
