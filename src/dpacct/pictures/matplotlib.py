"""Draws pictures with matplotlib. No other module imports it.

Every chart has one style: the finding as the title, the vertical axis named above it, names at the
ends of their lines, the note at the bottom. Curves differ in hue, in lightness and in dashes, so
that they differ in gray as well. The background is part of the picture.
"""

from __future__ import annotations

import math
from importlib import import_module
from io import BytesIO
from textwrap import wrap
from typing import Any

from dpacct.display import down, escaped, up
from dpacct.pictures.picture import Curve, Mark, Panel, Picture, log_ticks

# matplotlib's types are not complete, so that its values are Any.
mpl: Any = import_module("matplotlib")
figure_module: Any = import_module("matplotlib.figure")
ticker: Any = import_module("matplotlib.ticker")

# Okabe and Ito's palette, darkened on white and lightened on dark so that text in it is readable.
LIGHT = ("#0072B2", "#C44E00", "#007A5A", "#A5457A", "#3B3B3B", "#7A5A00")
DARK = ("#56B4E9", "#E69F00", "#2FCFA0", "#E8A5C8", "#9AD4F5", "#F0E442")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (9, 3)), "-")
MARKERS = "osD^vP"
WIDTH, HEIGHT, EACH_BAR, DPI = 7.2, 4.3, 0.42, 150
SIZE, SMALL = 10.0, 8.5


class _Ink:
    """The colors of a background."""

    def __init__(self, *, dark: bool) -> None:
        self.ground = "#16181c" if dark else "#ffffff"
        self.text = "#e9e9e9" if dark else "#1c1c1c"
        self.faint = "#9a9fa8" if dark else "#5e5e5e"
        self.grid = "#33373f" if dark else "#e4e4e4"
        self.colors = DARK if dark else LIGHT


def draw_bytes(picture: Picture, form: str, *, dark: bool = False) -> bytes:
    """Return a picture as png, svg or pdf. Equal pictures are equal bytes."""
    dates: dict[str, Any] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    stream = BytesIO()
    with mpl.rc_context({"svg.hashsalt": "dpacct"}):
        draw(picture, dark=dark).savefig(stream, format=form, metadata=dates.get(form))
    return stream.getvalue()


def draw(picture: Picture, *, dark: bool = False) -> Any:
    """Return a matplotlib figure, with text in the sizes of a printed page."""
    ink = _Ink(dark=dark)
    several = sum(not panel.bars for panel in picture.panels) > 1
    heights = [
        max(1.2, EACH_BAR * len(panel.bars) + 0.5)
        if panel.bars
        else (0.62 if several else 0.9) * HEIGHT
        for panel in picture.panels
    ]
    figure: Any = figure_module.Figure(
        figsize=(WIDTH, sum(heights) + 0.6), dpi=DPI, facecolor=ink.ground, layout="constrained"
    )
    figure.get_layout_engine().set(h_pad=0.08, w_pad=0.08)
    grid: Any = figure.subplots(
        len(picture.panels), 1, squeeze=False, gridspec_kw={"height_ratios": heights}
    )
    for axes, panel in zip(grid[:, 0], picture.panels, strict=True):
        axes.set_facecolor(ink.ground)
        axes.spines[["top", "right"]].set_visible(False)
        axes.spines[["left", "bottom"]].set_color(ink.faint)
        axes.tick_params(colors=ink.faint, labelsize=SMALL, which="both")
        axes.grid(visible=True, color=ink.grid, linewidth=0.8)
        axes.set_axisbelow(True)
        axes.set_xlabel(_lines(panel.x_label, 90), fontsize=SIZE, color=ink.text)
        axes.set_title(_plain(panel.y_label), loc="left", fontsize=SIZE, color=ink.text)
        (_draw_bars if panel.bars else _draw_curves)(axes, panel, ink)
    title, edge = _lines(picture.title, 74), {"x": 0.012, "ha": "left"}
    figure.suptitle(title, fontsize=SIZE + 1.5, fontweight="bold", color=ink.text, **edge)
    if picture.note:
        figure.supxlabel(_lines(picture.note, 116), fontsize=SMALL, color=ink.faint, **edge)
    return figure


def _plain(words: str) -> str:
    """Return words in which matplotlib finds no mathematics."""
    return escaped(words).replace("$", r"\$")


def _lines(words: str, width: int) -> str:
    return "\n".join(wrap(_plain(words), width))


def _draw_curves(axes: Any, panel: Panel, ink: _Ink) -> None:
    _set_scales(axes, panel)
    labels: list[tuple[float, str, str]] = []
    number = 0
    for curve in panel.curves:
        color = ink.faint if curve.plain else ink.colors[number % len(ink.colors)]
        _draw_curve(axes, curve, color, number)
        number += not curve.plain
        if curve.name and curve.y:
            labels.append((float(curve.y[-1]), curve.name, color))
    for level in panel.levels:
        axes.axhline(level.y, color=ink.text, linewidth=1.1, linestyle=(0, (6, 3)))
        labels.append((level.y, level.words, ink.text))
    written: list[tuple[float, float]] = []
    for mark in panel.marks:
        across, height = _draw_mark(axes, mark, ink)
        # Words that would stand on those of an earlier mark are left out.
        if all(abs(across - x) > 0.15 or abs(height - y) > 0.05 for x, y in written):
            written.append((across, height))
            _write_beside(axes, mark, across, ink)
    _label_ends(axes, labels)


