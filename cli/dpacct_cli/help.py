"""The text of --help, as wide as the terminal.

Rule 1: no line is longer than the terminal is wide, but for commands that are to be copied.
Rule 2: no name of an option or a method is broken.
Rule 3: many options stand in panels, each below what it is about.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from inspect import cleandoc
from shutil import get_terminal_size
from textwrap import wrap

from dpacct_cli.parameters import PANELS_FROM, Parameter

WIDEST = 128
NARROWEST = 24
FIRST_COLUMN = 30
OPTIONS = "Options"
Rows = Sequence[tuple[str, str]]


def terminal_columns() -> int:
    """How wide help is written."""
    return max(min(get_terminal_size().columns, WIDEST) - 2, NARROWEST)


@dataclass(frozen=True, slots=True)
class Help:
    """What a command says of itself.

    Attributes:
        usage: how it is called, and what may follow.
        text: a docstring: paragraphs, and examples that are kept as they are.
        sections: headings, each with rows of a name and what it means.
    """

    usage: tuple[str, str]
    text: str
    sections: Sequence[tuple[str, Rows]]

    def render(self, width: int) -> str:
        """As text of lines that are so wide at most."""
        parts = [_usage(*self.usage, width), *_paragraphs(self.text, width)]
        parts += [_section(heading, rows, width) for heading, rows in self.sections if rows]
        return "\n\n".join(parts)


def sections_of(parameters: Sequence[Parameter]) -> list[tuple[str, Rows]]:
    """The argument, then the options, in panels where they are many."""
    options = [found for found in parameters if not found.is_argument]
    panels: dict[str, list[tuple[str, str]]] = {
        "Arguments": [_row(found) for found in parameters if found.is_argument]
    }
    many = len(options) >= PANELS_FROM
    for found in options:
        panels.setdefault(found.panel if many and found.panel else OPTIONS, []).append(_row(found))
    # What every command has comes last.
    common = panels.pop(OPTIONS, [])
    return [*panels.items(), (OPTIONS, common)]


def summary(text: str) -> str:
    """The first sentence of a docstring."""
    return " ".join(cleandoc(text).partition("\n\n")[0].split())


def _row(found: Parameter) -> tuple[str, str]:
    needed = found.is_argument and not found.metavar.startswith("[")
    return found.spelled, f"{found.help}  [required]" if needed else found.help


def _usage(path: str, pieces: str, width: int) -> str:
    lead = f"Usage: {path} "
    if width >= len(lead) + 20:
        return "\n".join(_wrapped(pieces, width, lead, " " * len(lead)))
    return "\n".join([lead.rstrip(), *_wrapped(pieces, width, " " * 11, " " * 11)])


def _paragraphs(text: str, width: int) -> Iterable[str]:
    for paragraph in cleandoc(text).split("\n\n"):
        lines = paragraph.splitlines()
        if re.match("Examples?:", paragraph) is None:
            lines = wrap(" ".join(lines), width - 2, break_on_hyphens=False)
        yield "\n".join(f"  {line}".rstrip() for line in lines)


def _section(heading: str, rows: Rows, width: int) -> str:
    column = min(max(len(name) for name, _ in rows), FIRST_COLUMN, width // 3)
    lines = [f"{heading}:"]
    for name, text in rows:
        names = [f"  {part}" for part in _folded(name, width - 2)]
        beside = _wrapped(text, width, "", "", room=max(width - column - 4, 10))
        if len(name) <= column:
            names[0] = f"{names[0]:<{column + 4}}{beside.pop(0)}" if beside else names[0]
        lines += [*names, *(" " * (column + 4) + line for line in beside)]
    return "\n".join(lines)


def _folded(name: str, width: int) -> list[str]:
    """A list of alternatives as long as the terminal is wide, line by line."""
    if len(name) <= width or " " not in name:
        return [name]
    names, _, choices = name.rpartition(" ")
    lines = [f"{names} "]
    for choice in re.findall(r"[^|]+\|?", choices):
        if len(lines[-1]) + len(choice) > width and lines[-1].strip():
            lines.append(" " * (len(names) + 1))
        lines[-1] += choice
    return [line.rstrip() for line in lines]


def _wrapped(
    text: str, width: int, first: str, others: str, *, room: int | None = None
) -> list[str]:
    return wrap(
        text,
        width if room is None else room,
        initial_indent=first,
        subsequent_indent=others,
        break_on_hyphens=False,
        break_long_words=False,
    )
