"""A schema proposal for a table with words or empty cells in it, as TOML that a person edits.

Ranges, categories and classes shape the model, so they have to be public. The data may not decide
them: the proposal lists the values that occur and asks for each entry.
"""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Iterable
from pathlib import Path

from dpacct.fl.data.table import SPLIT_COLUMN, Cells, gaps_of, number_of, read_cells

# More different words than this are no categories.
_MOST_CATEGORIES = 50
_OWNERS = ("owner", "person", "patient", "user", "client", "customer", "id")
HEAD = """\
# A proposal, read off {name}. The data may not decide what is public, so check every entry:
# - a range is known without these rows (an age from 0 to 120, not the largest age that occurs);
# - categories and classes are all that could occur, not only those that do;
# - owner names the column of the person a row belongs to.
# Then train with --schema and the name of this file.
"""
GAPS = (
    "# Columns with empty cells: the value that one counts as, in the range. A second column marks",
    "# it. Choose without these rows (a normal value, or 0). Their mean would be a leak.",
)
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def propose_schema(path: str | os.PathLike[str], label: str, owner: str | None) -> str | None:
    """Return a schema for a CSV file as TOML, or None if all its features are numbers without gaps.

    Args:
        path: a CSV file with a header.
        label, owner: columns that are known.
    Raises:
        InvalidParameter: the file is missing or damaged.
        Unsupported: pandas is not installed.
    """
    table = read_cells(Path(path))
    features = {
        name: cells for name, cells in table.items() if name not in (label, owner, SPLIT_COLUMN)
    }
    numbers = {name: values for name, cells in features.items() if (values := _numbers(cells))}
    gaps = {name for name in numbers if gaps_of(features[name]).any()}
    if label not in table or (numbers.keys() == features.keys() and not gaps):
        return None
    lines = [HEAD.format(name=Path(path).name), f"label = {_quoted(label)}"]
    if owner is None:
        likely = next((name for name in table if name.lower() in _OWNERS), None)
        if likely is None:
            lines.append('# owner = "?"  # a column with persons; without it each row is a person')
        else:
            lines.append(f"owner = {_quoted(likely)}  # is this the person a row belongs to?")
            features.pop(likely, None)
    else:
        lines.append(f"owner = {_quoted(owner)}")
    lines.append(f"classes = {_listed(table[label])}  # are these all classes?")
    numeric, missing = ["", "[numeric]"], list[str]()
    categorical, unused = ["", "[categorical]"], list[str]()
    for name, cells in features.items():
        key = name if _BARE.fullmatch(name) else _quoted(name)
        if name in numbers:
            low, high = (f"{edge:g}" for edge in (min(numbers[name]), max(numbers[name])))
            numeric.append(f"{key} = [{low}, {high}]  # occurs from {low} to {high}; public range?")
        elif len(set(cells)) <= _MOST_CATEGORIES:
            categorical.append(f"{key} = {_listed(cells)}  # are these all categories?")
        else:
            unused.append(name)
        if name in gaps:
            missing.append(f'{key} = "?"')
    if unused:
        lines.append(f"unused = {_listed(unused)}  # free text: too many different words")
    if missing:
        missing = ["", "[missing]", *GAPS, *missing]
    return "\n".join([*lines, *numeric, *missing, *categorical]) + "\n"


def _numbers(cells: Cells) -> list[float]:
    """Return the numbers of a column, none if a cell is neither a number nor empty."""
    values = [number_of(str(cell)) for cell in cells[~gaps_of(cells)]]
    return values if all(map(math.isfinite, values)) else []


def _listed(words: Iterable[str]) -> str:
    """Return the different words in their order, as a list of TOML."""
    return f"[{', '.join(map(_quoted, sorted({str(word) for word in words})))}]"


def _quoted(text: str) -> str:
    """Return a string of TOML. Control characters of a cell do not reach a terminal."""
    return "".join(
        letter if letter.isprintable() else f"\\U{ord(letter):08x}"
        for letter in json.dumps(text, ensure_ascii=False)
    )
