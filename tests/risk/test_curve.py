"""Curves of attack rates: as proven as single rates, and nearly as sharp."""

from __future__ import annotations

import pytest

from dpacct import Full, Poisson, Round
from dpacct.accountant import find_accountant
from dpacct.risk.attacks import Attacks
from dpacct.rounds import Schedule

RATES = [1e-4 ** (1 - k / 32) for k in range(32)]


@pytest.mark.parametrize(
    "plan",
    [
        300 * Round(1.0, Poisson(0.1)),
        100 * Round(1.5, Poisson(0.02)),
        20 * Round(4.0, Full()),
    ],
    ids=repr,
)
def test_a_curve_is_as_sharp_as_a_chart_and_never_below_the_best_attack(plan: Schedule) -> None:
    accountant = find_accountant("tight")
    curve = Attacks(plan, accountant).curve(RATES)
    attacks = Attacks(plan, accountant)
    for fpr, found in [*zip(RATES, curve, strict=True)][::5]:
        exact = attacks.tpr(fpr)
        # The exact lower bound is achieved, so no proven upper bound lies below it.
        assert exact.lower <= found.upper <= 1.03 * exact.upper
        assert 0.8 * exact.lower <= found.lower <= exact.upper
