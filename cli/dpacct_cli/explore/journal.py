"""The rows of a sweep while it runs, alongside the file that they will become.

Rule 1: the first line names the sweep, each other line is a row. A row is appended by one write,
and an incomplete row after a crash or on a full disk is cut off.
Rule 2: one process writes at a time.
Rule 3: a sweep that ends before its first row leaves nothing.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dpacct.errors import InvalidParameter
from dpacct_cli.explore.sweep import COLUMNS, Done, Task, sweep_name
from dpacct_cli.output import LABEL

SUFFIX = ".part"


def place_of(target: Path) -> Path:
    """Return where the rows of an output are kept until it is written."""
    return target.with_name(target.name + SUFFIX)


class Journal:
    """An open file of rows.

    Attributes:
        rows: the rows in the file, by their index.
    """

    def __init__(self, file: int, rows: dict[int, dict[str, Any]]) -> None:
        self._file, self.rows = file, rows

    def add(self, done: Done) -> None:
        """Append a row, whole or not at all.

        Raises:
            OSError: it cannot be written.
        """
        _append(self._file, {"index": done.place, "row": done.row})
        self.rows[done.place] = done.row


@contextmanager
def open_journal(
    target: Path, tasks: Sequence[Task], *, resume: bool, replace: bool
) -> Generator[Journal]:
    """Open the existing rows of a sweep, to go on with them or to replace them.

    Raises:
        InvalidParameter: existing rows may neither be used nor replaced, they are of another
            sweep, or the file cannot be written.
    """
    from dpacct.ledger.disk.outputs import check_place

    path = place_of(target)
    exists = path.exists()
    if exists and not (resume or replace):
        hint = "--resume continues it, --force starts over."
        raise _refused(target, f"an unfinished sweep is kept in {path.name}", hint)
    check_place(path, LABEL, replace=True)
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o666)
        try:
            _lock(file, target)
            rows = _read(file, target, tasks) if resume and exists else {}
            if not rows:
                os.ftruncate(file, 0)
            try:
                if not rows:
                    _append(file, sweep_name(tasks))
                yield Journal(file, rows)
            except BaseException:
                # A file without rows is nothing to go on with.
                if not rows:
                    path.unlink(missing_ok=True)
                raise
        finally:
            os.close(file)
    except OSError as error:
        reason = error.strerror or "unknown reason"
        raise _refused(target, f"it cannot be written ({reason})") from None


def _append(file: int, data: dict[str, Any]) -> None:
    before = os.fstat(file).st_size
    line = f"{json.dumps(data, allow_nan=False)}\n".encode()
    try:
        written = os.write(file, line)
        while written < len(line):
            written += os.write(file, line[written:])
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


def _read(file: int, target: Path, tasks: Sequence[Task]) -> dict[int, dict[str, Any]]:
    """Return the rows of a file. An incomplete last row is cut off."""
    path = place_of(target)
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    os.ftruncate(file, whole)
    lines = content[:whole].splitlines()
    if not lines:
        return {}
    damaged = _refused(target, f"{path.name} is damaged", "--force starts over.")
    try:
        first, *found = [json.loads(line) for line in lines]
        rows = {int(one["index"]): dict(one["row"]) for one in found}
    except (ValueError, KeyError, TypeError):
        raise damaged from None
    if first != sweep_name(tasks):
        rule = f"{path.name} has the rows of another sweep, or of another version"
        raise _refused(target, rule, "--force starts over.")
    if any(n not in range(len(tasks)) or set(row) != set(COLUMNS) for n, row in rows.items()):
        raise damaged
    return rows


def _refused(target: Path, rule: str, hint: str = "") -> InvalidParameter:
    return InvalidParameter(LABEL, str(target), rule, hint)
