"""Contour inversion against 50-digit truth: brackets hold the truth, and they are narrow."""

from __future__ import annotations

import contextlib
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from mpmath import mp, mpf

from dpacct.accountant import find_accountant
from dpacct.budget import Interval
from dpacct.errors import NotConverged
from dpacct.pairs.dominating import Direction, SampledGaussianPair
from dpacct.pairs.one_round import gaussian_delta, gaussian_epsilon, one_round_delta
from dpacct.rounds import Phase, Poisson, Round, Schedule
from dpacct.tight.engines import (
    chernoff_delta,
    composed_epsilon,
    inversion_delta,
    inversion_epsilon,
)
from tests.oracles import contour
from tests.oracles import gaussian as exact_gaussian
from tests.oracles.answers import known
from tests.strategies import log_uniform
from tests.tight.compositions import COHORT, compose, pair_of
from tests.truth import check

# (rounds as (rate, noise, count), epsilon near delta = 1e-5 or so)
SETTINGS: list[tuple[contour.Rounds, float]] = [
    ([(0.1, 1.2860094, 300)], 8.0),
    ([(0.01, 1.1, 5000)], 3.0),
    ([(0.02, 0.9, 1500)], 4.0),
    ([(0.9999, 5.0, 60)], 9.0),
    ([(0.0002, 1.5, 1_000_000)], 0.5),
    ([(0.5, 3.0, 30)], 4.0),
    ([(0.1, 1.5, 100), (0.05, 1.0, 200)], 4.0),
    ([(0.2, 2.0, 50), (0.01, 0.7, 300), (0.6, 9.0, 20)], 5.0),
    ([(0.05, 2.4, 200), (1.0, 20.0, 3)], 1.0),
    ([(0.1, 1.5, 100), (0.3, 6.0, 30), (1.0, 8.0, 10), (1.0, 3.0, 1)], 6.0),
]


def true_delta(epsilon: float, rounds: contour.Rounds, direction: Direction) -> mpf:
    (found,) = known(contour.deltas, [epsilon], rounds, remove=direction is Direction.REMOVE)
    return found


def check_ends(
    bracket: Interval, rounds: contour.Rounds, delta: float, direction: Direction
) -> None:
    """Check eps(delta): delta(eps) decreases, and is on either side of the target at both ends."""
    remove = direction is Direction.REMOVE
    above, below = contour.deltas([bracket.lower, bracket.upper], rounds, remove=remove)
    assert below <= delta <= above


EPSILONS = [
    *((*setting, 1e-8) for setting in SETTINGS),
    # The same number of rounds costs the error of one round that many times.
    ([(1e-4, 2.0, 10**7)], 1.0, 1e-6),
    ([(1e-5, 1.0, 10**9)], 3.0, 1e-6),
    ([(1e-6, 1.0, 10**12)], 8.0, 1e-6),
    ([(1e-3, 100.0, 10**9)], 3.0, 1e-6),
    ([(0.01, 1000.0, 10**10)], 5.0, 1e-6),
    # Any epsilon is fine.
    *(([(0.1, 1.3, 100)], epsilon, 1e-7) for epsilon in (0.0, 1e-9, 0.3, 6.0, 9.0)),
]


@pytest.mark.sampled(16)
@pytest.mark.parametrize(
    ("direction", "rounds", "epsilon", "width"),
    [
        *((direction, *case) for direction in Direction for case in EPSILONS),
        # Orders are 1 + c: beside 1e10 of epsilon a tilt must not differ from that by 1e-16.
        (Direction.REMOVE, [(0.5, 1.0, 10**11)], 13857948900.0, 1e-6),
    ],
)
def test_delta_holds_the_truth(direction, rounds, epsilon, width):
    composition, truth = compose(rounds, direction), true_delta(epsilon, rounds, direction)
    bracket = inversion_delta(composition, epsilon)
    check(bracket, truth)
    assert bracket.width <= width * bracket.upper
    # Chernoff's bound is rarely far off at settings of interest.
    chernoff = chernoff_delta(composition, epsilon)
    assert truth <= chernoff
    assert chernoff <= 30 * truth or width > 1e-8


