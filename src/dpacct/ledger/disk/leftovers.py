"""What a write that was cut short leaves beside a ledger, and how it is put right in a copy.

Rule 1: a rollback journal belongs to the file; without it the file may be half written. A journal
that begins with a zero was not completed, and the file was not written to yet.
Rule 2: a copy is made of both as they were at one time; its names are gone as soon as it is open,
so that nothing is left of it, whatever happens.
Rule 3: a file that another program put into SQLite's write-ahead mode is refused: its latest
entries may stand in another file.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from dpacct.errors import LedgerError
from dpacct.ledger.disk.place import Place, reason_of
from dpacct.ledger.disk.rows import Rows

# A copy is made again if another program writes meanwhile, which knows no lock of ours.
_TRIES = 5

# Of the file and its journal: which file it is, how long, and when it was changed.
Files = tuple[tuple[int, int, int] | None, ...]


def left_over(place: Place, descriptor: int) -> bool:
    """Whether a write was cut short that the journal beside the file undoes.

    Args:
        place: of the file.
        descriptor: of the open file.
    Raises:
        LedgerError: the journal is no file, or the file is in write-ahead mode.
    """
    # SQLite would open a pipe, and wait for somebody to write into it.
    if _exists(place.journal) and not place.journal.is_file():
        raise LedgerError(
            f"{place.path}: {place.journal.name}, which stands beside it, is no file. Move it away."
        )
    # SQLite's file format, section 1.3.3: 2 stands for a write-ahead log.
    os.lseek(descriptor, 18, os.SEEK_SET)
    if 2 in os.read(descriptor, 2):
        raise LedgerError(
            f"{place.path}: another program put the file into write-ahead mode, and its latest "
            f"entries may stand in {place.file.name}-wal. With both files in place, let the "
            f"sqlite3 shell execute PRAGMA journal_mode=DELETE."
        )
    return _begins(place.journal) > 0


def files_of(place: Place) -> Files:
    """In what state the file is, with all that belongs to it."""
    return tuple(_state(file) for file in (place.file, place.journal))


def copy_put_right(place: Place, check: Callable[[Rows], None]) -> tuple[Files, sqlite3.Connection]:
    """A copy into which all that was left is played, with the state that it was made of.

    Args:
        place: of the file.
        check: raises `LedgerError` if the copy holds less than it should.
    Raises:
        LedgerError: it cannot be made, or is not whole. sqlite3.Error: the file is damaged.
    """
    # Few ledgers were left in the middle of a write, and none else pays for these imports.
    import shutil  # noqa: PLC0415 - as said
    import tempfile  # noqa: PLC0415 - as said

    for _ in range(_TRIES):
        files = files_of(place)
        try:
            folder = Path(tempfile.mkdtemp(prefix="dpacct-"))
            try:
                copy = _copied(place, folder)
                if files_of(place) == files:
                    return files, _put_right(place, copy, check)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
        except OSError as error:
            raise LedgerError(
                f"{place.path}: a write was cut short, and the copy in which to undo it cannot be "
                f"made: {reason_of(error)}."
            ) from None
    raise LedgerError(f"{place.path}: another program is writing to it; stop that.")


def _copied(place: Place, folder: Path) -> Path:
    import shutil  # noqa: PLC0415 - as above

    copy = folder / "ledger"
    shutil.copyfile(place.file, copy)
    if _begins(place.journal) >= 0:
        shutil.copyfile(place.journal, folder / "ledger-journal")
    return copy


def _put_right(place: Place, copy: Path, check: Callable[[Rows], None]) -> sqlite3.Connection:
    connection = connect(copy, "rw")
    try:
        # Reading undoes a write that was cut short.
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
        connection.execute("PRAGMA query_only=1")
        rows = Rows(place.path, connection)
        _require_whole(rows)
        check(rows)
    except BaseException:
        connection.close()
        raise
    return connection


def _require_whole(rows: Rows) -> None:
    rows.check_header()
    if problems := rows.problems():
        raise LedgerError(
            f"{rows.path}: a write was cut short, and what is left does not undo it: "
            f"{problems[0]}. Restore a copy, and treat what is missing as spent."
        )


def connect(file: Path, mode: str) -> sqlite3.Connection:
    """A connection in our way of writing, which never waits; a mode as in SQLite's URIs."""
    uri = f"{file.as_uri()}?mode={mode}"
    connection = sqlite3.connect(uri, timeout=0, isolation_level=None, uri=True)
    # EXTRA: a journal that is deleted stays deleted, whatever happens to the power.
    connection.execute("PRAGMA synchronous=EXTRA")
    # Where a plain sync leaves data in the disk's cache (macOS); elsewhere nothing.
    connection.execute("PRAGMA fullfsync=1")
    connection.execute("PRAGMA cell_size_check=1")
    return connection


def _exists(file: Path) -> bool:
    """Whether something has the name; an error that says neither is raised."""
    try:
        os.lstat(file)
    except FileNotFoundError:
        return False
    return True


def _begins(file: Path) -> int:
    """The first byte of a file; -1 if it is empty, or not there."""
    try:
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        return -1
    try:
        return next(iter(os.read(descriptor, 1)), -1)
    finally:
        os.close(descriptor)


def _state(file: Path) -> tuple[int, int, int] | None:
    try:
        found = file.stat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns
