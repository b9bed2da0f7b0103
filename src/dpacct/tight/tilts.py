"""Which tilt makes a contour cheap. A search; nothing here is proven."""

from __future__ import annotations

import math

from dpacct.tight.contour import CHERNOFF_TILTS, Composed, alias_distance
from dpacct.tight.saddle import log_chernoff_factor

# Shares of the saddle point's tilt that are tried for a blurred contour.
_SHARES = (1.0, 0.85, 0.7, 0.55, 0.4)


def cheapest_tilt(
    composition: Composed,
    tilt: float,
    epsilon: float,
    log_delta: float,
    loosest: float = math.inf,
) -> float:
    """A tilt, at most the one given, at which a contour has the fewest nodes.

    Next to a heavy tail the moments explode soon, and a smaller tilt has its aliases nearer; but
    rounding counts relative to M(c) e^{-c eps}: smaller ones may have e^loosest times the least.
    """

    def loose(c: float) -> float:
        return composition.cumulants(c).log_moment - c * epsilon

    def nodes(factor: float) -> float:
        c = factor * tilt
        tops = [
            (b, composition.cumulants(b).log_moment + log_chernoff_factor(b))
            for b in (c * CHERNOFF_TILTS).tolist()
        ]
        # The blur's variance is a width divided by 1 + c.
        return alias_distance(c, epsilon, log_delta, tops) * math.sqrt(1 + c)

    shares: list[float] = list(_SHARES)
    if math.isfinite(loosest):
        most = loose(tilt) + loosest
        shares = [share for share in _SHARES if share == 1.0 or loose(share * tilt) <= most]
    return tilt * min(shares, key=nodes)
