"""The store: entries that are only ever appended, in one file that remembers how far it had come.

Rule 1: the file comes into being complete, under its own name, or not at all.
Rule 2: an entry is on disk before the call that writes it returns, and then in the witness.
Rule 3: what is read and written together happens in one transaction that excludes other writers.
Rule 4: a file that holds less than was seen in it, or than its witness knows, is not gone on with.
Rule 5: whatever SQLite or the system refuses becomes a `LedgerError` of one sentence.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import TypeVar

from dpacct.errors import LedgerError
from dpacct.ledger.disk.database import Database, open_database
from dpacct.ledger.disk.failures import translated
from dpacct.ledger.disk.making import make_file
from dpacct.ledger.disk.place import Place
from dpacct.ledger.disk.rows import NO_LIMIT, Rows
from dpacct.ledger.disk.witness import (
    Witness,
    compare,
    first_witness,
    make_witness,
    next_witness,
    read_witness,
    update_witness,
)
from dpacct.ledger.record.chain import Entry

# So many entries are read at once: a few milliseconds, for which writers wait.
CHUNK = 500

Answer = TypeVar("Answer")


class Store:
    """An open ledger file; use `Store.create` or `Store.open`.

    `as_of` gives the file as it was when an entry was its latest. Since entries are never changed,
    all that is read from such a store belongs together, whoever writes meanwhile and however long
    the reading takes, and no lock is held for it.
    """

    def __init__(self, database: Database, limit: int = NO_LIMIT) -> None:
        self.path = database.path
        self.database = database
        self._limit = limit
        self._seen: Entry | None = None
        # Of the write that is under way, by its mark: no other is ever the same object.
        self._written: tuple[object, Rows] | None = None

    @classmethod
    def create(cls, place: Place, first: Entry) -> bool:
        """Make a new file with its first entry; see `dpacct.ledger.disk.making`."""
        return make_file(place, first)

    @classmethod
    def open(cls, place: Place, *, read_only: bool) -> Store:
        """Open an existing file.

        Raises:
            LedgerError: it is damaged, no ledger, of a later version, or behind its witness.
        """

        def check(rows: Rows) -> None:
            rows.head()
            compare(place, rows)

        store = cls(open_database(place, check, read_only=read_only))
        try:
            if read_only:
                store._read(check)
            else:
                with store.writing():
                    """This makes the witness, if there is none."""
        except BaseException:
            store.close()
            raise
        return store

    def as_of(self, number: int | None = None) -> Store:
        """The file as it was when entry ``number``, by default the latest, had been written.

        `head`, `entry`, `latest_of_run`, `first_of_run`, `is_closed` and `entries` see no later
        entry. It shares the open file, is closed with it, and cannot be written to.

        Raises:
            LedgerError: there is no such entry.
        """
        limit = self.head().number if number is None else self.entry(number).number
        return Store(self.database, limit)

    def close(self) -> None:
        """Close the file; calling it twice does no harm."""
        self.database.close()

    def writing(self, *, joint: bool = False) -> Writing:
        """A ``with`` block that excludes other writers; on disk when it ends, or undone.

        Args:
            joint: blocks inside of it are part of it, and end with it.
        Raises:
            LedgerError: it could not be written. Nothing of it counts then, or nothing that it
                allows may be released.
        """
        if self._limit != NO_LIMIT:
            raise LedgerError(f"{self.path}: what the ledger was at an entry cannot be changed.")
        return Writing(self, joint=joint)

    def append(self, entry: Entry, closes: int | None = None) -> None:
        """Add an entry, inside `writing`; ``closes`` is the reservation that it settles."""
        with translated(self.path):
            self._rows().add(entry, closes)

    def pass_with_process(self) -> None:
        """Write without flushing from here on: the file will be deleted with its process.

        What undoes a write is kept in memory, too: making and deleting a file for it takes longer
        than the write, and nobody goes on with such a ledger when its process was killed.
        """
        with translated(self.path):
            self.database.connection.execute("PRAGMA synchronous=OFF")
            self.database.connection.execute("PRAGMA journal_mode=MEMORY")

    def witness(self) -> Witness | None:
        """What the witness beside the file says; None if there is none, or was none to open."""
        place = self.database.place
        return self.database.read(lambda: read_witness(place))

    def head(self) -> Entry:
        """The latest entry, its hash checked.

        Raises:
            LedgerError: there is none, it is damaged, or it is older than one that was seen before.
        """

        def newest(rows: Rows) -> Entry:
            head = rows.head()
            # What is being written may yet be undone, and was compared when that began.
            if self._limit == NO_LIMIT and not self.database.is_written:
                self._check_seen(rows, head)
            return head

        return self._read(newest)

    def entry(self, number: int) -> Entry:
        """One entry, its hash checked."""
        return self._read(lambda rows: rows.entry(number))

    def latest_of_run(self, run: int) -> Entry | None:
        """The latest entry of a run, its hash checked; None where there is no such run."""
        return self._read(lambda rows: rows.latest_of_run(run))

    def first_of_run(self, run: int) -> Entry | None:
        """The entry that registered a run, its hash checked."""
        return self._read(lambda rows: rows.first_of_run(run))

    def is_closed(self, number: int) -> bool:
        """Whether a reservation was committed or abandoned."""
        return self._read(lambda rows: rows.is_closed(number))

    def entries(self, after: int = 0) -> Iterator[tuple[Entry, int | None]]:
        """All entries behind a number in their order, unchecked, each with what it closes.

        What is written while they are read is left out. They are read `CHUNK` at a time.
        """
        upto = self._read(Rows.latest)
        while after < upto:
            start = after
            chunk = self._read(lambda rows: rows.chunk(start, CHUNK))  # noqa: B023 - used at once
            yield from ((entry, closes) for entry, closes in chunk if entry.number <= upto)
            after = chunk[-1][0].number if chunk else upto

    def version(self) -> int:
        """The schema version of the file."""
        return self._read(Rows.check_header)

    def trained(self) -> bool:
        """Whether a trainer charged any of the rounds, or registered a run."""
        return self._read(Rows.trained)

    def relabelled(self) -> bool:
        """Whether the rounds of version 0.2 were relabelled."""
        return self._read(Rows.relabelled)

    def bring_up_to_date(self) -> None:
        """Inside `writing`: the file is of this version from here on."""
        with translated(self.path):
            self._rows().bring_up_to_date()

    def integrity(self) -> list[str]:
        """What SQLite itself finds wrong with the file, and with its schema."""
        return self._read(Rows.problems)

    def agree(self) -> Witness:
        """Inside a transaction: the witness, made if there is none; the file is not behind it.

        Raises:
            LedgerError: it is, or the witness is damaged or cannot be written.
        """
        place, rows = self.database.place, self._rows()
        with translated(self.path):
            self._check_seen(rows, rows.head())
            witness = compare(place, rows)
            if witness is None:
                witness = first_witness(rows)
                make_witness(place, witness)
        return witness

    def settle(self, known: Witness) -> None:
        """End a transaction: first the entries are on disk, then the witness knows of them.

        Args:
            known: what the witness said when the transaction began.
        Raises:
            LedgerError: one of both could not be written.
        """
        rows = self._rows()
        with translated(self.path):
            head = rows.head()
            now = next_witness(rows, known, head)
        self.database.commit()
        self._seen = head
        if now != known:
            update_witness(self.database.place, now)

    def _read(self, action: Callable[[Rows], Answer]) -> Answer:
        return self.database.read(lambda: action(self._rows()))

    def _rows(self) -> Rows:
        """What is read now; while a write is under way, with what was read in it before."""
        database = self.database
        writer = database.writer
        if writer is None:
            return Rows(self.path, database.connection, self._limit)
        if self._written is None or self._written[0] is not writer:
            self._written = writer, Rows(self.path, database.connection, self._limit)
        return self._written[1]

    def _check_seen(self, rows: Rows, head: Entry) -> None:
        """Refuse a file whose content was replaced by an older one while it was open."""
        seen = self._seen
        if seen is None or head == seen:
            self._seen = head
            return
        if head.number < seen.number or rows.entry(seen.number).hash != seen.hash:
            raise LedgerError(
                f"{self.path}: the file was overwritten while it was open: entry {seen.number} is "
                f"not the one that was read before. Restore the newer copy."
            )
        self._seen = head


class Writing:
    """One ``with`` block of `Store.writing`."""

    _mark: object = None

    def __init__(self, store: Store, *, joint: bool) -> None:
        self._store = store
        self._joint = joint
        self._known: Witness | None = None
        self._mark = object()

    def __enter__(self) -> None:
        database = self._store.database
        try:
            # The frame of the block; a name for this one would keep itself alive.
            block = getattr(inspect.currentframe(), "f_back", None)
            if database.begin(self._mark, block, joint=self._joint):
                self._known = self._store.agree()
        except BaseException:
            database.let_go(self._mark)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Otherwise it is part of another block, with which it ends.
        if self._known is not None:
            try:
                if kind is None:
                    self._store.settle(self._known)
            finally:
                try:
                    self._store.database.let_go(self._mark)
                finally:
                    # Again, should an interrupt have kept the first call from it.
                    self._store.database.let_go(self._mark)

    def __del__(self) -> None:
        # An interrupt may have kept the end of the block from running, or the beginning.
        if self._mark is not None:
            self._store.database.let_go(self._mark)
