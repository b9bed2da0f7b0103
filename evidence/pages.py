"""Tables in pages: Markdown between two comments, written by a script and checked by a test.

A long table is a CSV file in the folder ``tables`` next to its page.
"""

from __future__ import annotations

import csv
import re
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path

from dpacct.display import down, up
from dpacct.pictures import Curve
from dpacct.reproduce import Record

EVIDENCE = Path(__file__).parent
_PLACE = re.compile(r"<!-- table: (?P<name>.+?) -->\n(?P<table>.*?)<!-- end -->", flags=re.DOTALL)


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def bracket(achieved: float, proven: float, digits: int = 5) -> str:
    """Return [achieved, proven] epsilon with ``digits`` significant digits, rounded outwards."""
    return f"[{down(achieved, digits)}, {up(proven, digits)}]"


def tables_of(page: Path) -> dict[str, str]:
    """Return the tables of a page and of its CSV files, as Markdown by name."""
    places = _PLACE.finditer(page.read_text(encoding="utf-8"))
    found = {place["name"]: place["table"].rstrip("\n") for place in places}
    for file in sorted((page.parent / "tables").glob("*.csv")):
        with file.open(encoding="utf-8", newline="") as lines:
            header, *rows = csv.reader(lines)
        found[_name(file)] = markdown(header, rows)
    return found


def _name(file: Path) -> str:
    return file.stem.replace("_", " ")


def put_tables(page: Path, tables: Mapping[str, str]) -> None:
    """Replace the tables of a page, which must have a place or a CSV file for each.

    Raises:
        SystemExit: it has none.
    """
    missing = tables.keys() - tables_of(page).keys()
    if missing:
        raise SystemExit(f"{page} has no place for the table {', '.join(sorted(missing))}")
    for file in (page.parent / "tables").glob("*.csv"):
        if _name(file) in tables:
            header, _, *rows = tables[_name(file)].splitlines()
            with file.open("w", encoding="utf-8", newline="") as lines:
                csv.writer(lines, lineterminator="\n").writerows(
                    line.removeprefix("| ").removesuffix(" |").split(" | ")
                    for line in (header, *rows)
                )

    def filled(place: re.Match[str]) -> str:
        name = place["name"]
        table = tables.get(name, place["table"].rstrip("\n"))
        return f"<!-- table: {name} -->\n{table}\n<!-- end -->"

    page.write_text(_PLACE.sub(filled, page.read_text(encoding="utf-8")), encoding="utf-8")


def accuracy_curve(name: str, runs: Sequence[Record], axis: str = "round") -> Curve:
    """Return the mean accuracy of runs, in a band down to the worst of them."""
    own = [record.result["history"] for record in runs]
    steps = [[row["accuracy"] for row in step] for step in zip(*own, strict=True)]
    places = [row[axis] for row in own[0]]
    return Curve(name, places, [*map(statistics.mean, steps)], [*map(min, steps)])
