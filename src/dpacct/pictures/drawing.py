"""A picture that can be shown and saved: PNG, SVG or PDF by matplotlib, text by plotext.

Rule: a file is written whole or not at all, and an existing file is replaced only on request.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from textwrap import wrap

from dpacct.display import down, escaped, up
from dpacct.errors import InvalidParameter
from dpacct.packages import import_package
from dpacct.pictures.picture import Cells, Panel, Picture, day_ticks, log_ticks

FORMATS = (".png", ".svg", ".pdf")
NARROWEST, WIDEST, TEXT_HEIGHT = 40, 114, 20
MARKERS = "*ox+"
# Every terminal and every log file shows ASCII.
ASCII = str.maketrans("─│┌┐└┘├┤┬┴┼", "-|+++++++++")


@dataclass(frozen=True, slots=True)
class Drawing:
    """A picture, shown by notebooks and by `print`, and saved to a file."""

    picture: Picture

    def save(self, path: str | os.PathLike[str], *, replace: bool = False) -> None:
        """Write a file with a name in .png, .svg or .pdf.

        Raises:
            InvalidParameter: another ending, or an existing file without ``replace``.
            Unsupported: matplotlib is missing. OSError: the file cannot be written.
        """
        from dpacct.files import check_place, write_file  # noqa: PLC0415 - needs SQLite

        file = Path(path)
        form = format_of(file, "path")
        check_place(file, "path", replace=replace)
        content = self.to_bytes(form)
        write_file(file, lambda stream: stream.write(content), name="path", replace=replace)

    def to_bytes(self, form: str, width: float = 7.2) -> bytes:
        """Return the picture as png, svg or pdf, ``width`` in inches. Text keeps its size.

        Raises:
            Unsupported: matplotlib is missing.
        """
        drawer = import_package("dpacct.pictures.matplotlib", "matplotlib", "3.8", "plot")
        return drawer.draw_bytes(self.picture, form, width)

    def text(self, width: int = 80) -> str:
        """Return the picture as lines of text, 40 to 114 columns wide.

        Raises:
            Unsupported: plotext is missing.
        """
        columns = min(max(width, NARROWEST), WIDEST)
        parts = [*wrap(escaped(self.picture.title), columns)]
        parts += wrap(escaped(self.picture.note), columns)
        for panel in self.picture.panels:
            draw = _cells if panel.cells else _bars if panel.bars else _chart
            lines = draw(panel, columns)
            parts += ["", *(part for line in lines for part in _wrapped(line, columns))]
        return "\n".join(parts)

    def _repr_svg_(self) -> str:
        return self.to_bytes("svg").decode("utf-8")

    def __str__(self) -> str:
        return self.text()

    def __repr__(self) -> str:
        return f"<Drawing {self.picture.title!r}>"


def check_packages(form: str) -> None:
    """Check that a picture can be drawn as png, svg or pdf, or as curves in ``text``.

    Raises:
        Unsupported: matplotlib or plotext is missing.
    """
    name, least = ("plotext", "5.2.8") if form == "text" else ("matplotlib", "3.8")
    import_package(name, name, least, "plot")


def format_of(file: Path, name: str) -> str:
    """Return png, svg or pdf, by the name of a file.

    Raises:
        InvalidParameter: another ending.
    """
    suffix = file.suffix.lower()
    if suffix not in FORMATS:
        raise InvalidParameter(name, str(file), f"a picture ends in {', '.join(FORMATS)}")
    return suffix[1:]


def _chart(panel: Panel, columns: int) -> list[str]:
    """Draw curves with plotext, which has one global figure, above a legend."""
    plt = import_package("plotext", "plotext", "5.2.8", "plot")
    left, right, low, high = panel.limits()

    # Limits of plotext's own logarithmic scales are not logarithms, so these are taken here.
    def across(x: float) -> float:
        return math.log10(x) if panel.log_x else x

    def upward(y: float) -> float:
        inside = min(max(y, low), high)
        return math.log10(inside) if panel.log_y else inside

    plt.clear_figure()
    plt.limit_size(False, False)  # noqa: FBT003 - plotext's own signature
    plt.theme("clear")
    plt.plotsize(columns, TEXT_HEIGHT)
    plt.xlim(across(left), across(right))
    plt.ylim(upward(low), upward(high))
    if panel.log_x:
        ticks = log_ticks(left, right)
        plt.xticks([across(tick) for tick in ticks], [f"{tick:g}" for tick in ticks])
    if panel.dates:
        plt.xticks(*day_ticks(left, right))
    if panel.log_y:
        ticks = log_ticks(low, high)
        plt.yticks([upward(tick) for tick in ticks], [f"{tick:g}" for tick in ticks])
    legend: list[str] = []
    for level in panel.levels:
        plt.plot([across(left), across(right)], [upward(level.y)] * 2, marker="-")
        legend.append(f"  - {level.words}")
    for number, curve in enumerate(panel.curves):
        points = [
            (across(x), upward(y))
            for x, y in zip(curve.x, curve.y, strict=True)
            if x > 0 or not panel.log_x
        ]
        if curve.steps:
            steps = [((a, b), (c, b)) for (a, b), (c, _) in pairwise(points)]
            points = [*(corner for step in steps for corner in step), *points[-1:]]
        marker = "." if curve.plain else MARKERS[number % len(MARKERS)]
        draw = plt.scatter if curve.points else plt.plot
        draw([x for x, _ in points], [y for _, y in points], marker=marker)
        legend += [f"  {marker} {curve.name}"] if curve.name else []
    for mark in panel.marks:
        plt.scatter([across(mark.x)], [upward(mark.y)], marker="O")
        legend.append(f"  O {mark.words}")
    drawn = str(plt.uncolorize(plt.build())).translate(ASCII).rstrip()
    lines = [f"  {panel.y}", *drawn.splitlines(), panel.x.center(columns), *legend]
    return [line.rstrip() for line in lines]


def _bars(panel: Panel, columns: int) -> list[str]:
    """Return two lines a bar: its name, and the bar with its value."""
    room, most = columns - 32, panel.longest_bar()
    lines = [f"  {panel.x}"]
    for bar in panel.bars:
        shown = escaped(bar.words) or "no bound"
        if bar.upper is not None:
            length = round(room * bar.upper / most)
            shown = f"{'#' * length} {up(bar.upper)}"
            if bar.lower is not None:
                dark = min(length, round(room * bar.lower / most))
                ink = "#" * dark + "=" * (length - dark)
                shown = f"{ink} {up(bar.upper)} ({down(bar.lower)})"
        lines += [f"  {escaped(bar.name)}", f"    {shown}"]
    lines += [f"    {' ' * round(room * level.y / most)}^ {level.words}" for level in panel.levels]
    return lines


def _cells(panel: Panel, columns: int) -> list[str]:
    """Return the values in as many blocks of columns as fit. A star marks those in the limit."""
    cells = panel.cells or Cells((), (), ())
    table = [
        ["-" if one is None else up(one, 4) + "*" * cells.fits(i, j) for j, one in enumerate(row)]
        for i, row in enumerate(cells.values)
    ]
    shown = [["", *map(escaped, cells.columns)]]
    shown += [[escaped(name), *row] for name, row in zip(cells.rows, table, strict=True)]
    first = 2 + max(len(row[0]) for row in shown)
    wide = 2 + max(len(cell) for row in shown for cell in row[1:])
    block = max(1, (columns - first) // wide)
    lines = [f"  {panel.y}, by {panel.x}"]
    for start in range(1, len(shown[0]), block):
        lines.append("")
        for name, *row in shown:
            inside = row[start - 1 : start - 1 + block]
            lines.append("".join([name.rjust(first), *(cell.rjust(wide) for cell in inside)]))
    return lines + ["", "  * within the limit"] * (cells.limit is not None)


def _wrapped(line: str, columns: int) -> list[str]:
    """Return the line, or several lines that fit."""
    if len(line) <= columns:
        return [line]
    return wrap(escaped(line.strip()), columns, initial_indent="  ", subsequent_indent="    ")
