"""The achieved side: never above the truth, and exact where the truth is known."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf

from dpacct.accountant import ACCOUNTANTS
from dpacct.pairs.achieved import achieved_delta, achieved_epsilon
from dpacct.rounds import Adjacency, Full, Poisson, Round, Schedule, Uniform
from tests.oracles import gaussian, sampled_gaussian
from tests.strategies import FEWER, log_uniform, noise_multipliers, sampling_rates, uniform_schemes

RENYI = ACCOUNTANTS["rdp"]
deltas = log_uniform(1e-12, 0.5)


def exact_delta(epsilon: float, q: float, s: float) -> mpf:
    """One round, the worse direction."""
    with mp.workdps(50):
        return max(
            sampled_gaussian.delta_remove(epsilon, q, s), sampled_gaussian.delta_add(epsilon, q, s)
        )


@given(
    epsilon=log_uniform(1e-3, 20.0),
    rate=sampling_rates(1e-5),
    scheme=uniform_schemes(),
    z=noise_multipliers(0.1, 30.0),
)
def test_one_round_is_exact(epsilon, rate, scheme, z):
    """A Poisson round, and one of a fixed cohort: there the pair has twice the shift."""
    poisson = exact_delta(epsilon, rate, z)
    for truth, sampling, adjacency in (
        (poisson, Poisson(rate), "add-remove"),
        (poisson, Poisson(rate), "zero-out"),
        (exact_delta(epsilon, scheme.sampling_rate, z / 2), scheme, "replace-one"),
    ):
        found = achieved_delta(1 * Round(z, sampling, adjacency), epsilon)
        assert found <= truth
        assert found >= truth * (1 - 1e-7) or truth <= 1e-25


@FEWER
@given(delta=deltas, q=sampling_rates(1e-3), z=noise_multipliers(0.2, 10.0))
def test_epsilon_of_one_round_is_where_delta_says(delta, q, z):
    round_ = 1 * Round(z, Poisson(q))
    epsilon = achieved_epsilon(round_, delta)
    assert epsilon >= 0
    if epsilon > 0:
        assert exact_delta(epsilon, q, z) >= delta
        assert exact_delta(epsilon * (1 + 1e-7) + 1e-9, q, z) <= delta * (1 + 1e-9)
    else:
        assert exact_delta(0.0, q, z) <= delta * (1 + 1e-7)


everybody = st.tuples(
    noise_multipliers(0.1, 100.0),
    st.sampled_from([Full(), Poisson(1.0), Uniform(9, 9)]),
    st.integers(1, 10**4),
)


@FEWER
@given(
    parts=st.lists(everybody, min_size=1, max_size=4),
    delta=deltas,
    adjacency=st.sampled_from(["zero-out", "replace-one"]),
)
def test_full_participation_is_exact(parts, delta, adjacency):
    """However it is spelled, and however many different rounds there are."""
    schedule = sum((n * Round(z, s, adjacency) for z, s, n in parts), Schedule())
    with mp.workdps(50):
        shift = 2 if adjacency == "replace-one" else 1
        mu = shift * mp.sqrt(mp.fsum(n / mpf(z) ** 2 for z, _, n in parts))
    found = achieved_epsilon(schedule, delta)
    assert gaussian.delta(found, mu) >= delta * (1 - 1e-12) or found == 0
    assert gaussian.delta(found * (1 + 1e-6) + 1e-9, mu) <= delta * (1 + 1e-9)


@st.composite
def plans(draw: st.DrawFn) -> Schedule:
    """Up to three different rounds of one adjacency."""
    adjacency = draw(st.sampled_from(Adjacency))
    schemes = st.one_of(sampling_rates(1e-4).map(Poisson), uniform_schemes(), st.just(Full()))
    parts = st.tuples(noise_multipliers(0.2, 50.0), schemes, st.integers(1, 1000))
    drawn = draw(st.lists(parts, min_size=1, max_size=3))
    return sum((n * Round(z, s, adjacency) for z, s, n in drawn), Schedule())


@FEWER
@given(plan=plans(), delta=deltas)
def test_achieved_is_never_above_proven(plan, delta):
    """Two computations that share no formula."""
    upper = RENYI.upper_epsilon(plan, delta)
    found = achieved_epsilon(plan, delta)
    assert 0 <= found <= upper
    assert achieved_delta(plan, upper) <= delta * (1 + 1e-9)


@given(plan=plans(), epsilon=log_uniform(1e-3, 50.0))
def test_rounds_of_everybody_only_add(plan, epsilon):
    """Composition never lowers delta: the rounds of everybody bound the whole from below."""
    whole = plan + 3 * Round(1.0, Full(), plan.adjacency)
    alone = achieved_delta(3 * Round(1.0, Full(), plan.adjacency), epsilon)
    assert achieved_delta(whole, epsilon) >= alone * (1 - 1e-9)


def test_no_rounds_achieve_nothing():
    assert achieved_delta(Schedule(), 1.0) == 0.0
    assert achieved_epsilon(Schedule(), 1e-5) == 0.0


def test_a_cohort_of_everybody_can_still_grow_by_a_client():
    """Fixed cohort of 5 among 5 clients: the neighbor has 6, and one of them sits out."""
    round_ = 1 * Round(1.0, Uniform(5, 5), "add-remove")
    truth = exact_delta(0.5, 5 / 6, 0.5)
    assert achieved_delta(round_, 0.5) == pytest.approx(float(truth), rel=1e-9)
