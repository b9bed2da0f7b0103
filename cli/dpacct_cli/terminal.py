"""The process and its terminal: open files, text for any screen, exit codes.

Rule 1: files 0, 1 and 2 are open before any other file is, so that no ledger gets the number of a
screen.
Rule 2: what a screen cannot show is written with escapes.
Rule 3: an error of the machine (a file, memory, a module) is one line, like bad input.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from io import TextIOWrapper

FAILED = 1
INTERRUPTED = 130
# The exit code that a shell reports for a process whose reader is gone.
UNREAD = 141


def prepare() -> None:
    """Open closed files, and let every stream show what it can."""
    for number, mode in ((0, os.O_RDONLY), (1, os.O_RDONLY), (2, os.O_WRONLY)):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one. Output to a file that only reads is an error.
            os.open(os.devnull, mode)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def run(start: Callable[[], None]) -> int:
    """Call ``start``, which returns or raises SystemExit, and return the exit code."""
    try:
        try:
            start()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else FAILED if end.code else 0
        sys.stdout.flush()
    except BrokenPipeError:
        code = UNREAD
    except KeyboardInterrupt:
        code = _refuse("interrupted.", INTERRUPTED)
    except MemoryError:
        code = _refuse("there is not enough memory for this.", FAILED)
    except ImportError as error:
        first = next((line for line in str(error).splitlines() if line.strip()), repr(error))
        code = _refuse(f"it cannot start: {first}", FAILED)
    except OSError as error:
        place = "" if error.filename is None else f": {error.filename!r}"
        code = _refuse(f"{error.strerror or error}{place}.", FAILED)
    if code in (UNREAD, FAILED):
        # What is left in the buffer cannot be written. The interpreter shall not try.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return code


def _refuse(message: str, code: int) -> int:
    print(f"dpacct: {message}", file=sys.stderr)
    return code
