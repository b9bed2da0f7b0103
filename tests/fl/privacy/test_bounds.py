from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from dpacct import fl
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.layout import Layout
from dpacct.fl.privacy.bounds import ball_sensitivity
from dpacct.fl.privacy.norms import MARGIN, row_norms
from dpacct.rounds import Adjacency

LAYOUT = Layout(("a", "b", "c"), tuple(torch.Size([n]) for n in (5, 130, 1)), (5, 130, 1))


def rows_of(seed: int, exponent: int, count: int = 4):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, LAYOUT.size, generator=generator) * 10.0**exponent


def exact_norm(row) -> float:
    """In exact arithmetic, rounded once."""
    return math.sqrt(math.fsum(float(value) ** 2 for value in row))


def applied(bound, rows):
    return bound.apply(rows.clone(), row_norms(rows), LAYOUT, MARGIN)


BOUNDS = [
    fl.Clip(0.3),
    fl.PerLayerClip((0.1, 0.7, 0.02)),
    fl.SmoothedNormalization(0.01),
    fl.AdaptiveClip(0.3),
]


@given(st.integers(0, 2**31), st.integers(-7, 17), st.sampled_from(BOUNDS))
def test_every_contribution_is_within_the_sensitivity(seed, exponent, bound):
    for row in applied(bound, rows_of(seed, exponent)):
        assert exact_norm(row) <= bound.sensitivity(Adjacency.ADD_REMOVE)
        for start, stop, limit in bound.limits(LAYOUT):
            assert exact_norm(row[start:stop]) <= limit


@given(st.integers(0, 2**31), st.integers(-7, 17), st.sampled_from(BOUNDS))
def test_a_bound_treats_each_row_by_itself(seed, exponent, bound):
    rows = rows_of(seed, exponent)
    together = applied(bound, rows)
    alone = torch.cat([applied(bound, row.unsqueeze(0)) for row in rows])
    assert torch.equal(together, alone)


@given(st.integers(0, 2**31), st.integers(-7, 17))
def test_norms_are_as_close_as_the_derivation_says(seed, exponent):
    rows = rows_of(seed, exponent)
    for row, found in zip(rows, row_norms(rows), strict=True):
        assert abs(float(found) / exact_norm(row) - 1) <= 2.1e-6


@given(st.integers(0, 2**31), st.floats(0.01, 0.9))
def test_clipping_keeps_direction_and_short_updates(seed, limit):
    rows = rows_of(seed, 0)
    clipped = applied(fl.Clip(limit), rows)
    for row, inside in zip(rows, clipped, strict=True):
        assert exact_norm(inside) == pytest.approx(limit, rel=2e-5)
        cosine = torch.nn.functional.cosine_similarity(row, inside, dim=0)
        assert float(cosine) == pytest.approx(1, abs=1e-6)
    assert torch.equal(applied(fl.Clip(1e3), rows), rows)
    assert torch.allclose(applied(fl.Clip(limit), clipped), clipped, rtol=2e-5)


@pytest.mark.parametrize("size", [30_000, 32_768, 40_000, 66_000])
def test_a_norm_is_the_same_to_the_last_bit_whoever_is_beside_on_any_threads(size):
    threads = torch.get_num_threads()
    rows = torch.randn(7, size, generator=torch.Generator().manual_seed(size))
    alone = torch.cat([row_norms(row.unsqueeze(0)) for row in rows])
    try:
        for count in (1, 2, 3):
            torch.set_num_threads(count)
            for first in range(7):
                assert torch.equal(row_norms(rows[first:]), alone[first:])
                assert torch.equal(row_norms(rows[: first + 1]), alone[: first + 1])
    finally:
        torch.set_num_threads(threads)


def test_the_norm_is_that_of_all_tensors_together():
    rows = torch.ones(1, LAYOUT.size)
    assert exact_norm(applied(fl.Clip(1.0), rows)[0]) == pytest.approx(1.0, rel=1e-4)
    # Tensor by tensor it would be sqrt(3).
    per_layer = fl.PerLayerClip((1.0, 1.0, 1.0))
    assert per_layer.sensitivity(Adjacency.ADD_REMOVE) >= math.sqrt(3)
    assert exact_norm(applied(per_layer, rows)[0]) == pytest.approx(math.sqrt(3), rel=1e-4)


def test_smoothed_normalization_worked_out_by_hand():
    layout = Layout(("v",), (torch.Size([2]),), (2,))
    rows = torch.tensor([[3.0, 4.0]])
    one = fl.SmoothedNormalization(1.0).apply(rows.clone(), row_norms(rows), layout, 0.0)
    assert one[0].tolist() == pytest.approx([0.5, 2 / 3], rel=1e-6)
    small = fl.SmoothedNormalization(0.01).apply(rows.clone(), row_norms(rows), layout, 0.0)
    assert small[0].tolist() == pytest.approx([0.5988023952, 0.7984031936], rel=1e-6)


def test_zero_stays_zero():
    for bound in BOUNDS:
        assert not applied(bound, torch.zeros(2, LAYOUT.size)).any()


def test_sensitivities():
    assert ball_sensitivity(3.0, Adjacency.ADD_REMOVE) == 3
    assert ball_sensitivity(3.0, Adjacency.ZERO_OUT) == 3
    assert ball_sensitivity(3.0, Adjacency.REPLACE_ONE) == 6
    assert fl.SmoothedNormalization(1.0).sensitivity(Adjacency.REPLACE_ONE) == 2


def test_layers_by_name_and_evenly():
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 1))
    even = fl.PerLayerClip.evenly(model, 2.0)
    assert even.clip_norm == pytest.approx(2.0)
    assert len(even.clip_norms) == 4
    named = fl.PerLayerClip.named(model, {"1.weight": 3, "0.weight": 1, "0.bias": 2, "1.bias": 4})
    assert named.clip_norms == (1, 2, 3, 4)
    with pytest.raises(InvalidParameter, match=r"0\.weight"):
        fl.PerLayerClip.named(model, {"0.weight": 1})
    with pytest.raises(InvalidParameter, match="4 tensors"):
        fl.PerLayerClip((1.0, 2.0)).limits(Layout.of(dict(model.named_parameters())))


@pytest.mark.parametrize("value", [0, -1, math.inf, math.nan, 1e13, True])
def test_clip_norms_out_of_range_are_refused(value):
    for make in (fl.Clip, fl.AdaptiveClip, lambda norm: fl.PerLayerClip((1.0, norm))):
        with pytest.raises(InvalidParameter):
            make(value)


def test_rules_on_private_values_are_refused():
    for value in (torch.median, "median", torch.tensor(1.0)):
        with pytest.raises(Unsupported, match="without noise"):
            fl.Clip(value)


@given(st.integers(0, 2**31), st.integers(1, 60), st.floats(0, 1))
def test_the_float_sum_of_clipped_updates_moves_by_at_most_the_clip_norm(seed, count, share):
    rows = rows_of(seed, 2, count) * share
    inside = applied(fl.Clip(0.3), rows)
    total = torch.zeros(LAYOUT.size, dtype=torch.float64)
    without = torch.zeros(LAYOUT.size, dtype=torch.float64)
    for number, row in enumerate(inside):
        total.add_(row)
        if number:
            without.add_(row)
    assert exact_norm(total - without) <= 0.3
