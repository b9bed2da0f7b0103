"""Settings at the ends of what is accepted: answered quickly, without warnings, and not far off."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest
from mpmath import mp, mpf

from dpacct import (
    Full,
    NotConverged,
    Poisson,
    Round,
    Schedule,
    Uniform,
    calibrate,
    delta,
    epsilon,
    tradeoff,
)
from dpacct.calibration.goals import EpsilonGoal
from dpacct.pairs.panels import probability
from dpacct.tight.closed_forms import _total_variation
from dpacct.tight.contour import Contour
from tests.tight.compositions import compose

SLOW = pytest.mark.slow


@pytest.fixture
def costs(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The epsilons that calibration asks for, in the order in which it does."""
    seen: list[float] = []
    cost = EpsilonGoal.cost

    def counted(goal: EpsilonGoal, schedule: Schedule) -> float:
        seen.append(cost(goal, schedule))
        return seen[-1]

    monkeypatch.setattr(EpsilonGoal, "cost", counted)
    return seen


@pytest.mark.parametrize(
    ("parts", "share", "most"),
    [
        # Above a rate epsilon is that of a participation, below it is nothing.
        pytest.param(
            (8.0, 1e-5, {"noise_multiplier": 0.2, "rounds": 3, "solve": "sampling_rate"}),
            *(0.98, 12),
            marks=SLOW,
        ),
        ((8.0, 1e-5, {"noise_multiplier": 50, "sampling_rate": 0.9, "solve": "rounds"}), 0.98, 10),
        *(
            pytest.param((*goal, {"rounds": n, "sampling_rate": q}), 0.9999, 30, marks=marks)
            for *goal, n, q, marks in (
                (0.0190931460204, 6.83926e-4, 86, 9.048117458e-6, SLOW),
                (2987.2, 1.39e-19, 324_044, 2.457e-6, ()),
                (1.8152637415762355e-07, 1.14e-18, 49, 2.895e-7, ()),
                (0.0047, 7.4e-17, 409_171, 8.163e-7, SLOW),
            )
        ),
    ],
)
def test_calibrations_next_to_a_cliff_ask_seldom(parts, share, most, costs):
    target, at, setting = parts
    found = calibrate(epsilon=target, delta=at, **setting)
    assert share * target < found.epsilon.upper <= target
    assert len(costs) <= most


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rate", [1e-12, 1e-40, 1e-99])
def test_delta_of_next_to_nothing_is_next_to_nothing(rate):
    found = delta(200 * Round(19.6, Poisson(rate)), epsilon=0.0)
    # Many rounds with next to no loss add up like a random walk whose steps are lognormal: a
    # Gaussian, with Edgeworth's first correction of its mean absolute value.
    walk = rate * math.sqrt(200 * math.expm1(19.6**-2)) / math.sqrt(2 * math.pi)
    w = math.exp(19.6**-2)
    squared_skewness, kurtosis = (w + 2) ** 2 * (w - 1), w**4 + 2 * w**3 + 3 * w**2 - 6
    walk *= 1 + (squared_skewness - kurtosis) / (24 * 200)
    assert found.lower <= walk * (1 + 1e-8)
    assert walk * (1 - 1e-8) <= found.upper < 1.3 * walk


@pytest.mark.parametrize(
    "scale", [pytest.param(1e-12, marks=SLOW), 1e-40, pytest.param(1e-150, marks=SLOW)]
)
def test_delta_of_different_rounds_with_next_to_no_loss(scale):
    plan = 150 * Round(19.6, Poisson(scale)) + 50 * Round(25.0, Poisson(3 * scale))
    variance = 150 * math.expm1(19.6**-2) + 50 * 9 * math.expm1(25.0**-2)
    walk = scale * math.sqrt(variance / (2 * math.pi))
    assert walk * (1 - 1e-3) <= delta(plan, epsilon=0.0).upper < 1.3 * walk


