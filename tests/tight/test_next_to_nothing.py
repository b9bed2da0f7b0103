"""Roundings that count only where next to nothing is left, and where bounds are wide."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import math
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest

from dpacct.numerics.rounding import Array, Bounds
from dpacct.pairs.dominating import Direction, SampledGaussianPair
from dpacct.tight import complement
from dpacct.tight.complement import Complement
from dpacct.tight.composition import Composition
from dpacct.tight.few_large import FewLarge
from dpacct.tight.laws.joint import JointLaw
from dpacct.tight.laws.split import SplitLosses

COMPOSITION = Composition.of(
    {SampledGaussianPair(0.05, 0.9, Direction.REMOVE): 60}, Direction.REMOVE
)


@pytest.mark.parametrize("share", [-650.0, -699.0, -720.0, -760.0])
def test_left_of_zero_no_small_mass_is_told_too_small(share: float) -> None:
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
def test_left_of_zero_aliases_are_paid_for(
    rate: float,
    noise: float,
    count: int,
    at: float,
    direction: Direction,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Steps may be so wide that aliases are a large part of the sum: only the width tells."""
    composition = Composition.of({SampledGaussianPair(rate, noise, direction): count}, direction)
    fine = Complement(composition, at, -6.0).delta(at)
    widths: list[float] = []
    for room in (8.0, 4.0, 1.0):
        monkeypatch.setattr(complement, "_ALIAS", room)
        coarse = Complement(composition, at, 0.0).delta(at)
        assert coarse.lower <= fine.upper
        assert coarse.upper >= fine.lower
        widths.append(coarse.width)
    # They did count.
    assert fine.width < 1e-9 < widths[0] < widths[-1]


@pytest.mark.parametrize("accuracy", [3.0, 1.0, -1.0])
def test_left_of_zero_what_is_cut_off_is_paid_for(
    accuracy: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = 0.4
    fine = Complement(COMPOSITION, at, -6.0).delta(at)
    monkeypatch.setattr(complement, "_TRUNCATIONS", (accuracy,))
    coarse = Complement(COMPOSITION, at, 0.0).delta(at)
    assert coarse.lower <= fine.upper
    assert coarse.upper >= fine.lower
    assert coarse.width > 1e-4


def test_small_losses_within_the_step_count_for_their_decay() -> None:
    split = FewLarge(COMPOSITION, 0.4, -12.0)._split
    (kind,) = split.laws(4.0, 1.0)[0]._kinds
    (cut,) = split.cuts
    edge = math.log1p(cut.rate * math.expm1(cut.first))
    within = kind.small.weight[kind.small.loss > edge].sum()
    assert within > 0.0
    assert kind.small_panels()[1] >= within


class FewRounds:
    """One kind of round of which the odds of large losses are known up to a share."""

    count = 1e4

    def __init__(self, odds: float, off: float) -> None:
        self.small = SimpleNamespace(log_moment=Bounds(np.array(0.0), np.array(0.0)))
        log_odds = math.log(odds)
        self.large = SimpleNamespace(
            log_moment=Bounds(np.array(log_odds - off), np.array(log_odds + off))
        )

    def large_decay(self, times: Array) -> Array:
        """A hundredth of the large losses is left."""
        return np.full(len(times), 0.01)


@pytest.mark.parametrize("share", [-0.9, 0.0, 0.9])
def test_decay_holds_for_all_odds_within_their_bounds(share: float) -> None:
    """Over many rounds the moment, which the integrand is divided by, depends on them a lot."""
    odds, off = 0.1, 1e-3
    law = JointLaw(cast("list[SplitLosses]", [FewRounds(odds, off)]))
    exact = odds * math.exp(share * off)
    left, every = (FewRounds.count * math.log1p(exact * part) for part in (0.01, 1.0))
    assert law.log_decay(1.0, 3).min() >= left - every
