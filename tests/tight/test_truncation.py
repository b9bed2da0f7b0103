"""Compositions without their tails: what is lost, and that nothing else changes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpacct.pairs.dominating import Direction, SampledGaussianPair, SymmetrizedPair
from dpacct.tight.composition import Composition, TruncatedComposition
from dpacct.tight.panel_laws import lost_mass
from tests.strategies import log_uniform

Rounds = list[tuple[float, float, int]]
MIXED: Rounds = [(0.1, 1.3, 100), (0.02, 0.8, 30), (1.0, 9.0, 4)]


def compose(rounds: Rounds, direction: Direction = Direction.REMOVE) -> Composition:
    pairs = {SampledGaussianPair(q, s, direction): n for q, s, n in rounds}
    return Composition.of(pairs, direction)


@pytest.mark.parametrize("mass", [1e-3, 1e-10, 1e-30, 1e-100])
def test_the_lost_mass_is_that_of_all_rounds(mass: float) -> None:
    whole = compose(MIXED)
    rest = TruncatedComposition.losing(whole, mass)
    lost = sum(
        n * lost_mass(q, s, end) for (q, s, n), end in zip(MIXED[:2], rest.ends, strict=True)
    )
    assert rest.lost == pytest.approx(lost, rel=1e-12)
    assert rest.lost >= lost
    assert 0.9 * mass <= rest.lost <= mass * (1 + 1e-9)
    assert rest.precision == whole.precision
    assert rest.kinds == whole.kinds


@pytest.mark.parametrize("tilt", [0.5, 4.0, 9.0])
def test_without_a_tail_worth_mentioning_nothing_changes(tilt: float) -> None:
    whole = compose(MIXED)
    rest = TruncatedComposition.losing(whole, 1e-100)
    mine, other = rest.log_moment(tilt), whole.log_moment(tilt)
    # Two brackets of nearly the same number.
    assert mine.lower <= other.upper + 1e-12
    assert other.lower <= mine.upper + 1e-12
    assert mine.upper - mine.lower <= 1e-9
    first, second = rest.cumulants(tilt), whole.cumulants(tilt)
    assert first.log_moment == pytest.approx(second.log_moment, rel=1e-7)
    assert first.mean == pytest.approx(second.mean, rel=1e-6)
    assert first.variance == pytest.approx(second.variance, rel=1e-6)


def test_several_tilts_are_the_tilts_one_by_one() -> None:
    rest = TruncatedComposition.losing(compose(MIXED), 1e-9)
    tilts = np.array([0.5, 2.0, 7.0])
    many = rest.log_moment(tilts)
    assert many.lower.shape == (3,)
    for k, tilt in enumerate(tilts.tolist()):
        one = rest.log_moment(tilt)
        assert (one.lower, one.upper) == (many.lower[k], many.upper[k])
        assert one.lower < one.upper


@settings(max_examples=20)
@given(
    rate=log_uniform(1e-7, 0.5),
    noise=log_uniform(0.2, 300.0),
    rounds=st.integers(1, 10**6),
    mass=log_uniform(1e-20, 1e-2),
    tilt=log_uniform(1e-2, 30.0),
)
def test_a_part_has_less_of_every_moment(
    rate: float, noise: float, rounds: int, mass: float, tilt: float
) -> None:
    whole = compose([(rate, noise, rounds)])
    rest = TruncatedComposition.losing(whole, mass)
    assert rest.log_moment(tilt).lower <= whole.log_moment(tilt).upper * (1 + 1e-12) + 1e-11


def test_where_tails_can_be_cut_off() -> None:
    assert TruncatedComposition.applies(compose(MIXED))
    assert TruncatedComposition.applies(compose([(0.5, 1.0, 1)]))
    assert not TruncatedComposition.applies(compose([(0.51, 1.0, 1)]))
    assert TruncatedComposition.applies(compose([(0.1, 1.0, 1)], Direction.ADD))
    assert not TruncatedComposition.applies(compose([(1.0, 1.0, 5)]))
    assert not TruncatedComposition.applies(compose([(0.1, 1.0 + k, 1) for k in range(41)]))
    both = {SampledGaussianPair(0.1, 1.0, Direction.REMOVE): 1, SymmetrizedPair(0.6, 1.0): 1}
    assert not TruncatedComposition.applies(Composition.of(both, Direction.REMOVE))
    both = {SampledGaussianPair(0.1, 1.0, Direction.REMOVE): 1, SymmetrizedPair(0.4, 1.0): 1}
    assert TruncatedComposition.applies(Composition.of(both, Direction.REMOVE))
    # The pair of C_q is the same in both directions.
    alone = Composition.of({SymmetrizedPair(0.4, 1.0): 1}, Direction.ADD)
    assert TruncatedComposition.applies(alone)


def test_a_pair_of_cohorts_loses_both_of_its_ends() -> None:
    whole = Composition.of({SymmetrizedPair(0.05, 1.2): 200}, Direction.REMOVE)
    rest = TruncatedComposition.losing(whole, 1e-6)
    (end,) = rest.ends
    assert rest.lost == pytest.approx(400 * lost_mass(0.05, 1.2, end), rel=1e-9)
    # At c -> 0 the moment is the mass, of which only what is lost is missing.
    missing = -float(rest.log_moment(1e-9).lower)
    assert 0.5 * rest.lost <= missing + 1e-8
    assert missing <= rest.lost + 1e-8
    tilts = np.array([0.5, 2.0, 3.0])
    less, more = rest.log_moment(tilts), whole.log_moment(tilts)
    assert np.all(less.lower <= more.upper)
    fine = TruncatedComposition.losing(whole, 1e-60).log_moment(tilts)
    assert np.all(fine.lower <= more.upper)
    assert np.all(more.lower <= fine.upper + 1e-12)
