"""Output: number formats, pages for people, JSON.

Rule 1: a number that is shortened goes to the safe side. Noise, delta and upper bounds are rounded
up, rates and lower bounds down. So the shown numbers are true, and safe if they are typed again.
Rule 2: a terminal gets a panel by Rich. A pipe gets the same words as plain text.
Rule 3: only printable text reaches the screen, with any name.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from functools import partial
from textwrap import wrap
from typing import Any, NamedTuple

from dpacct.budget import Interval
from dpacct.display import down, escaped, safe, up
from dpacct.outputs import as_data
from dpacct_cli import waiting

LABEL_WIDTH = 17
WIDTH = 100
VALUE_WIDTH = 12


def shown_delta(value: float) -> str:
    """Return a computed delta with at most three digits, never below it."""
    return safe("delta", value, 3)


def seconds(value: float) -> str:
    """Return a duration."""
    return f"{value:.2f} s" if value >= 1.0 else f"{1000.0 * value:.1f} ms"


def plain(value: float) -> str:
    """Return a number that the user chose, as short as it was, and exactly it."""
    short = f"{value:.12g}"
    return short if float(short) == value else repr(value)


def bracket(interval: Interval, digits: int = 5) -> str:
    """Return both bounds of an interval."""
    return f"{up(interval.upper, digits)} proven    {down(interval.lower, digits)} achieved"


class Style(Enum):
    """The format of a command's answer."""

    HUMAN = "human"
    JSON = "json"
    QUIET = "quiet"


class Row(NamedTuple):
    """A line: a label, a number, and the meaning of the number, or a label and prose."""

    label: str
    value: str
    meaning: str = ""
    prose: bool = False


def wrapped(label: str, text: str) -> list[Row]:
    """Return the row of a text that may be longer than a line."""
    return [Row(label, text, prose=True)]


class Grid(NamedTuple):
    """A table."""

    header: Sequence[str]  # A name for each column
    lines: Sequence[Sequence[str]]  # The cells
    # For some columns, by number, the color of each cell on a terminal
    colors: Mapping[int, Sequence[str]] = {}


class Page(NamedTuple):
    """An answer for people."""

    rows: Sequence[Row]  # The figures
    grids: Sequence[Grid] = ()  # Tables below them
    remarks: Sequence[str] = ()  # Sentences below it
    closing: str = ""  # A command or a tip to go on with
    note: str = ""  # A warning, for stderr
    title: str = ""  # The result, above the panel of a terminal
    used: float | None = None  # The used fraction of a budget, for a bar on a terminal


class Answer(NamedTuple):
    """The answer of a command in all three styles. The page is written only if it is read."""

    data: Mapping[str, object]
    number: str
    page: Callable[[], Page]


def show(answer: Answer, style: Style) -> None:
    """Print an answer."""
    if style is not Style.HUMAN:
        waiting.end()
        print(to_json(answer.data) if style is Style.JSON else answer.number)
        return
    show_page(answer.page())


def show_page(page: Page) -> None:
    """Print a page: a panel on a terminal, else plain text."""
    waiting.end()
    if on_terminal():
        _print_panel(page)
    else:
        _print_plain(page)
    if page.note:
        # The note follows the page, or is not printed if the page is lost.
        sys.stdout.flush()
        print_note(page.note)


def to_json(data: object) -> str:
    """Return one JSON object with the keys of `as_data`, and first the version of its keys."""
    import json

    return json.dumps({"schema": 1} | as_data(data), indent=2, allow_nan=False)


def print_note(text: str) -> None:
    """Print a warning on stderr."""
    waiting.end()
    print(f"note: {escaped(text)}", file=sys.stderr, flush=True)


def on_terminal() -> bool:
    """Return whether stdout is a terminal."""
    return sys.stdout.isatty()


def _literal(words: str, style: str = "") -> Any:
    """Return text from options and files for Rich: printable, without markup or emoji. Rule 3."""
    from rich.text import Text

    return Text(escaped(words), style)


