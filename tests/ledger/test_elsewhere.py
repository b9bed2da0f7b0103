"""Rounds that ran elsewhere, rounds that a process left behind, and rows of correlated noise."""

from __future__ import annotations

from pathlib import Path

import pytest

import dpacct
from dpacct import Budget, Ledger, Poisson, Round, Uniform
from dpacct.display import up
from dpacct.errors import BudgetExceeded, InvalidParameter, LedgerError
from dpacct.ledger import Event, Guarantee
from dpacct.ledger.writing import Transaction
from dpacct.renyi.odometer import Odometer
from forgeries import read, write
from ledgers import BUDGET, ROUND

FULL = Round(9.0)


def tight(schedule: dpacct.Schedule) -> float:
    return dpacct.epsilon(schedule, delta=1e-5).upper


def test_rounds_that_fit_are_one_plan_read_tightly(ledger: Ledger) -> None:
    schedule = 30 * ROUND + 10 * Round(1.1, Poisson(0.05))
    run = ledger.charge("notebook", schedule, details={"who": "me"})
    assert (run.rounds, run.committed, run.finished, run.plan) == (40, 40, True, schedule)
    assert (run.name, run.details) == ("notebook", {"who": "me"})
    assert run.guarantee is ledger.guarantee is Guarantee.PLANNED
    for spent in (run.epsilon(), ledger.epsilon()):
        assert spent.upper == pytest.approx(tight(schedule), rel=1e-6)
        assert spent.delta == 1e-5
    # Beside other rounds they are read tightly by themselves only.
    ledger.start_run("here").reserve(ROUND).commit()
    odometer = Odometer(BUDGET)
    odometer.add(ROUND, 31)
    odometer.add(Round(1.1, Poisson(0.05)), 10)
    # At seven eighths of delta, since an eighth is set aside for the plan.
    assert odometer.epsilon < ledger.epsilon().upper < odometer.epsilon * 1.02
    assert run.epsilon().upper == pytest.approx(tight(schedule), rel=1e-6)
    assert ledger.verify().sound
    with pytest.raises(LedgerError, match="finished"):
        run.reserve(ROUND)


def test_rounds_that_do_not_fit_are_rejected_and_nothing_is_written(ledger: Ledger) -> None:
    for _ in range(2):
        head = ledger.head
        with pytest.raises(BudgetExceeded, match="the plan of 1,000 rounds does not fit"):
            ledger.charge("too much", 1000 * ROUND)
        assert ledger.head == head
        ledger.start_run("here").reserve(ROUND).commit()


def test_what_has_happened_is_recorded_beyond_the_budget(path: Path) -> None:
    with Ledger.open(path, Budget(2, 1e-5)) as ledger:
        before = dpacct.calibrate(epsilon=2, delta=1e-5, rounds=9, sampling_rate=1.0).schedule
        ledger.charge("before", before)
        run = ledger.charge("late news", 90 * FULL, over_budget=True)
        assert (run.committed, run.finished, run.guarantee) == (90, True, Guarantee.ADAPTIVE)
        # It is an upper bound of the truth, and not far above it.
        for spent, truth in ((run.epsilon(), 90 * FULL), (ledger.epsilon(), before + 90 * FULL)):
            assert 2 < tight(truth) <= spent.upper <= 1.35 * tight(truth)
            assert spent.lower == pytest.approx(tight(truth), rel=1e-5)
        # Nothing more is admitted, and the refusal reads what the ledger does.
        tiny = Round(1000.0, Poisson(0.01))
        with pytest.raises(BudgetExceeded) as refused:
            ledger.start_run("more").reserve(tiny)
        assert up(ledger.upper_epsilon()) in str(refused.value)
        assert ledger.remaining(tiny) == 0
        found = ledger.verify()
        assert found.sound
        assert "rounds that had run elsewhere were recorded beyond the budget" in found.remarks
        assert ledger.report()["points"][-1]["upper"] == ledger.upper_epsilon()
    # The same entries without the flag are not sound.
    rows = read(path)
    for row in rows:
        row.content["data"].pop("over_budget", None)
    write(path, rows)
    with Ledger.open(path) as ledger:
        assert "the rounds charged before it exceed the budget" in ledger.verify().problems[0]


