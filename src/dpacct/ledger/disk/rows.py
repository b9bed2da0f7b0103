"""Entries as rows of an SQLite table, which are added and never changed.

Rule 1: what is read is checked: the types of a row, and, of an entry that says how much was spent,
its hash. `entries` alone reads as it stands, for `verify`.
Rule 2: while a transaction lasts, nobody else changes what it reads. So the latest entry is read
and checked once in it, and again behind each entry that is added.
"""

from __future__ import annotations

import sqlite3
from pathlib import Path

from dpacct.errors import LedgerError
from dpacct.ledger.record.chain import GENESIS, Entry, link

APPLICATION_ID = 0x6470_6163  # "dpac"
# Version 2 (dpacct 0.2) has the same tables; its federated rounds may have to be read as zero-out.
SCHEMA_VERSION = 3
_OLDEST_VERSION = 2
# What an entry says where a trainer of version 0.2 registered its run, or charged its round.
_TRAINED = ("kind = 'run' AND text LIKE '%\"setting\":%'",
            "kind = 'reserve' AND text LIKE '%\"noise_std\":%'",
            "kind = 'reserve' AND text LIKE '%\"by\":\"opacus\"%'")  # fmt: skip

_TABLE = (
    "CREATE TABLE entries (number INTEGER PRIMARY KEY, run INTEGER NOT NULL, kind TEXT NOT NULL, "
    "closes INTEGER UNIQUE, text TEXT NOT NULL, hash BLOB NOT NULL)"
)
_INDEX = "CREATE INDEX entries_by_run ON entries (run, number)"
_NO_DELETE = (
    "CREATE TRIGGER entries_stay BEFORE DELETE ON entries "
    "BEGIN SELECT RAISE(ABORT, 'entries are never deleted'); END"
)
_NO_UPDATE = (
    "CREATE TRIGGER entries_keep BEFORE UPDATE ON entries "
    "BEGIN SELECT RAISE(ABORT, 'entries are never changed'); END"
)
SCHEMA = (_TABLE, _INDEX, _NO_DELETE, _NO_UPDATE)

NO_LIMIT = 2**63 - 1
_COLUMNS = "number, kind, run, text, hash"
_BEFORE = "(SELECT hash FROM entries AS earlier WHERE earlier.number = entries.number - 1)"
_MOST_PROBLEMS = 20


