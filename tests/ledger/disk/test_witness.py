"""What is remembered of a ledger beside it: an older file, or another one, is refused."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest

from dpacct import InvalidParameter, Ledger, LedgerError
from dpacct.ledger import Position
from dpacct.ledger.disk import store
from dpacct.ledger.disk.witness import Witness, read_witness
from ledgers import SMALL, WIDE, beside, committed, play, spend

# Positions


def test_a_position_says_how_far_the_ledger_has_come(ledger: Ledger) -> None:
    first = ledger.position
    assert (first.entry, first.committed, first.head) == (1, 0, first.identity)
    for name in ("one", "two"):
        run = ledger.start_run(name)
        run.reserve(SMALL).commit()
        run.reserve(SMALL)
    found = ledger.position
    assert found == Position(first.identity, 10, ledger.head, 2)
    ledger.require(found, "the test")
    ledger.require(first, "the test")
    assert Position(**asdict(found)) == found


def test_a_ledger_that_lost_entries_is_rejected(path: Path, tmp_path: Path) -> None:
    older, other = tmp_path / "older.ledger", tmp_path / "other.ledger"
    spend(path, 1)
    shutil.copy(path, older)
    with Ledger.open(path) as ledger:
        play(ledger.resume_run(1), SMALL, 1)
        known = ledger.position
    with Ledger.open(older) as ledger:
        with pytest.raises(LedgerError, match=r"lost entries: run\.ckpt knows entry 8, with 2 rel"):
            ledger.require(known, "run.ckpt")
        play(ledger.resume_run(1), SMALL, 1)
        with pytest.raises(LedgerError, match=r"was changed: run\.ckpt knows another entry 8"):
            ledger.require(known, "run.ckpt")
    spend(other, 1)
    with (
        Ledger.open(other) as ledger,
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


# The witness of a file


def said(ledger: Ledger) -> Witness:
    found = ledger._file.store.witness()
    assert found is not None
    return found


def test_every_entry_is_witnessed_when_the_call_that_wrote_it_returns(path: Path) -> None:
    with Ledger.open(path, WIDE) as ledger:
        assert said(ledger) == Witness(ledger.position, since=1)
        assert ledger.verify().remarks == ()
        run = ledger.start_run("one", 2 * SMALL)
        steps = [lambda: run.reserve(SMALL).commit(), lambda: run.reserve(SMALL).abandon("x"),
                 lambda: run.reserve(SMALL), lambda: ledger.resume_run(1), run.finish]  # fmt: skip
        for step in steps:
            assert said(ledger) == Witness(ledger.position, since=1)
            step()
        assert said(ledger) == Witness(ledger.position, since=1)
        assert said(ledger).position.committed == 1


def test_the_witness_is_never_ahead_of_the_ledger(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    order: list[str] = []
    with Ledger.open(path, WIDE) as ledger:
        ticket = ledger.start_run("x").reserve(SMALL)
        before = said(ledger)
        opened = ledger._file.store
        commit, update = opened._commit, store.update_witness

        def committing() -> None:
            assert read_witness(opened.place) == before
            commit()
            assert read_witness(opened.place) == before
            order.append("ledger")

        def updating(*arguments: Any) -> None:
            update(*arguments)
            order.append("witness")

        monkeypatch.setattr(opened, "_commit", committing)
        monkeypatch.setattr(store, "update_witness", updating)
        ticket.commit()
        assert order == ["ledger", "witness"]
        assert said(ledger).position == ledger.position


def test_a_ledger_that_is_behind_its_witness_is_neither_read_nor_written(
    path: Path, tmp_path: Path
) -> None:
    spend(path, 1)
    old = path.read_bytes()
    spend(path, 2)
    path.write_bytes(old)
    for read_only in (False, True):
        with pytest.raises(LedgerError, match="witness knows entry 10, with 3"):
            Ledger.open(path, read_only=read_only)
    # Deleting the witness is how the loss is accepted.
    beside(path).unlink()
    spend(path, 1)
    assert committed(path) == 2
    other = tmp_path / "other.ledger"
    spend(other, 9)
    shutil.copy(other, path)
    with pytest.raises(LedgerError, match="belongs to another ledger"):
        Ledger.open(path)


def test_a_witness_and_a_file_that_do_not_belong_together(path: Path) -> None:
    spend(path, 1)
    old, witness = path.read_bytes(), beside(path).read_bytes()
    spend(path, 1)
    newer = beside(path).read_bytes()
    # A witness that a crash left behind catches up.
    beside(path).write_bytes(witness)
    assert committed(path) == 2
    assert beside(path).read_bytes() == witness
    with Ledger.open(path) as ledger:
        assert said(ledger) == Witness(ledger.position, since=1)
    # A copy that went its own way is rejected.
    path.write_bytes(old)
    beside(path).unlink()
    spend(path, 3)
    beside(path).write_bytes(newer)
    with pytest.raises(LedgerError, match="knows another entry 8"):
        Ledger.open(path)


def test_a_missing_witness_is_made_by_writers_alone_and_says_since_when(path: Path) -> None:
    spend(path, 2)
    beside(path).unlink()
    with Ledger.open(path, read_only=True) as ledger:
        assert ledger._file.store.witness() is None
        assert ledger.verify().sound
        assert "the file has no witness" in ledger.verify().remarks[0]
    assert not beside(path).exists()
    with Ledger.open(path) as ledger:
        assert said(ledger) == Witness(ledger.position, since=7)
        assert ledger.verify().sound
        assert "its witness was made at entry 7" in ledger.verify().remarks[0]
        # Somebody deletes it while the ledger is open.
        beside(path).unlink()
        ledger.resume_run(1)
        assert said(ledger) == Witness(ledger.position, since=7)


def rewritten(change: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda path: beside(path).write_bytes(change(beside(path).read_bytes()))


def another(make: Callable[[Path], object]) -> Callable[[Path], object]:
    def damage(path: Path) -> None:
        beside(path).rename(path.with_name("away"))
        make(beside(path))

    return damage


DAMAGES: dict[str, Callable[[Path], object]] = {
    "cut": rewritten(lambda data: data[:-1]),
    "empty": rewritten(lambda _: b""),
    "longer": rewritten(lambda data: data + b"\n"),
    "other numbers": rewritten(lambda data: data.replace(b'"committed":1', b'"committed":0')),
    "a folder": another(Path.mkdir),
    "a pipe": another(lambda path: os.mkfifo(path)),  # noqa: PLW0108 - Windows has none
    "a link": another(lambda path: path.symlink_to(path.with_name("away"))),
}


@pytest.mark.parametrize(
    "damage",
    [
        pytest.param(
            name, marks=[pytest.mark.needs("posix")] if name in ("a pipe", "a link") else []
        )
        for name in DAMAGES
    ],
)
def test_a_damaged_witness_is_refused_in_words(path: Path, damage: str) -> None:
    spend(path, 1)
    with Ledger.open(path) as ledger:
        ticket = ledger.resume_run(1).reserve(SMALL)
        DAMAGES[damage](path)
        for read_only in (False, True):
            with pytest.raises(LedgerError, match=r"its witness a\.ledger\.witness "):
                Ledger.open(path, read_only=read_only)
        with pytest.raises(LedgerError, match="its witness"):
            ticket.commit()
        assert ticket.state == "drawn"
        if beside(path).is_dir():
            beside(path).rmdir()
        else:
            beside(path).unlink()
        ticket.commit()
    assert committed(path) == 2


def test_a_round_whose_witness_cannot_be_written_is_not_released(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Ledger.open(path, WIDE) as ledger:
        run = ledger.start_run("x")
        ticket = run.reserve(SMALL)
        opened = ledger._file.store
        commit = opened._commit

        def committing() -> None:
            commit()
            beside(path).unlink()
            beside(path).mkdir()

        monkeypatch.setattr(opened, "_commit", committing)
        with pytest.raises(LedgerError, match="witness cannot be written: Is a directory"):
            ticket.commit()
        monkeypatch.undo()
        beside(path).rmdir()
        # It stands in the ledger, which overcounts; the witness catches up.
        with pytest.raises(LedgerError, match="was committed or abandoned before"):
            ticket.commit()
        assert run.committed == 1
        run.reserve(SMALL).commit()
        assert said(ledger) == Witness(ledger.position, since=5)


@pytest.mark.needs("posix")
def test_a_witness_belongs_to_whoever_the_ledger_belongs_to(path: Path) -> None:
    spend(path, 1)
    path.chmod(0o664)
    beside(path).unlink()
    spend(path, 1)
    assert beside(path).stat().st_mode & 0o777 == 0o664
    assert (beside(path).stat().st_uid, beside(path).stat().st_gid) == (
        path.stat().st_uid, path.stat().st_gid)  # fmt: skip
