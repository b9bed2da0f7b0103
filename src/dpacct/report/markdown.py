"""The report as Markdown: the form. Its sentences stand where its blocks are composed."""

from __future__ import annotations

import re
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

# What would be markup or HTML in the words of others (names, reasons, details).
_SIGN = "  ".join(f"{word} " + "\\_" * 20 for word in SIGNED)
_SPECIAL = re.compile(r"([\\`*_{}\[\]<>|#])")


def to_markdown(blocks: Iterable[Block]) -> str:
    """The page."""
    return "\n\n".join(filter(None, map(_block, blocks))) + "\n"


def _block(block: Block) -> str:
    match block:
        case Heading(level, words):
            return f"{'#' * level} {_safe(words)}"
        case Paragraph(words, strong):
            return f"**{_safe(words)}**" if strong else _safe(words)
        case Bullets(items):
            return "\n".join(f"- {_safe(item)}" for item in items)
        case Table(header, rows):
            return _table(header, rows)
        case Picture(_, text):
            return f"```\n{text}\n```" if text else ""
        case Signatures(items):
            return "\n\n".join(
                f"{number}. {_safe(item)}\n\n   {_SIGN}" for number, item in enumerate(items, 1)
            )


def _table(header: tuple[str, ...], rows: tuple[tuple[str, ...], ...]) -> str:
    rule = ["---:" if column_is_number(rows, n) else "---" for n in range(len(header))]
    lines = [header, rule, *rows]
    cells = [[_safe(cell) if n != 1 else cell for cell in line] for n, line in enumerate(lines)]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)


def _safe(words: str) -> str:
    """Words as they are: code between backticks of ours stays, markup of others does not work."""
    pieces = re.split(r"(`dpacct [^`]*`|`export`)", escaped(" ".join(words.split())))
    return "".join(
        piece if n % 2 else _SPECIAL.sub(r"\\\1", piece) for n, piece in enumerate(pieces)
    )
