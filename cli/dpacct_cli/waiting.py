"""A line on the terminal while somebody waits: what is computed, and for how long by now.

Rule 1: nothing before two seconds, and nothing where stderr is not a terminal.
Rule 2: the line is gone before anything else is written.
Rule 3: a terminal that knows no escape codes, or shall get none (NO_COLOR), gets one line, once,
which stays.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager

PATIENCE = 2.0
PERIOD = 1.0
ERASE = b"\r\x1b[K"


class Waiting:
    """One wait, shown by a thread.

    Attributes:
        what: is being computed.
        written: the line was shown.
        stands: it is there, to be taken away.
        thread: shows it.
    """

    def __init__(self, what: str, file: int, *, plain: bool, patience: float) -> None:
        # Imported for those who wait at a terminal only.
        import threading

        self.what = what
        self.written = False
        self.stands = False
        self._file = file
        self._plain = plain
        self._patience = patience
        self._started = time.monotonic()
        self._lock = threading.Lock()
        self._over = threading.Event()
        self.thread = threading.Thread(target=self._show, daemon=True)
        self.thread.start()

    def _show(self) -> None:
        if self._over.wait(self._patience):
            return
        while True:
            with self._lock:
                if self._over.is_set():
                    return
                self.stands = not self._plain
                self._write(self._line())
                self.written = True
            if self._plain or self._over.wait(PERIOD):
                return

    def _line(self) -> bytes:
        if self._plain:
            text = self._cut("this takes a while; Ctrl-C stops it")
            return f"{text}\n".encode("ascii", "backslashreplace")
        elapsed = time.monotonic() - self._started
        text = self._cut(f"{elapsed:.0f} s so far; Ctrl-C stops it")
        return ERASE + text.encode("ascii", "backslashreplace")

    def _cut(self, state: str) -> str:
        """One line: what is computed gives way where the terminal is narrow."""
        room = columns(self._file) - 1 - len(": ") - len(state)
        return f"{self.what[:room]}: {state}" if room > 0 else state

    def end(self) -> None:
        """Take the line away; it does not come back."""
        if self._over.is_set():
            return
        self._over.set()
        with self._lock:
            if self.stands:
                self._write(ERASE)
                self.stands = False

    def _write(self, data: bytes) -> None:
        try:
            os.write(self._file, data)
        except OSError:
            # A terminal that went away.
            self._over.set()


def columns(file: int) -> int:
    """How wide the terminal behind a file is; 80 where nobody knows."""
    try:
        return os.get_terminal_size(file).columns or 80
    except OSError:
        return 80


_current: Waiting | None = None


def knows_codes() -> bool:
    """Whether whoever looks at the terminal wants escape codes on it, and it knows them."""
    known = os.environ.get("TERM", "dumb") not in ("", "dumb")
    return known and not os.environ.get("NO_COLOR")


@contextmanager
def waiting(what: str) -> Generator[None]:
    """Say at a terminal that the block takes long, if it does.

    Args:
        what: the command, as a user knows it.
    """
    global _current  # noqa: PLW0603 - there is one terminal
    if not sys.stderr.isatty():
        yield
        return
    _current = Waiting(what, sys.stderr.fileno(), plain=not knows_codes(), patience=PATIENCE)
    try:
        yield
    finally:
        end()
        _current = None


def say(what: str) -> None:
    """What the wait is for from now on."""
    if _current is not None:
        _current.what = what


def end() -> None:
    """Nobody waits any more: something is about to be written."""
    if _current is not None:
        _current.end()


def eraser() -> bytes:
    """What takes the line away, for a signal handler, which must not wait for a lock."""
    return ERASE if _current is not None and _current.stands else b""
