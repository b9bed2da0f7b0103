"""Write a file that a user named: whole or not at all, and never over a ledger.

Rule 1: an existing file is replaced only if the user asks for it.
Rule 2: a ledger, its journal and its witness are never replaced, under any name and through any
link. A ledger is known by its content, or by its witness if its beginning is damaged. Its journal
and its witness are known by their names.
Rule 3: a file under its final name is complete. It is written to a draft in the same folder,
flushed to disk, and renamed.
Rule 4: a file that replaces another has none of the permissions that the other one lacked.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from dpacct.errors import InvalidParameter
from dpacct.ledger import begins_as_ledger, sync_folder

_BESIDE = {"-wal": "journal", "-shm": "journal", "-journal": "journal", ".witness": "witness"}


def is_ledger(path: Path) -> bool:
    """Return whether a file is a ledger, by its content."""
    if path.is_file():
        with suppress(OSError), path.open("rb") as stream:
            return begins_as_ledger(stream.read(72))
    return False


def write_file(
    path: Path,
    write: Callable[[BinaryIO], object],
    *,
    name: str,
    replace: bool,
    owner_only: bool = False,
) -> None:
    """Write a file.

    Args:
        path: its place. Links are followed. A pipe or a terminal is written to directly.
        write: puts the content into a stream.
        name: of the path, for messages.
        replace: whether an existing file may be replaced.
        owner_only: only the owner may read or write the file (mode 0600).
    Raises:
        InvalidParameter: the file may not be replaced.
        OSError: it cannot be written. An existing file is untouched.
    """
    real = _led_to(path, name)
    if real.exists() and not real.is_file() and not real.is_dir():
        with real.open("wb") as stream:
            write(stream)
        return
    check_place(path, name, replace=replace)
    temporary = real.with_name(f".{real.name}.{os.getpid()}.tmp")
    try:
        temporary.unlink(missing_ok=True)
        # The mode is set when the file is made: other users never read its content.
        how, mode = os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600 if owner_only else 0o666
        with suppress(FileNotFoundError):
            mode &= real.stat().st_mode
        with os.fdopen(os.open(temporary, how, mode), "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        # Again: another process may have made the file meanwhile.
        check_place(path, name, replace=replace)
        temporary.replace(real)
    finally:
        temporary.unlink(missing_ok=True)
    sync_folder(real.parent)


def check_place(path: Path, name: str, *, replace: bool) -> None:
    """Reject a place at which `write_file` would not write, with the same arguments.

    Raises:
        InvalidParameter: the file may not be replaced.
    """
    real = _led_to(path, name)
    if real.is_dir():
        raise InvalidParameter(name, str(path), "it is a folder, and a file is written")
    what = "it is a ledger" if _was_ledger(real) else ""
    for suffix, kind in _BESIDE.items():
        base = real.name.removesuffix(suffix)
        if base not in ("", real.name) and _was_ledger(real.with_name(base)):
            what = f"it is the {kind} of a ledger"
    if what:
        raise InvalidParameter(name, str(path), f"{what}, and is never replaced")
    if real.is_file() and not replace:
        raise InvalidParameter(name, str(path), "it exists already", "--force replaces it.")


def _was_ledger(path: Path) -> bool:
    """Return whether a file is a ledger, or was one before it was damaged, by its witness."""
    return is_ledger(path) or (
        path.is_file() and os.path.lexists(path.with_name(f"{path.name}.witness"))
    )


def _led_to(path: Path, name: str) -> Path:
    """Return the file that a path leads to, links followed. It may not exist yet."""
    try:
        real = Path(os.path.realpath(path))
        with suppress(FileNotFoundError, NotADirectoryError):
            real.stat()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise InvalidParameter(name, str(path), f"it cannot be written ({reason})") from None
    return real
