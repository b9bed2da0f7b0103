"""Rounded Gaussian integers against 60-digit arithmetic of mpmath."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import ndtri

from dpacct.fl.privacy.noise import GUARD, decide, rounded_gaussian, upper_tail
from dpacct.fl.privacy.randomness import Randomness, Seeded

mpmath = pytest.importorskip("mpmath")


def tail(x) -> object:
    """Q(x) at 80 digits."""
    with mpmath.workdps(80):
        return mpmath.erfc(mpmath.mpf(x.numerator) / x.denominator / mpmath.sqrt(2)) / 2


class Bits:
    """A source that gives chosen bits, then zeros."""

    private = False

    def __init__(self, *words: int) -> None:
        self.words = list(words)

    def take(self, count: int) -> bytes:
        word = self.words.pop(0) if self.words else 0
        return word.to_bytes(8, "little")[:count].ljust(count, b"\0")


@settings(max_examples=20)
@given(st.fractions(0, 25, max_denominator=10**6), st.integers(20, 60))
def test_the_tail_is_within_its_error(x, digits):
    value, error = upper_tail(x, digits)
    with mpmath.workdps(90):
        assert abs(mpmath.mpf(str(value)) - tail(x)) <= mpmath.mpf(str(error))


@settings(max_examples=30)
@given(st.integers(0, 2**63 - 1), st.fractions("1/10", 10**9, max_denominator=1000))
def test_the_decision_is_that_of_exact_inversion(leading, sigma):
    more = 0x9E3779B97F4A7C15
    k = decide(leading, sigma, Bits(more))
    with mpmath.workdps(80):
        p = (mpmath.mpf(leading) + mpmath.mpf(more) / 2**64) / 2**64
        assert tail((k + Fraction(1, 2)) / sigma) < p
        if k:
            assert tail((k - Fraction(1, 2)) / sigma) >= p


def test_far_tails_are_decided_too():
    assert decide(0, Fraction(1000), Bits(0, 1)) > 10_000
    assert decide(0, Fraction(1000), Bits(2**64 - 1)) == pytest.approx(9080, abs=100)


@settings(max_examples=15)
@given(st.integers(0, 2**32), st.fractions("1/2", 10**8, max_denominator=100))
def test_fast_draws_are_those_of_exact_inversion(seed, sigma):
    source = Seeded(seed)
    values = rounded_gaussian(64, sigma, source)
    bits = np.frombuffer(Seeded(seed).take(8 * 64), dtype="<u8")
    for value, word in list(zip(values, bits, strict=True))[:8]:
        exact = decide(int(word >> np.uint64(1)), sigma, Bits(2**63))
        assert value == (-exact if int(word) & 1 else exact)


def test_draws_that_doubles_cannot_decide_take_further_bits():
    sigma = Fraction(1000)
    for k in (0, 3, 700, 4000):
        edge, _ = upper_tail((k + Fraction(1, 2)) / sigma, 40)
        leading = int(edge * 2**64)
        assert rounded_gaussian(1, sigma, Bits(2 * leading, 0)).tolist() == [k + 1]
        assert rounded_gaussian(1, sigma, Bits(2 * leading, 2**64 - 1)).tolist() == [k]
    for leading in (0, 1, 2**43):
        expected = decide(leading, sigma, Bits(2**63))
        assert rounded_gaussian(1, sigma, Bits(2 * leading + 1, 2**63)).tolist() == [-expected]


def test_the_assumed_accuracy_of_the_inverse_has_room_to_spare():
    generator = np.random.default_rng(0)
    points = np.concatenate(
        [
            generator.uniform(0, 0.5, 100),
            2.0 ** -generator.uniform(1, 20, 100),
            0.5 - 2.0 ** -generator.uniform(2, 50, 100),
        ]
    )
    worst = 0.0
    with mpmath.workdps(40):
        for p in points:
            exact = mpmath.sqrt(2) * mpmath.erfinv(1 - 2 * mpmath.mpf(float(p)))
            error = abs(mpmath.mpf(float(-ndtri(p))) - exact) / (abs(exact) + 4)
            worst = max(worst, float(error))
    assert worst < GUARD / 20


def test_small_sigmas_have_the_probabilities_of_rounding():
    sigma = Fraction(3, 4)
    values = rounded_gaussian(40_000, sigma, Randomness())
    # Every bin is expected to hold more than ten draws.
    edges = [(k + 0.5) / 0.75 for k in range(-3, 3)]
    share = [0.5 * math.erfc(-edge / 2**0.5) for edge in edges]
    expected = np.diff([0.0, *share, 1.0]) * 40_000
    counts = np.array([(np.clip(values, -3, 3) == k).sum() for k in range(-3, 4)])
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert chi_square < 6 + 6 * 12**0.5


def test_signs_and_neighbors_are_independent():
    values = rounded_gaussian(100_000, Fraction(10**6), Randomness()) / 1e6
    assert abs(values.mean()) < 6 / 100_000**0.5
    assert abs((values[1:] * values[:-1]).mean()) < 6 / 100_000**0.5
    assert abs((values[1:] ** 2 * values[:-1]).mean()) < 6 * 3**0.5 / 100_000**0.5
