"""The report as one page of HTML that needs nothing else: no scripts, nothing from afar."""

from __future__ import annotations

import html
from collections.abc import Iterable

from dpacct.display import escaped
from dpacct.report.document import (
    SIGNED,
    Block,
    Bullets,
    Heading,
    Paragraph,
    Picture,
    Signatures,
    Table,
    column_is_number,
)
from dpacct.report.style import STYLE


def to_html(blocks: Iterable[Block]) -> str:
    """The page."""
    listed = list(blocks)
    title = next((block.words for block in listed if isinstance(block, Heading)), "Privacy report")
    body = "\n".join(filter(None, map(_block, listed)))
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{_text(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<main>\n{body}\n"
        "</main>\n</body>\n</html>\n"
    )


def _block(block: Block) -> str:
    match block:
        case Heading(level, words, new_page):
            kind = ' class="page"' if new_page else ""
            return f"<h{level}{kind}>{_text(words)}</h{level}>"
        case Paragraph(words, strong):
            return f'<p class="claim">{_words(words)}</p>' if strong else f"<p>{_words(words)}</p>"
        case Bullets(items):
            return "<ul>" + "".join(f"<li>{_words(item)}</li>" for item in items) + "</ul>"
        case Table():
            return _table(block)
        case Picture(svg, _, caption):
            said = f"<figcaption>{_text(caption)}</figcaption>" if caption else ""
            return f"<figure>{svg}{said}</figure>" if svg else ""
        case Signatures(items):
            return _signatures(items)


def _table(table: Table) -> str:
    rows, named = table.rows, not any(table.header)
    numbers = [column_is_number(rows, n) for n in range(len(table.header))]
    head = "".join(
        _cell("th", cell, n, "col") for cell, n in zip(table.header, numbers, strict=True)
    )
    lines = "".join(f"<tr>{_row(row, numbers, named=named)}</tr>" for row in rows)
    caption = f"<caption>{_text(table.caption)}</caption>" if table.caption else ""
    top = "" if named else f"<thead><tr>{head}</tr></thead>"
    kind = "facts" if named else "grid"
    # What may be wider than the screen is scrolled, by keyboard as well.
    name = _text(table.caption or "table")
    return (
        f'<div class="wide" role="region" aria-label="{name}" tabindex="0">'
        f'<table class="{kind}">{caption}{top}<tbody>{lines}</tbody></table></div>'
    )


def _row(row: tuple[str, ...], numbers: list[bool], *, named: bool) -> str:
    """Cells, of which the first names the row."""
    first = _cell("th", row[0], numbers[0], "row") if named else _cell("td", row[0], numbers[0])
    rest = (_cell("td", cell, n) for cell, n in zip(row[1:], numbers[1:], strict=True))
    return first + "".join(rest)


def _cell(tag: str, words: str, number: bool, scope: str = "") -> str:  # noqa: FBT001 - a cell is one or the other
    kind = ' class="number"' if number else ""
    of = f' scope="{scope}"' if scope else ""
    return f"<{tag}{of}{kind}>{_text(words)}</{tag}>"


def _signatures(items: tuple[str, ...]) -> str:
    line = "".join(f"<span>{word}</span>" for word in SIGNED)
    return (
        '<ol class="sign">'
        + "".join(f'<li><p>{_words(item)}</p><p class="line">{line}</p></li>' for item in items)
        + "</ol>"
    )


def _text(words: str) -> str:
    """Words as they are, without markup of others and without what cannot be printed."""
    return html.escape(escaped(" ".join(words.split())))


def _words(words: str) -> str:
    """Escaped, with what stands between backticks as code."""
    pieces = _text(words).split("`")
    if len(pieces) % 2 == 0:
        return _text(words)
    return "".join(f"<code>{p}</code>" if n % 2 else p for n, p in enumerate(pieces))
