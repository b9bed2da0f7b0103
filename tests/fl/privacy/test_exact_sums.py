"""Sums move by exactly one contribution within its limit, whatever the rows are."""

from __future__ import annotations

import math
from fractions import Fraction
from itertools import product

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dpacct import fl
from dpacct.fl.layout import Layout
from dpacct.fl.privacy.sums import (
    SINGLE,
    SINGLE_ROWS,
    add_clipped,
    add_rows,
    coarsest_grid,
    contribute,
    received,
    scales_rows,
    unit,
)
from tests.fl.privacy.test_sensitivity import KINDS, LAYOUT, SIZE, square, update

BOUNDS = [
    fl.Clip(0.3),
    fl.Clip(1e-8),
    fl.Clip(1e12),
    fl.SmoothedNormalization(0.01),
    fl.SmoothedNormalization(1e-12),
    fl.AdaptiveClip(0.3, indicator_noise=5.0),
]


def added(rows, bound, *, population=1000, coarsest=math.inf, scale=1.0):
    """The sum of some rows in exact numbers, their norms, and which were not finite."""
    total = torch.zeros(rows.shape[1], dtype=torch.float64)
    parts = list(rows.clone().split([5, rows.shape[1] - 5], dim=1))
    norms, bad = add_clipped(total, parts, bound, population, coarsest=coarsest, scale=scale)
    return [Fraction(value) for value in total.tolist()], norms, bad


@pytest.mark.parametrize(("coarsest", "grid"), [(0.0, 0.0), (math.inf, 2.0**-10)])
def test_small_tensors_beside_large_ones_are_added_in_their_places(coarsest: float, grid: float):
    rows, totals = torch.randn(20, 9000), list[torch.Tensor]()
    for sizes in ([9000], [3, 8200, 4, 2, 791], [400, 400, 8200]):
        totals.append(torch.zeros(9000, dtype=torch.float64))
        parts = list(rows.clone().split(sizes, dim=1))
        # No row is as long as this, so that all factors are one.
        add_clipped(totals[-1], parts, fl.Clip(1000.0), 1000, coarsest=coarsest)
        assert torch.equal(torch.cat(parts, dim=1), rows)
    assert torch.equal(totals[0], totals[1])
    assert torch.equal(totals[0], totals[2])
    torch.testing.assert_close(totals[0], rows.double().sum(dim=0), rtol=0, atol=1e-6 + 20 * grid)


@settings(max_examples=40)
@given(
    st.lists(
        st.tuples(st.sampled_from(KINDS), st.integers(-12, 30), st.integers(0, 2**31)),
        min_size=1,
        max_size=8,
    ),
    st.sampled_from([torch.float16, torch.float32, torch.float64]),
    st.sampled_from(BOUNDS),
    st.sampled_from([7, 10**6, 8 * 10**9]),
    st.sampled_from([math.inf, 0.0]),
    st.sampled_from([1.0, -0.7, -1e30, 1e-30]),
)
@example([("huge", 0, 1)] * 8, torch.float32, fl.Clip(0.3), 7, math.inf, 1.0)
@example([("huge", 0, 1)] * 8, torch.float32, fl.Clip(1e-8), 7, math.inf, -1e30)
@example([("denormal", 0, 1)] * 8, torch.float32, fl.SmoothedNormalization(1e-12), 7, math.inf, 1.0)
@example([("equal", 0, 1)] * 8, torch.float32, fl.Clip(1e12), 8 * 10**9, math.inf, -1e30)
def test_the_sum_moves_by_one_contribution_within_its_limit(
    rows, dtype, bound, population, coarsest, scale
):
    updates = torch.stack([update(kind, dtype, *rest) for kind, *rest in rows])
    options = {"population": population, "coarsest": coarsest, "scale": scale}
    whole, norms, bad = added(updates, bound, **options)
    grid = Fraction(unit(bound.clip_norm, population + 1))
    for place, row in enumerate(updates):
        kept = [n for n in range(len(updates)) if n != place]
        rest, alone = (added(updates[some], bound, **options)[0] for some in (kept, [place]))
        moved = [one - other for one, other in zip(whole, rest, strict=True)]
        assert moved == alone
        assert all((value / grid).denominator == 1 for value in moved)
        assert square(moved) <= Fraction(bound.clip_norm) ** 2
        if not bool(row.isfinite().all()):
            assert bool(bad[place])
        if bad[place]:
            assert norms[place] == 0
            assert not any(moved)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("coarsest", [math.inf, 0.0])
def test_it_is_the_bounded_row_but_for_the_grid(bound, dtype, coarsest):
    rows = torch.stack([update("random", dtype, power, power + 9) for power in range(-6, 2)])
    found, norms, _ = added(-2 * rows, bound, coarsest=coarsest, scale=-0.5)
    staged, expected, _ = contribute(rows.clone(), bound, LAYOUT, 1000)
    torch.testing.assert_close(norms, expected, rtol=1e-6, atol=0)
    grid = unit(bound.clip_norm, SINGLE_ROWS, SINGLE) if coarsest else 0.0
    slack = 2.0**-12 * bound.clip_norm + len(rows) * grid
    gap = torch.tensor([float(value) for value in found]) - staged.double().sum(0)
    assert float(gap.abs().max()) <= slack


