"""The rows of a sweep as CSV, as JSON and as a table for people."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from dpacct_cli.explore.rows import COLUMNS
from dpacct_cli.render import Grid, Page, Row, down, noise, rate, up

Rows = Sequence[dict[str, Any]]
# As many fit on a few screens.
MOST_SHOWN = 60
# What may vary, and how it is called and shown.
AXES = {
    "noise_multiplier": "noise",
    "rounds": "rounds",
    "sampling_rate": "rate",
    "cohort_size": "cohort",
    "delta": "delta",
}
_SHOWN = {"noise_multiplier": noise, "sampling_rate": rate, "delta": noise}


def to_csv(rows: Rows) -> str:
    """A table with a header; numbers to the last bit."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()


def to_data(rows: Rows) -> dict[str, object]:
    """As JSON; what could not be computed has no epsilon, but an error."""
    return {
        "rows": [_row(row) for row in rows],
        "failed": sum(row["error"] is not None for row in rows),
    }


def _row(row: dict[str, Any]) -> dict[str, Any]:
    found = {key: row[key] for key in COLUMNS if not key.startswith("epsilon")}
    spent = {"lower": row["epsilon_lower"], "upper": row["epsilon_upper"]}
    known = spent["upper"] is not None
    return found | {"epsilon": spent if known else None}


def varying(rows: Rows) -> list[str]:
    """What takes more than one value."""
    return [key for key in AXES if len({row[key] for row in rows}) > 1]


def constant(rows: Rows) -> str:
    """What is the same in all rows, in words."""
    first, changes = rows[0], varying(rows)
    parts = [
        f"{AXES[key]} {shown(key, first[key])}"
        for key in AXES
        if key not in changes and first[key] is not None
    ]
    known = {row["adjacency"] for row in rows if row["adjacency"]}
    return ", ".join([*parts, f"{first['sampling']} sampling", *sorted(known)])


def shown(key: str, value: Any) -> str:
    """A value as people read it."""
    if value is None:
        return "-"
    return _SHOWN[key](value) if key in _SHOWN else f"{value}"


def page(rows: Rows) -> Page:
    """The table."""
    axes = varying(rows) or ["noise_multiplier"]
    lines = [
        [
            *(shown(key, row[key]) for key in axes),
            "-" if row["epsilon_upper"] is None else up(row["epsilon_upper"]),
            "-" if row["epsilon_lower"] is None else down(row["epsilon_lower"]),
            row["error"] or "",
        ]
        for row in rows[:MOST_SHOWN]
    ]
    header = [*(AXES[key] for key in axes), "epsilon proven", "achieved", ""]
    more = len(rows) - len(lines)
    count = f"{len(rows):,}"
    closing = "With -o FILE.csv, .json, .png or .svg they are kept."
    if more > 0:
        closing = f"And {more:,} more rows: with -o FILE.csv, .json, .png or .svg all are kept."
    return Page([Row("rows", count, constant(rows))], Grid(header, lines), closing=closing)
