"""Renyi curves of whole schedules, their conversion to (epsilon, delta), and the accountant `rdp`.

For order alpha and b = alpha - 1, one sampled Gaussian round has
    remove:  R(alpha) = log I(alpha) / b,        add:  R(alpha) = log I(-b) / b;
the other pairs have their moments in `pairs.moments`. Rounds add up, here and nowhere else; each
direction is summed for itself and the larger sum is the curve. For fixed-size sampling the bound of
Wang et al. is reported beside that of the pair of C_q.

Both conversions hold for every order alpha > 1, every delta in (0, 1) and every mechanism:

    classic   eps = R + log(1/delta) / b                                 (Mironov 2017, prop. 3)
    improved  eps = R + log(b / alpha) - (log delta + log alpha) / b     (Balle et al. 2020, thm 21;
                                                       Canonne, Kamath, Steinke 2020, prop. 12)

The improved one is never larger. A negative result proves epsilon = 0. Since b R is convex in
alpha, so is b eps, hence eps is unimodal in alpha and log delta(eps) is convex: a local minimum is
the minimum, and any order gives a proven value. docs/derivations/conversion.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from dpacct import validate
from dpacct.budget import Interval
from dpacct.errors import InvalidParameter
from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, Array, Bounds, above, weighted_sum
from dpacct.numerics.search import minimize_unimodal
from dpacct.pairs.achieved import achieved_delta, achieved_epsilon
from dpacct.pairs.dominating import (
    Direction,
    DominatingPair,
    ReplacementPair,
    SampledGaussianPair,
    SymmetrizedPair,
    achieved_pair,
    pairs_of,
    proven_pair,
)
from dpacct.pairs.moments import log_moment, replacement_log_moment, symmetrized_log_moment
from dpacct.rounds import (
    NOT_GIVEN,
    Adjacency,
    AdjacencyName,
    Round,
    Sampling,
    Schedule,
    build_schedule,
)

MAX_WANG_ORDER = 1024


def wang_log_moment(order: float, sampling_rate: float, noise_std: float) -> float:
    """Upper bound of log E_Q[(P/Q)^a] by Wang et al., at any real order a > 1.

    At integers a <= 1024: 1 + q^2 C(a,2) min(4 (e^{e2} - 1), 2 e^{e2})
    + sum_{j>=3} 2 q^j C(a,j) e^{(j-1) e_j} with e_j = j / (2 sigma^2), the Gaussian's own order-j
    divergence. Between integers log E is convex in a, so it is interpolated linearly; it is 0 at 1.

    Returns:
        The bound, rounded up; infinity for a > 1024.
    Source: Wang, Balle, Kasiviswanathan 2019 (arXiv:1808.00087), theorem 9 and corollary 10.
    """
    below = math.floor(order)
    if below + 1 > MAX_WANG_ORDER:
        return math.inf
    at_below = _wang_integer(below, sampling_rate, noise_std) if below >= 2 else 0.0
    if order == below:
        return at_below
    above = _wang_integer(below + 1, sampling_rate, noise_std)
    share = order - below
    return ((1 - share) * at_below + share * above) * (1 + 8 * UNIT)


def _wang_integer(a: int, q: float, sigma: float) -> float:
    j = np.arange(2.0, a + 1)
    growth = j * (j - 1) / (2 * sigma**2)
    log_factor = np.full_like(j, math.log(2.0)) + growth
    second = 1 / sigma**2
    log_factor[0] = min(math.log(4.0) + second + math.log(-math.expm1(-second)), log_factor[0])
    log_choose = _log_binomials(a)[2:]
    exponent = j * math.log(q) + log_choose + log_factor
    error = 2 * FUNCTION_ERROR * (-j * math.log(q) + log_choose + growth + 4)
    top = float(np.max(exponent + error))
    total = float(np.sum(np.exp(exponent + error - top))) * (1 + 2 * UNIT * (a + 16))
    value = float(np.logaddexp(0.0, top + math.log(total) + 4 * UNIT * abs(top)))
    return value * (1 + 2 * FUNCTION_ERROR)


def _log_binomials(order: int) -> np.ndarray:
    """log C(a, k) for k = 0..a, each within 4 ulp: the integers are exact before the logarithm."""
    values = np.empty(order + 1)
    coefficient = 1
    for k in range(order + 1):
        values[k] = math.log(coefficient)
        coefficient = coefficient * (order - k) // (k + 1)
    return values


@dataclass(frozen=True, slots=True)
class RenyiValue:
    """The Renyi divergence of a schedule at one order.

    Attributes:
        order: alpha > 1.
        lower: reached by explicit neighboring data sets.
        upper: proven for all.
        routes: each upper bound by its name; ``upper`` follows from them.
    """

    order: float
    lower: float
    upper: float
    routes: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True, eq=False)
class _Composition:
    """Pairs with their multiplicities, ready for evaluation at any order."""

    rates: Array
    noise: Array
    counts: Array
    direction: Direction
    symmetrized: tuple[tuple[SymmetrizedPair, int], ...]
    replaced: tuple[tuple[ReplacementPair, int], ...]

    def log_moment(self, order: float) -> Bounds:
        """Sum of log E_Q[(P/Q)^order], 0-dimensional."""
        a = order if self.direction is Direction.REMOVE else 1 - order
        parts = weighted_sum(log_moment(a, self.rates, self.noise), self.counts)
        if not self.symmetrized and not self.replaced:
            return parts
        moments = [symmetrized_bounds(pair, order) for pair, _ in self.symmetrized]
        counts = np.array([1.0] + [count for _, count in self.symmetrized])
        if self.replaced:
            moments.append(self._replaced(order))
            counts = np.append(counts, 1.0)
        stacked = Bounds(
            np.array([parts.lower] + [m.lower for m in moments]),
            np.array([parts.upper] + [m.upper for m in moments]),
        )
        return weighted_sum(stacked, counts)

    def _replaced(self, order: float) -> Bounds:
        rates = np.array([pair.sampling_rate for pair, _ in self.replaced])
        noise = np.array([pair.noise_std for pair, _ in self.replaced])
        counts = np.array([float(count) for _, count in self.replaced])
        return weighted_sum(replacement_log_moment(order, rates, noise), counts)


def _compose(pairs: dict[DominatingPair, int], direction: Direction) -> _Composition:
    plain = [(p, n) for p, n in pairs.items() if isinstance(p, SampledGaussianPair)]
    return _Composition(
        np.array([p.sampling_rate for p, _ in plain]),
        np.array([p.noise_std for p, _ in plain]),
        np.array([float(n) for _, n in plain]),
        direction,
        tuple((p, n) for p, n in pairs.items() if isinstance(p, SymmetrizedPair)),
        tuple((p, n) for p, n in pairs.items() if isinstance(p, ReplacementPair)),
    )


class RenyiCurve:
    """The Renyi curve of a schedule: `upper` proven, `lower` achieved.

    Args:
        schedule: any schedule; cost grows with its number of distinct rounds.
    """

    def __init__(self, schedule: Schedule) -> None:
        rounds = schedule.distinct()
        self._proven = [_compose(pairs_of(rounds, proven_pair, d), d) for d in Direction]
        self._achieved = [_compose({**pairs_of(rounds, achieved_pair, d)}, d) for d in Direction]

    def upper(self, order: float) -> float:
        """Proven upper bound at one order."""
        return max(value for _, value in self.directions(order))

    def lower(self, order: float) -> float:
        """Achieved lower bound at one order."""
        moments = [float(part.log_moment(order).lower) for part in self._achieved]
        return max(0.0, max(moments) / (order - 1) * (1 - 2 * UNIT))

    def directions(self, order: float) -> list[tuple[Direction, float]]:
        """Proven upper bound of each direction."""
        return [
            (part.direction, float(part.log_moment(order).upper) / (order - 1) * (1 + 2 * UNIT))
            for part in self._proven
        ]

    def search(self, order: float) -> float:
        """The remove direction alone: the larger one (Mironov, Talwar, Zhang 2019, theorem 5).

        Half the work of `upper`; for finding an order, never for a returned bound.
        """
        remove = self._proven[0]
        return float(remove.log_moment(order).upper) / (order - 1)

    def routes(self, order: float) -> tuple[tuple[str, float], ...]:
        """Upper bounds by name: the two directions, or both routes of fixed-size sampling."""
        part = self._proven[0]
        if part.rates.size or part.replaced or not part.symmetrized:
            return tuple((str(direction), value) for direction, value in self.directions(order))
        factor = (1 + 8 * UNIT * len(part.symmetrized)) / (order - 1)
        both = [(count, symmetrized_routes(pair, order)) for pair, count in part.symmetrized]
        return tuple(
            (name, factor * sum(count * routes[name] for count, routes in both))
            for name in both[0][1]
        )


def symmetrized_bounds(pair: SymmetrizedPair, order: float) -> Bounds:
    """Log moment of a `SymmetrizedPair`, the smaller of both routes above."""
    direct = symmetrized_log_moment(order, pair.sampling_rate, pair.noise_std)
    wang = wang_log_moment(order, pair.sampling_rate, pair.noise_std)
    return Bounds(direct.lower, np.minimum(direct.upper, wang))


def symmetrized_routes(pair: SymmetrizedPair, order: float) -> dict[str, float]:
    """Upper bounds of the log moment of a `SymmetrizedPair`, by name."""
    q, sigma = pair.sampling_rate, pair.noise_std
    return {
        "C_q pair": float(symmetrized_log_moment(order, q, sigma).upper),
        "Wang et al. 2019": wang_log_moment(order, q, sigma),
    }


def rdp(
    schedule: Schedule | Round | None = None,
    *,
    orders: Sequence[float],
    noise_multiplier: float | None = None,
    rounds: int | None = None,
    sampling_rate: float = NOT_GIVEN,
    sampling: Sampling | None = None,
    adjacency: Adjacency | AdjacencyName | str | None = None,
) -> tuple[RenyiValue, ...]:
    """The Renyi divergence of a schedule at each of the given orders.

    Args:
        schedule: any schedule, or its parts as in `build_schedule`; one round by default.
        orders: orders above 1 (up to 1e7).
    Returns:
        One `RenyiValue` per order.
    Raises:
        InvalidParameter: an order, or a part of the schedule, out of range.
    Source: Mironov 2017 (arXiv:1702.07476), proposition 1 for composition; module docstring.
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


