"""Moments of Poisson sampling under replacement: two integrals, and what they must lie between."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpacct.pairs.moments import log_moment, replacement_log_moment, symmetrized_log_moment
from tests.oracles import replacement
from tests.strategies import FEWER, log_uniform, orders, sampling_rates
from tests.truth import check

GRID = list(
    itertools.product([1.0001, 2.0, 7.3, 60.0], [1e-7, 0.01, 0.5, 0.999999], [0.15, 1.3, 20.0])
)
noises = log_uniform(1e-3, 1e10)


def check_moment(order: float, rate: float, noise: float, width: float = 1e-10) -> None:
    truth = replacement.log_moment(order, rate, noise)
    check(replacement_log_moment(order, rate, noise), truth, width)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("start", range(12))
def test_truth_is_inside_on_a_grid_of_extremes(start):
    for order, rate, noise in GRID[start::12]:
        check_moment(order, rate, noise)


@FEWER
@given(order=orders(1e-3, 60.0), rate=sampling_rates(1e-5), noise=log_uniform(0.3, 20.0))
def test_truth_is_inside_everywhere(order, rate, noise):
    check_moment(order, rate, noise)


@FEWER
@given(order=st.floats(0.01, 0.99), rate=sampling_rates(1e-5), noise=log_uniform(0.3, 20.0))
def test_affinities_are_inside_too(order, rate, noise):
    check_moment(order, rate, noise, 1e-6)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("noise", [0.0299, 0.0301])
def test_both_routes_where_noise_is_small(noise):
    """Below 0.03 the product of two factors takes over from the integral."""
    check_moment(1.4, 0.2, noise)


@given(
    order=st.one_of(orders(1e-12, 1e7), log_uniform(1e-12, 1.0)),
    rate=st.one_of(sampling_rates(), log_uniform(1e-150, 1e-7)),
    noise=noises,
)
def test_every_accepted_round_has_a_moment(order, rate, noise):
    """Warnings are errors here, so this also says that none is given."""
    bounds = replacement_log_moment(order, rate, noise)
    assert -math.inf < bounds.lower <= bounds.upper < math.inf
    assert bounds.upper >= 0 if order > 1 else bounds.upper <= 0


@given(order=orders(1e-6, 1e6), rate=sampling_rates(1e-60), noise=noises)
def test_between_leaving_a_client_out_and_moving_the_sum_by_two(order, rate, noise):
    found = replacement_log_moment(order, rate, noise)
    for smaller in (log_moment(order, rate, noise), log_moment(1 - order, rate, noise)):
        assert smaller.lower <= found.upper
    assert found.lower <= symmetrized_log_moment(order, rate, noise / 2).upper


@given(order=st.floats(0.001, 0.999), rate=sampling_rates(1e-6), noise=log_uniform(0.05, 100.0))
def test_the_pair_is_its_own_mirror_image(order, rate, noise):
    first, second = (replacement_log_moment(a, rate, noise) for a in (order, 1 - order))
    slack = 1e-9 * abs(float(first.lower))
    assert first.lower - slack <= second.upper
    assert second.lower - slack <= first.upper


@given(order=orders(1e-3, 1e4), rate=sampling_rates(1e-6), noise=log_uniform(0.01, 1e3))
def test_more_noise_and_less_sampling_cost_less(order, rate, noise):
    here = replacement_log_moment(order, rate, noise)
    assert replacement_log_moment(order, rate, noise * 1.5).lower <= here.upper
    assert replacement_log_moment(order, rate / 2, noise).lower <= here.upper


def test_shapes_broadcast_and_full_participation_is_a_gaussian():
    found = replacement_log_moment(np.array([1.5, 2.0, 40.0])[:, None], [0.1, 1.0], 2.0)
    assert found.upper.shape == (3, 2)
    assert found.upper[1, 1] == pytest.approx(2 * 2 * 1 / 2.0**2, rel=1e-14)
    alone = replacement_log_moment(40.0, 0.1, 2.0)
    assert alone.upper == pytest.approx(found.upper[2, 0], rel=1e-12)
