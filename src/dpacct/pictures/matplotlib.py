"""Draws pictures with matplotlib. No other module imports it.

Every chart has one style: the finding as the title, the vertical axis named above it, names at the
ends of their lines, the note at the bottom. Curves differ in hue, in lightness and in dashes, so
that they differ in gray as well.
"""

from __future__ import annotations

import math
from importlib import import_module
from io import BytesIO
from statistics import fmean
from textwrap import wrap
from typing import Any, NamedTuple

from dpacct.display import down, escaped, up
from dpacct.pictures.picture import Cells, Curve, Panel, Picture, day_ticks, log_ticks

# matplotlib's types are not complete, so that its values are Any.
mpl: Any = import_module("matplotlib")
figure_module: Any = import_module("matplotlib.figure")

INK, FAINT, GRID = "#1c1c1c", "#5e5e5e", "#e4e4e4"
# Okabe and Ito's palette, darkened so that text in it is readable on white.
COLORS = ("#0072B2", "#C44E00", "#007A5A", "#A5457A", "#3B3B3B", "#7A5A00")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (9, 3)), "-")
MARKERS = "osD^vP"
WIDTH, HEIGHT, EACH_BAR = 7.2, 4.3, 0.42
SIZE, SMALL, SMALLEST = 10.0, 8.5, 4.5
STYLE: dict[str, Any] = {
    "figure.dpi": 150,
    "savefig.dpi": 150,
    "font.size": SMALL,
    "text.color": INK,
    # A dollar sign in a name is no mathematics.
    "text.parse_math": False,
    "axes.titlesize": SIZE,
    "axes.titlelocation": "left",
    "axes.labelsize": SIZE,
    "axes.labelcolor": INK,
    "axes.edgecolor": FAINT,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": FAINT,
    "ytick.color": FAINT,
    "svg.hashsalt": "dpacct",
}


def draw_bytes(picture: Picture, form: str, width: float = WIDTH) -> bytes:
    """Return a picture as png, svg or pdf, ``width`` in inches. Equal pictures are equal bytes."""
    dates: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    stream = BytesIO()
    with mpl.rc_context():
        # A file matplotlibrc in the working folder may be from somebody else, and ask for LaTeX.
        mpl.rcdefaults()
        mpl.rcParams.update(STYLE)
        draw(picture, width).savefig(stream, format=form, metadata=dates.get(form))
    return stream.getvalue()


def draw(picture: Picture, width: float = WIDTH) -> Any:
    """Return a matplotlib figure, with text in the sizes of a printed page."""
    share = width / WIDTH
    several = sum(not panel.bars for panel in picture.panels) > 1
    curves = (0.62 if several else 0.9) * HEIGHT * min(1.0, share**0.5)
    heights = [_height(panel, curves) for panel in picture.panels]
    figure: Any = figure_module.Figure(figsize=(width, sum(heights) + 0.6), layout="constrained")
    figure.get_layout_engine().set(h_pad=0.08, w_pad=0.08)
    grid: Any = figure.subplots(len(heights), squeeze=False, height_ratios=heights)
    for axes, panel in zip(grid[:, 0], picture.panels, strict=True):
        axes.set(xlabel=_lines(panel.x, int(90 * share)), title=escaped(panel.y))
        if panel.cells:
            _draw_cells(axes, panel.cells)
        else:
            (_draw_bars if panel.bars else _draw_curves)(axes, panel)
    edge = {"x": 0.012, "ha": "left"}
    if picture.title:
        title = _lines(picture.title, int(74 * share))
        figure.suptitle(title, fontsize=SIZE + 1.5, fontweight="bold", **edge)
    if picture.note:
        note = _lines(picture.note, int(108 * share))
        figure.supxlabel(note, fontsize=SMALL, color=FAINT, **edge)
    return figure


def _height(panel: Panel, curves: float) -> float:
    """Return the height of a panel in inches, which is ``curves`` if it has some."""
    if panel.cells:
        return 0.34 * len(panel.cells.rows) + 0.6
    return max(1.2, EACH_BAR * len(panel.bars) + 0.5) if panel.bars else curves


def _lines(words: str, width: int) -> str:
    return "\n".join(wrap(escaped(words), width, break_on_hyphens=False))


