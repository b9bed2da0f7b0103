"""Compositions: without their tails, of few kinds for many, and what their sums round."""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpacct import Full, Poisson, Round, Schedule, epsilon
from dpacct.numerics.rounding import Bounds
from dpacct.pairs.dominating import Direction, SampledGaussianPair, SymmetrizedPair, proven_pairs
from dpacct.rounds import Phase
from dpacct.tight.composition import (
    MANY,
    Composed,
    Composition,
    PairTable,
    TruncatedComposition,
    above,
    alike,
    cells,
    merged,
)
from dpacct.tight.contour import Contour, epsilon_estimate, tilt_at_delta
from dpacct.tight.laws import Law
from dpacct.tight.panel_laws import lost_mass
from tests.strategies import log_uniform
from tests.tight.compositions import compose

Rounds = list[tuple[float, float, int]]
MIXED: Rounds = [(0.1, 1.3, 100), (0.02, 0.8, 30), (1.0, 9.0, 4)]


@pytest.mark.parametrize("mass", [1e-3, 1e-10, 1e-30, 1e-100])
def test_the_lost_mass_is_that_of_all_rounds(mass):
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
def test_without_a_tail_worth_mentioning_nothing_changes(tilt):
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


def test_several_tilts_are_the_tilts_one_by_one():
    rest = TruncatedComposition.losing(compose(MIXED), 1e-9)
    tilts = np.array([0.5, 2.0, 7.0])
    many = rest.log_moment(tilts)
    assert many.lower.shape == (3,)
    for k, tilt in enumerate(tilts.tolist()):
        one = rest.log_moment(tilt)
        assert (one.lower, one.upper) == (many.lower[k], many.upper[k])
        assert one.lower < one.upper


@given(
    rate=log_uniform(1e-7, 0.5),
    noise=log_uniform(0.2, 300.0),
    rounds=st.integers(1, 10**6),
    mass=log_uniform(1e-20, 1e-2),
    tilt=log_uniform(1e-2, 30.0),
)
def test_a_part_has_less_of_every_moment(rate, noise, rounds, mass, tilt):
    whole = compose([(rate, noise, rounds)])
    rest = TruncatedComposition.losing(whole, mass)
    assert rest.log_moment(tilt).lower <= whole.log_moment(tilt).upper * (1 + 1e-12) + 1e-11


def test_where_tails_can_be_cut_off():
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


def test_a_pair_of_cohorts_loses_both_of_its_ends():
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


KINDS = 800


def plan_of(kinds: int) -> Schedule:
    return Schedule(
        Phase(Round(1.2 + 0.3 * math.sin(k / 80), Poisson(0.06 * 4.0 ** (-k / kinds))), 1 + k % 3)
        for k in range(kinds)
    )


def test_every_round_is_in_one_cell():
    random = np.random.default_rng(5)
    found = cells(PairTable(random.random(1000), random.random(1000), np.ones(1000)))
    assert sorted(np.concatenate(found).tolist()) == list(range(1000))


def test_few_kinds_are_left_alone():
    rows = PairTable(np.full(MANY, 0.1), np.full(MANY, 1.0), np.ones(MANY))
    assert alike(rows) is rows
    assert above(rows) is rows


@pytest.mark.parametrize("direction", Direction)
def test_moments_of_a_sketch(direction):
    whole = Composition.of_schedule(plan_of(KINDS), proven_pairs, direction)
    tilts = np.array([0.5, 3.0])
    exact, most = whole.log_moment(tilts), whole.log_moment_above(tilts)
    assert np.all(exact.upper <= most)
    assert np.all(most <= 1.3 * exact.upper)
    sketch = whole.alike()
    assert len(sketch.sampled.rates) < MANY
    assert sketch.sampled.counts.sum() == whole.sampled.counts.sum()
    assert sketch.log_moment(tilts).upper == pytest.approx(exact.upper, rel=2e-3)


def test_many_kinds_need_few_nodes():
    whole = Composition.of_schedule(plan_of(KINDS), proven_pairs, Direction.REMOVE)
    log_delta = math.log(1e-5)
    tilt, at = tilt_at_delta(whole, log_delta)
    guess = epsilon_estimate(tilt, at, log_delta)
    found = Contour(whole, tilt, guess, log_delta, 0.0, at.variance)
    # Without paths off the line there were 129.
    assert len(found._t) < 80


def test_many_kinds_are_merged_for_an_estimate():
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


class Laws(Composed):
    """Laws of given counts and moments, whatever the tilt."""

    def __init__(
        self, moments: list[tuple[float, Bounds]], precision: float = 1.0, kinds: int = 1
    ) -> None:
        self.precision, self.kinds, self._laws = precision, kinds, list[Law]()
        for count, moment in moments:
            law = Law()
            law.count, law.log_moment = count, moment
            self._laws.append(law)

    def laws(self, tilt: float, frequency: float) -> list[Law]:
        del tilt, frequency
        return self._laws


@pytest.mark.parametrize("scale", [1.0, 0.0], ids=["both ends", "the lower one"])
def test_roundings_of_either_end_are_paid_for(scale):
    """In exact rational numbers, of moments below and above one."""
    rng = np.random.default_rng(4)
    for _ in range(300):
        kinds, precision, tilt = int(rng.integers(1, 9)), scale * rng.exponential(), 3.7
        laws = [
            (
                float(rng.integers(1, 10**9)),
                Bounds(np.array(-rng.exponential()), np.array(scale * rng.normal())),
            )
            for _ in range(kinds)
        ]
        found = Laws(laws, precision, kinds).log_moment(tilt)
        full = Fraction(precision) * Fraction(tilt) * (1 + Fraction(tilt)) / 2
        low, high = (
            full + sum(Fraction(n) * Fraction(float(bounds[end])) for n, bounds in laws)
            for end in (0, 1)
        )
        assert Fraction(float(found.lower)) <= low
        assert Fraction(float(found.upper)) >= high


def test_several_tilts_have_the_shape_that_was_asked_for():
    laws = [(2.0, Bounds(np.array(0.5), np.array(0.5)))]
    found = Laws(laws).log_moment(np.array([1.0, 2.0]))
    assert found.upper == pytest.approx([2.0, 4.0])
    assert found.lower.shape == (2,)
    assert Laws(laws).log_moment(1.0).upper.shape == ()


@pytest.mark.parametrize("rounds", [1, 3, 1000])
def test_roundings_of_sums_of_moments_are_paid_for(rounds):
    """Full participation: n c (1 + c) / (2 sigma^2) is exact as a fraction."""
    for k in range(40):
        noises = [1.0 + 0.37 * k, 2.1 + k / 7]
        kinds = {SampledGaussianPair(1.0, noise, Direction.REMOVE): rounds for noise in noises}
        composition = Composition.of(kinds, Direction.REMOVE)
        tilt = 0.1 + k / 3
        found = composition.log_moment(tilt)
        exact = sum(
            rounds * Fraction(tilt) * (1 + Fraction(tilt)) / (2 * Fraction(noise) ** 2)
            for noise in noises
        )
        assert Fraction(float(found.lower)) <= exact <= Fraction(float(found.upper))
        assert float(found.upper) - float(found.lower) <= 1e-13 * float(exact)
