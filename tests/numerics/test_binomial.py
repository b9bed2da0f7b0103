"""Tails of the binomial distribution against sums of its masses in high precision."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st
from mpmath import loggamma, mp, mpf

from dpacct.numerics.binomial import binomial_tail
from tests.strategies import log_uniform
from tests.truth import check


def tail(n: int, rate: float, least: int) -> mpf:
    """Return P(X >= least) from one mass and the ratios of the others, to 30 digits."""
    with mp.workdps(60):
        q = mpf(rate)
        log = loggamma(n + 1) - loggamma(least + 1) - loggamma(n - least + 1)
        mass = mp.exp(log + least * mp.log(q) + (n - least) * mp.log1p(-q))
        total = mpf(0)
        for k in range(least, n + 1):
            total += mass
            ratio = mpf(n - k) / (k + 1) * q / (1 - q)
            mass *= ratio
            if ratio < 1 and mass < (1 - ratio) * total * mpf(10) ** -30:
                break
        return total


@given(
    log_uniform(1.0, 1e5).map(round),
    st.one_of(log_uniform(1e-9, 0.9), log_uniform(1e-9, 0.5).map(lambda gap: 1 - gap)),
    st.floats(-6.0, 25.0),
)
@example(10**6 - 1, 1e-3, 9.491)
@example(10**6, 0.5, 0.0)
@example(2, 1e-150, 1.0)
def test_the_tail_lies_between_the_bounds(n: int, rate: float, deviations: float) -> None:
    spread = math.sqrt(n * rate * (1 - rate))
    least = min(max(1, round(n * rate + deviations * (spread + 1))), n)
    truth = tail(n, rate, least)
    assume(truth > mpf(10) ** -290)
    check(binomial_tail(n, rate, least), truth, 1e-10, spare=1e-28)


@pytest.mark.parametrize("least", [10**6, 10**6 + 4000, 10**6 - 2000])
def test_a_thousand_million_trials(least: int) -> None:
    """An incomplete beta function of scipy is 6.4e-6 below the first of these."""
    check(binomial_tail(10**9 - 1, 1e-3, least), tail(10**9 - 1, 1e-3, least), 1e-8, spare=1e-28)


@pytest.mark.parametrize("deviations", [-3.0, 0.0, 2.0, 9.0])
def test_blocks_of_many_values_bound_their_sum(deviations: float) -> None:
    """Then a deviation has ten million values: the normal distribution, to about 1e-7."""
    n, rate = 4 * 10**14, 0.5
    least = n // 2 + round(deviations * 10**7)
    # Half a value is 5e-8 deviations.
    truth = mp.erfc((mpf(deviations) - mpf(5e-8)) / mp.sqrt(2)) / 2
    check(binomial_tail(n, rate, least), truth, 1e-5, spare=1e-6)


def test_edges() -> None:
    for n, rate, least, value in [
        (5, 0.5, 0, 1.0), (5, 0.5, -2, 1.0), (5, 0.5, 6, 0.0), (5, 1.0, 5, 1.0), (5, 1.0, 6, 0.0),
        (1, 0.25, 1, 0.25), (5, 0.5, 5, 2.0**-5), (5, 0.5, 1, 1 - 2.0**-5),
    ]:  # fmt: skip
        check(binomial_tail(n, rate, least), value, 1e-12)
    assert binomial_tail(10**9, 0.9, 5).upper == 1.0
    assert binomial_tail(10**9, 1e-12, 10**6) == binomial_tail(10**9, 1e-12, 10**6 + 1)


def test_all_tails_of_few_trials() -> None:
    with mp.workdps(40):
        for n in range(1, 12):
            for rate in (0.125, 0.3, 0.9):
                q = mpf(rate)
                masses = [mp.binomial(n, k) * q**k * (1 - q) ** (n - k) for k in range(n + 1)]
                for least in range(n + 1):
                    check(binomial_tail(n, rate, least), sum(masses[least:]), 1e-11, spare=1e-30)


def test_tails_fall() -> None:
    uppers = [binomial_tail(40_000, 0.1, least).upper for least in range(3900, 4300, 7)]
    assert np.all(np.diff(uppers) < 0)
