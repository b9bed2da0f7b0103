"""mu of Gaussian differential privacy as a theorem: with a slack, and never alone.

A schedule is (epsilon, delta_mu(epsilon) + slack)-DP for every epsilon >= 0 at once, where
delta_mu belongs to one Gaussian release with noise 1 / mu. `gdp` finds the least such mu.

Rule 1: mu is nothing without its slack, so `GaussianDP` holds and prints both.
Rule 2: mu comes from all of the curve delta(epsilon) of a schedule. One epsilon, such as the
reading of a ledger, has none. Under composition mu^2 and the slacks add up.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from dpacct import validate
from dpacct.accountant import DEFAULT_ACCOUNTANT, find_accountant
from dpacct.budget import Interval
from dpacct.display import chosen
from dpacct.errors import NotConverged, Unsupported
from dpacct.numerics.rounding import UNIT
from dpacct.numerics.search import bisect
from dpacct.numerics.special import ndtri
from dpacct.pairs.one_round import gaussian_delta, mills_ratio
from dpacct.rounds import AccountantName, Release, Schedule, as_schedule
from dpacct.tight.accountant import total_mu

# The relative width at which the search ends, the most deltas that it asks for, and the mu and the
# epsilon from which on no privacy is left.
_TOLERANCE, _MOST_DELTAS, _LARGEST, _LONGEST = 1e-9, 200, 100.0, 600.0
# phi of it does not underflow.
_STEEP = 37.0


@dataclass(frozen=True, slots=True)
class GaussianDP(Interval):
    """Bounds of mu at a slack: ``upper`` is proven, and no mu below ``lower`` is enough."""

    slack: float

    def __str__(self) -> str:
        return f"mu {Interval.__str__(self)} with slack {chosen(self.slack, 3)}"


@dataclass(frozen=True, slots=True)
class _Knot:
    """delta of the schedule at an epsilon."""

    epsilon: float
    delta: Interval


def gdp(
    schedule: Schedule | Release, slack: float, *, accountant: AccountantName = DEFAULT_ACCOUNTANT
) -> GaussianDP:
    """Return the least mu such that delta(epsilon) <= delta_mu(epsilon) + slack for all epsilons.

    >>> from dpacct import Poisson, Round, gdp
    >>> print(gdp(300 * Round(1.28601, Poisson(0.1)), slack=1e-6))
    mu <= 1.6596 (lower bound 1.6595) with slack 1e-06

    Args:
        schedule: anything with a delta at each epsilon.
        slack: in (0, 1).
        accountant: bounds delta.
    Error:
        The upper end is proven, between the knots too, and the lower one is achieved. They are
        about 1e-9 apart where those of delta are closer.
    Raises:
        InvalidParameter: an argument out of range. Unsupported: the accountant knows no bound.
        NotConverged: no privacy is left, epsilon is above 600 where delta is the slack.
    Source: docs/derivations/gaussian.md.
    """
    plan, engine = as_schedule(schedule), find_accountant(accountant)
    room = validate.positive_probability("slack", slack, "the slack", below_one=True)

    def knot(epsilon: float) -> _Knot:
        return _Knot(epsilon, engine.delta(plan, epsilon))

    # From the last knot on the slack alone is enough.
    last = knot(min(engine.upper_epsilon(plan, room), _LONGEST))
    while last.delta.upper > room and last.epsilon < _LONGEST:
        last = knot(2 * last.epsilon + 1e-6)
    if last.delta.upper > room:
        raise NotConverged(f"epsilon is above {_LONGEST:g} at this slack: no privacy is left")
    knots = [*(knot(last.epsilon * j / 16) for j in range(16)), last]
    cells = [(-_of_cell(*ends, room), *ends) for ends in pairwise(knots)]
    # The cell that needs the largest mu is halved, until a knot needs as much.
    while len(knots) < _MOST_DELTAS:
        cells.sort(key=lambda cell: cell[0])
        most, left, right = cells[0]
        needed = max(_at_knot(k.epsilon, k.delta.upper - room) for k in knots)
        if -most <= (1 + _TOLERANCE) * needed:
            break
        middle = knot((left.epsilon + right.epsilon) / 2)
        knots.append(middle)
        cells[:1] = [(-_of_cell(*e, room), *e) for e in ((left, middle), (middle, right))]
    upper = -min(cell[0] for cell in cells)
    if upper >= _LARGEST:
        raise NotConverged(f"mu is above {_LARGEST:g}: no privacy is left")
    with suppress(Unsupported):
        # Rounds of full participation are one Gaussian, without slack.
        upper = min(upper, total_mu(plan).upper)
    lower = max(_at_knot(k.epsilon, k.delta.lower - room) for k in knots)
    return GaussianDP(min(lower, upper), upper, room)


@cache
def _at_knot(epsilon: float, delta: float) -> float:
    """Return a mu whose delta at a knot is surely too small, and nearly the least that is not."""
    if delta <= 0:
        return 0.0
    # delta_mu is computed upwards, and the difference above is off by an ulp.
    lacks = delta * (1 - 1e-15)
    return bisect(lambda mu: gaussian_delta(epsilon, mu).upper < lacks, 1.0, 1e-13)[0]


def _of_cell(left: _Knot, right: _Knot, slack: float) -> float:
    """Return a mu that is enough between two knots.

    delta and delta_mu are convex in k = e^epsilon. So delta is at most its chord, and delta_mu at
    least any of its tangents. A line that is not below another at both knots is nowhere below.
    """
    if left.delta.upper <= slack:
        return 0.0
    fall = (left.delta.upper - right.delta.upper) / math.expm1(right.epsilon - left.epsilon)
    # No chord of delta is as steep as 1, but one of its bounds may be.
    fall = min(fall * math.exp(-left.epsilon), 1 - UNIT)

    def covers(mu: float) -> bool:
        # The tangent that is as steep as the chord is the best one, if it touches in the cell.
        touch = -mu * (float(ndtri(fall)) + mu / 2) if fall > 0 else right.epsilon
        touch = min(max(touch, left.epsilon), right.epsilon)
        a, b = touch / mu - mu / 2, touch / mu + mu / 2
        if a > _STEEP:
            return False
        # e^epsilon Q(loss > epsilon) = phi(a) R(b), with the Mills ratio R.
        ratio = mills_ratio(b)
        slope = math.exp(-a * a / 2) / math.sqrt(2 * math.pi) * ratio.upper
        error = UNIT * (8 * abs(a) * b + 4 * a * a + 64) + ratio.width / ratio.lower
        for end in (left, right):
            rise = -slope * math.expm1(end.epsilon - touch)
            reached = gaussian_delta(touch, mu).lower + rise - error * abs(rise)
            if reached + slack < end.delta.upper * (1 + 4 * UNIT):
                return False
        return True

    return bisect(lambda mu: mu < _LARGEST and not covers(mu or 1e-9), 1.0, 1e-12)[1]
