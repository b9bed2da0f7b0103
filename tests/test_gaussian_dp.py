"""mu with its slack: it holds at every epsilon, and below it some epsilon fails."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

import dpacct
from dpacct import (
    ApproximateDP,
    Full,
    Laplace,
    Poisson,
    Round,
    Sampled,
    Schedule,
    best_of,
    gdp,
)
from dpacct.errors import InvalidParameter, NotConverged


def delta_of(mu: float, epsilon: float) -> float:
    half = mu / 2
    return float(norm.cdf(half - epsilon / mu) - math.exp(epsilon) * norm.cdf(-half - epsilon / mu))


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("plan", "slack", "mu"),
    [
        # Confirmed on a grid with certified deltas: the excess at the upper end is below 1e-10.
        (300 * Round(1.28601, Poisson(0.1)), 1e-6, 1.65956901),
        (1000 * Round(1.0, Poisson(0.01)), 1e-5, 0.44885670),
    ],
)
def test_golden_values(plan: Schedule, slack: float, mu: float) -> None:
    found = gdp(plan, slack)
    assert found.upper == pytest.approx(mu, rel=1e-8)
    assert found.width <= 2e-9 * found.upper


@pytest.mark.parametrize(
    ("plan", "slack"),
    [
        (1 * Laplace(2.0), 1e-6),
        (20 * Round(2.0, Poisson(0.2)) + 2 * Round(9.0, Full()), 1e-7),
    ],
)
def test_it_holds_between_the_knots_and_fails_below(plan: Schedule, slack: float) -> None:
    found = gdp(plan, slack)
    end = dpacct.epsilon(plan, delta=slack).upper
    grid = [float(x) for x in np.linspace(0, 1.02 * end, 25)]
    deltas = [dpacct.delta(plan, epsilon=e) for e in grid]
    for epsilon, delta in zip(grid, deltas, strict=True):
        assert delta.lower <= delta_of(found.upper, epsilon) + slack + 1e-15
    # A little below the lower end some epsilon fails.
    below = 0.99 * found.lower
    assert any(
        delta.upper > delta_of(below, epsilon) + slack
        for epsilon, delta in zip(grid, deltas, strict=True)
    )


def test_full_participation_is_its_own_mu() -> None:
    found = gdp(4 * Round(2.0), 1e-6)
    assert found.lower < 1.0
    assert found.upper == pytest.approx(1.0, rel=1e-12)
    assert found.width < 1e-5


def test_a_larger_slack_needs_less() -> None:
    plan = 50 * Round(1.0, Poisson(0.1))
    found = [gdp(plan, slack).upper for slack in (1e-8, 1e-4)]
    assert found == sorted(found, reverse=True)
    # Delta is below the slack everywhere.
    assert gdp(1 * Round(1e6), 0.1).upper == 0.0


def test_without_an_achieved_end_the_lower_one_is_zero() -> None:
    found = gdp(1 * ApproximateDP(1.0, 1e-7), 1e-6)
    assert found.lower == 0.0
    assert found.upper > 1.0


def test_mu_is_never_without_its_slack() -> None:
    assert "slack 1e-06" in str(gdp(4 * Round(2.0), 1e-6))


@pytest.mark.parametrize("slack", [0.0, 1.0, -1e-6, math.nan, "x"])
def test_bad_slack(slack: Any) -> None:
    with pytest.raises(InvalidParameter, match="slack"):
        gdp(4 * Round(2.0), slack)


def test_without_privacy() -> None:
    with pytest.raises(NotConverged, match="no privacy"):
        gdp(2 * Round(1e-3), 1e-6)


def test_a_bound_that_falls_from_one_at_once_has_a_mu() -> None:
    # The bound of a tuning is 1 up to some epsilon, and then falls faster than any delta does.
    plan = 1 * best_of(2 * Sampled(20 * Laplace(epsilon=0.5), 0.1), "poisson:3")
    found = gdp(plan, 1e-3)
    assert 0.0 < found.lower <= found.upper < 10.0
    for epsilon in (0.5, 2.0, 3.9, 6.0):
        delta = dpacct.delta(plan, epsilon=epsilon).lower
        assert delta <= delta_of(found.upper, epsilon) + 1e-3
