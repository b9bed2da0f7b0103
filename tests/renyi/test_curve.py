"""Renyi curves of Poisson sampling and full participation, one round and composed."""

from __future__ import annotations

import math

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mpmath import mp, mpf

import dpacct
from dpacct.errors import InvalidParameter
from dpacct.renyi.curve import RenyiValue, best_order, rdp
from dpacct.rounds import Full, Poisson, Round, Schedule, Uniform
from tests.oracles import sampled_gaussian
from tests.strategies import FEWER, noise_multipliers, orders, sampling_rates, schedules
from tests.truth import check

TESTED_ORDERS = (1.1, 2.0, 2.5, 32.0)


def value(schedule: Schedule | Round, order: float) -> RenyiValue:
    (result,) = rdp(schedule, orders=[order])
    return result


# One round.


@FEWER
@given(order=orders(1e-4, 1e4), rate=sampling_rates(), noise=noise_multipliers())
@example(order=1.1, rate=0.1, noise=1.0)
@example(order=1.5, rate=0.1, noise=1.0)
def test_truth_is_inside(order, rate, noise):
    """Series for fractional orders give up below 2 at the examples; the integral does not."""
    check(
        value(Round(noise, Poisson(rate)), order), sampled_gaussian.renyi(order, rate, noise), 1e-9
    )


@FEWER
@given(order=orders(1e-3, 1e3), rate=sampling_rates(1e-5), noise=noise_multipliers(0.3, 100.0))
def test_both_directions_are_routes_and_the_larger_one_counts(order, rate, noise):
    result = value(Round(noise, Poisson(rate)), order)
    routes = dict(result.routes)
    assert set(routes) == {"remove", "add"}
    assert result.upper == max(routes.values())
    with mp.workdps(50):
        for name, truth in (
            ("remove", sampled_gaussian.renyi_remove(order, rate, noise)),
            ("add", sampled_gaussian.renyi_add(order, rate, noise)),
        ):
            assert truth <= mpf(routes[name]) <= truth * (1 + mpf(1e-10))


def test_full_participation_is_the_gaussian():
    for noise in (0.05, 1.0, 2.4, 1000.0):
        for order in TESTED_ORDERS:
            with mp.workdps(50):
                truth = mpf(order) / (2 * mpf(noise) ** 2)
            check(value(Round(noise, Full()), order), truth, 1e-13)
            check(value(Round(noise, Poisson(1)), order), truth, 1e-13)
            check(value(Round(noise, Full(), "zero-out"), order), truth, 1e-13)
            check(value(Round(noise, Full(), "replace-one"), order), 4 * truth, 1e-13)


# Composition.


@FEWER
@given(schedule=schedules(), order=st.sampled_from(TESTED_ORDERS))
@example(3 * Round(1.0, Full()) + 4 * Round(1.0, Poisson(1.0)), 2.5)
@example(3 * Round(1.0, Uniform(1, 20)) + 4 * Round(1.0, Uniform(5, 100)), 2.0)
@example(3 * Round(2.0, Full(), "replace-one") + 4 * Round(2.0, Uniform(7, 7)), 1.1)
@example(20 * Round(2.4, Uniform(1, 20)) + 2 * Round(3.0, Full(), "replace-one"), 32.0)
def test_a_schedule_costs_the_sum_of_its_rounds(schedule, order):
    """In any order, also where different rounds have the same effect."""
    whole = value(schedule, order)
    parts = [(phase.rounds, value(phase.round, order)) for phase in schedule]
    lower, upper = (math.fsum(n * getattr(p, end) for n, p in parts) for end in ("lower", "upper"))
    assert lower * (1 - 1e-14) <= whole.upper
    assert whole.lower <= upper * (1 + 1e-14)
    assert whole.upper == pytest.approx(upper, rel=1e-12)
    assert whole.lower == pytest.approx(lower, rel=1e-12)


