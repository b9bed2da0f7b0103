"""James-Stein, soft threshold and top-k: test vectors, invariants, risk."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from dpacct.fl.postprocess import (
    DENOISERS,
    james_stein,
    keep_largest,
    smooth,
    soft_threshold,
)

vectors = st.lists(st.floats(-1e6, 1e6, allow_subnormal=False), min_size=1, max_size=30).map(
    lambda values: torch.tensor(values, dtype=torch.float64)
)
levels = st.floats(0, 1e3, allow_subnormal=False)


@pytest.mark.parametrize(
    "denoise", [james_stein, lambda v, s: james_stein(v, s, positive_part=True), soft_threshold]
)
@given(values=vectors, level=levels)
def test_odd_and_the_identity_without_noise(denoise, values, level):
    assert torch.equal(denoise(values, 0.0), values)
    assert torch.allclose(denoise(-values, level), -denoise(values, level), rtol=1e-12)
    assert denoise(values.reshape(1, -1), level).shape == (1, len(values))


@given(vectors, levels, st.integers(0, 99))
def test_soft_threshold_shrinks_and_contracts(values, level, seed):
    found = soft_threshold(values, level)
    assert bool((found.abs() <= values.abs()).all())
    other = values + torch.tensor(np.random.default_rng(seed).normal(size=len(values)))
    gap = (soft_threshold(other, level) - found).abs()
    assert bool((gap <= (other - values).abs() * (1 + 1e-12) + 1e-9).all())
    threshold = level * math.sqrt(2 * math.log(len(values)))
    expected = [math.copysign(max(abs(v) - threshold, 0), v) for v in values.tolist()]
    assert found.tolist() == pytest.approx(expected, abs=1e-9)


@given(vectors, levels)
@example(torch.tensor([0.0, 0.0, 1.3952e-173], dtype=torch.float64), 0.0)
@example(torch.tensor([0.0, 0.0, 1e-160], dtype=torch.float64), 1.0)
@example(torch.tensor([0.0, 0.0, 1e-130], dtype=torch.float64), 1.0)
def test_the_positive_part_never_lengthens_or_turns(values, level):
    found = james_stein(values, level, positive_part=True)
    assert float(found.norm()) <= float(values.norm()) * (1 + 1e-12)
    assert float(found @ values) >= 0
    plain = james_stein(values, level)
    assert bool(plain.isfinite().all())
    length = math.hypot(*values.tolist())
    if len(values) < 3 or length <= 1e-140 * level:
        assert torch.equal(plain, values)
    else:
        factor = 1 - (len(values) - 2) * (level / length) ** 2
        assert torch.allclose(plain, factor * values, rtol=1e-9, atol=1e-9)


def test_on_noise_alone_shrinking_has_less_risk():
    generator = torch.Generator().manual_seed(4)
    for size in (3, 10, 100):
        draws = torch.randn(400, size, generator=generator, dtype=torch.float64)
        raw = float(draws.square().sum(dim=1).mean())
        plain = [float(james_stein(row, 1.0).square().sum()) for row in draws]
        positive = [
            float(james_stein(row, 1.0, positive_part=True).square().sum()) for row in draws
        ]
        # The risk of James-Stein at zero is 2, whatever the dimension.
        assert sum(plain) / 400 < 0.9 * raw
        assert sum(positive) <= sum(plain)


@given(vectors, st.floats(0.01, 1))
def test_top_k_is_idempotent_and_the_best_approximation(values, fraction):
    size = len(values)
    found = keep_largest(values, [size], fraction)
    count = math.ceil(fraction * size - 1e-9)
    assert int(found.count_nonzero()) <= count
    assert torch.equal(keep_largest(found, [size], fraction), found)
    left = values[found == 0].abs()
    lost = float((values - found).square().sum())
    best = float(values.abs().sort().values[: size - count].square().sum())
    assert lost == pytest.approx(best, rel=1e-12)
    assert lost <= (1 - count / size) * float(values.square().sum()) * (1 + 1e-12)
    kept = values[found != 0].abs()
    assert not len(left) or not len(kept) or float(left.max()) <= float(kept.min())


def test_top_k_by_tensor_keeps_a_share_of_each():
    vector = torch.tensor([9.0, 8.0, 7.0, 6.0, 0.1, 0.3, 0.2, 0.4])
    found = keep_largest(vector, [4, 4], 0.5)
    assert torch.equal(found, torch.tensor([9.0, 8.0, 0, 0, 0, 0.3, 0, 0.4]))
    assert keep_largest(vector, [8], 1.0) is vector
    # Of equal coordinates no more are kept than fit.
    assert int(keep_largest(torch.ones(10), [10], 0.35).count_nonzero()) == 4
    many = torch.stack([vector, vector.flip(0)])
    batched = torch.func.vmap(lambda row: keep_largest(row, [4, 4], 0.5))(many)
    assert torch.equal(batched[0], found)
    assert torch.equal(batched[1], keep_largest(vector.flip(0), [4, 4], 0.5))


def test_denoisers_by_name():
    noisy = torch.randn(3, 4, generator=torch.Generator().manual_seed(6))
    found = {name: denoise(noisy, 0.3) for name, denoise in DENOISERS.items()}
    assert all(tensor.shape == noisy.shape for tensor in found.values())
    assert torch.equal(found["laplacian"], smooth(noisy, 1.0))
    assert torch.equal(found["james-stein"], james_stein(noisy, 0.3))
    assert int(found["top-k"].count_nonzero()) == 5
