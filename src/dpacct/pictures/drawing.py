"""A picture that can be shown: as PNG, SVG or PDF by matplotlib, as text without it.

Rule 1: what is meant to be told apart differs in hue, in lightness and in the kind of its line, so
that it is told apart in gray too. The ground is part of the picture: white, or dark where asked.
Rule 2: a file is written whole or not at all, and nothing is replaced unasked.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any

from dpacct.errors import InvalidParameter, Unsupported
from dpacct.pictures.picture import Picture
from dpacct.pictures.text import to_text

FORMATS = (".png", ".svg", ".pdf")


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture, shown by notebooks and as text, and saved to a file.

    Attributes:
        picture: what is drawn.
        dark: on a dark ground.
    """

    picture: Picture
    dark: bool = False

    def save(self, path: str | os.PathLike[str], *, replace: bool = False) -> None:
        """Write a file whose name ends in .png, .svg or .pdf.

        Raises:
            InvalidParameter: another ending, or a file that may not be replaced.
            Unsupported: matplotlib is missing. OSError: it cannot be written.
        """
        from dpacct.ledger.disk.outputs import check_place, write_file  # noqa: PLC0415 - needs SQLite

        file = Path(path)
        form = format_of(file, "path")
        check_place(file, "path", replace=replace)
        content = self.to_bytes(form)
        write_file(file, lambda stream: stream.write(content), name="path", replace=replace)

    def to_bytes(self, form: str) -> bytes:
        """The picture as png, svg or pdf.

        Raises:
            Unsupported: matplotlib is missing.
        """
        stream = BytesIO()
        try:
            draw = import_module("dpacct.pictures.matplotlib").draw
            draw(self.picture, dark=self.dark).savefig(stream, format=form, metadata=_plain(form))
        except ModuleNotFoundError as error:
            if error.name is None or error.name.partition(".")[0] != "matplotlib":
                raise
            raise Unsupported(
                "pictures are drawn by matplotlib, which is missing: pip install 'dpacct[plot]'"
            ) from None
        return stream.getvalue()

    def text(self, width: int = 80) -> str:
        """The picture as lines of text."""
        return to_text(self.picture, width)

    def _repr_svg_(self) -> str:
        return self.to_bytes("svg").decode("utf-8")

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Drawing {self.picture.title!r}>"


def _plain(form: str) -> dict[str, Any]:
    """No dates, so that equal pictures are equal files."""
    return {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(form, {})


def format_of(file: Path, name: str) -> str:
    """png, svg or pdf, by the name of a file.

    Raises:
        InvalidParameter: it ends in something else.
    """
    suffix = file.suffix.lower()
    if suffix not in FORMATS:
        raise InvalidParameter(name, str(file), f"a picture ends in {', '.join(FORMATS)}")
    return suffix[1:]
