"""The lock of a ledger's file: many readers or one writer, and the limits of a forked process.

SQLite's own locks belong to a process and a file. They are gone as soon as anything in the process
opens and closes the file, e.g. to copy it. This lock (flock) belongs to one open descriptor, so
that nothing else in the process can drop it.

Rule 1: a reader holds the shared lock, a writer the exclusive one.
Rule 2: waiting can be interrupted, and ends `BUSY_SECONDS` after the last progress.
Rule 3: a process that waits is next: each process takes a gate before the lock, and keeps it while
waiting. Without it, a writer that comes back at once would keep all others out.
Rule 4: no process forks while a ledger is touched. A child neither uses nor ever closes inherited
connections: closing them would undo the pending writes of its parent.
"""

from __future__ import annotations

import ctypes
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NoReturn

from dpacct.errors import LedgerError
from dpacct.ledger.disk.place import opened

try:
    import fcntl
except ImportError:  # Windows, where SQLite's own locks belong to a handle
    fcntl = None

BUSY_SECONDS = 60.0
_FIRST_PAUSE = 0.0002
_LONGEST_PAUSE = 0.01


class Lock:
    """The lock of one open ledger, with the connection that is closed with it.

    It owns the descriptor of the file. The gate is another file, on which only fairness depends.
    """

    def __init__(self, path: Path, descriptor: int, gate: Path) -> None:
        self._path = path
        self._gate_path = gate
        self._gate = -1
        self._owner = (os.getpid(), threading.get_ident())
        self._held = False
        self.connection: sqlite3.Connection | None = None
        self.descriptor = descriptor
        _OPEN.add(self)

    def connect(self, connection: sqlite3.Connection | None) -> None:
        """Close the present connection, and keep another one, which no child ever closes."""
        previous, self.connection = self.connection, connection
        if previous is not None:
            with suppress(sqlite3.Error):
                previous.close()

    def close(self) -> None:
        """Close the file. A second call, or a call in a child, does nothing."""
        if os.getpid() == self._owner[0] and self.descriptor >= 0:
            if self._held:
                raise LedgerError(f"{self._path}: the ledger is in use and cannot be closed.")
            self.connect(None)
            self._close_descriptors()

    def __del__(self) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        """Reject copies and transfers to another process, of the lock and all its holders."""
        raise LedgerError(
            f"{self._path}: an open ledger, its runs and its tickets can neither be copied nor "
            f"sent to another process. Open it by its path there."
        )

    @property
    def owned(self) -> bool:
        """True in the process and the thread that opened it."""
        return self._owner == (os.getpid(), threading.get_ident())

    @property
    def excludes(self) -> bool:
        """True if it keeps other processes out. Else SQLite's own locks do."""
        return fcntl is not None

    def check_owner(self) -> None:
        """Reject all processes and threads but those that opened it."""
        if not self.owned:
            what = "process" if os.getpid() != self._owner[0] else "thread"
            raise LedgerError(
                f"{self._path}: the ledger was opened by another {what}. Open it in this one."
            )
        if self.descriptor < 0:
            raise LedgerError(f"{self._path}: the ledger was closed.")

    def take(self, *, exclusive: bool) -> None:
        """Wait for the lock. `release` it, whether this returns or is interrupted."""
        if fcntl is not None:
            if self._gate < 0:
                with suppress(OSError):
                    how = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)
                    self._gate = os.open(self._gate_path, how)
            try:
                if self._gate >= 0:
                    self._wait_for(self._gate, fcntl.LOCK_EX)
                self._wait_for(self.descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
            finally:
                if self._gate >= 0:
                    fcntl.flock(self._gate, fcntl.LOCK_UN)
        self._held = True
        _TOUCHED.acquire()

    def take_now(self) -> bool:
        """Take the lock for writing if nobody has it, and return whether that is so."""
        try:
            if fcntl is not None:
                fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return False
        self._held = True
        _TOUCHED.acquire()
        return True

    def release(self) -> None:
        """Release the lock. Without a held lock, do nothing."""
        if self._held:
            self._held = False
            # An interrupt may have kept it from being taken.
            with suppress(RuntimeError):
                _TOUCHED.release()
        # Even if it is not held: an interrupt may have come just behind the call that took it.
        if fcntl is not None and self.descriptor >= 0:
            fcntl.flock(self.descriptor, fcntl.LOCK_UN)

    def _wait_for(self, descriptor: int, kind: int) -> None:
        """Lock a file, with ever longer pauses between the tries (Rule 2)."""
        until, pause = time.monotonic() + BUSY_SECONDS, _FIRST_PAUSE
        while fcntl is not None:
            try:
                fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise LedgerError(
                        f"{self._path}: another process has kept the file locked for "
                        f"{BUSY_SECONDS:g} s."
                    ) from None
            except OSError as error:
                reason = error.strerror or "unknown reason"
                raise LedgerError(f"{self._path}: the file cannot be locked: {reason}.") from None
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE)

    def _close_descriptors(self) -> None:
        for descriptor in (self.descriptor, self._gate):
            if descriptor >= 0:
                with suppress(OSError):
                    os.close(descriptor)
        self.descriptor = self._gate = -1

    def forget(self) -> None:
        """Give up the inherited lock in a child, without a trace in the parent (Rule 4)."""
        if self.connection is not None:
            # One reference more than there are: it is never finalized, not even at exit.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.connection))
        self._close_descriptors()


@contextmanager
def alone_in(folder: Path) -> Generator[None]:
    """Keep other processes from giving a name in a folder to a new ledger."""
    if fcntl is None:
        yield
        return
    with opened(folder, os.O_RDONLY) as descriptor:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield


_OPEN: weakref.WeakSet[Lock] = weakref.WeakSet()
# Held while SQLite is at work: a child must not inherit its record of locks at such a time.
_TOUCHED = threading.RLock()


def _in_child() -> None:
    for lock in list(_OPEN):
        lock.forget()
    _OPEN.clear()
    _TOUCHED.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(
        before=_TOUCHED.acquire, after_in_parent=_TOUCHED.release, after_in_child=_in_child
    )
