"""How many people the best attack finds, as bars: SVG drawn here, and lines of text.

The bars grow with the page and the words do not shrink with it, so that a phone shows them as well.
"""

from __future__ import annotations

from html import escape

from dpacct.display import escaped
from dpacct.report.document import Picture
from dpacct.report.people import Risks, chosen_of_thousand, of_thousand
from dpacct.report.words import Question

ROW, BAR, WIDE = 46, 20, 88
TEXT_WIDTH = 50
_NAMESPACE = 'xmlns="http://www.w3.org/2000/svg"'


def picture(risks: Risks, asked: Question) -> Picture:
    """The bars: each is as long as a thousand people, and filled by those who are found out."""
    middle = risks.rates[len(risks.rates) // 2]
    title = (
        f"Where {chosen_of_thousand(middle.fpr)} of 1,000 are wrongly accused, at most "
        f"{of_thousand(middle.tpr)} of 1,000 who {asked.there} are found out. The left end of a "
        f"bar is what chance alone would find."
    )
    return Picture(draw(risks, title), bars(risks, asked), title)


def _label(fpr: float) -> str:
    return f"{chosen_of_thousand(fpr)} wrongly accused, of 1,000"


def draw(risks: Risks, title: str) -> str:
    """The bars as an SVG element."""
    height = ROW * len(risks.rates)
    parts = [
        f'<svg class="bars" width="100%" height="{height}" role="img" {_NAMESPACE}>',
        f"<title>{escape(escaped(title))}</title>",
    ]
    for number, row in enumerate(risks.rates):
        y = ROW * number
        found, chance = WIDE * row.tpr, WIDE * min(row.fpr, row.tpr)
        parts.append(f'<text x="0" y="{y + 14}" font-size="13">{_label(row.fpr)}</text>')
        parts += [
            f'<rect class="{kind}" x="0" y="{y + 20}" width="{width:.2f}%" height="{BAR}"/>'
            for kind, width in (("empty", WIDE), ("found", found), ("chance", chance))
        ]
        place = f'x="100%" y="{y + 35}" text-anchor="end"'
        parts.append(f'<text class="strong" {place} font-size="15">{of_thousand(row.tpr)}</text>')
    return "\n".join([*parts, "</svg>"])


def bars(risks: Risks, asked: Question) -> str:
    """The same as lines of text."""
    lines = [f"found out at most, of 1,000 who {asked.there}:"]
    for row in risks.rates:
        filled = "#" * max(1, round(TEXT_WIDTH * row.tpr))
        people = of_thousand(row.tpr)
        lines.append(f"{filled:<{TEXT_WIDTH}}  {people:>5}  ({_label(row.fpr)})")
    return "\n".join(map(escaped, lines))
