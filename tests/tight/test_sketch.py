"""Few kinds of rounds in the place of thousands: about the same, or never below."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import math

import numpy as np
import pytest

from dpacct import Full, Poisson, Round, Schedule, epsilon
from dpacct.pairs.dominating import Direction, proven_pairs
from dpacct.rounds import Phase
from dpacct.tight.composition import MANY, Composition, Rows, above, alike, cells, merged
from dpacct.tight.contour import Contour, epsilon_estimate, tilt_at_delta

KINDS = 800


def plan_of(kinds: int) -> Schedule:
    return Schedule(
        Phase(Round(1.2 + 0.3 * math.sin(k / 80), Poisson(0.06 * 4.0 ** (-k / kinds))), 1 + k % 3)
        for k in range(kinds)
    )


def test_every_round_is_in_one_cell() -> None:
    random = np.random.default_rng(5)
    found = cells(Rows(random.random(1000), random.random(1000), np.ones(1000)))
    assert sorted(np.concatenate(found).tolist()) == list(range(1000))


def test_few_kinds_are_left_alone() -> None:
    rows = Rows(np.full(MANY, 0.1), np.full(MANY, 1.0), np.ones(MANY))
    assert alike(rows) is rows
    assert above(rows) is rows


@pytest.mark.parametrize("direction", Direction)
def test_moments_of_a_sketch(direction: Direction) -> None:
    whole = Composition.of_schedule(plan_of(KINDS), proven_pairs, direction)
    tilts = np.array([0.5, 3.0])
    exact, most = whole.log_moment(tilts), whole.log_moment_above(tilts)
    assert np.all(exact.upper <= most)
    assert np.all(most <= 1.3 * exact.upper)
    sketch = whole.alike()
    assert len(sketch.sampled.rates) < MANY
    assert sketch.sampled.counts.sum() == whole.sampled.counts.sum()
    assert sketch.log_moment(tilts).upper == pytest.approx(exact.upper, rel=2e-3)


def test_many_kinds_need_few_nodes() -> None:
    whole = Composition.of_schedule(plan_of(KINDS), proven_pairs, Direction.REMOVE)
    log_delta = math.log(1e-5)
    tilt, at = tilt_at_delta(whole, log_delta)
    guess = epsilon_estimate(tilt, at, log_delta)
    found = Contour(whole, tilt, guess, log_delta, 0.0, at.variance)
    # Without paths off the line there were 129.
    assert len(found._t) < 80


def test_many_kinds_are_merged_for_an_estimate() -> None:
    kinds = [Round(1.0 + 1e-4 * k, Poisson(0.001 + 1e-6 * k)) for k in range(1000)]
    plan = Schedule([Phase(kind, 1) for kind in kinds]) + 7 * Round(3.0, Full())
    found = merged(plan)
    assert len(found.distinct()) == 289
    assert found.rounds == 1007
    assert found.distinct()[Round(3.0, Full())] == 7
    few = Schedule([Phase(kind, 2) for kind in kinds[:100]])
    assert merged(few) is few
    # Of the whole plan epsilon is about that of the kinds that are left.
    assert epsilon(found, delta=1e-5).upper == pytest.approx(
        epsilon(plan, delta=1e-5).upper, rel=1e-3
    )
