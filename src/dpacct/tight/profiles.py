"""The whole profile of a composition, between two pairs with finitely many losses.

A function of the whole profile, such as the cost of tuning, is bounded by that of two pairs with
finitely many losses: one that dominates the composition, and one that the composition dominates.
Both are built from bounds of delta at many epsilons, the knots.

H(k) = E_Q(L - k)_+ is delta(log k) for k >= 1. For k < 1 it is 1 - k + k S(1/k), S that of the
other direction. It is convex in k.

`dpacct.pairs.atoms` makes pairs of the knots.

Derivation: docs/derivations/profiles.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import lru_cache

import numpy as np

from dpacct.budget import Interval
from dpacct.errors import NotConverged, Unsupported
from dpacct.numerics.rounding import UNIT
from dpacct.numerics.search import bisect
from dpacct.pairs.atoms import AtomicPair, Side, between
from dpacct.pairs.dominating import (
    Direction,
    Mechanism,
    PairsOf,
    achieved_pairs,
    is_exact,
    proven_pairs,
)
from dpacct.rounds import Adjacency, Release, Schedule
from dpacct.tight.closed_forms import closed_form_delta, is_repeated, only_pair
from dpacct.tight.composition import Composition, is_same_both_ways
from dpacct.tight.contour import (
    Complement,
    Contour,
    cheapest_tilt,
    lies_below,
    log_delta_estimate,
    tilt_at_epsilon,
)
from dpacct.tight.engines import chernoff_delta, composed_delta, truncated

# Delta at the last knot, which becomes the mass of infinite losses, and the largest epsilon of all.
LAST_DELTA, _LARGEST = 1e-30, 600.0
# Knots on contours.
_KNOTS = 4800


def side_of(composition: Composition) -> Side:
    """Return delta of one direction, from contours that neighboring knots share.

    Raises:
        Unsupported: losses beyond 600 have a probability that matters.
    """
    last = _last_epsilon(composition)
    rows: list[tuple[float, Interval]] = []
    exactly = closed_form_delta(composition)
    if exactly is not None and composition.sampled_rounds:
        knots = np.linspace(0.0, last, 300 if is_repeated(composition) else 1200)
        rows = [(e, exactly(e)) for e in knots.tolist()]
        return _side([*rows[:-1], (last, _rest(composition, last, rows[-1][1].upper))])
    epsilons = np.linspace(0.0, last, _KNOTS).tolist()
    at = 0
    while at < _KNOTS - 1:
        # A contour is accurate below its own epsilon, and some way above.
        served = min(at + _KNOTS // 30, _KNOTS - 1)
        try:
            bounds, skipped = _contour(composition, epsilons[served])
        except NotConverged:
            rows.append((epsilons[at], _alone(composition, epsilons[at])))
            # Without a contour, delta is known at few knots.
            at += _KNOTS // 4
            continue
        while at < _KNOTS - 1:
            bracket = bounds(epsilons[at])
            if at >= served and bracket.width > 2e-4 * bracket.upper:
                break
            rows.append((epsilons[at], bracket))
            at += skipped
    return _side([*rows, (last, _rest(composition, last, chernoff_delta(composition, last)))])


def _rest(composition: Composition, last: float, upper: float) -> Interval:
    """Return delta at the last knot. From the largest loss on it is that of infinite losses."""
    beyond = last >= composition.largest_loss
    return Interval(0.0, min(upper, composition.infinite_mass) if beyond else upper)


def _side(rows: list[tuple[float, Interval]]) -> Side:
    return Side(*np.array([(e, bracket.lower, bracket.upper) for e, bracket in rows]).T)


def _alone(composition: Composition, epsilon: float) -> Interval:
    try:
        return composed_delta(composition, epsilon)
    except NotConverged:
        return Interval(0.0, chernoff_delta(composition, epsilon))


def _last_epsilon(composition: Composition) -> float:
    """Return an epsilon beyond which next to no losses lie.

    Raises:
        Unsupported: it exceeds 600.
    """
    most = min(composition.largest_loss, _LARGEST)
    least = LAST_DELTA + composition.infinite_mass * (1 + 1e-9)
    if chernoff_delta(composition, most) > least:
        raise Unsupported(f"losses beyond {_LARGEST:g} have a probability that matters: add noise")
    last = bisect(lambda e: e < most and chernoff_delta(composition, e) > least, 1.0, 0.02)[1]
    return min(last, most)


def _contour(composition: Composition, epsilon: float) -> tuple[Callable[[float], Interval], int]:
    """Return bounds of delta near an epsilon, and the distance of the knots that are worth it.

    Raises:
        NotConverged: see `Contour`.
    """
    few = composition.alike()
    mass, line = composition.infinite_mass, None
    if lies_below(few, epsilon) and not composition.is_symmetric:
        with suppress(NotConverged):
            line = Complement(composition, epsilon, math.log(0.01))
    if line is None:
        tilt, at = tilt_at_epsilon(few, epsilon)
        log_delta = min(0.0, log_delta_estimate(tilt, at, epsilon))
        # The shares of delta that are cut off, and of epsilon that a blur may add.
        rest, lost = truncated(composition, 1e-6 * math.exp(max(log_delta, -600.0)))
        tilt = cheapest_tilt(rest, tilt, epsilon, log_delta)
        width = 1e-5 * max(epsilon, 1 / tilt)
        line, mass = Contour(rest, tilt, epsilon, log_delta, width, at.variance), mass + lost

    def bounds(at: float) -> Interval:
        bracket = line.delta(at)
        return Interval(bracket.lower, min(1.0, (bracket.upper + mass) * (1 + 4 * UNIT)))

    # With many nodes fewer knots are used.
    return bounds, 1 + line.nodes // 400


@lru_cache(maxsize=16)
def finite_pairs(
    schedule: Schedule, pairs: PairsOf
) -> dict[Direction, tuple[AtomicPair, AtomicPair]]:
    """Return for each direction a pair that dominates the composition, and one that it dominates.

    Args:
        pairs: `proven_pairs` or `achieved_pairs`. None are known if a release has none.
    """
    if pairs is achieved_pairs and all(is_exact(kind) for kind in schedule.distinct()):
        return finite_pairs(schedule, proven_pairs)
    remove, add = (Composition.of_schedule(schedule, pairs, direction) for direction in Direction)
    alone = [only_pair(each) for each in (remove, add)]
    if all(isinstance(pair, AtomicPair) for pair in alone):
        # They are finite as they are.
        return {d: (pair, pair) for d, pair in zip(Direction, alone, strict=True)}  # type: ignore[misc]
    first = side_of(remove)
    if is_same_both_ways(remove, add):
        both = between(first, first)
        return dict.fromkeys(Direction, both)
    second = side_of(add)
    return {Direction.REMOVE: between(first, second), Direction.ADD: between(second, first)}


class ReleaseOfSchedule(Mechanism):
    """A release made of a schedule, whose neighboring relation and noise are its own.

    Attributes:
        schedule: what it is made of.
    """

    schedule: Schedule

    def of(self, schedule: Schedule) -> ReleaseOfSchedule:
        """Return the same release of another schedule."""
        raise NotImplementedError

    @property
    def adjacency(self) -> Adjacency:  # type: ignore[override]
        """The neighboring relation of the schedule."""
        return self.schedule.adjacency

    @property
    def noise_range(self) -> tuple[float, float, float] | None:
        """A factor of 1, and the factors between which all noise of the schedule is in range."""
        ranges = [kind.noise_range for kind in self.schedule.distinct()]
        ends = [(low / level, high / level) for level, low, high in filter(None, ranges)]
        if not ends:
            return None
        return 1.0, max(low for low, _ in ends), min(high for _, high in ends)

    def scale_noise(self, factor: float) -> ReleaseOfSchedule:
        """Return the same release with ``factor`` times the noise."""
        return self.of(self.schedule.scale_noise(factor))


def kinds_within(schedule: Schedule) -> Iterator[Release]:
    """Yield the releases of a schedule, and those that they are made of."""
    for kind in schedule.distinct():
        yield kind
        if isinstance(kind, ReleaseOfSchedule):
            yield from kinds_within(kind.schedule)
