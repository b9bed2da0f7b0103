"""The report as one page of HTML that needs nothing else: no scripts, nothing from afar."""

from __future__ import annotations

import html
from collections.abc import Iterable

from dpacct.display import escaped
from dpacct.ledger.report.chart import draw
from dpacct.ledger.report.document import (
    Block,
    Bullets,
    Heading,
    Paragraph,
    Picture,
    Table,
    column_is_number,
)

_STYLE = """
:root { color-scheme: light; }
body { font: 16px/1.5 system-ui, sans-serif; color: #222; background: #fff;
  max-width: 52rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; margin: 0 0 .6rem; }
h2 { font-size: 1.15rem; margin: 2.2rem 0 .6rem; border-bottom: 1px solid #ddd; }
h3 { font-size: 1rem; margin: 1.4rem 0 .4rem; }
.claim { font-size: 1.15rem; font-weight: 600; border-left: 4px solid #0072B2;
  padding: .2rem 0 .2rem .8rem; margin: 1rem 0; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; margin: .4rem 0; font-size: .92rem; }
th, td { text-align: left; vertical-align: top; padding: .3rem .9rem .3rem 0;
  border-bottom: 1px solid #eee; overflow-wrap: anywhere; }
th { color: #666; font-weight: 500; white-space: nowrap; }
td:first-child { white-space: nowrap; }
.number { text-align: right; font-variant-numeric: tabular-nums; }
svg { width: 100%; height: auto; margin: 1rem 0; }
ul { padding-left: 1.2rem; }
@media print { body { margin: 0; max-width: none; } h2 { break-after: avoid; } }
"""


def to_html(blocks: Iterable[Block]) -> str:
    """The page."""
    listed = list(blocks)
    title = next((block.words for block in listed if isinstance(block, Heading)), "Privacy report")
    body = "\n".join(filter(None, map(_block, listed)))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n"
        "</body>\n</html>\n"
    )


def _block(block: Block) -> str:
    match block:
        case Heading(level, words):
            return f"<h{level}>{_text(words)}</h{level}>"
        case Paragraph(words, strong):
            return f'<p class="claim">{_words(words)}</p>' if strong else f"<p>{_words(words)}</p>"
        case Bullets(items):
            return "<ul>" + "".join(f"<li>{_words(item)}</li>" for item in items) + "</ul>"
        case Table(header, rows):
            return _table(header, rows)
        case Picture(report):
            return draw(report)


def _table(header: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> str:
    numbers = [column_is_number(rows, n) for n in range(len(header))]
    head = "".join(_cell("th", cell, n) for cell, n in zip(header, numbers, strict=True))
    lines = "".join(
        "<tr>" + "".join(_cell("td", c, n) for c, n in zip(row, numbers, strict=True)) + "</tr>"
        for row in rows
    )
    top = f"<thead><tr>{head}</tr></thead>" if any(header) else ""
    return f'<div class="wide"><table>{top}<tbody>{lines}</tbody></table></div>'


def _cell(tag: str, words: str, number: bool) -> str:  # noqa: FBT001 - a cell is one or the other
    kind = ' class="number"' if number else ""
    return f"<{tag}{kind}>{_text(words)}</{tag}>"


def _text(words: str) -> str:
    """Words as they are, without markup of others and without what cannot be printed."""
    return html.escape(escaped(" ".join(words.split())))


def _words(words: str) -> str:
    """Escaped, with what stands between backticks as code."""
    pieces = _text(words).split("`")
    if len(pieces) % 2 == 0:
        return _text(words)
    return "".join(f"<code>{p}</code>" if n % 2 else p for n, p in enumerate(pieces))
