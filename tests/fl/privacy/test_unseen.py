"""What is bounded on a device without a look has the bits of what is bounded with one."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from dpacct import fl
from dpacct.fl.layout import Layout
from dpacct.fl.privacy import norms
from dpacct.fl.privacy.bounds import clip_rows, scale_rows
from dpacct.fl.privacy.norms import row_norms
from dpacct.fl.privacy.sums import contribute, hold, received
from dpacct.fl.privacy.unseen import held, scaled
from dpacct.fl.tensors import norm
from dpacct.rounds import Adjacency
from tests.fl.elsewhere import HERE_NOT, Device

# Of a size that is not filled up on a device: what is added there is what is added here.
LAYOUT = Layout.of({"weight": torch.zeros(8, 16), "bias": torch.zeros(64)})
SIZE = LAYOUT.size
TYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
BITS = {torch.float32: torch.int32, torch.float64: torch.int64, torch.bool: torch.bool}


class Own:
    """A bound with a limit and a map of its own."""

    def __init__(self, limit, change):
        self.clip_norm, self._change = limit, change

    def sensitivity(self, adjacency):
        return self.clip_norm * (2 if adjacency is Adjacency.REPLACE_ONE else 1)

    def limits(self, layout):
        return [(0, layout.size, self.clip_norm)]

    def apply(self, rows, norms, layout, margin):
        return self._change(rows, norms)


BOUNDS = {
    "clip": fl.Clip(0.3),
    "small": fl.Clip(1e-8),
    "large": fl.Clip(1e12),
    "layers": fl.PerLayerClip((0.2, 0.7)),
    "smooth": fl.SmoothedNormalization(0.01),
    "adaptive": fl.AdaptiveClip(0.3),
    "nothing": Own(0.0, lambda rows, norms: clip_rows(rows, norms, 0.0)),
    "loose": Own(0.3, lambda rows, _: rows * 1e30),
    "broken": Own(0.3, lambda rows, _: rows / 0.0),
    "half": Own(0.3, lambda rows, norms: clip_rows(rows, norms, 0.3).half()),
}


def bits(values: Tensor) -> Tensor:
    return values.view(BITS[values.dtype])


def rows_of(dtype: torch.dtype) -> Tensor:
    """Rows of all lengths, tiny and huge, with zeros of both signs, and some that are no rows."""
    drawn = torch.randn(24, SIZE, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    lengths = [10.0**power for power in (-44, -38, -20, -9, -3, 0, 1, 8, 19, 25, 36, 37)]
    rows = (drawn * torch.tensor(lengths * 2).double().unsqueeze(1)).to(dtype)
    rows[12:, ::3] *= 1e-12
    rows[3, :5] = torch.tensor([0.0, -0.0, 1e-45, -1e-45, 1.0])
    special = torch.zeros(6, SIZE, dtype=dtype)
    special[1, 2], special[2, 3], special[3] = math.nan, math.inf, -math.inf
    special[4], special[5, 0] = torch.finfo(dtype).max, -0.0
    return torch.cat([rows, special])


@TYPES
def test_factors_of_any_size_give_the_same_bits(dtype):
    rows = rows_of(dtype)[:24]
    generator = torch.Generator().manual_seed(2)
    for power in (-300, -90, -61, -59, -30, -1, 0, 3):
        scale = torch.rand(24, generator=generator, dtype=torch.float64) * 10.0**power
        scale[::5], scale[1], scale[2] = 1.0, 2.0**-60, 2.0**-60 * (1 - 2.0**-53)
        seen, unseen = scale_rows(rows.clone(), scale), scaled(rows.clone(), scale)
        assert torch.equal(bits(seen), bits(unseen))


@TYPES
@pytest.mark.parametrize("limit", [0.0, 1e-8, 0.3, 1e12])
def test_rows_are_shortened_to_the_same_bits(dtype, limit):
    for seen in (rows_of(dtype), rows_of(dtype)[:, 3:11]):
        unseen = seen.clone()
        hold(seen, limit)
        held(unseen, limit)
        assert torch.equal(bits(seen.contiguous()), bits(unseen))
        assert bool((row_norms(seen) <= limit).all())


@TYPES
@pytest.mark.parametrize("name", BOUNDS)
def test_what_is_summed_is_the_same_and_nothing_is_waited_for(dtype, name):
    rows, bound = rows_of(dtype), BOUNDS[name]
    expected = contribute(rows.clone(), bound, LAYOUT, 50)
    with Device() as device:
        there = rows.clone().to(HERE_NOT)
        device.copies.clear()
        found = contribute(there, bound, LAYOUT, 50)
        again = received(found[0], bound, LAYOUT, 50)
        assert not device.waits
        assert not device.copies
        found, again = ([value.to("cpu") for value in group] for group in (found, again))
    assert all(map(torch.equal, map(bits, expected), map(bits, found)))
    assert torch.equal(bits(again[0]), bits(found[0]))
    assert bool(torch.isfinite(found[0]).all())
    assert bool((row_norms(found[0]) <= bound.clip_norm).all())


def test_a_slab_is_bounded_in_its_place():
    rows = rows_of(torch.float32)
    with Device():
        there = rows.to(HERE_NOT)
        found, *_ = contribute(there, fl.Clip(0.3), LAYOUT, 50)
        assert found.data_ptr() == there.data_ptr()


def test_zeros_beside_a_limit_of_zero_stay_zeros():
    """A bound that divides by them makes them no numbers, which were summed."""
    rows = rows_of(torch.float32)
    for start in range(0, len(rows), 7):
        few = rows[start : start + 7].clone()
        found, *_ = contribute(few, BOUNDS["nothing"], LAYOUT, 50)
        assert not bool(found.any())


@pytest.mark.parametrize("size", [1, 63, 65, 1000])
def test_a_norm_there_is_that_of_the_row_whatever_lies_beside_it(monkeypatch, size):
    # Pieces of 128 numbers, and slabs of a few rows.
    monkeypatch.setattr(norms, "_PIECE", 128)
    monkeypatch.setattr(norms, "_DEVICE_SLAB", 640)
    rows = torch.randn(13, size, generator=torch.Generator().manual_seed(size))
    rows[5, 0], rows[7, -1] = math.nan, math.inf
    forms = []

    def seen(values: Tensor, dim: int) -> Tensor:
        forms.append((values.shape, values.stride(), values.storage_offset()))
        return norm(values, dim)

    monkeypatch.setattr(norms, "norm", seen)
    expected = norm(rows.double(), dim=1)
    with Device():
        for some in (list(range(13)), [4], [12, 0, 5], []):
            forms.clear()
            found = row_norms(rows[some].to(HERE_NOT)).to("cpu")
            assert torch.allclose(found, expected[some], rtol=1e-14, equal_nan=True)
            # How many rows there are shows in no form that a kernel sees; the last one puts the
            # norms of pieces together.
            assert len(set(forms)) <= 3
            assert {shape[0] for shape, *_ in forms} == {max(1, 640 // min(size, 128))}
            assert all(shape[1] % 64 == 0 for shape, *_ in forms)
