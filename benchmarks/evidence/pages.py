"""Tables in pages: Markdown between two comments, written by a script and checked by a test."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

EVIDENCE = Path(__file__).parents[2] / "docs" / "evidence"


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def tables_of(page: Path) -> dict[str, str]:
    """The tables that a page holds, by name."""
    found = re.findall(
        r"<!-- table: (.+?) -->\n(.*?)\n<!-- end -->", page.read_text(encoding="utf-8"), re.DOTALL
    )
    return dict(found)


def put_tables(page: Path, tables: Mapping[str, str]) -> None:
    """Replace the tables of a page, which must have a place for each.

    Raises:
        SystemExit: it has none.
    """
    text = page.read_text(encoding="utf-8")
    places = tables_of(page)
    for name, table in tables.items():
        if name not in places:
            raise SystemExit(f"{page} has no place for the table {name}")
        opened = f"<!-- table: {name} -->\n"
        text = text.replace(
            f"{opened}{places[name]}\n<!-- end -->", f"{opened}{table}\n<!-- end -->"
        )
    page.write_text(text, encoding="utf-8")
