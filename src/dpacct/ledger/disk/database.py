"""The database file: opened, read and written under the lock, and put right after a crash.

Rule 1: a write that is cut short is undone by a rollback journal; one that is done is on disk, and
so are the names in its folder. The journal exists only meanwhile: a ledger at rest is one file.
Rule 2: whatever a crash left is played into a copy first, and into the file only if the ledger is
whole then. Who may only read goes on with that copy; nothing is read beside what was left.
Rule 3: before and behind every write, and before every reading, the file is still the one under its
name, and has no other.
Rule 4: whatever interrupts a call, it leaves no transaction and no lock. An interrupt just before
the end of a ``with`` block keeps that end from running; so the next call looks whether it did.
"""

from __future__ import annotations

import inspect
import os
import sqlite3
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

from dpacct.errors import LedgerError
from dpacct.ledger.disk.failures import translated
from dpacct.ledger.disk.leftovers import Files, connect, copy_put_right, files_of, left_over
from dpacct.ledger.disk.lock import Lock, patiently
from dpacct.ledger.disk.place import (
    Place,
    check_mount,
    check_still_there,
    check_usable,
    drafts,
    reason_of,
)
from dpacct.ledger.disk.rows import Rows

Answer = TypeVar("Answer")


class Database:
    """An open file, by `open_database`.

    Args:
        place: of the file.
        lock: of the file, held while anything is done here.
        check: raises `LedgerError` if what was put right after a crash is not whole.
        read_only: nothing is written, whatever is found.
    """

    def __init__(
        self, place: Place, lock: Lock, check: Callable[[Rows], None], *, read_only: bool
    ) -> None:
        self.place = place
        self.path = place.path
        self._lock = lock
        self._check = check
        self._read_only = read_only
        self._connection: sqlite3.Connection | None = None
        # Of what the connection reads a copy; None if it reads the file itself.
        self._copied: Files | None = None
        # Who uses it: a mark, and the frame in which it does.
        self._user: tuple[object, FrameType | None] | None = None
        self._joint = False
        # Whether a write is under way, so that what is read may yet be undone.
        self.is_written = False

    @property
    def writer(self) -> object | None:
        """The mark of the write that is under way; None outside of one."""
        return self._user[0] if self.is_written and self._user is not None else None

    @property
    def connection(self) -> sqlite3.Connection:
        """To the file, or to the copy that stands for it."""
        if self._connection is None:
            raise LedgerError(f"{self.path}: the ledger was closed.")
        return self._connection

    def close(self) -> None:
        """Close the file; calling it twice does no harm.

        Raises:
            LedgerError: it is in use, by another thread or a call that this one interrupted.
        """
        if self._user is not None and self._lock.owned:
            self._is_inside(joint=False)
        self._lock.close()

    def read(self, action: Callable[[], Answer]) -> Answer:
        """What ``action`` reads belongs together; inside a transaction it is part of that.

        Raises:
            LedgerError: the file is locked, damaged, moved, or was closed.
        """
        self._lock.check_owner()
        with translated(self.path):
            if self._is_inside(joint=True):
                return action()
            me = object()
            self._user = me, inspect.currentframe()
            try:
                while not self._begin_to_read():
                    self._lock.take(exclusive=True)
                    self._put_right()
                    self._lock.release()
                return action()
            finally:
                try:
                    self.let_go(me)
                finally:
                    # Again, should an interrupt have kept the first call from it.
                    self.let_go(me)

    def begin(self, writer: object, frame: FrameType | None, *, joint: bool) -> bool:
        """Begin to write: a transaction that excludes all others, ended by `commit` or `let_go`.

        Args:
            writer: ends it.
            frame: in which it writes; when that is gone, so is the transaction.
            joint: `begin` inside of it is part of it.
        Returns:
            False if it is part of one that is under way.
        Raises:
            LedgerError: the file is locked, damaged, moved, was closed, or is only read.
        """
        self._lock.check_owner()
        if self._read_only:
            raise LedgerError(
                f"{self.path}: the ledger was opened for reading only; it cannot be written to."
            )
        if self._is_inside(joint=self._joint):
            return False
        self._joint, self.is_written = joint, True
        self._user = writer, frame
        with translated(self.path):
            self._lock.take(exclusive=True)
            self._put_right()
            patiently(self.connection, "BEGIN IMMEDIATE")
        return True

    def commit(self) -> None:
        """What was written is on disk when this returns; `let_go` follows.

        Raises:
            LedgerError: it is not, or not in the file that has the name.
        """
        self._lock.check_owner()
        with translated(self.path):
            check_still_there(self.place, self._lock.descriptor)
            patiently(self.connection, "COMMIT")
            # What went into a file that somebody moved meanwhile is not on record.
            check_still_there(self.place, self._lock.descriptor)

    def let_go(self, user: object) -> None:
        """End what ``user`` began, if it is under way; what was not committed is undone."""
        if self._user is not None and self._user[0] is user and self._lock.owned:
            self._undo()
            self._user, self._joint, self.is_written = None, False, False

    def _undo(self) -> None:
        try:
            if self._connection is not None and self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
        except sqlite3.Error:
            # The journal stays, and whoever comes next puts it right.
            pass
        finally:
            self._lock.release()

    def _is_inside(self, *, joint: bool) -> bool:
        """Whether a transaction is under way, of which what follows may be part."""
        if self._user is None:
            return False
        user, began = self._user
        frame: FrameType | None = inspect.currentframe()
        while frame is not None and frame is not began:
            frame = frame.f_back
        if frame is None:
            self.let_go(user)
            return False
        if not (joint and self.connection.in_transaction):
            raise LedgerError(
                f"{self.path}: the ledger is in use by a call that this one interrupted."
            )
        return True

    def _begin_to_read(self) -> bool:
        """False, and no lock, if something has to be put right first."""
        self._lock.take(exclusive=False)
        check_still_there(self.place, self._lock.descriptor)
        if self._choose():
            patiently(self.connection, "BEGIN")
            # Only this locks the file, and it may fail where BEGIN did not.
            patiently(self.connection, "SELECT 1 FROM sqlite_master")
            return True
        self._lock.release()
        return False

    def prepare(self) -> None:
        """Open the file, or a copy; what a crash left is put right (Rule 2).

        Raises:
            LedgerError: it is damaged, no ledger, of a later version, or cannot be written to.
        """
        try:
            with translated(self.path):
                self._lock.take(exclusive=not self._read_only)
                check_still_there(self.place, self._lock.descriptor)
                if self._read_only:
                    self._choose()
                else:
                    self._prepare_to_write()
        finally:
            try:
                self._undo()
            finally:
                self._undo()

    def _prepare_to_write(self) -> None:
        for draft in drafts(self.place, os.fstat(self._lock.descriptor)):
            draft.unlink(missing_ok=True)
        self._put_right()
        Rows(self.path, self.connection).check_header()

    def _choose(self) -> bool:
        """Read the file, or a copy of it with what a crash left; False: that is to be put right."""
        left = left_over(self.place, self._lock.descriptor)
        if not self._read_only:
            return not left
        files = files_of(self.place) if left else None
        if self._connection is not None:
            if files == self._copied:
                return True
            self._lock.drop(self._connection)
            self._connection = None
        if files is None:
            self._connection = self._lock.keep(connect(self.place.file, "ro"))
            Rows(self.path, self._connection).check_header()
        else:
            files, connection = copy_put_right(self.place, self._check)
            self._connection = self._lock.keep(connection)
        self._copied = files
        return True

    def _put_right(self) -> None:
        """Under the exclusive lock: undo what a crash left half done."""
        check_still_there(self.place, self._lock.descriptor)
        left = left_over(self.place, self._lock.descriptor)
        if left:
            copy_put_right(self.place, self._check)[1].close()
        if self._connection is None:
            self._connection = self._lock.keep(connect(self.place.file, "rw"))
        if left:
            # Reading it undoes a write that was cut short.
            patiently(self._connection, "SELECT 1 FROM sqlite_master")
            if left_over(self.place, self._lock.descriptor):
                raise LedgerError(
                    f"{self.path}: what a crash left beside the ledger cannot be put right; is "
                    f"another program using it?"
                )


def open_database(place: Place, check: Callable[[Rows], None], *, read_only: bool) -> Database:
    """Open an existing file.

    Args:
        place: of the file.
        check: as for `Database`.
        read_only: for looking only.
    Raises:
        LedgerError: it is empty, damaged, no ledger, of a later version, or somewhere where it
            cannot be kept.
    """
    check_mount(place, writing=not read_only)
    try:
        size = place.file.stat().st_size
        how = os.O_RDONLY if read_only else os.O_RDWR
        descriptor = os.open(place.file, how | getattr(os, "O_NOFOLLOW", 0))
    except OSError as error:
        readable = not read_only and os.access(place.file, os.R_OK)
        reason = "it cannot be written to" if readable else reason_of(error)
        raise LedgerError(f"{place.path}: no ledger can be opened: {reason}.") from None
    lock = Lock(place.path, descriptor, gate=place.witness)
    database = Database(place, lock, check, read_only=read_only)
    try:
        check_usable(place, size, writing=not read_only)
        database.prepare()
    except BaseException:
        lock.close()
        raise
    return database
