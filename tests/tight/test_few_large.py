"""Few large losses: brackets hold the truth where rates are tiny, and they are narrow."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import math
from functools import cache

import pytest
from mpmath import mpf

from dpacct import Full, NotConverged, Poisson, Round, Schedule, calibrate, delta, epsilon
from dpacct.budget import Interval
from dpacct.calibration.goals import EpsilonGoal
from dpacct.pairs.dominating import Direction, SampledGaussianPair
from dpacct.rounds import Phase
from dpacct.tight.composition import Composition, TruncatedComposition, merged
from dpacct.tight.contour import crossing
from dpacct.tight.engines import _AtDelta, _refine
from dpacct.tight.few_large import FewLarge, about_epsilon, few_large_delta, few_large_epsilon
from tests.oracles import contour

REMOVE, SLOW = Direction.REMOVE, pytest.mark.slow
# Two rounds (rate, noise) each, and an epsilon at which they meet a delta that may be asked for.
PAIRS = [
    ((2.67e-6, 1.61), (2.67e-6, 1.61), 5.80465e-5),
    ((6e-7, 0.467), (6e-7, 0.467), 1.9e-4),
    ((2e-6, 0.49), (2e-6, 0.49), 2.2),
    ((1e-3, 0.28), (1e-3, 0.28), 30.0),
    ((2e-5, 0.9), (5e-6, 1.4), 1e-3),
]
# Settings whose brackets were wide: rate, noise, rounds, delta.
WIDE = [
    (1.08e-7, 0.584, 1_192_296, 8.9e-18),
    (2.14e-5, 0.879, 1108, 5e-18),
    (1.78e-6, 0.139, 13_246, 1.1e-14),
    (4.05e-7, 91.2, 15_800, 1.2e-20),
    (7.21e-7, 349.0, 5, 1.2e-16),
    (0.0284, 420.0, 2, 2.1e-16),
    (4.35e-7, 157.0, 1924, 2e-13),
    (2e-7, 0.75, 7, 6e-19),
]


def compose(*rounds: tuple[float, float, int]) -> Composition:
    pairs: dict[SampledGaussianPair, int] = {}
    for rate, noise, count in rounds:
        pair = SampledGaussianPair(rate, noise, REMOVE)
        pairs[pair] = pairs.get(pair, 0) + count
    return Composition.of({**pairs}, REMOVE)


@cache
def exact_delta(first: tuple[float, float], second: tuple[float, float], at: float) -> mpf:
    return contour.two_rounds(at, first, second, remove=True)


@pytest.mark.parametrize(
    ("first", "second", "at"), [*PAIRS[:3], *(pytest.param(*p, marks=SLOW) for p in PAIRS[3:])]
)
def test_two_rounds_hold_the_truth(
    first: tuple[float, float], second: tuple[float, float], at: float
) -> None:
    exact = exact_delta(first, second, at)
    composition = compose((*first, 1), (*second, 1))
    found = few_large_delta(composition, at)
    assert found.lower <= exact * (1 + mpf(10) ** -15)
    assert exact * (1 - mpf(10) ** -15) <= found.upper
    assert found.width <= 1e-7 * found.upper
    back = few_large_epsilon(composition, float(exact))
    assert back.lower <= at * (1 + 1e-12)
    assert at * (1 - 1e-12) <= back.upper
    assert back.width <= 1e-6 * back.upper


@pytest.mark.parametrize("wrong", [0.7, 0.9, 1.3, 2.0])
@pytest.mark.parametrize("case", [0, *(pytest.param(k, marks=SLOW) for k in (2, 3))])
def test_a_bad_guess_costs_width_and_nothing_else(case: int, wrong: float) -> None:
    first, second, at = PAIRS[case]
    exact = exact_delta(first, second, at)
    composition = compose((*first, 1), (*second, 1))
    try:
        bounds = FewLarge(composition, wrong * at, math.log(float(exact)))
        found = bounds.delta(at)
    except NotConverged:
        return
    assert found.lower <= exact <= found.upper


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("rate", "noise", "rounds", "delta"), WIDE)
def test_what_was_wide_is_narrow(rate: float, noise: float, rounds: int, delta: float) -> None:
    found = epsilon(rounds * Round(noise, Poisson(rate)), delta=delta)
    assert found.upper > 0
    assert found.width <= 1e-6 * found.upper


@pytest.mark.parametrize(
    ("rate", "noise", "at"),
    [(9.018e-7, 4.009, 7.97e-6), pytest.param(3.3e-7, 0.6, 3.0, marks=SLOW)],
)
def test_a_delta_far_below_the_rates_is_narrow(rate: float, noise: float, at: float) -> None:
    # As much as was cut off there, they were known to some percent, or not at all.
    exact = contour.two_rounds(at, (rate, noise), (rate, noise), remove=True)
    assert exact < 1e-19
    found = delta(2 * Round(noise, Poisson(rate)), epsilon=at)
    assert found.lower <= exact <= found.upper
    assert found.width <= 1e-6 * found.upper


def test_calibrations_next_to_a_cliff_ask_seldom(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    cost = EpsilonGoal.cost

    def counted(goal: EpsilonGoal, schedule: Schedule) -> float:
        seen.append(cost(goal, schedule))
        return seen[-1]

    monkeypatch.setattr(EpsilonGoal, "cost", counted)
    found = calibrate(
        epsilon=0.0190931460204, delta=6.83926e-4, rounds=86, sampling_rate=9.048117458e-6
    )
    assert 0.019093 < found.epsilon.upper <= 0.0190931460204
    assert len(seen) <= 4
    # Losses of thousands.
    seen.clear()
    found = calibrate(epsilon=2987.2, delta=1.39e-19, rounds=324_044, sampling_rate=2.457e-6)
    assert 2987.19 < found.epsilon.upper <= 2987.2
    assert len(seen) <= 4


def test_it_agrees_with_a_blurred_contour() -> None:
    composition, most = compose((0.000127, 0.288, 26)), 2e-10
    found = few_large_epsilon(composition, most)
    rest = TruncatedComposition.losing(composition, 1e-8 * most)
    other = _refine(_AtDelta(most), rest, rest.lost, Interval(0.0, math.inf))
    assert max(found.lower, other.lower) <= min(found.upper, other.upper)
    assert found.width <= 1e-7 * found.upper
    assert found.width < other.width


def test_rounds_of_full_participation_may_be_among_them() -> None:
    plan = 20 * Round(0.9, Poisson(2e-5)) + 2 * Round(4000.0, Full())
    alone = 20 * Round(0.9, Poisson(2e-5))
    found, less = epsilon(plan, delta=1e-7), epsilon(alone, delta=1e-7)
    assert less.lower < found.upper
    assert found.width <= 1e-6 * found.upper


def test_an_estimate_is_near() -> None:
    composition = compose((2e-6, 0.49, 11))
    about = about_epsilon(composition, math.log(2.7e-16), 1e-6)
    assert about == pytest.approx(2.2328, rel=0.05)


def test_an_epsilon_far_above_is_refused() -> None:
    bounds = FewLarge(compose((2e-6, 0.49, 11)), 2.2, math.log(2.7e-16))
    with pytest.raises(NotConverged):
        bounds.delta(20.0)
    found = crossing(bounds, 2.2, math.log(2.7e-16), math.log(2.7e-16))
    assert 2.0 < found.lower <= found.upper < 2.5


def test_where_it_applies() -> None:
    assert FewLarge.applies(compose((0.5, 1.0, 3)))
    assert not FewLarge.applies(compose((0.6, 1.0, 3)))
    assert not FewLarge.applies(compose(*((0.1, 1.0 + k, 1) for k in range(41))))
    add = Composition.of({SampledGaussianPair(0.1, 1.0, Direction.ADD): 2}, Direction.ADD)
    assert not FewLarge.applies(add)


def test_many_kinds_are_merged_for_an_estimate() -> None:
    kinds = [Round(1.0 + 1e-4 * k, Poisson(0.001 + 1e-6 * k)) for k in range(1000)]
    plan = Schedule([Phase(kind, 1) for kind in kinds]) + 7 * Round(3.0, Full())
    found = merged(plan)
    assert len(found.distinct()) == 289
    assert found.rounds == 1007
    assert found.distinct()[Round(3.0, Full())] == 7
    few = Schedule([Phase(kind, 2) for kind in kinds[:100]])
    assert merged(few) is few
    # Of the whole plan epsilon is about that of the kinds that are left.
    assert epsilon(found, delta=1e-5).upper == pytest.approx(
        epsilon(plan, delta=1e-5).upper, rel=1e-3
    )


def test_much_noise_is_found_for_a_tiny_epsilon() -> None:
    # It was not: at the largest noise epsilon was 2.7e-6.
    found = calibrate(
        epsilon=1.8152637415762355e-07, delta=1.14e-18, rounds=49, sampling_rate=2.895e-7
    )
    assert 60 < found.noise_multiplier < 80
