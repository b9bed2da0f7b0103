"""Each term of the proofs, in settings so coarse that leaving it out is caught."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpacct.epochs import averages, ratios
from dpacct.epochs.averages import epoch_law
from dpacct.epochs.epoch import largest_entry_law
from dpacct.epochs.ratios import RatioLaw, merge_by_loss, spread, spread_to_losses
from dpacct.tight import self_composition
from dpacct.tight.self_composition import Repeated
from tests.oracles import allocation

NOISE, STEPS = 1.0, 30


def _delta(law: RatioLaw, epsilon: float) -> float:
    """E_P (1 - e^{eps - L})_+ of an upper law, with what it has lost."""
    return float(law.p @ np.maximum(-np.expm1(epsilon - law.losses), 0.0)) + law.lost_p


def _law(*, proven: bool) -> RatioLaw:
    return epoch_law(NOISE, STEPS, proven=proven)


def test_both_laws_enclose_the_truth_however_coarse_the_cells(monkeypatch):
    monkeypatch.setattr(averages, "_POINTS", 60)
    monkeypatch.setattr(averages, "_CELL", 0.2)
    monkeypatch.setattr(averages, "_FINENESS", 3)
    upper, lower = _law(proven=True), _law(proven=False)
    for epsilon in (0.1, 0.4, 0.8):
        for direction, truth in enumerate(allocation.epoch_delta(epsilon, NOISE, STEPS)):
            laws = [law.swapped() if direction else law for law in (upper, lower)]
            assert _delta(laws[0], epsilon) > truth * (1 + 1e-3)
            event = np.maximum(laws[1].p - math.exp(epsilon) * laws[1].q, 0.0)
            assert float(event.sum()) < truth * (1 - 1e-3)


@pytest.mark.parametrize("setting", [(2.8, 0.1, 1e-22), (10.0, 1.0, 0.1)])
def test_what_is_cut_off_is_charged_in_each_direction(monkeypatch, setting):
    for name, value in zip(("_FARTHEST", "_LARGE", "TAIL"), setting, strict=True):
        monkeypatch.setattr(averages, name, value)
    law = _law(proven=True)
    for epsilon in (0.05, 0.3):
        for direction, truth in enumerate(allocation.epoch_delta(epsilon, NOISE, STEPS)):
            side = law.swapped() if direction else law
            assert _delta(side, epsilon) >= truth
    # Without its charge, either direction would be too small.
    for direction, truth in enumerate(allocation.epoch_delta(0.3, NOISE, STEPS)):
        side = law.swapped() if direction else law
        assert _delta(replace(side, lost_p=0.0), 0.3) < truth


def test_far_ends_of_sums_are_charged(monkeypatch):
    monkeypatch.setattr(averages, "TAIL", 1e-2)
    monkeypatch.setattr(averages, "_LARGE", 1e-9)
    law = _law(proven=True)
    for epsilon in (0.2, 0.5):
        truth = allocation.epoch_delta(epsilon, NOISE, STEPS)
        assert _delta(law, epsilon) >= truth[0]
        assert _delta(law.swapped(), epsilon) >= truth[1]
    assert _delta(replace(law, lost_p=0.0), 0.5) < allocation.epoch_delta(0.5, NOISE, STEPS)[0]


def test_epochs_with_more_large_steps_than_are_kept_are_charged_in_each_direction(monkeypatch):
    monkeypatch.setattr(averages, "TAIL", 0.5)
    monkeypatch.setattr(averages, "_LARGE", 1.0)
    # So that nothing else is lost.
    monkeypatch.setattr(averages._Epoch, "_without_ends", lambda _, whole, _copies: whole)
    law = _law(proven=True)
    for direction, truth in enumerate(allocation.epoch_delta(0.0, NOISE, STEPS)):
        side = law.swapped() if direction else law
        assert _delta(replace(side, lost_p=0.0), 0.0) < truth <= _delta(side, 0.0)


def test_the_excess_over_the_last_wide_cell_is_charged(monkeypatch):
    monkeypatch.setattr(averages, "_FARTHEST", 2.8)
    epoch = averages._Epoch(NOISE, STEPS, proven=True)
    epoch._set_one_ratio()
    both, before = averages._outer(epoch._large, epoch._large), epoch._lost_p
    found = epoch._on_wide_cells(both, 2, 1.0)
    # What the mean of the ratio loses, P loses.
    missing = float(both.q @ both.place - found.q @ found.place) / STEPS
    assert 1e-9 < missing <= epoch._lost_p - before <= 1.02 * missing


def test_a_trimmed_law_charges_large_losses_and_raises_small_ones(monkeypatch):
    whole = _law(proven=True)
    monkeypatch.setattr(ratios, "TAIL", 1e-3)
    law = whole.trimmed()
    assert len(law.p) < 0.5 * len(whole.p)
    for epsilon in (0.0, 0.3, 0.6):
        assert _delta(law, epsilon) >= _delta(whole, epsilon) * (1 - 1e-9)
    assert _delta(replace(law, lost_p=0.0), 0.6) < _delta(whole, 0.6)
    assert law.p.sum() + law.lost_p == pytest.approx(1.0, abs=1e-9)


def test_spreading_keeps_means_and_merging_keeps_masses():
    values, q = np.array([0.4, 1.0, 1.7, 2.2]), np.array([0.3, 0.4, 0.2, 0.1])
    first, mass = spread(np.log(values), q, 0.5)
    grid = np.exp(0.5 * (first + np.arange(len(mass))))
    assert mass.sum() == pytest.approx(1.0)
    assert mass @ grid == pytest.approx(q @ values)
    for level in (0.3, 0.8, 1.5, 2.0):
        before = q @ np.maximum(values - level, 0.0)
        assert mass @ np.maximum(grid - level, 0.0) >= before - 1e-15
    upper = spread_to_losses(values, q, 0.5, (0.0, 0.0), (0.0, 0.0))
    lower = merge_by_loss(q * values, q, 0.5, 0.0)
    assert lower.p.sum() == pytest.approx(q @ values)
    for epsilon in (0.0, 0.4, 0.7):
        truth = float(q @ np.maximum(values - math.exp(epsilon), 0.0))
        event = np.maximum(lower.p - math.exp(epsilon) * lower.q, 0.0).sum()
        assert event <= truth + 1e-15 <= _delta(upper, epsilon) + 2e-15


def _sum_by_convolution(laws: list[RatioLaw], epsilon: float) -> float:
    p, q = laws[0].p, laws[0].q
    for law in laws[1:]:
        p, q = np.convolve(p, law.p), np.convolve(q, law.q)
    step = laws[0].step
    losses = step * (sum(law.first for law in laws) + np.arange(len(p)))
    if laws[0].proven:
        once = float(p @ np.maximum(-np.expm1(epsilon - losses), 0.0))
        return once + 1 - math.prod(1 - law.lost_p for law in laws)
    first = round(epsilon / step)
    events = []
    for number in range(first - 12, first + 13):
        inside = losses >= step * (number - 0.5)
        events.append(float(p[inside].sum() - math.exp(epsilon) * q[inside].sum()))
    return max(events)


@pytest.mark.parametrize("proven", [True, False])
@pytest.mark.parametrize("tilt", [0.5, 3.0, 8.0])
@pytest.mark.parametrize("others", [0, 2])
def test_powers_of_transforms_agree_with_convolutions(monkeypatch, *, proven, tilt, others):
    monkeypatch.setattr(averages, "_FINENESS", 8)
    law = _law(proven=proven).trimmed()
    other = epoch_law(1.5 * NOISE, 3, proven=proven).trimmed().on_grid(law.step)
    laws = [(law, 4), (other, others)] if others else [(law, 4)]
    for epsilon in (0.2, 0.8, 1.5):
        truth = _sum_by_convolution([law] * 4 + [other] * others, epsilon)
        found = Repeated(laws, tilt).delta(epsilon)
        if proven:
            assert found.lower <= truth * (1 + 1e-12) <= found.upper * (1 + 2e-12)
        else:
            assert found.lower <= truth * (1 + 1e-12)
        if tilt < 5.0:
            # Farther from the saddle point, the errors of the transform are large.
            assert found.lower > truth * (1 - 1e-4) - 1e-12


@pytest.mark.parametrize("proven", [True, False])
@pytest.mark.parametrize("factor", [0.3, 0.7, 3.1])
def test_another_grid_moves_delta_to_the_safe_side(*, proven, factor):
    law = _law(proven=proven).trimmed()
    moved = law.on_grid(factor * law.step)
    assert moved.mass_error > law.mass_error
    assert (moved.loss_error > law.loss_error) == proven
    for before, after in ((law.p, moved.p), (law.q, moved.q)):
        assert after.sum() == pytest.approx(before.sum(), rel=1e-13)
    for one, two in ((law, moved), (law.swapped(), moved.swapped())):
        for epsilon in (0.0, 0.4, 1.1, 2.5):
            before, after = (_delta(each, epsilon) for each in (one, two))
            if not proven:
                before, after = (
                    float(np.maximum(each.p - math.exp(epsilon) * each.q, 0.0).sum())
                    for each in (two, one)
                )
            assert before <= after * (1 + 1e-12)
            assert after <= before * 1.02 + 1e-9


@pytest.mark.parametrize("name", ["FFT_ERROR", "_LOG_OUTSIDE", "_LOG_KERNEL"])
def test_errors_of_transforms_and_windows_are_charged(monkeypatch, name):
    law = _law(proven=True).trimmed()
    sharp = Repeated([(law, 6)], 4.0).delta(0.9)
    larger: Any = {"FFT_ERROR": 1e-9, "_LOG_OUTSIDE": -4.0, "_LOG_KERNEL": -3.0}[name]
    monkeypatch.setattr(self_composition, name, larger)
    coarse = Repeated([(law, 6)], 4.0).delta(0.9)
    assert coarse.lower < sharp.lower * (1 - 1e-9)
    assert coarse.upper > sharp.upper * (1 + 1e-9)


def test_the_largest_entry_of_a_shuffled_epoch_has_this_law():
    rng = np.random.default_rng(5)
    law = largest_entry_law(0.7, 6)
    y = rng.standard_normal((200_000, 6)) * 0.7
    y[:, 0] += 2.0
    sampled = float((y.max(axis=1) > 2.5).mean())
    level = law.losses
    # The loss rises with the largest entry: compare the mass beyond its median under P.
    middle = int(np.searchsorted(np.cumsum(law.p), 1 - sampled))
    q = rng.standard_normal((200_000, 6)) * 0.7
    q[:, 0] += 1.0
    assert law.q[middle:].sum() == pytest.approx(float((q.max(axis=1) > 2.5).mean()), abs=0.01)
    assert np.all(np.diff(level) > 0)
