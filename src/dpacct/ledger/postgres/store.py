"""The store: a ledger in a database, with the words of `disk.store`.

Rule 1: one row is the head. A write locks it, so that writers come one after the other. The
database appends an entry only if it follows the head, and checks its charge (`schema.sql`).
Rule 2: a write whose connection is lost is tried again. Its latest hash says whether it stands. The
lock of the head is free only when the earlier transaction has ended, so each write happens once.
Rule 3: each machine keeps the position that it saw last, as a witness. A database that lacks that
entry is a restored backup, or a fork, and is neither read nor written.
Rule 4: a connection belongs to the process and the thread that opened it.
Rule 5: an interrupted call ends its connection, and with it its transaction.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager, suppress
from decimal import Decimal, localcontext
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from dpacct.errors import BudgetExceeded, DpacctError, LedgerError
from dpacct.ledger.disk.lock import alone_in
from dpacct.ledger.disk.place import Place
from dpacct.ledger.disk.rows import NO_LIMIT, StoredEntries
from dpacct.ledger.disk.witness import (
    Witness,
    make_witness,
    next_witness,
    read_witness,
    require,
    update_witness,
)
from dpacct.ledger.postgres.address import Address
from dpacct.ledger.record import entries as chain
from dpacct.ledger.record.entries import Entry
from dpacct.packages import import_package

Answer = TypeVar("Answer")
VERSION = 1
# Tries of a call whose connection is lost, and the pauses between them: half a minute.
_TRIES, _FIRST_PAUSE, _LONGEST_PAUSE = 10, 0.1, 5.0
# Seconds, by which a client notices that the server's machine is gone.
_SETTINGS = {
    "connect_timeout": "10", "keepalives_idle": "20", "keepalives_interval": "5",
    "keepalives_count": "4", "tcp_user_timeout": "40000", "application_name": "dpacct",
}  # fmt: skip
# SQLSTATE of a lock that was waited for in vain.
_LOCKED = "55P03"
_LET_IN = "Its owner lets a role in: dpacct ledger grant."


def locate(path: str | Address) -> Address | None:
    """Return the address of an existing ledger, or None if its database has none of that name."""
    store = Store(Address.parse(path), read_only=True)
    try:
        return store.address if store.is_there() else None
    finally:
        store.close()


new_place = Address.parse


def make_file(address: Address, first: Entry, totals: str) -> None:
    """Make a ledger with its first entry, unless another process was faster."""
    store = Store(address, read_only=False)
    try:
        store.make(first, totals)
    finally:
        store.close()


class PostgresEntries(StoredEntries):
    """The entries in one transaction of a database, up to the number ``limit``."""

    def __init__(self, store: Store, limit: int = NO_LIMIT) -> None:
        self.path: Any = store.address
        self._store, self._connection, self._limit = store, store, limit
        self._head: Entry | None = None
        self._old = False
        # Behind the latest entry that was added.
        self._totals: str | None = None

    def add(self, entry: Entry, totals: str | None) -> None:
        """Add an entry, if the database admits it."""
        values = (entry.number, entry.run, entry.kind, entry.closes, entry.text, entry.hash, totals)
        epsilon = self.aside() if self.aside and totals else None
        beside = None if epsilon is None else Decimal(repr(epsilon))
        self._store.execute("SELECT append(?, ?, ?, ?, ?, ?, ?, ?)", (*values, beside))
        self._head, self._totals = entry, totals

    def released(self) -> int:
        """Return the number of released rounds of all runs."""
        if self._totals is not None:
            return json.loads(self._totals)["ledger"]["committed"]
        return self._store.execute("SELECT ledger FROM head").fetchone()[0]["committed"]

    def has(self, hash_: bytes) -> bool:
        """Return whether an entry has this hash."""
        query = "SELECT count(*) FROM entries WHERE hash = ?"
        return self._store.execute(query, (hash_,)).fetchone() != (0,)

    def verified(self) -> tuple[int, bytes, str] | None:
        """Return what this machine kept of its latest verification."""
        try:
            found = json.loads(self._store.kept_verified.read_text(encoding="utf-8"))
            return int(found[0]), bytes.fromhex(found[1]), str(found[2])
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def keep_verified(self, number: int, hash_: bytes, text: str) -> None:
        """Keep, on this machine, that all entries were verified up to one."""
        content = json.dumps([number, hash_.hex(), text]).encode()
        # As a whole, or not at all.
        draft = self._store.kept_verified.with_suffix(f".draft-{os.getpid()}")
        draft.write_bytes(content)
        draft.replace(self._store.kept_verified)

    def problems(self) -> list[str]:
        """Return what contradicts the chain in the other tables."""
        opening = chain.read(self.entry(1))
        stored = self._store.execute("SELECT epsilon, delta, gaps, weights FROM terms").fetchone()
        found: list[str] = []
        if not isinstance(opening, chain.Opening) or stored != _terms(opening):
            found.append("the database checks another budget than that of the first entry")
        latest = "(SELECT hash FROM entries ORDER BY number DESC LIMIT 1)"
        query = f"SELECT count(*) FROM head WHERE hash = {latest}"  # noqa: S608 - constants
        if self._store.execute(query).fetchone() != (1,):
            found.append("the head that the database keeps is not the latest entry")
        return found


class Store:
    """An open ledger of a database. `make_file` makes a new ledger."""

    _closed = True  # Until there is a connection to close

    def __init__(self, address: Address, *, read_only: bool) -> None:
        self.address = address
        self.path: Any = address
        self._place = Place(self.path, address.state())
        self.kept_verified = self._place.file.with_name(f"{self._place.file.name}.verified")
        self._read_only = read_only
        self._owner = (os.getpid(), threading.get_ident())
        self._psycopg = import_package("psycopg", "psycopg", "3.2", "postgres")
        self._connection: Any = None
        self._tries, self._busy, self._closed = 1, False, False
        self._seen: Entry | None = None
        self._first: tuple[str, Sequence[object]] | None = None

    @classmethod
    def open(cls, address: Address, *, read_only: bool) -> Store:
        """Open an existing ledger."""
        store = cls(address, read_only=read_only)
        try:
            # First: another process may write a later one as soon as the reading has begun.
            witness = store.witness()
            store.read(lambda rows: store._begin(rows, witness))
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Close the connection. A second call, or a call in a child, does nothing."""
        if self._owner[0] == os.getpid():
            self._closed = True
            self._drop()

    def __del__(self) -> None:
        if not self._closed:
            self.close()

    def __reduce__(self) -> NoReturn:
        """Reject copies and transfers to another process."""
        raise LedgerError(
            f"{self.path}: an open ledger, its runs and its tickets can neither be copied nor "
            f"sent to another process. Open it by its address there."
        )

    def read(self, action: Callable[[PostgresEntries], Answer], limit: int = NO_LIMIT) -> Answer:
        """Return the result of ``action``, which reads rows of one time."""

        def transaction() -> Answer:
            self.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
            rows = PostgresEntries(self, limit)
            if limit == NO_LIMIT:
                self._check_head(rows)
            answer = action(rows)
            self.execute("COMMIT")
            return answer

        return self._repeated(transaction)

    @contextmanager
    def beginning(self, query: str, values: Sequence[object]) -> Generator[None]:
        """Execute a statement first in the writes of a block, in their transactions."""
        self._first = query, values
        try:
            yield
        finally:
            self._first = None

    def write(self, action: Callable[[PostgresEntries], Answer]) -> Answer:
        """Return the result of ``action``. Its entries are in the database once then (Rule 2)."""
        sent: list[tuple[bytes, Answer]] = []

        def transaction() -> Answer:
            self.execute("BEGIN; SELECT take()")
            rows = PostgresEntries(self)
            self._compare(rows, witness := self.witness())
            self._check_head(rows)
            before = rows.head()
            stands = bool(sent) and rows.has(sent[0][0])
            if self._first is not None and not stands:
                self.execute(*self._first)
            answer = sent[0][1] if stands else action(rows)
            if rows.head() != before:
                sent[:] = [(rows.head().hash, answer)]
            known = next_witness(rows, witness) if witness else None
            self.execute("COMMIT")
            self._seen = rows.head()
            self._remember(rows, known)
            return answer

        if self._read_only:
            raise LedgerError(
                f"{self.path}: the ledger was opened for reading only and cannot be written to."
            )
        return self._repeated(transaction)

    def head(self) -> Entry:
        """Return the latest entry, unless it is older than an earlier reading."""
        return self.read(PostgresEntries.head)

    def witness(self) -> Witness | None:
        """Return the position that this machine keeps, or None before it has seen the ledger."""
        with alone_in(self._place.file.parent):
            return read_witness(self._place)

    def is_there(self) -> bool:
        """Return whether the database has the ledger."""
        query = "SELECT count(*) FROM pg_namespace WHERE nspname = ?"
        return bool(self.call(query, self.address.schema))

    def call(self, query: str, *values: object) -> Any:
        """Return the first value of one statement, which is a transaction of its own."""
        return self._repeated(lambda: self.execute(query, values).fetchone()[0])

    def make(self, first: Entry, totals: str) -> None:
        """Make the tables, with the first entry, unless they are there."""
        text = Path(__file__).with_name("schema.sql").read_text(encoding="utf-8")

        def transaction() -> None:
            self.execute("BEGIN")
            try:
                self.execute(text.replace("{schema}", f'"{self.address.schema}"'))
            except (self._psycopg.errors.DuplicateSchema, self._psycopg.errors.UniqueViolation):
                self.execute("ROLLBACK")
                return
            opening = cast("chain.Opening", chain.read(first))
            columns = "version, epsilon, delta, gaps, weights"
            values = (VERSION, *_terms(opening))
            self.execute(f"INSERT INTO terms ({columns}) VALUES (?, ?, ?, ?, ?)", values)  # noqa: S608 - constants
            PostgresEntries(self).add(first, totals)
            self.execute("COMMIT")

        self._repeated(transaction)

    def execute(self, query: str, values: Sequence[object] = ()) -> Any:
        """Execute one statement, its parameters marked by ``?``, in the transaction."""
        if self._connection is None:
            raise LedgerError(f"{self.path}: the ledger was closed.")
        # Without parameters a text may hold several statements, and any character.
        return self._connection.execute(
            query.replace("?", "%s") if values else query, values or None
        )

    # One connection, tried again (Rules 2, 4 and 5)

    def _repeated(self, transaction: Callable[[], Answer]) -> Answer:
        """Return the result of a transaction, of which nothing is left if it fails."""
        if self._owner != (os.getpid(), threading.get_ident()):
            what = "process" if self._owner[0] != os.getpid() else "thread"
            raise LedgerError(
                f"{self.path}: the ledger was opened by another {what}. Open it in this one."
            )
        if self._closed:
            raise LedgerError(f"{self.path}: the ledger was closed.")
        if self._busy:
            raise LedgerError(
                f"{self.path}: the ledger is in use by a call that this one interrupted."
            )
        self._busy, pause = True, _FIRST_PAUSE
        try:
            for left in reversed(range(self._tries)):
                try:
                    self._connect()
                    return transaction()
                except self._psycopg.Error as error:
                    self._drop()
                    lost = isinstance(
                        error, (self._psycopg.OperationalError, self._psycopg.InterfaceError)
                    )
                    if not (lost and left and error.sqlstate != _LOCKED):
                        raise self._refusal(error) from None
                except DpacctError:
                    self._end()
                    raise
                except BaseException:
                    self._drop()
                    raise
                time.sleep(pause)
                pause = min(2 * pause, _LONGEST_PAUSE)
            raise AssertionError("a last try returns or raises")
        finally:
            self._busy = False

    def _connect(self) -> None:
        if self._connection is not None and not self._connection.closed:
            return
        given = self._psycopg.conninfo.conninfo_to_dict(self.address.url)
        self._connection = self._psycopg.connect(autocommit=True, **{**_SETTINGS, **given})
        self.execute(f'SET search_path = "{self.address.schema}", pg_temp')
        # From here on a failure is that of a connection, and not of an address.
        self._tries = _TRIES

    def _end(self) -> None:
        try:
            self.execute("ROLLBACK")
        except self._psycopg.Error:
            self._drop()

    def _drop(self) -> None:
        """Close the connection, which ends its transaction."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with suppress(self._psycopg.Error):
                connection.close()

    def _refusal(self, error: Any) -> DpacctError:
        """Return the error of the database or its library, as one of dpacct, without passwords."""
        said = self.address.without_secrets(str(error.diag.message_primary or error))
        if error.sqlstate == "DP001":
            return BudgetExceeded(f"{self.path}: {said}.")
        if error.sqlstate == "42P01":
            said = "this role may not read the ledger"
        ways = {
            "42P01": _LET_IN,
            "42501": _LET_IN,
            "25006": "Name the primary server: a replica takes no entries.",
            _LOCKED: "Another writer has kept the ledger locked for 60 s.",
        }
        way = ways.get(error.sqlstate or "", "")
        return LedgerError(f"{self.path}: {said.rstrip('.')}. {way or 'Nothing may be released.'}")

    # The position that this machine keeps (Rule 3)

    def _check_head(self, rows: PostgresEntries) -> None:
        head, seen = rows.head(), self._seen
        if seen is not None and (
            head.number < seen.number or rows.entry(seen.number).hash != seen.hash
        ):
            raise LedgerError(
                f"{self.path}: the database has lost entries while the ledger was open: entry "
                f"{seen.number} is not the one that was read before. Restore the newer copy."
            )
        self._seen = head

    def _compare(self, rows: PostgresEntries, witness: Witness | None) -> None:
        """Check that the database came at least as far as this machine knows."""
        if witness is not None:
            require(rows, witness.position, f"this machine ({self._place.witness})")

    def _begin(self, rows: PostgresEntries, witness: Witness | None) -> None:
        """Compare, then remember, the position, when the ledger is opened."""
        (version,) = self.execute("SELECT version FROM terms").fetchone()
        if version != VERSION:
            raise LedgerError(f"{self.path}: another dpacct made this ledger (version {version}).")
        self._compare(rows, witness)
        self._remember(rows, next_witness(rows, witness) if witness else None)

    def _remember(self, rows: PostgresEntries, known: Witness | None) -> None:
        """Keep a position, unless another process of this machine keeps a later one."""
        with alone_in(self._place.file.parent):
            kept = read_witness(self._place)
            if kept is None:
                make_witness(self._place, rows)
            elif known is not None and kept.position.entry < known.position.entry:
                update_witness(self._place, known)


def _terms(opening: chain.Opening) -> tuple[Decimal, Decimal, list[Decimal], list[Decimal]]:
    """Return the budget as decimals, and orders above 1 and weights as exact numbers."""
    mixture, budget = opening.mixture, opening.budget
    with localcontext(prec=2000):
        gaps = [Decimal(order) - 1 for order in mixture.orders]
    weights = list(map(Decimal, mixture.weights))
    return Decimal(repr(budget.epsilon)), Decimal(repr(budget.delta)), gaps, weights
