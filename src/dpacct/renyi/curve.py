"""Renyi curves: the divergence of a whole schedule as a function of the order.

For order alpha and b = alpha - 1, one sampled Gaussian round has
    remove:  R(alpha) = log I(alpha) / b,        add:  R(alpha) = log I(-b) / b,
a round of fixed-size sampling that of `pairs.symmetrized`, and one of Poisson sampling in which a
client is replaced that of `pairs.replacement`. Rounds add up, here and nowhere else; each direction
is summed for itself and the larger sum is the curve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.numerics.rounding import UNIT, Array, Bounds, weighted_sum
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
from dpacct.pairs.moments import log_moment
from dpacct.pairs.replacement import replacement_log_moment
from dpacct.pairs.symmetrized import symmetrized_log_moment
from dpacct.renyi.wang import wang_log_moment
from dpacct.rounds import Adjacency, Round, Sampling, Schedule
from dpacct.schedules.build import NOT_GIVEN, build_schedule


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
    adjacency: Adjacency | str | None = None,
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
    plan = build_schedule(
        schedule,
        noise_multiplier=noise_multiplier,
        rounds=rounds,
        sampling_rate=sampling_rate,
        sampling=sampling,
        adjacency=adjacency,
    )
    curve = RenyiCurve(plan)
    return tuple(
        RenyiValue(order, curve.lower(order), curve.upper(order), curve.routes(order))
        for order in checked
    )
