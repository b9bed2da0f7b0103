"""The terminal as the program finds it: three open files, text for any screen, Ctrl-C, exit codes.

Imported before all else, so it imports next to nothing itself.

Rule 1: files 0, 1 and 2 are open before anything else is opened, so that no ledger is ever given
the number of a screen.
Rule 2: what a screen cannot show is written with escapes.
Rule 3: output that is lost is an error (`OutputLost`); a lost error line is not: who would read it?
Rule 4: Ctrl-C ends the process where it stands, since an exception can be swallowed by whatever
runs, an import above all. Only inside `orderly_interrupts` it is raised, for what must be closed.
Rule 5: what the machine refuses (a file, memory, a module) is one line, as bad input is.
"""

from __future__ import annotations

import errno
import io
import os
import select
import signal
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TextIO

from dpacct_cli import waiting

PROGRAM = "dpacct"
FAILED = 1
INTERRUPTED = 130
# As a shell reports a process that wrote to nobody. Not 1: that says a ledger is damaged.
NOBODY_READS = 141


class OutputLost(Exception):
    """What was printed did not reach stdout; not an OSError, which might be that of a ledger."""

    def __init__(self, cause: OSError) -> None:
        self.broken_pipe = cause.errno == errno.EPIPE
        closed = cause.errno == errno.EBADF
        reason = "it is closed" if closed else cause.strerror or str(cause)
        super().__init__(f"the output cannot be written to stdout ({reason}).")


class _Output(io.FileIO):
    """stdout: ends the wait for it, and fails once."""

    _lost = False

    def write(self, b: object) -> int:
        """Write bytes, or lose them."""
        waiting.end()
        data = memoryview(b)  # pyright: ignore[reportArgumentType]
        if self._lost:
            return data.nbytes
        try:
            return _written(super().write, data, self.fileno())
        except OSError as error:
            # The rest goes nowhere: the interpreter writes what is left when it ends.
            self._lost = True
            raise OutputLost(error) from None


class _Errors(io.FileIO):
    """stderr: ends the wait for it, and never fails."""

    def write(self, b: object) -> int:
        """Write bytes, if anybody can have them."""
        waiting.end()
        data = memoryview(b)  # pyright: ignore[reportArgumentType]
        with suppress(OSError):
            return _written(super().write, data, self.fileno())
        return data.nbytes


def _written(write: Callable[[memoryview], int | None], data: memoryview, file: int) -> int:
    while (written := write(data)) is None:
        # Whoever shares the file made it one that does not wait.
        select.select([], [file], [])
    return written


def prepare() -> None:
    """Make the terminal one on which nothing but our own words appear."""
    # Where Ctrl-C is ignored, as below nohup, it stays so.
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end_at_once)
    _open_what_is_closed()
    output, errors = _Output(1, "w", closefd=False), _Errors(2, "w", closefd=False)
    sys.stdout = _as_text(output, sys.stdout, by_line=output.isatty())
    sys.stderr = _as_text(errors, sys.stderr, by_line=True)
    if any("error" in option for option in sys.warnoptions):
        import warnings

        # Asked for by a developer of something else, who still gets to see them.
        warnings.simplefilter("default")


def _open_what_is_closed() -> None:
    for number, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            # The lowest number that is free, which is this one. stdout is not for writing, so that
            # output to nowhere is an error.
            os.open(os.devnull, mode)


def _as_text(raw: io.FileIO, before: TextIO | None, *, by_line: bool) -> io.TextIOWrapper:
    encoding = getattr(before, "encoding", None) or "utf-8"
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding, "backslashreplace", line_buffering=by_line
    )


def _end_at_once(_number: int, _frame: FrameType | None) -> None:
    with suppress(OSError):
        # Below the ^C that the terminal shows, or in place of it.
        begin = waiting.eraser() or (b"\r\n" if os.isatty(2) else b"")
        os.write(2, begin + f"{PROGRAM}: interrupted.\n".encode())
    os._exit(INTERRUPTED)


@contextmanager
def orderly_interrupts() -> Generator[None]:
    """Ctrl-C raises KeyboardInterrupt in here."""
    if signal.getsignal(signal.SIGINT) is not _end_at_once:
        yield
        return
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, _end_at_once)


def run(start: Callable[[], None]) -> int:
    """Call ``start``, which ends with SystemExit or returns, and say how the process ends."""
    try:
        code = _exit_code(start)
    except OutputLost as error:
        code = _lost(error)
    except KeyboardInterrupt:
        code = _say("interrupted.", INTERRUPTED)
    except MemoryError:
        code = _say("there is not enough memory for that.", FAILED)
    except ImportError as error:
        code = _say(f"it cannot start: {_first_line(error)}", FAILED)
    except OSError as error:
        code = _say(_refusal(error), FAILED)
    try:
        sys.stdout.flush()
    except OutputLost as error:
        code = _lost(error)
    if signal.getsignal(signal.SIGINT) is _end_at_once:
        # All is done and said; what the interpreter still has to do takes a moment.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    return code


def _exit_code(start: Callable[[], None]) -> int:
    try:
        start()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else FAILED if end.code else 0
    return 0


def _lost(error: OutputLost) -> int:
    return NOBODY_READS if error.broken_pipe else _say(str(error), FAILED)


def _first_line(error: Exception) -> str:
    return next((line for line in str(error).splitlines() if line.strip()), repr(error))


def _refusal(error: OSError) -> str:
    if error.filename is not None:
        return f"{error.strerror or error}: {_quoted(error.filename)}."
    try:
        os.getcwd()  # noqa: PTH109 - pathlib takes long to import
    except OSError:
        return "the folder in which it was started does not exist any more."
    return f"{error.strerror or error}."


def _quoted(file: str | bytes | int) -> str:
    from dpacct_cli.words import LONGEST, quoted

    return quoted(str(file) if isinstance(file, int) else os.fsdecode(file), LONGEST)


def _say(message: str, code: int) -> int:
    sys.stderr.write(f"{PROGRAM}: {message}\n")
    return code