@pytest.mark.parametrize(
    ("name", "rounds", "wrong"),
    [
        ("", 3 * ROUND, "name"),
        ("x", dpacct.Schedule(), "rounds"),
        ("x", 3 * Round(9.0, Uniform(2, 50)), "adjacency"),
    ],
)
def test_bad_input_is_rejected_by_name(
    ledger: Ledger, name: str, rounds: dpacct.Schedule, wrong: str
) -> None:
    ledger.charge("first", ROUND)
    head = ledger.head
    with pytest.raises(InvalidParameter) as refused:
        ledger.charge(name, rounds)
    assert (refused.value.name, ledger.head) == (wrong, head)


def test_rounds_whose_noise_was_no_secret_take_the_guarantee_with_them(ledger: Ledger) -> None:
    run = ledger.charge("seeded", 3 * ROUND, private=False)
    assert run.epsilon().upper == ledger.epsilon().upper == float("inf")
    assert ledger.guarantee is Guarantee.NONE


# A round that a process left behind counts once, and one process releases it.

EVENT = Event(Round(2.0, Poisson(0.1)), details={"round": 1, "norms": [0.5, 1.0]})


def left(path: Path, plan: int | None = 5) -> int:
    """A run whose process died in its first round."""
    with Ledger.open(path, BUDGET) as ledger:
        ticket = ledger.start_run("a", plan=plan and plan * EVENT.charged).reserve(EVENT)
        ticket.draw()
    return ticket.number


@pytest.mark.parametrize("plan", [5, None])
def test_it_is_settled_later_and_counts_once(path: Path, plan: int | None) -> None:
    number = left(path, plan)
    with Ledger.open(path) as ledger:
        run = ledger.resume_run(1)
        ticket = run.unsettled()
        assert ticket is not None
        assert (ticket.number, ticket.state) == (number, "drawn")
        with pytest.raises(LedgerError, match="counts as spent"):
            ticket.abandon("changed my mind")
        ticket.commit()
        assert (run.rounds, run.committed, ledger.rounds) == (1, 1, 1)
        assert run.unsettled() is None
        run.reserve(EVENT).commit()
        assert (run.rounds, run.committed) == (2, 2)
        assert ledger.verify().sound


def test_of_two_one_commits(path: Path) -> None:
    with Ledger.open(path, BUDGET) as ledger:
        ours = ledger.start_run("a", plan=5 * EVENT.charged).reserve(EVENT)
        with Ledger.open(path) as again:
            theirs = again.resume_run(1).unsettled()
            assert theirs is not None
            theirs.commit()
        with pytest.raises(LedgerError, match="before"):
            ours.commit()
        assert ledger.runs[0].committed == 1


def test_a_round_that_was_settled_or_followed_is_not_open(path: Path) -> None:
    with Ledger.open(path, Budget(30, 1e-5)) as ledger:
        run = ledger.start_run("a", plan=5 * EVENT.charged)
        assert run.unsettled() is None
        run.reserve(EVENT).abandon("not drawn")
        assert run.unsettled() is None
        run.reserve(EVENT)
        run.reserve(EVENT).commit()
        assert run.unsettled() is None
        ledger.start_run("b", plan=2 * EVENT.charged).reserve(EVENT)
        assert run.unsettled() is None


# Rows of correlated noise: each is given out once, and costs nothing


def test_rows_are_given_out_once_and_cost_nothing(ledger: Ledger) -> None:
    run, other = (ledger.start_run(name, 1 * ROUND) for name in ("one", "two"))
    assert run.latest_row == 0
    run.reserve(ROUND).commit()
    spent = ledger.upper_epsilon()
    # Two processes with one run, and another run beside it.
    again = ledger.resume_run(run.id)
    assert [run.take_row(), again.take_row(), run.take_row(), other.take_row()] == [1, 2, 3, 1]
    assert (run.latest_row, again.latest_row, other.latest_row) == (3, 3, 1)
    assert (ledger.upper_epsilon(), ledger.rounds) == (spent, 1)
    run.finish()
    assert ledger.verify().sound
    with pytest.raises(LedgerError, match="finished"):
        run.take_row()


@pytest.mark.parametrize("row", [0, 1, 3])
def test_a_row_out_of_its_order_or_of_no_run_is_a_fault(ledger: Ledger, row: int) -> None:
    run = ledger.start_run("correlated", 1 * ROUND)
    run.take_row()

    def write(opened: Transaction) -> None:
        state = opened.open_run(run.id)._replace(row=row)
        opened.append("row", run.id, {}, (opened.state, state))

    ledger._file.write(write)
    assert not ledger.verify().sound
