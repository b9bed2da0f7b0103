"""What is scaled and summed in one go is bounded, exact, and next to what is done in stages."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor

from dpacct import fl
from dpacct.fl.layout import Layout
from dpacct.fl.privacy import scaled_sums
from dpacct.fl.privacy.bounds import Bound
from dpacct.fl.privacy.noise import sums_as_they_are
from dpacct.fl.privacy.scaled_sums import add_scaled, scales
from dpacct.fl.privacy.sums import contribute, unit
from tests.fl.elsewhere import HERE_NOT, Device
from tests.fl.privacy.test_sensitivity import KINDS, LAYOUT, SIZE, TYPES, square, update

BOUNDS = [
    fl.Clip(0.3),
    fl.Clip(1e-8),
    fl.Clip(1e12),
    fl.SmoothedNormalization(0.01),
    fl.SmoothedNormalization(1e-12),
    fl.SmoothedNormalization(1e12),
    fl.AdaptiveClip(0.3, indicator_noise=5.0),
]


def added(rows: Tensor, bound: Bound, population: int) -> tuple[list[Fraction], Tensor, Tensor]:
    """The sum in exact numbers, norms, and what was not finite."""
    total = torch.zeros(rows.shape[1], dtype=torch.float64)
    layout = LAYOUT if rows.shape[1] == SIZE else Layout.of({"all": rows[0]})
    norms, bad = add_scaled(total, rows.clone(), bound, layout, population)
    return [Fraction(value) for value in total.tolist()], norms, bad


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(st.sampled_from(KINDS), st.integers(-12, 30), st.integers(0, 2**31)),
        min_size=1,
        max_size=7,
    ),
    st.sampled_from(TYPES),
    st.sampled_from(BOUNDS),
    st.sampled_from([7, 1000, 10**6, 5 * 10**7, 8 * 10**9]),
)
@example([("huge", 0, 1)], torch.float64, fl.Clip(0.3), 7)
@example([("equal", 0, 1)], torch.float32, fl.Clip(1e12), 8 * 10**9)
def test_the_sum_moves_by_one_contribution_that_is_within_the_limit(
    rows: list[Any], dtype: torch.dtype, bound: Bound, population: int
):
    updates = torch.stack([update(*row[:1], dtype, *row[1:]) for row in rows])
    whole, norms, bad = added(updates, bound, population)
    grid = Fraction(unit(bound.limits(LAYOUT)[0][2], population))
    for place, row in enumerate(updates):
        kept = [n for n in range(len(updates)) if n != place]
        rest, alone = (added(updates[some], bound, population)[0] for some in (kept, [place]))
        moved = [one - other for one, other in zip(whole, rest, strict=True)]
        assert moved == alone
        assert all((value / grid).denominator == 1 for value in moved)
        assert square(moved) <= Fraction(bound.clip_norm) ** 2
        length = float(row.double().norm())
        # Of float64, norms above 1e154 overflow.
        assert bool(bad[place]) == (not math.isfinite(length)) or length > 1e154
        assert math.isclose(float(norms[place]), 0.0 if bad[place] else length, rel_tol=2**-28)


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("bound", BOUNDS, ids=str)
def test_it_is_what_is_done_in_stages(bound: Bound, dtype: torch.dtype):
    """Of rows of float64, up to the rounding of factors, and to where that crosses the grid."""
    raw = torch.stack([update("random", dtype, power, power + 40) for power in range(-4, 5)])
    rows = torch.cat([raw, raw[:1] * math.nan]).double()
    inside, norms, bad = contribute(rows.clone(), bound, LAYOUT, 1000)
    grid = unit(bound.limits(LAYOUT)[0][2], 1000)
    for place, expected in enumerate(inside.tolist()):
        found, length, odd = added(rows[place : place + 1], bound, 1000)
        assert length == norms[place]
        assert odd == bad[place]
        for one, other in zip(found, expected, strict=True):
            assert abs(one - Fraction(other)) <= abs(other) * 2.0**-50 + grid
    short = rows[3:4] * 1e-12 * bound.clip_norm
    if not isinstance(bound, fl.SmoothedNormalization):
        # Nothing is shortened, and no coordinate rounded but to the grid.
        found, *_ = added(short, bound, 7)
        least = Fraction(unit(bound.clip_norm, 7))
        assert found == [math.trunc(Fraction(value) / least) * least for value in short[0].tolist()]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("bound", BOUNDS, ids=str)
def test_on_a_device_it_is_the_same_and_nothing_is_waited_for(bound: Bound, dtype: torch.dtype):
    # Of a size that is not filled up on a device: what is added there is what is added here.
    generator = torch.Generator().manual_seed(1)
    rows = torch.randn(9, 64, generator=generator, dtype=torch.float64)
    rows *= torch.tensor([10.0 ** (3 * n - 12) for n in range(9)]).double().unsqueeze(1)
    rows[2, 3], rows[5, 4] = math.nan, -math.inf
    rows, layout = rows.to(dtype), Layout.of({"all": torch.zeros(64)})
    here = torch.zeros(64, dtype=torch.float64)
    expected = add_scaled(here, rows.clone(), bound, layout, 50)
    with Device() as device:
        there, total = rows.clone().to(HERE_NOT), here.new_zeros(64).to(HERE_NOT)
        device.copies.clear()
        found = add_scaled(total, there, bound, layout, 50)
        assert not device.waits
        assert not device.copies
        norms, bad, sums = (value.to("cpu") for value in (*found, total))
    assert torch.equal(norms, expected[0])
    assert torch.equal(bad, expected[1])
    assert torch.equal(sums, here)


@pytest.mark.parametrize("place", ["here", "on a device"])
def test_factors_that_break_their_word_are_held_to_it(monkeypatch: pytest.MonkeyPatch, place: str):
    """What is added is measured behind the division."""

    @dataclass(frozen=True)
    class Longer(fl.Clip):
        def factors(self, norms: Tensor, margin: float) -> Tensor:
            return super().factors(norms, margin) * 3

    monkeypatch.setitem(scaled_sums._SCALING, Longer, scaled_sums._maps(Longer))
    layout = Layout.of({"all": torch.zeros(64)})
    rows = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    for row in rows:
        total = torch.zeros(64, dtype=torch.float64)
        if place != "here":
            with Device():
                there = total.to(HERE_NOT)
                add_scaled(there, row.unsqueeze(0).to(HERE_NOT), Longer(0.3), layout, 50)
                total = there.to("cpu")
        else:
            add_scaled(total, row.unsqueeze(0), Longer(0.3), layout, 50)
        moved = [Fraction(value) for value in total.tolist()]
        grid = Fraction(unit(0.3, 50))
        assert all((value / grid).denominator == 1 for value in moved)
        assert Fraction(0.29) ** 2 < square(moved) <= Fraction(0.3) ** 2


def test_rows_of_others_are_not_written_to():
    rows = torch.randn(5, SIZE, generator=torch.Generator().manual_seed(1))
    before = rows.clone()
    add_scaled(torch.zeros(SIZE, dtype=torch.float64), rows, fl.Clip(0.3), LAYOUT, 7)
    assert torch.equal(rows, before)


def test_only_bounds_that_are_known_are_one_factor_a_row():
    class Own(fl.Clip):
        pass

    assert all(map(scales, BOUNDS))
    assert not scales(Own(0.3))
    assert not scales(fl.PerLayerClip((0.1, 0.7, 0.02)))


@pytest.mark.parametrize("name", ["apply", "factors", "limits"])
@pytest.mark.parametrize("bound", [BOUNDS[0], BOUNDS[3], BOUNDS[6]], ids=str)
def test_what_somebody_puts_in_the_place_of_a_bounds_map_is_asked(
    monkeypatch: pytest.MonkeyPatch, bound: Bound, name: str
):
    monkeypatch.setattr(type(bound), name, lambda *_: None)
    assert not scales(bound)


def test_only_noise_that_takes_rows_as_they_are_takes_sums():
    class Silent(fl.GaussianNoise):
        """As users write it, for tests."""

    class Halved(fl.GaussianNoise):
        def encode(self: object, rows: Tensor, limits: Any, std: float) -> Tensor:
            return rows / 2

    assert all(map(sums_as_they_are, (fl.GaussianNoise(), fl.NoiseShares(3), Silent())))
    assert not any(map(sums_as_they_are, (Halved(), fl.SecureGaussianNoise())))
    changed = Silent()
    object.__setattr__(changed, "encode", lambda rows, *_: rows * 0)
    assert not sums_as_they_are(changed)