@pytest.mark.sampled(4)
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("delta", [0.05, 1e-15, 1e-20])
@pytest.mark.parametrize("rounds", [SETTINGS[0][0], SETTINGS[6][0], SETTINGS[9][0]])
def test_epsilon_holds_the_truth(rounds, delta, direction):
    bracket = inversion_epsilon(compose(rounds, direction), delta)
    assert 0 < bracket.lower < bracket.upper
    assert bracket.width <= 1e-8 * bracket.upper
    check_ends(bracket, rounds, delta, direction)


@pytest.mark.slow
@pytest.mark.parametrize("direction", Direction)
def test_oracle_does_not_depend_on_its_resolution(direction):
    remove = direction is Direction.REMOVE
    contour.checked_deltas([4.0, 3.9], SETTINGS[6][0], remove=remove)
    contour.checked_deltas([1.0], SETTINGS[8][0], remove=remove)


@pytest.mark.parametrize("direction", Direction)
def test_oracle_knows_the_exact_gaussian(direction):
    remove = direction is Direction.REMOVE
    mu = (10 / 5.0**2) ** 0.5
    truth = exact_gaussian.delta(1.5, mu)
    with mp.workdps(30):
        found = contour.deltas([1.5], [(1.0, 5.0, 10)], remove=remove)[0]
        # The oracle's mu is a rounded one.
        assert abs(found / truth - 1) < 1e-14


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(("noise", "rounds"), [(5.0, 10), (0.7, 3), (30.0, 1000), (1000.0, 4)])
@pytest.mark.parametrize("delta", [0.01, 1e-6, 2e-13])
def test_full_participation_is_the_gaussian(noise, rounds, delta, direction):
    composition = compose([(1.0, noise, rounds)], direction)
    mu = rounds**0.5 / noise
    mine, closed = inversion_epsilon(composition, delta), gaussian_epsilon(delta, mu)
    # Two brackets of the same number overlap.
    assert mine.lower <= closed.upper * (1 + 1e-14)
    assert closed.lower <= mine.upper * (1 + 1e-14)
    assert mine.upper == pytest.approx(closed.upper, rel=1e-8, abs=1e-12)
    if closed.upper > 0:
        mine, closed = (
            inversion_delta(composition, closed.upper),
            gaussian_delta(closed.upper, mu),
        )
        assert mine.lower <= closed.upper * (1 + 1e-12)
        assert closed.lower <= mine.upper * (1 + 1e-12)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", [Direction.REMOVE, Direction.ADD, COHORT])
@pytest.mark.parametrize("rate", [1e-7, 1e-3, 0.5])
@pytest.mark.parametrize("noise", [0.2, 5.0, 20.0])
@pytest.mark.parametrize("delta", [0.4, 1e-3, 1e-5, 1e-9, 1e-20])
def test_one_round_is_its_closed_form(kind, rate, noise, delta):
    """The loss is an atom and a tail, or two for a cohort: nothing is harder for the contour."""
    one = compose([(rate, noise, 1)], kind)
    # For eps >= 0 the pair of C_q has the delta of the remove pair.
    pair = pair_of(rate, noise, Direction.REMOVE if kind == COHORT else kind)
    with contextlib.suppress(NotConverged):
        bracket = inversion_epsilon(one, delta)
        # eps(delta) is where the closed form crosses delta.
        assert one_round_delta(bracket.upper, pair).lower <= delta
        assert not bracket.lower or one_round_delta(bracket.lower, pair).upper >= delta
    epsilon = composed_epsilon(one, delta).upper or noise / 1000
    exact = one_round_delta(epsilon, pair)
    with contextlib.suppress(NotConverged):
        found = inversion_delta(one, epsilon)
        assert found.lower <= exact.upper
        assert exact.lower <= found.upper


