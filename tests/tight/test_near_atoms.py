"""Rounds whose loss is nearly an atom, where neither few large losses nor small ones decide alone.

Against two rounds integrated in x, and against moments inverted in 60-digit arithmetic: neither
shares code with the package.
"""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import math
from collections import Counter
from functools import cache

import pytest
from mpmath import mpf

from dpacct import Poisson, Round, Schedule, calibrate, delta, epsilon
from dpacct.budget import Interval
from dpacct.calibration.goals import EpsilonGoal
from dpacct.pairs.dominating import Direction, SampledGaussianPair
from dpacct.tight.composition import Composition
from dpacct.tight.contour import Complement, lies_below
from dpacct.tight.engines import (
    NEXT_TO_NOTHING,
    composed_delta,
    composed_epsilon,
    far_delta,
    inversion_delta,
)
from tests.oracles import contour
from tests.oracles.sampled_gaussian import log_moment

# Relative, at most, where delta is not next to nothing.
WIDEST = 1.0
REMOVE, ADD, SLOW = Direction.REMOVE, Direction.ADD, pytest.mark.slow


def compose(rate: float, noise: float, count: int, direction: Direction = REMOVE) -> Composition:
    return Composition.of({SampledGaussianPair(rate, noise, direction): count}, direction)


@cache
def exact_delta(at: float, *, remove: bool) -> mpf:
    """Of sixty rounds with rate 0.05 and noise 0.9."""
    return contour.deltas([at], [(0.05, 0.9, 60)], remove=remove)[0]


def holds(found: Interval, exact: mpf) -> bool:
    """Whether the truth is inside, up to what the oracle itself rounds."""
    spare = mpf(10) ** -14
    return found.lower <= exact * (1 + spare) and exact * (1 - spare) <= found.upper


# Two rounds (rate, noise) each, an epsilon, and how far the first one is integrated.
PAIRS = [
    # Next to nothing is left: delta is 2.5e-198.
    ((1.86e-6, 3.17), (1.86e-6, 3.17), 0.02095, 40.0),
    # A density drops where losses end.
    ((5.853583507055876e-05, 0.27988), (5.853583507055876e-05, 0.27988), 24.82, 17.0),
    ((2.67e-6, 1.61), (2.67e-6, 1.61), 5.80465e-5, 17.0),
    ((2e-6, 0.49), (2e-6, 0.49), 2.2, 17.0),
    ((9.018e-7, 4.009), (9.018e-7, 4.009), 7.97e-6, 17.0),
]
SLOW_PAIRS = [
    # Both rounds matter, and the characteristic function of small losses nearly vanishes.
    ((1.86e-6, 3.17), (1.86e-6, 3.17), 2.058e-6, 17.0),
    # epsilon lies below the losses of a client that participates.
    ((0.1, 0.16), (0.1, 0.16), 8.0, 17.0),
    # Losses far below zero may compensate a large loss.
    ((0.004, 0.2), (0.004, 0.2), 0.001, 17.0),
    # The client participates twice, and the tilt is large where the losses end.
    ((0.003, 0.12), (0.003, 0.12), 60.0, 17.0),
    ((6e-7, 0.467), (6e-7, 0.467), 1.9e-4, 17.0),
    ((1e-3, 0.28), (1e-3, 0.28), 30.0, 17.0),
    ((2e-5, 0.9), (5e-6, 1.4), 1e-3, 17.0),
    ((3.3e-7, 0.6), (3.3e-7, 0.6), 3.0, 17.0),
]


@pytest.mark.parametrize(
    ("first", "second", "at", "sigmas"),
    [*PAIRS, *(pytest.param(*pair, marks=SLOW) for pair in SLOW_PAIRS)],
)
def test_two_rounds_hold_the_truth(
    first: tuple[float, float], second: tuple[float, float], at: float, sigmas: float
) -> None:
    exact = contour.two_rounds(at, first, second, remove=True, sigmas=sigmas)
    rounds = (SampledGaussianPair(*first, REMOVE), SampledGaussianPair(*second, REMOVE))
    both = Composition.of(dict(Counter(rounds)), REMOVE)
    found = composed_delta(both, at)
    assert holds(found, exact)
    assert found.width <= WIDEST * found.upper
    if exact > 1e-100:
        back = composed_epsilon(both, float(exact))
        assert back.lower <= at * (1 + 1e-12)
        assert at * (1 - 1e-12) <= back.upper
        assert back.width <= WIDEST * back.upper


