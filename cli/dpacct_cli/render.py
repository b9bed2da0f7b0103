"""Output: number formats, aligned tables, JSON.

Rule 1: a number that is shortened for display goes to the safe side (noise, delta and proven
bounds up, rates and achieved bounds down), so that what is shown is true, and safe if typed again.
Rule 2: in a pipe, and on a terminal that knows no colors, the same words come as plain text; on a
terminal no line is longer than it is wide, but for commands that are to be copied.
Rule 3: whatever stands in a name, nothing but printable text reaches the screen.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dpacct.budget import Interval
from dpacct.display import chosen, down, escaped, up
from dpacct_cli import waiting
from dpacct_cli.options import Style

LABEL_WIDTH = 17
WIDTH = 100
NARROWEST, UNLIMITED = 30, 10**6
VALUE_WIDTH = 12
STYLES = {"bold": "\x1b[1m", "dim": "\x1b[2m"}
RESET = "\x1b[0m"


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


class Row(NamedTuple):
    """One line: what it is, the number, what the number means."""

    label: str
    value: str
    meaning: str = ""


def wrapped(label: str, text: str) -> list[Row]:
    """Words that may be longer than a line, as rows of which the first has the label."""
    lines = _lines(text, WIDTH - LABEL_WIDTH - 4) or [""]
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
    if style is Style.JSON:
        import json

        print(json.dumps(answer.data, indent=2, allow_nan=False))
    elif style is Style.QUIET:
        print(answer.number)
    else:
        page = answer.page()
        _print_page(page)
        if page.note:
            # What follows on stderr comes behind it, or not at all if it is lost.
            sys.stdout.flush()
            print_note(page.note)


def print_note(text: str) -> None:
    """What a person should know, on stderr; as wide as the terminal, if that is one."""
    shown = f"note: {escaped(text)}"
    if sys.stderr.isatty():
        width = max(NARROWEST, waiting.columns(sys.stderr.fileno()))
        shown = "\n".join(_lines(shown, width, whole_words=True))
    print(shown, file=sys.stderr, flush=True)


def _print_page(page: Page) -> None:
    width = terminal_width()
    _emit()
    for index, row in enumerate(page.rows):
        _print_row(row, "bold" if index == 0 else "", width)
    if page.grid is not None:
        _emit()
        _print_grid(page.grid, width)
    if page.remarks:
        _emit()
    for remark in page.remarks:
        for line in _lines(remark, min(WIDTH, width), indents=("  ", "    ")):
            _emit((line, ""))
    if page.closing:
        _emit()
        # A command is to be copied, so the terminal breaks it.
        whole = " dpacct " in f" {page.closing}" or width >= UNLIMITED
        for line in [page.closing] if whole else _lines(page.closing, width - 2):
            _emit((f"  {line}", ""))


def _lines(
    text: str, width: int, *, whole_words: bool = False, indents: tuple[str, str] = ("", "")
) -> list[str]:
    """A text as lines that are so wide at most; the first is indented by itself."""
    from textwrap import wrap

    first, others = indents
    return wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=others,
        break_on_hyphens=not whole_words,
    )


def terminal_width() -> int:
    """Columns of the terminal, at least `NARROWEST`; beyond all lines where there is none."""
    if not sys.stdout.isatty():
        return UNLIMITED
    from shutil import get_terminal_size

    return max(NARROWEST, get_terminal_size().columns)


def _print_row(row: Row, style: str, width: int) -> None:
    value = f"{row.value:<{VALUE_WIDTH}}  " if row.meaning else row.value
    label = f"  {row.label:<{LABEL_WIDTH}}  "
    if len(label) + len(value) + len(row.meaning) <= width:
        _emit((label, ""), (value, style), (row.meaning, "dim"))
        return
    # Beside the label where there is room for a few words, else below it.
    lead = label if width >= 3 * len(label) else "    "
    if lead != label and row.label:
        _emit((f"  {row.label}", ""))
    words = f"{row.value}  {row.meaning.strip()}" if row.meaning else row.value
    for line in _lines(words, width - len(lead), whole_words=True):
        _emit((lead, ""), (line, style))
        lead = " " * len(lead)


def _print_grid(grid: Grid, width: int) -> None:
    widths = grid.widths()
    if sum(widths) + 2 * len(widths) <= width:
        _emit((_aligned(grid.header, widths), "dim"))
        for cells in grid.lines:
            _emit((_aligned(cells, widths), ""))
        return
    # What no line can hold stands below each other.
    for cells in grid.lines:
        first, *rest = zip(grid.header, cells, strict=True)
        _emit((f"  {first[0]} {first[1]}".rstrip(), ""))
        for name, cell in rest:
            if cell:
                _emit((f"    {name} ", "dim"), (cell, ""))


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    return "  " + "  ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))


def _emit(*parts: tuple[str, str]) -> None:
    """Print one line of (text, style); styles reach terminals that know them only."""
    shown = [(escaped(text), style) for text, style in parts]
    if not _has_styles():
        print("".join(text for text, _ in shown).rstrip())
        return
    styled = (f"{STYLES[style]}{text}{RESET}" if style and text else text for text, style in shown)
    print("".join(styled))


def _has_styles() -> bool:
    return sys.stdout.isatty() and waiting.knows_codes()
