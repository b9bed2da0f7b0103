"""The rows of a sweep while it runs, beside the file that they will become.

Rule 1: the first line says which sweep it is, each other line is one row. A row is appended by one
write; what a crash or a full disk leaves of one is cut off.
Rule 2: one process writes at a time.
Rule 3: a sweep that ends before its first row leaves nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpacct.errors import InvalidParameter
from dpacct_cli.explore.grid import Sweep
from dpacct_cli.explore.rows import COLUMNS, Done
from dpacct_cli.output import LABEL

SUFFIX = ".part"


def place_of(target: Path) -> Path:
    """Where the rows of an output are kept until it is written."""
    return target.with_name(target.name + SUFFIX)


class Journal:
    """An open file of rows.

    Attributes:
        rows: those that are in it, by their index.
    """

    def __init__(self, path: Path, number: int, rows: dict[int, dict[str, Any]]) -> None:
        self.path, self.rows = path, rows
        self._file = number

    def add(self, done: Done) -> None:
        """Append a row, whole or not at all.

        Raises:
            OSError: it cannot be written.
        """
        line = json.dumps({"index": done.index, "row": done.row}, allow_nan=False)
        _append(self._file, line)
        self.rows[done.index] = done.row


@contextmanager
def open_journal(target: Path, sweep: Sweep, *, resume: bool, replace: bool) -> Generator[Journal]:
    """The rows that are there already, and a place for more.

    Args:
        target: what the rows will become.
        sweep: of which they are.
        resume: go on with rows that are there.
        replace: begin anew instead, whatever is there.
    Raises:
        InvalidParameter: rows are there that neither may be used nor replaced, or they are of
            another sweep. OSError: the file cannot be written.
    """
    from dpacct.ledger.disk.outputs import check_place

    path = place_of(target)
    there = path.exists()
    if there and not (resume or replace):
        hint = "--resume goes on with it, --force begins anew."
        raise _refused(target, f"an unfinished sweep is kept in {path.name}", hint)
    check_place(path, LABEL, replace=True)
    number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
    try:
        _lock(number, target)
        rows = _read(number, target, sweep) if resume and there else {}
        if not rows:
            os.ftruncate(number, 0)
        try:
            if not rows:
                _append(number, json.dumps(sweep.name))
            yield Journal(path, number, rows)
        except BaseException:
            # What holds no row is nothing to go on with.
            if not rows:
                path.unlink(missing_ok=True)
            raise
    finally:
        os.close(number)


def _append(file: int, line: str) -> None:
    before = os.fstat(file).st_size
    data = f"{line}\n".encode()
    try:
        written = os.write(file, data)
        while written < len(data):
            written += os.write(file, data[written:])
    except BaseException:
        os.ftruncate(file, before)
        raise


def _lock(file: int, target: Path) -> None:
    try:
        import fcntl
    except ImportError:
        # Not every system has it.
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise _refused(target, "another process is writing its rows") from None


def _read(file: int, target: Path, sweep: Sweep) -> dict[int, dict[str, Any]]:
    """The rows in a file; a last one that is not whole is cut off."""
    with os.fdopen(os.dup(file), "rb") as stream:
        stream.seek(0)
        content = stream.read()
    whole = content.rfind(b"\n") + 1
    os.ftruncate(file, whole)
    lines = content[:whole].splitlines()
    if not lines:
        return {}
    try:
        found = [json.loads(line) for line in lines]
        rows = {int(one["index"]): dict(one["row"]) for one in found[1:]}
    except (ValueError, KeyError, TypeError):
        raise _damaged(target) from None
    if found[0] != sweep.name:
        rule = f"{place_of(target).name} has the rows of another sweep, or of another version"
        raise _refused(target, rule, "--force begins anew.")
    known = range(len(sweep.settings))
    if not all(n in known and set(row) == set(COLUMNS) for n, row in rows.items()):
        raise _damaged(target)
    return rows


def _damaged(target: Path) -> InvalidParameter:
    return _refused(target, f"{place_of(target).name} is damaged", "--force begins anew.")


def _refused(target: Path, rule: str, hint: str = "") -> InvalidParameter:
    return InvalidParameter(LABEL, str(target), rule, hint)