Conversion = Callable[[float, float, float], float]

# b in [e^-34, e^16] = [2e-15, 9e6]: below, 1 + b loses its digits; above, only where epsilon is
# next to nothing.
_LOG_RANGE = (-34.0, 16.0)
_LOG_TOLERANCE = 2e-6


@dataclass(frozen=True, slots=True)
class AtOrder:
    """A value (epsilon or delta) and the Renyi order at which it was found."""

    value: float
    order: float


def classic_epsilon(order: float, renyi: float, delta: float) -> float:
    """eps = R + log(1/delta) / (alpha - 1), rounded up, at least 0. Mironov 2017, prop. 3."""
    cost = -math.log(delta) / (order - 1)
    return _not_negative(above(renyi + cost, renyi, cost))


def improved_epsilon(order: float, renyi: float, delta: float) -> float:
    """eps = R + log((alpha-1)/alpha) - (log delta + log alpha)/(alpha-1), rounded up, at least 0.

    Source: Balle et al. 2020 (arXiv:1905.09982), theorem 21; Canonne, Kamath, Steinke 2020
        (arXiv:2004.00010), proposition 12.
    """
    b = order - 1
    log_b, log_order, log_delta = math.log(b), math.log(order), math.log(delta)
    value = renyi + (log_b - log_order) - (log_delta + log_order) / b
    return _not_negative(above(value, renyi, log_b, log_order, log_delta / b, log_order / b))


