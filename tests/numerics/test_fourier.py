"""Sums of w (e^{itl} - 1) against long double and 50-digit values: the error is in the bound."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp, mpc, mpf

from dpacct.errors import NotConverged
from dpacct.numerics import fourier as exponential_sums
from dpacct.numerics.fourier import (
    FFT_ERROR,
    MAX_FREQUENCIES,
    Laws,
    Weighted,
    characteristic_shift,
    characteristic_shifts,
)
from dpacct.numerics.rounding import UNIT, Array, ComplexArray
from tests.strategies import log_uniform

RANDOM = np.random.default_rng(20240301)
FREE = [0, 1, 2, 3, 7, 19]
PI = 4 * np.arctan(np.longdouble(1))


def exact_shift(step: float, k: int, law: Weighted) -> mpc:
    """The sum of w (e^{itl} - 1) at t = k step, without rounding."""
    with mp.workdps(40):
        t = mpf(step) * k
        total = mpc(0)
        for loss, mass in zip(law.losses, law.weights, strict=True):
            total += mpf(float(mass)) * (mp.expjpi(t * mpf(float(loss)) / mp.pi) - 1)
        return total


def phase_error(step: float, k: int, law: Weighted) -> float:
    """What the callers charge for rounding the phases t l."""
    return 8 * UNIT * k * step * float(law.weights @ np.abs(law.losses))


def exact_law(losses: Array, weights: Array) -> Weighted:
    return Weighted(losses, weights, np.zeros_like(losses))


def check(step: float, number: int, law: Weighted, chosen: list[int]) -> tuple[Array, Array]:
    value, error = characteristic_shift(step, number, law)
    assert value.shape == error.shape == (number,)
    assert value[0] == 0
    for k in chosen:
        off = abs(exact_shift(step, k, law) - mpc(complex(value[k])))
        assert off <= error[k] + phase_error(step, k, law), (k, float(off), error[k])
    return np.abs(value), error


def some(number: int) -> list[int]:
    return sorted({k for k in FREE if k < number} | {number // 2, number - 1})


LAWS = {
    "Gaussian": (RANDOM.normal(0.3, 1.0, 60), RANDOM.random(60) / 60),
    "one node": (np.array([0.7]), np.array([1.0])),
    "tiny losses": (RANDOM.normal(0, 1e-9, 40), np.full(40, 1 / 40)),
    "equal losses": (np.full(50, 0.12345), np.full(50, 0.02)),
    "huge losses": (RANDOM.normal(0, 1e6, 30), np.full(30, 1 / 30)),
    "an atom at zero": (np.concatenate([np.zeros(50), [5.0]]), np.append(np.full(50, 0.02), 1e-12)),
    "weights over many decades": (RANDOM.normal(0, 2, 60), np.geomspace(1e-40, 1.0, 60)),
}


@pytest.mark.sampled(30)
@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("number", [1, 2, 5, 40, 333])
@pytest.mark.parametrize("transform", [False, True])
def test_the_error_holds_on_both_routes(name, number, *, transform, monkeypatch):
    monkeypatch.setattr(exponential_sums, "_TABLE_CELLS", 0 if transform else 10**9)
    losses, weights = LAWS[name]
    law = exact_law(losses, weights)
    _, error = check(0.37, number, law, some(number))
    # The bound is small against the mass.
    assert np.max(error) < 1e-12 * float(weights.sum())


@pytest.mark.parametrize("transform", [False, True])
@settings(max_examples=12)
@given(
    seed=st.integers(0, 2**32),
    step=log_uniform(1e-6, 1e3),
    spread=log_uniform(1e-8, 1e4),
    nodes=st.integers(1, 80),
    number=st.integers(1, 200),
)
def test_the_error_holds_anywhere(*, transform, seed, step, spread, nodes, number):
    random = np.random.default_rng(seed)
    losses = random.normal(random.choice([0.0, 1.0]), 1.0, nodes) * spread
    if random.random() < 0.3:
        # On the points of the grid of the transform, and halfway between them.
        length = 1 << (4 * number - 1).bit_length()
        losses = random.integers(-9, 9, nodes) * (math.pi / (length * step))
    weights = random.random(nodes) ** random.choice([1, 30])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exponential_sums, "_TABLE_CELLS", 0 if transform else 10**9)
        check(step, number, exact_law(losses, weights), [number // 3, number - 1])


def long_double_shift(step: float, k: int, losses: Array, weights: Array) -> np.clongdouble:
    """The same sum in extended precision."""
    phase = np.longdouble(step) * k * np.longdouble(losses)
    half = np.sin(phase / 2)
    return (weights * (-2 * half * half)).sum() + 1j * (weights * np.sin(phase)).sum()


def test_many_nodes_and_frequencies():
    """Beyond the tables, with bins that hold hundreds of nodes, and the tables just below."""
    losses = np.sort(RANDOM.normal(0.2, 1.0, 20_000))
    weights = np.exp(-(losses**2))
    weights /= weights.sum()
    law = exact_law(losses, weights)
    for number in (199, 900):
        value, error = characteristic_shift(0.05, number, law)
        assert np.max(error) < 1e-10
        for k in (1, 2, 50, number // 2, number - 1):
            truth = long_double_shift(0.05, k, losses, weights)
            assert abs(value[k] - truth) <= error[k] + phase_error(0.05, k, law)


def test_an_error_of_the_masses_is_passed_on():
    losses, weights = LAWS["Gaussian"]
    moved = weights * (1 + 1e-6)
    for transform in (0, 10**9):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(exponential_sums, "_TABLE_CELLS", transform)
            law = Weighted(losses, moved, 1e-6 * weights * (1 + 1e-9))
            value, error = characteristic_shift(0.3, 50, law)
        for k in some(50):
            truth = exact_shift(0.3, k, exact_law(losses, weights))
            off = abs(truth - mpc(complex(value[k])))
            assert off <= error[k] + phase_error(0.3, k, law)
            assert error[k] >= 0.5e-6 * off


def test_rows_are_the_laws_one_by_one():
    sizes = [1, 7, 300, 5, 64, 2]
    losses, weights = RANDOM.normal(0, 1, sum(sizes)), RANDOM.random(sum(sizes))
    error = weights * 1e-14
    counts = np.array(sizes)
    starts = np.cumsum(counts) - counts
    for cells in (2000, 4_000_000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(exponential_sums, "_TABLE_CELLS", cells)
            patch.setattr(exponential_sums, "_TABLE_BLOCK", 500)
            seen: list[int] = []
            rows = Laws(losses, weights, error, starts, counts)
            for which, values, errors in characteristic_shifts(0.4, 30, rows):
                for row, value, off in zip(which, values, errors, strict=True):
                    seen.append(int(row))
                    part = slice(starts[row], starts[row] + counts[row])
                    law = Weighted(losses[part], weights[part], error[part])
                    for k in (0, 1, 29):
                        truth = exact_shift(0.4, k, law)
                        charged = phase_error(0.4, k, law)
                        assert abs(truth - mpc(complex(value[k]))) <= off[k] + charged
            assert sorted(seen) == list(range(len(sizes)))


@pytest.mark.parametrize("spread", [1e-6, 0.4])
@pytest.mark.parametrize("number", [2, 60])
def test_small_losses_keep_their_digits(spread, number):
    losses, weights = RANDOM.normal(0.3, 1.0, 200) * spread, RANDOM.random(200)
    # A few are large, and hardly ever occur.
    losses[::11], weights[::11] = 9.0, 1e-12
    step, law = 1.9 / (number - 1), exact_law(losses, weights / weights.sum())
    value, off = characteristic_shift(step, number, law)
    for k in some(number):
        missed = abs(exact_shift(step, k, law) - mpc(complex(value[k])))
        assert missed <= off[k] + phase_error(step, k, law)
    assert np.all(off <= 1e-12 * np.abs(value) + 1e-17)


def test_too_many_frequencies_are_refused():
    with pytest.raises(NotConverged, match="frequencies"):
        characteristic_shift(0.1, MAX_FREQUENCIES + 1, exact_law(*LAWS["one node"]))


# The assumptions that these sums rest on.


def long_double_transform(values: Array) -> np.ndarray:
    """The Fourier transform in extended precision: halves of halves, all of a level at once."""
    found = values.astype(np.clongdouble)[None, :]
    while len(found) < len(values):
        even, odd = np.split(found, 2, axis=1)
        angles = np.arange(len(found), dtype=np.longdouble) * (PI / len(found))
        turned = (np.cos(angles) - 1j * np.sin(angles))[:, None] * odd
        found = np.concatenate([even + turned, even - turned])
    return found[:, 0]


def mpmath_transform(values: Array) -> list[mpc]:
    n = len(values)
    with mp.workdps(30):
        return [
            mp.fsum(mpf(float(x)) * mp.expjpi(mpf(-2 * j * k) / n) for j, x in enumerate(values))
            for k in range(n // 2 + 1)
        ]


def transform_inputs(n: int) -> dict[str, Array]:
    j = np.arange(n)
    return {
        "random": RANDOM.random(n),
        "both signs": RANDOM.normal(0, 1, n),
        "decades": np.exp(RANDOM.uniform(-80, 0, n)),
        "one": (j == n // 3).astype(float),
        "a large one next to small ones": np.where(j == 1, 1.0, 1e-17 * RANDOM.random(n)),
        "alternating": np.where(j % 2, -1.0, 1.0) * (1 + 1e-8 * RANDOM.random(n)),
        "bell": np.exp(-((np.minimum(j, n - j) / (0.01 * n + 1)) ** 2)),
        "a wave": np.cos(2 * math.pi * 0.3137 * j),
    }


@pytest.mark.parametrize("n", [4, 8, 32, 64])
def test_the_extended_transform_is_exact_enough(n):
    for name, values in transform_inputs(n).items():
        fine = long_double_transform(values)
        with mp.workdps(30):
            worst = max(
                abs(mpc(str(got.real), str(got.imag)) - want)
                for got, want in zip(fine[: n // 2 + 1], mpmath_transform(values), strict=True)
            )
        assert worst <= 1e-18 * math.log2(n) * np.abs(values).sum(), name


@pytest.mark.sampled(5)
@pytest.mark.parametrize("log_n", [2, 3, 5, 8, 11, 13, 16, 19])
def test_numpy_transforms_are_as_accurate_as_assumed(log_n):
    """Assumption C, at every output."""
    inputs = transform_inputs(2**log_n)
    for name in inputs if log_n < 18 else ["both signs", "bell"]:
        values = inputs[name]
        truth = long_double_transform(values)[: 2 ** (log_n - 1) + 1]
        off = np.max(np.abs(np.fft.rfft(values) - truth))
        assert off <= FFT_ERROR * log_n * np.abs(values).sum(), name


def test_complex_exponentials_are_as_accurate_as_assumed():
    """`contour` charges 64 units for them, relative to their modulus."""
    z: ComplexArray = RANDOM.uniform(-600, 5, 2000) + 1j * RANDOM.uniform(-1e7, 1e7, 2000)
    with mp.workdps(40):
        for argument, value in zip(z, np.exp(z), strict=True):
            exact = mp.exp(mpc(complex(argument)))
            assert abs(mpc(complex(value)) / exact - 1) <= 32 * UNIT
