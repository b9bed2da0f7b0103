"""Which tilt makes a contour cheap. A search; nothing here is proven."""

from __future__ import annotations

import math

from dpacct.tight.contour import CHERNOFF_TILTS, Composed, alias_distance
from dpacct.tight.saddle import log_chernoff_factor

# Shares of the saddle point's tilt that are tried for a blurred contour.
_SHARES = (1.0, 0.85, 0.7, 0.55, 0.4)


def cheapest_tilt(composition: Composed, tilt: float, epsilon: float, log_delta: float) -> float:
    """A tilt, at most the one given, at which a blurred contour has the fewest nodes.

    Next to a heavy tail the moments explode soon, and a smaller tilt has its aliases nearer.
    """

    def nodes(factor: float) -> float:
        c = factor * tilt
        tops = [
            (b, composition.cumulants(b).log_moment + log_chernoff_factor(b))
            for b in (c * CHERNOFF_TILTS).tolist()
        ]
        # The blur's variance is a width divided by 1 + c.
        return alias_distance(c, epsilon, log_delta, tops) * math.sqrt(1 + c)

    return tilt * min(_SHARES, key=nodes)
