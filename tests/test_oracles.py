"""The oracles against each other: integral, binomial sum, closed forms, plain quadrature."""

from __future__ import annotations

import pytest
from mpmath import mp, mpf

from tests.oracles import conversions, gaussian, sampled_gaussian, uniform

AGREEMENT = mpf(10) ** -20


@pytest.fixture(autouse=True)
def _precision():
    with mp.workdps(50):
        yield


def close(value: mpf, expected: mpf) -> bool:
    return abs(value / expected - 1) < AGREEMENT


@pytest.mark.sampled(3)
@pytest.mark.parametrize("noise_std", [0.05, 0.2, 1.0, 10.0, 1000.0])
@pytest.mark.parametrize("sampling_rate", [1e-7, 0.01, 0.5, 0.999999])
@pytest.mark.parametrize("order", [2, 3, 32])
def test_integral_equals_binomial_sum(order, sampling_rate, noise_std):
    """Both expressions of an integer moment agree to 20 digits, however small it is."""
    integral = sampled_gaussian.log_moment(float(order), sampling_rate, noise_std)
    assert close(integral, sampled_gaussian.binomial_log_moment(order, sampling_rate, noise_std))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("order", [-5.5, -0.1, 0.3, 1.5, 7.3])
def test_integral_equals_plain_quadrature(order):
    """mpmath's own adaptive rule on the unsubtracted integrand finds the same real moments."""
    q, s = mpf(0.25), mpf(0.75)

    def f(x):
        ratio = 1 - q + q * mp.exp((2 * x - 1) / (2 * s * s))
        return mp.npdf(x, 0, s) * ratio**order

    with mp.workdps(30):
        plain = mp.log(mp.quad(f, mp.linspace(-16, 24, 41)))
    assert close(sampled_gaussian.log_moment(order, 0.25, 0.75), plain)


def test_direct_form_equals_excess_form():
    """For 0 < a < 1 the two integrands give the same logarithm."""
    excess = mp.log1p(sampled_gaussian.excess(0.3, 0.1, 0.6))
    assert close(sampled_gaussian._log_moment_direct(0.3, 0.1, 0.6), excess)


def test_moment_at_full_participation_is_approached():
    """q = 1 has a closed form, and q just below 1 is just below it."""
    exact = sampled_gaussian.log_moment(3.5, 1.0, 2.0)
    near = sampled_gaussian.log_moment(3.5, 1 - 2.0**-50, 2.0)
    assert 0 < exact - near < 1e-13


@pytest.mark.sampled(1)
@pytest.mark.parametrize("epsilon", [-0.5, -0.05, 0.0, 0.05, 1.0, 3.0])
def test_one_round_delta_is_the_integral_of_the_positive_part(epsilon):
    """Thresholds and normal tails against the definition, in both directions."""
    q, s = mpf(0.125), mpf(0.75)
    edges = mp.linspace(-10, 12, 23)

    def ratio(x):
        return 1 - q + q * mp.exp((2 * x - 1) / (2 * s * s))

    level = 1 + mp.expm1(epsilon) / q
    mirrored = 1 + mp.expm1(-mpf(epsilon)) / q
    for value, start, f in (
        (
            sampled_gaussian.delta_remove(epsilon, 0.125, 0.75),
            level,
            lambda x: ratio(x) - mp.exp(epsilon),
        ),
        (
            sampled_gaussian.delta_add(epsilon, 0.125, 0.75),
            mirrored,
            lambda x: 1 - mp.exp(epsilon) * ratio(x),
        ),
    ):
        kinks = [0.5 + s * s * mp.log(start)] if start > 0 else []
        with mp.workdps(30):
            plain = mp.quad(
                lambda x, f=f: max(mpf(0), mp.npdf(x, 0, s) * f(x)), sorted([*edges, *kinks])
            )
        assert abs(value - plain) < AGREEMENT


@pytest.mark.sampled(1)
@pytest.mark.parametrize("order", [-3.25, 1.5, 2.0, 7.25])
def test_symmetrized_moment_is_its_definition(order):
    """The subtracted integrand of the C_q pair against r^a + r^(1-a) and the atom at zero."""
    q, s = mpf(0.125), mpf(1)
    edges = mp.linspace(0.5, 30.5, 31)

    def ratio(x):
        return 1 - q + q * mp.exp((2 * x - 1) / (2 * s * s))

    with mp.workdps(30):
        atom = 1 - mp.quad(lambda x: mp.npdf(x, 0, s) * (1 + ratio(x)), edges)
        integral = mp.quad(
            lambda x: mp.npdf(x, 0, s) * (ratio(x) ** order + ratio(x) ** (1 - order)), edges
        )
        plain = integral + atom - 1
    assert close(uniform.symmetrized_excess(order, 0.125, 1.0), plain)


def test_symmetrized_pair_at_full_participation_is_the_gaussian():
    """C_1(f) = f, so the moments are those of the Gaussian."""
    beyond = uniform.symmetrized_excess(2.5, 1.0, 1.0)
    assert close(mp.log1p(beyond), sampled_gaussian.log_moment(2.5, 1.0, 1.0))


def test_gaussian_epsilon_inverts_delta():
    """delta(epsilon(d)) = d over sixteen decades."""
    for mu, target in ((0.01, 1e-16), (1.0, 1e-10), (12.0, 1e-3)):
        assert close(gaussian.delta(gaussian.epsilon(target, mu), mu), mpf(target))


def test_sampled_delta_at_full_participation_is_the_gaussian():
    """At q = 1 both directions are the same Gaussian."""
    exact = gaussian.delta(1.0, 1 / 0.5)
    assert close(sampled_gaussian.delta_remove(1.0, 1.0, 0.5), exact)
    assert close(sampled_gaussian.delta_add(1.0, 1.0, 0.5), exact)


def test_conversions_solve_each_other():
    """Each delta formula is its epsilon formula solved for delta."""
    for order in (1.5, 3.0, 40.0):
        eps = conversions.classic(order, 0.1, 1e-6)
        assert close(conversions.classic_delta(order, 0.1, eps), mpf(1e-6))
        eps = conversions.improved(order, 0.1, 1e-6)
        assert close(conversions.improved_delta(order, 0.1, eps), mpf(1e-6))


def test_classic_conversion_of_a_gaussian_has_a_closed_form():
    """The least a rho + log(1/delta) / (a - 1) is rho + 2 sqrt(rho log(1/delta))."""
    rho = mpf(0.125)
    found = conversions.epsilon_classic(lambda a: a * rho, 1e-5)
    assert abs(found - (rho + 2 * mp.sqrt(rho * mp.log(1e5)))) < 1e-12