def _draw_curves(axes: Any, panel: Panel) -> None:
    _set_scales(axes, panel)
    names: list[_Name] = []
    number = 0
    for curve in panel.curves:
        color = FAINT if curve.plain else COLORS[number % len(COLORS)]
        _draw_curve(axes, curve, color, number)
        number += not curve.plain
        if curve.name and curve.y:
            names.append(_Name(curve.y[-1], fmean(curve.y), curve.x[-1], curve.name, color))
    for level in panel.levels:
        axes.axhline(level.y, color=INK, lw=1.1, ls=(0, (6, 3)))
        names.append(_Name(level.y, level.y, axes.get_xlim()[1], level.words, INK))
    _write_names(axes, names)
    for mark in panel.marks:
        axes.plot([mark.x], [mark.y], "o", color=INK, markersize=5, zorder=5)
        # A letter is about 0.012 of the axes wide: the text goes left if it would not fit.
        place = axes.transAxes.inverted().transform(axes.transData.transform((mark.x, mark.y)))
        side = 1 if place[0] + 0.012 * len(mark.words) < 1.0 else -1
        axes.annotate(
            escaped(mark.words), (mark.x, mark.y), textcoords="offset points", zorder=6,
            xytext=(7 * side, 5 if mark.above else -5), ha="left" if side > 0 else "right",
            va="bottom" if mark.above else "top",
            bbox={"facecolor": "white", "alpha": 0.75, "linewidth": 0, "pad": 0.6},
        )  # fmt: skip


class _Name(NamedTuple):
    """The name of a line that ends at (x, y). The mean of its values orders equal ends."""

    y: float
    mean: float
    x: float
    words: str
    color: str


def _write_names(axes: Any, names: list[_Name]) -> None:
    """Write names at the ends of their lines, spread apart if they would touch."""
    low, high = axes.get_ylim()
    to_share = axes.transData + axes.transAxes.inverted()
    names = [name._replace(words=_lines(name.words, 24)) for name in sorted(names)]
    ends = [to_share.transform((name.x, min(max(name.y, low), high))) for name in names]
    # The height of a line of text as a share of the axes, whose size is not final yet.
    line = 1.5 * SMALL / 72 / (axes.get_position().height * axes.figure.get_figheight())
    halves = [line * (1 + name.words.count("\n")) / 2 for name in names]
    places: list[float] = []
    edge = -math.inf
    for (_, end), half in zip(ends, halves, strict=True):
        places.append(max(float(end), edge + half))
        edge = places[-1] + half
    edge = 1.0 + line / 2
    for row in reversed(range(len(names))):
        places[row] = min(places[row], edge - halves[row])
        edge = places[row] - halves[row]
    for name, (across, _), place in zip(names, ends, places, strict=True):
        axes.annotate(
            name.words, (across, place), xycoords="axes fraction", textcoords="offset points",
            xytext=(5, 0), va="center", color=name.color, annotation_clip=False,
        )  # fmt: skip


def _set_scales(axes: Any, panel: Panel) -> None:
    left, right, low, high = panel.limits()
    if panel.log_y:
        margin = (high / low) ** 0.05
        ends = low / margin, high if panel.y_max is not None else high * margin
    else:
        margin = 0.06 * (high - low)
        bottom = low if panel.from_zero and low >= 0 else low - margin
        ends = bottom, high + (margin / 6 if panel.y_max is not None else margin)
    scales = ["log" if log else "linear" for log in (panel.log_x, panel.log_y)]
    axes.set(xscale=scales[0], yscale=scales[1], xlim=(left, right), ylim=ends)
    for log, set_ticks, limits in (
        (panel.log_x, axes.set_xticks, (left, right)),
        (panel.log_y, axes.set_yticks, ends),
    ):
        if log:
            # matplotlib's own labels are mathematics.
            ticks = log_ticks(*limits)
            set_ticks(ticks, [f"{tick:g}" for tick in ticks])
            set_ticks([], minor=True)
    if panel.dates:
        axes.set_xticks(*day_ticks(left, right))


