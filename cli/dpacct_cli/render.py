"""Output: number formats, pages for people, JSON.

Rule 1: a number that is shortened goes to the safe side. Noise, delta and upper bounds are rounded
up, rates and lower bounds down, so that what is shown is true, and safe if it is typed again.
Rule 2: a terminal gets a panel by Rich. A pipe gets the same words as plain text.
Rule 3: only printable text reaches the screen, whatever a name contains.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from textwrap import wrap
from typing import NamedTuple

from dpacct.budget import Interval
from dpacct.display import chosen, down, escaped, up
from dpacct_cli import waiting

LABEL_WIDTH = 17
WIDTH = 100
VALUE_WIDTH = 12


def noise(value: float) -> str:
    """A noise multiplier with at most seven digits, never below the shortest decimal that is it."""
    return chosen(value)


def rate(value: float) -> str:
    """A sampling rate with at most seven digits, never above the shortest decimal that is it."""
    return chosen(value, least=True)


def shown_delta(value: float) -> str:
    """A delta that was computed, with at most three digits, never below it."""
    return chosen(value, 3)


def seconds(value: float) -> str:
    """A duration."""
    return f"{value:.2f} s" if value >= 1.0 else f"{1000.0 * value:.1f} ms"


def plain(value: float) -> str:
    """A number that the user chose, as short as it was, and exactly it."""
    short = f"{value:.12g}"
    return short if float(short) == value else repr(value)


def bracket(interval: Interval, digits: int = 5) -> str:
    """Both sides of an interval, each with what it is worth."""
    return f"{up(interval.upper, digits)} proven    {down(interval.lower, digits)} achieved"


class Style(Enum):
    """How a command answers."""

    HUMAN = "human"
    JSON = "json"
    QUIET = "quiet"


class Row(NamedTuple):
    """One line: what it is, the number, what the number means."""

    label: str
    value: str
    meaning: str = ""


def wrapped(label: str, text: str) -> list[Row]:
    """Words that may be longer than a line, as rows of which the first has the label."""
    lines = wrap(text, WIDTH - LABEL_WIDTH - 4) or [""]
    return [Row(label if number == 0 else "", line) for number, line in enumerate(lines)]


class Grid(NamedTuple):
    """A table of cells below a header; cells of numbers are aligned by their columns."""

    header: Sequence[str]
    lines: Sequence[Sequence[str]]

    def widths(self) -> list[int]:
        """The width of each column."""
        return [max(map(len, column)) for column in zip(self.header, *self.lines, strict=True)]


class Page(NamedTuple):
    """What a person gets to read."""

    rows: Sequence[Row]
    grid: Grid | None = None
    remarks: Sequence[str] = ()
    closing: str = ""
    note: str = ""


class Answer(NamedTuple):
    """What a command found, for all three styles. The page is written only if it is read."""

    data: dict[str, object]
    number: str
    page: Callable[[], Page]


def show(answer: Answer, style: Style) -> None:
    """Print an answer."""
    waiting.end()
    if style is Style.JSON:
        print(to_json(answer.data))
    elif style is Style.QUIET:
        print(answer.number)
    else:
        page = answer.page()
        _print_page(page)
        if page.note:
            # What follows on stderr comes behind it, or not at all if it is lost.
            sys.stdout.flush()
            print_note(page.note)


def to_json(data: Mapping[str, object]) -> str:
    """Return one JSON object, which names the version of its keys first."""
    import json

    return json.dumps({"schema": 1} | dict(data), indent=2, allow_nan=False)


def print_note(text: str) -> None:
    """Print what a person should know, on stderr."""
    waiting.end()
    print(f"note: {escaped(text)}", file=sys.stderr, flush=True)


def _on_terminal() -> bool:
    return sys.stdout.isatty()


def _print_page(page: Page) -> None:
    if not _on_terminal():
        _print_plain(page)
        return
    from rich.box import ROUNDED
    from rich.console import Console
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    console = Console(highlight=False)
    parts = Table.grid(padding=(0, 2))
    parts.add_column(style="dim", no_wrap=True)
    parts.add_column()
    for number, row in enumerate(page.rows):
        value = Text(escaped(row.value), "bold green" if number == 0 else "")
        if row.meaning:
            value.append(f"   {escaped(row.meaning.strip())}", "dim")
        parts.add_row(escaped(row.label), value)
    if page.rows:
        console.print(Panel(parts, box=ROUNDED, border_style="green", expand=False))
    if page.grid is not None:
        table = Table(box=None, header_style="dim", padding=(0, 2, 0, 0))
        for name in page.grid.header:
            table.add_column(Text(escaped(name)), overflow="fold")
        for cells in page.grid.lines:
            table.add_row(*(Text(escaped(cell)) for cell in cells))
        console.print(table)
    for remark in page.remarks:
        console.print(Text(f"  {escaped(remark)}"))
    if page.closing:
        # The terminal breaks a command, so that it can be copied.
        console.print(Text(f"  {escaped(page.closing)}", "dim"), soft_wrap=True)


def _print_plain(page: Page) -> None:
    """Print the page as text, for pipes and files."""
    lines = [""]
    for row in page.rows:
        value = f"{row.value:<{VALUE_WIDTH}}  {row.meaning}" if row.meaning else row.value
        lines.append(f"  {row.label:<{LABEL_WIDTH}}  {value}")
    if page.grid is not None:
        widths = page.grid.widths()
        lines.append("")
        for cells in (page.grid.header, *page.grid.lines):
            padded = (f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))
            lines.append(f"  {'  '.join(padded)}")
    if page.remarks:
        lines.append("")
    for remark in page.remarks:
        lines += wrap(remark, WIDTH, initial_indent="  ", subsequent_indent="    ")
    if page.closing:
        lines += ["", f"  {page.closing}"]
    for line in lines:
        print(escaped(line).rstrip())
