"""Pictures drawn by matplotlib; the only module that imports it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
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
# A piece of the line before its name: its length and the gaps around it, in points.
SAMPLE, GAP = 22.0, 5.0


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
    ends: list[_End] = []
    number = 0
    several = sum(bool(curve.name) for curve in panel.curves) > 1
    for curve in panel.curves:
        color = ink.faint if curve.plain else ink.colors[number % len(ink.colors)]
        stroke = _stroke(curve, color, number)
        _draw_curve(axes, curve, stroke)
        number += not curve.plain
        if curve.name and curve.y:
            sample = stroke if several else {}
            ends.append(_End(float(curve.y[-1]), curve.name, color, sample))
    for level in panel.levels:
        axes.axhline(level.y, color=ink.text, linewidth=1.1, linestyle=(0, (6, 3)))
        ends.append(_End(level.y, level.words, ink.text, {}))
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


def _stroke(curve: Curve, color: str, number: int) -> dict[str, Any]:
    """What a curve looks like: its color, and in gray its dashes or markers."""
    if curve.points:
        marker = MARKERS[number % len(MARKERS)]
        return {"color": color, "linestyle": "none", "marker": marker, "markersize": 5}
    if curve.plain:
        return {"color": color, "linestyle": (0, (2, 2)), "linewidth": 1.0}
    return {"color": color, "linestyle": DASHES[number % len(DASHES)], "linewidth": 2.0}


def _draw_curve(axes: Any, curve: Curve, stroke: dict[str, Any]) -> None:
    style = "steps-post" if curve.steps else "default"
    if curve.lower:
        axes.fill_between(
            curve.x, curve.lower, curve.y, color=stroke["color"], alpha=0.25, linewidth=0,
            step="post" if curve.steps else None,
        )  # fmt: skip
    if curve.points:
        axes.plot(curve.x, curve.y, **stroke)
        return
    single = {"marker": "o"} if len(curve.x) == 1 else {}
    axes.plot(curve.x, curve.y, drawstyle=style, **stroke, **single)


@dataclass(frozen=True)
class _End:
    """A name at the right end of a line, and a stroke to show before it, if any."""

    y: float
    words: str
    color: str
    sample: dict[str, Any]


def _label_ends(axes: Any, ends: Sequence[_End]) -> None:
    """Names at the right end, pushed apart where they would touch.

    Lines that end in one place leave their names in an order that color alone would tell.
    """
    low, high = axes.get_ylim()
    log = axes.get_yscale() == "log"

    def share(y: float) -> float:
        if log:
            return math.log(max(y, low) / low) / math.log(high / low)
        return (y - low) / (high - low)

    # As high as a line of text, as a share of the axes.
    step = 0.05
    top = -math.inf
    places: list[tuple[float, _End]] = []
    for end in sorted(ends, key=lambda end: end.y):
        top = max(share(end.y), top + step * (1 + end.words.count("\n")))
        places.append((top, end))
    over = max(0.0, top - 1.0)
    right = GAP + (SAMPLE + GAP if any(end.sample for end in ends) else 0.0)
    for place, end in places:
        if end.sample:
            _draw_sample(axes, place - over, end.sample)
        axes.annotate(
            _plain(end.words).replace(r"\n", "\n"), (1.0, place - over), xycoords="axes fraction",
            textcoords="offset points", xytext=(right, 0), va="center", fontsize=SMALL,
            color=end.color, annotation_clip=False,
        )  # fmt: skip


def _draw_sample(axes: Any, height: float, stroke: dict[str, Any]) -> None:
    """A piece of a line right of the axes, or its marker in the middle of that piece."""
    transforms: Any = import_module("matplotlib.transforms")
    points = transforms.Affine2D().scale(axes.figure.dpi / 72)
    place = transforms.ScaledTranslation(1.0, height, axes.transAxes)
    ends = [GAP, GAP + SAMPLE] if stroke["linestyle"] != "none" else [GAP + SAMPLE / 2]
    line: Any = import_module("matplotlib.lines").Line2D(
        ends, [0.0] * len(ends), transform=points + place, clip_on=False, **stroke
    )
    axes.add_artist(line)


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