@pytest.mark.sampled(1)
@pytest.mark.parametrize("direction", [REMOVE, pytest.param(ADD, marks=SLOW)])
def test_left_of_zero_the_contour_holds_the_truth(direction: Direction) -> None:
    remove = direction is REMOVE
    at = 0.4
    exact = exact_delta(at, remove=remove)
    composition = compose(0.05, 0.9, 60, direction)
    for guess in (at, 0.5 * at, 2 * at):
        for log_delta in (-12.0, 0.0):
            found = Complement(composition, guess, log_delta).delta(at)
            assert holds(found, exact)
    found = Complement(composition, at, math.log(float(exact))).delta(at)
    assert found.width <= 1e-9 * float(exact)


@pytest.mark.parametrize("direction", [REMOVE, ADD])
@pytest.mark.parametrize("tilt", [-1.0, -0.7, -0.25, 0.0])
def test_moments_left_of_zero_are_between_their_bounds(tilt: float, direction: Direction) -> None:
    order = 1 + tilt if direction is REMOVE else -tilt
    composition = Composition.of(
        {
            SampledGaussianPair(0.05, 0.9, direction): 60,
            SampledGaussianPair(1.0, 9.0, direction): 4,
        },
        direction,
    )
    found = composition.log_moment(tilt)
    exact = 60 * log_moment(order, 0.05, 0.9) + mpf(4) / 81 * tilt * (1 + tilt) / 2
    assert float(found.lower) <= exact <= float(found.upper)
    assert float(found.upper - found.lower) < 1e-11


def test_the_slope_left_of_zero_is_that_of_log_delta() -> None:
    bounds = Complement(compose(0.45, 6.0, 3000), 12.0, 0.0)
    assert lies_below(compose(0.45, 6.0, 3000), 1.0)
    (low, _), (middle, slope), (high, _) = (bounds.delta_and_slope(e) for e in (11.99, 12.0, 12.01))
    assert slope == pytest.approx(math.log(high.upper / low.upper) / 0.02, rel=1e-3)
    assert low.lower > middle.upper > middle.lower > high.upper


@pytest.mark.parametrize(
    ("rate", "noise", "rounds", "at"),
    [(0.446, 6.53, 110_486, 247.0), (2.85e-6, 0.17, 5_934_512, 0.0339)],
)
def test_delta_below_most_losses_is_narrow(
    rate: float, noise: float, rounds: int, at: float
) -> None:
    found = delta(rounds * Round(noise, Poisson(rate)), epsilon=at)
    assert found.lower > 0.5
    assert found.width <= 1e-7


def test_far_out_nothing_is_left() -> None:
    # One loss is at most 0.006 but for a probability of 1e-297: four of them make no 0.0399.
    four = compose(1.23e-5, 5.95, 4)
    assert 0.0 < far_delta(four, 0.0399) <= NEXT_TO_NOTHING
    assert inversion_delta(four, 0.0399).upper <= NEXT_TO_NOTHING
    # Where something is left, at least that is told.
    (rate, noise), _, at, _ = PAIRS[0]
    assert far_delta(compose(rate, noise, 2), at) > 2.494e-198
    assert far_delta(compose(0.05, 0.9, 60), 0.4) >= exact_delta(0.4, remove=True)
    assert far_delta(four, 0.0) == 1.0
    assert far_delta(compose(0.6, 5.0, 4), 1.0) == 1.0