def test_different_rounds_add_up():
    a, b = Round(1.3, Poisson(0.01)), Round(0.9, Full())
    for order in TESTED_ORDERS:
        with mp.workdps(50):
            truth = 30 * sampled_gaussian.renyi_remove(order, 0.01, 1.3)
            truth += 7 * mpf(order) / (2 * mpf(0.9) ** 2)
        check(value(30 * a + 7 * b, order), truth, 1e-12)


def test_no_rounds_cost_nothing():
    for result in rdp(Schedule(), orders=TESTED_ORDERS):
        assert 0 == result.lower <= result.upper < 1e-300


# The function.


def test_a_schedule_may_be_given_by_its_parts():
    expected = rdp(300 * Round(1.0, Poisson(0.1)), orders=[2, 32])
    assert rdp(orders=[2, 32], noise_multiplier=1.0, rounds=300, sampling_rate=0.1) == expected
    parts = rdp(orders=[2, 32], noise_multiplier=1, rounds=300, sampling=Poisson(0.1))
    assert parts == expected
    assert dpacct.rdp is rdp
    assert [v.order for v in expected] == [2.0, 32.0]
    with pytest.raises(InvalidParameter, match="at least one Renyi order"):
        rdp(Round(1.0), orders=[])


@pytest.mark.parametrize("order", [1, 0.5, -2, math.nan, math.inf, "2", True, None])
def test_an_order_is_above_one(order):
    with pytest.raises(InvalidParameter) as caught:
        rdp(Round(1.0), orders=[2.0, order])  # type: ignore[list-item]  # that is the point
    assert caught.value.name == "orders"


def test_one_order_by_itself_is_refused_in_words():
    with pytest.raises(InvalidParameter, match="several Renyi orders are asked for"):
        rdp(Round(1.0), orders=2.0)  # type: ignore[arg-type]  # that is the point


# Third opinions.


def peer_rdp(round_: Round, order: float) -> float:
    """dp-accounting's value of one Poisson round at an integer order."""
    event = pytest.importorskip("dp_accounting")
    accountants = pytest.importorskip("dp_accounting.rdp")
    accountant = accountants.RdpAccountant([order])
    gaussian = event.GaussianDpEvent(round_.noise_multiplier)
    accountant.compose(event.PoissonSampledDpEvent(round_.sampling_rate, gaussian))
    (found,) = accountant._rdp
    return float(found)


@pytest.mark.sampled(8)
@pytest.mark.parametrize("noise", [0.5, 1.0, 2.4, 10.0])
@pytest.mark.parametrize("rate", [1e-3, 0.1, 0.5])
@pytest.mark.parametrize("order", [2, 3, 8, 32])
def test_dp_accounting_agrees_at_integer_orders(order, rate, noise):
    round_ = Round(noise, Poisson(rate))
    assert value(round_, order).upper == pytest.approx(peer_rdp(round_, order), rel=1e-9)


@pytest.mark.parametrize("order", [1.1, 1.5, 2.6, 7.3])
def test_dp_accounting_is_not_below_ours_at_fractional_orders(order):
    """It adds the terms of an alternating series without their signs: an upper bound, or none."""
    round_ = Round(1.2, Poisson(0.2))
    assert value(round_, order).lower <= peer_rdp(round_, order)


@pytest.mark.slow
def test_opacus_agrees_at_fractional_orders():
    analysis = pytest.importorskip("opacus.accountants.analysis.rdp")
    for order in (1.5, 2.6, 7.3, 32.0):
        theirs = float(analysis.compute_rdp(q=0.2, noise_multiplier=1.2, steps=1, orders=order))
        assert value(Round(1.2, Poisson(0.2)), order).upper == pytest.approx(theirs, rel=1e-6)


def test_a_search_of_orders_may_start_at_one() -> None:
    """Where Renyi divergences are huge, the order to begin with rounds to 1."""
    assert best_order(lambda order: (order - 3.0) ** 2, 1.0) == pytest.approx(3.0, rel=1e-4)
