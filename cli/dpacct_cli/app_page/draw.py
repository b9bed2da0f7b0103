"""Charts as inline SVG, and tables as HTML. Every text is escaped here.

Colors are those of `dpacct.pictures`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from html import escape

from dpacct.display import down, escaped, up
from dpacct.pictures import Panel
from dpacct.pictures.picture import day_ticks

INK, FAINT, GRAY = "#1c1c1c", "#5e5e5e", "#b9b9b9"
COLORS = ("#0072B2", "#C44E00", "#007A5A", "#A5457A", "#7A5A00", "#3B3B3B")
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 440, 240, 44, 92, 12, 30
# A bar: its name, its ends, and what is shown without an upper end.
Bar = tuple[str, float | None, float | None, str]
# A cell of a map: an epsilon or the reason for none. None: not computed yet.
Cell = tuple[float | None, str] | None


def safe(words: object) -> str:
    """Return words for HTML: printable, without markup."""
    return escape(escaped(str(words)))


def svg(width: float, height: float, body: str, finding: str, kind: str = "") -> str:
    """Return a chart that scales to its place, with its finding for screen readers."""
    box = f'viewBox="0 0 {width:g} {height:g}" class="chart {kind}"'
    return f'<svg {box} role="img" aria-label="{safe(finding)}">{body}</svg>'


def words(x: float, y: float, said: object, anchor: str = "start", color: str = FAINT) -> str:
    """Return a text. It is faint, or bold in another color."""
    at = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" fill="{color}"'
    weight = "" if color == FAINT else ' font-weight="600"'
    return f"<text {at}{weight}>{safe(said)}</text>"


def rule(y: float, end: float, style: str = 'stroke="#e4e4e4"') -> str:
    """Return a horizontal line of the grid."""
    return f'<line x1="{LEFT}" y1="{y:.1f}" x2="{end:.1f}" y2="{y:.1f}" {style}/>'


def budget_line(y: float, end: float) -> str:
    """Return the line of a budget."""
    return rule(y, end, f'stroke="{INK}" stroke-dasharray="6 3"')


def box(x: float, y: float, width: float, height: float, color: str, title: str) -> str:
    """Return a rectangle, with a title for the pointer."""
    at = f'x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}"'
    return f'<rect {at} fill="{color}"><title>{safe(title)}</title></rect>'


def axis(top: float, end: float, height: float) -> tuple[Callable[[float], float], str]:
    """Return the scale of the vertical axis from 0 to ``top``, and its grid."""
    power = 10.0 ** math.floor(math.log10(top))
    step = next(power * s for s in (0.2, 0.5, 1, 2) if top / (power * s) <= 5)

    def scale(value: float) -> float:
        return height - BOTTOM - (height - BOTTOM - TOP) * value / top

    ticks = [step * k for k in range(int(top / step) + 1)]
    lines = (rule(scale(v), end) + words(LEFT - 8, scale(v) + 4, f"{v:g}", "end") for v in ticks)
    return scale, "".join(lines)


def curve(panel: Panel, finding: str) -> str:
    """Draw the first curve of a panel with its band, and its levels."""
    line, end = panel.curves[0], WIDTH - RIGHT
    last, high = line.x[-1], line.y[-1]
    y, body = axis(1.1 * max(high, *(level.y for level in panel.levels)), end, HEIGHT)

    def path(values: Sequence[float]) -> list[str]:
        xs = (LEFT + (end - LEFT) * x / last for x in line.x)
        return [f"{x:.1f},{y(v):.1f}" for x, v in zip(xs, values, strict=True)]

    proven, band = path(line.y), [*path(line.y), *path(line.lower or line.y)[::-1]]
    body += f'<polygon points="{" ".join(band)}" fill="{COLORS[0]}" opacity=".25"/>'
    style = f'fill="none" stroke="{COLORS[0]}" stroke-width="2.5"'
    body += f'<polyline points="{" ".join(proven)}" {style}/>'
    # The figure stands below a level that is a little above it.
    near = any(0 <= y(high) - y(level.y) < 16 for level in panel.levels)
    body += words(end + 6, y(high) + (18 if near else 4), up(high, 4), color=COLORS[0])
    for level in panel.levels:
        body += budget_line(y(level.y), end) + words(
            end + 6, y(level.y) + 4, level.words, color=INK
        )
    for x, said in ((LEFT, "0"), ((LEFT + end) / 2, panel.x), (end, f"{last:,.0f}")):
        body += words(x, HEIGHT - BOTTOM + 18, said, "middle")
    return svg(WIDTH, HEIGHT, body, finding)


def bars(rows: Sequence[Bar], marked: str) -> str:
    """Draw bars, dark up to the lower end. The one called ``marked`` is blue."""
    top, start, body = max((row[2] or 0.0 for row in rows), default=0.0) or 1.0, 78.0, ""
    for k, (name, lower, upper, note) in enumerate(rows):
        y, color, ink = 6 + 38.0 * k, "#767676", FAINT
        if name == marked:
            color, ink = COLORS[0], INK
        body += words(start - 8, y + 18, name, "end", ink)
        if upper is None:
            body += words(start, y + 18, note)
            continue
        wide, dark = ((WIDTH - start - 62) * value / top for value in (upper, lower or 0.0))
        body += box(start, y, wide, 26, f"{color}66", f"proven {up(upper)}")
        body += box(start, y, dark, 26, color, f"achieved {down(lower or 0.0)}")
        body += words(start + wide + 6, y + 18, up(upper, 4), color=INK)
    values = ", ".join(f"{row[0]} {up(row[2], 4)}" for row in rows if row[2] is not None)
    return svg(WIDTH, 6 + 38 * len(rows), body, f"epsilon: {values}")


def dots(right: int) -> str:
    """Draw 100 guesses: 50 right by chance, those right by the release, and the others."""
    body = ""
    for k in range(100):
        fill = GRAY if k < 50 else COLORS[1] if k < right else "white"
        at = f'cx="{9 + 17.5 * (k % 25):.1f}" cy="{10 + 18 * (k // 25)}" r="6.5"'
        body += f'<circle {at} fill="{fill}" stroke="{COLORS[1] if 50 <= k < right else GRAY}"/>'
    return svg(WIDTH, 76, body, f"{right} of 100 guesses are right at most, 50 by chance")


def stack(panel: Panel, finding: str, width: int, kind: str) -> str:
    """Draw the curves of a panel upon each other, in steps over days or straight over rounds."""
    end, height = width - 12, 300
    first, last = panel.curves[0].x[0], panel.curves[0].x[-1]
    y, body = axis(1.12 * max(panel.curves[-1].y[-1], *(v.y for v in panel.levels)), end, height)

    def x(place: float) -> float:
        return LEFT + (end - LEFT) * (place - first) / (last - first)

    for number, one in enumerate(panel.curves):
        until = [*one.x[1:], last] if one.steps else one.x

        def edge(values: Sequence[float], starts: Sequence[float] = one.x) -> list[str]:
            found = zip(starts, until, values, strict=True)  # noqa: B023 - used at once
            return [f"{x(at):.1f},{y(v):.1f}" for a, b, v in found for at in (a, b)]

        points = " ".join([*edge(one.y), *edge(one.lower or [])[::-1]])
        fill = f'fill="{COLORS[number % len(COLORS)]}"'
        body += f'<polygon points="{points}" {fill}><title>{safe(one.name)}</title></polygon>'
    total = panel.curves[-1].y[-1]
    body += words(end, y(total) - 6, up(total, 4), "end", INK)
    for level in panel.levels:
        body += budget_line(y(level.y), end)
        body += words(LEFT + 4, y(level.y) - 6, level.words, color=INK)
    places, labels = [first, last], ["0", f"{last:,.0f} rounds"]
    if panel.dates:
        places, labels = day_ticks(first, last)
    step = math.ceil(len(places) * 54 / (end - LEFT))
    for place, said in zip(places[::step], labels[::step], strict=True):
        anchor = "end" if place == last else "middle"
        body += words(x(place), height - BOTTOM + 18, said, anchor)
    return svg(width, height, body, finding, kind)


def legend(names: Iterable[str]) -> str:
    """Return the names with their colors."""
    keys = (
        f'<span><i style="background:{COLORS[k % len(COLORS)]}"></i>{safe(name)}</span>'
        for k, name in enumerate(names)
    )
    return f'<p class="keys">{"".join(keys)}</p>'


def _table(rows: Iterable[str], kind: str) -> str:
    return f'<div class="scroll" tabindex="0"><table class="{kind}">{"".join(rows)}</table></div>'


def table(header: Sequence[str], rows: Iterable[Sequence[object]], summary: str = "") -> str:
    """Return a table, closed below a ``summary`` if there is one."""
    head = "".join(f'<th scope="col">{safe(name)}</th>' for name in header)
    cells = ("".join(f"<td>{safe(cell)}</td>" for cell in row) for row in rows)
    whole = _table([f"<tr>{row}</tr>" for row in (head, *cells)], "")
    return f"<details><summary>{safe(summary)}</summary>{whole}</details>" if summary else whole


def heat(
    corner: str,
    xs: Sequence[str],
    ys: Sequence[str],
    cells: Sequence[Sequence[Cell]],
    budget: float,
) -> str:
    """Return a table of epsilons in colors. A thick line parts those within the budget."""

    def fits(i: int, j: int) -> bool | None:
        cell = cells[i][j] if 0 <= i < len(ys) and 0 <= j < len(xs) else None
        return None if cell is None else cell[0] is not None and cell[0] <= budget

    def shown(i: int, j: int) -> str:
        cell, here = cells[i][j], fits(i, j)
        if cell is None:
            return "<td>...</td>"
        value, reason = cell
        far = 1.0 if not value else min(1.0, abs(math.log(value / budget)) / 2.5)
        color = f"color-mix(in srgb, {COLORS[not here]} {12 + 38 * far:.0f}%, white)"
        sides = {"left": (i, j - 1), "right": (i, j + 1), "top": (i - 1, j), "bottom": (i + 1, j)}
        edges = " ".join(side for side, place in sides.items() if fits(*place) is (not here))
        said, title = "-" if value is None else up(value, 4), "within" if here else "above"
        title = reason or f"{title} the budget"
        return f'<td class="{edges}" style="background:{color}" title="{safe(title)}">{said}</td>'

    head = "".join(f'<th scope="col">{safe(x)}</th>' for x in xs)
    rows = [f"<tr><th>{safe(corner)}</th>{head}</tr>"]
    for i, y in enumerate(ys):
        cells_of = "".join(shown(i, j) for j in range(len(xs)))
        rows.append(f'<tr><th scope="row">{safe(y)}</th>{cells_of}</tr>')
    return _table(rows, "heat")


def code(said: str) -> str:
    """Return lines to copy, which break between words alone."""
    kept = (
        " ".join(f"<span>{safe(word)}</span>" for word in each.split(" "))
        for each in said.split("\n")
    )
    lines = "\n".join(kept)
    copy = '<button type="button" data-copy>Copy</button>'
    return f'<div class="code">{copy}<pre tabindex="0">{lines}</pre></div>'
