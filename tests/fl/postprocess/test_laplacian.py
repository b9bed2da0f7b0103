"""Laplacian smoothing against dense linear algebra."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dpacct.errors import InvalidParameter
from dpacct.fl.postprocess import noise_gain, smooth

sizes = st.integers(1, 40)
strengths = st.floats(0, 50)
seeds = st.integers(0, 2**31)


def laplacian(size: int, strength: float) -> np.ndarray:
    """I + s D'D with D the periodic difference, as a matrix."""
    difference = np.roll(np.eye(size), 1, axis=1) - np.eye(size)
    return np.eye(size) + strength * difference.T @ difference


def draw(size: int, seed: int) -> torch.Tensor:
    return torch.tensor(np.random.default_rng(seed).normal(size=size))


@given(sizes, strengths, seeds)
def test_it_solves_the_dense_system(size, strength, seed):
    values = draw(size, seed)
    found = smooth(values, strength).numpy()
    # Mean, norm, symmetry and shifts are those of the matrix.
    expected = np.linalg.solve(laplacian(size, strength), values.numpy())
    assert found == pytest.approx(expected, abs=1e-12)
    assert np.linalg.norm(found) <= float(values.norm()) * (1 + 1e-12)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_large_tensors_keep_their_mean(dtype):
    values = torch.randn(100_003, dtype=dtype, generator=torch.Generator().manual_seed(1))
    found = smooth(values, 1.0)
    assert found.dtype == dtype
    gap = float(found.double().mean() - values.double().mean())
    assert abs(gap) < (1e-9 if dtype == torch.float32 else 1e-15)


@pytest.mark.parametrize("strength", [0.01, 1.0, 30.0])
@pytest.mark.parametrize("size", [1, 2, 3, 8, 21])
def test_the_row_of_the_inverse_is_the_derived_one(size, strength):
    root = math.sqrt(1 + 4 * strength)
    r = 4 * strength / (1 + root) ** 2
    assert strength * r**2 - (1 + 2 * strength) * r + strength == pytest.approx(0, abs=1e-12)
    row = [(r**j + r ** (size - j)) / ((1 - r**size) * root) for j in range(size)]
    impulse = torch.zeros(size, dtype=torch.float64)
    impulse[0] = 1
    assert smooth(impulse, strength).tolist() == pytest.approx(row, abs=1e-14)


@pytest.mark.parametrize("strength", [0.01, 0.5, 1.0, 1.5, 2.0, 3.0])
def test_noise_gain(strength):
    for size in (1, 2, 3, 7, 50):
        inverse = np.linalg.inv(laplacian(size, strength))
        gain = np.trace(inverse @ inverse) / size
        assert noise_gain(size, strength) == pytest.approx(gain, rel=1e-12)
    assert noise_gain(5, 0) == 1
    limit = (1 + 2 * strength) / (1 + 4 * strength) ** 1.5
    assert noise_gain(100_000, strength) == pytest.approx(limit, rel=1e-12)


def test_the_sine_of_the_paper():
    signal = torch.sin(torch.linspace(0, 30, 500, dtype=torch.float64))
    wave = torch.arange(500, dtype=torch.float64)
    for strength, printed, turning in ((1, 0.0030197, 0.0214), (2, 0.0024311, 0.0267),
                                       (3, 0.0022778, 0.0304)):  # fmt: skip
        bias = float((smooth(signal, strength) - signal).square().mean())
        risk = bias + 0.01 * noise_gain(500, strength)
        assert risk == pytest.approx(printed, abs=5e-8)
        # Smoothing hurts where its bias is more than the noise that it takes away.
        assert math.sqrt(bias / (1 - noise_gain(500, strength))) == pytest.approx(turning, abs=6e-5)
        # The same bias by the spectrum.
        gap = 4 * strength * torch.sin(wave * (math.pi / 500)).square()
        power = torch.fft.fft(signal).abs().square() / 500
        spectral = float(((gap / (1 + gap)).square() * power).sum() / 500)
        assert spectral == pytest.approx(bias, rel=1e-10)


def test_orders_of_flattening():
    kernel = torch.randn(
        3, 4, 2, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(2)
    )
    natural = smooth(kernel.flatten(), 0.7).view_as(kernel)
    assert torch.allclose(smooth(kernel, 0.7), natural)
    assert torch.allclose(smooth(kernel, 0.7, "OIHW"), natural)
    for order in ("OIWH", "OWHI", "OHWI", "WHIO"):
        axes = ["OIHW".index(letter) for letter in order]
        turned = kernel.permute(axes)
        flat = turned.reshape(-1).numpy()
        dense = np.linalg.solve(laplacian(len(flat), 0.7), flat)
        expected = torch.tensor(dense).reshape(turned.shape)
        found = smooth(kernel, 0.7, order)
        assert found.shape == kernel.shape
        assert torch.allclose(found.permute(axes), expected, atol=1e-12)
        assert not torch.allclose(found, natural)


def test_orders_of_tensors_with_other_numbers_of_axes():
    matrix = draw(12, 3).reshape(3, 4)
    assert torch.allclose(smooth(matrix, 1.0, "IOHW"), smooth(matrix.T, 1.0).T)
    assert torch.allclose(smooth(matrix, 1.0, "OWHI"), smooth(matrix, 1.0))
    assert torch.allclose(smooth(matrix[0], 1.0, "WHIO"), smooth(matrix[0], 1.0))
    five = draw(24, 4).reshape(2, 1, 3, 2, 2)
    assert torch.allclose(smooth(five, 1.0, "WHIO"), smooth(five.flatten(), 1.0).view_as(five))


def test_strengths_and_orders_that_are_none_are_refused():
    given = [*((value,) for value in (-1, math.inf, math.nan, "1", True))]
    for arguments in (*given, *((1.0, order) for order in ("OI", "OIHH", "oihw", 5))):
        with pytest.raises(InvalidParameter):
            smooth(torch.ones(3), *arguments)
