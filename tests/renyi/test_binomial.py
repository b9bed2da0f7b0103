"""The binomial sum at the ends of its range; test_moments.py compares it with the integral."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf

from dpacct.errors import InvalidParameter
from dpacct.numerics.rounding import Bounds
from dpacct.pairs.moments import log_moment
from dpacct.renyi.binomial import MAX_BINOMIAL_ORDER, binomial_log_moment, log_binomials
from tests.oracles import sampled_gaussian
from tests.strategies import log_uniform, noise_multipliers


def contains(bounds: Bounds, truth: mpf) -> bool:
    with mp.workdps(50):
        return mpf(float(bounds.lower)) <= truth <= mpf(float(bounds.upper))


@pytest.mark.parametrize("order", [2, 3, 17, 256, MAX_BINOMIAL_ORDER])
def test_logarithms_of_binomial_coefficients(order: int) -> None:
    found = log_binomials(order)
    assert found.shape == (order + 1,)
    assert found[0] == found[-1] == 0.0
    with mp.workdps(50):
        for k in range(1, order, max(1, order // 50)):
            exact = mp.log(mpf(math.comb(order, k)))
            assert abs(mpf(float(found[k])) - exact) <= 4 * mpf(math.ulp(float(exact)))


@given(order=st.integers(2, MAX_BINOMIAL_ORDER), noise=noise_multipliers())
def test_full_participation_is_the_gaussian(order: int, noise: float) -> None:
    bounds = binomial_log_moment(order, 1.0, noise)
    assert contains(bounds, sampled_gaussian.log_moment_closed(order, noise))


@pytest.mark.parametrize("order", [1024, MAX_BINOMIAL_ORDER])
@given(rate=log_uniform(1e-9, 0.999), noise=noise_multipliers())
def test_long_sums_agree_with_the_integral(order: int, rate: float, noise: float) -> None:
    first = binomial_log_moment(order, rate, noise)
    second = log_moment(float(order), rate, noise)
    assert max(first.lower, second.lower) <= min(first.upper, second.upper)


@given(order=st.integers(200, 700), rate=log_uniform(1e-9, 0.1), shift=st.floats(-3.0, 3.0))
def test_truth_is_inside_where_both_ends_of_the_sum_matter(
    order: int, rate: float, shift: float
) -> None:
    """q^a e^{a(a-1)/(2 s^2)} is of size one: exponents of thousands cancel."""
    noise = math.sqrt(order * (order - 1) / (2 * (shift - order * math.log(rate))))
    bounds = binomial_log_moment(order, rate, noise)
    assert contains(bounds, sampled_gaussian.binomial_log_moment(order, rate, noise))


@given(order=st.integers(2, 64), rate=log_uniform(1e-150, 1e-12), noise=noise_multipliers(0.5))
def test_tiny_moments_keep_their_relative_precision(order: int, rate: float, noise: float) -> None:
    """Far below the last digit of 1 + the moment."""
    bounds = binomial_log_moment(order, rate, noise)
    assert contains(bounds, sampled_gaussian.binomial_log_moment(order, rate, noise))
    assert 0 < bounds.upper - bounds.lower <= 1e-11 * bounds.upper


def test_order_two_has_a_closed_form() -> None:
    """I(2) = 1 + q^2 (e^{1/s^2} - 1)."""
    for rate, noise in ((0.1, 1.0), (1e-6, 3.0), (0.9, 0.2)):
        with mp.workdps(50):
            truth = mp.log1p(mpf(rate) ** 2 * mp.expm1(1 / mpf(noise) ** 2))
        assert contains(binomial_log_moment(2, rate, noise), truth)


def test_a_whole_number_may_come_as_float() -> None:
    whole, real = binomial_log_moment(7, 0.1, 1.0), binomial_log_moment(7.0, 0.1, 1.0)  # type: ignore[arg-type]  # callers without types
    assert whole == real
    assert np.shape(whole.upper) == ()


@pytest.mark.parametrize("order", [MAX_BINOMIAL_ORDER + 1, 1, -2])
def test_orders_outside_the_range_are_refused(order: int) -> None:
    with pytest.raises(InvalidParameter) as caught:
        binomial_log_moment(order, 0.1, 1.0)
    assert caught.value.name == "order"