def _not_negative(value: float) -> float:
    """At least 0; what is not a number bounds nothing."""
    return math.inf if math.isnan(value) else max(0.0, value)


def improved_delta(order: float, renyi: float, epsilon: float) -> float:
    """delta = e^{(alpha-1)(R - eps)} / (alpha-1) (1 - 1/alpha)^alpha, rounded up, at most 1.

    Source: Canonne, Kamath, Steinke 2020 (arXiv:2004.00010), proposition 12.
    """
    log_delta = _log_delta(order, renyi, epsilon)
    if math.isnan(log_delta):
        return 1.0
    if log_delta < -690.0:
        return 1e-299
    return min(1.0, math.exp(min(log_delta, 0.0)) * (1 + 2 * FUNCTION_ERROR))


def _log_delta(order: float, renyi: float, epsilon: float) -> float:
    b = order - 1
    parts = (b * renyi, -b * epsilon, b * math.log(b), -order * math.log(order))
    return above(sum(parts), *parts)


def best_epsilon(
    renyi: Callable[[float], float],
    delta: float,
    start: float,
    conversion: Conversion = improved_epsilon,
) -> AtOrder:
    """The smallest epsilon over all orders.

    Args:
        renyi: upper bound of the Renyi divergence as a function of the order.
        delta: in (0, 1).
        start: an order near the best one; only the time depends on it.
        conversion: which formula.
    Error:
        Proven from above whatever the search does. It ends within 2e-6 in log(alpha - 1), where
        epsilon is flat: about 1e-9 above the minimum over orders.
    """
    order = best_order(lambda order: conversion(order, renyi(order), delta), start)
    return AtOrder(conversion(order, renyi(order), delta), order)


