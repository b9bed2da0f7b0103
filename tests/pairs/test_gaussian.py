"""The exact Gaussian mechanism against 100-digit values, and the accountant built on it."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mpmath import mp, mpf

import dpacct
from dpacct.accountant import ACCOUNTANTS
from dpacct.budget import Interval
from dpacct.errors import Unsupported
from dpacct.numerics.rounding import UNIT
from dpacct.pairs.one_round import _difference, gaussian_delta, gaussian_epsilon, mills_ratio
from dpacct.rounds import Full, Poisson, Round, Schedule, Uniform
from dpacct.tight.accountant import total_mu
from tests.oracles import conversions, gaussian
from tests.strategies import FEWER, log_uniform
from tests.truth import check

GDP = ACCOUNTANTS["gdp"]
MUS = log_uniform(1e-9, 300.0)
DELTAS = st.one_of(log_uniform(1e-20, 0.9), log_uniform(1e-9, 0.5).map(lambda gap: 1 - gap))


@st.composite
def settings_of_interest(draw: st.DrawFn) -> tuple[float, float]:
    """(epsilon, mu) with a threshold eps/mu - mu/2 at which delta is neither 1 nor nothing."""
    mu = draw(MUS)
    threshold = draw(st.floats(-8.0, 11.0))
    return max(0.0, mu * (threshold + mu / 2)), mu


@given(setting=settings_of_interest())
def test_delta_contains_the_truth_and_little_else(setting):
    epsilon, mu = setting
    found, truth = gaussian_delta(epsilon, mu), gaussian.delta(epsilon, mu)
    check(found, truth)
    assert 0 <= found.lower <= found.upper <= 1
    if truth > 1e-30:
        assert found.width <= 1e-8 * truth


@given(epsilon=st.one_of(st.just(0.0), log_uniform(1e-12, 1e6)), mu=log_uniform(1e-9, 1e9))
def test_delta_contains_the_truth_at_unrelated_parameters(epsilon, mu):
    check(gaussian_delta(epsilon, mu), gaussian.delta(epsilon, mu))


@given(threshold=st.floats(30.0, 60.0), mu=log_uniform(1e-3, 100.0))
def test_delta_below_all_doubles_stays_above_the_truth(threshold, mu):
    epsilon = mu * (threshold + mu / 2)
    check(gaussian_delta(epsilon, mu), gaussian.delta(epsilon, mu))


@FEWER
@given(mu=MUS, delta=DELTAS)
def test_epsilon_contains_the_truth_and_little_else(mu, delta):
    found, truth = gaussian_epsilon(delta, mu), gaussian.epsilon(delta, mu)
    check(found, truth)
    # A relative error of 1e-8 in delta is one of about 1e-8 / log(1/delta) in epsilon, except
    # where epsilon is about to vanish.
    if truth > 1e-3 * mu:
        assert found.width <= 1e-7 * truth


@given(mu=log_uniform(1e-6, 300.0), delta=log_uniform(1e-20, 0.5))
def test_epsilon_and_delta_are_inverse(mu, delta):
    epsilon = gaussian_epsilon(delta, mu)
    assert gaussian_delta(epsilon.upper, mu).upper <= delta
    if epsilon.lower > 0:
        assert gaussian_delta(epsilon.lower, mu).lower >= delta
        assert gaussian_delta(epsilon.lower, mu).upper == pytest.approx(delta, rel=1e-6)


def test_no_shift_costs_nothing():
    assert gaussian_delta(0.0, 0.0) == Interval(0.0, 0.0)
    assert gaussian_epsilon(1e-9, 0.0) == Interval(0.0, 0.0)


@pytest.mark.parametrize(
    ("epsilon", "mu", "delta"),
    [
        # Phi(mu/2 - eps/mu) - e^eps Phi(-mu/2 - eps/mu); the first is 2 Phi(1/2) - 1.
        (0.0, 1.0, 0.3829249225480262),
        (1.0, 1.0, 0.12693673750664397),
    ],
)
def test_values_from_tables_of_the_normal_distribution(epsilon, mu, delta):
    assert gaussian_delta(epsilon, mu).upper == pytest.approx(delta, rel=1e-12)


@given(x=st.floats(-30.0, 60.0))
def test_the_mills_ratio_contains_the_truth(x):
    with mp.workdps(60):
        truth = mp.ncdf(-mpf(x)) / mp.npdf(mpf(x))
    check(mills_ratio(x), truth, 1e-14 if x >= 4 else 3e-16 * (8 * x * x + 32))


@pytest.mark.parametrize("x", [4.0, math.nextafter(4.0, 0), 1e3, 1e8, 1e15])
def test_the_mills_ratio_at_its_seams_and_far_out(x):
    with mp.workdps(60):
        argument = mpf(x)
        # At 1e8 and beyond the asymptotic series 1/x - 1/x^3 has all digits.
        if x < 1e4:
            truth = mp.ncdf(-argument) / mp.npdf(argument)
        else:
            truth = 1 / argument - 1 / argument**3 + 3 / argument**5
    check(mills_ratio(x), truth)


@given(a=st.floats(-5.0, 30.0), mu=log_uniform(1e-9, 3.0), up=st.booleans())
@example(a=-5.0, mu=1e-9, up=True)
@example(a=-5.0, mu=1e-9, up=False)
def test_a_difference_of_mills_ratios_allows_for_rounded_arguments(a, mu, *, up):
    """Both are rounded: within eight units of their parts."""
    b = a + mu
    with mp.workdps(60):
        off = 7.99 * mpf(UNIT) * (abs(a) + abs(b) + mu)
        x = mpf(a) + (off if up else -off)
        near, far = (mp.ncdf(-at) / mp.npdf(at) for at in (x, x + mpf(mu)))
        exact = near - far
    check(_difference(a, b, mu), exact)


# Against zCDP.


@FEWER
@given(mu=log_uniform(1e-3, 30.0), delta=log_uniform(1e-15, 1e-2))
def test_zcdp_costs_more_than_the_exact_mechanism(mu, delta):
    """It is mu^2 / 2-zCDP, and eps = rho + 2 sqrt(rho log(1/delta)) holds for all that are."""
    rho = mu * mu / 2
    assert gaussian_epsilon(delta, mu).upper < rho + 2 * math.sqrt(rho * math.log(1 / delta))
    renyi = conversions.epsilon_improved(lambda order: order * rho, delta)
    assert gaussian_epsilon(delta, mu).lower <= renyi


# The accountant.

EVERYBODY = [Full(), Poisson(1.0), Uniform(7, 7)]
phases = st.tuples(log_uniform(0.05, 1e3), st.sampled_from(EVERYBODY), st.integers(1, 10**5))


@FEWER
@given(
    parts=st.lists(phases, min_size=1, max_size=5),
    adjacency=st.sampled_from(["zero-out", "replace-one"]),
    epsilon=log_uniform(1e-2, 100.0),
    delta=log_uniform(1e-12, 0.5),
)
def test_rounds_of_everybody_compose_exactly(parts, adjacency, epsilon, delta):
    """mu^2 adds up, however "everybody" is spelled; replacing a client doubles mu."""
    schedule = sum((n * Round(z, s, adjacency) for z, s, n in parts), Schedule())
    with mp.workdps(50):
        mu = mp.sqrt(mp.fsum(n / mpf(z) ** 2 for z, _, n in parts))
        mu *= 2 if adjacency == "replace-one" else 1
    check(total_mu(schedule), mu)
    check(GDP.delta(schedule, epsilon), gaussian.delta(epsilon, mu))
    check(GDP.epsilon(schedule, delta), gaussian.epsilon(delta, mu))
    assert GDP.upper_epsilon(schedule, delta) == GDP.epsilon(schedule, delta).upper


@pytest.mark.parametrize(
    "round_",
    [
        Round(1.0, Poisson(0.5)),
        Round(1.0, Uniform(1, 2)),
        Round(1.0, Poisson(0.999), "replace-one"),
        Round(1.0, Uniform(1, 2), "zero-out"),
    ],
)
def test_a_sampled_round_is_refused(round_):
    for ask in (lambda s: GDP.epsilon(s, 1e-5), lambda s: GDP.delta(s, 1.0), total_mu):
        with pytest.raises(Unsupported, match="full participation only"):
            ask(3 * Round(1.0, Full(), round_.adjacency) + round_)


@FEWER
@given(noise=log_uniform(0.05, 1e3), rounds=st.integers(1, 10**4), delta=log_uniform(1e-12, 0.5))
def test_the_exact_answer_is_below_the_one_by_renyi(noise, rounds, delta):
    exact = dpacct.epsilon(noise_multiplier=noise, rounds=rounds, delta=delta, accountant="gdp")
    renyi = dpacct.epsilon(noise_multiplier=noise, rounds=rounds, delta=delta, accountant="rdp")
    assert exact.lower <= renyi.upper
    # The other side of the Renyi accountant is exact here.
    assert renyi.lower == pytest.approx(exact.lower, rel=1e-7, abs=1e-9)
    assert renyi.lower <= exact.upper


def test_published_value_of_a_run_with_everybody():
    """DP with 20 clients, 300 rounds, z = sqrt(300 log(1e5)) / 8: epsilon 12.2671, not 8."""
    noise = math.sqrt(300 * math.log(1e5)) / 8
    spent = dpacct.epsilon(noise_multiplier=noise, rounds=300, delta=1e-5, accountant="gdp")
    assert spent.upper == pytest.approx(12.2671, abs=5e-5)
    assert spent.width < 1e-7
