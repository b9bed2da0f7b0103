"""The store: entries that are only ever appended, in one SQLite file, and put right after a crash.

Rule 1: the file comes into being complete, under its own name, or not at all. Its owner alone may
read and write it (mode 0600), and may open it to a group.
Rule 2: an entry is on disk before the call that writes it returns, and then in the witness.
Rule 3: readings and writes that belong together are one transaction that excludes other writers.
Rule 4: a file that has lost entries since an earlier reading, or since its witness, is rejected.
Rule 5: a write that is cut short is undone by a rollback journal. A journal that a crash left is
applied to a copy first, and to the file only if the ledger is whole then. A reader goes on with
that copy, and leaves nothing behind. A journal that begins with a zero undoes nothing: its write
was finished, or had not reached the file yet. Its file is kept for the next write, since making
one takes longer than a write, and deleted on closing: a ledger at rest is one file.
Rule 6: before and behind every write, and before every reading, the file is still the one under its
name, and has no other.
Rule 7: an interrupted call leaves no transaction and no lock.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import stat
import time
from collections.abc import Callable
from contextlib import ExitStack, closing, suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from dpacct.errors import InvalidParameter, LedgerError
from dpacct.ledger.disk.lock import Lock, alone_in
from dpacct.ledger.disk.place import (
    PLAIN,
    Place,
    check_mount,
    check_still_there,
    opened,
    reason_of,
    sync_folder,
)
from dpacct.ledger.disk.rows import (
    NO_LIMIT,
    StoredEntries,
    begins_as_ledger,
    connect,
    make_tables,
    reason_of_sqlite,
    translated,
)
from dpacct.ledger.disk.witness import (
    Witness,
    compare,
    make_witness,
    next_witness,
    read_witness,
    update_witness,
)
from dpacct.ledger.record.entries import Entry

# The beginning of a journal; of the file and its journal: inode, length, time of the last change.
_Files = tuple[bytes, list[tuple[int, int, int]]]
# Bytes of a journal up to the random number of its write (SQLite's file format, section 3).
_BEGINNING = 16
# The last bytes of a journal that names a further file (SQLite's file format, section 3).
_NAMES_ANOTHER = bytes.fromhex("d9d505f920a163d7")
# Bytes for the headers of a journal and the numbers of its pages.
_MORE_IN_A_JOURNAL = 2**20
# Reading it locks the file, or undoes a write that was cut short.
_TOUCH = "SELECT 1 FROM sqlite_master"

Answer = TypeVar("Answer")


class Store:
    """An open ledger file, by `Store.open`. `make_file` makes a new file."""

    def __init__(self, place: Place, lock: Lock, *, read_only: bool) -> None:
        self.place = place
        self.path = place.path
        self._lock = lock
        self._read_only = read_only
        # The original files if the connection reads a copy, or None if it reads the file itself.
        self._copied: _Files | None = None
        self._busy = False
        self._seen: Entry | None = None

    @classmethod
    def open(cls, place: Place, *, read_only: bool) -> Store:
        """Open an existing file."""
        check_mount(place, writing=not read_only)
        try:
            how = os.O_RDONLY if read_only else os.O_RDWR
            descriptor = os.open(place.file, how | PLAIN)
        except OSError as error:
            readable = not read_only and os.access(place.file, os.R_OK)
            reason = "it cannot be written to" if readable else reason_of(error)
            raise LedgerError(f"{place.path}: no ledger can be opened: {reason}.") from None
        lock = Lock(place.path, descriptor, gate=place.witness)
        try:
            _check_usable(place, os.read(descriptor, 72), writing=not read_only)
            store = cls(place, lock, read_only=read_only)
            # A first write makes the witness, if there is none.
            if read_only:
                # A copy was compared when it was made.
                store.read(lambda rows: None if store._copied else compare(place, rows))
            else:
                store.write(partial(compare, place))
        except BaseException:
            lock.close()
            raise
        return store

    def close(self) -> None:
        """Close the file, and delete a journal that undoes nothing. A second call does nothing."""
        lock, writes = self._lock, not (self._read_only or self._busy)
        if writes and lock.owned and lock.connection is not None and lock.take_now():
            try:
                with suppress(LedgerError, OSError):
                    check_still_there(self.place, lock.descriptor)
                    # Windows deletes no open file: neither this connection's, nor a writer's.
                    lock.connect(None)
                    if not self._left_over():
                        self.place.journal.unlink(missing_ok=True)
            finally:
                lock.release()
        lock.close()

    def read(self, action: Callable[[StoredEntries], Answer], limit: int = NO_LIMIT) -> Answer:
        """Return the result of ``action``, which reads rows of one time (Rule 3).

        Without a limit to earlier entries, the latest one is not older than at an earlier reading.
        """

        def transaction() -> Answer:
            self._lock.take(exclusive=False)
            check_still_there(self.place, self._lock.descriptor)
            if self._read_only:
                self._choose()
            elif self._left_over():
                self._lock.release()
                self._lock.take(exclusive=True)
                self._put_right()
            self.connection.execute("BEGIN")
            self.connection.execute(_TOUCH).fetchone()
            rows = StoredEntries(self.path, self.connection, limit)
            if limit == NO_LIMIT:
                self._checked_head(rows)
            return action(rows)

        return self._alone(transaction)

    def write(self, action: Callable[[StoredEntries], Answer]) -> Answer:
        """Return the result of ``action``. Its rows are on disk then, or undone (Rule 2)."""

        def transaction() -> Answer:
            self._lock.take(exclusive=True)
            self._put_right()
            self.connection.execute("BEGIN IMMEDIATE")
            rows = StoredEntries(self.path, self.connection)
            self._checked_head(rows)
            witness = compare(self.place, rows) or make_witness(self.place, rows)
            answer = action(rows)
            now = next_witness(rows, witness)
            self._commit()
            self._seen = rows.head()
            if now != witness:
                if not self._lock.excludes:
                    # Another process may have written since. Its witness is not set back.
                    self.connection.execute("BEGIN IMMEDIATE")
                    now = next_witness(StoredEntries(self.path, self.connection), now)
                update_witness(self.place, now)
            return answer

        self._lock.check_owner()
        if self._read_only:
            raise LedgerError(
                f"{self.path}: the ledger was opened for reading only and cannot be written to."
            )
        return self._alone(transaction)

    def head(self) -> Entry:
        """Return the latest entry, unless it is older than an earlier reading (Rule 4)."""
        return self.read(StoredEntries.head)

    def witness(self) -> Witness | None:
        """Return the content of the witness, or None if the ledger has none."""
        return self.read(lambda _: read_witness(self.place))

    def pass_with_process(self) -> None:
        """Write without flushing from here on: the file will be deleted with its process.

        The journal is kept in memory, too. Such a ledger is not used again if its process was
        killed.
        """
        with translated(self.path):
            self.connection.execute("PRAGMA synchronous=OFF")
            self.connection.execute("PRAGMA journal_mode=MEMORY")

    @property
    def connection(self) -> sqlite3.Connection:
        """A connection to the file, or to its repaired copy."""
        if self._lock.connection is None:
            raise LedgerError(f"{self.path}: the ledger was closed.")
        return self._lock.connection

    def _alone(self, transaction: Callable[[], Answer]) -> Answer:
        """Return the result of a transaction, and leave nothing of it behind (Rule 7)."""
        self._lock.check_owner()
        if self._busy:
            raise LedgerError(
                f"{self.path}: the ledger is in use by a call that this one interrupted."
            )
        with translated(self.path):
            try:
                self._busy = True
                return transaction()
            finally:
                try:
                    self._undo()
                finally:
                    # Again, should an interrupt have kept the first call from it.
                    self._undo()

    def _commit(self) -> None:
        check_still_there(self.place, self._lock.descriptor)
        self.connection.execute("COMMIT")
        # An entry in a file that was moved meanwhile is not on record.
        check_still_there(self.place, self._lock.descriptor)

    def _undo(self) -> None:
        if not self._lock.owned:
            # A child that was forked meanwhile: its parent's write goes on.
            return
        try:
            # If it fails, the journal stays, and the next call puts it right.
            with suppress(sqlite3.Error):
                if self._lock.connection is not None and self._lock.connection.in_transaction:
                    self._lock.connection.execute("ROLLBACK")
        finally:
            self._lock.release()
            self._busy = False

    def _checked_head(self, rows: StoredEntries) -> Entry:
        """Return the latest entry, unless the file was replaced by an older one (Rule 4)."""
        head, seen = rows.head(), self._seen
        if seen is not None and (
            head.number < seen.number or rows.entry(seen.number).hash != seen.hash
        ):
            raise LedgerError(
                f"{self.path}: the file was overwritten while it was open: entry {seen.number} is "
                f"not the one that was read before. Restore the newer copy."
            )
        self._seen = head
        return head

    # What a crash left (Rule 5)

    def _left_over(self) -> bytes:
        """Return the beginning of a journal that undoes an interrupted write, or nothing.

        It holds a random number, which is another one for each write.

        SQLite deletes the file that a journal names at its end, as that of a write to several
        databases. No write of a ledger names one, so such a journal is not one of a ledger.
        """
        try:
            with opened(self.place.journal, os.O_RDONLY | PLAIN) as descriptor:
                state, first, last = os.fstat(descriptor), b"", _NAMES_ANOTHER
                # It holds pages of the file as they were, each once.
                most = 2 * self.place.file.stat().st_size + _MORE_IN_A_JOURNAL
                if stat.S_ISREG(state.st_mode) and state.st_size <= most:
                    first = os.read(descriptor, _BEGINNING)
                    os.lseek(descriptor, max(0, state.st_size - len(last)), os.SEEK_SET)
                    last = os.read(descriptor, len(last))
        except FileNotFoundError:
            return b""
        if last == _NAMES_ANOTHER:
            raise LedgerError(
                f"{self.path}: {self.place.journal.name} is no journal of a ledger: it is no file, "
                f"or far longer than the ledger, or names another file, which SQLite would delete. "
                f"Move it away."
            )
        return b"" if first.startswith(b"\x00") else first

    def _put_right(self) -> None:
        """Undo a half-done write after a crash, under the exclusive lock."""
        check_still_there(self.place, self._lock.descriptor)
        copy, _ = self._left_copy()
        if copy is not None:
            copy.close()
        self._connect("rw")

    def _choose(self) -> None:
        """Connect a reader to the file, or to a copy into which its journal is played."""
        if self._left_files() != self._copied:
            copy, self._copied = self._left_copy()
            self._lock.connect(copy)
        self._connect("ro")

    def _left_files(self) -> _Files | None:
        """Return what a crash left, or None if no journal undoes a write."""
        if begin := self._left_over():
            with suppress(FileNotFoundError):
                states = self.place.file.stat(), self.place.journal.stat()
                return begin, [(state.st_ino, state.st_size, state.st_mtime_ns) for state in states]
        return None

    def _left_copy(self) -> tuple[sqlite3.Connection | None, _Files | None]:
        """Return a repaired copy of what a crash left, and the files that were copied.

        Where there is no flock, another process may be writing: its journal undoes a write that
        goes on, and file, journal and witness may be of different times. So a copy counts, whole or
        damaged, only if the files are the same afterwards. Otherwise it is made again.
        """
        while files := self._left_files():
            with ExitStack() as undo:
                try:
                    copy = undo.enter_context(closing(self._repaired_copy()))
                except LedgerError:
                    if self._left_files() == files:
                        raise
                    continue
                if self._left_files() == files:
                    undo.pop_all()
                    return copy, files
        return None, None

    def _connect(self, mode: str) -> None:
        """Connect to the file, unless there is a connection."""
        if self._lock.connection is None:
            self._lock.connect(connect(self.place.file, mode))
            StoredEntries(self.path, self.connection).version()
            if mode == "rw":
                self.connection.execute("PRAGMA journal_mode=PERSIST")
                self.connection.execute(f"PRAGMA journal_size_limit={_MORE_IN_A_JOURNAL}")

    def _repaired_copy(self) -> sqlite3.Connection:
        """Return a connection to a copy that the journal makes whole. Its names are gone then."""
        import tempfile  # noqa: PLC0415 - few ledgers need it

        with ExitStack() as undo:
            try:
                folder = Path(tempfile.mkdtemp(prefix="dpacct-"))
                undo.callback(shutil.rmtree, folder, ignore_errors=True)
                shutil.copyfile(self.place.file, folder / "ledger")
                shutil.copyfile(self.place.journal, folder / "ledger-journal")
            except OSError as error:
                raise LedgerError(
                    f"{self.path}: a write was cut short, and the copy in which to undo it cannot "
                    f"be made: {reason_of(error)}."
                ) from None
            failed = undo.enter_context(ExitStack())
            connection = failed.enter_context(closing(connect(folder / "ledger", "rw")))
            connection.execute(_TOUCH).fetchone()
            connection.execute("PRAGMA query_only=1")
            rows = StoredEntries(self.path, connection)
            rows.version()
            if problems := rows.problems():
                raise LedgerError(
                    f"{self.path}: a write was cut short, and its journal does not undo it: "
                    f"{problems[0]}. Restore a copy, and treat the missing rounds as spent."
                )
            compare(self.place, rows)
            if not rows.old:
                # A journal that is damaged in the pages of totals.
                rows.states()
            failed.pop_all()
        return connection


def make_file(place: Place, first: Entry, totals: str) -> None:
    """Make a new file with its first entry (Rule 1), unless another process was faster.

    ``totals`` is the text of the totals behind it.
    """
    check_mount(place, writing=True)
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    draft = place.file.with_name(f".{place.file.name}.draft-{mark}")
    try:
        with closing(connect(draft, "rwc")) as connection:
            # Before anything is in it. Its journal and its witness get the same mode.
            draft.chmod(0o600)
            connection.execute("BEGIN IMMEDIATE")
            make_tables(connection, place.path, first, totals)
            connection.execute("COMMIT")
        with alone_in(place.file.parent):
            # No ledger is ever replaced. Where there is no flock, a rename replaces no file.
            if not os.path.lexists(place.file):
                with suppress(FileExistsError):
                    draft.rename(place.file)
                sync_folder(place.file.parent)
    except (sqlite3.Error, OSError) as error:
        reason = reason_of(error) if isinstance(error, OSError) else reason_of_sqlite(error)
        raise LedgerError(f"{place.path}: no ledger can be made: {reason}.") from None
    finally:
        with suppress(OSError):
            draft.unlink(missing_ok=True)


def _check_usable(place: Place, head: bytes, *, writing: bool) -> None:
    """Reject a file that no ledger begins like."""
    if not head:
        raise LedgerError(
            f"{place.path}: the file is empty, and a ledger never is. If nothing was ever "
            f"released under it, delete it. Otherwise restore a copy."
        )
    # A file with a witness is a ledger, and damaged.
    if not begins_as_ledger(head) and not os.path.lexists(place.witness):
        raise InvalidParameter("path", str(place.path), "this file is not a ledger of dpacct")
    # SQLite's file format, section 1.3.3: 2 is a write-ahead log.
    if 2 in head[18:20]:
        raise LedgerError(
            f"{place.path}: another program put the file into write-ahead mode, and its latest "
            f"entries may stand in {place.file.name}-wal. With both files in place, let the "
            f"sqlite3 shell execute PRAGMA journal_mode=DELETE."
        )
    if writing and not os.access(place.file.parent, os.W_OK | os.X_OK):
        raise LedgerError(f"{place.path}: the folder of the ledger cannot be written to.")
