"""What one run shows: sound on what keeps its promise, and quick to see what does not."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import chi2, ttest_ind
from scipy.stats import t as student

from dpacct import Adjacency, Full, Poisson, Round, Uniform
from dpacct.empirical.audits import Promise, Seen, best_number, guess, judge, log_ratios


def simulated(
    rng: np.random.Generator,
    round_: Round,
    rounds: int,
    *,
    canaries: int = 150,
    noise: float = 1.0,
    shift: float = 1.0,
) -> Seen:
    """A run of Gaussian sums whose noise and contributions are these times what is charged."""
    sigma, q = round_.noise_multiplier, round_.sampling_rate
    coins = rng.random(canaries) < 0.5
    replaced = round_.adjacency is Adjacency.REPLACE_ONE
    signs = np.where(coins, 1.0, -1.0 if replaced else 0.0)
    if isinstance(round_.sampling, Uniform):
        order = rng.random((rounds, canaries)).argsort(axis=1).argsort(axis=1)
        here = order < q * canaries
    else:
        here = rng.random((rounds, canaries)) < q
    drawn = rng.normal(size=(rounds, 2 * canaries)) * sigma * noise
    return Seen(
        shift * signs * here + drawn[:, :canaries],
        np.ones((rounds, canaries)),
        coins,
        drawn[:, canaries:],
        np.full(rounds, sigma),
        q,
        round_.adjacency,
    )


ROUNDS = [
    (Round(4.0, Full()), 20),
    (Round(0.8, Poisson(0.2)), 20),
    (Round(2.0, Uniform(30, 150)), 20),
    (Round(0.5, Full()), 1),
    (Round(16.0, Full()), 20),
]


@pytest.mark.parametrize("number", [0, 1, 3, pytest.param(2, marks=pytest.mark.slow)])
def test_a_run_that_keeps_its_promise_passes(number):
    round_, rounds = ROUNDS[number]
    rng = np.random.default_rng(1)
    promise = Promise.of(rounds * round_)
    made = best_number(simulated(rng, round_, rounds), 1e-5, 0.05)
    wrong = 0
    for _ in range(20):
        seen = simulated(rng, round_, rounds)
        assert judge(seen, promise, made, 1e-5, 1e-6, 0.95).faults == ()
        shown = judge(seen, promise, made, 1e-5, 0.1, 0.9)
        wrong += bool(shown.faults) + (shown.noise_factor < 1)
    # 40 tests of one in ten: 4 are allowed; 16 and more have a probability below 2e-6 then.
    assert wrong < 16


@pytest.mark.parametrize(
    ("number", "fault", "found"),
    [
        (0, {"noise": 0.7}, "noise"),
        (1, {"noise": 0.7}, "noise"),
        pytest.param(2, {"noise": 0.7}, "noise", marks=pytest.mark.slow),
        (1, {"shift": 1.8}, "contribution"),
        pytest.param(2, {"shift": 1.8}, "contribution", marks=pytest.mark.slow),
        (3, {"shift": 1.8}, "contribution"),
        (4, {"noise": 0.1}, "guesses"),
    ],
)
def test_a_fault_is_seen(number, fault, found):
    round_, rounds = ROUNDS[number]
    seen = simulated(np.random.default_rng(3), round_, rounds, canaries=400, **fault)
    shown = judge(seen, Promise.of(rounds * round_), 40, 1e-5, 1e-6, 0.95)
    assert found in shown.faults


def test_scores_are_likelihood_ratios():
    rng = np.random.default_rng(4)
    seen = simulated(rng, Round(1.3, Poisson(0.25)), 3, canaries=4)
    q, sigma = 0.25, 1.3
    x = seen.projections
    alone = np.exp(-(x**2) / (2 * sigma**2))
    moved = np.exp(-((x - 1) ** 2) / (2 * sigma**2))
    opposite = np.exp(-((x + 1) ** 2) / (2 * sigma**2))
    there = np.log((1 - q) * alone + q * moved).sum(axis=0)
    assert log_ratios(seen) == pytest.approx(there - np.log(alone).sum(axis=0))
    swapped = replace(seen, adjacency=Adjacency.REPLACE_ONE)
    other = np.log((1 - q) * alone + q * opposite).sum(axis=0)
    assert log_ratios(swapped) == pytest.approx(there - other)


@pytest.mark.parametrize("coins", [[True] * 3 + [False] * 9, [True] * 8 + [False] * 4])
@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, Adjacency.REPLACE_ONE])
@pytest.mark.parametrize("rate", [1.0, 0.4])
def test_the_noise_factor_is_that_of_the_textbook(coins, adjacency, rate):
    rounds, error = 30, 0.1
    round_ = Round(0.5, Poisson(rate) if rate < 1 else Full(), adjacency)
    seen = simulated(np.random.default_rng(2), round_, rounds, canaries=12)
    seen = replace(seen, coins=np.array(coins))
    moved = seen.signs(seen.coins) * (np.random.default_rng(3).random((rounds, 12)) < rate)
    seen = replace(seen, projections=0.5 * seen.empty + moved)
    found = judge(seen, Promise(np.zeros(1), np.ones(1)), 3, 1e-5, 1e-6, 1 - error)
    scaled = seen.empty / 0.5
    # A tenth of what is left is for the noise.
    noise = math.sqrt((scaled**2).sum() / chi2.ppf(0.1 * error, scaled.size))
    means = seen.projections.mean(axis=0)
    inside, outside = means[seen.coins], means[~seen.coins]
    # Half of what is left is for the share of rounds that canaries take part in.
    tail = 0.45 * error if rate < 1 else 0.9 * error
    replaced = adjacency is Adjacency.REPLACE_ONE
    if replaced:
        low = ttest_ind(inside, outside).confidence_interval(1 - 2 * tail).low
    else:
        # The mean of a linear model that has one regressor, who is in: by least squares.
        regressor = seen.coins.astype(float)[:, np.newaxis]
        [[slope], [rest], *_] = np.linalg.lstsq(regressor, means, rcond=None)
        deviation = math.sqrt(rest / 11 / regressor.sum())
        low = slope - student.ppf(1 - tail, 11) * deviation
    draws = rounds * (2 * min(len(inside), len(outside)) if replaced else len(inside))
    share = 1.0

    def surprise(s):
        return draws * (s * math.log(s / rate) + (1 - s) * math.log((1 - s) / (1 - rate)))

    if rate < 1:
        share = brentq(lambda s: surprise(s) + math.log(0.45 * error), rate + 1e-9, 1 - 1e-9)
    contribution = low / share / (2 if replaced else 1)
    assert found.noise_factor == pytest.approx(noise / contribution, rel=1e-6)


def test_the_surest_coins_are_guessed():
    seen = simulated(np.random.default_rng(5), Round(0.1, Full()), 1, canaries=60)
    # All but ten lie between the two sides; of those ten nine are told right, and one is not.
    projections = np.full((1, 60), 0.5001)
    projections[0, :10] = np.where(seen.coins[:10], 1.0, 0.0)
    projections[0, 0] = 0.0 if seen.coins[0] else 1.0
    assert guess(replace(seen, projections=projections), 10).right == 9


def test_others_hide_faults_and_make_none():
    rng = np.random.default_rng(6)
    round_ = Round(1.0, Full())
    seen = simulated(rng, round_, 10)
    background = rng.normal(size=seen.empty.shape[1]) * 3
    louder = replace(
        seen,
        empty=seen.empty + background,
        projections=seen.projections + rng.normal(size=seen.projections.shape[1]) * 3,
    )
    shown = judge(louder, Promise.of(10 * round_), 40, 1e-5, 1e-6, 0.95)
    assert shown.faults == ()
    assert shown.noise_factor > 1.5


def test_a_promise_is_that_of_the_accountant():
    promise = Promise.of(10 * Round(2.0, Poisson(0.3)))
    assert (np.diff(promise.epsilons) > 0).all()
    assert (np.diff(promise.deltas) <= 0).all()
    assert promise.deltas[-1] == pytest.approx(1e-9, rel=1e-3)


def test_chance_of_the_sampling_is_no_fault():
    # Where nearly everybody takes part, often all canaries inside do: more than their share.
    round_ = Round(0.1, Poisson(0.95), Adjacency.REPLACE_ONE)
    promise = Promise(np.zeros(1), np.ones(1))
    rng = np.random.default_rng(7)
    wrong = [
        judge(simulated(rng, round_, 1, canaries=30), promise, 1, 1e-5, 3e-3, 0.95).faults
        for _ in range(150)
    ]
    # 0.45 are allowed on average; 5 and more have a probability below 2e-4 then.
    assert sum(map(bool, wrong)) < 5


def test_directions_that_a_round_does_not_carry_are_not_looked_at():
    seen = simulated(np.random.default_rng(8), Round(1.0, Full()), 10)
    gone = np.random.default_rng(9).random(seen.empty.shape) < 0.7
    masked = replace(seen, empty=np.where(gone, np.nan, seen.empty))
    promise = Promise.of(10 * Round(1.0, Full()))
    assert judge(masked, promise, 40, 1e-5, 1e-6, 0.95).faults == ()
    quiet = replace(masked, empty=masked.empty * 0.5)
    assert "noise" in judge(quiet, promise, 40, 1e-5, 1e-6, 0.95).faults


@pytest.mark.parametrize(("scale", "faults"), [(1.0, ()), (0.1, ("noise",))])
def test_a_small_part_without_its_noise_is_seen(scale, faults):
    """However little of the model it is: what others send there can only add to it."""
    round_, rounds = ROUNDS[0]
    rng = np.random.default_rng(9)
    seen = simulated(rng, round_, rounds)
    terms = np.array([4000, 60, 0])
    squares = rng.chisquare(terms.clip(min=1)) * (terms > 0) * np.array([1.0, scale**2, 1.0])
    found = judge(
        replace(seen, squares=squares, terms=terms),
        Promise.of(rounds * round_),
        20,
        1e-5,
        1e-6,
        0.95,
    )
    assert found.faults == faults


def test_parts_of_sound_runs_are_seldom_called_quieter():
    """As often as the error says, by a known seed."""
    from dpacct.empirical.audits import _quieter_part

    rng = np.random.default_rng(3)
    seen = simulated(rng, *ROUNDS[0])
    terms = np.array([1, 2, 40, 3000])
    runs = [replace(seen, squares=rng.chisquare(terms), terms=terms) for _ in range(3000)]
    # 60 expected at most, with a standard deviation of 8.
    assert 20 < sum(_quieter_part(run, 0.02) for run in runs) < 110