def _draw_curve(axes: Any, curve: Curve, color: str, number: int) -> None:
    if curve.points or len(curve.x) == 1:
        marker = MARKERS[number % len(MARKERS)]
        axes.plot(curve.x, curve.y, marker, color=color, markersize=5)
        return
    if curve.lower:
        step, alpha = "post" if curve.steps else None, 0.85 if curve.filled else 0.25
        axes.fill_between(
            curve.x,
            curve.lower,
            curve.upper or curve.y,
            color=color,
            alpha=alpha,
            linewidth=0,
            step=step,
        )
    if curve.filled:
        return
    dashes = (0, (2, 2)) if curve.plain else DASHES[number % len(DASHES)]
    axes.plot(
        curve.x, curve.y, color=color, ls=dashes, lw=1.0 if curve.plain else 2.0,
        drawstyle="steps-post" if curve.steps else "default",
    )  # fmt: skip


def _draw_bars(axes: Any, panel: Panel) -> None:
    most = panel.longest_bar()
    axes.set_yticks(range(len(panel.bars)), [escaped(bar.name) for bar in panel.bars])
    axes.tick_params(axis="y", length=0, labelsize=SIZE, labelcolor=INK)
    axes.set(xlim=(0, 1.3 * most), ylim=(len(panel.bars) - 0.4, -0.6))
    axes.grid(visible=False, axis="y")
    for row, bar in enumerate(panel.bars):
        words, end = bar.words or "no bound", 0.0
        if bar.upper is not None:
            words, end = bar.words or up(bar.upper), bar.upper
            pale = 0.45 if bar.lower is not None else 0.7
            axes.barh(row, bar.upper, height=0.55, color=COLORS[0], alpha=pale, linewidth=0)
            if bar.lower is not None:
                axes.barh(row, bar.lower, height=0.55, color=COLORS[0], linewidth=0)
                if bar.lower < 0.99 * bar.upper:
                    words = f"{words} (lower bound {down(bar.lower)})"
        axes.annotate(_lines(words, 46), (end + 0.01 * most, row), va="center")
    for level in panel.levels:
        axes.axvline(level.y, color=INK, lw=1.1, ls=(0, (6, 3)))
        axes.annotate(
            escaped(level.words), (level.y, 1.0), xycoords=("data", "axes fraction"),
            textcoords="offset points", xytext=(4, 2), va="bottom",
        )  # fmt: skip


def _draw_cells(axes: Any, cells: Cells) -> None:
    """Draw a table in colors: the farther from the limit, the stronger."""
    high, wide = len(cells.rows), len(cells.columns)
    known = [value for row in cells.values for value in row if value]
    middle = cells.limit or min(known, default=1.0)

    def color(i: int, j: int) -> Any:
        value = cells.values[i][j]
        far = abs(math.log(value / middle)) / 2.5 if value else 1.0
        hue = COLORS[1] if cells.limit and not cells.fits(i, j) else COLORS[0]
        return mpl.colors.to_rgba(FAINT if value is None else hue, 0.1 + 0.4 * min(1.0, far))

    shades = [[color(i, j) for j in range(wide)] for i in range(high)]
    axes.pcolormesh(shades, edgecolors="white", linewidth=1.5)
    axes.set(xlim=(0, wide), ylim=(high, 0))
    # A letter is about 0.7 of its height wide.
    across = 72 * 0.85 * axes.figure.get_figwidth() / wide
    step = math.ceil(0.7 * SMALL * max(map(len, cells.columns)) / across)
    places = range(0, wide, step)
    axes.set_xticks([j + 0.5 for j in places], [escaped(cells.columns[j]) for j in places])
    axes.set_yticks([i + 0.5 for i in range(high)], [*map(escaped, cells.rows)])
    axes.tick_params(length=0)
    axes.grid(visible=False)
    axes.spines[:].set_visible(False)
    size = min(SMALL, across / 3.2)
    line = {"color": INK, "lw": 2.0, "solid_capstyle": "projecting"}
    for i, row in enumerate(cells.values):
        for j, value in enumerate(row):
            if size >= SMALLEST:
                words = "-" if value is None else up(value, 4)
                axes.text(j + 0.5, i + 0.5, words, ha="center", va="center", fontsize=size)
            if cells.limit and j and cells.fits(i, j) != cells.fits(i, j - 1):
                axes.plot([j, j], [i, i + 1], **line)
            if cells.limit and i and cells.fits(i, j) != cells.fits(i - 1, j):
                axes.plot([j, j + 1], [i, i], **line)
