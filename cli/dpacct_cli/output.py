"""The file that ``-o`` names: written whole, and over nothing that is not to be replaced."""

from __future__ import annotations

import os.path
import sys
from pathlib import Path
from typing import Annotated

from dpacct.errors import InvalidParameter
from dpacct_cli.options import OUTPUT, flag, option

LABEL = "--output"

Output = Annotated[
    str | None,
    option(LABEL, "-o", metavar="FILE", help="Write there instead of to stdout.", panel=OUTPUT),
]
Force = Annotated[
    bool,
    flag(
        "--force", panel=OUTPUT, advanced=True,
        help="Replace the file of -o if it exists; a ledger is never replaced.",
    ),
]  # fmt: skip


def read_output(output: str | None, *, force: bool) -> Path | None:
    """The file that was named, if it may be written; before anything is computed.

    Raises:
        InvalidParameter: it exists and --force is missing, or it is a ledger or a folder.
    """
    if output is None or output == "/dev/stdout":
        return None
    from dpacct.ledger.disk.outputs import check_place

    check_place(Path(output), LABEL, replace=force)
    return Path(output)


def write_output(text: str, target: Path | None, *, force: bool) -> None:
    """Write to the file that was named, or to stdout.

    Raises:
        InvalidParameter: the file exists and --force is missing, it is a ledger or a folder, or it
            cannot be written.
    """
    if target is None:
        sys.stdout.write(text)
        return
    write_new(text, target, LABEL, replace=force)


def write_bytes(content: bytes, target: Path, *, force: bool) -> None:
    """Write what is no text to the file that was named; errors as for `write_output`."""
    _write(content, target, LABEL, replace=force)


def write_new(text: str, file: Path, name: str, *, replace: bool = False) -> None:
    """Write a file of text, by default one that does not exist yet.

    Args:
        text, file: what, and where.
        name: of the option that named the file, or that it follows from.
        replace: whether it may exist.
    Raises:
        InvalidParameter: as for `write_output`.
    """
    _write(text.encode("utf-8", "surrogateescape"), file, name, replace=replace)


def _write(content: bytes, file: Path, name: str, *, replace: bool) -> None:
    # With the ledger comes SQLite, which most commands never need.
    from dpacct.ledger.disk.outputs import write_file

    try:
        write_file(file, lambda stream: stream.write(content), name=name, replace=replace)
    except OSError as error:
        reason = error.strerror or "unknown reason"
        raise InvalidParameter(name, str(file), f"it cannot be written ({reason})") from None


def is_there(word: str) -> bool:
    """Whether a file of this name exists."""
    return os.path.exists(word)  # noqa: PTH110 - pathlib raises


def has_folder(word: str) -> bool:
    """Whether there is a folder for a file of this name."""
    return os.path.isdir(os.path.dirname(word) or ".")  # noqa: PTH112, PTH120 - pathlib raises


def names_a_file(word: str, endings: tuple[str, ...]) -> bool:
    """Whether somebody who typed this meant a file, and not the name of something shipped."""
    return word.lower().endswith(endings) or os.sep in word or is_there(word)
