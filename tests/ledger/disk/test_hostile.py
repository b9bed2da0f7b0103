"""Ledgers that somebody else made: reading them runs nothing, deletes nothing, and ends."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from dpacct import Ledger, LedgerError
from hostile import LEDGERS, in_time, journal_that_deletes
from ledgers import beside, spend


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sound") / "a.ledger"
    spend(path, 12)
    return path


@pytest.fixture
def path(sound: Path, tmp_path: Path) -> Path:
    return shutil.copy(sound, tmp_path / "b.ledger")


def use(path: Path, *, read_only: bool) -> None:
    with Ledger.open(path, read_only=read_only) as ledger:
        ledger.report()
        if problems := ledger.verify().problems:
            raise LedgerError(f"damaged: {problems[0]}")
        ledger.start_run("next")


@pytest.mark.parametrize("forge", LEDGERS.values(), ids=LEDGERS)
def test_a_forged_file_is_rejected_by_every_reader_and_every_writer(forge, path: Path) -> None:
    forge(path)
    forged = path.read_bytes()
    with in_time():
        for read_only in (True, False):
            with pytest.raises(LedgerError, match="damaged"):
                use(path, read_only=read_only)
    assert path.read_bytes() == forged


def test_a_journal_deletes_no_file(path: Path) -> None:
    victim = path.with_name("precious")
    victim.write_text("x", encoding="utf-8")
    journal_that_deletes(victim, path)
    for read_only in (True, False):
        with pytest.raises(LedgerError, match="names another file"):
            Ledger.open(path, read_only=read_only)
    assert victim.exists()


@pytest.mark.needs("posix")
@pytest.mark.parametrize("kind", ["pipe", "device", "long"])
def test_what_is_no_journal_is_not_waited_for(path: Path, kind: str) -> None:
    journal = path.with_name(f"{path.name}-journal")
    if kind == "pipe":
        os.mkfifo(journal)
    elif kind == "device":
        journal.symlink_to("/dev/zero")
    else:
        journal.write_bytes(b"\xd9")
        os.truncate(journal, 2**36)
    for read_only in (True, False):
        with in_time(), pytest.raises(LedgerError, match=r"no journal of a ledger|symbolic"):
            Ledger.open(path, read_only=read_only)


@pytest.mark.needs("posix")
def test_its_owner_alone_reads_a_ledger_and_may_open_it_to_a_group(tmp_path: Path) -> None:
    path, modes = tmp_path / "new.ledger", list[int]()
    before = os.umask(0)
    try:
        spend(path, 1)
        for mode in (0o600, 0o660):
            path.chmod(mode)
            beside(path).unlink()
            spend(path, 1)
            modes += [stat.S_IMODE(file.stat().st_mode) for file in (path, beside(path))]
    finally:
        os.umask(before)
    assert modes == [0o600, 0o600, 0o660, 0o660]
