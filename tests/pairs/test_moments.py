"""The one integral against 50-digit values, over the whole range of its parameters."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from dpacct.pairs import trapezoid
from dpacct.pairs.moments import log_moment
from tests.oracles import sampled_gaussian
from tests.strategies import FEWER, log_uniform, noise_multipliers, orders, sampling_rates
from tests.truth import check

ORDERS = [-1e5, -50.0, -5.5, -0.1, 0.3, 1.0001, 1.5, 2.0, 2.6, 7.3, 32.0, 200.0, 1e4, 1e5]
RATES = [1e-7, 1e-4, 0.01, 0.1, 0.5, 0.9, 0.999999, 1.0]
NOISES = [0.05, 0.16, 0.2, 1.0, 2.4, 10.0, 100.0, 1000.0]
GRID = list(itertools.product(ORDERS, RATES, NOISES))
# Every point of the grid is visited, by one of these slices.
SLICES = 14
# The widest are at orders like -1e5 with sigma 0.05, where digits go into 1e5 log r.
RELATIVE_WIDTH = 1e-9
# No divergence needs an order between zero and one; there digits go with 1 - a and 1 - q.
WIDTH_BETWEEN = 1e-6


def real_orders() -> st.SearchStrategy[float]:
    """Orders of either sign, those between zero and one, and those close to zero and one."""
    return st.one_of(orders(), log_uniform(1e-4, 1e5).map(lambda a: -a), log_uniform(1e-3, 0.999))


def check_moment(order: float, rate: float, noise: float, width: float = RELATIVE_WIDTH) -> None:
    truth = sampled_gaussian.log_moment(order, rate, noise)
    check(log_moment(order, rate, noise), truth, WIDTH_BETWEEN if 0 < order < 1 else width)


@pytest.mark.slow
@pytest.mark.parametrize("start", range(SLICES))
def test_truth_is_inside_on_a_grid_of_extremes(start):
    for order, rate, noise in GRID[start::SLICES]:
        check_moment(order, rate, noise)


@FEWER
@given(order=real_orders(), rate=sampling_rates(), noise=noise_multipliers())
def test_truth_is_inside_everywhere(order, rate, noise):
    assume(order != 1.0)
    check_moment(order, rate, noise)


@FEWER
@given(order=orders(1e-4, 1e4), rate=sampling_rates(1e-5), noise=noise_multipliers(0.3, 100.0))
def test_bounds_are_close_together_where_people_work(order, rate, noise):
    check_moment(order, rate, noise, 1e-11)


@pytest.mark.parametrize(
    ("order", "rate", "noise"),
    [
        # Where the size of log I is misjudged by the leading term, on both sides of the crossover.
        (104.9, 0.0045, 1.656),
        (200.0, 1e-4, 2.4),
        (49.8, 2.48e-5, 0.8988),
        (57346.4, 8.64e-8, 38.82),
        (30851.5, 1.14e-9, 18.36),
        # Full participation at strongly negative orders.
        (-1e5, 1.0, 0.05),
        (-200.0, 1.0, 0.2),
        # Small noise at orders up to two, between two of the methods.
        (2.0, 0.1, 0.159),
        (1.9, 0.1, 0.159),
        # Far below zero with little noise or a rate next to one: too many nodes for the integral.
        (-8.38e6, 0.992, 0.00308),
        (-1e7, 1e-3, 9e-4),
        (-1e6, 0.5, 20.0),
        (-1e5, 1 - 1e-9, 1.0),
    ],
)
def test_truth_is_inside_where_it_was_missed_once(order, rate, noise):
    check_moment(order, rate, noise, 1e-10)


@pytest.mark.parametrize("accuracy", [3.0, 6.0, 12.0, 24.0])
@FEWER
@given(order=real_orders(), rate=sampling_rates(1e-3), noise=noise_multipliers(0.3, 30.0))
def test_truth_is_inside_on_coarse_grids_too(accuracy, order, rate, noise):
    """At full accuracy discretization and tails drown in rounding; here they are all there is."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trapezoid, "_ACCURACY", accuracy)
        bounds = log_moment(order, rate, noise)
    check(bounds, sampled_gaussian.log_moment(order, rate, noise))


