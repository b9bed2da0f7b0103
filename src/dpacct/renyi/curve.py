"""Renyi curves of whole schedules, their conversion to (epsilon, delta), and the accountant `rdp`.

For order alpha and b = alpha - 1, one sampled Gaussian round has

    remove:  R(alpha) = log I(alpha) / b,        add:  R(alpha) = log I(-b) / b.

The other pairs have their moments in `pairs.moments`, where rounds add up. Each direction is summed
separately, and the larger sum is the curve. For fixed-size sampling the bound of Wang et al. is
reported together with that of the pair of C_q.

The conversion holds for every order alpha > 1, every delta in (0, 1) and every mechanism:

    eps = R + log(b / alpha) - (log delta + log alpha) / b     (Balle et al. 2020, thm 21;
                                                       Canonne, Kamath, Steinke 2020, prop. 12)

It is never above R + log(1/delta) / b (Mironov 2017, prop. 3). A negative result proves
epsilon = 0. Since b R is convex in alpha, so is b eps. Hence eps is unimodal in alpha, and
log delta(eps) is convex. So a local minimum is the minimum, and any order gives a proven value.
docs/derivations/conversion.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpacct import validate
from dpacct.budget import Interval
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, Array, Numbers, above
from dpacct.numerics.search import minimize_unimodal
from dpacct.pairs.achieved import achieved_delta, achieved_epsilon
from dpacct.pairs.dominating import Direction, achieved_pairs, has_renyi, pairs_of, proven_pairs
from dpacct.pairs.moments import PairMoments, symmetrized_log_moment, wang_log_moment
from dpacct.rounds import (
    NOT_GIVEN,
    AccountantName,
    Adjacency,
    AdjacencyName,
    Round,
    Sampling,
    Schedule,
    build_schedule,
)


@dataclass(frozen=True, slots=True)
class RenyiValue:
    """The Renyi divergence of a schedule at one order.

    Attributes:
        order: alpha > 1.
        lower: reached by explicit neighboring data sets.
        upper: proven for all neighboring data sets.
        routes: each upper bound by its name, from which ``upper`` follows.
    """

    order: float
    lower: float
    upper: float
    routes: tuple[tuple[str, float], ...]


class RenyiCurve:
    """The Renyi curve of a schedule: `upper` proven, `lower` achieved.

    Args:
        schedule: any schedule. The cost grows with its number of distinct rounds.
    Raises:
        Unsupported: a loss may be infinite, and every divergence with it.
    """

    def __init__(self, schedule: Schedule) -> None:
        rounds = schedule.distinct()
        for kind in rounds:
            if not has_renyi(kind):
                raise Unsupported(
                    f"the loss of {kind!r} may be infinite, so its Renyi divergence is; the "
                    f"accountant tight covers it"
                )
        self._proven = [PairMoments(pairs_of(rounds, proven_pairs, d), d) for d in Direction]
        self._achieved = [PairMoments(pairs_of(rounds, achieved_pairs, d), d) for d in Direction]

    def upper(self, order: float) -> float:
        """Return the proven upper bound at one order."""
        return max(value for _, value in self.directions(order))

    def lower(self, order: float) -> float:
        """Return the achieved lower bound at one order."""
        moments = [float(part.log_moment(order).lower) for part in self._achieved]
        return max(0.0, max(moments) / (order - 1) * (1 - 2 * UNIT))

    def directions(self, order: float) -> list[tuple[Direction, float]]:
        """Return the proven upper bound of each direction."""
        return [
            (part.direction, float(part.log_moment(order).upper) / (order - 1) * (1 + 2 * UNIT))
            for part in self._proven
        ]

    def search(self, order: float) -> float:
        """Return the remove direction alone, half the work of `upper`, to find an order only.

        It is the larger one of rounds: Mironov, Talwar, Zhang 2019, theorem 5.
        """
        return float(self._proven[0].log_moment(order).upper) / (order - 1)

    def routes(self, order: float) -> tuple[tuple[str, float], ...]:
        """Return upper bounds by name: the two directions, or both bounds of C_q's pairs."""
        part = self._proven[0]
        if not part.pairs or len(part.symmetrized) < len(part.pairs):
            return tuple((str(direction), value) for direction, value in self.directions(order))
        factor = (1 + 8 * UNIT * len(part.symmetrized)) / (order - 1)
        settings = [(p.sampling_rate, p.noise_std, count) for p, count in part.symmetrized]
        direct = [n * float(symmetrized_log_moment(order, q, s).upper) for q, s, n in settings]
        wang = [n * wang_log_moment(order, q, s) for q, s, n in settings]
        return ("C_q pair", factor * sum(direct)), ("Wang et al. 2019", factor * sum(wang))


