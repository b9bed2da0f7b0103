from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpacct.accountant import epsilon, spend
from dpacct.budget import Budget, Interval, Spent
from dpacct.calibration.calibrate import calibrate
from dpacct.errors import InvalidParameter, NotConverged
from dpacct.rounds import Poisson, Round

FINITE = st.floats(allow_nan=False, allow_infinity=False)


def test_a_budget_holds_plain_floats():
    budget = Budget(8, 1e-5)
    assert (budget.epsilon, budget.delta) == (8.0, 1e-5)
    assert type(budget.epsilon) is float
    assert budget == Budget(8.0, 1e-5)
    assert {budget: "hashable"}[Budget(8, 1e-5)]


@pytest.mark.parametrize(
    ("epsilon", "delta", "name"),
    [
        (0, 1e-5, "epsilon"),
        ("8", 1e-5, "epsilon"),
        (8, 1, "delta"),
        (8, True, "delta"),
    ],
)
def test_a_budget_out_of_range_names_what_is_wrong(epsilon, delta, name):
    with pytest.raises(InvalidParameter) as caught:
        Budget(epsilon, delta)
    assert caught.value.name == name


def test_budget_and_interval_are_frozen():
    for value, name in ((Budget(8, 1e-5), "epsilon"), (Interval(0.0, 1.0), "lower")):
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(value, name, 0.0)


@given(FINITE, FINITE)
def test_an_interval_contains_its_ends_and_nothing_outside(a, b):
    lower, upper = sorted((a, b))
    interval = Interval(lower, upper)
    assert lower in interval
    assert upper in interval
    assert math.nextafter(lower, -math.inf) not in interval
    assert math.nextafter(upper, math.inf) not in interval
    assert math.inf - math.inf not in interval
    assert interval.width == upper - lower


@pytest.mark.parametrize(("lower", "upper"), [(1.0, 0.0), (math.nan, 1.0), (0.0, math.nan)])
def test_an_interval_has_its_lower_end_below(lower, upper):
    with pytest.raises(InvalidParameter):
        Interval(lower, upper)


def test_an_interval_may_be_open_above():
    assert 1e308 in Interval(3.0, math.inf)


def test_spent_reads_like_an_interval_and_knows_its_delta():
    spent = Spent(1.0, 2.5, 1e-5)
    assert (spent.lower, spent.upper, spent.delta, spent.width) == (1.0, 2.5, 1e-5, 1.5)
    assert 1.0 in spent
    assert 2.6 not in spent
    assert spent.interval == Interval(1.0, 2.5)
    assert Spent.at(1e-5, Interval(1.0, 2.5)) == spent
    assert spent != Spent(1.0, 2.5, 1e-6)
    assert spent.without_privacy == Spent(1.0, math.inf, 1e-5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        spent.delta = 0.5
    for lower, upper, delta in ((2.0, 1.0, 1e-5), (math.nan, 1.0, 1e-5), (1.0, 2.0, 0.0)):
        with pytest.raises(InvalidParameter):
            Spent(lower, upper, delta)


def test_who_computes_an_epsilon_says_at_which_delta():
    plan = 3 * Round(2.0, Poisson(0.1))
    for delta in (1e-5, 0.05):
        spent = spend(plan, delta)
        assert spent.delta == delta
        assert spent.interval == epsilon(plan, delta=delta)
    found = calibrate(epsilon=2, delta=1e-3, rounds=3, sampling_rate=0.1)
    assert found.spent == Spent.at(found.delta, found.epsilon)


# Two bounds that were computed apart.


def test_rounding_is_no_contradiction():
    assert Interval.bracket(1.0 + 1e-12, 1.0) == Interval(1.0, 1.0 + 1e-12)
    assert Interval.bracket(0.5, 1.0) == Interval(0.5, 1.0)


@pytest.mark.parametrize(("lower", "upper"), [(2.0, 1.0), (1.0, 0.0), (float("nan"), 1.0)])
def test_a_contradiction_is_an_error(lower, upper):
    with pytest.raises(NotConverged, match="contradict"):
        Interval.bracket(lower, upper)


# As one number, an interval is its proven upper end.


@given(FINITE, FINITE, FINITE)
def test_an_interval_converts_and_compares_as_its_upper_end(a, b, other):
    lower, upper = sorted((a, b))
    for value in (Interval(lower, upper), Spent(lower, upper, 1e-5)):
        assert float(value) == upper
        assert (value < other, value <= other) == (upper < other, upper <= other)
        assert (value > other, value >= other) == (upper > other, upper >= other)
        assert (other < value, other >= value) == (other < upper, other >= upper)
        assert value <= Interval(upper, upper)
        assert not value < Interval(lower, upper)
    with pytest.raises(TypeError):
        assert Interval(lower, upper) < [3.0]
    with pytest.raises(TypeError):
        assert Interval(lower, upper) < "8"


@given(FINITE, st.sampled_from([".3f", ".3", ".4n", "f", "e", ".2e", "12.4g", ".1%", "+.0f"]))
def test_a_formatted_interval_is_never_below_its_upper_end(upper, spec):
    shown = format(Interval(-math.inf, upper), spec)
    exact = Fraction(shown.strip().removesuffix("%")) / (100 if spec.endswith("%") else 1)
    assert exact >= Fraction(upper)


def test_what_an_interval_prints():
    value = Interval(7.99994, 8.00001)
    assert str(value) == f"{value}" == f"{value:s}" == "<= 8.0001 (lower bound 7.9999)"
    assert str(Spent(7.99994, 8.00001, 1e-5)) == "<= 8.0001 (lower bound 7.9999) at delta 1e-05"
    assert f"{value:.3f}" == "8.001"
    assert f"{value:8.2f}|" == "    8.01|"
    assert f"{value:f} {value:.3} {value:8}|" == "8.000010 8.01  8.00001|"
    assert f"{Interval(0.0, math.inf):.2f}" == "inf"
    assert repr(value) == "Interval(lower=7.99994, upper=8.00001)"
    with pytest.raises(ValueError, match="format"):
        format(value, "d")
