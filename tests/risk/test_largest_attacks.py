"""The largest AUC, and what any guarantee lets out, against attacks in closed form."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from dpacct import epsilon, risk, tradeoff
from dpacct.accountant import find_accountant
from dpacct.budget import Interval
from dpacct.errors import InvalidParameter
from dpacct.risk import AnyMechanism
from dpacct.risk.attacks import Attacks
from dpacct.risk.measures import Accusations, accusations
from dpacct.rounds import Full, Poisson, Round, Schedule
from tests.strategies import FEWER


@FEWER
@given(st.floats(0.02, 8.0), st.integers(1, 50))
def test_everybody_in_every_round_has_the_area_of_a_gaussian(mu, rounds):
    plan = rounds * Round(math.sqrt(rounds) / mu, Full())
    truth = float(ndtr(mu / 2**0.5))
    found = risk.largest_auc(plan)
    assert truth <= found <= 0.5 + (truth - 0.5) * 1.003


@pytest.mark.sampled(1)
@pytest.mark.parametrize("plan", [300 * Round(1.0, Poisson(0.1)), 60 * Round(1.1, Poisson(0.3))])
def test_sampled_rounds_have_at_least_the_area_below_what_is_achieved(plan):
    rates = [*np.linspace(0, 1, 41)]
    curve = tradeoff(plan, fpr=rates)
    upper = [tpr.upper for tpr in curve.tpr]
    steps = sum(width * tpr for width, tpr in zip(np.diff(rates), upper[1:], strict=True))
    found = risk.largest_auc(plan)
    # One direction alone: at least all its lines, at most what both directions allow.
    assert 0.5 + risk.advantage(plan).lower / 2 <= found <= steps + 1e-9
    assert found <= curve.tpr[20].upper


@given(st.floats(0.02, 8.0), st.floats(1e-4, 1.0))
def test_lines_bound_the_rates_of_a_gaussian(mu, fpr):
    found = accusations(Attacks(1 * Round(1 / mu, Full()), find_accountant("tight"))).tpr(fpr)
    truth = float(ndtr(mu + ndtri(fpr)))
    assert truth * (1 - 1e-12) <= found <= max(1.06 * truth, fpr)


def test_no_round_leaves_one_half():
    assert risk.largest_auc(Schedule()) == pytest.approx(0.5, abs=1e-9)
    assert risk.largest_auc(Round(1e6, Full())) == pytest.approx(0.5, abs=1e-6)
    assert risk.largest_auc(1000 * Round(0.01, Full())) == pytest.approx(1.0)


@given(st.floats(0.0, 30.0), st.floats(1e-9, 0.5))
def test_any_mechanism_has_the_area_below_its_largest_rates(epsilon, delta):
    whoever = risk.AnyMechanism(epsilon, delta)
    rates = np.linspace(0, 1, 2001)
    values = np.array([whoever.tpr(float(rate)) for rate in rates])
    # Concave: trapezoids stay below it, and right ends above.
    low = float(np.sum((values[1:] + values[:-1]) / 2) / 2000)
    high = float(np.sum(values[1:]) / 2000)
    assert low - 1e-12 <= whoever.auc() <= high


def test_a_line_that_no_attack_touches_takes_nothing_from_the_area():
    # The second line lies above the least of the others everywhere.
    lines = ((10.0, 0.0), (5.0, 0.9), (0.0, 0.8))
    fpr = np.linspace(0, 1, 100_001)
    least = np.min([np.minimum(slope * fpr + value, 1.0) for slope, value in lines], axis=0)
    assert Accusations(lines, 1.0).auc >= float(least.mean()) - 1e-4


def test_lines_are_what_is_proven_and_not_what_is_achieved():
    proven = SimpleNamespace(bound=lambda *_: Interval(0.0, 1.0))
    attacks = SimpleNamespace(upper_advantage=lambda: 0.5, proven=lambda _: proven)
    assert accusations(attacks).auc == 1.0


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