def rdp(
    schedule: Schedule | Round | None = None,
    *,
    orders: Numbers,
    noise_multiplier: float | None = None,
    rounds: int | None = None,
    sampling_rate: float = NOT_GIVEN,
    sampling: Sampling | None = None,
    adjacency: Adjacency | AdjacencyName | None = None,
) -> tuple[RenyiValue, ...]:
    """Return the Renyi divergence of a schedule at each of the given orders.

    Args:
        schedule: any schedule, or its parts as in `build_schedule`. Default: one round.
        orders: orders above 1 (up to 1e7).
    Raises:
        InvalidParameter: an order, or a part of the schedule, out of range.
    Source: Mironov 2017 (arXiv:1702.07476), proposition 1 for composition. Module docstring.
    """
    checked = [validate.order(o) for o in validate.several("orders", orders, "Renyi orders")]
    if not checked:
        raise InvalidParameter("orders", orders, "at least one Renyi order is needed")
    if schedule is None and rounds is None:
        rounds = 1
    plan = build_schedule(schedule, noise_multiplier, rounds, sampling_rate, sampling, adjacency)
    curve = RenyiCurve(plan)
    return tuple(
        RenyiValue(order, curve.lower(order), curve.upper(order), curve.routes(order))
        for order in checked
    )


# b in [e^-34, e^16] = [2e-15, 9e6]: below, 1 + b loses its digits. Above, epsilon is next to 0.
_LOG_RANGE, _LOG_TOLERANCE = (-34.0, 16.0), 2e-6


@dataclass(frozen=True, slots=True)
class AtOrder:
    """A value (epsilon or delta) and the Renyi order at which it was found."""

    value: float
    order: float


def improved_epsilon(order: float, renyi: float, delta: float) -> float:
    """Return the improved epsilon of the module's head, rounded up, at least 0.

    Source: Balle et al. 2020 (arXiv:1905.09982), theorem 21, and Canonne, Kamath, Steinke 2020
        (arXiv:2004.00010), proposition 12.
    """
    b = order - 1
    log_b, log_order, log_delta = math.log(b), math.log(order), math.log(delta)
    value = renyi + (log_b - log_order) - (log_delta + log_order) / b
    # NaN bounds nothing.
    if math.isnan(value):
        return math.inf
    return max(0.0, above(value, renyi, log_b, log_order, log_delta / b, log_order / b))


def improved_delta(order: float, renyi: float, epsilon: float) -> float:
    """Return delta = e^{(alpha-1)(R - eps)} / (alpha-1) (1 - 1/alpha)^alpha, rounded up, at most 1.

    Source: Canonne, Kamath, Steinke 2020 (arXiv:2004.00010), proposition 12.
    """
    return float(improved_deltas(order, renyi, np.array([epsilon]))[0])


def improved_deltas(order: float, renyi: float, epsilons: Array) -> Array:
    """Return `improved_delta` at several epsilons."""
    # NaN bounds nothing.
    log_delta = np.clip(np.nan_to_num(_log_deltas(order, renyi, epsilons), nan=0.0), -690.0, 0.0)
    return np.minimum(np.exp(log_delta) * (1 + 2 * FUNCTION_ERROR), 1.0)


def _log_deltas(order: float, renyi: float, epsilons: Array) -> Array:
    b = order - 1
    fixed, falling = (b * renyi, b * math.log(b), -order * math.log(order)), b * epsilons
    # Rounded up as by `above`.
    slack = 8 * FUNCTION_ERROR * (sum(map(abs, fixed)) + falling)
    return np.asarray(sum(fixed) - falling + slack)


