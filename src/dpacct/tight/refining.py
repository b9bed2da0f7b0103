"""What epsilon and delta have in common where contours are refined: how far, and how.

A search; nothing here is proven.
"""

from __future__ import annotations

import math

from dpacct.budget import Interval
from dpacct.tight.composition import Composition
from dpacct.tight.contour import Composed

# What a blur may add to epsilon, and the width that sends for a finer one; both relative.
BLUR, WIDE = 4e-7, 1e-6
ATTEMPTS, FAILURES = 4, 8
# A contour that leaves more of the width than this was the last.
WORTH = 0.7
COARSE = 1e-3
# What a tilt or a width is multiplied by where it was too much or too little.
LESS, _MORE = 0.7, 2.5
# The share of delta that a truncation may lose: no more than is seen, and next to nothing.
LOST, FAR = 1e-8, 1e-26
# Nodes of a contour without a blur, where most of the tail is gone.
MANY = 8000
# With less noise than this the moments explode long before a probability of `FAR`.
_LOUD = 1.5


def few_kinds(composition: Composed) -> Composed:
    """What a search may take for the composition."""
    return composition.alike() if isinstance(composition, Composition) else composition


def is_loud(composition: Composition) -> bool:
    """Whether there is so much noise that moments explode far out only."""
    return bool(composition.noise.size) and float(composition.noise.min()) >= _LOUD


def intersection(first: Interval, second: Interval) -> Interval:
    """What both prove."""
    return Interval.bracket(max(first.lower, second.lower), min(first.upper, second.upper))


def easier(tilt: float, width: float, before: float) -> tuple[float, float]:
    """What to try where a contour failed: a smaller tilt, or a wider blur once one was found."""
    return (LESS * tilt, width) if math.isinf(before) else (tilt, _MORE * width)
