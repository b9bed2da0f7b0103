"""Composition by Fourier transform: the assumption about numpy's, and the bound built on it."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from mpmath import mp, mpf
from scipy import fft

from dpacct.errors import NotConverged
from dpacct.numerics.rounding import Array
from dpacct.tight.grid.transform import TRANSFORM_ERROR, Composed, Factor, compose

RANDOM = np.random.default_rng(20240229)
LONG = np.finfo(np.longdouble).eps < 1e-18


def samples(size: int) -> dict[str, Array]:
    index = np.arange(size)
    return {
        "uniform": RANDOM.uniform(0, 1, size),
        "signed": RANDOM.normal(0, 1, size),
        "bell": np.exp(-(((index - size / 3) / (size / 20)) ** 2)),
        "atom": np.where(index == 7, 1.0, 1e-9 * RANDOM.uniform(0, 1, size)),
        "decades": 10.0 ** RANDOM.uniform(-18, 0, size),
        "alternating": (-1.0) ** index,
    }


def full_norm(half: np.ndarray, size: int) -> float:
    """Euclidean norm of a Hermitian spectrum given by its first half."""
    squares = np.abs(half).astype(np.longdouble) ** 2
    return float(np.sqrt(squares[0] + 2 * squares[1 : size // 2].sum() + squares[size // 2]))


@pytest.mark.slow
@pytest.mark.skipif(not LONG, reason="needs 80-bit floating point")
@pytest.mark.parametrize("levels", [4, 7, 10, 13, 16, 18, 20])
def test_transforms_are_as_accurate_as_assumed(levels: int) -> None:
    size = 2**levels
    for values in samples(size).values():
        truth = fft.rfft(values.astype(np.longdouble))
        found = np.fft.rfft(values)
        bound = TRANSFORM_ERROR * levels
        assert full_norm(found - truth, size) <= 0.5 * bound * full_norm(truth, size)
        # And back, from numbers that are exact.
        exact = fft.irfft(found.astype(np.clongdouble), size)
        again = np.fft.irfft(found, size)
        error = float(np.linalg.norm((again - exact).astype(float)))
        assert error <= 0.5 * bound * float(np.linalg.norm(exact.astype(float)))


def test_transforms_agree_with_fifty_digits() -> None:
    """A few outputs of a transform, so that nothing rests on another transform alone."""
    size = 512
    for values in samples(size).values():
        found = np.fft.rfft(values)
        with mp.workdps(50):
            numbers = [mpf(float(value)) for value in values]
            circle = [mp.expjpi(mpf(-2 * k) / size) for k in range(size)]
            norm = mp.sqrt(sum(number**2 for number in numbers))
            for k in (0, 1, 2, 17, 100, 255, 256):
                truth = sum(x * circle[j * k % size] for j, x in enumerate(numbers))
                error = abs(mp.mpc(complex(found[k])) - truth)
                assert error <= TRANSFORM_ERROR * 9 * norm * mp.sqrt(size)


def by_hand(factors: list[Factor], first: int, size: int) -> list[Fraction]:
    """Cyclic convolution in rational arithmetic."""
    total = [Fraction(0)] * size
    total[0] = Fraction(1)
    for factor in factors:
        for _ in range(factor.count):
            following = [Fraction(0)] * size
            for k, mass in enumerate(factor.masses.tolist()):
                for j, value in enumerate(total):
                    following[(j + k + factor.first) % size] += value * Fraction(mass)
            total = following
    return [total[(first + k) % size] for k in range(size)]


@pytest.mark.parametrize("first", [-40, -3, 0, 5, 1000])
def test_composition_is_a_cyclic_convolution(first: int) -> None:
    size = 16
    factors = [
        Factor(-2, np.array([0.1, 0.7, 0.2]), 3),
        Factor(9, np.array([0.5, 0.0, 0.25, 0.25]), 2),
        # Wider than the window: folded.
        Factor(-11, RANDOM.dirichlet(np.ones(37)), 1),
    ]
    truth = by_hand(factors, first, size)
    found = compose(factors, first, size)
    error = np.array([float(Fraction(v) - t) for v, t in zip(found.masses, truth, strict=True)])
    assert found.first == first
    assert np.linalg.norm(error) <= found.error < 1e-12


def test_many_rounds_stay_within_their_bound() -> None:
    """Against the binomial law, whose masses are known."""
    size, count, p = 4096, 10**5, 0.25
    found = compose([Factor(0, np.array([1 - p, p]), count)], count // 4 - size // 2, size)
    with mp.workdps(30):
        for k in (0, 3, 200, 4095 - 2048):
            hits = count // 4 + k
            log_truth = (
                mp.loggamma(count + 1) - mp.loggamma(hits + 1) - mp.loggamma(count - hits + 1)
            )
            truth = mp.exp(log_truth + hits * mp.log(p) + (count - hits) * mp.log(1 - mpf(p)))
            assert abs(mpf(float(found.masses[size // 2 + k])) - truth) <= found.error
    assert found.error < 1e-8


def test_so_many_rounds_that_nothing_is_left_are_refused() -> None:
    with pytest.raises(NotConverged, match="rounding errors"):
        compose([Factor(0, np.array([0.5, 0.5]), 10**13)], 0, 64)


def test_nothing_to_compose_is_refused() -> None:
    with pytest.raises(NotConverged):
        compose([], 0, 16)


def test_the_result_says_where_it_starts() -> None:
    found = compose([Factor(3, np.array([1.0]), 1)], -5, 16)
    assert isinstance(found, Composed)
    assert found.masses[8] == pytest.approx(1.0)
