"""Pairs with finitely many losses around a profile, against delta itself."""

from __future__ import annotations

import math

import numpy as np
import pytest

from dpacct import ApproximateDP, Epoch, Laplace, Poisson, Round, Schedule
from dpacct.pairs.atoms import AtomicPair, profile_of_knots
from dpacct.pairs.dominating import Direction, achieved_pairs, proven_pairs
from dpacct.tight import profiles
from dpacct.tight.composition import Composition
from dpacct.tight.engines import composed_delta
from dpacct.tight.profiles import finite_pairs

PLANS = {
    "Gaussian": 3 * Round(1.5),
    "sampled": 200 * Round(1.0, Poisson(0.02)),
    "one round": 1 * Round(1.0, Poisson(0.1)),
    "both": 50 * Round(1.0, Poisson(0.05)) + 1 * Laplace(epsilon=0.3),
    "epochs": 2 * Epoch(1.0, 20),
    "a promise": 20 * Round(1.0, Poisson(0.05)) + 1 * ApproximateDP(0.1, 1e-4),
}


# Each plan, and one of them in both directions.
@pytest.mark.sampled(7)
@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("direction", list(Direction))
def test_delta_lies_between_both_pairs(name: str, direction: Direction) -> None:
    plan = PLANS[name]
    composition = Composition.of_schedule(plan, proven_pairs, direction)
    above, below = finite_pairs(plan, proven_pairs)[direction]
    last = above.largest_loss
    # Epsilons that are not knots.
    for epsilon in last * np.random.default_rng(1).uniform(0.0, 0.7, 4):
        exact = composed_delta(composition, float(epsilon))
        high, low = above.delta(float(epsilon)), below.delta(float(epsilon))
        assert low.lower <= exact.upper
        assert exact.lower <= high.upper
        if exact.lower > 1e-12:
            assert high.upper <= exact.upper * 1.02 + 1e-6
            assert low.lower >= exact.lower * 0.9 - 1e-4


def test_both_pairs_have_the_profile_left_of_one() -> None:
    # E_Q (k - L)_+ for k < 1 is k times delta of the other direction.
    plan = 200 * Round(1.0, Poisson(0.02))
    add = Composition.of_schedule(plan, proven_pairs, Direction.ADD)
    for pair, sign in zip(finite_pairs(plan, proven_pairs)[Direction.REMOVE], (1, -1), strict=True):
        q = pair.masses * np.exp(-pair.losses)
        for epsilon in (0.1, 0.3, 0.6):
            k = math.exp(-epsilon)
            below = float(q @ np.maximum(0.0, k - np.exp(pair.losses)))
            exact = k * composed_delta(add, epsilon).upper
            assert sign * (below - exact) >= -1e-9
            assert below == pytest.approx(exact, rel=1e-3)


def test_a_chord_of_lower_values_would_be_above_the_profile() -> None:
    # Without Rule 2 the lower pair would be the hull of lower ends, which is above in between.
    plan = Schedule(1 * Round(1.0))
    composition = Composition.of_schedule(plan, achieved_pairs, Direction.REMOVE)
    epsilons = np.linspace(0.0, 12.0, 60)
    lower = np.array([composed_delta(composition, e).lower for e in epsilons.tolist()])
    lower[-1] = 0.0
    pair = AtomicPair(*profile_of_knots(epsilons, lower, least=True))
    middle = float(epsilons[20] + epsilons[21]) / 2
    assert pair.delta(middle).lower > composed_delta(composition, middle).upper
    below = finite_pairs(plan, achieved_pairs)[Direction.REMOVE][1]
    for epsilon in np.random.default_rng(2).uniform(0.0, 8.0, 200).tolist():
        assert below.delta(epsilon).lower <= composed_delta(composition, epsilon).upper


def test_more_knots_close_the_gap_as_their_square(monkeypatch: pytest.MonkeyPatch) -> None:
    widths: list[float] = []
    for knots in (400, 800, 1600):
        monkeypatch.setattr(profiles, "_KNOTS", knots)
        finite_pairs.cache_clear()
        above, below = finite_pairs(Schedule(2 * Round(1.0)), proven_pairs)[Direction.REMOVE]
        widths.append(above.delta(5.003).upper / below.delta(5.003).lower - 1)
    finite_pairs.cache_clear()
    assert widths[0] / widths[1] == pytest.approx(4.0, rel=0.3)
    assert widths[1] / widths[2] == pytest.approx(4.0, rel=0.3)
