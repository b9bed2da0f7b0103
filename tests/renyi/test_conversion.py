"""From Renyi to (epsilon, delta): the formulas, and the search for the best order."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mpmath import mp, mpf

from dpacct.pairs.moments import log_moment
from dpacct.renyi.curve import best_delta, best_epsilon, improved_delta, improved_epsilon
from tests.oracles import conversions, gaussian
from tests.strategies import FEWER, log_uniform, noise_multipliers, orders, sampling_rates

ORDERS = orders(1e-5, 1e6)
RENYI = st.one_of(st.just(0.0), log_uniform(1e-18, 1e6))
DELTAS = log_uniform(1e-300, 0.999)
# Orders of a fine scan, and its number of points.
RANGE = (1 + math.exp(-13.0), 1 + math.exp(16.0), 290)
Curve = Callable[[float], float]


def size(order: float, renyi: float, cost: float) -> float:
    """The sum of the terms whose roundings a conversion pays for."""
    b = order - 1
    logs = abs(math.log(b)) + math.log(order)
    return renyi + logs + (cost + math.log(order)) / b


@given(order=ORDERS, renyi=RENYI, delta=DELTAS)
def test_epsilon_is_rounded_up_never_negative_and_never_above_the_classic_one(order, renyi, delta):
    slack = 1e-13 * size(order, renyi, -math.log(delta))
    with mp.workdps(50):
        exact = max(mpf(0), conversions.improved(order, renyi, delta))
        found = improved_epsilon(order, renyi, delta)
        assert found >= 0
        assert exact <= mpf(found) <= exact + slack
        assert found <= conversions.classic(order, renyi, delta) + slack


@given(order=ORDERS, renyi=RENYI, epsilon=st.one_of(st.just(0.0), log_uniform(1e-6, 1e4)))
def test_delta_is_rounded_up_and_a_probability(order, renyi, epsilon):
    found = improved_delta(order, renyi, epsilon)
    assert 0 < found <= 1
    with mp.workdps(50):
        exact = conversions.improved_delta(order, renyi, epsilon)
        assert mpf(found) >= exact
        terms = order * (renyi + epsilon + abs(math.log(order - 1)) + math.log(order)) + 10
        assert mpf(found) <= exact * (1 + mpf(1e-13) * terms) + mpf(10) ** -298 or found == 1


@given(order=orders(1e-3, 1e4), renyi=log_uniform(1e-6, 1e3), delta=log_uniform(1e-200, 0.9))
def test_the_conversions_are_inverse(order, renyi, delta):
    epsilon = improved_epsilon(order, renyi, delta)
    back = improved_delta(order, renyi, epsilon)
    # Rounding up epsilon by its last digits moves log delta by (order - 1) times that.
    slack = 1e-12 * (order - 1) * size(order, renyi, -math.log(delta)) + 1e-12
    assert math.log(back) <= math.log(delta) + slack
    if epsilon > 0:
        assert math.log(back) >= math.log(delta) - slack


@pytest.mark.parametrize(
    ("order", "renyi", "delta", "improved"),
    [
        # By hand: 1 + log(1e5) by the classic conversion, less 2 log 2.
        (2.0, 1.0, 1e-5, 1 + math.log(1e5) - 2 * math.log(2)),
        (3.0, 0.0, 0.25, math.log(2 / 3) + math.log(4 / 3) / 2),
        (2.0, 0.0, 0.5, 0.0),
    ],
)
def test_values_by_hand(order, renyi, delta, improved):
    assert improved_epsilon(order, renyi, delta) == pytest.approx(max(0.0, improved), abs=1e-12)


# The best order.


def check_minimum(curve: Curve, delta: float, start: float) -> None:
    found = best_epsilon(curve, delta, start)
    assert found.value == improved_epsilon(found.order, curve(found.order), delta)
    least = conversions.minimize(
        lambda order: improved_epsilon(order, curve(order), delta), *RANGE
    )[1]
    assert found.value <= least * (1 + 1e-6) + 1e-12


@FEWER
@given(rho=log_uniform(1e-12, 1e6), delta=log_uniform(1e-100, 0.9), start=log_uniform(1e-4, 1e5))
def test_the_search_finds_the_minimum_for_a_gaussian(rho, delta, start):
    """From any start: unimodality at work."""
    check_minimum(lambda order: rho * order, delta, 1 + start)


@FEWER
@given(
    losses=st.lists(log_uniform(1e-4, 1e3), min_size=1, max_size=4),
    masses=st.lists(log_uniform(1e-12, 1.0), min_size=4, max_size=4),
    delta=log_uniform(1e-30, 0.5),
)
def test_the_search_finds_the_minimum_for_any_loss_distribution(losses, masses, delta):
    """A few atoms: their log moments bend sharply, at several orders."""
    atoms = [(0.0, 1.0), *zip(losses, masses, strict=False)]
    total = sum(mass for _, mass in atoms)

    def curve(order: float) -> float:
        b, top = order - 1, max(losses)
        moment = sum(mass * math.exp(b * (loss - top)) for loss, mass in atoms)
        return max(0.0, top + math.log(moment / total) / b)

    check_minimum(curve, delta, 3.0)


@FEWER
@given(
    rate=sampling_rates(1e-4),
    noise=noise_multipliers(0.3, 30.0),
    rounds=st.integers(1, 10**5),
    delta=log_uniform(1e-15, 0.3),
)
def test_the_search_finds_the_minimum_for_sampled_rounds(rate, noise, rounds, delta):
    def curve(order: float) -> float:
        return rounds * float(log_moment(order, rate, noise).upper) / (order - 1)

    found = best_epsilon(curve, delta, 4.0)
    for factor in (0.5, 0.9, 0.99, 0.9999, 1.0001, 1.01, 1.1, 2.0):
        order = 1 + (found.order - 1) * factor
        assert found.value <= improved_epsilon(order, curve(order), delta) * (1 + 1e-8) + 1e-12


@given(mu=log_uniform(1e-3, 50.0), delta=log_uniform(1e-15, 0.3))
def test_the_result_is_never_below_the_exact_mechanism(mu, delta):
    found = best_epsilon(lambda order: order * mu * mu / 2, delta, 2.0).value
    assert gaussian.delta(found, mu) <= delta


@FEWER
@given(rho=log_uniform(1e-8, 100.0), epsilon=log_uniform(1e-3, 200.0))
@example(rho=33.11545195869231, epsilon=1.0)
def test_the_best_delta_is_the_least_and_inverse_to_the_best_epsilon(rho, epsilon):
    def curve(order: float) -> float:
        return order * rho

    found = best_delta(curve, epsilon, 2.0)
    least = conversions.minimize(
        lambda order: improved_delta(order, curve(order), epsilon), *RANGE
    )[1]
    assert found.value <= least * (1 + 1e-4) + 1e-298
    assert gaussian.delta(epsilon, math.sqrt(2 * rho)) <= found.value
    if 1e-290 < found.value < 1:
        back = best_epsilon(curve, found.value, 2.0).value
        assert gaussian.delta(back, math.sqrt(2 * rho)) <= found.value
        # Next to 1 a delta has no digits left to say which epsilon it was.
        if found.value < 0.999:
            assert back == pytest.approx(epsilon, rel=1e-5)


def test_epsilon_is_zero_where_delta_allows_it():
    assert best_epsilon(lambda order: 1e-9 * order, 0.1, 2.0).value == 0.0
    assert best_delta(lambda order: 100.0 * order, 1e-3, 2.0).value == 1.0
    assert best_delta(lambda order: 1e-6 * order, 1e4, 2.0).value <= 1e-299


def test_what_is_not_a_number_bounds_nothing():
    """A NaN among the orders once became the minimum: max(0.0, nan) is 0.0 in Python."""
    assert improved_epsilon(2.0, math.nan, 1e-5) == math.inf
    assert improved_delta(2.0, math.nan, 1.0) == 1.0
