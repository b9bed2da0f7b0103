"""delta(eps) of one sampled Gaussian round against 50-digit values, in both directions."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf

from dpacct.budget import Interval
from dpacct.pairs.dominating import Direction, SampledGaussianPair
from dpacct.pairs.one_round import gaussian_delta, one_round_delta
from tests.oracles import sampled_gaussian
from tests.strategies import log_uniform, noise_multipliers, sampling_rates

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


def contains(found: Interval, truth: mpf) -> bool:
    with mp.workdps(50):
        noise = mpf(10) ** -40
        return mpf(found.lower) - noise <= truth <= mpf(found.upper) + noise


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
    assert contains(found, truth)
    assert 0 <= found.lower <= found.upper <= 1
    # Close to its largest epsilon, -log(1 - q), the add direction loses digits with that gap.
    far = epsilon < 0.9 * -math.log1p(-pair.sampling_rate) if pair.sampling_rate < 1 else True
    if truth > 1e-30 and (pair.direction is Direction.REMOVE or far):
        assert found.width <= 1e-8 * truth


@given(epsilon=epsilons, q=sampling_rates(), s=noise_multipliers(), direction=directions)
def test_truth_is_inside_at_unrelated_parameters(epsilon, q, s, direction):
    pair = SampledGaussianPair(q, s, direction)
    assert contains(one_round_delta(epsilon, pair), truth_of(epsilon, pair))


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
    assert contains(one_round_delta(epsilon, pair), truth_of(epsilon, pair))


def test_truth_is_inside_where_it_was_missed_once():
    """The last bit of epsilon decides whether any loss exceeds it."""
    pair = SampledGaussianPair(0.9995858946988277, 0.03125330970775558, Direction.ADD)
    assert one_round_delta(7.789390265822991, pair).upper >= truth_of(7.789390265822991, pair)


@given(epsilon=epsilons, s=noise_multipliers(0.01), direction=directions)
def test_a_rate_of_one_is_the_gaussian(epsilon, s, direction):
    found = one_round_delta(epsilon, SampledGaussianPair(1.0, s, direction))
    assert found == gaussian_delta(epsilon, 1 / s)


@given(q=sampling_rates(), s=noise_multipliers())
def test_both_directions_agree_at_epsilon_zero(q, s):
    """delta(0) is the total variation distance, which is symmetric: q times the Gaussian's."""
    remove, add = (one_round_delta(0.0, SampledGaussianPair(q, s, d)) for d in Direction)
    assert remove.lower <= add.upper
    assert add.lower <= remove.upper
    assert remove.upper == pytest.approx(q * math.erf(1 / (2 * math.sqrt(2) * s)), rel=1e-6)


@given(epsilon=log_uniform(1e-6, 30.0), q=sampling_rates(), s=noise_multipliers(0.05, 100.0))
def test_removing_costs_more_than_adding(epsilon, q, s):
    """Of a single round; see Zhu, Dong, Wang 2022 for why this does not survive composition."""
    remove, add = (one_round_delta(epsilon, SampledGaussianPair(q, s, d)) for d in Direction)
    assert add.lower <= remove.upper


@given(
    epsilon=log_uniform(1e-6, 30.0),
    q=sampling_rates(1e-6),
    s=noise_multipliers(0.05, 100.0),
    direction=directions,
    more=log_uniform(1e-9, 1.0),
)
def test_delta_is_monotone(epsilon, q, s, direction, more):
    here = one_round_delta(epsilon, SampledGaussianPair(q, s, direction))
    higher_rate = SampledGaussianPair(min(1.0, q * (1 + more)), s, direction)
    assert here.lower <= one_round_delta(epsilon, higher_rate).upper
    more_noise = SampledGaussianPair(q, s * (1 + more), direction)
    assert one_round_delta(epsilon, more_noise).lower <= here.upper
    assert (
        one_round_delta(epsilon * (1 + more), higher_rate).lower
        <= one_round_delta(epsilon, higher_rate).upper
    )
