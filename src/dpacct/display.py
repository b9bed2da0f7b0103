"""Numbers and foreign text as people read them.

Rule 1: a shortened number goes to the safe side: a proven bound up, an achieved one down. A number
that a person chose is shortened from its shortest decimal, so that 0.1 stays 0.1.
Rule 2: text from a file, a message or a user stays text. No character that is not printable reaches
a terminal, a log or a page, and no text is so long that it hides the rest. `line` and `escaped` see
to it, and every error uses them.
"""

from __future__ import annotations

from collections.abc import Iterable
from decimal import ROUND_CEILING, ROUND_FLOOR, Context
from importlib import import_module
from os import PathLike
from typing import Any, Protocol

from dpacct.errors import escaped, line

__all__ = [
    "Drawn", "chosen", "down", "drawn", "escaped", "html_table", "line", "safe", "trimmed", "up",
]  # fmt: skip

# The only way to a later room: values can be drawn, and do not import the code that draws them.
_PICTURES = "dpacct.pictures"


class Drawn(Protocol):
    """A picture of a value. A notebook shows it, and `print` shows it as text."""

    def save(self, path: str | PathLike[str], *, replace: bool = False) -> None:
        """Write a file whose name ends in .png, .svg or .pdf."""
        ...

    def to_bytes(self, form: str) -> bytes:
        """Return the picture as png, svg or pdf."""
        ...

    def text(self, width: int = 80) -> str:
        """Return the picture as lines of text."""
        ...


def drawn(function: str, value: Any) -> Drawn:
    """Return the picture of a value by a function of `dpacct.pictures`."""
    pictures: Any = import_module(_PICTURES)
    return pictures.Drawing(getattr(pictures, function)(value))


def up(value: float, digits: int = 5) -> str:
    """Return ``value`` with at most 15 significant digits, never below it.

    A float is the decimal that it is written as: 0.1 is one tenth. Read back as a float, the figure
    is never below ``value`` either.
    """
    return _shortened(value, digits, ROUND_CEILING)


def down(value: float, digits: int = 5) -> str:
    """Return ``value`` with at most 15 significant digits, never above it, likewise."""
    return _shortened(value, digits, ROUND_FLOOR)


def _shortened(value: float, digits: int, rounding: str) -> str:
    short = Context(prec=digits, rounding=rounding).create_decimal(repr(float(value)))
    return f"{float(short):#.{digits}g}".removesuffix(".") if value else "0"


def chosen(value: float, digits: int = 7, *, least: bool = False) -> str:
    """Return a number that a person chose, shortened upwards, or downwards if ``least``."""
    return trimmed((down if least else up)(value, digits))


# What is safe to be less: a lower rate or lower end, and fewer rounds. Noise, delta and an upper
# end are safe to be more.
_LESS = {
    "sampling_rate": True, "rounds": True, "lower": True,
    "noise_multiplier": False, "delta": False, "upper": False,
}  # fmt: skip


def safe(quantity: str, value: float, digits: int = 7, *, zeros: bool = False) -> str:
    """Return a number shortened to the side on which its quantity is safe to be typed again."""
    figure = (down if _LESS[quantity] else up)(value, digits)
    return figure if zeros else trimmed(figure)


def trimmed(figure: str) -> str:
    """Return a figure without the zeros at its end."""
    if "." not in figure:
        return figure
    head, mark, exponent = figure.partition("e")
    return head.rstrip("0").removesuffix(".") + mark + exponent


def html_table(rows: Iterable[tuple[str, str, str]]) -> str:
    """Return a table for a notebook, with rows of name, figure and meaning."""
    # Commands start without it.
    from html import escape  # noqa: PLC0415 - as said

    cells = "".join(
        f"<tr><th style='text-align:left'>{name}</th><td>{figure}</td>"
        f"<td style='text-align:left;opacity:0.75'>{meaning}</td></tr>"
        for name, figure, meaning in ([escape(escaped(words)) for words in row] for row in rows)
    )
    return f"<table>{cells}</table>"
