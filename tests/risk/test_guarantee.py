"""What any mechanism with a guarantee lets out: against its region of attacks, corner by corner."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpacct import Poisson, Round, epsilon, risk
from dpacct.errors import InvalidParameter
from dpacct.risk import AnyMechanism

EPSILONS = st.floats(0.0, 60.0)
DELTAS = st.floats(1e-12, 0.5)
RATES = st.floats(0.0, 1.0)


def randomized_response(epsilon: float, delta: float) -> list[tuple[float, float]]:
    """Probabilities of its outcomes under both data sets, surest accusations first."""
    share = (1 - delta) / (1 + math.exp(-epsilon))
    rest = (1 - delta) * math.exp(-epsilon) / (1 + math.exp(-epsilon))
    return [(delta, 0.0), (share, rest), (rest, share), (0.0, delta)]


@given(epsilon=EPSILONS, delta=DELTAS)
def test_randomized_response_reaches_the_advantage(epsilon, delta):
    outcomes = randomized_response(epsilon, delta)
    reached = sum(max(0.0, p - q) for p, q in outcomes)
    found = AnyMechanism(epsilon, delta).advantage()
    assert reached <= found * (1 + 1e-15) + 1e-15
    assert found == pytest.approx(reached, abs=1e-12)


@given(epsilon=EPSILONS, delta=DELTAS, fpr=RATES)
def test_randomized_response_reaches_the_true_positive_rate(epsilon, delta, fpr):
    left, reached = fpr, 0.0
    for p, q in randomized_response(epsilon, delta):
        share = 1.0 if q <= left else left / q
        reached, left = reached + share * p, left - share * q
    found = AnyMechanism(epsilon, delta).tpr(fpr)
    assert reached <= found + 1e-12
    assert found == pytest.approx(min(1.0, reached), abs=1e-9)


@given(epsilon=EPSILONS, delta=DELTAS, prior=st.floats(1e-6, 1 - 1e-6))
def test_randomized_response_reaches_the_best_guess(epsilon, delta, prior):
    outcomes = randomized_response(epsilon, delta)
    reached = sum(max(prior * p, (1 - prior) * q) for p, q in outcomes)
    found = AnyMechanism(epsilon, delta).guess(prior)
    assert found == pytest.approx(reached, abs=1e-12)


def test_a_mechanism_lets_out_no_more_than_any_with_its_guarantee():
    plan = 300 * Round(2.0, Poisson(0.1))
    for delta in (1e-3, 1e-5):
        known = AnyMechanism(epsilon(plan, delta=delta).upper, delta)
        assert risk.advantage(plan).lower < known.advantage()
        for fpr in (1e-4, 0.01, 0.5):
            assert risk.true_positive_rate(plan, fpr=fpr).lower < known.tpr(fpr)
        assert risk.best_guess(plan, prior=0.1).lower < known.guess(0.1)


def test_the_ends_of_the_range():
    assert AnyMechanism(0.0, 1e-9).advantage() == pytest.approx(1e-9, rel=1e-5)
    assert AnyMechanism(1e5, 1e-9).advantage() == 1.0
    assert AnyMechanism(1e5, 1e-9).tpr(0.0) == pytest.approx(1e-9)
    assert AnyMechanism(1e5, 1e-9).tpr(1e-90) == 1.0
    assert AnyMechanism(1.0, 0.1).tpr(1.0) == 1.0


@pytest.mark.parametrize(("epsilon", "delta"), [(-1, 0.1), (1, 0), (1, 1), (math.nan, 0.1)])
def test_impossible_guarantees_are_refused(epsilon, delta):
    with pytest.raises(InvalidParameter):
        AnyMechanism(epsilon, delta)
