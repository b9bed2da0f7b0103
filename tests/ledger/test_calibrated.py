"""Noise that calibrate finds fits into a ledger of the same budget, for every kind of round."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import dpacct
from dpacct import Budget, BudgetExceeded, Full, Ledger, Poisson, Round, Schedule, Uniform, best_of
from dpacct.correlated import Correlated, square_root
from dpacct.epochs import Epoch, ShuffledEpoch

KINDS: dict[str, Any] = {
    "poisson": 60 * Round(1.0, Poisson(0.1)),
    "poisson, replace-one": 20 * Round(2.0, Poisson(0.1), "replace-one"),
    "full": 20 * Round(1.0, Full()),
    "fixed size": 2 * Round(3.0, Uniform(27, 100)),
    "fixed size, add-remove": 20 * Round(2.0, Uniform(27, 100), "add-remove"),
    "shuffled epoch": 2 * ShuffledEpoch(3.0, 20),
    "correlated": 1 * Correlated(2.0, square_root(rounds=20, bands=4), min_separation=5),
    "statistics beside rounds": 20 * Round(2.0, Poisson(0.1)) + 3 * dpacct.Laplace(epsilon=0.1),
}
LONG: dict[str, Any] = {
    "tuned": 1 * best_of(10 * Round(4.0, Poisson(0.1)), "geometric:3"),
    "epoch": 2 * Epoch(2.0, 20),
    "records": 20 * Round(4.0, Poisson(0.05, records=3)),
    "truncated": 20 * Round(4.0, Poisson(0.05, max_cohort=50, num_clients=500)),
    "fixed size, zero-out": 20 * Round(2.0, Uniform(27, 100), "zero-out"),
    "one of many": 20 * Round(2.0, Uniform(1, 20)),
    "one of many, zero-out": 20 * Round(2.0, Uniform(1, 20), "zero-out"),
    "two phases": 15 * Round(3.0, Uniform(5, 100)) + 5 * Round(4.0, Uniform(9, 100)),
    "sixty rounds": 60 * Round(6.0, Uniform(27, 100)),
}


def check(path: Path, schedule: Schedule, epsilon: float) -> None:
    found = dpacct.calibrate(schedule=schedule, epsilon=epsilon, delta=1e-6)
    with Ledger.open(path, Budget(epsilon, 1e-6)) as ledger:
        ledger.charge(found.schedule, name="calibrated", accountant="tight")
        assert ledger.upper_epsilon() <= epsilon
        assert ledger.upper_epsilon() == pytest.approx(found.epsilon.upper, rel=1e-5)
        assert ledger.verify().sound


@pytest.mark.parametrize("kind", list(KINDS))
def test_what_calibrate_finds_fits(tmp_path: Path, kind: str) -> None:
    check(tmp_path / "x", KINDS[kind], 3.0)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.8, 3.0])
@pytest.mark.parametrize("kind", list(LONG))
def test_what_calibrate_finds_in_seconds_fits(tmp_path: Path, kind: str, epsilon: float) -> None:
    check(tmp_path / "x", LONG[kind], epsilon)


def test_the_refusal_names_the_promise_about_memories(tmp_path: Path) -> None:
    plan = 8 * Round(4.0, Uniform(27, 100))
    budget = Budget(dpacct.epsilon(plan, delta=1e-6).upper * (1 + 1e-6), 1e-6)
    with Ledger.open(tmp_path / "x", budget) as ledger:
        with pytest.raises(BudgetExceeded, match="no client remembers whether it took part"):
            ledger.charge(plan, name="by pairs")
        ledger.charge(plan, name="by the game", accountant="tight")
        # Rounds of any other kind are charged by pairs whatever is said.
        with pytest.raises(BudgetExceeded) as refused:
            ledger.charge(9 * Round(1.0, Full(), "replace-one"), name="full")
        assert "remembers" not in str(refused.value)
