"""The file: an SQLite database to which entries are only ever appended.

Rule 1: the file comes into being complete, under its own name, or not at all.
Rule 2: an entry is on disk (WAL, full sync) before the call that writes it returns.
Rule 3: what is read and written together happens in one transaction that excludes other writers.
Rule 4: whatever SQLite or the system refuses becomes a `LedgerError` of one sentence.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from dpacct.errors import LedgerError
from dpacct.ledger.chain import GENESIS, Entry, link
from dpacct.ledger.failures import BUSY_SECONDS, reason_of, translated

APPLICATION_ID = 0x6470_6163  # "dpac"
SCHEMA_VERSION = 1

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

_COLUMNS = "number, kind, run, text, hash"
# So many entries are read at once: a few milliseconds, for which writers wait.
CHUNK = 500
_NO_LIMIT = 2**63 - 1


class Store:
    """An open ledger file; use `Store.create` or `Store.open`.

    `as_of` gives the file as it was when an entry was its latest. Since entries are never changed,
    all that is read from such a store belongs together, whoever writes meanwhile and however long
    the reading takes, and no lock is held for it.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection, limit: int = _NO_LIMIT) -> None:
        self.path = path
        self._connection = connection
        self._limit = limit
        self._process = os.getpid()
        self._inside = False

    def as_of(self, number: int | None = None) -> Store:
        """The file as it was when entry ``number``, by default the latest, had been written.

        `head`, `entry`, `latest_of_run`, `first_of_run`, `is_closed` and `entries` see no later
        entry. It shares the open file, is closed with it, and cannot be written to.

        Raises:
            LedgerError: there is no such entry.
        """
        limit = self.head().number if number is None else self.entry(number).number
        return Store(self.path, self._connection, limit)

    @classmethod
    def create(cls, path: Path, first: Entry) -> bool:
        """Make a new file with its first entry.

        Returns:
            Whether it was made; False if another process was faster.
        Raises:
            LedgerError: the folder is missing or cannot be written to, or the disk is full.
        """
        draft = path.with_name(f".{path.name}.{os.getpid()}-{time.monotonic_ns()}")
        try:
            connection = _connect(f"{draft.absolute().as_uri()}?mode=rwc")
            try:
                with translated(path):
                    connection.execute("PRAGMA synchronous=FULL")
                    connection.execute("BEGIN IMMEDIATE")
                    for statement in SCHEMA:
                        connection.execute(statement)
                    _insert(connection, first, None)
                    connection.execute(f"PRAGMA application_id={APPLICATION_ID}")
                    connection.execute(f"PRAGMA user_version={SCHEMA_VERSION}")
                    connection.execute("COMMIT")
            finally:
                connection.close()
            # A link fails where the name exists already: nobody's ledger is ever replaced.
            os.link(draft, path)
            _sync_folder(path.parent)
        except FileExistsError:
            return False
        except sqlite3.Error as error:
            raise LedgerError(f"{path}: no ledger can be made: {reason_of(error)}.") from None
        except OSError as error:
            reason = error.strerror or "unknown reason"
            raise LedgerError(f"{path}: no ledger can be made: {reason}.") from None
        finally:
            with suppress(OSError):
                draft.unlink(missing_ok=True)
        return True

    @classmethod
    def open(cls, path: Path, *, read_only: bool) -> Store:
        """Open an existing file.

        Raises:
            LedgerError: it is missing, damaged, no ledger, or of a later version.
        """
        try:
            size = path.stat().st_size
        except OSError as error:
            reason = error.strerror or "unknown reason"
            raise LedgerError(f"{path}: no ledger can be opened: {reason}.") from None
        if not path.is_file():
            raise LedgerError(f"{path}: no ledger can be opened: it is not a file.")
        if size == 0:
            raise LedgerError(
                f"{path}: the file is empty, and a ledger never is. If nothing was ever released "
                f"under it, delete it; else restore a copy."
            )
        with translated(path):
            connection = _open(path, read_only=read_only)
            store = cls(path, connection)
            try:
                store._check_header(read_only=read_only)
            except BaseException:
                connection.close()
                raise
        return store

    def _check_header(self, *, read_only: bool) -> None:
        with translated(self.path):
            (application,) = self._connection.execute("PRAGMA application_id").fetchone()
            (version,) = self._connection.execute("PRAGMA user_version").fetchone()
            if application != APPLICATION_ID:
                raise LedgerError(f"{self.path}: this is a database, but not a ledger of dpacct.")
            if version > SCHEMA_VERSION:
                raise LedgerError(
                    f"{self.path}: a later dpacct wrote this ledger (schema {version}; this one "
                    f"knows up to {SCHEMA_VERSION}). Use that one."
                )
            if version < 1:
                raise LedgerError(f"{self.path}: the ledger has no schema version; it is damaged.")
            if not read_only:
                (mode,) = self._connection.execute("PRAGMA journal_mode=WAL").fetchone()
                if mode != "wal":
                    raise LedgerError(
                        f"{self.path}: this file system has no write-ahead log (mode {mode}); a "
                        f"ledger needs a local disk."
                    )
                self._connection.execute("PRAGMA synchronous=FULL")
                # Where a plain sync leaves data in the disk's cache (macOS); elsewhere nothing.
                self._connection.execute("PRAGMA fullfsync=1")

    def close(self) -> None:
        """Close the file; calling it twice does no harm."""
        with suppress(sqlite3.Error):
            self._connection.close()

    @contextmanager
    def writing(self) -> Generator[None]:
        """A transaction that excludes other writers; on disk when it ends, or undone.

        One inside another is part of it, and ends with it.

        Raises:
            LedgerError: it could not be written. Nothing of it counts then.
        """
        self._check_process()
        if self._limit != _NO_LIMIT:
            raise LedgerError(f"{self.path}: what the ledger was at an entry cannot be changed.")
        if self._inside:
            yield
            return
        with translated(self.path):
            self._connection.execute("BEGIN IMMEDIATE")
            self._inside = True
            try:
                yield
                self._connection.execute("COMMIT")
            except BaseException:
                with suppress(sqlite3.Error):
                    self._connection.execute("ROLLBACK")
                raise
            finally:
                self._inside = False

    def append(self, entry: Entry, closes: int | None = None) -> None:
        """Add an entry, inside `writing`; ``closes`` is the reservation that it settles."""
        _insert(self._connection, entry, closes)

    def head(self) -> Entry:
        """The latest entry, its hash checked.

        Raises:
            LedgerError: there is none, or it is damaged.
        """
        (entry,) = self._select("number > ? ORDER BY number DESC LIMIT 1", 0) or (None,)
        if entry is None:
            raise LedgerError(f"{self.path}: the ledger has no entries; it is damaged.")
        return self._checked(entry)

    def entry(self, number: int) -> Entry:
        """One entry, its hash checked."""
        found = self._select("number = ?", number)
        if not found:
            raise LedgerError(f"{self.path}: entry {number} is missing; the ledger is damaged.")
        return self._checked(found[0])

    def latest_of_run(self, run: int) -> Entry | None:
        """The latest entry of a run, its hash checked; None where there is no such run."""
        found = self._select("run = ? ORDER BY number DESC LIMIT 1", run)
        return self._checked(found[0]) if found else None

    def first_of_run(self, run: int) -> Entry | None:
        """The entry that registered a run, its hash checked."""
        found = self._select("run = ? ORDER BY number LIMIT 1", run)
        return self._checked(found[0]) if found else None

    def is_closed(self, number: int) -> bool:
        """Whether a reservation was committed or abandoned."""
        self._check_process()
        with translated(self.path):
            query = "SELECT 1 FROM entries WHERE number <= ? AND closes = ?"
            return self._connection.execute(query, (self._limit, number)).fetchone() is not None

    def entries(self, after: int = 0) -> Iterator[tuple[Entry, int | None]]:
        """All entries behind a number in their order, unchecked, each with what it closes.

        What is written while they are read is left out. They are read `CHUNK` at a time.
        """
        self._check_process()
        upto = min(self._limit, self._latest())
        while after < upto:
            with translated(self.path):
                query = (
                    f"SELECT {_COLUMNS}, closes FROM entries WHERE number > ? AND number <= ? "  # noqa: S608 - constants
                    f"ORDER BY number LIMIT {CHUNK}"
                )
                rows = self._connection.execute(query, (after, upto)).fetchall()
                for *columns, closes in rows:
                    yield _entry(self.path, columns), closes
            after = rows[-1][0] if rows else upto

    def _latest(self) -> int:
        with translated(self.path):
            query = "SELECT coalesce(max(number), 0) FROM entries"
            (number,) = self._connection.execute(query).fetchone()
        return number

    def integrity(self) -> list[str]:
        """What SQLite itself finds wrong with the file, and with its schema."""
        self._check_process()
        with translated(self.path):
            rows = self._connection.execute("PRAGMA integrity_check(20)").fetchall()
            problems = [str(row[0]) for row in rows if row[0] != "ok"]
            query = "SELECT sql FROM sqlite_master WHERE sql IS NOT NULL"
            found = {str(row[0]) for row in self._connection.execute(query)}
        if found != set(SCHEMA):
            problems.append("the tables are not those of a ledger")
        return problems

    def _select(self, clause: str, value: int) -> list[Entry]:
        self._check_process()
        with translated(self.path):
            query = f"SELECT {_COLUMNS} FROM entries WHERE number <= ? AND {clause}"  # noqa: S608 - constants
            rows = self._connection.execute(query, (self._limit, value)).fetchall()
        return [_entry(self.path, list(row)) for row in rows]

    def _checked(self, entry: Entry) -> Entry:
        previous = GENESIS
        if entry.number > 1:
            found = self._select("number = ?", entry.number - 1)
            previous = found[0].hash if found else b""
        if link(previous, entry.text) != entry.hash:
            raise LedgerError(
                f"{self.path}: the chain is broken at entry {entry.number}; the file was damaged "
                f"or changed. `dpacct ledger verify` says more."
            )
        return entry

    def _check_process(self) -> None:
        if os.getpid() != self._process:
            raise LedgerError(
                f"{self.path}: the ledger was opened by another process; open it in this one."
            )


