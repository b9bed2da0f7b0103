"""Pictures as lines of text, for a terminal: letters on a grid, and bars.

Rule: what is drawn is plain ASCII, so that every terminal, and every log, shows it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from textwrap import wrap

from dpacct.display import down, escaped, up
from dpacct.pictures.picture import Bar, Curve, Panel, Picture

HEIGHT, NARROWEST, WIDEST = 15, 26, 100
SIGNS = "*o+x#@%&"
LABEL = 10


def to_text(picture: Picture, width: int = 80) -> str:
    """A picture in at most so many columns, 40 to 110 of them."""
    inner = min(max(width - LABEL - 4, NARROWEST), WIDEST)
    parts = [escaped(picture.title)]
    if picture.note:
        parts.append(escaped(picture.note))
    for panel in picture.panels:
        parts += ["", *(_bars(panel, inner) if panel.bars else _chart(panel, inner))]
    return "\n".join(line for part in parts for line in _fitting(part, inner + LABEL + 4))


def _fitting(line: str, width: int) -> list[str]:
    """A line as it is, or as several that are so wide at most, with its indent and a little more.

    What is drawn always fits; words may be longer.
    """
    if len(line.rstrip()) <= width:
        return [line.rstrip()]
    indent = " " * (len(line) - len(line.lstrip()))
    more = f"{indent}  " if indent else ""
    return wrap(line.strip(), width, initial_indent=indent, subsequent_indent=more)


@dataclass(frozen=True, slots=True)
class Scale:
    """From values to cells 0 to ``cells`` - 1."""

    low: float
    high: float
    cells: int
    log: bool

    def at(self, value: float) -> int | None:
        """The cell of a value, None outside."""
        low, high = self._of(self.low), self._of(self.high)
        if self.log and value <= 0.0:
            return None
        share = (self._of(value) - low) / (high - low) if high > low else 0.5
        if not -1e-9 <= share <= 1 + 1e-9:
            return None
        return min(max(round(share * (self.cells - 1)), 0), self.cells - 1)

    def value(self, cell: int) -> float:
        """The value at a cell."""
        low, high = self._of(self.low), self._of(self.high)
        found = low + (high - low) * cell / (self.cells - 1)
        return math.exp(found) if self.log else found

    def _of(self, value: float) -> float:
        return math.log(value) if self.log else value


def limits(panel: Panel) -> tuple[float, float, float, float]:
    """The least and largest x and y that are shown; of logarithmic axes those above 0."""
    xs = [x for curve in panel.curves for x in curve.x if x > 0.0 or not panel.log_x]
    ys = [y for curve in panel.curves for y in (*curve.y, *curve.lower)]
    ys += [level.y for level in panel.levels]
    ys = [y for y in ys if math.isfinite(y) and (y > 0.0 or not panel.log_y)]
    low, high = min(ys, default=0.0), max(ys, default=1.0)
    if panel.from_zero and not panel.log_y:
        low = min(0.0, low)
    if panel.y_max is not None:
        high = panel.y_max
    if high <= low:
        # A line that is level.
        low, high = (low / 2, 2 * low) if panel.log_y else (low - 0.5, low + 0.5)
    left, right = min(xs, default=0.0), max(xs, default=1.0)
    if right <= left:
        left, right = (left / 2, 2 * left) if panel.log_x else (left - 0.5, left + 0.5)
    return left, right, low, high


def _chart(panel: Panel, width: int) -> list[str]:
    left, right, low, high = limits(panel)
    across = Scale(left, right, width, panel.log_x)
    along = Scale(low, high, HEIGHT, panel.log_y)
    cells = [[" "] * width for _ in range(HEIGHT)]

    def put(column: int | None, row: int | None, sign: str) -> None:
        if column is not None and row is not None:
            cells[HEIGHT - 1 - row][column] = sign

    for level in panel.levels:
        for column in range(width):
            put(column, along.at(level.y), "-")
    for number, curve in enumerate(panel.curves):
        sign = "." if curve.plain else SIGNS[number % len(SIGNS)]
        for column, value in _along_columns(curve, across):
            put(column, along.at(value), sign)
    for mark in panel.marks:
        put(across.at(mark.x), along.at(mark.y), "O")
    lines = [f"  {panel.y_label}"]
    for row, cell_row in enumerate(cells):
        shown = f"{along.value(HEIGHT - 1 - row):.4g}" if row % 7 == 0 else ""
        lines.append(f"{shown:>{LABEL}} |{''.join(cell_row)}")
    lines.append(" " * LABEL + " +" + "-" * width)
    ends = f"{across.value(0):.4g}", f"{across.value(width - 1):.4g}"
    gap = " " * max(1, width - len(ends[0]) - len(ends[1]))
    lines.append(" " * (LABEL + 2) + ends[0] + gap + ends[1])
    lines.append(" " * (LABEL + 2) + panel.x_label.center(width).rstrip())
    return lines + _legend(panel)


def _along_columns(curve: Curve, across: Scale) -> list[tuple[int, float]]:
    """A value for each column that the curve covers, or for each point."""
    columns = [(across.at(x), y) for x, y in zip(curve.x, curve.y, strict=True)]
    known = [(column, y) for column, y in columns if column is not None]
    if curve.points or len(known) < 2:
        return known
    first, last = min(known)[0], max(known)[0]
    return [(at, _interpolated(across.value(at), curve)) for at in range(first, last + 1)]


def _interpolated(x: float, curve: Curve) -> float:
    """The value at x between two points of a curve, which are in order."""
    number = next((k for k, at in enumerate(curve.x) if at >= x), len(curve.x) - 1)
    if number == 0 or curve.x[number] <= curve.x[number - 1]:
        return curve.y[number]
    x0, y0 = curve.x[number - 1], curve.y[number - 1]
    if curve.steps and curve.x[number] > x:
        return y0
    share = min(1.0, (x - x0) / (curve.x[number] - x0))
    return y0 + (curve.y[number] - y0) * share


def _legend(panel: Panel) -> list[str]:
    lines: list[str] = []
    for number, curve in enumerate(panel.curves):
        if curve.name:
            sign = "." if curve.plain else SIGNS[number % len(SIGNS)]
            lines.append(f"  {sign} {escaped(curve.name)}")
    lines += [f"  - {escaped(level.words)}" for level in panel.levels]
    lines += [f"  O {escaped(mark.words)}" for mark in panel.marks]
    return lines


def _bars(panel: Panel, width: int) -> list[str]:
    longest = max(len(bar.name) for bar in panel.bars)
    beside = width + LABEL - longest - 24
    # Where bars beside their names would be next to nothing they stand below them.
    below = beside < NARROWEST // 2
    room = width + LABEL - 24 if below else beside
    most = max((bar.upper for bar in panel.bars if math.isfinite(bar.upper)), default=1.0)
    most = max([most, *(level.y for level in panel.levels)])
    lines = [f"  {panel.x_label}"]
    for bar in panel.bars:
        name, drawn = escaped(bar.name), _bar(bar, room, most)
        lines += [f"  {name}", f"    {drawn}"] if below else [f"  {name:<{longest}} {drawn}"]
    for level in panel.levels:
        place = round(room * level.y / most) if most else 0
        lead = " " * (4 if below else longest + 3)
        lines.append(f"{lead}{' ' * max(0, place - 1)}^ {escaped(level.words)}")
    return lines


def _bar(bar: Bar, room: int, most: float) -> str:
    if bar.words and not math.isfinite(bar.upper):
        return escaped(bar.words)
    length = round(room * bar.upper / most) if most else 0
    inner = (
        length if bar.lower is None else min(length, round(room * bar.lower / most)) if most else 0
    )
    drawn = "#" * inner + "=" * (length - inner)
    said = up(bar.upper)
    if bar.lower is not None:
        said += f" ({down(bar.lower)})"
    return f"{drawn} {said}"
