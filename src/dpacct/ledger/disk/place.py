"""The place of a ledger: one regular file, under one name, on a disk of this machine.

Rule 1: symbolic links are followed once. Journal and witness are in the folder of the real file.
Rule 2: a file with a second name is rejected: a journal of one name is not found by the other.
Rule 3: a network file system is not written to: locks there do not reach other machines.
"""

from __future__ import annotations

import os
import stat
import unicodedata
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from dpacct.display import line
from dpacct.errors import InvalidParameter, LedgerError

# File systems of networks, by the beginnings of their names.
_NETWORKS = (
    "nfs", "cifs", "smb", "ncpfs", "afs", "coda", "davfs", "fuse.sshfs", "fuse.s3fs", "fuse.nfs",
    "fuse.gcsfuse", "fuse.goofys", "fuse.mountpoint-s3", "fuse.rclone", "fuse.davfs2",
    "fuse.curlftpfs", "fuse.blobfuse", "fuse.glusterfs", "fuse.smbnetfs",
)  # fmt: skip
_MOUNTS = Path("/proc/self/mounts")
# Another kind of file may be there by now. Opening it must neither wait nor follow a link. Windows
# would change the bytes of a text.
PLAIN = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)


@dataclass(frozen=True)
class Place:
    """A ledger's file: the path as it was given, and the file without symbolic links."""

    path: Path
    file: Path

    @cached_property
    def journal(self) -> Path:
        """The file that undoes an interrupted write. It exists only during a write."""
        return self.file.with_name(f"{self.file.name}-journal")

    @cached_property
    def witness(self) -> Path:
        """The file that remembers how far the ledger had come."""
        return self.file.with_name(f"{self.file.name}.witness")


def locate(path: str | os.PathLike[str]) -> Place | None:
    """Return the place of an existing file, or None if nothing has that name."""
    name = _checked_name(path)
    try:
        file = Path(os.path.realpath(name, strict=True))
        if not stat.S_ISREG(file.stat().st_mode):
            raise _refused(name, "opened", "it is not a file")
    except FileNotFoundError:
        if os.path.lexists(name):
            raise _refused(name, "opened", "it is a broken symbolic link") from None
        return None
    except OSError as error:
        raise _refused(name, "opened", reason_of(error)) from None
    return Place(Path(name), file)


def new_place(path: str | os.PathLike[str]) -> Place:
    """Return the place of a file that is to be made."""
    name = _checked_name(path)
    given = Path(name)
    for ending in ("-journal", ".witness"):
        if given.name.endswith(ending):
            rule = f"names that end in {ending} are reserved for the files of a ledger"
            way_out = f"Choose another name, e.g. {given.name.removesuffix(ending)}."
            raise InvalidParameter("path", name, rule, way_out)
    folder = Path(os.path.realpath(given.parent))
    if not os.path.isdir(folder):  # noqa: PTH112 - False for every error, too
        raise _refused(name, "made", f"there is no folder {line(str(given.parent))}")
    place = Place(given, folder / given.name)
    for left in (place.journal, place.witness):
        # In this order: another process makes the ledger first, then its other files.
        if os.path.lexists(left) and not os.path.lexists(place.file):
            raise LedgerError(
                f"{name}: no ledger can be made: {left.name} belongs to a ledger that was "
                f"moved, deleted or renamed. Put that ledger back, and go on with it. A new ledger "
                f"needs another name, or a folder without {left.name}."
            )
    return place


def check_mount(place: Place, *, writing: bool) -> None:
    """Reject a file that is a mount point, and writing to a network (Rule 3). Linux only."""
    try:
        mounts = [mount.split(" ") for mount in _MOUNTS.read_text(errors="replace").splitlines()]
    except OSError:
        return
    found: tuple[Path | None, str] = None, ""
    for _, name, kind, *_ in mounts:
        point = Path(name.replace("\\040", " "))
        # The innermost mount, and of two at one point the later one.
        if place.file.is_relative_to(point) and point.is_relative_to(found[0] or point):
            found = point, kind
    if found[0] == place.file:
        raise LedgerError(
            f"{place.path}: the file is a mount point, so its journal and witness would stay in "
            f"the original folder. Mount the folder instead."
        )
    if writing and found[1].startswith(_NETWORKS):
        raise LedgerError(
            f"{place.path}: {found[0]} is a network file system ({found[1]}), whose locks cannot "
            f"be relied on. A ledger needs a local disk. On a network it can only be read."
        )


def check_still_there(place: Place, descriptor: int) -> None:
    """Reject an open file that is not the one under its name, or has two names (Rule 2)."""
    opened = os.fstat(descriptor)
    try:
        same = os.path.samestat(place.file.stat(follow_symlinks=False), opened)
    except OSError:
        same = False
    if not same:
        raise LedgerError(
            f"{place.path}: the file was moved, replaced or deleted while it was open. Nothing "
            f"may be released. Put it back, or open it under its new name."
        )
    if opened.st_nlink > 1:
        raise LedgerError(
            f"{place.path}: the file has a second name (a hard link). Under two names a ledger can "
            f"lose rounds. Delete one of them, and make a copy instead."
        )


@contextmanager
def opened(path: Path, how: int) -> Generator[int]:
    """Open a file by the flags of `os.open`. Only its owner may use a new file."""
    descriptor = os.open(path, how, 0o600)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Flush the names in a folder to disk, if the system can do that."""
    if hasattr(os, "O_DIRECTORY"):
        with opened(folder, os.O_RDONLY | os.O_DIRECTORY) as descriptor:
            os.fsync(descriptor)


def reason_of(error: OSError) -> str:
    """Return the system's reason, as a clause."""
    return error.strerror or type(error).__name__


def _checked_name(path: str | os.PathLike[str]) -> str:
    name = os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(name, str):
        raise InvalidParameter("path", path, "the name of a ledger is a text or a Path")
    # Control characters, line separators, and surrogates of bytes that are not text.
    if any(unicodedata.category(character) in {"Cc", "Cs", "Zl", "Zp"} for character in name):
        raise _refused(name, "opened", "a name is text of one line, without control characters")
    return name


def _refused(name: str, done: str, reason: str) -> LedgerError:
    return LedgerError(f"{line(name)}: no ledger can be {done}: {reason}.")
