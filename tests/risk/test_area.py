"""The largest AUC: above every attack that can be written down, and next to the exact one."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr, ndtri

from dpacct import risk, tradeoff
from dpacct.accountant import find_accountant
from dpacct.budget import Interval
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


def test_known_areas_of_a_guarantee():
    assert risk.AnyMechanism(1.0, 1e-12).auc() == pytest.approx(0.7311, abs=1e-4)
    assert risk.AnyMechanism(2.0, 1e-12).auc() == pytest.approx(0.8808, abs=1e-4)


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
