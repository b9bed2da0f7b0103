from __future__ import annotations

import dataclasses
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpacct.budget import Budget, Interval
from dpacct.errors import InvalidParameter

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
        (-1, 1e-5, "epsilon"),
        (math.inf, 1e-5, "epsilon"),
        (math.nan, 1e-5, "epsilon"),
        ("8", 1e-5, "epsilon"),
        (8, 0, "delta"),
        (8, 1, "delta"),
        (8, -1e-5, "delta"),
        (8, math.nan, "delta"),
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
