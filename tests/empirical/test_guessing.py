"""The bound on right guesses: against linear programs, exact mechanisms, and attackers."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import linprog
from scipy.stats import binom, norm

from dpacct.empirical.audits import Guesses, least_epsilon, refutes, smallest_tail
from dpacct.errors import InvalidParameter

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
            rows.append(right - math.exp(eps) * wrong)
            limits.append(delta)
            # 1 - right <= ... turned round: wrong >= 1 - delta - e^eps (1 - right).
            rows.append(math.exp(eps) * right - wrong)
            limits.append(math.exp(eps) - 1 + delta)
    solved = linprog(
        -(counts >= c).astype(float),
        A_ub=np.array(rows),
        b_ub=np.array(limits),
        A_eq=np.ones((1, r + 1)),
        b_eq=[1.0],
        method="highs",
    )
    assert solved.status == 0
    return -solved.fun


@given(st.integers(1, 12), st.integers(0, 12), st.integers(0, 12), LINES)
def test_the_recursion_is_the_linear_program(made, spare, right, lines):
    guesses = Guesses(made + spare, made, min(right, made))
    epsilons, deltas = (np.array(part) for part in zip(*lines, strict=True))
    truth = largest_tail(guesses, lines)
    found = smallest_tail(guesses, epsilons, deltas, least=1e-9)
    assert found >= truth * (1 - 1e-6) - 1e-9
    assert found <= max(1e-9, truth * 1.011 + 1e-8)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 3.0])
@pytest.mark.parametrize(("canaries", "right"), [(10, 9), (40, 30), (200, 160)])
def test_randomized_response_is_the_worst_pure_mechanism(epsilon, canaries, right):
    # Each coin told truly with probability e^eps / (1 + e^eps), and independently: a mechanism that
    # is eps-private, so that no sound bound lies below its tail.
    truth = binom.sf(right - 1, canaries, 1 / (1 + math.exp(-epsilon)))
    guesses = Guesses(canaries, canaries, right)
    found = smallest_tail(guesses, np.array([epsilon]), np.zeros(1), least=1e-12)
    assert found >= truth * (1 - 1e-9)
    assert not refutes(guesses, np.array([[epsilon]]), np.zeros((1, 1)), truth)[0]


@pytest.mark.parametrize("epsilon", [0.5, 2.0])
def test_no_mechanism_on_a_few_coins_beats_the_bound(epsilon):
    """Random mechanisms of three coins, scaled into privacy, with their best attackers."""
    rng = np.random.default_rng(3)
    worlds = list(product([0, 1], repeat=3))
    neighbors = [
        (a, b)
        for a, one in enumerate(worlds)
        for b, two in enumerate(worlds)
        if sum(x != y for x, y in zip(one, two, strict=True)) == 1
    ]
    tightest = 0.0
    for trial in range(40):
        law = rng.dirichlet(np.full(8, 0.3 + trial / 20), size=8) + 1e-6
        law /= law.sum(axis=1, keepdims=True)
        for _ in range(200):
            # Mix with the mean until no two neighbors differ by more than e^eps.
            if max((law[a] / law[b]).max() for a, b in neighbors) <= math.exp(epsilon):
                break
            law = 0.95 * law + 0.05 * law.mean(axis=0)
        ratio = max(float((law[a] / law[b]).max()) for a, b in neighbors)
        actual = math.log(ratio)
        # The attacker who aims at three right ones guesses the likeliest world of each outcome.
        best = law.max(axis=0).sum() / 8
        guesses = Guesses(3, 3, 3)
        found = smallest_tail(guesses, np.array([actual]), np.zeros(1), least=1e-9)
        assert found >= best * (1 - 1e-9)
        tightest = max(tightest, best / found)
    assert tightest > 0.3


def gaussian_promise(mu: float) -> tuple[np.ndarray, np.ndarray]:
    epsilons = np.linspace(0.0, mu * mu / 2 + 6 * mu, 60)
    deltas = norm.cdf(mu / 2 - epsilons / mu) - np.exp(
        epsilons + norm.logcdf(-mu / 2 - epsilons / mu)
    )
    return epsilons, np.maximum(deltas, 0.0)


def guessed(rng: np.random.Generator, canaries: int, made: int, mu: float) -> Guesses:
    """The best attacker on independent Gaussian scores."""
    coins = rng.random(canaries) < 0.5
    scores = rng.normal(size=canaries) + mu * (coins - 0.5)
    surest = np.argsort(-np.abs(scores))[:made]
    return Guesses(canaries, made, int(np.sum((scores[surest] > 0) == coins[surest])))


@pytest.mark.parametrize(("mu", "made"), [(0.0, 60), (0.7, 20), (2.0, 60)])
def test_what_is_shown_is_exceeded_as_often_as_promised(mu, made):
    """A mechanism of known privacy: chance and epsilon err no more often than they say."""
    rng = np.random.default_rng(11)
    runs, error = 2000, 0.1
    epsilons, deltas = gaussian_promise(max(mu, 1e-3))
    delta = 1e-3
    truth = float(np.interp(-delta, -deltas, epsilons))
    found = [guessed(rng, 100, made, mu) for _ in range(runs)]
    refuted = {
        guess: refutes(guess, epsilons[np.newaxis], deltas[np.newaxis], error)[0]
        for guess in set(found)
    }
    shown = {guess: least_epsilon(guess, delta, error) for guess in set(found)}
    # Both are sound; five standard errors above what is allowed.
    most = runs * error + 5 * math.sqrt(runs * error)
    assert sum(refuted[guess] for guess in found) <= most
    assert sum(shown[guess] > truth for guess in found) <= most


def test_a_gaussian_run_shows_a_good_part_of_its_epsilon():
    rng = np.random.default_rng(5)
    # mu = 2: epsilon 10.0 at delta 1e-5.
    shown = [least_epsilon(guessed(rng, 1000, 200, 2.0), 1e-5, 0.05) for _ in range(5)]
    assert min(shown) > 2.5
    assert max(shown) < 10.0


def test_more_right_guesses_show_more_and_a_smaller_delta_too():
    found = [least_epsilon(Guesses(100, 100, right), 1e-6, 0.05) for right in range(50, 101, 5)]
    assert found == sorted(found)
    assert found[0] == 0.0
    assert found[-1] > 2.0
    assert least_epsilon(Guesses(100, 50, 45), 1e-3, 0.05) <= least_epsilon(
        Guesses(100, 50, 45), 1e-6, 0.05
    )


@pytest.mark.parametrize("right", [65, 80, 99, 100])
@pytest.mark.parametrize("error", [0.05, 1e-4])
def test_what_is_shown_is_refuted_itself_and_little_more_is_not(right, error):
    guesses, delta = Guesses(120, 100, right), np.array([[1e-6]])
    shown = least_epsilon(guesses, 1e-6, error)
    assert shown == 0.0 or refutes(guesses, np.array([[shown]]), delta, error)[0]
    more = np.array([[shown + 2e-3 * max(1.0, shown)]])
    assert not refutes(guesses, more, delta, error)[0]


def test_an_error_below_delta_shows_nothing():
    # Something that fails altogether with probability delta may tell all coins then.
    assert least_epsilon(Guesses(200, 200, 200), 1e-5, 1e-6) == 0.0


@pytest.mark.parametrize(
    ("canaries", "made", "right", "name"),
    [(10, 11, 5, "made"), (10, 5, 6, "right"), (10, 5, -1, "right"), (0, 1, 1, "canaries")],
)
def test_guesses_that_cannot_be(canaries, made, right, name):
    with pytest.raises(InvalidParameter, match=name):
        Guesses(canaries, made, right)


def test_a_promise_too_large_for_a_number_refutes_nothing():
    guesses = Guesses(canaries=40, made=40, right=40)
    none = np.zeros((2, 1))
    # Forty of forty are one in 2^40 without a promise, and nothing special with a boundless one.
    assert refutes(guesses, np.array([[0.0], [800.0]]), none, 1e-6).tolist() == [True, False]
    found = smallest_tail(guesses, np.array([1.0, 800.0]), np.zeros(2), least=1e-9)
    assert found == smallest_tail(guesses, np.array([1.0]), np.zeros(1), least=1e-9)