@pytest.mark.parametrize(
    ("rate", "noise", "rounds", "delta"),
    [(1e-3, 0.8, 100, 1e-8), (0.01, 1.0, 1, 1e-5), (0.1, 0.5, 1, 1e-6), (1e-6, 1.0, 10**5, 1e-10)],
)
def test_nearly_atoms_are_found_closely(rate, noise, rounds, delta):
    """In the remove direction, where the tail that makes the moments large is cut off."""
    bracket = inversion_epsilon(compose([(rate, noise, rounds)], Direction.REMOVE), delta)
    assert 0 < bracket.width <= 1e-4 * bracket.upper


def test_the_largest_loss_of_the_add_direction():
    rounds = [(0.1, 1.0, 3), (0.02, 0.5, 2)]
    composition = compose(rounds, Direction.ADD)
    with mp.workdps(40):
        exact = -3 * mp.log1p(-mpf(0.1)) - 2 * mp.log1p(-mpf(0.02))
        assert exact <= composition.largest_loss <= exact * (1 + mpf(10) ** -13)
    for epsilon in (composition.largest_loss, 1.0, 1e6):
        assert inversion_delta(composition, epsilon) == Interval(0.0, 0.0)
        assert chernoff_delta(composition, epsilon) == 0.0
    assert compose(rounds, Direction.REMOVE).largest_loss == math.inf
    assert compose([*rounds, (1.0, 9.0, 1)], Direction.ADD).largest_loss == math.inf


def test_repeated_rounds_are_merged():
    """Two halves of a schedule that differ in nothing that matters cost what the whole costs."""
    whole = inversion_epsilon(compose([(0.1, 1.3, 300)], Direction.REMOVE), 1e-5)
    beside = np.nextafter(1.3, 2.0)
    split = compose([(0.1, 1.3, 100), (0.1, float(beside), 200)], Direction.REMOVE)
    assert inversion_epsilon(split, 1e-5).upper == pytest.approx(whole.upper, rel=1e-9)


RATES = st.one_of(
    log_uniform(1e-4, 1.0), log_uniform(1e-6, 0.5).map(lambda gap: 1 - gap), st.just(1.0)
)


@given(
    rate=RATES,
    noise=log_uniform(0.3, 100.0),
    rounds=log_uniform(1, 1e6).map(int),
    delta=log_uniform(1e-12, 0.1),
    direction=st.sampled_from(Direction),
)
def test_bracket_is_consistent_with_the_cheap_bounds(rate, noise, rounds, delta, direction):
    pair = SampledGaussianPair(rate, noise, direction)
    composition = compose([(rate, noise, rounds)], direction)
    try:
        bracket = inversion_epsilon(composition, delta)
    except NotConverged:
        assume(False)
    schedule = Schedule([Phase(Round(noise, Poisson(rate)), rounds)])
    renyi = find_accountant("rdp").upper_epsilon(schedule, delta)
    assert 0 <= bracket.lower <= bracket.upper <= renyi * (1 + 1e-9)
    if bracket.upper < 700:
        assert one_round_delta(bracket.upper, pair).lower <= delta * (1 + 1e-9)
    if rounds * rate >= 100:
        # Fewer losses than that are nearly an atom, and blurred.
        assert bracket.width <= 1e-6 * bracket.upper + 1e-12


@settings(max_examples=2)
@given(
    parts=st.lists(
        st.tuples(log_uniform(0.05, 0.95), log_uniform(2.0, 30.0), log_uniform(30, 3e3).map(int)),
        min_size=1,
        max_size=2,
        unique_by=lambda part: part[:2],
    ),
    delta=log_uniform(1e-15, 0.05),
    direction=st.sampled_from(Direction),
)
def test_bracket_holds_the_truth_anywhere(parts, delta, direction):
    try:
        bracket = inversion_epsilon(compose(parts, direction), delta)
    except NotConverged:
        assume(False)
    assume(bracket.lower > 0)
    check_ends(bracket, parts, delta, direction)
