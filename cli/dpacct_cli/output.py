"""Files: the one that ``-o`` names, written whole and never over another by surprise, and ledgers.

``os.path`` decides whether a file exists: it also takes a word that can be no file name, such as
one with a null byte, for which `pathlib` raises.
"""

from __future__ import annotations

import os.path
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dpacct.errors import InvalidParameter
from dpacct.validate import is_address
from dpacct_cli.options import OUTPUT, Text, flag, option
from dpacct_cli.render import print_note

if TYPE_CHECKING:
    from dpacct.ledger import Ledger

LABEL = "--output"

Output = Annotated[Text, option(f"{LABEL} -o", "FILE", OUTPUT, "Write there instead of to stdout.")]
Force = Annotated[bool, flag("--force", OUTPUT,
    "Replace the file of -o if it exists; a ledger is never replaced.", advanced=True)]  # fmt: skip


def read_output(output: str | None, *, force: bool) -> Path | None:
    """Return the file that was named, if it may be written, before anything is computed."""
    if output is None or output == "/dev/stdout":
        return None
    from dpacct.files import check_place

    check_place(Path(output), LABEL, replace=force)
    if not has_folder(output):
        rule = f"it cannot be written: no folder {Path(output).parent}"
        raise InvalidParameter(LABEL, output, rule)
    return Path(output)


def write_output(
    content: str | bytes, target: Path | None, *, force: bool = False, name: str = LABEL
) -> None:
    """Write to the file that an option called ``name`` names, or, a text, to stdout."""
    if target is None:
        sys.stdout.write(str(content))
        return
    # With the ledger comes SQLite, which most commands never need.
    from dpacct.files import write_file

    held = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    try:
        write_file(target, lambda stream: stream.write(held), name=name, replace=force)
    except OSError as error:
        reason = error.strerror or "unknown reason"
        raise InvalidParameter(name, str(target), f"it cannot be written ({reason})") from None


def given(file: str) -> str:
    """Return the name of a ledger, which may not be empty."""
    if not file:
        raise InvalidParameter("FILE", None, "name the ledger of a data set")
    return file


def opened(file: str, *, read_only: bool = True) -> Ledger:
    """Open an existing ledger, by default for reading only."""
    from dpacct.ledger import Ledger

    if not is_there(given(file)):
        raise InvalidParameter("FILE", file, "there is no such file")
    if os.path.isdir(file):  # noqa: PTH112 - as in `is_there`
        raise InvalidParameter("FILE", file, "it is a folder, and a ledger is a file")
    ledger = Ledger.open(file, read_only=read_only)
    if ledger.note:
        print_note(ledger.note)
    return ledger


def is_there(word: str) -> bool:
    """Return True if a file of this name exists. Whether an address answers is seen later."""
    return is_address(word) or os.path.exists(word)  # noqa: PTH110 - pathlib raises


def has_folder(word: str) -> bool:
    """Return True if there is a folder for a file of this name, or if it is an address."""
    return is_address(word) or os.path.isdir(os.path.dirname(word) or ".")  # noqa: PTH112, PTH120 - pathlib raises


def names_a_file(word: str, endings: tuple[str, ...]) -> bool:
    """Return True if a word is meant as a file, and not as the id of something shipped."""
    return word.lower().endswith(endings) or os.sep in word or is_there(word)
