"""The largest loss of a release: a bound of its pairs, whose decimals add up exactly."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpacct
from dpacct import (
    ApproximateDP,
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    Laplace,
    PureDP,
    RandomizedResponse,
    Round,
    ZeroConcentratedDP,
    best_of,
)
from dpacct.errors import InvalidParameter
from dpacct.numerics.rounding import decimal, decimal_above
from dpacct.pairs.dominating import Direction, basic_composition, loss_bound, proven_pairs
from tests.strategies import log_uniform

KINDS = (
    Laplace, lambda e: Laplace(epsilon=e), lambda e: Laplace(epsilon=e, adjacency="replace-one"),
    PureDP, RandomizedResponse, ExponentialMechanism, lambda e: ApproximateDP(e, 1e-6),
    lambda e: DiscreteLaplace(1 / e, 1), lambda e: DiscreteLaplace(1 / e, (1, -2, 0)),
)  # fmt: skip


UNBOUNDED = (
    Round(1.0), DiscreteGaussian(2.0), ZeroConcentratedDP(0.1), best_of(Laplace(1.0), "poisson:3"),
)  # fmt: skip


@given(log_uniform(1e-2, 20.0), st.sampled_from(KINDS))
def test_no_finite_loss_of_a_pair_exceeds_the_bound(epsilon, kind):
    release = kind(epsilon)
    bound = loss_bound(release)
    for direction in Direction:
        losses = masses = 0.0
        for pair, count in proven_pairs(release, direction).items():
            losses += count * pair.largest_loss
            masses += count * pair.infinite_mass
        # The pair's own bound has rounding in it.
        assert losses * (1 - 1e-12) <= float(bound.epsilon)
        assert Fraction(masses) == Fraction(float(bound.delta))
    # The bound is no larger than need be, and holds at its delta.
    assert float(bound.epsilon) <= losses * (1 + 1e-12)


@given(st.integers(1, 3000), st.sampled_from(KINDS[1:7]), st.integers(1, 100))
def test_releases_of_a_declared_epsilon_fit_into_its_decimal_multiples(cents, kind, count):
    total = basic_composition(count * kind(cents / 100))
    assert total.epsilon <= count * Fraction(cents, 100)
    assert total.epsilon >= count * Fraction(cents, 100) * (1 - Fraction(1, 10**15))


@pytest.mark.parametrize(
    "release",
    [
        Round(1.0),
        DiscreteGaussian(2.0),
        ZeroConcentratedDP(0.1),
        best_of(Laplace(1.0), "poisson:3"),
    ],
)
def test_no_bound_is_claimed_where_none_is_known(release):
    assert loss_bound(release) is None
    assert basic_composition(3 * Laplace(1.0) + release) is None


def test_promises_add_up_with_their_deltas():
    plan = 3 * ApproximateDP(0.1, 1e-7) + 2 * Laplace(epsilon=0.11) + 7 * PureDP(0.1)
    found = basic_composition(plan)
    assert found.delta == Fraction(3, 10**7)
    assert decimal(1.2) - Fraction(1, 10**15) <= found.epsilon <= Fraction(122, 100)
    # Never below the tight accountant at the same delta.
    at = dpacct.epsilon(plan, delta=float(found.delta) * 1.01)
    assert at.lower <= float(found.epsilon)
    assert dpacct.delta(plan, epsilon=float(found.epsilon)).upper <= float(found.delta) * (1 + 1e-9)


@given(
    st.lists(st.tuples(st.integers(0, 300), st.integers(1, 99)), min_size=1, max_size=4),
    st.lists(st.integers(1, 200), max_size=3),
)
def test_promises_hold_at_their_own_delta(promised, pure):
    promises = [1 * ApproximateDP(cents / 100, nanos * 1e-9) for cents, nanos in promised]
    plan = sum((1 * Laplace(epsilon=cents / 100) for cents in pure), sum(promises[1:], promises[0]))
    total = float(Fraction(sum(cents for cents, _ in promised) + sum(pure), 100))
    mass = decimal_above(sum(decimal(nanos * 1e-9) for _, nanos in promised))
    found = dpacct.epsilon(plan, delta=mass)
    assert found.lower <= found.upper <= total
    assert found.upper == total or plan.rounds > 1
    assert dpacct.delta(plan, epsilon=total).upper <= mass
    for accountant in ("tight", "pairs"):
        with pytest.raises(InvalidParameter, match="no epsilon is enough"):
            dpacct.epsilon(plan, delta=mass * 0.9, accountant=accountant)
        with pytest.raises(InvalidParameter, match="no epsilon is enough"):
            dpacct.epsilon(plan + Round(1.0), delta=mass * 0.99, accountant=accountant)


def test_what_has_no_larger_loss_has_no_delta_beyond_it():
    assert dpacct.delta(3 * Laplace(1.0) + 2 * Laplace(2.0), epsilon=4).upper == 0.0
    assert dpacct.delta(3 * Laplace(1.0) + 2 * Laplace(2.0), epsilon=3.9).upper > 0.0
    assert dpacct.epsilon(10 * PureDP(0.1), delta=1e-100).upper == 1.0