class Rows:
    """The entries that one connection sees in one transaction, up to a number.

    Args:
        path: of the ledger, for messages.
        connection: an open one, inside a transaction.
        limit: the latest entry that is seen.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, limit: int = NO_LIMIT) -> None:
        self.path = path
        self._connection = connection
        self._limit = limit
        self._head: Entry | None = None

    def head(self) -> Entry:
        """The latest entry, its hash checked.

        Raises:
            LedgerError: there is none, or it is damaged.
        """
        if self._head is None:
            self._head = self._select("number > ? ORDER BY number DESC LIMIT 1", 0)
        if self._head is None:
            raise LedgerError(f"{self.path}: the ledger has no entries; it is damaged.")
        return self._head

    def entry(self, number: int) -> Entry:
        """One entry, its hash checked."""
        if self._head is not None and self._head.number == number:
            return self._head
        found = self._select("number = ?", number)
        if found is None:
            raise LedgerError(f"{self.path}: entry {number} is missing; the ledger is damaged.")
        return found

    def latest_of_run(self, run: int) -> Entry | None:
        """The latest entry of a run, its hash checked; None where there is no such run."""
        return self._select("run = ? ORDER BY number DESC LIMIT 1", run)

    def first_of_run(self, run: int) -> Entry | None:
        """The entry that registered a run, its hash checked."""
        return self._select("run = ? ORDER BY number LIMIT 1", run)

    def add(self, entry: Entry, closes: int | None) -> None:
        """Add an entry; ``closes`` is the reservation that it settles."""
        self._head = None
        insert(self._connection, entry, closes)

    def is_closed(self, number: int) -> bool:
        """Whether a reservation was committed or abandoned."""
        query = "SELECT 1 FROM entries WHERE number <= ? AND closes = ?"
        return self._connection.execute(query, (self._limit, number)).fetchone() is not None

    def commits_behind(self, number: int) -> int:
        """How many rounds were released behind an entry."""
        query = "SELECT count(*) FROM entries WHERE number > ? AND number <= ? AND kind = 'commit'"
        (count,) = self._connection.execute(query, (number, self._limit)).fetchone()
        return count

    def latest(self) -> int:
        """The number of the latest entry, unchecked; 0 if there is none."""
        query = "SELECT coalesce(max(number), 0) FROM entries WHERE number <= ?"
        (number,) = self._connection.execute(query, (self._limit,)).fetchone()
        return number

    def chunk(self, after: int, size: int) -> list[tuple[Entry, int | None]]:
        """The next entries behind a number, unchecked, each with the reservation it settles."""
        query = (
            f"SELECT {_COLUMNS}, closes FROM entries WHERE number > ? AND number <= ? "  # noqa: S608 - constants
            f"ORDER BY number LIMIT ?"
        )
        rows = self._connection.execute(query, (after, self._limit, size)).fetchall()
        return [(_entry(self.path, columns), closes) for *columns, closes in rows]

    def problems(self) -> list[str]:
        """What SQLite finds wrong with the file, and what is wrong with its tables."""
        rows = self._connection.execute(f"PRAGMA integrity_check({_MOST_PROBLEMS})").fetchall()
        # SQLite puts several lines into one.
        problems = [" ".join(str(row[0]).split()) for row in rows if row[0] != "ok"]
        query = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"
        if {str(row[0]) for row in self._connection.execute(query)} != set(SCHEMA):
            problems.append("the tables are not those of a ledger")
        # They would be read as entries of runs, but not as part of the chain.
        (odd,) = self._connection.execute(
            "SELECT count(*) FROM entries WHERE number < 1"
        ).fetchone()
        if odd:
            problems.append(f"{odd} entries are numbered below 1")
        return problems

    def check_header(self) -> int:
        """The version of the tables.

        Raises:
            LedgerError: the file is no ledger, or of a later version.
        """
        (application,) = self._connection.execute("PRAGMA application_id").fetchone()
        (version,) = self._connection.execute("PRAGMA user_version").fetchone()
        if application != APPLICATION_ID:
            raise LedgerError(f"{self.path}: this is a database, but not a ledger of dpacct.")
        if version > SCHEMA_VERSION:
            raise LedgerError(
                f"{self.path}: a later dpacct wrote this ledger (schema {version}; this one "
                f"knows up to {SCHEMA_VERSION}). Use that one."
            )
        if version == 1:
            raise LedgerError(
                f"{self.path}: dpacct 0.1 wrote this ledger. Open it once with dpacct 0.2."
            )
        if version < _OLDEST_VERSION:
            raise LedgerError(f"{self.path}: the ledger has no schema version; it is damaged.")
        return version

    def trained(self) -> bool:
        """Whether a trainer charged any of the rounds, or registered a run."""
        query = f"SELECT 1 FROM entries WHERE {' OR '.join(_TRAINED)} LIMIT 1"  # noqa: S608 - constants
        return self._connection.execute(query).fetchone() is not None

    def relabelled(self) -> bool:
        """Whether the rounds of version 0.2 were relabelled."""
        query = "SELECT 1 FROM entries WHERE run = 0 AND kind = 'relabel' LIMIT 1"
        return self._connection.execute(query).fetchone() is not None

    def bring_up_to_date(self) -> None:
        """From here on the file is of this version."""
        set_version(self._connection)

    def _select(self, clause: str, value: int) -> Entry | None:
        """The entry that a clause finds, its hash checked."""
        query = f"SELECT {_COLUMNS}, {_BEFORE} FROM entries WHERE number <= ? AND {clause}"  # noqa: S608 - constants
        row = self._connection.execute(query, (self._limit, value)).fetchone()
        if row is None:
            return None
        *columns, before = row
        entry = _entry(self.path, columns)
        previous = GENESIS if entry.number <= 1 else before
        if not isinstance(previous, bytes) or link(previous, entry.text) != entry.hash:
            raise LedgerError(
                f"{self.path}: the chain is broken at entry {entry.number}; the file was damaged "
                f"or changed. `dpacct ledger verify` says more."
            )
        return entry


def make_tables(connection: sqlite3.Connection, first: Entry) -> None:
    """All that a new ledger holds."""
    for statement in SCHEMA:
        connection.execute(statement)
    insert(connection, first, None)
    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
    set_version(connection)


def set_version(connection: sqlite3.Connection) -> None:
    """From here on the file is of this version."""
    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")


def insert(connection: sqlite3.Connection, entry: Entry, closes: int | None) -> None:
    """Add an entry; ``closes`` is the reservation that it settles."""
    connection.execute(
        "INSERT INTO entries (number, run, kind, closes, text, hash) VALUES (?, ?, ?, ?, ?, ?)",
        (entry.number, entry.run, entry.kind, closes, entry.text, entry.hash),
    )


def _entry(path: Path, columns: list[object]) -> Entry:
    match columns:
        case [int(number), str(kind), int(run), str(text), bytes(hash_)]:
            return Entry(number, kind, run, text, hash_)
        case _:
            raise LedgerError(f"{path}: an entry has the wrong types; the ledger is damaged.")
