"""Whether bounds hold the truth of an oracle, and how close together they are."""

from __future__ import annotations

import math
from typing import Any

from mpmath import mp, mpf


def check(
    found: Any,
    exact: mpf | float,
    width: float = math.inf,
    *,
    spare: float = 0.0,
    noise: float = 0.0,
) -> None:
    """Check that an interval holds the truth, and is no wider than this share of it.

    Args:
        found: anything with the numbers `lower` and `upper`.
        spare, noise: the relative and the absolute error of the oracle.
    """
    with mp.workdps(70):
        low, high, truth = (mpf(value) for value in (float(found.lower), float(found.upper), exact))
        off = spare * abs(truth) + mpf(noise)
        assert low - off <= truth <= high + off, f"{truth} is not in [{low}, {high}]"
        if width < math.inf:
            assert high - low <= width * abs(truth), f"[{low}, {high}] is wider than {width}"
