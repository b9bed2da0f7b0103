"""Files that users name: written whole, and never over a ledger or its files."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import BinaryIO

import pytest

from dpacct import Ledger
from dpacct.errors import InvalidParameter
from dpacct.files import check_place, is_ledger, write_file
from ledgers import BUDGET, beside

TEXT = b"one\ntwo\n"


def write(path: Path, *, replace: bool = False) -> None:
    write_file(path, lambda stream: stream.write(TEXT), name="output", replace=replace)


def check(path: Path, *, replace: bool) -> None:
    check_place(path, "output", replace=replace)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "a.ledger"


@pytest.fixture
def file(path: Path) -> Path:
    """The file of a ledger."""
    Ledger.open(path, BUDGET).close()
    return path


def test_a_file_is_written_whole_and_replaced_only_if_that_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "new.txt"
    write(file)
    (tmp_path / "plain.txt").touch()
    assert file.stat().st_mode == (tmp_path / "plain.txt").stat().st_mode
    file.write_bytes(b"old")
    with pytest.raises(InvalidParameter, match=r"exists already.* --force replaces it"):
        write(file)
    assert file.read_bytes() == b"old"
    write(file, replace=True)
    assert file.read_bytes() == TEXT
    write_file(file, lambda s: s.write(TEXT), name="output", replace=True, owner_only=True)
    assert file.stat().st_mode & 0o777 == 0o600
    # What its owner has closed to others stays closed, and is not opened wider than usual.
    for mode, kept in ((0o600, 0o600), (0o640, 0o640), (0o666, 0o644)):
        file.chmod(mode)
        write(file, replace=True)
        assert file.stat().st_mode & 0o777 == kept
    assert len(list(tmp_path.iterdir())) == 2


def test_a_failure_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "old.txt"
    file.write_bytes(b"old")

    def fail(stream: BinaryIO) -> None:
        stream.write(b"half")
        raise OSError("the disk is full")

    for replace in (False, True):
        for place in (file, tmp_path / "new.txt"):
            with pytest.raises((OSError, InvalidParameter)):
                write_file(place, fail, name="output", replace=replace)
    assert [path.name for path in tmp_path.iterdir()] == ["old.txt"]
    assert file.read_bytes() == b"old"


def test_a_ledger_is_never_replaced_whatever_leads_to_it(file: Path) -> None:
    before, folder = file.read_bytes(), file.parent
    (folder / "sub").mkdir()
    os.link(file, folder / "hard.txt")
    (folder / "soft.md").symlink_to(file)
    (folder / "far.html").symlink_to("soft.md")
    for name in ("a.ledger", "sub/../a.ledger", "hard.txt", "soft.md", "far.html"):
        for replace in (False, True):
            for use in (write, check):
                with pytest.raises(InvalidParameter, match="it is a ledger, and is never replaced"):
                    use(folder / name, replace=replace)
    assert file.read_bytes() == before


@pytest.mark.parametrize("suffix", ["-wal", "-shm", "-journal", ".witness"])
def test_what_stands_beside_a_ledger_is_not_written_over_nor_made(file: Path, suffix: str) -> None:
    beside(file, suffix).unlink(missing_ok=True)
    what = "witness" if suffix == ".witness" else "journal"
    with pytest.raises(InvalidParameter, match=f"it is the {what} of a ledger"):
        write(beside(file, suffix), replace=True)
    assert not beside(file, suffix).exists()


def test_a_damaged_ledger_is_known_by_its_witness(file: Path) -> None:
    data = file.read_bytes()
    for place in (0, 70):
        damaged = bytearray(data)
        damaged[place] ^= 1
        file.write_bytes(damaged)
        assert not is_ledger(file)
        for path in (file, beside(file, "-journal")):
            with pytest.raises(InvalidParameter, match=r"it is .*a ledger, and is never"):
                write(path, replace=True)
        assert file.read_bytes() == damaged


def test_other_databases_and_texts_are_none(tmp_path: Path) -> None:
    other, text = tmp_path / "other.db", tmp_path / "named.ledger"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE t (x)")
    connection.close()
    text.write_text("epsilon")
    for path in (other, text, tmp_path / "none", tmp_path):
        assert not is_ledger(path)
    write(other, replace=True)
    write(text, replace=True)
    with pytest.raises(InvalidParameter, match="it is a folder"):
        write(tmp_path, replace=True)
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "no" / "file.txt")
    write(Path(os.devnull))
    assert Path(os.devnull).is_char_device()


def test_names_under_which_there_can_be_no_file(tmp_path: Path) -> None:
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    for name, words in (
        ("one", "symbolic links"),
        ("one/deeper", "symbolic links"),
        (300 * "x", "too long"),
        (f"{300 * 'x'}/file.txt", "too long"),
        (5000 * "x", "too long"),
        ("a\0b", "null"),
    ):
        for use in (write, check):
            for replace in (False, True):
                with pytest.raises(InvalidParameter, match=words) as refused:
                    use(tmp_path / name, replace=replace)
                assert len(str(refused.value)) < 500
    assert {path.name for path in tmp_path.iterdir()} == {"one", "two"}


@pytest.mark.slow
def test_a_checkpoint_or_a_model_does_not_replace_a_ledger(file: Path) -> None:
    torch = pytest.importorskip("torch")
    from dpacct.fl.engine.checkpoint import write_checkpoint
    from dpacct.fl.models import save_parameters

    before = file.read_bytes()
    with pytest.raises(InvalidParameter, match="it is a ledger"):
        write_checkpoint(file, {"round": 1})
    with pytest.raises(InvalidParameter, match="it is a ledger"):
        save_parameters(torch.nn.Linear(2, 2), file)
    assert file.read_bytes() == before