def best_epsilon(
    renyi: Callable[[float], float], delta: float, start: float, tolerance: float = _LOG_TOLERANCE
) -> AtOrder:
    """Return the smallest epsilon over all orders, by the improved conversion.

    Args:
        renyi: upper bound of the Renyi divergence as a function of the order.
        delta: in (0, 1).
        start: an order near the best one, on which only the time depends.
        tolerance: of the search, in log(alpha - 1).
    Error:
        Proven from above for any result of the search. It ends within the tolerance. Where epsilon
        is flat, the default leaves it about 1e-9 above the minimum over orders.
    """
    order = best_order(
        lambda order: improved_epsilon(order, renyi(order), delta), start, tolerance=tolerance
    )
    return AtOrder(improved_epsilon(order, renyi(order), delta), order)


def best_delta(
    renyi: Callable[[float], float], epsilon: float, start: float, tolerance: float = _LOG_TOLERANCE
) -> AtOrder:
    """Return the smallest delta over all orders, by the improved conversion, as `best_epsilon`."""
    at = np.array([epsilon])
    order = best_order(
        lambda order: float(_log_deltas(order, renyi(order), at)[0]), start, tolerance=tolerance
    )
    return AtOrder(improved_delta(order, renyi(order), epsilon), order)


def best_order(
    function: Callable[[float], float],
    start: float,
    log_range: tuple[float, float] = _LOG_RANGE,
    tolerance: float = _LOG_TOLERANCE,
) -> float:
    """Return the order at which a unimodal function is least, searched in log(alpha - 1)."""
    # A start may round to 1.
    log_start = math.log(max(start - 1, 1e-12))
    log_best = minimize_unimodal(
        lambda t: function(1 + math.exp(t)), log_start, log_range, tolerance
    )
    return 1 + math.exp(log_best)


class ByOrder:
    """An accountant whose upper bounds come from Renyi orders. `achieved` has the lower ones."""

    __slots__ = ()

    def upper_epsilon(self, schedule: Schedule, delta: float) -> float:
        """Return the proven epsilon. See `Accountant`."""
        raise NotImplementedError

    def upper_delta(self, schedule: Schedule, epsilon: float) -> float:
        """Return the proven delta at a valid epsilon."""
        raise NotImplementedError

    def epsilon(self, schedule: Schedule, delta: float) -> Interval:
        """Return the achieved and proven epsilon. See `Accountant`."""
        upper = self.upper_epsilon(schedule, delta)
        return Interval.bracket(achieved_epsilon(schedule, delta), upper)

    def delta(self, schedule: Schedule, epsilon: float) -> Interval:
        """Return the achieved and proven delta. See `Accountant`."""
        upper = self.upper_delta(schedule, epsilon)
        return Interval.bracket(achieved_delta(schedule, epsilon), upper)


@dataclass(frozen=True, slots=True)
class RenyiAccountant(ByOrder):
    """Numeric Renyi moments at continuous orders, improved conversion."""

    name: AccountantName = "rdp"

    def best_order(self, schedule: Schedule, delta: float) -> float:
        """Return the Renyi order that gives the smallest epsilon."""
        return _best_order(RenyiCurve(schedule), delta)

    def upper_epsilon(self, schedule: Schedule, delta: float) -> float:
        """See `ByOrder`."""
        if not schedule.rounds:
            return 0.0
        curve = RenyiCurve(schedule)
        order = _best_order(curve, delta)
        return improved_epsilon(order, curve.upper(order), delta)

    def upper_delta(self, schedule: Schedule, epsilon: float) -> float:
        """See `ByOrder`."""
        if not schedule.rounds:
            return 0.0
        curve = RenyiCurve(schedule)
        order = best_delta(curve.search, epsilon, _gaussian_order(curve, 1 + epsilon)).order
        return improved_delta(order, curve.upper(order), epsilon)


def _best_order(curve: RenyiCurve, delta: float) -> float:
    return best_epsilon(curve.search, delta, _gaussian_order(curve, -math.log(delta))).order


def _gaussian_order(curve: RenyiCurve, cost: float) -> float:
    """Return the order at which rho-zCDP trades best against ``cost``, where a search begins."""
    return 1 + math.sqrt(cost / max(curve.search(2.0) / 2, 1e-12))