def _entry(path: Path, columns: list[object]) -> Entry:
    match columns:
        case [int(number), str(kind), int(run), str(text), bytes(hash_)]:
            return Entry(number, kind, run, text, hash_)
        case _:
            raise LedgerError(f"{path}: an entry has the wrong types; the ledger is damaged.")


def _insert(connection: sqlite3.Connection, entry: Entry, closes: int | None) -> None:
    connection.execute(
        "INSERT INTO entries (number, run, kind, closes, text, hash) VALUES (?, ?, ?, ?, ?, ?)",
        (entry.number, entry.run, entry.kind, closes, entry.text, entry.hash),
    )


def _connect(uri: str) -> sqlite3.Connection:
    return sqlite3.connect(uri, timeout=BUSY_SECONDS, isolation_level=None, uri=True)


def _open(path: Path, *, read_only: bool) -> sqlite3.Connection:
    uri = path.absolute().as_uri()
    if not read_only:
        return _connect(f"{uri}?mode=rw")
    connection = _connect(f"{uri}?mode=ro")
    try:
        connection.execute("SELECT 1 FROM sqlite_master").fetchone()
    except sqlite3.OperationalError:
        connection.close()
        if path.with_name(path.name + "-wal").exists():
            raise
        # A log would have to be made to read it, in a folder that cannot be written to. There is
        # none, so that nobody is writing now, and the file itself is complete.
        connection = _connect(f"{uri}?mode=ro&immutable=1")
    return connection


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
