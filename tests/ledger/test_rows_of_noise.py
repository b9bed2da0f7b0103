"""Rows of correlated noise in a ledger: each is given out once, and costs nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from dpacct import Budget, Ledger, Round
from dpacct.errors import LedgerError
from dpacct.ledger import Run
from dpacct.ledger.writing import Transaction


@pytest.fixture
def ledger(tmp_path: Path):
    with Ledger.open(tmp_path / "ledger", Budget(8, 1e-5)) as opened:
        yield opened


def start(ledger: Ledger) -> Run:
    return ledger.start_run("correlated", plan=1 * Round(2.0))


def test_rows_are_given_out_once_and_cost_nothing(ledger: Ledger):
    run, other = start(ledger), start(ledger)
    assert run.latest_row == 0
    run.reserve(Round(2.0)).commit()
    spent = ledger.upper_epsilon()
    # Two processes with one run, and another run beside it.
    again = ledger.resume_run(run.id)
    assert [run.take_row(), again.take_row(), run.take_row(), other.take_row()] == [1, 2, 3, 1]
    assert (run.latest_row, again.latest_row, other.latest_row) == (3, 3, 1)
    assert (ledger.upper_epsilon(), ledger.rounds) == (spent, 1)
    assert ledger.verify().sound


def test_a_finished_run_takes_no_row(ledger: Ledger):
    run = start(ledger)
    run.finish()
    with pytest.raises(LedgerError, match="finished"):
        run.take_row()


@pytest.mark.parametrize("forged", [1, 4, 0, -1, 2.0, "2", None])
def test_a_row_out_of_its_order_is_a_fault(ledger: Ledger, forged: object):
    run = start(ledger)
    run.take_row()

    def write(opened: Transaction) -> None:
        totals = opened.state, opened.open_run(run.id)
        opened.append("row", run.id, {"row": forged}, totals)

    ledger._file.write(write)
    assert not ledger.verify().sound


def test_a_row_of_no_run_is_a_fault(ledger: Ledger):
    run = start(ledger)
    ledger._file.write(
        lambda opened: opened.append("row", 7, {"row": 1}, (opened.state, opened.open_run(run.id)))
    )
    assert not ledger.verify().sound
