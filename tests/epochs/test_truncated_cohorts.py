"""Truncated cohorts: every small data set in exact rationals, the largest size, both ends."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from itertools import combinations, pairwise, product
from math import comb

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import trapezoid
from scipy.stats import binom, norm

import dpacct
from dpacct import Poisson, Round
from dpacct.numerics.binomial import binomial_blocks
from dpacct.pairs.kinds import Direction
from dpacct.pairs.truncated import cohort_law, crowd_pair
from dpacct.tight.sizes import Sizes

Law = dict[int, Fraction]
# Log-concave noise on seven integers.
NOISE = {k: Fraction(w, 64) for k, w in zip(range(-3, 4), (1, 6, 15, 20, 15, 6, 1), strict=True)}
LEVELS = [Fraction(k, 24) for k in (1, 6, 12, 18, 23, 24, 25, 30, 40, 60, 120, 400)]
Parts = list[tuple[Fraction, Fraction, int]]


def released(values: tuple[int, ...], rate: Fraction, cohort: int) -> Law:
    """Return the law of the noisy sum, over all samples, cohorts and noises."""
    law: Law = {}
    for size in range(len(values) + 1):
        for drawn in combinations(values, size):
            kept = list(combinations(drawn, min(size, cohort)))
            weight = rate**size * (1 - rate) ** (len(values) - size) / len(kept)
            for some, (noise, mass) in product(kept, NOISE.items()):
                total = sum(some) + noise
                law[total] = law.get(total, Fraction(0)) + weight * mass
    return law


def excess(p: Law, q: Law, level: Fraction) -> Fraction:
    """Return H_k(P, Q)."""
    zero = Fraction(0)
    return sum((max(p.get(x, zero) - level * q.get(x, zero), zero) for x in {*p, *q}), zero)


@lru_cache(maxsize=10_000)
def of_parts(rate: Fraction, shift: int, level: Fraction, *, removed: bool) -> Fraction:
    """Return H_k of a client that joins with a rate and moves the sum by a shift."""
    moved = {
        x: (1 - rate) * NOISE.get(x, Fraction(0)) + rate * NOISE.get(x - shift, Fraction(0))
        for x in range(-3, 6)
    }
    return excess(moved, NOISE, level) if removed else excess(NOISE, moved, level)


def others(size: int, rate: Fraction) -> list[Fraction]:
    return [comb(size, k) * rate**k * (1 - rate) ** (size - k) for k in range(size + 1)]


def of_sizes(rate: Fraction, cohort: int, least: int, most: int) -> Parts:
    """Return theorem 5: probabilities, rates and shifts for data sets of ``least`` to ``most``."""
    few, many = others(least - 1, rate), others(most - 1, rate)
    full = sum(many[cohort:], Fraction(0))
    seen: Parts = [(p, rate * cohort / (k + 1), 2) for k, p in enumerate(few) if k >= cohort]
    unknown = full - sum((part[0] for part in seen), Fraction(0))
    return [(1 - full, rate, 1), (unknown, rate, 2), *seen]


def cost(parts: Parts, level: Fraction, *, removed: bool) -> Fraction:
    return sum(
        (p * of_parts(q, shift, level, removed=removed) for p, q, shift in parts), Fraction(0)
    )


def neighbors(clients: int) -> list[tuple[tuple[int, ...], int]]:
    """Return all values of the others up to their order, and of the client that comes or goes."""
    some = {tuple(sorted(values)) for values in product((-1, 0, 1), repeat=clients - 1)}
    return [(values, client) for values in sorted(some) for client in (-1, 0, 1)]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("cohort", [1, 2, 3])
@pytest.mark.parametrize("rate", [Fraction(1, 5), Fraction(1, 2), Fraction(9, 10)])
def test_no_small_data_set_costs_more_than_the_theorem_says(rate, cohort):
    closest = Fraction(0)
    for clients in range(1, 5):
        blocks = [(a, b) for a in range(1, clients + 1) for b in range(clients, 6)]
        for values, client in neighbors(clients):
            q = released(values, rate, cohort)
            p = released((*values, client), rate, cohort)
            for level in LEVELS:
                for removed in (True, False):
                    true = excess(p, q, level) if removed else excess(q, p, level)
                    for block in blocks:
                        bound = cost(of_sizes(rate, cohort, *block), level, removed=removed)
                        assert true <= bound
                        if bound > max(0, 1 - level):
                            closest = max(closest, true / bound)
    assert closest == 1


@pytest.mark.parametrize("cohort", [1, 2])
def test_forms_without_all_sizes_are_broken_by_a_small_data_set(cohort):
    """Controls: the largest size alone, and the rate q B / (B + 1) whenever the cohort is full."""
    rate, most = Fraction(1, 2), 5
    alone = of_sizes(rate, cohort, most, most)
    full = sum(others(most - 1, rate)[cohort:], Fraction(0))
    lowered: Parts = [(1 - full, rate, 1), (full, rate * cohort / (cohort + 1), 2)]
    for wrong in (alone, lowered):
        broken = 0
        for values, client in [pair for n in range(1, 5) for pair in neighbors(n)]:
            q, p = released(values, rate, cohort), released((*values, client), rate, cohort)
            broken += any(excess(p, q, k) > cost(wrong, k, removed=True) for k in LEVELS)
        assert broken


def of_full_cohorts(
    rate: float, cohort: int, clients: int, rounds: int, epsilon: float, cells: int = 300
) -> float:
    """Return a lower bound of delta at noise 1: others send 1, the target -1. Shares no code."""
    others = np.arange(clients)
    mass = binom.pmf(others, clients - 1, rate)
    edges = np.concatenate([[-np.inf], np.linspace(-9.0, cohort + 7.0, cells), [np.inf]])
    away, there = np.zeros(cells + 1), np.zeros(cells + 1)
    for o, p in zip(others.tolist(), mass.tolist(), strict=True):
        center = min(o, cohort)
        kept = rate * min(1.0, cohort / (o + 1))
        move = 1 if o < cohort else 2
        stays, moved = (np.diff(norm.cdf(edges, m)) for m in (center, center - move))
        away += p * stays
        there += p * ((1 - kept) * stays + kept * moved)
    # Losses are rounded down to a lattice, and those below it are left out.
    step, size = 1e-3, 2**20
    lattice = np.floor(np.log(np.maximum(there, 1e-300) / np.maximum(away, 1e-300)) / step)
    places = np.clip(lattice, -size // 2 / rounds, size // 2 / rounds - 1).astype(np.int64)
    law = np.bincount(places % size, there, size)
    total = np.fft.irfft(np.fft.rfft(law) ** rounds, size)
    losses = step * np.fft.fftfreq(size, 1 / size)
    beyond = losses > epsilon
    return float(total[beyond] @ -np.expm1(epsilon - losses[beyond]))


@pytest.mark.parametrize(
    ("rounds", "rate", "cohort", "clients", "smaller", "lower", "upper"),
    [
        # 40 clients who all are there cost 12.4, and 20 of them cost more.
        (20, 0.3, 2, 40, {20: 15.0}, 15.1, 22.65),
        # At 1,000 clients alone 50 rounds cost 6.9. A data set of 80 or of 108 costs far more.
        pytest.param(50, 0.2, 10, 1000, {80: 16.4, 108: 21.8}, 22.1, 31.5, marks=pytest.mark.slow),
    ],
)
def test_the_largest_size_is_not_the_worst_and_small_ones_are_achieved(
    rounds, rate, cohort, clients, smaller, lower, upper
):
    plan = rounds * Round(1.0, Poisson(rate, max_cohort=cohort, num_clients=clients))
    found = dpacct.epsilon(plan, delta=1e-6)
    for size, epsilon in smaller.items():
        assert of_full_cohorts(rate, cohort, size, rounds, epsilon) > 1.01e-6
    assert found.lower == pytest.approx(lower, abs=0.1)
    assert found.upper == pytest.approx(upper, abs=0.1)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("rate", "cohort", "clients", "rounds", "known", "most"),
    [
        (0.5, 2, 4, 5, 17.1535, 1.0001),
        (0.3, 6, 20, 10, 18.9166, 1.0001),
        (0.2, 25, 100, 50, 20.4855, 1.0005),
        (0.05, 50, 1000, 100, 15.7066, 1.0015),
    ],
)
def test_plans_that_cost_most_at_the_largest_size(rate, cohort, clients, rounds, known, most):
    """The known values are of this size alone, by sums over all numbers of others."""
    plan = rounds * Round(1.0, Poisson(rate, max_cohort=cohort, num_clients=clients))
    found = dpacct.epsilon(plan, delta=1e-6)
    assert known * (1 - 1e-5) <= found.upper <= known * most
    assert found.lower < found.upper


def test_epsilon_and_delta_lead_back_to_each_other():
    plan = 5 * Round(1.0, Poisson(0.5, max_cohort=2, num_clients=4))
    found = dpacct.epsilon(plan, delta=1e-6)
    assert dpacct.delta(plan, epsilon=found.upper).upper == pytest.approx(1e-6, rel=0.001)
    assert dpacct.delta(plan, epsilon=found.lower).lower == pytest.approx(1e-6, rel=0.001)


@given(
    rate=st.floats(0.01, 0.95),
    cohort=st.integers(1, 40),
    least=st.integers(1, 3000),
    more=st.integers(0, 500),
)
def test_the_choice_of_pairs_has_the_mass_and_the_mean_of_the_others(rate, cohort, least, more):
    law = cohort_law(rate, cohort, (least, least + more))
    few, many = (binom(n - 1, rate) for n in (least, least + more))
    assert law.usual + law.weights.sum() == pytest.approx(1.0, abs=1e-9)
    assert law.usual <= many.cdf(cohort - 1) + 1e-9
    if not len(law.weights):
        return
    others = np.arange(cohort, least)
    rates = np.maximum(rate * cohort / (others + 1), law.rates.min())
    mean = few.pmf(others) @ rates + rate * (many.sf(cohort - 1) - few.sf(cohort - 1))
    assert float(law.weights @ law.rates) >= mean * (1 - 1e-9) - 1e-12
    # No weight lies on rates that are higher than those of the others.
    assert float(law.weights @ law.rates) <= mean * (1 + 1e-6) + 1e-9
    assert np.all(law.rates <= rate)


@pytest.mark.parametrize(("n", "rate", "least"), [(5, 0.3, 2), (300, 0.9, 0), (4000, 0.01, 30)])
def test_blocks_of_a_binomial_hold_its_masses(n, rate, least):
    values, masses = binomial_blocks(n, rate, least)
    true = binom.pmf(values, n, rate)
    assert np.all(np.diff(values) == 1)
    assert np.allclose(masses[:-1], true[:-1], rtol=1e-9, atol=1e-300)
    assert float(masses.sum()) <= binom.sf(least - 1, n, rate) * (1 + 1e-12)
    assert float(masses.sum()) >= binom.sf(least - 1, n, rate) * (1 - 1e-9)


@given(
    rate=st.floats(0.01, 0.5),
    cohort=st.integers(1, 30),
    clients=st.integers(1, 3000),
    tilt=st.floats(0.1, 20.0),
)
def test_blocks_cover_all_sizes_once(rate, cohort, clients, tilt):
    plan = 20 * Round(1.0, Poisson(rate, max_cohort=min(cohort, clients), num_clients=clients))
    blocks = sorted(Sizes(plan, clients).cover(tilt, 3.0, 2.0))
    assert blocks[0][0] == 1
    assert blocks[-1][1] == clients
    assert all(a[1] + 1 == b[0] for a, b in pairwise(blocks))


@pytest.mark.parametrize("direction", Direction)
def test_a_full_cohort_seen_in_cells_is_less_than_the_release(direction):
    """One round: its delta by a fine sum over the line."""
    rate, cohort, clients = 0.3, 4, 15
    pair = crowd_pair(rate, 1.0, cohort, clients, direction)
    assert pair is not None
    x = np.linspace(-12.0, 14.0, 40_001)
    p, q = np.zeros_like(x), np.zeros_like(x)
    for o in range(clients):
        mass = binom.pmf(o, clients - 1, rate)
        kept, center = rate * min(1.0, cohort / (o + 1)), min(o, cohort)
        q += mass * norm.pdf(x, center)
        moved = norm.pdf(x, center - (1 if o < cohort else 2))
        p += mass * ((1 - kept) * norm.pdf(x, center) + kept * moved)
    first, second = (p, q) if direction is Direction.REMOVE else (q, p)
    for epsilon in (0.0, 0.2, 1.0):
        true = float(trapezoid(np.maximum(first - np.exp(epsilon) * second, 0.0), x))
        found = pair.delta(epsilon)
        assert 0.99 * true - 1e-9 <= found.upper <= true * (1 + 1e-6) + 1e-8


def test_populations_that_differ_are_bounded_each_for_all_sizes():
    one, other = (Round(1.0, Poisson(0.2, max_cohort=25, num_clients=n)) for n in (100, 120))
    same, both = (
        dpacct.epsilon(20 * one, delta=1e-6),
        dpacct.epsilon(10 * one + 10 * other, delta=1e-6),
    )
    assert same.upper < both.upper
    assert both.lower >= dpacct.epsilon(20 * Round(1.0, Poisson(0.2)), delta=1e-6).lower * (
        1 - 1e-9
    )
