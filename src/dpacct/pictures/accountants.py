"""One setting by several accountants, side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence

from dpacct.display import chosen, up
from dpacct.pictures.picture import Bar, Panel, Picture
from dpacct.pictures.words import in_words
from dpacct.rounds import Schedule


def compare_picture(
    schedule: Schedule,
    delta: float,
    answers: Sequence[tuple[str, float | None, float | None, str]],
) -> Picture:
    """Bars of epsilon, one for each accountant.

    Args:
        schedule, delta: what was asked.
        answers: name, achieved and proven epsilon (None where there is none), and why.
    """
    bars = [
        Bar(name, math.inf if upper is None else upper, lower, why if upper is None else "")
        for name, lower, upper, why in answers
    ]
    known = [bar for bar in bars if math.isfinite(bar.upper)]
    title = f"Epsilon at delta {chosen(delta, 3)} by {len(known)} accountants"
    if known:
        best = min(known, key=lambda bar: bar.upper)
        title = f"The smallest epsilon is {up(best.upper)}, by {best.name}"
    panel = Panel(f"epsilon at delta {chosen(delta, 3)}; dark: achieved", "", bars=tuple(bars))
    return Picture(title, (panel,), in_words(schedule))
