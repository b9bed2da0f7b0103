"""A picture as data, computed once and drawn by matplotlib or as text.

Rule 1: the line is the proven (upper) bound, and the band below it reaches down to the lower bound.
Rule 2: a title states the finding, a label carries its unit, and a shortened bound is rounded to
its safe side.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date


@dataclass(frozen=True, slots=True)
class Curve:
    """A line, with a band below it if a lower bound is known.

    Attributes:
        name: the label at its end, empty if the panel has a single curve.
        x, y: coordinates of the points, equally many of each.
        lower: lower edge of the band, as long as ``y``, or None.
        upper: upper edge of the band if that is not the line, as long as ``y``, or None.
        steps: the value holds from one point to the next.
        points: single points rather than a line.
        plain: a thin gray line for comparison.
        filled: the band is the figure, as a part of a stack, and the line is left out.
    """

    name: str
    x: Sequence[float]
    y: Sequence[float]
    lower: Sequence[float] | None = None
    upper: Sequence[float] | None = None
    steps: bool = False
    points: bool = False
    plain: bool = False
    filled: bool = False


@dataclass(frozen=True, slots=True)
class Mark:
    """A point with a text above its curve or below."""

    x: float
    y: float
    words: str
    above: bool = False


@dataclass(frozen=True, slots=True)
class Level:
    """A horizontal line with a text, such as a budget. With bars the line is vertical."""

    y: float
    words: str


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a comparison. Without an ``upper`` end it shows ``words`` instead."""

    name: str
    upper: float | None
    lower: float | None = None
    words: str = ""


@dataclass(frozen=True, slots=True)
class Cells:
    """A table of values. A line parts those within a limit from the others.

    Attributes:
        columns, rows: labels, from left to right and downwards.
        values: for each row one value a column, positive, or None if there is none.
        limit: the largest value that is within it, or None.
    """

    columns: Sequence[str]
    rows: Sequence[str]
    values: Sequence[Sequence[float | None]]
    limit: float | None = None

    def fits(self, row: int, column: int) -> bool:
        """Return True if a value is within the limit."""
        value = self.values[row][column]
        return value is not None and self.limit is not None and value <= self.limit


@dataclass(frozen=True, slots=True)
class Panel:
    """One pair of axes with curves, bars or cells.

    Attributes:
        x, y: labels of the axes, with their units. Of cells, those of the columns and the rows.
        dates: True if x are days, as `datetime.date.toordinal` counts them.
        log_x, log_y: logarithmic scales, without values that are not positive.
        y_max: upper end of the vertical axis. Default: above all values.
        from_zero: True if the vertical axis begins at 0.
    """

    x: str
    y: str
    curves: Sequence[Curve] = ()
    bars: Sequence[Bar] = ()
    cells: Cells | None = None
    levels: Sequence[Level] = ()
    marks: Sequence[Mark] = ()
    log_x: bool = False
    log_y: bool = False
    dates: bool = False
    y_max: float | None = None
    from_zero: bool = True

    def limits(self) -> tuple[float, float, float, float]:
        """Return the least and the largest x and y of the curves."""
        xs = [x for curve in self.curves for x in curve.x if x > 0.0 or not self.log_x]
        ys = [
            y
            for curve in self.curves
            for y in (*curve.y, *(curve.lower or ()), *(curve.upper or ()))
        ]
        ys += [level.y for level in self.levels]
        ys = [y for y in ys if math.isfinite(y) and (y > 0.0 or not self.log_y)]
        low, high = min(ys, default=0.0), max(ys, default=1.0)
        if self.from_zero and not self.log_y:
            low = min(0.0, low)
        high = high if self.y_max is None else self.y_max
        left, right = min(xs, default=0.0), max(xs, default=1.0)
        return *_widened(left, right, log=self.log_x), *_widened(low, high, log=self.log_y)

    def longest_bar(self) -> float:
        """Return the largest finite value of the bars and levels."""
        values = [*(bar.upper or 0.0 for bar in self.bars), *(level.y for level in self.levels)]
        return max(values, default=1.0) or 1.0


def _widened(low: float, high: float, *, log: bool) -> tuple[float, float]:
    """Return a range that is not empty."""
    if high > low:
        return low, high
    margin = max(0.5, abs(low) / 1000)
    return (low / 2, 2 * low) if log else (low - margin, low + margin)


def log_ticks(low: float, high: float) -> list[float]:
    """Return the labeled values of a logarithmic axis: at most eight decades, or 1, 2, 5."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    digits = (1.0,) if high >= 100 * low else (1.0, 2.0, 5.0)
    step = max(1, math.ceil((last - first) / 8))
    ticks = [digit * 10.0**power for power in range(first, last + 1, step) for digit in digits]
    return [tick for tick in ticks if low * (1 - 1e-9) <= tick <= high * (1 + 1e-9)]


def day_ticks(first: float, last: float) -> tuple[list[float], list[str]]:
    """Return some days of an axis with their labels: first days of months if there are several."""
    days = range(math.ceil(first), math.floor(last) + 1)
    months = [day for day in days if date.fromordinal(day).day == 1]
    if len(months) > 1:
        chosen = months[:: math.ceil(len(months) / 12)]
        return [*map(float, chosen)], [f"{date.fromordinal(day):%b %y}" for day in chosen]
    chosen = list(days)[:: math.ceil(len(days) / 8)]
    return [*map(float, chosen)], [f"{date.fromordinal(day):%d %b}" for day in chosen]


@dataclass(frozen=True, slots=True)
class Picture:
    """Panels below each other.

    Attributes:
        title: the finding.
        panels: at least one.
        note: text on all panels, such as mechanism, delta and adjacency.
    """

    title: str
    panels: Sequence[Panel]
    note: str = ""