# Rate, noise, rounds, delta, and epsilon by a method that splits large and small losses, which
# the package no longer has. Its width was below 1e-7. Then the width allowed here.
EPSILONS = [
    (0.00111, 1.7, 488, 5.2e-16, 0.132690009, 1e-5),
    (7.59e-6, 0.0596, 29, 1e-11, 337.20693, 1e-5),
    (5.853583507055876e-05, 0.28, 2, 3.8e-19, 24.79203256, 1e-5),
    (5.638e-7, 0.33847, 233_150, 0.00287, 0.0071915227, 2e-3),
    (0.00404, 0.2443, 355, 3.5e-18, 128.5762585, 1e-5),
    (0.000105, 0.05606, 52_679, 2.6e-20, 5838.27, 1e-5),
    (1.78e-6, 0.139, 13_246, 1.1e-14, 121.7045382, 1e-5),
    (4.05e-7, 91.2, 15_800, 1.2e-20, 4.06728416439e-6, 1e-9),
    (7.21e-7, 349.0, 5, 1.2e-16, 2.37931362312e-8, 1e-9),
    (0.0284, 420.0, 2, 2.1e-16, 0.000638943785563, 1e-9),
    (4.35e-7, 157.0, 1924, 2e-13, 5.25270910949e-7, 1e-9),
    # With so small a delta and rate the bracket is wide.
    (8.163e-7, 1.025, 409_171, 7.4e-17, 0.00470507891, 1.0),
    (1.22e-6, 1.24, 100_860, 6.2e-20, 0.0029787657118, 0.1),
    (1.08e-7, 0.584, 1_192_296, 8.9e-18, 0.3757071, 1.0),
    (2.14e-5, 0.879, 1108, 5e-18, 0.275881018, 1.0),
    (2e-7, 0.75, 7, 6e-19, 0.004760368, 1.0),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("rate", "noise", "rounds", "most", "truth", "width"), EPSILONS)
def test_epsilon_holds_what_another_method_found(
    rate: float, noise: float, rounds: int, most: float, truth: float, width: float
) -> None:
    found = epsilon(rounds * Round(noise, Poisson(rate)), delta=most)
    assert found.lower <= truth * (1 + 1e-7)
    assert found.upper >= truth * (1 - 1e-7)
    assert 0.0 < found.upper <= 2 * truth if width < 1.0 else found.upper <= 10 * truth
    assert found.width <= width * found.upper


# The same for delta: rate, noise, rounds, epsilon, delta.
DELTAS = [
    (5.82e-6, 1.37, 32_402, 0.009285, 3.4922668e-24),
    (5.37e-5, 3.38, 792, 0.05656, 2.4321946e-125),
    (1.06e-5, 0.0563, 136, 1562.0, 3.9152333e-37),
    (5.93e-4, 0.15, 6377, 0.0605, 0.970982833),
]


@pytest.mark.parametrize(("rate", "noise", "rounds", "at", "truth"), DELTAS)
def test_delta_holds_what_another_method_found(
    rate: float, noise: float, rounds: int, at: float, truth: float
) -> None:
    found = delta(rounds * Round(noise, Poisson(rate)), epsilon=at)
    assert found.lower <= truth * (1 + 1e-7)
    assert found.upper >= truth * (1 - 1e-7)


@pytest.mark.parametrize(
    ("target", "most", "rounds", "rate"),
    [
        (0.0190931460204, 6.83926e-4, 86, 9.048117458e-6),
        (2987.2, 1.39e-19, 324_044, 2.457e-6),
        (1.8152637415762355e-07, 1.14e-18, 49, 2.895e-7),
        (0.0047, 7.4e-17, 409_171, 8.163e-7),
    ],
)
def test_calibrations_next_to_a_cliff_ask_seldom(
    target: float, most: float, rounds: int, rate: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[float] = []
    cost = EpsilonGoal.cost

    def counted(goal: EpsilonGoal, schedule: Schedule) -> float:
        seen.append(cost(goal, schedule))
        return seen[-1]

    monkeypatch.setattr(EpsilonGoal, "cost", counted)
    found = calibrate(epsilon=target, delta=most, rounds=rounds, sampling_rate=rate)
    assert 0.9999 * target < found.epsilon.upper <= target
    assert len(seen) <= 30
