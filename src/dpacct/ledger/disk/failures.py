"""What SQLite refuses, in one sentence of our own."""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

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


@contextmanager
def translated(path: Path) -> Generator[None]:
    """Turns what SQLite and the system raise into a `LedgerError` that names the file."""
    try:
        yield
    except sqlite3.Error as error:
        raise LedgerError(f"{path}: {reason_of(error)}.") from None
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise LedgerError(f"{path}: the ledger cannot be read or written: {reason}.") from None
    except UnicodeDecodeError:
        raise LedgerError(f"{path}: an entry is not text; the ledger is damaged.") from None


def _name(error: sqlite3.Error) -> str:
    return getattr(error, "sqlite_errorname", "") or ""
