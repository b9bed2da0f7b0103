"""The rows of a sweep as CSV, as JSON, as a table and as a chart.

A chart shows epsilon over the setting that varies most. The second setting has a line for each of
its values, and the third a panel. Rows without an epsilon are left out of it.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from dpacct.errors import Unsupported
from dpacct_cli.errors import OptionConflict
from dpacct_cli.explore.sweep import COLUMNS, Task
from dpacct_cli.render import Grid, Page, Row, down, noise, rate, to_json, up

if TYPE_CHECKING:
    from dpacct.pictures.picture import Panel, Picture

Rows = Sequence[dict[str, Any]]
PICTURES = (".png", ".svg", ".pdf")
# This number of rows fits on a few screens.
MOST_SHOWN = 60
# Up to these numbers, lines look different and panels fit.
MOST_LINES, MOST_PANELS = 6, 5
# A scale with a larger ratio is logarithmic.
WIDE = 30.0
# The settings that may vary, with their short names.
AXES = {
    "noise_multiplier": "noise",
    "rounds": "rounds",
    "sampling_rate": "rate",
    "cohort_size": "cohort",
    "delta": "delta",
}
_SHOWN = {"noise_multiplier": noise, "sampling_rate": rate, "delta": noise}
# Up to which epsilon a guarantee counts as strong and as usual, with the colors of a terminal.
STRENGTHS = ((3.0, "green"), (8.0, "yellow"), (float("inf"), "red"))


def to_bytes(rows: Rows, suffix: str) -> bytes:
    """Return the file that ends in ``suffix``, with numbers exact to the last bit."""
    if suffix == ".csv":
        stream = io.StringIO()
        writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return stream.getvalue().encode()
    if suffix == ".json":
        return f"{to_json(to_data(rows))}\n".encode()
    from dpacct.pictures import Drawing

    return Drawing(picture_of(rows)).to_bytes(suffix[1:])


def to_data(rows: Rows) -> dict[str, object]:
    """Return the rows for JSON. A failed row has an error instead of an epsilon."""
    found: list[dict[str, Any]] = []
    for row in rows:
        known = {key: row[key] for key in COLUMNS if not key.startswith("epsilon")}
        spent = {"lower": row["epsilon_lower"], "upper": row["epsilon_upper"]}
        found.append(known | {"epsilon": None if spent["upper"] is None else spent})
    return {"rows": found, "failed": sum(row["error"] is not None for row in rows)}


def _varying(rows: Rows) -> list[str]:
    return [key for key in AXES if len({row[key] for row in rows}) > 1]


def _constant(rows: Rows) -> str:
    """Return the settings that all rows share, in words."""
    first, changes = rows[0], _varying(rows)
    parts = [
        f"{AXES[key]} {_text(key, first[key])}"
        for key in AXES
        if key not in changes and first[key] is not None
    ]
    known = {row["adjacency"] for row in rows if row["adjacency"]}
    return ", ".join([*parts, f"{first['sampling']} sampling", *sorted(known)])


def _text(key: str, value: Any) -> str:
    if value is None:
        return "-"
    return _SHOWN[key](value) if key in _SHOWN else f"{value}"


def page(rows: Rows) -> Page:
    """Return the table. On a terminal, colors grade epsilon."""
    axes = _varying(rows) or ["noise_multiplier"]
    lines: list[list[str]] = []
    styles: list[str] = []
    for row in rows[:MOST_SHOWN]:
        cells = [_text(key, row[key]) for key in axes]
        upper, lower = row["epsilon_upper"], row["epsilon_lower"]
        cells += ["-" if upper is None else up(upper), "-" if lower is None else down(lower)]
        lines.append([*cells, row["error"] or ""])
        styles.append("" if upper is None else next(c for e, c in STRENGTHS if upper <= e))
    header = [*(AXES[key] for key in axes), "epsilon proven", "achieved", ""]
    more = len(rows) - len(lines)
    closing = "Save with -o FILE.csv, .json, .png or .svg."
    if more > 0:
        closing = f"And {more:,} more rows. Save all with -o FILE.csv, .json, .png or .svg."
    grid = Grid(header, lines, {len(axes): styles})
    return Page([Row("rows", f"{len(rows):,}", _constant(rows))], grid, closing=closing)


def check_picture(tasks: Sequence[Task]) -> None:
    """Refuse a sweep that makes no chart, before it is computed.

    Raises:
        OptionConflict: nothing varies, or too much. Unsupported: matplotlib is missing.
    """
    if find_spec("matplotlib") is None:
        raise Unsupported(
            "pictures are drawn by matplotlib, which is missing: pip install -e '.[plot]'"
        )
    kinds = (
        {task.typed.noise for task in tasks},
        {task.typed.rounds for task in tasks},
        {(task.typed.rate, task.typed.cohort) for task in tasks},
        {task.delta for task in tasks},
    )
    counts = sorted(map(len, kinds), reverse=True)
    if counts[0] == 1:
        raise OptionConflict("a picture needs something that varies: give a list or a range.")
    if counts[1] > MOST_LINES or counts[2] > MOST_PANELS or counts[3] > 1:
        raise OptionConflict(
            f"a picture shows at most three things that vary, the second with {MOST_LINES} values "
            f"and the third with {MOST_PANELS}. A .csv or .json file takes all."
        )


def picture_of(rows: Rows) -> Picture:
    """Return the chart of all rows."""
    from dpacct.pictures.picture import Picture

    varying = [key for key in _varying(rows) if key != "cohort_size"]
    varying.sort(key=lambda key: -len({row[key] for row in rows}))
    across, (lines, panels, *_) = varying[0], [*varying[1:], None, None]
    known = [row for row in rows if row["epsilon_upper"] is not None]
    title = "No epsilon could be computed"
    if known:
        least, most = (f(row["epsilon_upper"] for row in known) for f in (min, max))
        title = f"Epsilon is {up(least, 3)} to {up(most, 3)} over {across.replace('_', ' ')}"
    groups = _groups(known, panels) or {None: []}
    return Picture(
        title,
        tuple(_panel(part, across, lines, panels, value) for value, part in groups.items()),
        f"{_constant(rows)}; a band reaches down to what is achieved",
    )


def _groups(rows: Rows, key: str | None) -> dict[Any, list[dict[str, Any]]]:
    found: dict[Any, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(None if key is None else row[key], []).append(row)
    return found


def _panel(rows: Rows, across: str, lines: str | None, panels: str | None, value: Any) -> Panel:
    from dpacct.pictures.picture import Curve, Panel

    curves: list[Curve] = []
    for name, part in _groups(rows, lines).items():
        ordered = sorted(part, key=lambda row: row[across])
        curves.append(
            Curve(
                "" if lines is None else f"{AXES[lines]} {_text(lines, name)}",
                [row[across] for row in ordered],
                [row["epsilon_upper"] for row in ordered],
                [row["epsilon_lower"] for row in ordered],
                points=len(ordered) == 1,
            )
        )
    which = "" if panels is None else f", {AXES[panels]} {_text(panels, value)}"
    log_x = across == "delta" or _is_wide([row[across] for row in rows])
    log_y = _is_wide([row["epsilon_upper"] for row in rows])
    return Panel(
        across.replace("_", " "), f"epsilon{which}", tuple(curves), log_x=log_x, log_y=log_y,
        from_zero=not log_y,
    )  # fmt: skip


def _is_wide(values: Sequence[float]) -> bool:
    return bool(values) and min(values) > 0 and max(values) > WIDE * min(values)
