"""What (epsilon, delta) alone allows, against the one mechanism that is no better than that."""

from __future__ import annotations

import math

import mpmath
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dpacct
from dpacct import Poisson, Round
from dpacct.accountant import find_accountant
from dpacct.risk.attacks import Attacks
from dpacct.risk.guarantee import (
    advantage_of_guarantee,
    guess_of_guarantee,
    tpr_of_guarantee,
)

EPSILONS = st.floats(0, 50) | st.floats(0, 1e-6)
DELTAS = st.floats(0, 0.2) | st.just(1e-5)
SHARES = st.floats(1e-9, 1 - 1e-9)


def worst(epsilon: float, delta: float) -> tuple[list[mpmath.mpf], list[mpmath.mpf]]:
    """Laws of four outcomes under both data sets, most telling first, to 50 digits."""
    e, d = mpmath.exp(mpmath.mpf(epsilon)), mpmath.mpf(delta)
    p = [d, (1 - d) * e / (1 + e), (1 - d) / (1 + e), mpmath.mpf(0)]
    return p, p[::-1]


def best_tpr(epsilon: float, delta: float, fpr: float) -> mpmath.mpf:
    """By Neyman and Pearson: outcomes are accused in the order of their likelihood ratio."""
    left, found = mpmath.mpf(fpr), mpmath.mpf(0)
    for p, q in zip(*worst(epsilon, delta), strict=True):
        share = mpmath.mpf(1) if q <= left else left / q
        found, left = found + share * p, left - share * q
    return found


@given(EPSILONS, DELTAS, SHARES)
def test_no_attack_on_the_worst_mechanism_exceeds_the_bound(
    epsilon: float, delta: float, fpr: float
) -> None:
    with mpmath.workdps(50):
        truth = best_tpr(epsilon, delta, fpr)
        found = tpr_of_guarantee(epsilon, delta, fpr)
        assert truth <= found <= min(1.0, float(truth) + 1e-12)


@given(EPSILONS, DELTAS, SHARES)
def test_advantage_and_guess_are_those_of_the_worst_mechanism(
    epsilon: float, delta: float, prior: float
) -> None:
    with mpmath.workdps(50):
        p, q = worst(epsilon, delta)
        advantage = sum(max(a - b, 0) for a, b in zip(p, q, strict=True))
        belief = mpmath.mpf(prior)
        guess = sum(max(belief * a, (1 - belief) * b) for a, b in zip(p, q, strict=True))
        found = advantage_of_guarantee(epsilon, delta)
        assert advantage <= found <= min(1.0, float(advantage) + 1e-12)
        right = guess_of_guarantee(epsilon, delta, prior)
        assert guess <= right <= min(1.0, float(guess) + 1e-12)


def test_without_a_promise_everything_is_found_out() -> None:
    assert tpr_of_guarantee(math.inf, 1e-5, 0.001) == 1.0
    assert advantage_of_guarantee(math.inf, 1e-5) == 1.0
    assert guess_of_guarantee(math.inf, 1e-5, 0.5) == 1.0
    assert tpr_of_guarantee(0.0, 0.0, 0.25) == pytest.approx(0.25)
    assert tpr_of_guarantee(1e6, 0.0, 1e-300) == 1.0


@pytest.mark.parametrize("fpr", [1e-4, 0.01, 0.3])
def test_a_mechanism_is_better_than_its_promise(fpr: float) -> None:
    plan = 100 * Round(1.2, Poisson(0.05))
    epsilon = dpacct.epsilon(plan, delta=1e-5).upper
    attacks = Attacks(plan, find_accountant("tight"))
    assert attacks.upper_tpr(fpr) < tpr_of_guarantee(epsilon, 1e-5, fpr)
    assert attacks.upper_advantage() < advantage_of_guarantee(epsilon, 1e-5)
