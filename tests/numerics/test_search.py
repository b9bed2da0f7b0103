"""The one-dimensional searches: they end, and where they should."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import dpacct
from dpacct.numerics.search import (
    bisect,
    bracket_root,
    corrected_largest,
    corrected_root,
    largest,
    largest_between,
    largest_count,
    minimize_unimodal,
    settle,
)
from dpacct.rounds import Uniform
from tests.strategies import FEWER, log_uniform

BOUNDS = (-13.0, 16.0)
TOLERANCE = 2e-5

# Unimodal functions with their minimum at 0, by the steepness k.
VALLEYS: dict[str, Callable[[float, float], float]] = {
    "parabola": lambda t, k: k * t * t,
    "corner": lambda t, k: k * abs(t),
    "lopsided": lambda t, k: k * t if t > 0 else -t / k,
    "exponential": lambda t, k: math.expm1(t) - t + k,
    "steep": lambda t, k: math.cosh(min(k, 20.0) * t),
    "flat": lambda t, k: k * t**4,
    "constant": lambda _, k: k,
    "wall on the right": lambda t, k: math.inf if t > 1.0 else k * t * t,
    "wall at the minimum": lambda t, k: math.inf if t > 0.0 else -k * t,
}


class Counted:
    """A function that remembers where it was asked."""

    def __init__(self, function: Callable[[float], float]) -> None:
        self.function = function
        self.seen: dict[float, float] = {}
        self.calls = 0

    def __call__(self, t: float) -> float:
        self.calls += 1
        self.seen[t] = self.function(t)
        return self.seen[t]


@pytest.mark.parametrize("name", VALLEYS)
@FEWER
@given(minimum=st.floats(*BOUNDS), start=st.floats(-15.0, 18.0), steepness=log_uniform(1e-3, 1e3))
def test_the_minimum_of_a_valley_is_found(name, minimum, start, steepness):
    valley = VALLEYS[name]
    function = Counted(lambda t: valley(t - minimum, steepness))
    # A search that begins on an infinite wall cannot know where to go.
    assume(math.isfinite(valley(min(max(start, BOUNDS[0]), BOUNDS[1]) - minimum, steepness)))
    found = minimize_unimodal(function, start, BOUNDS, TOLERANCE)
    assert BOUNDS[0] <= found <= BOUNDS[1]
    assert function.calls <= 150
    assert function.seen[found] == min(function.seen.values())
    # Rounding hides the bottom of a flat valley; elsewhere the tolerance is kept.
    lowest = function(minimum)
    nearby = min(function(minimum + d) for d in (-2 * TOLERANCE, 2 * TOLERANCE))
    assert function(found) <= max(nearby, lowest + 4 * math.ulp(lowest))


@pytest.mark.parametrize("slope", [1.0, -1.0])
@given(start=st.floats(*BOUNDS))
def test_the_minimum_may_lie_at_an_end(slope, start):
    found = minimize_unimodal(lambda t: slope * t, start, BOUNDS, TOLERANCE)
    assert found == pytest.approx(BOUNDS[0] if slope > 0 else BOUNDS[1], abs=2 * TOLERANCE)


@given(left=st.floats(-8.0, 5.0), width=st.floats(0.1, 6.0), start=st.floats(*BOUNDS))
def test_a_plateau_at_the_bottom_is_reached(left, width, start):
    """Epsilon cut off at zero looks like this."""

    def function(t: float) -> float:
        return max(0.0, left - t, t - left - width)

    assert function(minimize_unimodal(function, start, BOUNDS, TOLERANCE)) == 0.0


# Bisection.


@given(
    edge=log_uniform(1e-200, 1e200),
    start=log_uniform(1e-20, 1e20),
    tolerance=log_uniform(1e-14, 0.5),
)
def test_bisection_brackets_the_edge(edge, start, tolerance):
    low, high = bisect(lambda t: t <= edge, start, tolerance)
    assert low <= edge < high
    assert high - low <= tolerance * high


def test_bisection_ends_at_zero_and_where_no_number_lies_between():
    low, high = bisect(lambda _: False, 1.0, 1e-10)
    assert low == 0.0
    assert high < 1e-300
    low, high = bisect(lambda t: t * t <= 2, 1.0, 0.0)
    assert math.nextafter(low, 2) == high
    assert low * low <= 2 < high * high


# Roots.

SLOPES: dict[str, Callable[[float, float], float]] = {
    "line": lambda t, k: -k * t,
    "cube": lambda t, k: -k * t**3,
    "exponential": lambda t, k: -math.expm1(min(k, 10.0) * t),
    "logarithm-like": lambda t, k: -math.asinh(1e6 * k * t),
    "step": lambda t, k: 1.0 if t < 0 else -k,
    "infinite below": lambda t, k: math.inf if t < -0.1 else -k * t,
    "infinite above": lambda t, k: -math.inf if t > 0.1 else -k * t,
    "kink": lambda t, k: -k * t if t < 0 else -t / k,
}


@pytest.mark.parametrize("name", SLOPES)
@FEWER
@given(
    root=st.floats(-20.0, 20.0),
    start=st.floats(-40.0, 40.0),
    steepness=log_uniform(1e-4, 1e4),
    tolerance=log_uniform(1e-9, 1e-2),
)
def test_a_root_is_bracketed_on_both_sides(name, root, start, steepness, tolerance):
    slope = SLOPES[name]
    function = Counted(lambda t: slope(t - root, steepness))
    low, high = bracket_root(function, start, (-30.0, 30.0), tolerance)
    assert low < high <= low + tolerance
    assert function.seen[low] > 0 >= function.seen[high]
    # Bisection alone would need 7 steps to get near, and log2(width / tolerance) more.
    assert function.calls <= 2 * (10 + math.log2(60 / tolerance))


@pytest.mark.parametrize(("sign", "end"), [(1.0, 5.0), (-1.0, -5.0), (0.0, -5.0)])
@given(start=st.floats(-9.0, 9.0))
def test_a_function_of_one_sign_leads_to_an_end(sign, end, start):
    assert bracket_root(lambda _: sign, start, (-5.0, 5.0), 1e-6) == (end, end)


def test_smooth_roots_are_found_in_a_few_steps():
    function = Counted(lambda t: math.exp(-t) - 0.3 * t)
    low, high = bracket_root(function, 5.0, (-10.0, 10.0), 1e-9)
    assert function.calls <= 20  # bisection needs 34
    assert math.exp(-low) - 0.3 * low > 0 >= math.exp(-high) - 0.3 * high


def test_a_tolerance_below_the_resolution_of_floats_ends():
    """Neighboring floats have nothing between them."""
    for root in (1.0, 123456.789, 1e15):
        low, high = bracket_root(lambda t, at=root: at - t, root / 3, (0.0, math.inf), 1e-30)
        assert low <= root <= high
        assert high - low <= 1e-14 * root


@given(data=st.data(), most=st.integers(0, 10**12))
def test_the_largest_number_that_fits_is_found_in_few_steps(data, most):
    truth = data.draw(st.integers(0, 2 * 10**12))
    least = data.draw(st.integers(0, min(truth, most)))
    asked: list[int] = []

    def fits(number: int) -> bool:
        asked.append(number)
        return number <= truth

    assert largest_count(fits, least, most) == min(truth, most)
    assert all(least < number <= most for number in asked)
    assert len(asked) <= 2 * (2 + math.log2(1 + min(truth, most)))
    assert largest_between(fits, least, truth + 1) == truth


@pytest.mark.parametrize("off", [0.0, 1e-9, -1e-4, 1e-3, 0.05, -0.3])
@pytest.mark.parametrize("wrong", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("steep", [0.4, 1.0, 30.0])
def test_secants_settle_beside_the_root(off, wrong, steep):
    falling = Counted(lambda t: steep * math.expm1(1.0 - t))
    found = settle(falling, 1.0 + off, wrong * steep, BOUNDS, TOLERANCE)
    assert found is not None
    assert falling.seen[found] <= 0
    assert 1.0 <= found <= 1.0 + 3 * TOLERANCE
    assert falling.calls <= (4 if abs(off) < 2e-3 and wrong == 1.0 else 7)


def test_secants_give_up_where_there_is_no_slope():
    calls = Counted(lambda t: 1.0 - t)
    assert settle(calls, 0.5, math.nan, BOUNDS, TOLERANCE) is None
    assert settle(calls, 0.5, -1.0, BOUNDS, TOLERANCE) is None
    assert settle(calls, 0.5, 1.0, (0.0, 0.9), TOLERANCE) is None
    assert settle(lambda t: math.inf if t < 1 else -1.0, 0.5, 1.0, BOUNDS, TOLERANCE) is None
    # A cliff: no secant ends beside it.
    assert settle(lambda t: 1.0 if t < 1 else -1.0, 0.9, 1.0, BOUNDS, TOLERANCE) is None


# A slow cost by the help of a quick one.


@given(
    root=st.floats(-3.0, 3.0),
    above=st.floats(0.0, 0.3),
    tilt=st.floats(0.0, 0.05),
    slope=st.floats(0.5, 3.0),
)
def test_the_root_of_a_slow_function_in_few_calls(root, above, tilt, slope):
    """The quick one lies above by a ratio that hardly changes."""
    calls: list[float] = []

    def slow(t: float) -> float:
        calls.append(t)
        return slope * (root - t)

    def quick(t: float) -> float:
        return slow_value(t) + above + tilt * math.tanh(t - root) ** 2

    def slow_value(t: float) -> float:
        return slope * (root - t)

    def solve_quick(level: float, _: float) -> float:
        low, high = -9.0, 9.0
        for _ in range(80):
            middle = 0.5 * (low + high)
            low, high = (middle, high) if quick(middle) > level else (low, middle)
        return high

    found = corrected_root(slow, solve_quick, quick, solve_quick(0.0, 0.0))
    assert slow_value(found) <= 0.0
    assert slow_value(found) >= -1e-3
    assert len(calls) <= 5


@given(exact=st.integers(1, 5000), less=st.floats(0.5, 3.0), most=st.integers(1, 6000))
def test_the_largest_number(exact, less, most):
    """Also where the quick cost is too small, and not to be believed."""

    def slow(n: int) -> float:
        return math.log(n / (exact + 0.5))

    def quick(n: int) -> float:
        return slow(n) - math.log(less)

    assert corrected_largest(slow, quick, most) == min(exact, most) == largest(slow, most)


@pytest.mark.slow
def test_calibration_by_the_game():
    plan: dict[str, Any] = {"sampling": Uniform(5, 100), "delta": 1e-4}
    found = dpacct.calibrate(epsilon=1.0, rounds=20, **plan)
    assert 0.998 < found.epsilon.upper <= 1.0
    assert found.epsilon.upper <= 1.01 * found.epsilon.lower
    plain = dpacct.calibrate(epsilon=1.0, rounds=20, accountant="pairs", **plan)
    assert found.noise_multiplier < 0.99 * plain.noise_multiplier
    found = dpacct.calibrate(epsilon=1.0, noise_multiplier=2.4, solve="rounds", **plan)
    more = dpacct.epsilon(rounds=found.rounds + 1, noise_multiplier=2.4, **plan)
    assert found.epsilon.upper <= 1.0 < more.upper
