"""A report: facts for programs, and blocks for people, written as HTML, PDF, Markdown or JSON.

Rule: text that comes from users stays text. No markup of theirs works in a page.
"""

from __future__ import annotations

import base64
import json
import re
from dataclasses import dataclass, replace
from importlib import import_module
from importlib.resources import files
from typing import Any

from dpacct import validate
from dpacct.display import drawn, escaped, line
from dpacct.errors import Unsupported

SIGNATURE_FIELDS = ("Name", "Date", "Signature")
_MARKUP = re.compile(r"([\\`*_{}\[\]<>|#])")


@dataclass(frozen=True, slots=True)
class Heading:
    """A title. Level 1 is that of the page. ``new_page`` begins a page in print."""

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
        """Return True if a column holds whole numbers, which are aligned right."""
        cells = [row[column].replace(",", "").replace(".", "", 1) for row in self.rows]
        return bool(self.rows) and all(cell.isdigit() for cell in cells)


@dataclass(frozen=True, slots=True)
class Chart:
    """A chart, which Markdown leaves out.

    Attributes:
        data: for `dpacct.pictures.epsilon_chart`. caption: a description of the chart.
    """

    data: Any
    caption: str

    def to_bytes(self, form: str) -> bytes:
        """Return the chart as svg or png.

        Raises:
            Unsupported: matplotlib is missing.
        """
        return drawn("epsilon_chart", self.data).to_bytes(form)


@dataclass(frozen=True, slots=True)
class Signatures:
    """Statements, each with a line for a signature."""

    items: tuple[str, ...]


Block = Heading | Paragraph | Bullets | Table | Chart | Signatures


@dataclass(frozen=True, slots=True)
class Report:
    """A report.

    Attributes:
        facts: as JSON has them. An epsilon without a bound is null.
        blocks: the page.
    """

    facts: dict[str, Any]
    blocks: tuple[Block, ...]

    @property
    def title(self) -> str:
        """The title of the page."""
        return next((b.words for b in self.blocks if isinstance(b, Heading)), "Privacy report")

    def with_cover(self, *, title: str = "", author: str = "", date: str = "") -> Report:
        """Return the report with another title, and with an author and a date below it.

        Raises:
            InvalidParameter: one of them is not a line of text.
        """
        said = {"title": title, "author": author, "date": date}
        said = {key: validate.line(key, text, f"the {key}") for key, text in said.items() if text}
        blocks = list(self.blocks)
        if title:
            blocks[0] = Heading(1, line(title))
        if author or date:
            blocks.insert(1, Paragraph(", ".join(line(text) for text in (author, date) if text)))
        return replace(self, facts=self.facts | said, blocks=tuple(blocks))

    def to_html(self) -> str:
        """Return one page of HTML that loads nothing and runs no script.

        Raises:
            Unsupported: Jinja2 or matplotlib is missing.
        """
        jinja2 = needed("jinja2", "Jinja2")
        page = files("dpacct.report").joinpath("page.html").read_text(encoding="utf-8")
        environment = jinja2.Environment(
            autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=jinja2.StrictUndefined
        )
        environment.filters |= {"plain": plain, "pieces": _pieces, "svg": _svg_address}
        kinds = [(type(block).__name__, block) for block in self.blocks]
        return environment.from_string(page).render(
            blocks=kinds, title=self.title, fields=SIGNATURE_FIELDS
        )

    def to_markdown(self) -> str:
        """Return the page as Markdown, without charts."""
        return "\n\n".join(filter(None, map(_markdown, self.blocks))) + "\n"

    def to_json(self) -> str:
        """Return the facts as a JSON object."""
        return json.dumps({"schema": 1} | self.facts, indent=2, allow_nan=False) + "\n"


def needed(package: str, name: str) -> Any:
    """Import a package of the extra `report`.

    Raises:
        Unsupported: it is missing.
    """
    try:
        return import_module(package)
    except ModuleNotFoundError:
        rule = f"{name} writes this page and is missing: pip install -e '.[report]'"
        raise Unsupported(rule) from None


def plain(words: str) -> str:
    """Return words on one line, with control characters escaped."""
    return escaped(" ".join(words.split()))


def _pieces(words: str) -> list[str]:
    """Split words at backticks: every second piece is code."""
    pieces = plain(words).split("`")
    return pieces if len(pieces) % 2 else [plain(words)]


def _svg_address(chart: Chart) -> str:
    return f"data:image/svg+xml;base64,{base64.b64encode(chart.to_bytes('svg')).decode()}"


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
            cells = [map(_safe, header), rule, *(map(_safe, row) for row in rows)]
            return "\n".join(f"| {' | '.join(row)} |" for row in cells)
        case Chart():
            return ""
        case Signatures(items):
            blanks = ", ".join(f"{word}:" for word in SIGNATURE_FIELDS)
            return "\n".join(f"{n}. {_safe(item)} ({blanks})" for n, item in enumerate(items, 1))


def _safe(words: str) -> str:
    """Escape markup, except for commands in backticks that dpacct wrote itself."""
    pieces = re.split(r"(`dpacct [^`]*`|`export`)", plain(words))
    return "".join(
        piece if n % 2 else _MARKUP.sub(r"\\\1", piece) for n, piece in enumerate(pieces)
    )
