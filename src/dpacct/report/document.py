"""A report: facts for programs, and blocks for people, written as Markdown, HTML or JSON.

Rule: text that comes from users stays text. No markup of theirs works in a page.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.resources import files
from typing import Any, Literal

from dpacct.display import drawn, escaped
from dpacct.errors import Unsupported

SIGNATURE_FIELDS = ("Name", "Date", "Signature")
_BLANKS = "  ".join(f"{word} " + "\\_" * 20 for word in SIGNATURE_FIELDS)
_MARKUP = re.compile(r"([\\`*_{}\[\]<>|#])")


@dataclass(frozen=True, slots=True)
class Heading:
    """A title. Level 1 is that of the page; ``new_page`` begins a page in print."""

    level: int
    words: str
    new_page: bool = False


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A few sentences. A ``strong`` paragraph states the claim."""

    words: str
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Bullets:
    """A list."""

    items: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows below a header. With an empty header the first column names the rows."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    caption: str = ""

    def is_number(self, column: int) -> bool:
        """Return whether a column holds whole numbers, which are aligned right."""
        cells = [row[column].replace(",", "").replace(".", "", 1) for row in self.rows]
        return bool(self.rows) and all(cell.isdigit() for cell in cells)


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart, which only the HTML page shows.

    Attributes:
        function: in `dpacct.pictures`. data: its argument. caption: what the chart shows.
    """

    function: Literal["draw_epsilon", "draw_people"]
    data: Any
    caption: str

    @property
    def source(self) -> str:
        """The chart as the address of an SVG image that is part of the page.

        Raises:
            Unsupported: matplotlib is missing.
        """
        svg = drawn(self.function, self.data).to_bytes("svg")
        return f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}"


@dataclass(frozen=True, slots=True)
class Signatures:
    """Statements, each with a line for a signature."""

    items: tuple[str, ...]


Block = Heading | Paragraph | Bullets | Table | Chart | Signatures


@dataclass(frozen=True, slots=True)
class Report:
    """A report.

    Attributes:
        facts: as JSON has them; an epsilon without a bound is null.
        blocks: the page.
    """

    facts: dict[str, Any]
    blocks: tuple[Block, ...]

    def to_html(self) -> str:
        """Return one page of HTML that loads nothing and runs no script.

        Raises:
            Unsupported: Jinja2 or matplotlib is missing.
        """
        try:
            jinja2: Any = import_module("jinja2")
        except ModuleNotFoundError:
            rule = "Jinja2 writes this page and is missing: pip install -e '.[report]'"
            raise Unsupported(rule) from None
        page = files("dpacct.report").joinpath("page.html").read_text(encoding="utf-8")
        environment = jinja2.Environment(
            autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
        )
        environment.filters["plain"] = _plain
        environment.filters["pieces"] = _pieces
        kinds = [(type(block).__name__, block) for block in self.blocks]
        title = next((b.words for b in self.blocks if isinstance(b, Heading)), "Privacy report")
        return environment.from_string(page).render(
            blocks=kinds, title=title, fields=SIGNATURE_FIELDS
        )

    def to_markdown(self) -> str:
        """Return the page as Markdown, without charts."""
        return "\n\n".join(filter(None, map(_markdown, self.blocks))) + "\n"

    def to_json(self) -> str:
        """Return the facts as a JSON object."""
        return json.dumps({"schema": 1} | self.facts, indent=2, allow_nan=False) + "\n"


#: The formats of a report, each with its writer.
FORMATS: dict[str, Callable[[Report], str]] = {
    "html": Report.to_html,
    "md": Report.to_markdown,
    "json": Report.to_json,
}


def _plain(words: str) -> str:
    """Return words on one line, with control characters escaped."""
    return escaped(" ".join(words.split()))


def _pieces(words: str) -> list[str]:
    """Split words at backticks: every second piece is code."""
    pieces = _plain(words).split("`")
    return pieces if len(pieces) % 2 else [_plain(words)]


def _markdown(block: Block) -> str:
    match block:
        case Heading(level, words):
            return f"{'#' * level} {_safe(words)}"
        case Paragraph(words, strong):
            return f"**{_safe(words)}**" if strong else _safe(words)
        case Bullets(items):
            return "\n".join(f"- {_safe(item)}" for item in items)
        case Table(header, rows):
            rule = ["---:" if block.is_number(n) else "---" for n in range(len(header))]
            return "\n".join([_row(map(_safe, header)), _row(rule), *map(_safe_row, rows)])
        case Chart():
            return ""
        case Signatures(items):
            return "\n\n".join(
                f"{number}. {_safe(item)}\n\n   {_BLANKS}" for number, item in enumerate(items, 1)
            )


def _safe_row(cells: Sequence[str]) -> str:
    return _row(map(_safe, cells))


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _safe(words: str) -> str:
    """Escape markup, except for commands in backticks that dpacct wrote itself."""
    pieces = re.split(r"(`dpacct [^`]*`|`export`)", _plain(words))
    return "".join(
        piece if n % 2 else _MARKUP.sub(r"\\\1", piece) for n, piece in enumerate(pieces)
    )