@pytest.mark.parametrize("bound", BOUNDS)
def test_what_underflows_in_a_norm_is_not_lost_at_a_large_learning_rate(bound):
    """Squares of these coordinates are subnormal or zero in float32."""
    count = 10_000
    for scale, exponent in product([-1e30, 1e20, -1e12], [-64, -70, -76, -126, -140]):
        total = torch.zeros(count, dtype=torch.float64)
        row = torch.full((1, count), 2.0**exponent)
        add_clipped(total, [row], bound, 1000, coarsest=math.inf, scale=scale)
        assert torch.equal(total, total[:1].expand(count))
        assert count * Fraction(float(total[0])) ** 2 <= Fraction(bound.clip_norm) ** 2


@pytest.mark.parametrize("contributions", [1, 4, 64])
def test_a_grid_has_room_for_the_one_contribution_that_a_neighbor_has_more(contributions):
    bound, one = fl.Clip(1 - 2.0**-30), Layout(("a",), (torch.Size([1]),), (1,))
    rows = torch.full((contributions + 1, 1), 1 - 2.0**-20, dtype=torch.float64)
    rows -= torch.arange(contributions + 1).unsqueeze(1) * 2.0**-45 + 2.0**-44 / 3
    inside, _, _ = received(rows, bound, one, contributions)
    total = torch.zeros(1, dtype=torch.float64)
    add_rows(total, inside)
    assert Fraction(float(total)) == sum(Fraction(value) for value in inside.flatten().tolist())


def test_the_grid_does_not_follow_from_how_many_rows_there_are():
    bound, rows = fl.Clip(0.3), torch.randn(8, SIZE, generator=torch.Generator().manual_seed(1))
    whole, *_ = added(rows, bound)
    parts = [added(rows[some], bound)[0] for some in (slice(0, 1), slice(1, 3), slice(3, 8))]
    assert whole == [sum(values) for values in zip(*parts, strict=True)]


def test_float32_groups_of_the_largest_whole_numbers_are_exact():
    """The sum of a full group reaches 2^24, and float32 still holds it."""
    spikes = torch.zeros(3 * SINGLE_ROWS + 1, SIZE)
    spikes[:, 3] = -1e18
    [*_, found] = sorted(map(abs, added(spikes, fl.Clip(1.0))[0]))
    assert len(spikes) * (1 - 2.0**-12) < found <= len(spikes)
    # One row alone is the share that it has in the sum.
    [*_, one] = sorted(map(abs, added(spikes[:1], fl.Clip(1.0))[0]))
    assert found == len(spikes) * one


def test_the_cut_goes_toward_zero():
    grid = unit(1.0, SINGLE_ROWS, SINGLE)
    rows = torch.zeros(2, SIZE)
    rows[0, 2], rows[1, 7] = 0.75 * grid, -1.75 * grid
    found, *_ = added(rows, fl.Clip(1.0))
    assert not any(found[:7])
    assert found[7] == -Fraction(grid)


def test_a_grid_that_is_coarse_beside_the_noise_is_not_taken():
    """Without noise, or with a clip norm far above the updates, float32 would cut all of them."""
    small = torch.full((4, SIZE), 1e-3)
    for std, exact in ((1e6, False), (1e-3, True), (0.0, True)):
        found, *_ = added(small, fl.Clip(1e6), coarsest=coarsest_grid(std, 100.0))
        assert (float(found[0]) == pytest.approx(4e-3, rel=1e-3)) == exact
    assert coarsest_grid(1.6, 100.0) == pytest.approx(1e-3)
    assert coarsest_grid(1.6, 0.0) == pytest.approx(0.1)


def test_received_rows_are_held_to_the_limits_and_right_ones_stay():
    bound = fl.PerLayerClip((0.1, 0.7, 0.02))
    rows = torch.randn(6, SIZE)
    rows[4, 1] = math.inf
    sent, *_ = contribute(rows.clone(), bound, LAYOUT, 100)
    again, _, bad = received(sent.clone(), bound, LAYOUT, 100)
    assert torch.equal(sent, again)
    assert not bool(bad.any())
    forged, _, bad = received(3 * rows, bound, LAYOUT, 100)
    assert bad.tolist() == [False] * 4 + [True, False]
    for start, stop, limit in bound.limits(LAYOUT):
        assert float(forged[:, start:stop].double().norm(dim=1).max()) <= limit


def test_only_bounds_that_are_one_factor_are_divided():
    class Own(fl.Clip):
        def apply(self, rows, norms, layout, margin):
            return 0 * rows

    assert all(map(scales_rows, BOUNDS))
    assert not scales_rows(Own(1.0))
    assert not scales_rows(fl.PerLayerClip((1.0,)))
