"""Epsilon over rounds as a picture: SVG drawn here, and bars of text for where there is none.

What is drawn is the facts of a report: ``points``, ``marks``, ``delta``, ``epsilon``, ``budget``
(or null), ``part_of_plan``, ``epsilon_any_stop``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from html import escape
from typing import Any

from dpacct.display import chosen, escaped, up

WIDTH, HEIGHT = 780, 430
LEFT, RIGHT, TOP, BOTTOM = 56, 132, 96, 52
# What things are drawn as; the page's style knows their colors, on light and dark ground.
PLANNED, ADAPTIVE, FAINT = 'class="planned"', 'class="adaptive"', 'class="faint"'
BAR_WIDTH, BARS = 40, 12
_ROLE = 'class="chart" role="img" font-size="13" xmlns="http://www.w3.org/2000/svg"'


@dataclass(frozen=True, slots=True)
class _Scale:
    """From rounds and epsilon to pixels."""

    rounds: int
    epsilon: float

    def x(self, rounds: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * rounds / self.rounds

    def y(self, epsilon: float) -> float:
        return HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * epsilon / self.epsilon


def ticks(largest: float, wanted: int = 5) -> list[float]:
    """Round numbers from 0 to ``largest``."""
    raw = largest / wanted
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= raw * 0.999)
    return [step * k for k in range(int(largest / step * 1.0000001) + 1)]


def _text(x: float, y: float, words: str, anchor: str = "start", extra: str = "") -> str:
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"'
    return f"<text {place} {extra}>{escape(escaped(words))}</text>"


def _line(x1: float, y1: float, x2: float, y2: float, style: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" {style}/>'


def draw(report: dict[str, Any]) -> str:
    """The picture as an SVG element; empty where no round ran or nothing is bounded."""
    points = [p for p in report["points"] if p["upper"] is not None]
    if not points:
        return ""
    budget = _budget(report)
    whole = _whole_plan(report)
    most = max(*(p["upper"] for p in points), budget or 0.0, whole or 0.0)
    last = points[-1]
    scale = _Scale(max(last["round"], 1), most * 1.08)
    title = _title(report, last, whole)
    below = "rounds" if budget is None else "rounds charged, all runs"
    parts = [
        f'<svg {_ROLE} viewBox="0 0 {WIDTH} {HEIGHT}">',
        f"<title>{escape(title)}</title>",
        _text(LEFT, 18, title, extra='class="strong" font-size="15"'),
        *_axes(
            scale,
            float(report["delta"]),
            below,
        ),
        *_marks(scale, report["marks"]),
        *_band(scale, points),
        *_upper(scale, points),
        *_level(scale, budget, 'class="limit" stroke-dasharray="6 4" stroke-width="1.5"'),
        *_level(scale, whole, f'{PLANNED} stroke-dasharray="2 3"'),
        *_labels(scale, points, budget, whole),
        "</svg>",
    ]
    return "\n".join(parts)


def _budget(report: dict[str, Any]) -> float | None:
    """The epsilon that may be spent, where one was set."""
    return None if report["budget"] is None else float(report["budget"]["epsilon"])


def _whole_plan(report: dict[str, Any]) -> float | None:
    """The epsilon of the whole plan, where only a part of it ran."""
    return report["epsilon_any_stop"] if report["part_of_plan"] else None


def _title(report: dict[str, Any], last: dict[str, Any], whole: float | None) -> str:
    """What the picture says, the figure that holds in any case first."""
    budget = _budget(report)
    of = "" if budget is None else f" of {chosen(budget, least=True)}"
    rounds = f"after {last['round']} rounds"
    if report["epsilon"]["upper"] is None:
        return f"No bound any more; epsilon was {up(last['upper'], 4)}{of} {rounds}"
    if whole is None:
        return f"Epsilon {up(last['upper'], 4)}{of} {rounds}"
    return (
        f"Epsilon {up(whole, 4)}{of} for the whole plan; {up(last['upper'], 4)} {rounds} "
        f"if settled in advance"
    )


def _axes(scale: _Scale, delta: float, words: str) -> list[str]:
    found: list[str] = []
    for value in ticks(scale.epsilon):
        y = scale.y(value)
        found.append(_line(LEFT, y, WIDTH - RIGHT, y, 'class="rule"'))
        found.append(_text(LEFT - 8, y + 4, f"{value:.4g}", "end", FAINT))
    steps = [value for value in ticks(scale.rounds) if value == int(value)]
    for value in steps:
        x = scale.x(value)
        found.append(_text(x, HEIGHT - BOTTOM + 18, f"{value:.0f}", "middle", FAINT))
    middle = (LEFT + WIDTH - RIGHT) / 2
    found.append(_text(middle, HEIGHT - 12, words, "middle"))
    found.append(_text(LEFT - 46, 38, f"epsilon at delta {chosen(delta)}"))
    return found


def _marks(scale: _Scale, marks: list[dict[str, Any]]) -> list[str]:
    """Thin lines with words; what happened at one place shares them, and words never overlap."""
    places: dict[int, list[str]] = {}
    for mark in marks:
        places.setdefault(int(mark["round"]), []).append(str(mark["words"]))
    found: list[str] = []
    ends = [-math.inf] * 3
    for place, words in sorted(places.items()):
        x = scale.x(place)
        label = "; ".join(words)
        found.append(_line(x, TOP - 8, x, HEIGHT - BOTTOM, 'class="edge" stroke-dasharray="2 3"'))
        row = next((n for n, end in enumerate(ends) if x > end), None)
        if row is None or len(label) > 60:
            continue
        # About the width of the text at this size.
        width = 6.0 * len(label)
        left = min(x - 1, WIDTH - width - 4)
        ends[row] = left + width + 8
        y = TOP - 12 - 15 * row
        found.append(_text(left, y, label, extra='class="faint" font-size="11"'))
    return found


def _band(scale: _Scale, points: list[dict[str, Any]]) -> list[str]:
    known = [p for p in points if p["lower"] is not None]
    if len(known) < 2:
        return []
    there = [f"{scale.x(p['round']):.1f},{scale.y(p['upper']):.1f}" for p in known]
    back = [f"{scale.x(p['round']):.1f},{scale.y(p['lower']):.1f}" for p in reversed(known)]
    return [f'<polygon points="{" ".join(there + back)}" class="band"/>']


def _upper(scale: _Scale, points: list[dict[str, Any]]) -> list[str]:
    """The proven bound, in the color of its kind of claim."""
    found: list[str] = []
    start = 0
    for index in range(1, len(points) + 1):
        kind = points[start]["guarantee"]
        if index < len(points) and points[index]["guarantee"] == kind:
            continue
        piece = points[max(0, start - 1) : index]
        path = " ".join(f"{scale.x(p['round']):.1f},{scale.y(p['upper']):.1f}" for p in piece)
        color = PLANNED if kind == "planned" else ADAPTIVE
        if len(piece) == 1:
            x, y = scale.x(piece[0]["round"]), scale.y(piece[0]["upper"])
            found.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" {color}/>')
        found.append(
            f'<polyline points="{path}" {color} fill="none" stroke-width="2.5" '
            f'stroke-linejoin="round"/>'
        )
        start = index
    return found


def _level(scale: _Scale, level: float | None, style: str) -> list[str]:
    """An epsilon as a line: the budget, or the whole plan where only a part of it ran."""
    if level is None:
        return []
    y = scale.y(level)
    return [_line(LEFT, y, WIDTH - RIGHT, y, style)]


def _labels(
    scale: _Scale, points: list[dict[str, Any]], budget: float | None, whole: float | None
) -> list[str]:
    """Direct labels at the right end, pushed apart where they would touch."""
    last = points[-1]
    kind = last["guarantee"]
    color = PLANNED if kind == "planned" else ADAPTIVE
    wanted = [(scale.y(last["upper"]), f"proven, {kind}", color)]
    if budget is not None:
        wanted.append((scale.y(budget), f"budget {chosen(budget, least=True)}", ""))
    if whole is not None:
        wanted.append((scale.y(whole), "the whole plan", PLANNED))
    if last["lower"] is not None and scale.y(last["lower"]) - scale.y(last["upper"]) > 6:
        wanted.append((scale.y(last["lower"]), "achieved by the", FAINT))
        wanted.append((scale.y(last["lower"]) + 15, "rounds that ran", FAINT))
    found: list[str] = []
    floor = -math.inf
    for y, words, tone in sorted(wanted, key=lambda label: label[0]):
        floor = max(y, floor + 15)
        found.append(_text(WIDTH - RIGHT + 6, floor + 4, words, extra=tone))
    return found


def bars(report: dict[str, Any]) -> str:
    """The picture as lines of text; empty where there is nothing to show."""
    points = [p for p in report["points"] if p["upper"] is not None]
    if not points:
        return ""
    most = max(*(p["upper"] for p in points), _budget(report) or 0.0)
    step = max(1, len(points) // BARS)
    shown = points[len(points) - 1 :: -step][::-1]
    digits = len(str(shown[-1]["round"]))
    return "\n".join(
        f"round {p['round']:>{digits}}  "
        f"{'#' * max(1, round(BAR_WIDTH * p['upper'] / most)):<{BAR_WIDTH}}  "
        f"{up(p['upper'], 4)} {p['guarantee']}"
        for p in shown
    )
