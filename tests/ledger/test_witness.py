"""What is remembered of a ledger beside it: an older file, or another one, is refused."""

from __future__ import annotations

import shutil
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from dpacct import Budget, InvalidParameter, Ledger, LedgerError, Poisson, Round
from dpacct.ledger import Position

BUDGET = Budget(8, 1e-5)
ROUND = Round(1.3, Poisson(0.1))


# Positions


def test_a_position_says_how_far_the_ledger_has_come(ledger: Ledger) -> None:
    first = ledger.position
    assert (first.entry, first.committed, first.head) == (1, 0, first.identity)
    for name in ("one", "two"):
        run = ledger.start_run(name)
        run.reserve(ROUND).commit()
        run.reserve(ROUND)
    found = ledger.position
    assert found == Position(first.identity, 9, ledger.head, 2)
    ledger.require(found, "the test")
    ledger.require(first, "the test")
    assert Position(**asdict(found)) == found


def test_a_ledger_that_lost_entries_is_refused_by_whoever_remembers_them(
    path: Path, tmp_path: Path
) -> None:
    older, other = tmp_path / "older.ledger", tmp_path / "other.ledger"
    with Ledger.open(path, BUDGET) as ledger:
        run = ledger.start_run("one")
        run.reserve(ROUND).commit()
    shutil.copy(path, older)
    with Ledger.open(path) as ledger:
        ledger.resume_run(1).reserve(ROUND).commit()
        known = ledger.position
    with Ledger.open(older) as ledger:
        with pytest.raises(LedgerError, match=r"lost entries: run\.ckpt knows entry 7, with 2 rel"):
            ledger.require(known, "run.ckpt")
        run = ledger.resume_run(1)
        run.reserve(ROUND).commit()
        with pytest.raises(LedgerError, match=r"was changed: run\.ckpt knows another entry 7"):
            ledger.require(known, "run.ckpt")
    with (
        Ledger.open(other, BUDGET) as ledger,
        pytest.raises(LedgerError, match=r"run\.ckpt belongs to another ledger"),
    ):
        ledger.require(known, "run.ckpt")


@pytest.mark.parametrize(
    "change",
    [{"identity": "x"}, {"head": b"a"}, {"head": "A" * 64}, {"entry": 0}, {"entry": 2**63},
     {"entry": True}, {"committed": -1}, {"committed": 1.0}],
)  # fmt: skip
def test_a_position_that_is_none_cannot_be_made(change: dict[str, Any]) -> None:
    good = Position("0" * 64, 1, "a" * 64, 0)
    with pytest.raises(InvalidParameter, match=next(iter(change))):
        replace(good, **change)
