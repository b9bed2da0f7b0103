"""Pairs of mechanisms against sums and integrals in mpmath, which share no code with them."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mpmath import mp, mpf

from dpacct.mechanisms.discrete import DiscreteGaussianPair, discrete_laplace_pair
from dpacct.mechanisms.laplace import HalfPowerPair
from dpacct.pairs.atoms import (
    AtomicPair,
    concentrated_delta,
    concentrated_pair,
    convolved,
    profile_of_knots,
)
from dpacct.pairs.one_round import gaussian_delta
from tests.strategies import FEWER, log_uniform

epsilons = log_uniform(1e-4, 60.0)
TILTS = (-1.0, -0.7, -0.5, -0.25, 0.0, 1e-6, 0.5, 3.0, 40.0)


def _laplace_moment(epsilon: float, s: mpf) -> mpf:
    """E_P[e^{sL}] of Lap(1) against Lap(0) by its three pieces in the outcome."""
    e = mpf(epsilon)
    ends = mp.exp(s * e) / 2 + mp.exp(-e - s * e) / 2
    # Between: density (e/2) e^{-e (1-x)}, loss e (2 x - 1).
    a = e + 2 * s * e
    middle = mp.exp(-e - s * e) * (e / 2) * ((mp.exp(a) - 1) / a if a else 1)
    return ends + middle


def _exponential_moment(epsilon: float, s: mpf) -> mpf:
    """The pair with density e^{(y - eps) / 2} / (2 (1 - e^-eps))."""
    e = mpf(epsilon)
    a = s + mpf(1) / 2
    between = (mp.exp(a * e) - mp.exp(-a * e)) / a if a else 2 * e
    return mp.exp(-e / 2) / (2 * (1 - mp.exp(-e))) * between


MOMENTS = {0.5: _laplace_moment, 0.0: _exponential_moment}


@pytest.mark.parametrize("top", MOMENTS)
@given(epsilon=epsilons, tilt=st.sampled_from(TILTS))
def test_the_moment_of_a_half_power_pair_is_inside_and_narrow(top, epsilon, tilt):
    pair = HalfPowerPair(epsilon, top)
    found = pair.log_moment(np.array([tilt]))
    with mp.workdps(50):
        truth = mp.log(MOMENTS[top](epsilon, mpf(tilt)))
        assert found.lower[0] - 1e-45 <= truth <= found.upper[0] + 1e-45
        assert found.upper[0] - found.lower[0] <= 1e-12 * (1 + abs(truth))


@pytest.mark.parametrize("top", MOMENTS)
@given(epsilon=epsilons, tilt=st.sampled_from(TILTS), last=log_uniform(1e-2, 1e4))
@example(epsilon=1.0, tilt=1e-6, last=1.0)
@FEWER
def test_the_characteristic_function_and_its_decay_hold(top, epsilon, tilt, last):
    pair = HalfPowerPair(epsilon, top)
    frequencies = np.linspace(0.0, last, 5)
    shift, error = pair.characteristic(tilt, frequencies)
    decay = pair.decay(tilt, frequencies)
    with mp.workdps(50):
        whole = MOMENTS[top](epsilon, mpf(tilt))
        for t, value, off, bound in zip(frequencies, shift, error, decay, strict=True):
            truth = MOMENTS[top](epsilon, mpf(tilt) + 1j * mpf(float(t))) / whole
            # The truth has 50 digits.
            assert abs(truth - 1 - mp.mpc(value)) <= off + mpf(10) ** -48
            assert abs(truth) <= bound * (1 + 1e-12)
            assert off <= 1e-13 * (1 + t * epsilon)


@given(epsilon=epsilons, share=st.floats(0.0, 1.0))
def test_the_profile_of_laplace_noise_is_its_closed_form(epsilon, share):
    found = HalfPowerPair(epsilon, 0.5).delta(share * epsilon)
    with mp.workdps(50):
        truth = 1 - mp.exp((mpf(share * epsilon) - mpf(epsilon)) / 2)
        assert found.lower <= truth <= found.upper
        assert found.width <= 1e-13 * (1 + epsilon)


@given(epsilon=log_uniform(1e-3, 10.0), share=st.floats(0.0, 0.999))
def test_the_exponential_mechanism_has_the_largest_of_all_two_point_profiles(epsilon, share):
    y = share * epsilon
    ends = np.linspace(y, epsilon, 4001)
    tops = np.expm1(ends - epsilon) / math.expm1(-epsilon)
    every = tops * -np.expm1(y - ends)
    found = HalfPowerPair(epsilon, 0.0).delta(y)
    assert every.max() <= found.upper
    assert every.max() >= found.lower * (1 - 1e-5) - 1e-12


def _gaussian_sums(scale: float, shift: int, s: mpf, epsilon: float) -> tuple[mpf, mpf]:
    """M(s), and delta(eps), by sums over the integers."""
    variance = mpf(scale) ** 2
    reach = int(60 * scale + abs(float(mp.re(s))) * shift + shift + 60)
    norm = mp.fsum(mp.exp(-(mpf(x) ** 2) / (2 * variance)) for x in range(-reach, reach + 1))
    moment, delta = mpf(0), mpf(0)
    for x in range(-reach, reach + 1):
        p = mp.exp(-(mpf(x - shift) ** 2) / (2 * variance)) / norm
        loss = shift * (2 * mpf(x) - shift) / (2 * variance)
        moment += p * mp.exp(s * loss)
        delta += p * max(mpf(0), 1 - mp.exp(epsilon - loss))
    return moment, delta


@given(
    scale=log_uniform(0.1, 4.0),
    shift=st.integers(1, 3),
    tilt=st.sampled_from((-0.7, -0.5, 0.0, 0.3, 2.0)),
    share=st.floats(0.01, 1.2),
    epsilon=st.floats(0.0, 4.0),
)
@example(scale=1.0, shift=1, tilt=0.0, share=1.0, epsilon=0.0)
@example(scale=1.472, shift=1, tilt=0.0, share=1.0, epsilon=27.43)
@FEWER
def test_discrete_gaussian_noise_is_as_its_sums_say(scale, shift, tilt, share, epsilon):
    pair = DiscreteGaussianPair(scale, shift)
    # Up to beyond one period of the lattice.
    last = share * 2 * math.pi * scale**2 / shift
    moment = pair.log_moment(np.array([tilt]))
    shifted, error = pair.characteristic(tilt, np.array([0.0, last / 2, last]))
    found = pair.delta(epsilon)
    with mp.workdps(40):
        whole, delta = _gaussian_sums(scale, shift, mpf(tilt), epsilon)
        # The sums themselves have 40 digits.
        off = mpf(10) ** -36
        assert moment.lower[0] - off <= mp.log(whole) <= moment.upper[0] + off
        assert moment.upper[0] - moment.lower[0] <= 1e-11 * (1 + abs(mp.log(whole)))
        assert found.lower <= delta <= found.upper
        assert found.width <= 1e-10 * found.upper + 1e-299
        other, _ = _gaussian_sums(scale, shift, mpf(tilt) + 1j * mpf(last), epsilon)
        truth = other / whole - 1
        assert abs(truth - mp.mpc(complex(shifted[2]))) <= error[2]
        assert error[2] <= 1e-10


@given(scale=log_uniform(0.05, 50.0), shift=st.integers(1, 40), epsilon=st.floats(0.0, 3.0))
@FEWER
def test_discrete_laplace_noise_is_as_its_sums_say(scale, shift, epsilon):
    with mp.workdps(40):
        a = mp.exp(-1 / mpf(scale))
        reach, delta = int(100 * scale) + shift + 5, mpf(0)
        for x in range(-reach, reach + 1):
            p, q = (1 - a) / (1 + a) * a ** abs(x - shift), (1 - a) / (1 + a) * a ** abs(x)
            delta += max(mpf(0), p - mp.exp(mpf(epsilon)) * q)
        found = discrete_laplace_pair(scale, shift).delta(epsilon)
        assert found.lower <= delta * (1 + mpf(10) ** -30) + mpf(10) ** -30
        assert found.upper >= delta * (1 - mpf(10) ** -12) - mpf(10) ** -30
        assert found.width <= 1e-11 + 1e-12 * shift / scale


def _exact_profile(losses, masses, infinite_mass: float, epsilons: np.ndarray) -> list[mpf]:
    """delta at increasing epsilons in exact arithmetic, from the very numbers of the atoms."""
    order = np.argsort(losses)[::-1]
    atoms = iter([(mpf(float(losses[i])), mpf(float(masses[i]))) for i in order])
    p, q, found = mpf(infinite_mass), mpf(0), []
    loss, mass = next(atoms)
    for epsilon in epsilons[::-1]:
        while loss > epsilon:
            p, q = p + mass, q + mass * mp.exp(-loss)
            loss, mass = next(atoms, (mpf("-inf"), mpf(0)))
        found.append(p - mp.exp(mpf(float(epsilon))) * q)
    return found[::-1]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("rho", [1e-6, 0.07, 0.81, 2.56, 20.0])
def test_the_pair_of_zcdp_dominates_every_point_of_the_conversion(rho):
    pair = concentrated_pair(rho)
    points = np.linspace(0.0, rho + 2 * math.sqrt(60 * rho), 60)
    assert pair.masses.sum() + pair.infinite_mass == pytest.approx(1.0, abs=1e-12)
    with mp.workdps(60):
        profile = _exact_profile(pair.losses, pair.masses, pair.infinite_mass, points)
        for epsilon, exact in zip(points, profile, strict=True):
            # Each point is about as accurate as the hull is fine.
            bound = min(float(concentrated_delta(rho, np.array([epsilon]))[0]), 1.0)
            best = min(bound, math.sqrt(rho / 2)) if epsilon == 0.0 else bound
            if rho < 3:
                assert exact <= best * (1 + 2e-3)
            # The least bound is not convex for a large rho, and at 0 there is a second one.
            hull_may_be_lower = rho > 3 or epsilon < 3 * math.sqrt(rho)
            if not hull_may_be_lower:
                assert exact >= best


def test_the_profile_of_zcdp_lies_above_that_of_the_gaussian():
    # rho = mu^2 / 2: one of the releases for which the promise stands.
    for rho in (1e-4, 0.05, 0.81, 6.0):
        pair = concentrated_pair(rho)
        for epsilon in np.linspace(0.0, rho + 8 * math.sqrt(rho), 25):
            least = gaussian_delta(float(epsilon), math.sqrt(2 * rho)).lower
            assert pair.delta(float(epsilon)).upper >= least


def test_a_hull_is_raised_to_pay_for_rounding():
    # Without it the exact profile of the rounded atoms falls below some points.
    epsilons = np.linspace(0.0, 6.0, 2000)
    deltas = np.array([gaussian_delta(float(e), 1.0).upper for e in epsilons])
    losses, masses, infinite, *_ = profile_of_knots(epsilons, deltas)
    with mp.workdps(60):
        exact = _exact_profile(losses, masses, infinite, epsilons[::50])
        assert all(np.array(exact) >= deltas[::50])


def test_small_atomic_compositions_are_exact():
    pair = AtomicPair(np.array([0.5, -0.5]), np.array([0.6, 0.4]))
    whole = convolved(((pair, 20),))
    assert whole is not None
    with mp.workdps(30):
        for epsilon in (0.0, 4.0, 8.0, 9.5):
            truth = mp.fsum(
                mp.binomial(20, j) * mpf(0.6) ** j * mpf(0.4) ** (20 - j)
                * max(mpf(0), 1 - mp.exp(mpf(epsilon) - mpf(j - 10)))
                for j in range(21)
            )  # fmt: skip
            found = whole.delta(epsilon)
            assert found.lower <= truth <= found.upper
            assert found.width <= 1e-12
    uneven = AtomicPair(np.array([0.5, 0.1, -0.5]), np.array([0.5, 0.2, 0.3]))
    assert convolved(((uneven, 3),)) is None


def test_infinite_masses_compose_once():
    pair = AtomicPair(np.array([0.1]), np.array([0.9]), infinite_mass=0.1)
    whole = convolved(((pair, 3),))
    assert whole is not None
    assert whole.infinite_mass == pytest.approx(1 - 0.9**3)
    assert whole.infinite_mass >= 1 - 0.9**3
    assert whole.delta(5.0).upper == pytest.approx(1 - 0.9**3)


def test_a_pair_is_equal_by_its_numbers():
    first = AtomicPair(np.array([0.1]), np.array([1.0]))
    again = AtomicPair(np.array([0.1]), np.array([1.0]))
    other = AtomicPair(np.array([0.2]), np.array([1.0]))
    assert first == again
    assert hash(first) == hash(again)
    assert first != other