@pytest.mark.parametrize("rate", [1e-7, 1e-9])
def test_a_tiny_renyi_value_keeps_its_relative_precision(rate):
    """q^2 a / (2 s^2) is 1e-18 and less; the bounds are still twelve digits wide of nothing."""
    for order, noise in ((1.5, 100.0), (2.0, 30.0), (-0.5, 100.0), (32.0, 1000.0)):
        value = float(log_moment(order, rate, noise).upper)
        assert 0 < value < 1e-15
        check_moment(order, rate, noise, 1e-12)


def test_shapes_broadcast_and_a_batch_equals_its_parts():
    points = [p for p in GRID[::5] if abs(p[0]) < 1e4]
    assert {p[0] < 0 for p in points} == {True, False}
    a, q, s = (np.array(column) for column in zip(*points, strict=True))
    batch = log_moment(a, q, s)
    assert batch.lower.shape == batch.upper.shape == a.shape
    for index, point in enumerate(points):
        alone = log_moment(*point)
        assert alone.lower.shape == alone.upper.shape == ()
        # Sums may be cut into different pieces, so the last digits may differ.
        assert alone.lower <= batch.upper[index]
        assert batch.lower[index] <= alone.upper
        assert float(batch.lower[index]) == pytest.approx(float(alone.lower), rel=1e-9)
        assert float(batch.upper[index]) == pytest.approx(float(alone.upper), rel=1e-9)
    assert log_moment(2.0, np.array([0.1, 0.2]), 1.0).upper.shape == (2,)
    assert log_moment(np.array([2.0, 3.0]), 0.1, np.array([1.0, 2.0])).lower.shape == (2,)


@pytest.mark.parametrize("order", [0.0, 1.0])
@given(rate=sampling_rates(), noise=noise_multipliers())
def test_the_moments_of_order_zero_and_one_are_one(order, rate, noise):
    bounds = log_moment(order, rate, noise)
    assert bounds.lower <= 0.0 <= bounds.upper
    assert bounds.upper - bounds.lower <= 1e-13


@given(order=real_orders(), noise=noise_multipliers())
def test_full_participation_is_the_gaussian(order, noise):
    check(log_moment(order, 1.0, noise), sampled_gaussian.log_moment_closed(order, noise))


@given(order=orders(1e-3, 50.0), noise=noise_multipliers(3.0))
def test_moments_vanish_with_the_rate(order, noise):
    """As q^2, all the way down to where floats end."""
    previous = math.inf
    for exponent in range(1, 140, 10):
        value = float(log_moment(order, 10.0**-exponent, noise).upper)
        assert 0 <= value < previous
        previous = value
    assert previous < 1e-200


@pytest.mark.sampled(36)
@pytest.mark.parametrize("noise_std", [1e-3, 0.06, 1e4, 1e10])
@pytest.mark.parametrize("sampling_rate", [1e-300, 1e-130, 1e-7, 0.1, 1 - 2.0**-53, 1.0])
@pytest.mark.parametrize("order", [-1e7, -99999.0, -0.01, 1.01, 2.0, 1e7])
def test_nothing_overflows_at_the_ends_of_the_range(order, sampling_rate, noise_std):
    """Warnings are errors here, so this also says that none is given."""
    # The last two were NaN once.
    for setting in ((order, sampling_rate, noise_std), (2.0, 1e-310, 0.026), (1e3, 1e-300, 0.84)):
        bounds = log_moment(*setting)
        assert -math.inf < bounds.lower <= bounds.upper < math.inf
        assert bounds.upper > 0 or setting[1] < 1e-299


# The binomial sum, which shares nothing with the integral.


@FEWER
@given(order=st.integers(2, 200), rate=sampling_rates(), noise=noise_multipliers())
@example(order=1024, rate=1e-9, noise=0.05)
@example(order=1024, rate=0.03, noise=1.2)
@example(order=1024, rate=0.999, noise=1000.0)
def test_the_binomial_sum_lies_inside(order, rate, noise):
    truth = sampled_gaussian.binomial_log_moment(order, rate, noise)
    check(log_moment(float(order), rate, noise), truth)


@pytest.mark.slow
@given(rate=log_uniform(1e-9, 0.999), noise=noise_multipliers())
@settings(max_examples=3)
def test_a_long_binomial_sum_lies_inside(rate, noise):
    truth = sampled_gaussian.binomial_log_moment(4096, rate, noise)
    check(log_moment(4096.0, rate, noise), truth)
