"""Rounds that ran elsewhere: recorded whole or not at all, and read as what they are."""

from __future__ import annotations

from pathlib import Path

import pytest

import dpacct
from dpacct import Budget, Ledger, Poisson, Round, Uniform
from dpacct.errors import BudgetExceeded, InvalidParameter, LedgerError
from dpacct.ledger import Guarantee
from dpacct.ledger.disk.rows import Rows
from dpacct.ledger.ledger import MOST_ELSEWHERE
from dpacct.ledger.record.entries import Entry
from dpacct.renyi.odometer import Odometer
from forgeries import read, write

ROUND = Round(1.3, Poisson(0.1))
BUDGET = Budget(8, 1e-5)


def tight(schedule: dpacct.Schedule) -> float:
    return dpacct.epsilon(schedule, delta=1e-5).upper


def test_rounds_that_fit_are_one_plan_read_tightly(ledger: Ledger) -> None:
    schedule = 60 * ROUND + 10 * Round(1.1, Poisson(0.05))
    run = ledger.charge("notebook", schedule, details={"who": "me"})
    assert (run.rounds, run.committed, run.finished, run.plan) == (70, 70, True, schedule)
    assert (run.name, run.details) == ("notebook", {"who": "me"})
    assert run.guarantee is ledger.guarantee is Guarantee.PLANNED
    for spent in (run.epsilon(), ledger.epsilon()):
        assert spent.upper == pytest.approx(tight(schedule), rel=1e-6)
        assert spent.delta == 1e-5
    assert ledger.verify().sound
    with pytest.raises(LedgerError, match="finished"):
        run.reserve(ROUND)


def test_rounds_beside_others_are_read_tightly_by_themselves_only(ledger: Ledger) -> None:
    ledger.start_run("here").reserve(ROUND).commit()
    run = ledger.charge("there", 20 * ROUND)
    assert run.epsilon().upper == pytest.approx(tight(20 * ROUND), rel=1e-6)
    odometer = Odometer(BUDGET)
    odometer.add(ROUND, 21)
    assert ledger.epsilon().upper == odometer.epsilon
    assert ledger.verify().sound


def test_what_does_not_fit_is_refused_and_nothing_is_written(ledger: Ledger) -> None:
    for _ in range(2):
        head = ledger.head
        with pytest.raises(BudgetExceeded, match="the plan of 1000 rounds does not fit"):
            ledger.charge("too much", 1000 * ROUND)
        assert ledger.head == head
        ledger.start_run("here").reserve(ROUND).commit()


def test_what_has_happened_is_recorded_beyond_the_budget(ledger: Ledger) -> None:
    whole = dpacct.calibrate(epsilon=8, delta=1e-5, rounds=40, sampling_rate=0.1)
    ledger.charge("before", whole.schedule)
    plans = [run.plan for run in ledger.runs]
    run = ledger.charge("late news", 400 * ROUND, over_budget=True)
    everything = sum(plans, 400 * ROUND)
    assert (run.committed, run.finished, run.guarantee) == (400, True, Guarantee.ADAPTIVE)
    # It is an upper bound of the truth, and not far above it.
    for spent, truth in ((run.epsilon(), 400 * ROUND), (ledger.epsilon(), everything)):
        assert 8 < tight(truth) <= spent.upper <= 1.35 * tight(truth)
        assert spent.lower == pytest.approx(tight(truth), rel=1e-5)
    # Nothing more is admitted, and the refusal reads what the ledger does.
    with pytest.raises(BudgetExceeded) as refused:
        ledger.start_run("more").reserve(Round(1000.0, Poisson(0.01)))
    assert f"{ledger.upper_epsilon():.4g}"[:5] in str(refused.value)
    assert ledger.remaining(Round(1000.0, Poisson(0.01))) == 0
    found = ledger.verify()
    assert found.sound
    assert "rounds that had run elsewhere were recorded beyond the budget" in found.remarks
    assert ledger.report()["points"][-1]["upper"] == ledger.upper_epsilon()


def test_only_what_was_said_to_be_over_the_budget_may_be(path: Path) -> None:
    """The same entries without the flag are not sound."""
    with Ledger.open(path, BUDGET) as ledger:
        ledger.charge("x", 400 * ROUND, over_budget=True)
    rows = read(path)
    del rows[1].content["data"]["over_budget"]
    write(path, rows)
    with Ledger.open(path) as ledger:
        assert "the rounds charged before it exceed the budget" in ledger.verify().problems[0]


def test_a_failure_in_the_middle_leaves_nothing(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    head, add, count = ledger.head, Rows.add, 0

    def failing(rows: Rows, entry: Entry, closes: int | None) -> None:
        nonlocal count
        count += 1
        if count == 7:
            raise LedgerError("the disk is full")
        add(rows, entry, closes)

    with monkeypatch.context() as patch:
        patch.setattr(Rows, "add", failing)
        with pytest.raises(LedgerError, match="disk is full"):
            ledger.charge("notebook", 10 * ROUND)
    assert count == 7
    assert ledger.head == head
    assert ledger.runs == ()
    assert ledger.charge("notebook", 10 * ROUND).committed == 10
    assert ledger.verify().sound


@pytest.mark.parametrize(
    ("name", "rounds", "wrong"),
    [
        ("", 3 * ROUND, "name"),
        ("x", dpacct.Schedule(), "rounds"),
        ("x", (MOST_ELSEWHERE + 1) * ROUND, "rounds"),
        ("x", 3 * Round(9.0, Uniform(2, 50)), "adjacency"),
    ],
)
def test_bad_input_is_refused_by_name(
    ledger: Ledger, name: str, rounds: dpacct.Schedule, wrong: str
) -> None:
    ledger.charge("first", ROUND)
    head = ledger.head
    with pytest.raises(InvalidParameter) as refused:
        ledger.charge(name, rounds)
    assert refused.value.name == wrong
    assert ledger.head == head


def test_rounds_whose_noise_was_no_secret_take_the_guarantee_with_them(ledger: Ledger) -> None:
    run = ledger.charge("seeded", 3 * ROUND, private=False)
    assert run.epsilon().upper == ledger.epsilon().upper == float("inf")
    assert ledger.guarantee is Guarantee.NONE
