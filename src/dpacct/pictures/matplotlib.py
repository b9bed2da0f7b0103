"""Pictures drawn by matplotlib; the only module that imports it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from dpacct.display import down, escaped, up
from dpacct.pictures.picture import Bar, Curve, Panel, Picture
from dpacct.pictures.text import limits

# After Okabe and Ito's palette: told apart with any color vision, and in gray by the lines below.
# Darkened on white, lightened on a dark ground, so that words in these colors can be read.
LIGHT = ("#0072B2", "#C44E00", "#007A5A", "#A5457A", "#3B3B3B", "#7A5A00")
DARK = ("#56B4E9", "#E69F00", "#2FCFA0", "#E8A5C8", "#9AD4F5", "#F0E442")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)), (0, (9, 3)), "-")
MARKERS = "osD^vP"
WIDTH, HEIGHT, EACH_BAR, DPI = 7.2, 4.3, 0.42, 150
SIZE, SMALL = 10.0, 8.5


class _Ink:
    """Colors of a ground."""

    def __init__(self, *, dark: bool) -> None:
        self.ground = "#16181c" if dark else "#ffffff"
        self.text = "#e9e9e9" if dark else "#1c1c1c"
        self.faint = "#9a9fa8" if dark else "#6a6a6a"
        self.grid = "#33373f" if dark else "#e4e4e4"
        self.colors = DARK if dark else LIGHT


def draw(picture: Picture, *, dark: bool = False) -> Any:
    """A figure of matplotlib, whose text is in the sizes of a page."""
    figure_module: Any = import_module("matplotlib.figure")
    ink = _Ink(dark=dark)
    alone = len([panel for panel in picture.panels if not panel.bars]) == 1
    heights = [_height(panel, alone=alone) for panel in picture.panels]
    figure: Any = figure_module.Figure(
        figsize=(WIDTH, sum(heights) + 0.5), dpi=DPI, facecolor=ink.ground, layout="constrained"
    )
    figure.get_layout_engine().set(h_pad=0.08, w_pad=0.08)
    grid: Any = figure.subplots(
        len(picture.panels), 1, squeeze=False, gridspec_kw={"height_ratios": heights}
    )
    labels = [panel.x_label for panel in picture.panels[1:]]
    for axes, panel, following in zip(grid[:, 0], picture.panels, [*labels, ""], strict=True):
        _style(axes, panel, ink, below=panel.x_label != following)
        if panel.bars:
            _draw_bars(axes, panel, ink)
        else:
            _draw_curves(axes, panel, ink)
    title = _lines(picture.title, 78)
    figure.suptitle(
        title, x=0.012, ha="left", fontsize=SIZE + 1.5, fontweight="bold", color=ink.text
    )
    if picture.note:
        grid[0, 0].set_title(
            _lines(picture.note, 96), loc="left", fontsize=SMALL, color=ink.faint, pad=8
        )
    return figure


def _height(panel: Panel, *, alone: bool) -> float:
    if panel.bars:
        return max(1.2, EACH_BAR * len(panel.bars) + 0.5)
    return HEIGHT - 0.5 if alone else 0.62 * HEIGHT


def _lines(words: str, width: int) -> str:
    from textwrap import wrap  # noqa: PLC0415 - nothing else needs it

    return "\n".join(wrap(_plain(words), width))


def _plain(words: str) -> str:
    """Words in which nothing is taken for mathematics."""
    return escaped(words).replace("$", r"\$")


def _style(axes: Any, panel: Panel, ink: _Ink, *, below: bool) -> None:
    axes.set_facecolor(ink.ground)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(ink.faint)
    axes.tick_params(colors=ink.faint, labelsize=SMALL, which="both")
    axes.grid(visible=True, color=ink.grid, linewidth=0.8)
    axes.set_axisbelow(True)
    if below:
        axes.set_xlabel(_plain(panel.x_label), fontsize=SIZE, color=ink.text)
    axes.set_ylabel(_plain(panel.y_label), fontsize=SIZE, color=ink.text)


def _draw_curves(axes: Any, panel: Panel, ink: _Ink) -> None:
    if panel.log_x:
        axes.set_xscale("log")
    if panel.log_y:
        axes.set_yscale("log")
    left, right, low, high = limits(panel)
    axes.set_xlim(left, right)
    if panel.log_x:
        _tick_in_decimals(axes.xaxis, many=right > 1e3 * left)
    margin = (high / low) ** 0.05 if panel.log_y else 0.06 * (high - low)
    fixed = panel.y_max is not None
    if panel.log_y:
        axes.set_ylim(low / margin, high if fixed else high * margin)
    else:
        below = low if panel.from_zero and low >= 0 else low - margin
        axes.set_ylim(below, high + (0.01 * (high - low) if fixed else margin))
    ends: list[tuple[float, str, str]] = []
    number = 0
    for curve in panel.curves:
        color = ink.faint if curve.plain else ink.colors[number % len(ink.colors)]
        _draw_curve(axes, curve, color, number)
        number += not curve.plain
        if curve.name and curve.y:
            ends.append((float(curve.y[-1]), curve.name, color))
    for level in panel.levels:
        axes.axhline(level.y, color=ink.text, linewidth=1.1, linestyle=(0, (6, 3)))
        ends.append((level.y, level.words, ink.text))
    for mark in panel.marks:
        axes.plot([mark.x], [mark.y], "o", color=ink.text, markersize=5, zorder=5)
        span = math.log(mark.x / left) / math.log(right / left) if panel.log_x else (
            (mark.x - left) / (right - left))  # fmt: skip
        # Where the words end, as a share of the axes: about so much for each letter.
        side = 1 if span + 0.012 * len(mark.words) < 1.0 else -1
        axes.annotate(
            _plain(mark.words), (mark.x, mark.y), textcoords="offset points",
            xytext=(7 * side, 5 if mark.above else -5), ha="left" if side > 0 else "right",
            va="bottom" if mark.above else "top", fontsize=SMALL, color=ink.text, zorder=6,
            bbox={"facecolor": ink.ground, "alpha": 0.75, "linewidth": 0, "pad": 0.6},
        )  # fmt: skip
    _label_ends(axes, ends)


def _tick_in_decimals(axis: Any, *, many: bool) -> None:
    """1, 2, 5, 10 rather than powers of ten with a factor."""
    ticker: Any = import_module("matplotlib.ticker")
    axis.set_major_locator(
        ticker.LogLocator(10.0, subs=(1.0,) if many else (1.0, 2.0, 5.0), numticks=12)
    )
    axis.set_minor_locator(ticker.NullLocator())
    axis.set_major_formatter(ticker.StrMethodFormatter("{x:g}"))


def _draw_curve(axes: Any, curve: Curve, color: str, number: int) -> None:
    style = "steps-post" if curve.steps else "default"
    if curve.lower:
        axes.fill_between(
            curve.x, curve.lower, curve.y, color=color, alpha=0.25, linewidth=0,
            step="post" if curve.steps else None,
        )  # fmt: skip
    if curve.points:
        axes.plot(curve.x, curve.y, MARKERS[number % len(MARKERS)], color=color, markersize=5)
        return
    width, dashes = (1.0, (0, (2, 2))) if curve.plain else (2.0, DASHES[number % len(DASHES)])
    single = {"marker": "o"} if len(curve.x) == 1 else {}
    axes.plot(curve.x, curve.y, color=color, linewidth=width, linestyle=dashes, drawstyle=style,
              **single)  # fmt: skip


def _label_ends(axes: Any, ends: Sequence[tuple[float, str, str]]) -> None:
    """Names at the right end, pushed apart where they would touch."""
    low, high = axes.get_ylim()
    log = axes.get_yscale() == "log"

    def share(y: float) -> float:
        if log:
            return math.log(max(y, low) / low) / math.log(high / low)
        return (y - low) / (high - low)

    # As high as a line of text, as a share of the axes.
    step = 0.05
    top = -math.inf
    places: list[tuple[float, str, str]] = []
    for y, words, color in sorted(ends, key=lambda end: end[0]):
        top = max(share(y), top + step * (1 + words.count("\n")))
        places.append((top, words, color))
    over = max(0.0, top - 1.0)
    for place, words, color in places:
        axes.annotate(
            _plain(words).replace(r"\n", "\n"), (1.0, place - over), xycoords="axes fraction",
            textcoords="offset points", xytext=(5, 0), va="center", fontsize=SMALL, color=color,
            annotation_clip=False,
        )  # fmt: skip


def _draw_bars(axes: Any, panel: Panel, ink: _Ink) -> None:
    rows = range(len(panel.bars))
    most = max((bar.upper for bar in panel.bars if math.isfinite(bar.upper)), default=1.0)
    most = max([most, *(level.y for level in panel.levels)])
    axes.set_yticks(list(rows), [_plain(bar.name) for bar in panel.bars])
    axes.tick_params(axis="y", length=0, labelsize=SIZE, labelcolor=ink.text)
    axes.set_ylim(len(panel.bars) - 0.4, -0.6)
    axes.set_xlim(0, 1.3 * most)
    axes.grid(visible=False, axis="y")
    for row, bar in zip(rows, panel.bars, strict=True):
        _draw_bar(axes, row, bar, ink, most)
    for level in panel.levels:
        axes.axvline(level.y, color=ink.text, linewidth=1.1, linestyle=(0, (6, 3)))
        axes.annotate(
            _plain(level.words), (level.y, 1.0), xycoords=("data", "axes fraction"),
            textcoords="offset points", xytext=(4, 2), va="bottom", fontsize=SMALL, color=ink.text,
        )  # fmt: skip


def _draw_bar(axes: Any, row: int, bar: Bar, ink: _Ink, most: float) -> None:
    color = ink.colors[0]
    if not math.isfinite(bar.upper):
        said, end = bar.words or "no bound", 0.0
    else:
        said, end = bar.words or up(bar.upper), bar.upper
        pale = 0.45 if bar.lower is not None else 0.7
        axes.barh(row, bar.upper, height=0.55, color=color, alpha=pale, linewidth=0)
        if bar.lower is not None:
            axes.barh(row, bar.lower, height=0.55, color=color, linewidth=0)
            if bar.lower < 0.99 * bar.upper:
                said = f"{said} ({down(bar.lower)} achieved)"
    axes.annotate(
        _lines(said, 46), (end + 0.01 * most, row), va="center", fontsize=SMALL, color=ink.text
    )
