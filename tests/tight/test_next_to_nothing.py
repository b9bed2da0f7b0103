"""Roundings that count only where next to nothing is left, and where bounds are wide."""

from __future__ import annotations

import math

import numpy as np
import pytest
from mpmath import mp, mpf

from dpacct.numerics.rounding import Array, Bounds
from dpacct.pairs.dominating import Direction, SampledGaussianPair
from dpacct.tight import contour, engines
from dpacct.tight.composition import Composition
from dpacct.tight.contour import Complement, Contour, log_delta_estimate, tilt_at_epsilon
from dpacct.tight.engines import NEXT_TO_NOTHING, far_delta

COMPOSITION = Composition.of(
    {SampledGaussianPair(0.05, 0.9, Direction.REMOVE): 60}, Direction.REMOVE
)


@pytest.mark.parametrize("share", [-650.0, -699.0, -720.0, -760.0])
def test_left_of_zero_no_small_mass_is_told_too_small(share):
    """The same measure times a tiny factor has as tiny a delta, also where that is rounded."""
    at = 0.4
    bounds = Complement(COMPOSITION, at, -6.0)
    least = math.log(bounds.delta(at).lower)
    for name in ("_mass", "_log_moment"):
        low, high = getattr(bounds, name)
        setattr(bounds, name, (low + share, high + share))
    bounds._others = [(tilt, top + share) for tilt, top in bounds._others]
    found = bounds.delta(at)
    assert found.upper > 0.0
    assert math.log(found.upper) >= least + share
    assert found.lower == 0.0 or math.log(found.lower) <= least + share + 1e-9


@pytest.mark.parametrize("direction", list(Direction))
@pytest.mark.parametrize(
    ("rate", "noise", "count", "at"), [(0.05, 0.9, 60, 0.4), (0.4, 6.0, 900, 1.0)]
)
def test_left_of_zero_aliases_are_paid_for(rate, noise, count, at, direction, monkeypatch):
    """Steps may be so wide that aliases are a large part of the sum: only the width tells."""
    composition = Composition.of({SampledGaussianPair(rate, noise, direction): count}, direction)
    fine = Complement(composition, at, -6.0).delta(at)
    widths: list[float] = []
    for room in (8.0, 4.0, 1.0):
        monkeypatch.setattr(contour, "_LEFT_ALIAS", room)
        coarse = Complement(composition, at, 0.0).delta(at)
        assert coarse.lower <= fine.upper
        assert coarse.upper >= fine.lower
        widths.append(coarse.width)
    # They did count.
    assert fine.width < 1e-9 < widths[0] < widths[-1]


@pytest.mark.parametrize("accuracy", [3.0, 1.0, -1.0])
def test_left_of_zero_what_is_cut_off_is_paid_for(accuracy, monkeypatch):
    at = 0.4
    fine = Complement(COMPOSITION, at, -6.0).delta(at)
    monkeypatch.setattr(contour, "_TRUNCATIONS", (accuracy,))
    coarse = Complement(COMPOSITION, at, 0.0).delta(at)
    assert coarse.lower <= fine.upper
    assert coarse.upper >= fine.lower
    assert coarse.width > 1e-4


class Wide:
    """A composition of which the moment at one tilt is known less well than it could be."""

    def __init__(self, whole: Composition, tilt: float, below: float, above: float) -> None:
        self._whole, self._tilt, self._below, self._above = whole, tilt, below, above
        self.precision, self.kinds = whole.precision, whole.kinds
        self.laws, self.cumulants = whole.laws, whole.cumulants
        self.log_moment_above = whole.log_moment_above

    def log_moment(self, tilt: float | Array) -> Bounds:
        """Wider at the tilt."""
        found = self._whole.log_moment(tilt)
        there = np.isclose(tilt, self._tilt, rtol=1e-12, atol=0.0)
        return Bounds(found.lower - self._below * there, found.upper + self._above * there)


def test_left_of_zero_both_ends_of_the_mass_count():
    at = 0.4
    known = Complement(COMPOSITION, at, -6.0).delta(at)
    found = Complement(Wide(COMPOSITION, 0.0, 0.01, 0.02), at, -6.0).delta(at)
    assert found.lower == pytest.approx(known.lower - -math.expm1(-0.01), abs=1e-9)
    assert found.upper == pytest.approx(known.upper + math.expm1(0.02), abs=1e-6)


def test_right_of_zero_both_ends_of_the_moment_count():
    tilt, at = tilt_at_epsilon(COMPOSITION, 5.0)
    log_delta = log_delta_estimate(tilt, at, 5.0)
    known = Contour(COMPOSITION, tilt, 5.0, log_delta, 0.0).delta(5.0)
    found = Contour(Wide(COMPOSITION, tilt, 0.01, 0.02), tilt, 5.0, log_delta, 0.0).delta(5.0)
    assert found.lower == pytest.approx(known.lower * math.exp(-0.01), rel=1e-6)
    assert found.upper == pytest.approx(known.upper * math.exp(0.02), rel=1e-6)


@pytest.mark.parametrize("lost", [1e-2, 1e-5, 1e-9])
def test_far_out_what_is_cut_off_counts(lost, monkeypatch):
    """Against one round integrated in x: beyond what is left of its losses nothing else is."""
    rate, noise, at = 0.05, 0.9, 6.0
    one = Composition.of({SampledGaussianPair(rate, noise, Direction.REMOVE): 1}, Direction.REMOVE)
    monkeypatch.setattr(engines, "_CUT_OFF", lost)
    found = far_delta(one, at)
    with mp.workdps(40):
        q, sigma = mpf(rate), mpf(noise)
        first = sigma**2 * mp.log((mp.exp(at) - 1 + q) / q) + mpf(1) / 2
        plain, moved = mp.ncdf(-first / sigma), mp.ncdf(-(first - 1) / sigma)
        exact = q * moved - (mp.exp(at) - 1 + q) * plain
    assert 0 < exact <= found
    assert found <= 3 * max(float(exact), lost)


def test_where_nothing_is_left_less_is_proven_than_anyone_asks_for():
    found = far_delta(COMPOSITION, 3000.0)
    assert 0.0 < found <= NEXT_TO_NOTHING