def _set_scales(axes: Any, panel: Panel) -> None:
    left, right, low, high = panel.limits()
    axes.set_xlim(left, right)
    if panel.log_y:
        margin = (high / low) ** 0.05
        ends = low / margin, high if panel.y_max is not None else high * margin
    else:
        margin = 0.06 * (high - low)
        bottom = low if panel.from_zero and low >= 0 else low - margin
        ends = bottom, high + (margin / 6 if panel.y_max is not None else margin)
    for log, axis, scale, (least, most) in (
        (panel.log_x, axes.xaxis, axes.set_xscale, (left, right)),
        (panel.log_y, axes.yaxis, axes.set_yscale, ends),
    ):
        if log:
            scale("log")
            axis.set_major_locator(ticker.FixedLocator(log_ticks(least, most)))
            axis.set_minor_locator(ticker.NullLocator())
            axis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))
    axes.set_ylim(*ends)


def _draw_curve(axes: Any, curve: Curve, color: str, number: int) -> None:
    if curve.points or len(curve.x) == 1:
        marker = MARKERS[number % len(MARKERS)]
        axes.plot(curve.x, curve.y, color=color, linestyle="none", marker=marker, markersize=5)
        return
    if curve.lower:
        step = "post" if curve.steps else None
        axes.fill_between(
            curve.x, curve.lower, curve.y, color=color, alpha=0.25, linewidth=0, step=step
        )
    dashes = (0, (2, 2)) if curve.plain else DASHES[number % len(DASHES)]
    axes.plot(
        curve.x, curve.y, color=color, linestyle=dashes, linewidth=1.0 if curve.plain else 2.0,
        drawstyle="steps-post" if curve.steps else "default",
    )  # fmt: skip


def _draw_mark(axes: Any, mark: Mark, ink: _Ink) -> tuple[float, float]:
    """Draw the point, and return its place in shares of the axes."""
    axes.plot([mark.x], [mark.y], "o", color=ink.text, markersize=5, zorder=5)
    place = axes.transAxes.inverted().transform(axes.transData.transform((mark.x, mark.y)))
    return float(place[0]), float(place[1])


def _write_beside(axes: Any, mark: Mark, share: float, ink: _Ink) -> None:
    # A letter is about 0.012 of the axes wide: the text goes left if it would not fit.
    side = 1 if share + 0.012 * len(mark.words) < 1.0 else -1
    axes.annotate(
        _plain(mark.words), (mark.x, mark.y), textcoords="offset points",
        xytext=(7 * side, 5 if mark.above else -5), ha="left" if side > 0 else "right",
        va="bottom" if mark.above else "top", fontsize=SMALL, color=ink.text, zorder=6,
        bbox={"facecolor": ink.ground, "alpha": 0.75, "linewidth": 0, "pad": 0.6},
    )  # fmt: skip


def _label_ends(axes: Any, labels: list[tuple[float, str, str]]) -> None:
    """Write names at the right end of their lines, pushed apart if they would touch."""
    # A line of text is about 0.05 of the axes high.
    step, top = 0.05, -math.inf
    places: list[float] = []
    ordered = sorted(labels)
    for y, words, _ in ordered:
        least = max(y, axes.get_ylim()[0])
        _, share = axes.transAxes.inverted().transform(axes.transData.transform((1.0, least)))
        top = max(share, top + step * (1 + words.count("\n")))
        places.append(top)
    over = max(0.0, top - 1.0)
    for place, (_, words, color) in zip(places, ordered, strict=True):
        axes.annotate(
            "\n".join(map(_plain, words.split("\n"))), (1.0, place - over),
            xycoords="axes fraction", textcoords="offset points", xytext=(5, 0), va="center",
            fontsize=SMALL, color=color, annotation_clip=False,
        )  # fmt: skip


def _draw_bars(axes: Any, panel: Panel, ink: _Ink) -> None:
    most, color = panel.longest_bar(), ink.colors[0]
    axes.set_yticks(range(len(panel.bars)), [_plain(bar.name) for bar in panel.bars])
    axes.tick_params(axis="y", length=0, labelsize=SIZE, labelcolor=ink.text)
    axes.set_ylim(len(panel.bars) - 0.4, -0.6)
    axes.set_xlim(0, 1.3 * most)
    axes.grid(visible=False, axis="y")
    for row, bar in enumerate(panel.bars):
        words, end = bar.words or "no bound", 0.0
        if math.isfinite(bar.upper):
            words, end = bar.words or up(bar.upper), bar.upper
            pale = 0.45 if bar.lower is not None else 0.7
            axes.barh(row, bar.upper, height=0.55, color=color, alpha=pale, linewidth=0)
            if bar.lower is not None:
                axes.barh(row, bar.lower, height=0.55, color=color, linewidth=0)
                if bar.lower < 0.99 * bar.upper:
                    words = f"{words} (lower bound {down(bar.lower)})"
        place = (end + 0.01 * most, row)
        axes.annotate(_lines(words, 46), place, va="center", fontsize=SMALL, color=ink.text)
    for level in panel.levels:
        axes.axvline(level.y, color=ink.text, linewidth=1.1, linestyle=(0, (6, 3)))
        axes.annotate(
            _plain(level.words), (level.y, 1.0), xycoords=("data", "axes fraction"),
            textcoords="offset points", xytext=(4, 2), va="bottom", fontsize=SMALL, color=ink.text,
        )  # fmt: skip
