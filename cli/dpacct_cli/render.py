"""Output: number formats, aligned tables, JSON. Only this file and train_progress know rich.

Rule 1: a number that is shortened for display goes to the safe side (noise and proven bounds
up, achieved bounds down).
Rule 2: in a pipe the same words come as plain text.
Rule 3: rich, which takes half as long to import as numpy, is for work that takes longer still.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import ROUND_CEILING, ROUND_FLOOR, Context, Decimal
from textwrap import wrap

import typer

from dpacct.budget import Interval
from dpacct_cli.options import Style

LABEL_WIDTH = 17
WIDTH = 100
VALUE_WIDTH = 12


def _rounded(value: float | Decimal, digits: int, rounding: str) -> str:
    short = Context(prec=digits, rounding=rounding).create_decimal(Decimal(value))
    return f"{float(short):#.{digits}g}".removesuffix(".") if value else "0"


def up(value: float | Decimal, digits: int = 5) -> str:
    """``value`` with so many significant digits, never below it."""
    return _rounded(value, digits, ROUND_CEILING)


def down(value: float | Decimal, digits: int = 5) -> str:
    """``value`` with so many significant digits, never above it."""
    return _rounded(value, digits, ROUND_FLOOR)


def noise(value: float) -> str:
    """A noise multiplier with at most seven digits, never below the shortest decimal that is it."""
    text = up(Decimal(repr(value)), 7)
    return text.rstrip("0").removesuffix(".") if "." in text and "e" not in text else text


def seconds(value: float) -> str:
    """A duration."""
    return f"{value:.2f} s" if value >= 1.0 else f"{1000.0 * value:.1f} ms"


def plain(value: float) -> str:
    """A number that the user chose, as short as it was."""
    return f"{value:.12g}"


def bracket(interval: Interval, digits: int = 5) -> str:
    """Both sides of an interval, each with what it is worth."""
    return f"{up(interval.upper, digits)} proven    {down(interval.lower, digits)} achieved"


@dataclass(frozen=True, slots=True)
class Row:
    """One line: what it is, the number, what the number means."""

    label: str
    value: str
    meaning: str = ""


@dataclass(frozen=True, slots=True)
class Grid:
    """A table of cells below a header; cells of numbers are aligned by their columns."""

    header: Sequence[str]
    lines: Sequence[Sequence[str]]

    def widths(self) -> list[int]:
        """The width of each column."""
        return [max(map(len, column)) for column in zip(self.header, *self.lines, strict=True)]


@dataclass(frozen=True, slots=True)
class Page:
    """What a person gets to read."""

    rows: Sequence[Row]
    grid: Grid | None = None
    remarks: Sequence[str] = ()
    closing: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """What a command found, for all three styles. The page is written only if it is read."""

    data: dict[str, object]
    number: str
    page: Callable[[], Page] = field(repr=False)


def show(answer: Answer, style: Style) -> None:
    """Print an answer."""
    if style is Style.JSON:
        print(json.dumps(answer.data, indent=2, allow_nan=False))
    elif style is Style.QUIET:
        print(answer.number)
    else:
        page = answer.page()
        _print_page(page)
        if page.note:
            print(f"note: {page.note}", file=sys.stderr)


def _print_page(page: Page) -> None:
    _emit()
    for index, row in enumerate(page.rows):
        value = f"{row.value:<{VALUE_WIDTH}}  " if row.meaning else row.value
        label = f"  {row.label:<{LABEL_WIDTH}}  "
        _emit((label, ""), (value, "bold" if index == 0 else ""), (row.meaning, "dim"))
    if page.grid is not None:
        widths = page.grid.widths()
        _emit()
        _emit((_aligned(page.grid.header, widths), "dim"))
        for cells in page.grid.lines:
            _emit((_aligned(cells, widths), ""))
    if page.remarks:
        _emit()
    for remark in page.remarks:
        for line in wrap(remark, WIDTH, initial_indent="  ", subsequent_indent="    "):
            _emit((line, ""))
    if page.closing:
        _emit()
        _emit((f"  {page.closing}", ""))


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))


def _emit(*parts: tuple[str, str]) -> None:
    """Print one line of (text, style); styles reach terminals only."""
    if not sys.stdout.isatty() or os.environ.get("NO_COLOR"):
        print("".join(text for text, _ in parts).rstrip())
        return
    styled = [
        typer.style(text, **{style: True}) if style and text else text for text, style in parts
    ]
    typer.echo("".join(styled))


@contextmanager
def progress(style: Style) -> Generator[Callable[[str], None]]:
    """Say on a terminal what is being computed; in a pipe say nothing."""
    if style is not Style.HUMAN or not sys.stderr.isatty():
        yield lambda _: None
        return
    from rich.console import Console

    with Console(stderr=True).status("") as status:
        yield status.update
