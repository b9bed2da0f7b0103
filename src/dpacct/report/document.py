"""A report: facts for programs, and a page for people, in Markdown.

HTML is that Markdown in a page with a style, and PDF is that HTML on paper.

Rule 1: text that comes from users stays text. No markup of theirs works in a page: `safe` escapes
all of it, without an exception. Markdown is written in templates and by the functions here alone.
Rule 2: a page has no link and no picture but its chart, whatever its text. The readers of Markdown
and HTML make none: they know no other, and PDF may read no file and no address.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from html import escape
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

from dpacct import validate
from dpacct.display import drawn, escaped, html_table, line
from dpacct.errors import Unsupported
from dpacct.packages import import_package

# Marks inside a line, addresses that some readers make links of, and marks at a line's start.
_MARKUP = re.compile(r"([\\`*_{}\[\]<>|#&!~]|:(?=//)|(?<=www)\.)", re.IGNORECASE)
_START = re.compile(r"^(\d{0,9})([-+=.)])(?=[-=\s])")
# The place of the chart, by `chart`. `safe` leaves no exclamation mark at the start of a block.
_CHART = re.compile(r"!\[(.*)\]\(chart\)")
# Rules of the reader of Markdown that no page of ours needs.
_NO_MARKUP = ("link", "image", "autolink", "reference", "html_inline", "html_block")
# The name of a value in a template, and the condition of a line.
_VALUE, _IF = re.compile(r"\$(\w+)"), re.compile(r"\[if (\w+)\] ")
# The start of a table without a header, whose first column names the rows.
_NO_HEADER = re.compile(
    r"<thead>\s*<tr>(?:\s*<th[^>]*></th>)+\s*</tr>\s*</thead>\s*"
    r"<tbody>\s*<tr>\s*<td>(.*?)</td>\s*<td>"
)
_NAMES = r'<tbody>\n<tr>\n<td width="25%">\1</td>\n<td width="75%">'

_PAPER = {
    "<p>": '<p line-height="1.3">',
    "<ol>": '<ol line-height="1.8">',
    "<ul>": '<ul line-height="1.3">',
    "<th>": '<th align="left">',
    "<td>": '<td align="left">',
    "<td width": '<td align="left" width',
    'style="text-align:right"': 'align="right"',
    "<img ": '<img width="430" ',
}


def safe(words: str) -> str:
    """Return words on one line in which no markup works."""
    return _START.sub(r"\1\\\2", _MARKUP.sub(r"\\\1", escaped(" ".join(words.split()))))


def heading(level: int, words: str, *, new_page: bool = False) -> str:
    """Return a title. Level 1 is that of the report. ``new_page`` begins a page in print."""
    before = "---\n\n" if new_page else ""
    return f"{before}{'#' * level} {safe(words)}"


def paragraph(words: str, *, strong: bool = False) -> str:
    """Return a few sentences. A ``strong`` paragraph states the claim."""
    return f"**{safe(words)}**" if strong else safe(words)


def bullets(items: Iterable[str]) -> str:
    """Return a list."""
    return "\n".join(f"- {safe(item)}" for item in items)


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return rows below a header. With an empty header the first column names the rows."""

    def is_number(column: int) -> bool:
        cells = [row[column].replace(",", "").replace(".", "", 1) for row in rows]
        return bool(cells) and all(map(str.isdigit, cells))

    rule = ["---:" if is_number(n) else "---" for n in range(len(header))]
    lines = [map(safe, header), rule, *(map(safe, row) for row in rows)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def signatures(items: Iterable[str]) -> str:
    """Return statements, each with a line for a signature."""
    blanks = f"Name: {'.' * 30} Date: {'.' * 16} Signature: {'.' * 40}"
    return "\n".join(f"{n}. {safe(item)}\\\n   {blanks}" for n, item in enumerate(items, 1))


def template(name: str) -> Template:
    """Return a page of the folder ``templates``, with ``$`` before the name of each value."""
    path = files("dpacct.report").joinpath("templates", name)
    return Template(path.read_text(encoding="utf-8"))


def filled(name: str, blocks: Mapping[str, str], **words: str | bool) -> list[str]:
    """Return the blocks of a template in Markdown, without its lines whose value is empty.

    A line that starts with ``[if name]`` is there if that value is true.

    Args:
        name: of the template.
        blocks: values that are Markdown.
        words: values that stay text, and conditions.
    """
    values = {k: safe(v) if isinstance(v, str) else v for k, v in words.items()} | dict(blocks)
    empty = {key for key, value in values.items() if not value}
    filled_blocks: list[str] = []
    for block in template(name).template.split("\n\n"):
        kept = [
            _IF.sub("", line)
            for line in block.strip().split("\n")
            if empty.isdisjoint([*_VALUE.findall(line), *_IF.findall(line)])
        ]
        joined = ("\n" if block.startswith(("|", "- ")) else " ").join(kept)
        filled_blocks += [Template(joined).substitute(values)] if kept else []
    return filled_blocks


def chart(caption: str) -> str:
    """Return the place of the chart of epsilon by round, with a description of it."""
    return f"![{safe(caption)}](chart)"


@dataclass(frozen=True, slots=True)
class Report:
    """A report.

    Attributes:
        facts: as JSON has them. An epsilon without a bound is null.
        blocks: the page, each block in Markdown. The first one is the title.
        points: the facts of the chart of epsilon by round, if the page has one.
    """

    facts: dict[str, Any]
    blocks: tuple[str, ...]
    points: dict[str, Any] | None = None

    @property
    def title(self) -> str:
        """The title of the page."""
        return _plain(self.blocks[0].lstrip("# "))

    @property
    def headline(self) -> str:
        """The claim of the report."""
        strong = (block.strip("*") for block in self.blocks if block.startswith("**"))
        return _plain(next(strong, self.title))

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        forms = "to_html(), to_pdf(), to_markdown(), to_json()"
        return html_table([("report", self.title, ""), ("", self.headline, ""), ("as", forms, "")])

    def __repr__(self) -> str:
        return f"<Report {self.title!r}>"

    def with_cover(self, *, title: str = "", author: str = "", date: str = "") -> Report:
        """Return the report with another title, and with an author and a date below it.

        Raises:
            InvalidParameter: one of them is not a line of text.
        """
        said = {"title": title, "author": author, "date": date}
        said = {key: validate.line(key, text, f"the {key}") for key, text in said.items() if text}
        blocks = list(self.blocks)
        if title:
            blocks[0] = heading(1, line(title))
        if author or date:
            blocks.insert(1, paragraph(", ".join(line(text) for text in (author, date) if text)))
        return replace(self, facts=self.facts | said, blocks=tuple(blocks))

    def to_markdown(self) -> str:
        """Return the page as Markdown, without its chart."""
        return "\n\n".join(block for block in self.blocks if not block.startswith("![")) + "\n"

    def to_html(self) -> str:
        """Return one page of HTML that loads nothing and runs no script.

        Without matplotlib the chart is left out, with a line that says so.
        """
        body = self._body("svg", "image/svg+xml")
        return template("page.html").substitute(title=escape(self.title), body=body)

    def to_pdf(self) -> bytes:
        """Return the page in A4.

        Raises:
            Unsupported: fpdf2 or matplotlib is missing.
        """
        fpdf, matplotlib = pdf_packages()
        # matplotlib brings a font with the letters of most languages. The fonts of PDF have few.
        fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
        title = escaped(self.title)

        def footer(page: Any) -> None:
            page.set_y(-12)
            page.set_font("body", size=7)
            page.cell(0, 6, f"{title}    page {page.page_no()} of {{nb}}", align="C")

        pdf: Any = type("Paper", (fpdf.FPDF,), {"footer": footer})(format="A4")
        pdf.resource_access_policy = fpdf.ResourceAccessPolicy.NONE
        for style, file in (("", "DejaVuSans.ttf"), ("B", "DejaVuSans-Bold.ttf")):
            pdf.add_font("body", style, fonts / file)
        pdf.set_margins(20, 15, 20)
        pdf.set_auto_page_break(auto=True, margin=15)
        pdf.set_title(self.title)
        pdf.set_author(str(self.facts.get("author", "")))
        pdf.set_lang("en")
        pdf.set_draw_color(200)
        styles: dict[str, Any] = {"code": fpdf.FontFace(family="body")}
        for level, size in enumerate((17, 13, 11, 10), 1):
            styles[f"h{level}"] = fpdf.TextStyle(
                font_style="B", font_size_pt=size, t_margin=4, b_margin=1
            )
        body = self._body("png", "image/png")
        # fpdf2 reads few styles: it takes attributes instead.
        for html, said in _PAPER.items():
            body = body.replace(html, said)
        for part in body.split("<hr />"):
            pdf.add_page()
            pdf.set_font("body", size=8.5)
            pdf.write_html(
                part, tag_styles=styles, table_line_separators=True, li_prefix_color="#1c1c1c"
            )
        return bytes(pdf.output())

    def to_json(self) -> str:
        """Return the facts as a JSON object."""
        return json.dumps({"schema": 1} | self.facts, indent=2, allow_nan=False) + "\n"

    def _body(self, form: str, kind: str) -> str:
        """Return the page as HTML, its chart inside it (Rule 2)."""
        markdown_it = import_package("markdown_it", "markdown-it-py", "3", "report")
        parser = markdown_it.MarkdownIt("commonmark", {"html": False}).enable("table")
        parser.disable(_NO_MARKUP)
        parts: list[str] = []
        for block in self.blocks:
            if caption := _CHART.fullmatch(block):
                words = escape(_plain(caption[1]))
                try:
                    image = f'<img src="{_image(self.points, form, kind)}" alt="{words}" />'
                except Unsupported as missing:
                    image = f"{words}: not drawn. {escape(str(missing))}"
                parts.append(f"<p>{image}</p>\n")
            else:
                parts.append(parser.render(block))
        return _NO_HEADER.sub(_NAMES, "".join(parts))


def pdf_packages() -> tuple[Any, Any]:
    """Return fpdf2 and matplotlib, which a PDF needs, or raise Unsupported."""
    return (
        import_package("fpdf", "fpdf2", "2.8.9", "report"),
        import_package("matplotlib", "matplotlib", "3.8", "report"),
    )


def _image(points: dict[str, Any] | None, form: str, kind: str) -> str:
    """Return the chart of epsilon by round as an address that holds all of it."""
    content = drawn("epsilon_chart", points).to_bytes(form)
    return f"data:{kind};base64,{base64.b64encode(content).decode()}"


def _plain(markdown: str) -> str:
    """Return the words of `safe` as they were."""
    return re.sub(r"\\(.)", r"\1", markdown)
