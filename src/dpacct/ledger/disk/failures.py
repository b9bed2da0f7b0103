"""What SQLite refuses, in one sentence of our own."""

from __future__ import annotations

import sqlite3
from pathlib import Path
from types import TracebackType

from dpacct.display import line
from dpacct.errors import LedgerError

BUSY_SECONDS = 60.0

_BUSY = "SQLITE_BUSY"
_REASONS = {
    "SQLITE_FULL": "the disk is full",
    "SQLITE_READONLY_DBMOVED": "the file was moved or deleted while it was open",
    "SQLITE_READONLY": "the file, or its folder, cannot be written to",
    "SQLITE_CORRUPT": "the file is damaged; restore a copy, and treat what is missing as spent",
    "SQLITE_NOTADB": "the file is not a ledger, or its beginning is damaged",
    "SQLITE_CANTOPEN": "the file cannot be opened; its folder has to be writable too",
    "SQLITE_IOERR": "reading or writing failed; the disk may be full or broken",
    "SQLITE_CONSTRAINT": "the entry contradicts one that is there",
}


def too_long() -> str:
    """Why waiting for the file ended, as a clause."""
    return f"another process has kept the file locked for {BUSY_SECONDS:g} s"


def is_busy(error: sqlite3.Error) -> bool:
    """Whether SQLite only found the file locked."""
    return _name(error).startswith(_BUSY)


def reason_of(error: sqlite3.Error) -> str:
    """Why SQLite refused, as a clause."""
    name = _name(error)
    if name.startswith(_BUSY):
        return too_long()
    for prefix, reason in _REASONS.items():
        if name.startswith(prefix):
            return reason
    if str(error).startswith("Could not decode"):
        return "an entry is not text; the ledger is damaged"
    return line(str(error)) or type(error).__name__


class translated:  # noqa: N801 - used as a function
    """Turns what SQLite and the system raise into a `LedgerError` that names the file.

    A class, since every round enters it some twenty times: a generator takes longer.
    """

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        match error:
            case None:
                return
            case sqlite3.Error():
                reason = reason_of(error)
            case OSError():
                why = error.strerror or type(error).__name__
                reason = f"the ledger cannot be read or written: {why}"
            case UnicodeDecodeError():
                reason = "an entry is not text; the ledger is damaged"
            case _:
                return
        raise LedgerError(f"{self._path}: {reason}.") from None


def _name(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", "") or ""
