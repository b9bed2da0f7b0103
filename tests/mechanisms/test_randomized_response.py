"""Randomized response with several answers, by enumeration of its outcomes."""

from __future__ import annotations

import itertools

import mpmath
import pytest

import dpacct
from dpacct import RandomizedResponse
from dpacct.errors import InvalidParameter


def exact_delta(log_ratio: float, answers: int, rounds: int, epsilon: float) -> mpmath.mpf:
    """sum over outcomes of (P - e^epsilon Q)_+, where P and Q have the true answers 0 and 1."""
    with mpmath.workdps(40):
        ratio = mpmath.exp(log_ratio)
        first = [ratio, 1, *[1] * (answers - 2)]
        second = [1, ratio, *[1] * (answers - 2)]
        whole = (ratio + answers - 1) ** rounds
        total = mpmath.mpf(0)
        for outcome in itertools.product(range(answers), repeat=rounds):
            p = mpmath.fprod(first[one] for one in outcome)
            q = mpmath.fprod(second[one] for one in outcome)
            total += max(0, p - mpmath.exp(epsilon) * q)
        return total / whole


@pytest.mark.parametrize("answers", [2, 3, 5])
@pytest.mark.parametrize("rounds", [1, 3])
@pytest.mark.parametrize("epsilon", [0.0, 0.4, 1.7])
def test_delta_is_that_of_all_outcomes(answers: int, rounds: int, epsilon: float) -> None:
    plan = rounds * RandomizedResponse(0.9, answers=answers)
    found = dpacct.delta(plan, epsilon=epsilon)
    truth = exact_delta(0.9, answers, rounds, epsilon)
    assert found.lower <= truth * (1 + mpmath.mpf(10) ** -15)
    assert truth <= found.upper * (1 + mpmath.mpf(10) ** -15)
    assert found.upper - found.lower <= 1e-9


def test_more_answers_cost_less_and_two_cost_what_they_did() -> None:
    costs = [
        dpacct.epsilon(20 * RandomizedResponse(0.5, answers=k), delta=1e-6).upper
        for k in (2, 3, 10, 100)
    ]
    assert costs == sorted(costs, reverse=True)
    assert costs[0] == dpacct.epsilon(20 * RandomizedResponse(0.5), delta=1e-6).upper
    assert RandomizedResponse(0.5, answers=2) == RandomizedResponse(0.5)


@pytest.mark.parametrize("answers", [0, 1, 2.5, 10**7, "two"])
def test_a_number_of_answers_that_is_none_is_refused(answers: object) -> None:
    with pytest.raises(InvalidParameter, match="answers"):
        RandomizedResponse(0.5, answers=answers)  # type: ignore[arg-type]
