"""Lines of several methods, distinct by color, and in grey by dashes and markers."""

from __future__ import annotations

from typing import Any

# Colors that the color-blind can tell apart (Okabe, Ito 2008), the darkest first.
_COLORS = ("#000000", "#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
_DASHES = ("-", "--", "-.", (0, (1, 1.2)), (0, (5, 1.5, 1, 1.5, 1, 1.5)))
_MARKERS = "osD^vPX<>*pdh"


def stroke(place: int) -> dict[str, Any]:
    """Return color, dashes and marker of the line at this place. The first 35 are distinct."""
    return {
        "color": _COLORS[place % len(_COLORS)],
        "linestyle": _DASHES[place % len(_DASHES)],
        "marker": _MARKERS[place % len(_MARKERS)],
    }
