"""`dpacct`, and `python -m dpacct_cli`, which is the same: the process and its terminal.

Rule 1: files 0, 1 and 2 are open before any other file is, so that no ledger gets the number of a
screen.
Rule 2: characters that a screen cannot show are written with escapes.
Rule 3: an error of the machine (a file, memory, a module) is one line, like bad input. Nothing
else is imported up here, so that this holds while numpy is imported, too.
"""

import gc
import os
import sys
from collections.abc import Callable
from io import TextIOWrapper

from dpacct_cli import FAILED, INTERRUPTED, UNREAD


def main() -> None:
    """Run the command line and exit: 0 done, 2 bad input, 130 interrupted, 141 unread, else 1."""
    # Threads of torch that wait for work spin, on the processor that another run computes on.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    # Those of OpenBLAS spin as well, and products here are short: two cost twice the time of one.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # Imported modules stay. Searching them for garbage takes an eighth of a cold start.
    gc.disable()
    prepare()
    code = run(_start)
    gc.freeze()
    raise SystemExit(code)


def _start() -> None:
    from dpacct_cli.app import app

    app()


def prepare() -> None:
    """Open closed files, and make every stream escape characters that it cannot show."""
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
    message = ""
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
        code, message = INTERRUPTED, "interrupted."
    except MemoryError:
        code, message = FAILED, "there is not enough memory for this."
    except ImportError as error:
        first = next((line for line in str(error).splitlines() if line.strip()), repr(error))
        code, message = FAILED, f"it cannot start: {first}"
    except OSError as error:
        place = "" if error.filename is None else f": {error.filename!r}"
        code, message = FAILED, f"{error.strerror or error}{place}."
    if message:
        print(f"dpacct: {message}", file=sys.stderr)
    if code in (UNREAD, FAILED):
        # The rest of the buffer cannot be written. The interpreter shall not try.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return code


if __name__ == "__main__":
    main()
