"""A write that fails leaves nothing behind: neither in the file, nor in the objects of the process.

What an object remembers of a ledger may come from committed entries alone. So after a failure the
same object and a fresh one say the same, write the same, and the file verifies.
"""

from __future__ import annotations

import math
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dpacct import Budget, BudgetExceeded, Laplace, Ledger, LedgerError, Round
from dpacct.ledger.disk.rows import StoredEntries

BUDGET = Budget(4, 1e-5)
COUNTRY = {"country": ["DE", "FR"]}
ONE, LARGE, SMALL = Laplace(epsilon=1.0), Laplace(epsilon=9.0), Laplace(epsilon=0.01)


def told(path: Path) -> dict[str, Any]:
    """What a fresh object says about a file that verifies."""
    with Ledger.open(path, read_only=True) as fresh:
        found = fresh.verify()
        assert found.sound, found.problems
        return fresh.summary()


def test_a_refused_part_is_not_taken_for_the_next_run(tmp_path: Path) -> None:
    path = tmp_path / "x"
    with Ledger.open(path, BUDGET, partitions=COUNTRY) as ledger:
        ledger.charge(ONE, name="first", part="country=FR")
        with pytest.raises(BudgetExceeded):
            ledger.charge(LARGE, name="too much", part="country=DE")
        run = ledger.charge(ONE, name="the whole data")
        assert (run.name, run.part) == ("the whole data", "")
        # One for the part, one for all.
        assert ledger.upper_epsilon() >= 1.9
        assert ledger.summary() == told(path)


class Fault:
    """The disk is full from the n-th entry on that is added, counted from now."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = math.inf
        add = StoredEntries.add

        def failing(rows: StoredEntries, *entry: Any) -> None:
            self.left -= 1
            if self.left < 0:
                raise sqlite3.OperationalError("disk I/O error")
            add(rows, *entry)

        monkeypatch.setattr(StoredEntries, "add", failing)


@pytest.fixture
def fault(monkeypatch: pytest.MonkeyPatch) -> Fault:
    return Fault(monkeypatch)


# Each may fail where it adds its entries, and the next one then takes the same run number.
ACTIONS: dict[str, Callable[[Ledger], object]] = {
    "a part": lambda ledger: ledger.charge(2 * SMALL, name="part", part="country=DE"),
    "all": lambda ledger: ledger.charge(Round(90.0), name="all", project="p"),
    "a plan": lambda ledger: ledger.start_run("plan", 3 * Round(90.0)),
    "another plan": lambda ledger: ledger.start_run("other", 2 * Round(200.0)),
    "no plan": lambda ledger: ledger.start_run("free").reserve(Round(120.0)).commit(),
    "a row": lambda ledger: ledger.runs[0].take_row(),
    "a finish": lambda ledger: ledger.start_run("end", Round(300.0)).finish(),
}


@pytest.mark.parametrize("fails", list(ACTIONS))
def test_whatever_fails_the_next_write_is_as_in_a_fresh_process(
    tmp_path: Path, fault: Fault, fails: str
) -> None:
    path = tmp_path / "x"
    with Ledger.open(path, BUDGET, partitions=COUNTRY) as ledger:
        ledger.start_run("open").reserve(Round(300.0)).commit()
        for place, then in enumerate(ACTIONS.values()):
            fault.left = place % 4
            with suppress(LedgerError):
                ACTIONS[fails](ledger)
            fault.left = math.inf
            then(ledger)
            with Ledger.open(path, read_only=True) as fresh:
                assert ledger.upper_epsilon() == fresh.upper_epsilon()
                ours = [(run.name, run.part, run.plan, run.held) for run in ledger.runs]
                assert ours == [(run.name, run.part, run.plan, run.held) for run in fresh.runs]
        assert ledger.summary() == told(path)
