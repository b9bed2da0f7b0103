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
from dpacct import Budget, InvalidParameter, Ledger, LedgerError, Poisson, Round
from dpacct.ledger.disk import place as places

BUDGET = Budget(8, 1e-5)
ROUND = Round(1.3, Poisson(0.1))


def refusals(path: Any) -> list[str]:
    """What opening says in every way in which it can be asked for."""
    found: list[str] = []
    for options in (
        {},
        {"read_only": True},
        {"budget": BUDGET},
        {"budget": BUDGET, "read_only": True},
    ):
        with pytest.raises(LedgerError) as error:
            Ledger.open(path, **options)
        found.append(str(error.value))
    return found


def one_sentence(text: str) -> bool:
    return text.isprintable() and len(text) < 700 and text.endswith(".")


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("a\0b", "without control characters"),
        ("a\nb", "without control characters"),
        ("a\x1b[31m", "without control characters"),
        ("a\udcff", "without control characters"),
        ("a\u2028b", "without control characters"),
        ("x" * 201, "has at most 200 bytes"),
        ("é" * 101, "has at most 200 bytes"),
        ("x" * 300, "File name too long"),
        ("x" * 5000, "File name too long"),
        ("y/" * 300 + "x", "there is no folder"),
        ("", "it is not a file"),
        (".", "it is not a file"),
        ("none/x", "there is no folder"),
    ],
)
def test_a_name_that_is_none_for_a_ledger(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reason: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for text in refusals(name):
        assert reason in text
        assert one_sentence(text)
    assert list(tmp_path.iterdir()) == []


def test_a_path_that_is_too_long_for_its_journal(tmp_path: Path) -> None:
    folder = tmp_path
    while len(os.fsencode(folder)) < 480:
        folder /= "d" * 100
    folder.mkdir(parents=True)
    assert all("its whole path at most 480" in text for text in refusals(folder / "x"))


@pytest.mark.parametrize("path", [None, 3, b"a.ledger", ["a"]])
def test_what_is_no_path(path: Any) -> None:
    with pytest.raises(InvalidParameter, match="path"):
        Ledger.open(path, BUDGET)


@pytest.mark.parametrize("ending", ["-journal", ".witness"])
def test_names_of_what_stands_beside_a_ledger_are_not_given_to_one(path: Path, ending: str) -> None:
    with pytest.raises(LedgerError, match=f"names that end in {ending} are kept"):
        Ledger.open(f"{path}{ending}", BUDGET)


def test_what_is_no_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        for name in (tmp_path / "fifo", tmp_path / "socket", "/dev/null", "/dev/zero", tmp_path):
            assert all("it is not a file" in text for text in refusals(name))


def test_links_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "dangling").symlink_to(tmp_path / "none")
    (tmp_path / "one").symlink_to(tmp_path / "two")
    (tmp_path / "two").symlink_to(tmp_path / "one")
    assert all("symbolic link to nothing" in text for text in refusals(tmp_path / "dangling"))
    for text in refusals(tmp_path / "one"):
        assert "symbolic links" in text
    assert not (tmp_path / "none").exists()


def test_a_file_in_place_of_a_folder(path: Path) -> None:
    path.write_text("x")
    assert all("Not a directory" in text for text in refusals(path / "deeper"))


def test_what_this_user_may_not_enter_read_or_write() -> None:
    # A folder that another user may enter.
    folder = Path("/tmp") / f"dpacct-forbidden-{os.getpid()}"  # noqa: S108 - see above
    folder.mkdir(mode=0o755)
    unreadable, unwritable = folder / "unreadable.ledger", folder / "unwritable.ledger"
    closed = folder / "closed"
    ways: tuple[dict[str, Any], ...] = ({}, {"read_only": True}, {"budget": BUDGET})

    def use(say: Callable[[object], None]) -> None:
        for path in (unreadable, closed / "a.ledger", closed / "new.ledger"):
            for options in ways:
                with pytest.raises(LedgerError, match=r"no ledger can be .*: Permission denied"):
                    Ledger.open(path, **options)
        for options in ({}, {"budget": BUDGET}):
            with pytest.raises(LedgerError, match="can be opened: it cannot be written to"):
                Ledger.open(unwritable, **options)
        Ledger.open(unwritable, read_only=True).close()
        with pytest.raises(LedgerError, match="its folder has to be writable too"):
            Ledger.open(folder / "new", BUDGET)
        say("done")

    try:
        closed.mkdir()
        for path in (unreadable, unwritable, closed / "a.ledger"):
            Ledger.open(path, BUDGET).close()
        unreadable.chmod(0o000)
        closed.chmod(0o700)
        assert Child(use, user=65534).end() == ["done"]
    finally:
        shutil.rmtree(folder)


# Mounts


def mounted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *mounts: tuple[Path, str]) -> None:
    """Let the system say so."""
    lines = [
        "22 27 0:21 / /proc rw - proc proc rw",
        "27 1 254:0 / / rw,relatime - ext4 /dev/vda rw",
    ]
    for point, kind in mounts:
        escaped = str(point).replace(" ", "\\040")
        lines.append(f"30 27 0:30 / {escaped} rw shared:1 - {kind} server:/x rw")
    file = tmp_path / "mountinfo"
    file.write_text("\n".join(lines) + "\n")
    monkeypatch.setattr(places, "_MOUNTS", file)


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs"])
def test_a_ledger_on_a_network_is_read_and_not_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    folder = tmp_path / "a share"
    folder.mkdir()
    path = folder / "a.ledger"
    with Ledger.open(path, BUDGET) as ledger:
        ledger.start_run("x").reserve(ROUND).commit()
    mounted(monkeypatch, tmp_path, (tmp_path, "ext4"), (folder, kind))
    before = sorted(folder.iterdir())
    for new in (path, folder / "new.ledger"):
        with pytest.raises(LedgerError, match=rf"a share is a network file system \({kind}\)"):
            Ledger.open(new, BUDGET)
    assert sorted(folder.iterdir()) == before
    with Ledger.open(path, read_only=True) as ledger:
        assert ledger.rounds == 1


@pytest.mark.parametrize("kind", ["ext4", "overlay"])
def test_any_other_place_is_allowed(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    # What is mounted later at the same point is what is seen.
    mounted(monkeypatch, tmp_path, (tmp_path, "nfs4"), (tmp_path, kind), (tmp_path / "b", "nfs4"))
    Ledger.open(path, BUDGET).close()
    # Where mounts are not known, all places are.
    monkeypatch.setattr(places, "_MOUNTS", tmp_path / "none")
    Ledger.open(path).close()


def test_a_file_that_is_mounted_by_itself_is_refused(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Ledger.open(path, BUDGET).close()
    mounted(monkeypatch, tmp_path, (path, "ext4"))
    for text in refusals(path):
        assert "Mount its folder instead" in text


# What stands beside it


@pytest.mark.parametrize("left", ["-journal", ".witness"])
def test_no_ledger_is_made_beside_what_belongs_to_one_that_is_gone(path: Path, left: str) -> None:
    with Ledger.open(path, BUDGET) as ledger:
        ledger.start_run("x").reserve(ROUND).commit()
    beside = path.with_name(f"{path.name}{left}")
    path.rename(path.with_name("moved.ledger"))
    path.with_name(f"{path.name}.witness").unlink()
    beside.write_bytes(b"something")
    for text in refusals(path):
        assert f"{beside.name} stands there" in text
    assert not path.exists()
    beside.unlink()
    Ledger.open(path, BUDGET).close()
