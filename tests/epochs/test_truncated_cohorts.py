"""Truncated cohorts: every small data set in exact rationals, the largest size, both ends."""

from __future__ import annotations

from fractions import Fraction
from functools import lru_cache
from itertools import combinations, product
from math import comb

import pytest

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
def of_parts(rate: Fraction, shift: int, level: Fraction, removed: bool) -> Fraction:
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
    seen: Parts = [
        (p, rate * cohort / (k + 1), 2) for k, p in enumerate(few) if k >= cohort
    ]
    unknown = full - sum((part[0] for part in seen), Fraction(0))
    return [(1 - full, rate, 1), (unknown, rate, 2), *seen]


def cost(parts: Parts, level: Fraction, removed: bool) -> Fraction:
    return sum((p * of_parts(q, shift, level, removed) for p, q, shift in parts), Fraction(0))


def neighbors(clients: int) -> list[tuple[tuple[int, ...], int]]:
    """Return all values of the others up to their order, and of the client that comes or goes."""
    some = {tuple(sorted(values)) for values in product((-1, 0, 1), repeat=clients - 1)}
    return [(values, client) for values in sorted(some) for client in (-1, 0, 1)]


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
                        bound = cost(of_sizes(rate, cohort, *block), level, removed)
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
            broken += any(excess(p, q, k) > cost(wrong, k, True) for k in LEVELS)
        assert broken