def test_where_no_delta_is_left_the_attack_is_a_guess(costs):
    curve = tradeoff(200 * Round(19.6, Poisson(1e-99)), fpr=[1e-60, 0.3])
    assert [(t.lower, t.upper) for t in curve.tpr] == [
        (fpr, pytest.approx(fpr, rel=1e-14)) for fpr in curve.fpr
    ]
    assert all(t.upper > fpr for t, fpr in zip(curve.tpr, curve.fpr, strict=True))
    assert not costs


def test_where_delta_is_nearly_one_the_attack_is_sure():
    curve = tradeoff(1_248_508 * Round(5.86, Poisson(0.9999996), "zero-out"), fpr=[1e-11, 0.5])
    assert all(t.lower > 1 - 1e-12 and t.upper == 1.0 for t in curve.tpr)


def test_a_contour_that_overflows_is_refused_and_a_wide_blur_proves_the_upper_side():
    composition = compose([(0.1, 1.0, 300)])
    contour = Contour(composition, 1.0, 5.0, -10.0, 0.0)
    contour.blur = 1e5
    found = contour.delta(5.0)
    assert found.lower == 0.0 < found.upper
    contour = Contour(composition, 1.0, 5.0, -10.0, 0.0)
    # Each error is still a number, weighted it is not.
    contour._error = np.full_like(contour._error, 700.0)
    contour._weights = np.full_like(contour._weights, 1e6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(NotConverged):
            contour.delta(5.0)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("schedule", "at"),
    [
        # Each raised OverflowError, or warned of an overflow.
        (2 * Round(0.034, Poisson(1e-9)), 1e-12),
        (482_424_960 * Round(0.094, Poisson(1 - 1.6e-9)), 0.9997),
        (1_354_740 * Round(0.0026, Poisson(0.14)) + 5 * Round(1.0, Poisson(0.1)), 0.01),
        (3 * Round(0.001, Poisson(0.5)), 1e-5),
    ],
    ids=["edges", "blur", "two kinds", "half line"],
)
def test_what_once_overflowed_has_an_answer(schedule, at):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = epsilon(schedule, delta=at)
    assert 0 < found.lower <= found.upper < math.inf
    assert found.upper < 2.1 * found.lower


def test_the_best_lower_side_is_taken():
    found = epsilon(Round(1.0, Full()) + Round(0.0025, Poisson(0.37)), delta=0.05)
    # The full round alone has 2.03.
    assert 80_000 < found.lower <= found.upper < 81_000


def test_odds_that_overflow_are_certain():
    found = probability(1e-9, np.array([-800.0, 0.0, 800.0]))
    assert found == pytest.approx([0, 1e-9, 1])


@pytest.mark.parametrize("relation", ["add-remove", "replace-one", "zero-out"])
@pytest.mark.parametrize("sampling", [Poisson(0.1), pytest.param(Uniform(10, 100), marks=SLOW)])
@pytest.mark.parametrize("epsilon", [5e-324, pytest.param(1e-300, marks=SLOW), 1.7e308])
def test_an_epsilon_next_to_zero_or_infinity_has_an_answer(relation, sampling, epsilon):
    found = delta(3 * Round(1.0, sampling, relation), epsilon=epsilon)
    if epsilon > 1:
        assert found.upper < 1e-300
    else:
        near = delta(3 * Round(1.0, sampling, relation), epsilon=1e-9)
        assert near.lower <= found.upper <= near.upper + 1e-6
        assert near.lower - 1e-8 <= found.lower


@pytest.mark.parametrize(("rate", "noise", "count"), [(0.02, 1.0, 1000), (1e-9, 0.2, 10**5)])
def test_total_variation_is_bounded_by_chi_square(rate, noise, count):
    with mp.workdps(60):
        one = mpf(rate) ** 2 * (mp.exp(1 / mpf(noise) ** 2) - 1)
        exact = mp.sqrt((1 + one) ** count - 1) / 2
    assert exact <= _total_variation(compose([(rate, noise, count)])) <= 1.2 * exact
