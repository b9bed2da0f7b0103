"""Audits: against linear programs, textbook tests and exact mechanisms; sound, and quick to see."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import brentq, linprog
from scipy.stats import binom, chi2, norm, ttest_ind
from scipy.stats import t as student

from dpacct import Adjacency, Full, Poisson, Round, Uniform
from dpacct.empirical.audits import (
    Guesses,
    Promise,
    Seen,
    _most_noise,
    best_number,
    guess,
    judge,
    least_epsilon,
    log_ratios,
    refutes,
    smallest_tail,
)
from dpacct.empirical.confidence import NoiseEvidence
from dpacct.errors import InvalidParameter

DELTA = 1e-5
REPLACE = Adjacency.REPLACE_ONE
NOTHING = Promise(np.zeros(1), np.ones(1))


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


# Guesses.

LINES = st.lists(
    st.tuples(st.floats(0.0, 5.0), st.floats(0.0, 0.2)), min_size=1, max_size=4, unique=True
)


def largest_tail(guesses: Guesses, lines: list[tuple[float, float]]) -> float:
    """max P(W >= right) under all constraints, as a linear program in the law of W."""
    m, r, c = guesses.canaries, guesses.made, guesses.right
    counts = np.arange(r + 1)
    rows, limits = [], []
    for level in range(1, r + 1):
        right = np.where(counts >= level, counts, 0) / m
        wrong = np.where(counts >= level - 1, r - counts, 0) / m
        for eps, delta in lines:
            # The second row is wrong >= 1 - delta - e^eps (1 - right).
            rows += [right - math.exp(eps) * wrong, math.exp(eps) * right - wrong]
            limits += [delta, math.exp(eps) - 1 + delta]
    solved = linprog(
        -(counts >= c).astype(float), A_ub=np.array(rows), b_ub=np.array(limits),
        A_eq=np.ones((1, r + 1)), b_eq=[1.0], method="highs",
    )  # fmt: skip
    assert solved.status == 0
    return -solved.fun


@given(st.integers(1, 12), st.integers(0, 12), st.integers(0, 12), LINES)
def test_the_recursion_is_the_linear_program(made, spare, right, lines):
    guesses = Guesses(made + spare, made, min(right, made))
    epsilons, deltas = (np.array(part) for part in zip(*lines, strict=True))
    truth = largest_tail(guesses, lines)
    found = smallest_tail(guesses, epsilons, deltas, least=1e-9)
    assert truth * (1 - 1e-6) - 1e-9 <= found <= max(1e-9, truth * 1.011 + 1e-8)


@pytest.mark.parametrize("eps", [0.0, 0.3, 1.0, 3.0])
@pytest.mark.parametrize(("canaries", "right"), [(10, 9), (40, 30), (200, 160)])
def test_randomized_response_is_the_worst_pure_mechanism(eps, canaries, right):
    # Each coin is told truly with probability e^eps / (1 + e^eps): an eps-private mechanism, so
    # that no sound bound lies below its tail.
    truth = binom.sf(right - 1, canaries, 1 / (1 + math.exp(-eps)))
    guesses = Guesses(canaries, canaries, right)
    found = smallest_tail(guesses, np.array([eps]), np.zeros(1), least=1e-12)
    assert found >= truth * (1 - 1e-9)
    assert not refutes(guesses, np.array([[eps]]), np.zeros((1, 1)), truth)[0]


@pytest.mark.parametrize("eps", [0.5, 2.0])
def test_no_mechanism_on_a_few_coins_beats_the_bound(eps):
    """Random mechanisms of three coins, scaled into privacy, with their best attackers."""
    random, worlds, tightest = rng(3), list(product([0, 1], repeat=3)), 0.0
    near = [
        (a, b)
        for a in range(8)
        for b in range(8)
        if sum(map(int.__ne__, worlds[a], worlds[b])) == 1
    ]
    for trial in range(40):
        law = random.dirichlet(np.full(8, 0.3 + trial / 20), size=8) + 1e-6
        law /= law.sum(axis=1, keepdims=True)
        # Mix with the mean until no two neighbors differ by more than e^eps.
        while (ratio := max(float((law[a] / law[b]).max()) for a, b in near)) > math.exp(eps):
            law = 0.95 * law + 0.05 * law.mean(axis=0)
        # The attacker who aims at three right ones guesses the likeliest world of each outcome.
        best = law.max(axis=0).sum() / 8
        found = smallest_tail(
            Guesses(3, 3, 3), np.array([math.log(ratio)]), np.zeros(1), least=1e-9
        )
        assert found >= best * (1 - 1e-9)
        tightest = max(tightest, best / found)
    assert tightest > 0.3


def guessed(random: np.random.Generator, canaries: int, made: int, mu: float) -> Guesses:
    """The best attacker on independent Gaussian scores."""
    coins = random.random(canaries) < 0.5
    scores = random.normal(size=canaries) + mu * (coins - 0.5)
    surest = np.argsort(-np.abs(scores))[:made]
    return Guesses(canaries, made, int(np.sum((scores[surest] > 0) == coins[surest])))


@pytest.mark.parametrize(("mu", "made"), [(0.0, 60), (0.7, 20), (2.0, 60)])
def test_what_is_shown_is_exceeded_as_often_as_promised(mu, made):
    """A mechanism of known privacy: tail and epsilon err no more often than they say."""
    random, runs, error, delta = rng(11), 2000, 0.1, 1e-3
    m = max(mu, 1e-3)
    epsilons = np.linspace(0.0, m * m / 2 + 6 * m, 60)
    below = np.exp(epsilons + norm.logcdf(-m / 2 - epsilons / m))
    deltas = np.maximum(norm.cdf(m / 2 - epsilons / m) - below, 0.0)
    truth = float(np.interp(-delta, -deltas, epsilons))
    found = [guessed(random, 100, made, mu) for _ in range(runs)]
    refuted = {g: refutes(g, epsilons[None], deltas[None], error)[0] for g in set(found)}
    shown = {g: least_epsilon(g, delta, error) for g in set(found)}
    # Both are sound; five standard errors above what is allowed.
    most = runs * error + 5 * math.sqrt(runs * error)
    assert sum(refuted[g] for g in found) <= most
    assert sum(shown[g] > truth for g in found) <= most


def test_right_guesses_show_epsilon():
    # mu = 2: epsilon 10.0 at delta 1e-5.
    random = rng(5)
    shown = [least_epsilon(guessed(random, 1000, 200, 2.0), 1e-5, 0.05) for _ in range(5)]
    assert min(shown) > 2.5
    assert max(shown) < 10.0
    found = [least_epsilon(Guesses(100, 100, right), 1e-6, 0.05) for right in range(50, 101, 5)]
    assert found == sorted(found)
    assert (found[0], found[-1] > 2.0) == (0.0, True)
    some = Guesses(100, 50, 45)
    assert least_epsilon(some, 1e-3, 0.05) <= least_epsilon(some, 1e-6, 0.05)
    # A mechanism that fails altogether with probability delta may tell all coins then.
    assert least_epsilon(Guesses(200, 200, 200), 1e-5, 1e-6) == 0.0


@pytest.mark.parametrize("right", [65, 80, 99, 100])
@pytest.mark.parametrize("error", [0.05, 1e-4])
def test_what_is_shown_is_refuted_itself_and_little_more_is_not(right, error):
    guesses, delta = Guesses(120, 100, right), np.array([[1e-6]])
    shown = least_epsilon(guesses, 1e-6, error)
    assert shown == 0.0 or refutes(guesses, np.array([[shown]]), delta, error)[0]
    more = np.array([[shown + 2e-3 * max(1.0, shown)]])
    assert not refutes(guesses, more, delta, error)[0]


def test_a_promise_too_large_for_a_number_refutes_nothing():
    # Forty of forty are one in 2^40 without a promise, and nothing special with a boundless one.
    guesses = Guesses(canaries=40, made=40, right=40)
    found = refutes(guesses, np.array([[0.0], [800.0]]), np.zeros((2, 1)), 1e-6)
    assert found.tolist() == [True, False]
    tail = smallest_tail(guesses, np.array([1.0, 800.0]), np.zeros(2), least=1e-9)
    assert tail == smallest_tail(guesses, np.array([1.0]), np.zeros(1), least=1e-9)


# One run.


def simulated(seed, round_, rounds, *, canaries=150, noise=1.0, shift=1.0) -> Seen:
    """A run of Gaussian sums whose noise and contributions are these times what is charged."""
    random = seed if isinstance(seed, np.random.Generator) else rng(seed)
    sigma, q = round_.noise_multiplier, round_.sampling_rate
    coins = random.random(canaries) < 0.5
    signs = np.where(coins, 1.0, -1.0 if round_.adjacency is REPLACE else 0.0)
    here = random.random((rounds, canaries))
    if isinstance(round_.sampling, Uniform):
        here = here.argsort(axis=1).argsort(axis=1) / canaries
    drawn = random.normal(size=(rounds, 2 * canaries)) * sigma * noise
    evidence = NoiseEvidence([canaries])
    for row in drawn[:, canaries:]:
        evidence.see(row / sigma, 0.0, np.ones(canaries, dtype=bool))
    return Seen(
        shift * signs * (here < q) + drawn[:, :canaries], np.ones((rounds, canaries)), coins,
        drawn[:, canaries:], np.full(rounds, sigma), q, round_.adjacency, evidence.conclude(),
    )  # fmt: skip


def faults(seen: Seen, promise: Promise, error: float = 1e-6, made: int = 40) -> tuple[str, ...]:
    return judge(seen, promise, made, DELTA, error, 0.95).faults


FULL, POISSON = (Round(4.0, Full()), 20), (Round(0.8, Poisson(0.2)), 20)
FIXED = (Round(2.0, Uniform(30, 150)), 20)


@pytest.mark.parametrize(
    ("round_", "rounds"),
    [
        POISSON,
        *(pytest.param(*case, marks=pytest.mark.slow) for case in (FULL, FIXED)),
        pytest.param(Round(0.5, Full()), 1, marks=pytest.mark.slow),
    ],
)
def test_a_run_that_keeps_its_promise_passes(round_, rounds):
    random, promise = rng(1), Promise.of(rounds * round_)
    made = best_number(simulated(random, round_, rounds), DELTA, 0.05)
    wrong = 0
    for _ in range(5):
        seen = simulated(random, round_, rounds)
        assert faults(seen, promise, made=made) == ()
        shown = judge(seen, promise, made, DELTA, 0.1, 0.9)
        wrong += bool(shown.faults) + (shown.noise_factor < 1)
    # 10 tests of one in ten: 8 and more wrong ones have a probability below 1e-6.
    assert wrong < 8


@pytest.mark.parametrize(
    ("round_", "rounds", "fault", "found"),
    [
        (*FULL, {"noise": 0.7}, "noise"),
        (*POISSON, {"noise": 0.7}, "noise"),
        pytest.param(*FIXED, {"noise": 0.7}, "noise", marks=pytest.mark.slow),
        (*POISSON, {"shift": 1.8}, "contribution"),
        pytest.param(*FIXED, {"shift": 1.8}, "contribution", marks=pytest.mark.slow),
        (Round(0.5, Full()), 1, {"shift": 1.8}, "contribution"),
        (Round(16.0, Full()), 20, {"noise": 0.1}, "guesses"),
    ],
)
def test_a_fault_is_seen(round_, rounds, fault, found):
    seen = simulated(3, round_, rounds, canaries=400, **fault)
    assert found in faults(seen, Promise.of(rounds * round_))


def test_scores_are_likelihood_ratios():
    q, sigma = 0.25, 1.3
    seen = simulated(4, Round(sigma, Poisson(q)), 3, canaries=4)

    def density(shift):
        return np.exp(-((seen.projections - shift) ** 2) / (2 * sigma**2))

    there, other = (np.log((1 - q) * density(0) + q * density(s)).sum(axis=0) for s in (1, -1))
    assert log_ratios(seen) == pytest.approx(there - np.log(density(0)).sum(axis=0))
    assert log_ratios(replace(seen, adjacency=REPLACE)) == pytest.approx(there - other)


@pytest.mark.parametrize("coins", [[True] * 3 + [False] * 9, [True] * 8 + [False] * 4])
@pytest.mark.parametrize("adjacency", [Adjacency.ADD_REMOVE, REPLACE])
@pytest.mark.parametrize("rate", [1.0, 0.4])
def test_the_noise_factor_is_that_of_the_textbook(coins, adjacency, rate):
    rounds, error = 30, 0.1
    round_ = Round(0.5, Poisson(rate) if rate < 1 else Full(), adjacency)
    seen = replace(simulated(2, round_, rounds, canaries=12), coins=np.array(coins))
    moved = seen.signs(seen.coins) * (rng(3).random((rounds, 12)) < rate)
    seen = replace(seen, projections=0.5 * seen.empty + moved)
    found = judge(seen, NOTHING, 3, DELTA, 1e-6, 1 - error)
    # A tenth of what is left is for the noise.
    scaled = seen.empty / 0.5
    noise = math.sqrt((scaled**2).sum() / chi2.ppf(0.1 * error, scaled.size))
    means = seen.projections.mean(axis=0)
    inside, outside = means[seen.coins], means[~seen.coins]
    # Half of what is left is for the share of rounds that canaries take part in.
    tail = 0.45 * error if rate < 1 else 0.9 * error
    if adjacency is REPLACE:
        low = ttest_ind(inside, outside).confidence_interval(1 - 2 * tail).low / 2
        draws = rounds * 2 * min(len(inside), len(outside))
    else:
        # The mean of a linear model that has one regressor, who is in: by least squares.
        regressor = seen.coins.astype(float)[:, np.newaxis]
        [[slope], [rest], *_] = np.linalg.lstsq(regressor, means, rcond=None)
        low = slope - student.ppf(1 - tail, 11) * math.sqrt(rest / 11 / regressor.sum())
        draws = rounds * len(inside)

    def surprise(s):
        return draws * (s * math.log(s / rate) + (1 - s) * math.log((1 - s) / (1 - rate)))

    share = 1.0
    if rate < 1:
        share = brentq(lambda s: surprise(s) + math.log(tail), rate + 1e-9, 1 - 1e-9)
    assert found.noise_factor == pytest.approx(noise / (low / share), rel=1e-6)


def test_the_surest_coins_are_guessed():
    seen = simulated(5, Round(0.1, Full()), 1, canaries=60)
    # All but ten lie between the two sides; of those ten nine are told right, and one is not.
    projections = np.full((1, 60), 0.5001)
    projections[0, :10] = np.where(seen.coins[:10], 1.0, 0.0)
    projections[0, 0] = 0.0 if seen.coins[0] else 1.0
    assert guess(replace(seen, projections=projections), 10).right == 9


def test_others_hide_faults_and_make_none():
    random, round_ = rng(6), Round(1.0, Full())
    seen = simulated(random, round_, 10)
    louder = replace(
        seen,
        empty=seen.empty + random.normal(size=seen.empty.shape[1]) * 3,
        projections=seen.projections + random.normal(size=seen.projections.shape[1]) * 3,
    )
    shown = judge(louder, Promise.of(10 * round_), 40, DELTA, 1e-6, 0.95)
    assert (shown.faults, shown.noise_factor > 1.5) == ((), True)


def test_a_promise_is_that_of_the_accountant():
    promise = Promise.of(10 * Round(2.0, Poisson(0.3)))
    assert (np.diff(promise.epsilons) > 0).all()
    assert (np.diff(promise.deltas) <= 0).all()
    assert promise.deltas[-1] == pytest.approx(1e-9, rel=1e-3)


@pytest.mark.slow
def test_chance_of_the_sampling_is_no_fault():
    # If nearly everybody takes part, often all canaries inside do: more than their share.
    round_, random = Round(0.1, Poisson(0.95), REPLACE), rng(7)
    runs = [simulated(random, round_, 1, canaries=30) for _ in range(150)]
    # 0.45 are allowed on average; 5 and more have a probability below 2e-4 then.
    assert sum(bool(faults(seen, NOTHING, 3e-3, 1)) for seen in runs) < 5


def test_directions_that_a_round_does_not_carry_are_not_looked_at(monkeypatch):
    """The bound on the noise holds, and is wider, if a mask leaves directions out."""
    found, wrong, random = [], 0, rng(8)
    # What stands for the directions left out is drawn: here from a seed.
    drawn = rng(9)
    monkeypatch.setattr(np.random, "default_rng", lambda *_: drawn)
    for _ in range(40):
        seen = simulated(random, Round(1.0, Full()), 10)
        # As an adversarial mask: directions with little noise are left out in the next round.
        left = np.roll(np.abs(seen.empty) < 0.5, 1, axis=0)
        left[0] = False
        masked = replace(seen, empty=np.where(left, np.nan, seen.empty))
        found += [_most_noise(one, 0.05) for one in (seen, masked)]
        wrong += found[-1] < 1
    # Two of forty are allowed on average.
    assert wrong < 9
    assert np.mean(found[1::2]) > np.mean(found[::2]) > 1


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: Guesses(10, 11, 5), "made"),
        (lambda: Guesses(10, 5, 6), "right"),
        (lambda: Guesses(10, 5, -1), "right"),
        (lambda: Guesses(0, 1, 1), "canaries"),
    ],
)
def test_observations_that_cannot_be_are_refused(call, name):
    with pytest.raises(InvalidParameter, match=name):
        call()
