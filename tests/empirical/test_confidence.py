"""Confidence limits: beside 50-digit tails, never inside them; and how often they hold."""

from __future__ import annotations

import math

import mpmath
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from dpacct.empirical.confidence import (
    clopper_pearson,
    largest_probability,
    least_probability,
    mean_in_unit_interval,
)
from dpacct.errors import InvalidParameter


def upper_tail(hits: int, trials: int, probability: float) -> mpmath.mpf:
    """P(at least so many hits), as a sum of exact terms."""
    p = mpmath.mpf(probability)
    return mpmath.fsum(
        mpmath.binomial(trials, k) * p**k * (1 - p) ** (trials - k) for k in range(hits, trials + 1)
    )


@given(st.integers(1, 60), st.data(), st.floats(1e-9, 0.4))
def test_limits_lie_outside_the_exact_ones_and_next_to_them(trials, data, error):
    hits = data.draw(st.integers(0, trials))
    lower = least_probability(hits, trials, error)
    upper = largest_probability(hits, trials, error)
    with mpmath.workdps(30):
        if hits:
            assert upper_tail(hits, trials, lower) <= error
            assert upper_tail(hits, trials, lower * (1 + 1e-6)) > error
        if hits < trials:
            assert 1 - upper_tail(hits + 1, trials, upper) <= error
            assert 1 - upper_tail(hits + 1, trials, upper * (1 - 1e-6)) > error


@pytest.mark.parametrize(("hits", "trials"), [(0, 10**9), (3, 10**9), (1, 1)])
@pytest.mark.parametrize("error", [1e-12, 0.025])
def test_limits_of_many_trials(hits, trials, error):
    limits = least_probability(hits, trials, error), largest_probability(hits, trials, error)
    with mpmath.workdps(40):
        tails = [
            mpmath.betainc(hits, trials - hits + 1, 0, limits[0], regularized=True)
            if hits
            else None,
            mpmath.betainc(hits + 1, trials - hits, limits[1], 1, regularized=True)
            if hits < trials
            else None,
        ]
        assert all(tail is None or error * (1 - 1e-4) < tail <= error for tail in tails)


def test_known_limits():
    assert clopper_pearson(0, 100).upper == pytest.approx(0.036216692645, rel=1e-9)
    assert clopper_pearson(5, 100).lower == pytest.approx(0.016431879180, rel=1e-9)
    assert (clopper_pearson(7, 7).upper, clopper_pearson(0, 7).lower) == (1.0, 0.0)


@given(st.integers(1, 10**6), st.floats(0, 1), st.floats(0.5, 0.999999))
@example(draws=9587, mean=0.99999, sure=0.5)
def test_the_interval_of_a_mean_ends_where_the_divergence_reaches_its_limit(draws, mean, sure):
    found = mean_in_unit_interval(mean, draws, sure)
    assert 0 <= found.lower <= mean <= found.upper <= 1
    with mpmath.workdps(40):
        limit = -mpmath.log((1 - mpmath.mpf(sure)) / 2) / draws

        def divergence(other: float) -> mpmath.mpf:
            both = (
                (mpmath.mpf(mean), mpmath.mpf(other)),
                (1 - mpmath.mpf(mean), 1 - mpmath.mpf(other)),
            )
            return mpmath.fsum(a * mpmath.log(a / b) for a, b in both if a)

        for end in (found.lower, found.upper):
            if 0 < end < 1:
                # Next to 1, neighboring doubles are far apart.
                inside = divergence(math.nextafter(end, mean))
                assert limit <= divergence(end)
                assert inside <= limit * (1 + 1e-6) + mpmath.mpf(10) ** -14


@pytest.mark.parametrize("probability", [0.002, 0.3, 0.97])
def test_intervals_hold_as_often_as_they_claim(probability):
    trials = 200
    drawn = np.random.default_rng(7).binomial(trials, probability, 4000)
    counts, times = np.unique(drawn, return_counts=True)
    for interval in (
        lambda hits: clopper_pearson(hits, trials, 0.9),
        lambda hits: mean_in_unit_interval(hits / trials, trials, 0.9),
    ):
        held = [probability in interval(int(hits)) for hits in counts]
        # Six standard deviations of 4000 coins with probability 0.9.
        assert times @ held >= 0.9 * 4000 - 6 * (4000 * 0.09) ** 0.5


@pytest.mark.parametrize(
    ("function", "arguments"),
    [
        (clopper_pearson, (3, 2)),
        (clopper_pearson, (-1, 2)),
        (clopper_pearson, (True, 2)),
        (clopper_pearson, (0, 0)),
        (clopper_pearson, (1, 2, 1.0)),
        (clopper_pearson, (1, 2, 0.0)),
        (least_probability, (1, 2, 0.0)),
        (mean_in_unit_interval, (1.5, 3)),
        (mean_in_unit_interval, (0.5, 0)),
    ],
)
def test_arguments_out_of_range_are_refused(function, arguments):
    with pytest.raises(InvalidParameter):
        function(*arguments)
