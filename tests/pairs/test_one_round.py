"""delta(eps) of one round against 50-digit values: both directions, and a replaced client."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mpmath import mp, mpf

from dpacct.budget import Interval
from dpacct.pairs.dominating import Direction, ReplacementPair, SampledGaussianPair
from dpacct.pairs.one_round import gaussian_delta, one_round_delta
from tests.oracles import replacement, sampled_gaussian
from tests.strategies import log_uniform, noise_multipliers, sampling_rates
from tests.truth import check

ORACLES = {
    Direction.REMOVE: sampled_gaussian.delta_remove,
    Direction.ADD: sampled_gaussian.delta_add,
}
directions = st.sampled_from(Direction)
epsilons = st.one_of(st.just(0.0), log_uniform(1e-12, 800.0))


def truth_of(epsilon: float, pair: SampledGaussianPair) -> mpf:
    # The oracle subtracts numbers of size one and of size e^eps.
    with mp.workdps(50):
        return ORACLES[pair.direction](epsilon, pair.sampling_rate, pair.noise_std)


@st.composite
def moderate(draw: st.DrawFn) -> tuple[float, SampledGaussianPair]:
    """A round and an epsilon at which its delta is neither 0 nor all of the rate."""
    q, s = draw(sampling_rates(1e-9)), draw(noise_multipliers(1 / 30, 1e3))
    direction, threshold = draw(directions), draw(st.floats(-4.0, 8.0))
    base = max(0.0, (threshold + 1 / (2 * s)) / s)
    if direction is Direction.REMOVE:
        epsilon = math.log1p(q * math.expm1(min(base, 700.0)))
    else:
        epsilon = -math.log1p(max(q * math.expm1(-base), -1 + 1e-16))
    return epsilon, SampledGaussianPair(q, s, direction)


@given(setting=moderate())
def test_truth_is_inside_where_there_is_something_to_see(setting):
    epsilon, pair = setting
    found, truth = one_round_delta(epsilon, pair), truth_of(epsilon, pair)
    check(found, truth, noise=1e-40)
    assert 0 <= found.lower <= found.upper <= 1
    # Close to its largest epsilon, -log(1 - q), the add direction loses digits with that gap.
    far = epsilon < 0.9 * -math.log1p(-pair.sampling_rate) if pair.sampling_rate < 1 else True
    if truth > 1e-30 and (pair.direction is Direction.REMOVE or far):
        assert found.width <= 1e-8 * truth


@given(epsilon=epsilons, q=sampling_rates(), s=noise_multipliers(), direction=directions)
def test_truth_is_inside_at_unrelated_parameters(epsilon, q, s, direction):
    pair = SampledGaussianPair(q, s, direction)
    check(one_round_delta(epsilon, pair), truth_of(epsilon, pair), noise=1e-40)


@given(
    epsilon=st.one_of(st.just(0.0), log_uniform(1e-9, 60.0)),
    q=sampling_rates(1e-9),
    s=log_uniform(0.03, 1e3),
)
def test_truth_is_inside_where_a_client_is_replaced(epsilon, q, s):
    found = one_round_delta(epsilon, ReplacementPair(q, s))
    with mp.workdps(70):
        truth = replacement.one_round(mpf(epsilon), q, s)
    check(found, truth, noise=1e-40)
    if truth > 1e-20:
        assert found.width <= 1e-7 * truth


@given(epsilon=log_uniform(1e-300, 1e300), q=log_uniform(1e-150, 1.0), s=log_uniform(1e-3, 1e10))
@example(epsilon=1.0, q=0.36787944117144233, s=0.0024787521766663585)
@example(epsilon=1e-300, q=0.1, s=1e-3)
def test_bounds_exist_everywhere(epsilon, q, s):
    for pair in (ReplacementPair(q, s), *(SampledGaussianPair(q, s, d) for d in Direction)):
        found = one_round_delta(epsilon, pair)
        assert 0 <= found.lower <= found.upper <= q


@given(
    q=st.one_of(log_uniform(1e-9, 0.5), log_uniform(1e-12, 0.5).map(lambda gap: 1 - gap)),
    s=noise_multipliers(0.01, 10.0),
    gap=st.one_of(st.just(0.0), log_uniform(1e-16, 1e-3)),
)
def test_adding_a_client_costs_nothing_beyond_the_rate(q, s, gap):
    """The likelihood ratio is at least 1 - q, so delta(eps) ends at -log(1 - q)."""
    end = -math.log1p(-q)
    pair = SampledGaussianPair(q, s, Direction.ADD)
    assert one_round_delta(end * (1 + 1e-9) + 1e-12, pair) == Interval(0.0, 0.0)
    epsilon = end * (1 - gap)
    check(one_round_delta(epsilon, pair), truth_of(epsilon, pair), noise=1e-40)


def test_truth_is_inside_where_it_was_missed_once():
    """The last bit of epsilon decides whether any loss exceeds it."""
    pair = SampledGaussianPair(0.9995858946988277, 0.03125330970775558, Direction.ADD)
    assert one_round_delta(7.789390265822991, pair).upper >= truth_of(7.789390265822991, pair)


@given(epsilon=epsilons, s=noise_multipliers(0.01), direction=directions)
def test_a_rate_of_one_is_the_gaussian(epsilon, s, direction):
    found = one_round_delta(epsilon, SampledGaussianPair(1.0, s, direction))
    assert found == gaussian_delta(epsilon, 1 / s)


@given(q=sampling_rates(), s=noise_multipliers())
def test_delta_at_zero_is_a_share_of_the_total_variation_of_the_gaussian(q, s):
    for direction in Direction:
        found = one_round_delta(0.0, SampledGaussianPair(q, s, direction))
        assert found.upper == pytest.approx(q * math.erf(1 / (2 * math.sqrt(2) * s)), rel=1e-6)
