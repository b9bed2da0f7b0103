"""Files that users name: written whole, and never over a ledger or what belongs to one."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from dpacct import Budget, Ledger
from dpacct.errors import InvalidParameter
from dpacct.ledger.disk.outputs import check_place, is_ledger, protected, write_file

TEXT = b"one\ntwo\n"


def write(path: Path, *, replace: bool = False, content: bytes = TEXT) -> None:
    write_file(path, lambda stream: stream.write(content), name="output", replace=replace)


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "a.ledger"
    Ledger.open(path, Budget(8, 1e-5)).close()
    return path


def test_a_new_file_is_written_whole_with_the_usual_rights(tmp_path: Path) -> None:
    write(tmp_path / "new.txt")
    assert (tmp_path / "new.txt").read_bytes() == TEXT
    (tmp_path / "plain.txt").touch()
    assert (tmp_path / "new.txt").stat().st_mode == (tmp_path / "plain.txt").stat().st_mode
    assert len(list(tmp_path.iterdir())) == 2


def test_an_existing_file_is_replaced_only_where_that_is_asked_for(tmp_path: Path) -> None:
    file = tmp_path / "old.txt"
    file.write_bytes(b"old")
    with pytest.raises(InvalidParameter, match=r"exists already.* --force replaces it"):
        write(file)
    assert file.read_bytes() == b"old"
    write(file, replace=True)
    assert file.read_bytes() == TEXT


def test_a_failure_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    file = tmp_path / "old.txt"
    file.write_bytes(b"old")

    def fail(stream: object) -> None:
        stream.write(b"half")  # type: ignore[attr-defined]
        raise OSError("the disk is full")

    for replace in (False, True):
        for place in (file, tmp_path / "new.txt"):
            with pytest.raises((OSError, InvalidParameter)):
                write_file(place, fail, name="output", replace=replace)
    assert [path.name for path in tmp_path.iterdir()] == ["old.txt"]
    assert file.read_bytes() == b"old"


def test_who_is_faster_keeps_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "new.txt"

    def slow(stream: object) -> None:
        stream.write(TEXT)  # type: ignore[attr-defined]
        file.write_bytes(b"theirs")

    with pytest.raises(InvalidParameter, match="exists already"):
        write_file(file, slow, name="output", replace=False)
    assert file.read_bytes() == b"theirs"
    file.unlink()

    def without_links(*_: object) -> None:
        raise PermissionError(1, "no links here")

    monkeypatch.setattr(os, "link", without_links)
    with pytest.raises(InvalidParameter, match="exists already"):
        write_file(file, slow, name="output", replace=False)
    assert file.read_bytes() == b"theirs"
    file.unlink()
    write(file)
    assert [path.name for path in tmp_path.iterdir()] == ["new.txt"]


def aliases(book: Path) -> list[Path]:
    folder = book.parent
    (folder / "sub").mkdir()
    os.link(book, folder / "hard.txt")
    (folder / "soft.md").symlink_to(book)
    (folder / "far.html").symlink_to("soft.md")
    return [
        book,
        folder / "sub" / ".." / "a.ledger",
        folder / "hard.txt",
        folder / "soft.md",
        folder / "far.html",
    ]


def test_a_ledger_is_never_replaced_whatever_leads_to_it(book: Path) -> None:
    before = book.read_bytes()
    for alias in aliases(book):
        for replace in (False, True):
            with pytest.raises(InvalidParameter, match="it is a ledger, and is never replaced"):
                write(alias, replace=replace)
            with pytest.raises(InvalidParameter, match="never replaced"):
                check_place(alias, "output", replace=replace)
    assert book.read_bytes() == before
    # A ledger with a second name is not opened.
    (book.parent / "hard.txt").unlink()
    with Ledger.open(book) as ledger:
        assert ledger.verify().sound


def test_what_stands_beside_a_ledger_is_not_written_over_nor_made(book: Path) -> None:
    for suffix, what in (
        ("-wal", "journal"),
        ("-shm", "journal"),
        ("-journal", "journal"),
        (".witness", "witness"),
    ):
        beside = book.with_name(book.name + suffix)
        beside.unlink(missing_ok=True)
        with pytest.raises(InvalidParameter, match=f"it is the {what} of a ledger"):
            write(beside, replace=True)
        assert not beside.exists()


def test_a_witness_is_known_by_its_content_when_its_ledger_is_gone(book: Path) -> None:
    witness = book.with_name("a.ledger.witness")
    if not witness.exists():
        with Ledger.open(book) as ledger:
            ledger.start_run("one")
    witness.rename(book.with_name("kept.txt"))
    book.unlink()
    before = book.with_name("kept.txt").read_bytes()
    with pytest.raises(InvalidParameter, match="it is the witness of a ledger"):
        write(book.with_name("kept.txt"), replace=True)
    assert book.with_name("kept.txt").read_bytes() == before
    # A text of the same size is none.
    book.with_name("text").write_bytes(b" " * 512)
    write(book.with_name("text"), replace=True)


def test_the_journal_of_a_database_is_known_by_its_content(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "other", isolation_level=None)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("CREATE TABLE more (x)")
    os.link(tmp_path / "other-wal", tmp_path / "log.txt")
    with pytest.raises(InvalidParameter, match="journal of a database"):
        write(tmp_path / "log.txt", replace=True)
    connection.close()


def test_other_databases_and_texts_are_none(tmp_path: Path) -> None:
    other = tmp_path / "other.db"
    connection = sqlite3.connect(other)
    connection.execute("CREATE TABLE t (x)")
    connection.close()
    (tmp_path / "named.ledger").write_text("epsilon")
    for path in (other, tmp_path / "named.ledger", tmp_path / "none", tmp_path):
        assert not is_ledger(path)
        assert protected(path) == ""
    write(other, replace=True)
    write(tmp_path / "named.ledger", replace=True)


def test_folders_and_pipes(tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="it is a folder"):
        write(tmp_path, replace=True)
    with pytest.raises(FileNotFoundError):
        write(tmp_path / "no" / "file.txt")
    write(Path(os.devnull))
    assert Path(os.devnull).is_char_device()


@pytest.mark.parametrize("replace", [False, True])
def test_names_under_which_there_can_be_no_file(tmp_path: Path, *, replace: bool) -> None:
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
        for refuse in (
            write,
            lambda path, *, replace: check_place(path, "output", replace=replace),
        ):
            with pytest.raises(InvalidParameter, match=words) as refused:
                refuse(tmp_path / name, replace=replace)
            assert len(str(refused.value)) < 500
    assert {path.name for path in tmp_path.iterdir()} == {"one", "two"}
    assert (tmp_path / "one").is_symlink()


def test_a_damaged_ledger_is_known_by_its_witness(book: Path) -> None:
    data = bytearray(book.read_bytes())
    for place in (0, 70):
        damaged = bytearray(data)
        damaged[place] ^= 1
        book.write_bytes(damaged)
        assert not is_ledger(book)
        for name in (book.name, f"{book.name}-journal"):
            with pytest.raises(InvalidParameter, match=r"it is .*a ledger, and is never"):
                write(book.with_name(name), replace=True)
        assert book.read_bytes() == damaged


@pytest.mark.slow
def test_a_checkpoint_or_a_model_does_not_replace_a_ledger(book: Path) -> None:
    torch = pytest.importorskip("torch")
    from dpacct.fl.engine.checkpoint import write_checkpoint
    from dpacct.fl.models import save_parameters

    before = book.read_bytes()
    with pytest.raises(InvalidParameter, match="it is a ledger"):
        write_checkpoint(book, {"round": 1})
    with pytest.raises(InvalidParameter, match="it is a ledger"):
        save_parameters(torch.nn.Linear(2, 2), book)
    assert book.read_bytes() == before
