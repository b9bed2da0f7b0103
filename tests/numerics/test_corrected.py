from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpacct
from dpacct.numerics.search import corrected_largest, corrected_root, largest
from dpacct.rounds import Uniform


@settings(max_examples=30, deadline=None)
@given(
    root=st.floats(-3.0, 3.0),
    above=st.floats(0.0, 0.3),
    tilt=st.floats(0.0, 0.05),
    slope=st.floats(0.5, 3.0),
)
def test_the_root_of_a_slow_function_in_few_calls(
    root: float, above: float, tilt: float, slope: float
) -> None:
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


@settings(max_examples=30, deadline=None)
@given(exact=st.integers(1, 5000), less=st.floats(0.5, 1.0), most=st.integers(1, 6000))
def test_the_largest_number(exact: int, less: float, most: int) -> None:
    def slow(n: int) -> float:
        return math.log(n / (exact + 0.5))

    def quick(n: int) -> float:
        return slow(n) - math.log(less)

    assert corrected_largest(slow, quick, most) == min(exact, most) == largest(slow, most)


@pytest.mark.slow
def test_noise_by_the_game() -> None:
    plan: dict[str, Any] = {"rounds": 20, "sampling": Uniform(5, 100)}
    found = dpacct.calibrate(epsilon=1.0, delta=1e-4, **plan)
    assert 0.998 < found.epsilon.upper <= 1.0
    assert found.epsilon.upper <= 1.01 * found.epsilon.lower
    plain = dpacct.calibrate(epsilon=1.0, delta=1e-4, accountant="pairs", **plan)
    assert found.noise_multiplier < 0.99 * plain.noise_multiplier


@pytest.mark.slow
def test_rounds_by_the_game() -> None:
    plan: dict[str, Any] = {"noise_multiplier": 2.4, "sampling": Uniform(5, 100), "delta": 1e-4}
    found = dpacct.calibrate(epsilon=1.0, solve="rounds", **plan)
    more = dpacct.epsilon(rounds=found.rounds + 1, **plan)
    assert found.epsilon.upper <= 1.0 < more.upper


@pytest.mark.parametrize("gap", [1e-4, 0.9, math.nan])
def test_a_gap_is_refused_in_words(gap: float) -> None:
    plan: dict[str, Any] = {
        "rounds": 5,
        "sampling": Uniform(5, 100),
        "noise_multiplier": 2.4,
        "delta": 1e-4,
    }
    with pytest.raises(dpacct.InvalidParameter, match="gap"):
        dpacct.epsilon(gap=gap, **plan)
    with pytest.raises(dpacct.InvalidParameter, match="only the accountant tight"):
        dpacct.epsilon(gap=0.01, accountant="rdp", **plan)
    with pytest.raises(dpacct.InvalidParameter, match="rounds of fixed size"):
        dpacct.epsilon(rounds=9, noise_multiplier=1.0, delta=1e-4, gap=0.01)