def _print_panel(page: Page) -> None:
    from rich.console import Console
    from rich.padding import Padding

    console = Console(highlight=False)
    if page.rows:
        console.print(_panel_of(page))
    for grid in page.grids:
        console.print(_table_of(grid, console.width))
    for remark in page.remarks:
        console.print(Padding(_literal(remark), (0, 0, 0, 1)))
    if page.closing:
        # The terminal breaks a command, so that it can be copied.
        console.print(_literal(f" {page.closing}", "dim"), soft_wrap=True)


def _panel_of(page: Page) -> Any:
    from rich.box import ROUNDED
    from rich.panel import Panel
    from rich.progress_bar import ProgressBar
    from rich.table import Table

    rows = Table.grid(padding=(0, 2))
    rows.add_column(style="dim", no_wrap=True)
    rows.add_column()
    for number, row in enumerate(page.rows):
        value = _literal(row.value, "bold green" if number == 0 else "")
        if row.meaning:
            value.append(_literal(f"   {row.meaning.strip()}", "dim"))
        rows.add_row(_literal(row.label), value)
    if page.used is not None:
        color = "green" if page.used < 0.75 else "yellow" if page.used < 1 else "red"
        bar = ProgressBar(1.0, min(page.used, 1.0), 40, complete_style=color, finished_style=color)
        rows.add_row(f"{page.used:.0%} used", bar)
    return Panel(
        rows, box=ROUNDED, border_style="green", expand=False, title_align="left",
        title=_literal(page.title) if page.title else None,
    )  # fmt: skip


def _widths(columns: Sequence[Sequence[str]], most: int) -> tuple[list[int], int]:
    """Return the widths of columns that share a line, and the blanks right of each of them.

    The widest columns break lines between words. A word is broken only if words alone are too wide.
    """
    widths = [max(map(len, cells)) for cells in columns]
    words = [max(len(w) for cell in cells for w in [*cell.split(), ""]) for cells in columns]
    gap = 2 if sum(words) + 3 * len(words) <= most else 1
    for _ in range(sum(widths) + (gap + 1) * len(widths) - most):
        room = [width - word for width, word in zip(widths, words, strict=True)]
        of = room if max(room) > 0 else widths
        widths[of.index(max(of))] -= 1
    return widths, gap


def _table_of(grid: Grid, most: int) -> Any:
    from rich.table import Table

    texts = [list(cells) for cells in zip(grid.header, *grid.lines, strict=True)]
    widths, gap = _widths(texts, most)
    table = Table(box=None, header_style="dim", padding=(0, gap, 0, 1))
    columns: list[list[Any]] = []
    for place, ((name, *cells), width) in enumerate(zip(texts, widths, strict=True)):
        numbers = all(cell == "-" or (cell[:1] + cell[-1:]).isdigit() for cell in cells)
        right = "right" if numbers else "left"
        table.add_column(_literal(name), overflow="fold", justify=right, width=width)
        colors = grid.colors.get(place, [""] * len(cells))
        columns.append([_literal(c, color) for c, color in zip(cells, colors, strict=True)])
    for line in zip(*columns, strict=True):
        table.add_row(*line)
    return table


def _print_plain(page: Page) -> None:
    lines = [""]
    whole = partial(wrap, width=WIDTH, break_on_hyphens=False)  # Options stay whole
    for row in page.rows:
        label = f"  {row.label:<{LABEL_WIDTH}}  "
        if row.prose:
            below = " " * len(label)
            lines += whole(row.value, initial_indent=label, subsequent_indent=below)
            continue
        value = f"{row.value:<{VALUE_WIDTH}}  {row.meaning}" if row.meaning else row.value
        lines.append(f"{label}{value}")
    for grid in page.grids:
        lines.append("")
        padded: list[list[str]] = []
        for column in zip(grid.header, *grid.lines, strict=True):
            width = max(map(len, column))
            padded.append([cell.ljust(width) for cell in column])
        lines += [f"  {'  '.join(cells)}" for cells in zip(*padded, strict=True)]
    if page.remarks:
        lines.append("")
    for remark in page.remarks:
        lines += whole(remark, initial_indent="  ", subsequent_indent="    ")
    if page.closing:
        lines += ["", f"  {page.closing}"]
    for line in lines:
        print(escaped(line).rstrip())
