"""Where a picture goes: a file by its name, or the terminal as text; with --json its data."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from dpacct_cli.options import flag, option
from dpacct_cli.output import LABEL, read_output, write_bytes
from dpacct_cli.render import to_json

if TYPE_CHECKING:
    from dpacct.pictures import Picture

PictureFile = Annotated[
    str | None,
    option(
        LABEL, "-o", metavar="FILE", help="A .png, .svg or .pdf file; without it, text is drawn."
    ),
]
Dark = Annotated[bool, flag("--dark", help="On a dark ground.")]
PictureData = Annotated[bool, flag("--json", help="The data of the picture as JSON.")]


@dataclass(frozen=True, slots=True)
class Target:
    """Where a picture goes, checked before anything is computed."""

    file: Path | None
    force: bool
    dark: bool
    as_json: bool

    def put(self, picture: Picture) -> None:
        """Draw, and write or print."""
        from dpacct.pictures import Drawing, as_data

        drawing = Drawing(picture, dark=self.dark)
        if self.file is not None:
            from dpacct.pictures.drawing import format_of

            content = drawing.to_bytes(format_of(self.file, LABEL))
            write_bytes(content, self.file, force=self.force)
        if self.as_json:
            print(to_json(as_data(picture)))
        elif self.file is None:
            print(f"\n{drawing.text(_columns())}")
        else:
            print(f"{picture.title}: {self.file}")


def read_target(output: str | None, *, force: bool, dark: bool, as_json: bool) -> Target:
    """What was typed about the file.

    Raises:
        InvalidParameter: it exists and --force is missing, or it is no kind of picture.
    """
    file = read_output(output, force=force)
    if file is not None:
        from dpacct.pictures.drawing import format_of

        format_of(file, LABEL)
    return Target(file, force, dark, as_json)


def _columns() -> int:
    if "COLUMNS" in os.environ or sys.stdout.isatty():
        return shutil.get_terminal_size().columns
    return 80
