"""The assumptions about floating point, and the helpers that round to the safe side."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf

from dpacct.numerics.rounding import (
    FUNCTION_ERROR,
    FUNCTION_ULPS,
    UNIT,
    Array,
    Bounds,
    above,
    below,
    decimal,
    decimal_above,
    weighted_sum,
    widen,
)
from tests.strategies import log_uniform

RANDOM = np.random.default_rng(20240229)
HUGE = np.geomspace(1e-300, 1e300, 601)
TINY = np.geomspace(5e-324, 1e-3, 400)
QUARTERS = np.array([math.pi * k / 2 for k in range(1, 400)])
# Next to multiples of pi / 2, and far beyond the first turn.
PHASES = np.concatenate(
    [
        RANDOM.uniform(0, math.pi, 1000),
        RANDOM.uniform(-1e5, 1e5, 1000),
        np.geomspace(1e-300, 1e15, 1000),
        QUARTERS,
        np.nextafter(QUARTERS, 0),
        TINY,
    ]
)
NEAR_ONE = np.concatenate([1 + TINY[300:], 1 - TINY[300:], np.nextafter(1, [0, 2])])

# Where each function is used and beyond: both signs, subnormal, close to zero and to overflow.
ARGUMENTS: dict[str, Array] = {
    "exp": np.concatenate(
        [RANDOM.uniform(-745.2, 709.7, 3000), RANDOM.normal(0, 2, 2000), TINY, -TINY, [-1e308, 0.0]]
    ),
    "expm1": np.concatenate(
        [RANDOM.uniform(-60, 709.7, 3000), RANDOM.normal(0, 1, 2000), TINY, -TINY, [-1e308, 0.0]]
    ),
    "log": np.concatenate([HUGE, NEAR_ONE, RANDOM.uniform(0.5, 2, 3000), TINY[:50], [1e308]]),
    "log1p": np.concatenate(
        [HUGE, TINY, -TINY, RANDOM.uniform(-1, 3, 3000), np.geomspace(UNIT, 0.1, 200) - 1, [1e308]]
    ),
    "sin": PHASES,
    "cos": PHASES,
}


def worst_ulps(name: str, arguments: Array, values: Array) -> float:
    """The largest error in units in the last place of the exact value."""
    worst = 0.0
    with mp.workdps(50):
        for x, y in zip(arguments, values, strict=True):
            exact = getattr(mp, name)(mpf(float(x)))
            worst = max(worst, float(abs(mpf(float(y)) - exact) / math.ulp(float(exact))))
    return worst


# Other code may run for vectors, for their last elements, and for single numbers.
ROUTES: dict[str, Callable[[str, Array], Array]] = {
    "vector": lambda name, x: getattr(np, name)(x),
    "single": lambda name, x: np.array([getattr(np, name)(t) for t in x]),
    "strided": lambda name, x: getattr(np, name)(np.repeat(x, 3)[::3]),
    "standard library": lambda name, x: np.array([getattr(math, name)(t) for t in x]),
}


@pytest.mark.sampled(10)
@pytest.mark.parametrize("route", ROUTES)
@pytest.mark.parametrize("name", ARGUMENTS)
def test_functions_are_as_accurate_as_assumed(name, route):
    x = ARGUMENTS[name][:: 1 if route == "vector" else 7]
    assert worst_ulps(name, x, ROUTES[route](name, x)) <= FUNCTION_ULPS


def test_adding_exponentials_is_as_accurate_as_assumed():
    x = np.concatenate([RANDOM.uniform(-700, 700, 300), RANDOM.normal(0, 3, 300)])
    values = np.logaddexp(0.0, x)
    with mp.workdps(320):
        for t, y in zip(x, values, strict=True):
            exact = mp.log1p(mp.exp(mpf(float(t))))
            assert abs(mpf(float(y)) / exact - 1) <= FUNCTION_ERROR


def test_erfc_is_as_accurate_as_the_gaussian_needs():
    """`mills_ratio` allows 32 units for erfc, the constants and products, besides 8 x^2."""
    x = np.concatenate([RANDOM.uniform(-22, 3, 2000), TINY, -TINY])
    with mp.workdps(50):
        for t in x:
            exact = mp.erfc(mpf(float(t)))
            assert abs(mpf(math.erfc(t)) / exact - 1) <= FUNCTION_ERROR


def test_the_units_are_those_of_double_precision():
    assert 1 + UNIT == 1.0 < 1 + 1.01 * UNIT
    assert FUNCTION_ERROR == 2 * FUNCTION_ULPS * UNIT


# The helpers, against rational arithmetic.

finite = st.one_of(st.floats(-1e12, 1e12), log_uniform(1e-300, 1e300), st.just(0.0))
pairs = st.tuples(finite, finite).map(sorted)
# Times 30 weights of 10^12 they are finite still.
moderate = st.one_of(st.floats(-1e12, 1e12), log_uniform(1e-300, 1e290), st.just(0.0))


@given(ends=pairs, slack=st.one_of(log_uniform(1e-30, 1e30), st.just(0.0)))
def test_widened_bounds_are_at_least_so_wide(ends, slack):
    low, high = ends
    bounds = widen(np.float64(low), np.float64(high), np.float64(slack))
    assert Fraction(float(bounds.lower)) < Fraction(low) - Fraction(slack)
    assert Fraction(float(bounds.upper)) > Fraction(high) + Fraction(slack)
    assert bounds.lower >= low - slack - 2 * math.ulp(low - slack)
    assert bounds.upper <= high + slack + 2 * math.ulp(high + slack)


@given(
    ends=st.lists(st.tuples(moderate, moderate).map(sorted), min_size=1, max_size=30),
    weights=st.lists(
        st.one_of(st.integers(0, 10**12), st.floats(0, 1e6)), min_size=30, max_size=30
    ),
)
def test_a_weighted_sum_contains_the_exact_one(ends, weights):
    used = np.array(weights[: len(ends)], dtype=float)
    low, high = (np.array(side) for side in zip(*ends, strict=True))
    total = weighted_sum(Bounds(low, high), used)

    def exact(values: Array) -> Fraction:
        terms = zip(map(float, used), map(float, values), strict=True)
        return sum((Fraction(w) * Fraction(x) for w, x in terms), Fraction(0))

    assert Fraction(float(total.lower)) <= exact(low) <= exact(high) <= Fraction(float(total.upper))
    size = float(np.sum(used * np.maximum(np.abs(low), np.abs(high))))
    spread = float(exact(high) - exact(low))
    assert total.upper - total.lower <= spread + (4 * len(ends) + 16) * UNIT * size + 1e-300


def test_a_long_weighted_sum_contains_the_exact_one():
    """Rows are added one after the other, so that thousands of roundings pile up."""
    values = np.full((5000, 2), 0.1)
    total = weighted_sum(Bounds(values, values), np.full(5000, 0.7))
    exact = 5000 * Fraction(0.7) * Fraction(0.1)
    for side in range(2):
        assert Fraction(float(total.lower[side])) <= exact <= Fraction(float(total.upper[side]))


def test_a_weighted_sum_runs_over_the_first_axis():
    values = np.array([[1.0, 2.0], [10.0, 20.0], [100.0, 200.0]])
    total = weighted_sum(Bounds(values, values), np.array([3.0, 2.0, 1.0]))
    assert total.lower.shape == total.upper.shape == (2,)
    assert total.lower == pytest.approx([123.0, 246.0])
    assert np.all(total.lower < [123.0, 246.0])
    assert np.all(total.upper > [123.0, 246.0])


@given(terms=st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=8))
def test_above_and_below_enclose_a_sum(terms):
    value = sum(terms)
    exact = sum(map(Fraction, terms), Fraction(0))
    assert Fraction(below(value, *terms)) < exact < Fraction(above(value, *terms))
    size = sum(map(abs, terms))
    assert above(value, *terms) - below(value, *terms) <= 10 * FUNCTION_ERROR * size + 1e-300


@given(x=log_uniform(1e-9, 1e9), y=log_uniform(1e-300, 1.0), z=log_uniform(1e-6, 1e7))
def test_above_and_below_enclose_a_conversion(x, y, z):
    """Logarithms, a quotient and a sum: what a conversion of privacy notions computes."""
    terms = x, math.log(z), math.log(y) / z
    value = terms[0] + terms[1] - terms[2]
    with mp.workdps(50):
        exact = mpf(x) + mp.log(mpf(z)) - mp.log(mpf(y)) / mpf(z)
        assert mpf(below(value, *terms)) < exact < mpf(above(value, *terms))


def test_above_and_below_move_even_where_nothing_was_computed():
    assert below(0.0) < 0.0 < above(0.0)
    assert below(1.0) < 1.0 < above(1.0)


@given(value=st.fractions(0, 10**6), x=st.floats(0, 1e6))
def test_the_float_above_a_decimal_compares_as_the_decimals_do(value, x):
    least = decimal_above(value)
    assert decimal(least) >= value
    assert least == 0.0 or decimal(math.nextafter(least, 0.0)) < value
    assert (least <= x) == (value <= decimal(x))


@given(count=st.integers(1, 1000), cents=st.integers(1, 1000))
def test_sums_of_decimals_are_decimals(count, cents):
    assert decimal_above(count * decimal(cents / 100)) == count * cents / 100
