"""Names and places at which no ledger can be: one sentence each, and nothing is touched."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from children import Child
from dpacct import InvalidParameter, Ledger, LedgerError
from dpacct.ledger.disk import place as places
from ledgers import BUDGET, beside, spend

WAYS: tuple[dict[str, Any], ...] = (
    {}, {"read_only": True}, {"budget": BUDGET}, {"budget": BUDGET, "read_only": True},
)  # fmt: skip


def rejected(path: Any, reason: str) -> None:
    """Opening fails for this reason, in one sentence, in every way in which it can be asked for."""
    for options in WAYS:
        with pytest.raises(LedgerError) as error:
            Ledger.open(path, **options)
        text = str(error.value)
        assert reason in text
        assert text.isprintable()
        assert text.endswith(".")
        assert len(text) < 900


def test_names_that_are_none_for_a_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, reason in (
        *((f"a{odd}b", "without control characters") for odd in "\0\n\x1b\udcff\u2028"),
        ("x" * 300, "File name too long"),
        ("x" * 5000, "File name too long"),
        ("y/" * 300 + "x", "there is no folder"),
        ("", "it is not a file"),
        (".", "it is not a file"),
        ("none/x", "there is no folder"),
    ):
        rejected(name, reason)
    for ending in ("-journal", ".witness"):
        with pytest.raises(InvalidParameter, match=f"names that end in {ending} are reserved"):
            Ledger.open(f"a{ending}", BUDGET)
    assert list(tmp_path.iterdir()) == []
    for path in (None, 3, b"a.ledger", ["a"]):
        with pytest.raises(InvalidParameter, match="path"):
            Ledger.open(path, BUDGET)  # type: ignore[arg-type]


@pytest.mark.needs("posix")
def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for name in (tmp_path / "fifo", tmp_path / "socket", "/dev/null", "/dev/zero", tmp_path):
            rejected(name, "it is not a file")
    (tmp_path / "text").write_text("x")
    rejected(tmp_path / "text" / "deeper", "Not a directory")
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    rejected(tmp_path / "dangling", "broken symbolic link")
    rejected(tmp_path / "one", "symbolic links")
    assert not (tmp_path / "none").exists()


@pytest.mark.needs("posix")
def test_what_this_user_may_not_enter_read_or_write() -> None:
    # A folder that another user may enter.
    folder = Path("/tmp") / f"dpacct-forbidden-{os.getpid()}"  # noqa: S108 - see above
    folder.mkdir(mode=0o755)
    unreadable, unwritable = folder / "unreadable.ledger", folder / "unwritable.ledger"
    closed = folder / "closed"

    def use(say: Callable[[object], None]) -> None:
        for path in (unreadable, closed / "a.ledger", closed / "new.ledger"):
            rejected(path, ": Permission denied")
        for options in (WAYS[0], WAYS[2]):
            with pytest.raises(LedgerError, match="can be opened: it cannot be written to"):
                Ledger.open(unwritable, **options)
        with Ledger.open(unwritable, read_only=True) as ledger:
            assert ledger.verify().sound
            with pytest.raises(LedgerError, match="cannot be written to"):
                ledger.start_run("x")
        with pytest.raises(LedgerError, match="Its folder has to be writable too"):
            Ledger.open(folder / "new", BUDGET)
        say("done")

    try:
        closed.mkdir()
        for path in (unreadable, unwritable, closed / "a.ledger"):
            Ledger.open(path, BUDGET).close()
        unreadable.chmod(0o000)
        for file in (unwritable, beside(unwritable)):
            file.chmod(0o644)
        closed.chmod(0o700)
        assert Child(use, user=65534).end() == ["done"]
    finally:
        shutil.rmtree(folder)


# Mounts


def mounted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *mounts: tuple[Path, str]) -> None:
    """Let the system say so."""
    file = tmp_path / "mounts"
    lines = ["proc /proc proc rw 0 0", "/dev/vda / ext4 rw,relatime 0 0"]
    for point, kind in mounts:
        escaped = str(point).replace(" ", "\\040")
        lines.append(f"server:/x {escaped} {kind} rw 0 0")
    file.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(places, "_MOUNTS", file)


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
def test_a_ledger_on_a_network_is_read_and_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder = tmp_path / "a share"
    folder.mkdir()
    path = folder / "a.ledger"
    spend(path, 1)
    mounted(monkeypatch, tmp_path, (tmp_path, "ext4"), (folder, kind))
    before = sorted(folder.iterdir())
    for new in (path, folder / "new.ledger"):
        with pytest.raises(LedgerError, match=rf"a share is a network file system \({kind}\)"):
            Ledger.open(new, BUDGET)
    assert sorted(folder.iterdir()) == before
    with Ledger.open(path, read_only=True) as ledger:
        assert ledger.rounds == 1


def test_other_mounts(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in ("ext4", "overlay"):
        # Of two mounts at one point the later one is seen.
        points = (tmp_path, "nfs4"), (tmp_path, kind), (tmp_path / "b", "nfs4")
        mounted(monkeypatch, tmp_path, *points)
        Ledger.open(path, BUDGET).close()
    mounted(monkeypatch, tmp_path, (path, "ext4"))
    rejected(path, "Mount the folder instead")
    # If mounts are not known, all places are allowed.
    monkeypatch.setattr(places, "_MOUNTS", tmp_path / "none")
    Ledger.open(path).close()


@pytest.mark.parametrize("left", ["-journal", ".witness"])
def test_no_ledger_is_made_beside_what_belongs_to_one_that_is_gone(path: Path, left: str) -> None:
    spend(path, 1)
    path.rename(path.with_name("moved.ledger"))
    beside(path).unlink()
    beside(path, left).write_bytes(b"something")
    rejected(path, f"{beside(path, left).name} belongs to a ledger")
    assert not path.exists()
    beside(path, left).unlink()
    Ledger.open(path, BUDGET).close()
