"""Texts, tables and pictures as HTML. Every text is escaped here.

Rule: a picture is one of `dpacct.pictures`, as an image, in which nothing runs. Its finding is its
alternative text, and its data follow as a table.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable, Sequence
from dataclasses import replace
from html import escape

from dpacct.display import down, escaped, up
from dpacct.pictures import Drawing, Panel, Picture

# Widths in inches of pictures in a card, and in the whole width of a window.
CARD = {"": 4.4}
WHOLE = {"wide": 9.0, "narrow": 4.4}


def safe(words: object) -> str:
    """Return words for HTML: printable, without markup."""
    return escape(escaped(str(words)))


def paragraph(said: str, kind: str = "") -> str:
    """Return a paragraph of plain text."""
    return f'<p class="{kind}">{safe(said)}</p>'


def alert(said: str) -> str:
    """Return what is wrong."""
    return f'<div role="alert">{paragraph(said, "wrong")}</div>'


def hero(before: str, figure: str, after: str, below: str, *, good: bool) -> str:
    """Return the answer of a tab in large letters, with a sentence."""
    large = f"{safe(before)} <strong>{safe(figure)}</strong> {safe(after)}"
    kind = "hero ok" if good else "hero over"
    return f'<div class="{kind}"><p class="big">{large}</p>{paragraph(below)}</div>'


def figure(picture: Picture, widths: dict[str, float] = CARD, *, data: bool = True) -> str:
    """Return a picture with its finding, its note and, with ``data``, its data."""
    bare = Drawing(replace(picture, title="", note=""))
    images = (
        f'<img class="chart {kind}" alt="{safe(picture.title)}" src="data:image/svg+xml;base64,'
        f'{b64encode(bare.to_bytes("svg", width)).decode()}">'
        for kind, width in widths.items()
    )
    shown = f"{paragraph(picture.title, 'finding')}{''.join(images)}"
    shown += paragraph(picture.note, "note") if picture.note else ""
    return shown + "".join(map(data_of, picture.panels)) if data else shown


def data_of(panel: Panel) -> str:
    """Return the curves of a panel, or its cells, as a table."""
    if panel.cells:
        header = [f"{panel.y} \\ {panel.x}", *panel.cells.columns]
        values = (["-" if v is None else up(v) for v in row] for row in panel.cells.values)
        rows = [[name, *row] for name, row in zip(panel.cells.rows, values, strict=True)]
    else:
        header = ["", panel.x, "epsilon, proven", "achieved"]
        rows = [
            [one.name, f"{x:,.10g}", up(high), down(low)]
            for one in panel.curves
            for x, high, low in zip(one.x, one.y, one.lower or one.y, strict=True)
        ]
    return closed(header, rows)


def closed(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table that opens on request."""
    return f"<details><summary>Show as a table</summary>{table(header, rows)}</details>"


def table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table."""
    head = "".join(f'<th scope="col">{safe(name)}</th>' for name in header)
    cells = ("".join(f"<td>{safe(cell)}</td>" for cell in row) for row in rows)
    body = "".join(f"<tr>{row}</tr>" for row in (head, *cells))
    return f'<div class="scroll" tabindex="0"><table>{body}</table></div>'


def dots(right: int) -> str:
    """Return 100 guesses: 50 right by chance, those right by the release, and the others."""
    said = f"{right} of 100 guesses are right at most, 50 by chance"
    shown = 50 * "<i>●</i>" + (right - 50) * "<b>●</b>" + (100 - right) * "<i>○</i>"
    return f'<p class="dots" role="img" aria-label="{said}">{shown}</p>'


def code(said: str) -> str:
    """Return lines to copy, which break between words alone."""
    lines = "\n".join(
        " ".join(f"<span>{safe(word)}</span>" for word in each.split(" "))
        for each in said.split("\n")
    )
    copy = '<button type="button" data-copy>Copy</button>'
    return f'<div class="code">{copy}<pre tabindex="0">{lines}</pre></div>'