def best_delta(renyi: Callable[[float], float], epsilon: float, start: float) -> AtOrder:
    """The smallest delta over all orders, by the improved conversion; as `best_epsilon`."""
    order = best_order(lambda order: _log_delta(order, renyi(order), epsilon), start)
    return AtOrder(improved_delta(order, renyi(order), epsilon), order)


def best_order(
    function: Callable[[float], float],
    start: float,
    log_range: tuple[float, float] = _LOG_RANGE,
    tolerance: float = _LOG_TOLERANCE,
) -> float:
    """The order at which a unimodal function is least, searched in log(alpha - 1) from a start."""
    log_best = minimize_unimodal(
        lambda t: function(1 + math.exp(t)), math.log(start - 1), log_range, tolerance
    )
    return 1 + math.exp(log_best)


@dataclass(frozen=True, slots=True)
class RenyiAccountant:
    """Numeric Renyi moments at continuous orders, improved conversion."""

    name: str = "rdp"

    def best_order(self, schedule: Schedule, delta: float) -> float:
        """The Renyi order that gives the smallest epsilon."""
        return self._best(RenyiCurve(schedule), delta).order

    def upper_epsilon(self, schedule: Schedule, delta: float) -> float:
        """See `Accountant`."""
        if not schedule.rounds:
            return 0.0
        curve = RenyiCurve(schedule)
        order = self._best(curve, delta).order
        return improved_epsilon(order, curve.upper(order), delta)

    def epsilon(self, schedule: Schedule, delta: float) -> Interval:
        """See `Accountant`."""
        upper = self.upper_epsilon(schedule, delta)
        return Interval.bracket(achieved_epsilon(schedule, delta), upper)

    def delta(self, schedule: Schedule, epsilon: float) -> Interval:
        """See `Accountant`."""
        upper = self.upper_delta(schedule, epsilon)
        return Interval.bracket(achieved_delta(schedule, epsilon), upper)

    def upper_delta(self, schedule: Schedule, epsilon: float) -> float:
        """Proven upper bound of delta at a valid epsilon."""
        if not schedule.rounds:
            return 0.0
        curve = RenyiCurve(schedule)
        start = _gaussian_order(curve.search(2.0) / 2, 1 + epsilon)
        order = best_delta(curve.search, epsilon, start).order
        return improved_delta(order, curve.upper(order), epsilon)

    @staticmethod
    def _best(curve: RenyiCurve, delta: float) -> AtOrder:
        start = _gaussian_order(curve.search(2.0) / 2, -math.log(delta))
        return best_epsilon(curve.search, delta, start)


def _gaussian_order(rho: float, cost: float) -> float:
    """The order at which rho-zCDP trades best against ``cost``: where a search begins."""
    return 1 + math.sqrt(cost / max(rho, 1e-12))
