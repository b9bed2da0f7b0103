"""A picture as data: what is computed once, and drawn by matplotlib or as text.

Rule 1: a bracket is a band between an achieved and a proven side; the proven side is the line.
Rule 2: a title says what is found, a label carries its unit, and what is promised is shortened to
its safe side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Curve:
    """A line, with a band below it where another side is known.

    Attributes:
        name: shown at its end; nothing where there is one curve alone.
        x, y: of each point, as many of both.
        lower: the other side of the band, as long as ``y``; or nothing.
        steps: the value holds from one point to the next.
        points: single points rather than a line.
        plain: a line for comparison, thin and gray.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    lower: Sequence[float] = ()
    steps: bool = False
    points: bool = False
    plain: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A point with words beside it, below its curve or above."""

    x: float
    y: float
    words: str
    above: bool = False


@dataclass(frozen=True, slots=True)
class Level:
    """A horizontal line with words, e.g. a budget."""

    y: float
    words: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a comparison: achieved and proven, or one figure alone."""

    name: str
    upper: float
    lower: float | None = None
    words: str = ""


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes: curves, or bars.

    Attributes:
        x_label, y_label: with units.
        curves, bars: what is shown; one of both.
        levels, marks: beside curves.
        log_x, log_y: logarithmic scales.
        y_max: where the axis ends; above what is shown where it is None.
        from_zero: the vertical axis begins at 0.
    """

    x_label: str
    y_label: str
    curves: tuple[Curve, ...] = ()
    bars: tuple[Bar, ...] = ()
    levels: tuple[Level, ...] = ()
    marks: tuple[Mark, ...] = ()
    log_x: bool = False
    log_y: bool = False
    y_max: float | None = None
    from_zero: bool = True


@dataclass(frozen=True, slots=True)
class Picture:
    """Panels below each other.

    Attributes:
        title: what is found.
        panels: at least one.
        note: what holds for all of it: mechanism, delta, adjacency.
    """

    title: str
    panels: tuple[Panel, ...]
    note: str = ""


def as_data(picture: Picture) -> dict[str, Any]:
    """A picture as JSON."""
    return {
        "title": picture.title,
        "note": picture.note,
        "panels": [_panel_data(panel) for panel in picture.panels],
    }


def _panel_data(panel: Panel) -> dict[str, Any]:
    return {
        "x": panel.x_label,
        "y": panel.y_label,
        "curves": [
            {
                "name": curve.name,
                "x": list(curve.x),
                "y": list(curve.y),
                "lower": list(curve.lower) or None,
            }
            for curve in panel.curves
        ],
        "bars": [
            {"name": bar.name, "upper": _finite(bar.upper), "lower": bar.lower, "words": bar.words}
            for bar in panel.bars
        ],
        "levels": [{"y": level.y, "words": level.words} for level in panel.levels],
        "marks": [{"x": mark.x, "y": mark.y, "words": mark.words} for mark in panel.marks],
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
