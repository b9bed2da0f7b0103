"""Blocks of which a report consists, whatever it is rendered as."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Heading:
    """A title; level 1 is the page's."""

    level: int
    words: str


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
    """Cells of text below a header."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Picture:
    """Epsilon over the rounds; each form of report draws it in its own way."""

    report: dict[str, Any]


Block = Heading | Paragraph | Bullets | Table | Picture


def column_is_number(rows: Sequence[Sequence[str]], column: int) -> bool:
    """Whether a column is set flush right."""
    return bool(rows) and all(row[column].replace(".", "", 1).isdigit() for row in rows)
