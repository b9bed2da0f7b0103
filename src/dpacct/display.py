"""Numbers, and the words of others, as people get to read them.

Rule 1: a number that is shortened goes to the safe side: what is promised up, what is achieved
down. What somebody chose is compared as the shortest decimal that it is, so that 0.1 stays 0.1.
Rule 2: words that come from a file or a user stay words: no character that is not printable
reaches a terminal or a page, and none is so long that it hides the rest.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from importlib import import_module
from os import PathLike
from typing import Any, Protocol

# Values know that they can be drawn, not by whom: the only way to a later room.
_PICTURES = "dpacct.pictures"
# As many characters of a name are shown as a name may have.
MAX_SHOWN = 200


class Drawn(Protocol):
    """A picture of a value: a notebook shows it, and so does `print`, as text."""

    def save(self, path: str | PathLike[str], *, replace: bool = False) -> None:
        """Write a file whose name ends in .png, .svg or .pdf."""
        ...

    def to_bytes(self, form: str) -> bytes:
        """Return the picture as png, svg or pdf."""
        ...

    def text(self, width: int = 80) -> str:
        """The picture as lines of text."""
        ...


def up(value: float | Decimal, digits: int = 5) -> str:
    """``value`` with so many significant digits, at most 15, never below it."""
    return _shortened(value, digits, ROUND_CEILING)


def down(value: float | Decimal, digits: int = 5) -> str:
    """``value`` with so many significant digits, at most 15, never above it."""
    return _shortened(value, digits, ROUND_FLOOR)


def _shortened(value: float | Decimal, digits: int, rounding: str) -> str:
    short = Context(prec=digits, rounding=rounding).create_decimal(Decimal(value))
    return f"{float(short):#.{digits}g}".removesuffix(".") if value else "0"


def chosen(value: float, digits: int = 7, *, least: bool = False) -> str:
    """A number that somebody chose, with at most so many digits.

    Args:
        value: a finite number.
        digits: significant ones.
        least: shorten it downwards; else upwards.
    """
    return trimmed((down if least else up)(Decimal(repr(float(value))), digits))


def trimmed(figure: str) -> str:
    """A figure without the zeros at its end."""
    if "." not in figure:
        return figure
    head, mark, exponent = figure.partition("e")
    return head.rstrip("0").removesuffix(".") + mark + exponent


def escaped(words: str) -> str:
    r"""Words without control characters, line ends, marks of direction and broken halves of pairs.

    Each of them becomes its escape, as in ``\x1b``; blanks stay as many as they are.
    """
    if words.isprintable():
        return words
    return "".join(c if c.isprintable() else _escape(c) for c in words)


def _escape(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def line(words: str, longest: int = MAX_SHOWN) -> str:
    """Words of others on one line: white space is a blank, and what is too long is cut."""
    cut = words if len(words) <= longest else f"{words[:longest]}... ({len(words)} characters)"
    return escaped(" ".join(cut.split()))


def html_table(rows: Iterable[tuple[str, str, str]]) -> str:
    """A small table for a notebook: what it is, the figure, and what the figure means."""
    cells = "".join(
        f"<tr><th style='text-align:left'>{_html(name)}</th><td>{_html(figure)}</td>"
        f"<td style='text-align:left;opacity:0.75'>{_html(meaning)}</td></tr>"
        for name, figure, meaning in rows
    )
    return f"<table>{cells}</table>"


def _html(words: str) -> str:
    shown = escaped(words).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return shown.replace('"', "&quot;")


def drawn(function: str, value: Any, **options: Any) -> Drawn:
    """The picture of a value by a function of the room of pictures."""
    return getattr(import_module(_PICTURES), function)(value, **options)
