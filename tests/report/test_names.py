"""Names of every kind in every form of a report: they are words, and neither pictures nor links.

Nothing keeps a forged ledger from holding texts that no command of ours accepts.
"""

from __future__ import annotations

import re
import socket
from html.parser import HTMLParser
from pathlib import Path

import pytest

from dpacct import Ledger, Poisson, Round, report
from dpacct.ledger import Event, NoisySum
from dpacct.report.document import template
from forgeries import read, write
from hostile import MARKUP
from ledgers import BUDGET

ROUND = Round(9.0, Poisson(0.01))
# What a log or a terminal must not get, and the beginnings of what Markdown makes of a block.
CONTROL = "\x1b]0;owned\x07\x9b31m\u202e\n\r\n# a\n\n![t](http://evil.example/p.png)\n\n"
NAMES = (*MARKUP, CONTROL, *(f"{CONTROL}{name}" for name in MARKUP[:3]))
FILE = "`dpacct |![t](http:evil.example)` <img src=x> [a](b).ledger"
TAGS = {
    "html", "head", "meta", "title", "style", "body", "main", "h1", "h2", "h3", "h4", "p", "strong",
    "em", "table", "thead", "tbody", "tr", "th", "td", "ul", "ol", "li", "br", "hr", "code", "img",
}  # fmt: skip


class Page(HTMLParser):
    """The tags of a page, and the sources of its pictures."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.sources: list[str | None] = []
        self.words = ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        for name, value in attrs:
            assert not name.startswith("on")
            assert (
                name not in ("href", "srcset", "background", "style") or "text-align" in f"{value}"
            )
            if name == "src":
                self.sources.append(value)

    def handle_data(self, data: str) -> None:
        self.words += data


def forged(path: Path) -> report.Report:
    """A report in which everything that is text is a name of the list."""
    with Ledger.open(path, BUDGET, partitions={MARKUP[0]: ["a", MARKUP[1]]}) as ledger:
        for number in range(len(NAMES)):
            run = ledger.start_run(f"run {number}", details={"a": "b"}, project="p")
            releases = (NoisySum("one", 9.0), NoisySum("two", 30.0))
            run.reserve(Event(ROUND, releases, main="one")).commit()
    rows = read(path)
    rows[0].content["data"] |= {"unit": CONTROL + MARKUP[0], "software": MARKUP[1]}
    for row in rows[1:]:
        data, name = row.content["data"], NAMES[row.content["run"] - 1]
        if row.content["kind"] == "run":
            details = {name: name, "a": [name, {name: 1}]}
            data |= {"name": name, "project": name, "details": details}
        if "releases" in data and name.isprintable():
            data["releases"][1]["name"] = name[:190]
    write(path, rows)
    with Ledger.open(path.rename(path.with_name(FILE)), read_only=True) as ledger:
        return ledger.report_document()


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> report.Report:
    found = forged(tmp_path_factory.mktemp("names") / "a.ledger")
    return found.with_cover(title=MARKUP[0], author=MARKUP[1], date=MARKUP[4])


def test_markdown_has_neither_links_nor_pictures_nor_tags(page: report.Report) -> None:
    parser = pytest.importorskip("markdown_it").MarkdownIt("commonmark").enable("table")
    for text in (page.to_markdown(), report.to_model_card(page)):
        assert all(line.isprintable() for line in text.splitlines())
        tokens = parser.parse(text)
        found = {token.type for token in tokens}
        found |= {child.type for token in tokens for child in token.children or ()}
        assert not found & {
            "link_open", "image", "html_inline", "html_block", "fence", "code_block",
            "blockquote_open",
        }  # fmt: skip
        # Some readers make links of plain addresses.
        assert not re.search(r"(?<!\\):(?=//)|www\.", text)


def test_html_has_no_picture_but_its_chart_and_no_link(page: report.Report) -> None:
    pytest.importorskip("markdown_it")
    pytest.importorskip("matplotlib")
    found = Page(page.to_html())
    assert found.tags <= TAGS, found.tags - TAGS
    assert [str(source).partition(",")[0] for source in found.sources] == [
        "data:image/svg+xml;base64"
    ]
    # Each name is there, as it was given.
    for name in MARKUP:
        assert " ".join(name.split()) in " ".join(found.words.split())
    assert "\x1b" not in found.words


def test_pdf_reads_no_file_and_no_address(
    page: report.Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("fpdf")
    fetched: list[object] = []
    monkeypatch.setattr(socket, "getaddrinfo", lambda *words, **_: fetched.append(words) or [])
    monkeypatch.setattr(socket, "create_connection", lambda *words, **_: fetched.append(words))
    data = page.to_pdf()
    assert not fetched
    assert data.count(b"/Subtype /Image") == 1
    assert b"/URI" not in data
    assert b"/Annots" not in data


def test_a_registry_entry_holds_printable_text(page: report.Report) -> None:
    text = report.to_registry(page)
    assert all(line.isprintable() for line in text.splitlines())
    assert len(text.splitlines()) == len(template("registry.yaml").template.splitlines())


def test_a_page_makes_no_link_and_no_picture_of_markup_either() -> None:
    """Escaping is one guard. The readers of the page are another one."""
    pytest.importorskip("markdown_it")
    pytest.importorskip("fpdf")
    pytest.importorskip("matplotlib")
    block = (
        "![t](http://evil.example/p.png) ![t](/etc/passwd) [a](http://evil.example/) [b][r]\n"
        "<img src='/etc/passwd'> <http://evil.example/>\n\n[r]: http://evil.example/"
    )
    page = report.Report({}, ("# Title", block, f"| a |\n| --- |\n| {block[:31]} |"))
    assert Page(page.to_html()).tags <= TAGS - {"img"}
    assert b"/Subtype /Image" not in page.to_pdf()
