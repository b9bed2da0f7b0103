"""Entries as rows of an SQLite table, which are added and never changed, and the latest totals.

Rule 1: each reading checks the types of a row, and the hash of an entry. Only
`StoredEntries.chunk` reads unchecked entries, for a replay.
Rule 2: no other process changes the entries during a transaction. So the latest entry is read and
checked once in it.
Rule 3: errors of SQLite and of the system become a `LedgerError` of one sentence.
Rule 4: a file from somebody else runs nothing and ends nothing. It has no table, view or trigger
that a ledger lacks, since these are programs. A transaction takes no more steps than
its file explains, since a forged page may lead back to itself.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from dpacct.display import line
from dpacct.errors import LedgerError
from dpacct.ledger.disk.lock import BUSY_SECONDS, fcntl
from dpacct.ledger.disk.place import reason_of
from dpacct.ledger.record.entries import GENESIS, Entry, digest_of, link, reading

APPLICATION_ID = 0x6470_6163  # "dpac"
# Version 3 (dpacct 0.3) has the same entries, each with its totals, and no other table.
SCHEMA_VERSION = 4
_OLDEST_VERSION = 3

_TABLE = (
    "CREATE TABLE entries (number INTEGER PRIMARY KEY, run INTEGER NOT NULL, kind TEXT NOT NULL, "
    "closes INTEGER UNIQUE, text TEXT NOT NULL, hash BLOB NOT NULL)"
)
_STAY = (
    "CREATE TRIGGER entries_stay BEFORE DELETE ON entries "
    "BEGIN SELECT RAISE(ABORT, 'entries are never deleted'); END"
)
_KEEP = (
    "CREATE TRIGGER entries_keep BEFORE UPDATE ON entries "
    "BEGIN SELECT RAISE(ABORT, 'entries are never changed'); END"
)
OLD_SCHEMA = (_TABLE, "CREATE INDEX entries_by_run ON entries (run, number)", _STAY, _KEEP)
# Entries of which a run has few. The others are found by their numbers.
_FEW = "kind NOT IN ('reserve', 'commit', 'row')"
_NEW = (
    f"CREATE INDEX entries_of_run ON entries (run, number) WHERE {_FEW}",
    "CREATE TABLE states (number INTEGER PRIMARY KEY, run INTEGER NOT NULL UNIQUE, text TEXT)",
    "CREATE TABLE verified (number INTEGER PRIMARY KEY, hash BLOB NOT NULL, text TEXT NOT NULL)",
)
SCHEMA = (_TABLE, _STAY, _KEEP, *_NEW)
NO_LIMIT = 2**63 - 1
_COLUMNS = "number, kind, run, closes, text, hash"
_BEFORE = "(SELECT hash FROM entries AS earlier WHERE earlier.number = entries.number - 1)"
_MOST_PROBLEMS = 20
_OTHER_TABLES = "the tables are not those of a ledger"
# Rows read at once: a few milliseconds, for which writers wait.
CHUNK = 500
# Seconds to wait for a program that locks the file by SQLite alone: without flock, any. SQLite lets
# none of them be next, so that a writer among busy ones may wait long.
PATIENCE = 10.0 if fcntl else BUSY_SECONDS
# Steps of SQLite that a page of the file explains: it holds at most hundreds of rows, each of which
# takes at most tens of steps.
_STEPS_A_PAGE = 20_000

_REASONS = {
    "SQLITE_BUSY": "another program has kept the file locked",
    "SQLITE_FULL": "the disk is full",
    "SQLITE_READONLY_DBMOVED": "the file was moved or deleted while it was open",
    "SQLITE_READONLY": "the file, or its folder, cannot be written to",
    "SQLITE_CORRUPT": "the file is damaged. Restore a copy, and treat the missing rounds as spent",
    "SQLITE_NOTADB": "the file is not a ledger, or its beginning is damaged",
    "SQLITE_CANTOPEN": "the file cannot be opened. Its folder has to be writable too",
    "SQLITE_IOERR": "reading or writing failed. The disk may be full or broken",
    "SQLITE_CONSTRAINT": "the entry contradicts one that is there",
    "SQLITE_INTERRUPT": "the file is damaged: its pages do not end",
}


def begins_as_ledger(head: bytes) -> bool:
    """Return whether the first 72 bytes of a file are those of a ledger."""
    return head.startswith(b"SQLite format 3\x00") and head[68:72] == APPLICATION_ID.to_bytes(4)


class StoredEntries:
    """The entries of one connection in one transaction, up to the number ``limit``."""

    # Of a writer: the epsilon of the initial plans, for a store that checks the charge itself.
    aside: Callable[[], float | None] | None = None

    def __init__(self, path: Path, connection: sqlite3.Connection, limit: int = NO_LIMIT) -> None:
        self.path = path
        self._connection = connection
        self._limit = limit
        self._head: Entry | None = None
        self._old: bool | None = None
        (pages,) = connection.execute("PRAGMA page_count").fetchone()
        explained = iter(range(100 + pages))
        connection.set_progress_handler(lambda: next(explained, None) is None, _STEPS_A_PAGE)

    def head(self) -> Entry:
        """Return the latest entry, its hash checked."""
        if self._head is None:
            self._head = self._select("number > ? ORDER BY number DESC LIMIT 1", 0)
        if self._head is None:
            raise LedgerError(f"{self.path}: the ledger is damaged: it has no entries.")
        return self._head

    def entry(self, number: int) -> Entry:
        """Return one entry, its hash checked."""
        if self._head is not None and self._head.number == number:
            return self._head
        found = self._select("number = ?", number)
        if found is None:
            raise LedgerError(f"{self.path}: the ledger is damaged: entry {number} is missing.")
        return found

    @property
    def old(self) -> bool:
        """True for a file of version 0.3, which has no stored totals."""
        if self._old is None:
            self._old = self._version() == _OLDEST_VERSION
        return self._old

    def _version(self) -> int:
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        return version

    def of_run(
        self, run: int, *, first: bool = False, kind: str = "", until: int = NO_LIMIT
    ) -> Entry | None:
        """Return the first entry of a run, or its latest one of a kind, its hash checked, or None.

        Args:
            first: the entry that registered it.
            kind: that it has else.
            until: it has at most this number.
        """
        among = f"run = ? AND {_FEW} ORDER BY number" if first else f"run = ? AND kind = '{kind}'"
        return self._select(
            f"{among}{'' if first else ' ORDER BY number DESC'} LIMIT 1", run, until
        )

    def latest_kinds(self, most: int) -> list[int]:
        """Return the numbers of the latest entries that describe kinds of rounds."""
        query = (
            f"SELECT number FROM entries WHERE run = 0 AND {_FEW} AND kind = 'kind' "  # noqa: S608 - constants
            "ORDER BY number DESC LIMIT ?"
        )
        return [number for (number,) in self._connection.execute(query, (most,))]

    def is_closed(self, closes: int) -> bool:
        """Return whether a reserved round was committed or abandoned, by what settles it."""
        return self._count("closes = ?", closes) > 0

    def states(self, after: int = 0) -> list[tuple[int, int, str]]:
        """Return the stored totals of runs with entries behind a number: its latest, run, text.

        Each has the digest that its entry says, and those behind the latest entry of all are there.
        """
        query = "SELECT number, run, text FROM states WHERE number > ? ORDER BY number"
        found: list[Any] = self._connection.execute(query, (after,)).fetchall()
        if any([type(column) for column in row] != [int, int, str] for row in found):
            raise LedgerError(f"{self.path}: the ledger is damaged: totals have the wrong types.")
        recount = None
        for number, run, text in found:
            entry = self.entry(number)
            try:
                with reading():
                    said = entry.digest
                    if entry.old:
                        recount = recount or self.of_run(0, kind="recount")
                        said = recount and recount.data["runs"][str(run)]
            except LedgerError as error:
                raise LedgerError(f"{self.path}: entry {number}: {error}.") from None
            if entry.run != run or said != digest_of(text):
                raise LedgerError(
                    f"{self.path}: entry {number}: the totals behind it were changed. Restore a "
                    f"copy, and treat the missing rounds as spent."
                )
        number = self.head().number
        if number > after and (not found or found[-1][0] != number):
            raise LedgerError(f"{self.path}: the totals behind the latest entry are missing.")
        return found

    def add(self, entry: Entry, totals: str | None) -> None:
        """Add an entry, with the totals behind it that replace those of its run."""
        self._connection.execute(
            "INSERT INTO entries (number, run, kind, closes, text, hash) VALUES (?, ?, ?, ?, ?, ?)",
            (entry.number, entry.run, entry.kind, entry.closes, entry.text, entry.hash),
        )
        if totals is not None:
            self.put_totals(entry.number, entry.run, totals)
        self._head = entry

    def put_totals(self, number: int, run: int, totals: str) -> None:
        """Store the totals of a run as of its latest entry, in place of earlier ones."""
        self._connection.execute("REPLACE INTO states VALUES (?, ?, ?)", (number, run, totals))

    def verified(self) -> tuple[int, bytes, str] | None:
        """Return what was kept by the latest verification: the entry, its hash, and its replay."""
        if self.old:
            return None
        found = self._connection.execute("SELECT number, hash, text FROM verified").fetchone()
        if found and [type(column) for column in found] != [int, bytes, str]:
            raise LedgerError(f"{self.path}: the ledger is damaged: a head has the wrong types.")
        return found

    def keep_verified(self, number: int, hash_: bytes, text: str) -> None:
        """Keep that all entries were verified up to one, and the text of their replay."""
        self._connection.execute("DELETE FROM verified")
        self._connection.execute("INSERT INTO verified VALUES (?, ?, ?)", (number, hash_, text))

    def released(self) -> int:
        """Return the number of released rounds of all runs."""
        if self.old:
            return self._count("kind = 'commit' AND number > ?", 0)
        query = "SELECT text FROM states ORDER BY number DESC LIMIT 1"
        found = self._connection.execute(query).fetchone()
        try:
            return int(json.loads(found[0])["ledger"]["committed"])
        except (LookupError, TypeError, ValueError):
            raise LedgerError(f"{self.path}: the ledger is damaged: it has no totals.") from None

    def chunk(self, after: int) -> list[Entry]:
        """Return the next entries behind a number, unchecked."""
        query = (
            f"SELECT {_COLUMNS} FROM entries WHERE number > ? AND number <= ? "  # noqa: S608 - constants
            f"ORDER BY number LIMIT {CHUNK}"
        )
        rows = self._connection.execute(query, (after, self._limit)).fetchall()
        if any(one >= next_ for (one, *_), (next_, *_) in pairwise([(after,), *rows])):
            raise LedgerError(f"{self.path}: the ledger is damaged: its entries are not in order.")
        return [_entry(self.path, columns) for columns in rows]

    def problems(self) -> list[str]:
        """Return the errors that SQLite finds in the file, and those of its tables."""
        rows = self._connection.execute(f"PRAGMA integrity_check({_MOST_PROBLEMS})").fetchall()
        # SQLite puts several lines into one.
        problems = [" ".join(str(row[0]).split()) for row in rows if row[0] != "ok"]
        if self._statements() != set(OLD_SCHEMA if self.old else SCHEMA):
            problems.append(_OTHER_TABLES)
        # They would be read as entries of runs, but not as part of the chain.
        if odd := self._count("number < 1"):
            problems.append(f"{odd} entries are numbered below 1")
        return problems

    def version(self) -> int:
        """Return the version of the tables. No other table, view or trigger is there (Rule 4)."""
        version = self._version()
        if version > SCHEMA_VERSION:
            raise LedgerError(
                f"{self.path}: a later dpacct wrote this ledger (schema {version}; this one "
                f"knows up to {SCHEMA_VERSION}). Use that one."
            )
        if version in (1, 2):
            raise LedgerError(
                f"{self.path}: dpacct 0.{version} wrote this ledger. Open it once for writing with "
                f"dpacct {'0.2, then with 0.3' if version == 1 else '0.3'}."
            )
        if version < _OLDEST_VERSION:
            raise LedgerError(f"{self.path}: the ledger is damaged: it has no schema version.")
        if not self._statements() <= set(SCHEMA + OLD_SCHEMA):
            raise LedgerError(f"{self.path}: the ledger is damaged: {_OTHER_TABLES}.")
        if self._count("run = 0 AND kind = 'relabel'"):
            raise LedgerError(
                f"{self.path}: dpacct 0.2 charged rounds of this ledger as add-remove. Read it "
                f"with dpacct 0.3, and charge its rounds to a new ledger."
            )
        return version

    def _statements(self) -> set[object]:
        """Return the statements that made the tables, indices, views and triggers of the file."""
        query = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"
        return {row[0] for row in self._connection.execute(query)}

    def bring_up_to_date(self) -> None:
        """Make a file of version 0.3 one of this version, with the transaction, without totals."""
        for statement in ("DROP INDEX entries_by_run", *_NEW):
            self._connection.execute(statement)
        self._connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
        self._old = False

    def _count(self, clause: str, *values: int) -> int:
        query = f"SELECT count(*) FROM entries WHERE number <= ? AND {clause}"  # noqa: S608 - constants
        (number,) = self._connection.execute(query, (self._limit, *values)).fetchone()
        return number

    def _select(self, clause: str, value: int, until: int = NO_LIMIT) -> Entry | None:
        """Return the entry that a clause finds, its hash checked."""
        query = f"SELECT {_COLUMNS}, {_BEFORE} FROM entries WHERE number <= ? AND {clause}"  # noqa: S608 - constants
        row = self._connection.execute(query, (min(until, self._limit), value)).fetchone()
        if row is None:
            return None
        *columns, before = row
        entry = _entry(self.path, columns)
        previous = GENESIS if entry.number <= 1 else before
        if not isinstance(previous, bytes) or link(previous, entry) != entry.hash:
            raise LedgerError(
                f"{self.path}: the chain is broken at entry {entry.number}. The file was damaged "
                f"or changed. `dpacct ledger verify` lists the errors."
            )
        return entry


def _entry(path: Path, columns: Sequence[object]) -> Entry:
    match columns:
        case [int(number), str(kind), int(run), int() | None as closes, str(text), bytes(hash_)]:
            return Entry(number, kind, run, closes, text, hash_)
        case _:
            raise LedgerError(f"{path}: the ledger is damaged: an entry has the wrong types.")


def make_tables(connection: sqlite3.Connection, path: Path, first: Entry, totals: str) -> None:
    """Make the tables of a new ledger, with its first entry and the totals behind it."""
    for statement in (*SCHEMA, f"PRAGMA application_id={APPLICATION_ID}"):
        connection.execute(statement)
    StoredEntries(path, connection).add(first, totals)
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")


def connect(file: Path, mode: str) -> sqlite3.Connection:
    """Return a connection that writes safely. ``mode`` is that of SQLite's URIs."""
    uri = f"{file.as_uri()}?mode={mode}"
    connection = sqlite3.connect(uri, timeout=PATIENCE, isolation_level=None, uri=True)
    # EXTRA: a journal that is deleted stays deleted, whatever happens to the power.
    connection.execute("PRAGMA synchronous=EXTRA")
    # A plain sync leaves data in the disk's cache on macOS. Elsewhere this does nothing.
    connection.execute("PRAGMA fullfsync=1")
    connection.execute("PRAGMA cell_size_check=1")
    return connection


def reason_of_sqlite(error: sqlite3.Error) -> str:
    """Return the reason of an error of SQLite, as a clause."""
    name = getattr(error, "sqlite_errorname", "") or ""
    for prefix, reason in _REASONS.items():
        if name.startswith(prefix):
            return reason
    return line(str(error)) or type(error).__name__


@contextmanager
def translated(path: Path) -> Generator[None]:
    """Turn errors of SQLite and of the system into a `LedgerError` that names the file (Rule 3)."""
    try:
        yield
    except sqlite3.Error as error:
        reason = reason_of_sqlite(error)
        if reason.startswith("Could not decode"):
            reason = "the ledger is damaged: an entry is not text"
    except OSError as error:
        reason = f"the ledger cannot be read or written: {reason_of(error)}"
    except UnicodeDecodeError:
        reason = "the ledger is damaged: an entry is not text"
    else:
        return
    raise LedgerError(f"{path}: {reason}.")
