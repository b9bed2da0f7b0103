"""Blocks of which a report consists, whatever it is rendered as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

# What stands on the line on which somebody signs.
SIGNED = ("Name", "Date", "Signature")


@dataclass(frozen=True, slots=True)
class Heading:
    """A title; level 1 is the page's. ``new_page``: it begins one where the report is printed."""

    level: int
    words: str
    new_page: bool = False


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A few sentences; ``strong`` ones carry the claim."""

    words: str
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Cells of text below a header, or beside the names of their rows where it is empty.

    ``caption`` says what the table shows.
    """

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Picture:
    """A drawing: an SVG element with a title, the same as lines of text, and what it shows."""

    svg: str
    text: str
    caption: str = ""


@dataclass(frozen=True, slots=True)
class Signatures:
    """Statements, each with a line on which somebody signs for it."""

    items: tuple[str, ...]


Block = Heading | Paragraph | Bullets | Table | Picture | Signatures


def column_is_number(rows: Sequence[Sequence[str]], column: int) -> bool:
    """Whether a column is set flush right."""
    cells = [row[column].replace(",", "").replace(".", "", 1) for row in rows]
    return bool(rows) and all(cell.isdigit() for cell in cells)
