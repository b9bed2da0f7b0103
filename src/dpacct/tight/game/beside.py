"""Releases beside the rounds of a game: laws on its grid, above and below their pairs.

Rule 1: above, they come before all rounds, whenever they run. That costs no less.
Rule 2: below, they keep their places in the plan.
Rule 3: exponential mechanisms are stages in which the adversary has a choice, of the place t of the
    losses t and t - epsilon. They keep their places above, too.

Derivation: docs/derivations/fixed-size-game.md, section 13.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpacct.errors import NotConverged, Unsupported
from dpacct.mechanisms.exponential import ExponentialMechanism
from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, Array, Bounds
from dpacct.pairs.atoms import AtomicPair
from dpacct.pairs.dominating import (
    AdditivePair,
    Direction,
    PairsOf,
    achieved_pairs,
    proven_pairs,
)
from dpacct.rounds import Phase, Release, Round, Schedule
from dpacct.tight.game import has_choice
from dpacct.tight.game.kernels import counted
from dpacct.tight.game.laws import (
    Kernel,
    Points,
    Side,
    dominated_kernel,
    dominating_kernel,
    dominating_side,
    grid_points,
)
from dpacct.tight.game.strategies import middles, touching_side
from dpacct.tight.profiles import finite_pairs

# Neighboring points of a law lie up to this share of the loss apart.
_SPREAD, _LEAST = 128, 1e-300
# Ranges of the place t of an exponential mechanism, and places in [0, 1] that are achieved.
RANGES, _PLACES = 128, 20


def beside(schedule: Schedule) -> list[tuple[Schedule, int]]:
    """Return the releases of Rule 1, by kinds. Promises whose rhos add up are one."""
    alone = [(Schedule([Phase(kind, 1)]), n) for kind, n in _kinds(schedule) if not _adds(kind)]
    together = Schedule(Phase(kind, n) for kind, n in _kinds(schedule) if _adds(kind))
    return [*alone, (together, 1)] if together.parts else alone


def _kinds(schedule: Schedule) -> list[tuple[Release, int]]:
    kinds = schedule.distinct().items()
    return [(kind, n) for kind, n in kinds if not (isinstance(kind, Round) or has_choice(kind))]


def _adds(kind: Release) -> bool:
    return any(isinstance(pair, AdditivePair) for pair in proven_pairs(kind, Direction.REMOVE))


def _finite(releases: Schedule, pairs: PairsOf) -> dict[Direction, tuple[AtomicPair, AtomicPair]]:
    try:
        return finite_pairs(releases, pairs)
    except Unsupported as reason:
        raise NotConverged(str(reason)) from reason


def _other(direction: Direction) -> Direction:
    return Direction.ADD if direction is Direction.REMOVE else Direction.REMOVE


@lru_cache(maxsize=256)
def law_above(releases: Schedule, step: float, negligible: float, direction: Direction) -> Kernel:
    """Return a law that dominates releases together, in one direction.

    Raises:
        NotConverged: it has too many points, or losses beyond 600 matter.
    """
    pairs = _finite(releases, proven_pairs)

    def side(way: Direction) -> Side:
        points = _points(pairs[way][0], step)
        values = _until(negligible, pairs[way][0], step * points)
        return dominating_side(points[: len(values)], step, np.maximum(values, _LEAST))

    return dominating_kernel(side(direction), side(_other(direction)), step)


@lru_cache(maxsize=256)
def law_below(releases: Schedule, step: float, direction: Direction) -> Kernel:
    """Return a law below releases together, in one direction. Raises: as above."""
    if not all(achieved_pairs(kind, direction) for kind in releases.distinct()):
        return Kernel(0, np.ones(1), 0.0)
    pairs = _finite(releases, achieved_pairs)
    return _law_between(pairs[direction][1], pairs[_other(direction)][1], step)


def _law_between(rising: AtomicPair, falling: AtomicPair, step: float) -> Kernel:
    """Return a law below a pair, which is given in both directions."""

    def side(pair: AtomicPair) -> Side:
        points = _points(pair, step)
        return touching_side(_touching(pair, middles(points, step)), points, step)

    return dominated_kernel(side(rising), side(falling), step)


@lru_cache(maxsize=64)
def choices_above(kind: ExponentialMechanism, step: float) -> tuple[Kernel, ...]:
    """Return laws, one for each range of t, that dominate it."""
    epsilon, width = kind.epsilon, kind.epsilon / RANGES
    points = grid_points(max(2, counted(epsilon, step)), _SPREAD)
    losses = np.asarray(step * points, dtype=np.float64)

    def side(least: float, most: float) -> Side:
        # (1 - e^(t - epsilon)) (1 - e^(l - t)) is largest in the middle.
        t = np.clip((losses + epsilon) / 2, least, most)
        value = np.expm1(t - epsilon) * np.expm1(np.minimum(losses - t, 0.0))
        value = value / -math.expm1(-epsilon) * (1 + 64 * FUNCTION_ERROR)
        return dominating_side(points, step, np.maximum(value, _LEAST))

    ranges = [(k * width, (k + 1) * width) for k in range(RANGES)]
    # With the data sets exchanged, t is epsilon - t.
    return tuple(
        dominating_kernel(side(*one), side(*other), step)
        for one, other in zip(ranges, ranges[::-1], strict=True)
    )


@lru_cache(maxsize=64)
def choices_below(kind: ExponentialMechanism, step: float) -> tuple[Kernel, ...]:
    """Return laws below the pairs at some t."""
    return tuple(
        _law_between(pair, pair.swapped(), step)
        for pair in (kind.pair_at(k / _PLACES) for k in range(1, _PLACES))
    )


def _points(pair: AtomicPair, step: float) -> Points:
    return grid_points(max(2, counted(max(pair.largest_loss, 0.0), step)), _SPREAD)


def _until(negligible: float, pair: AtomicPair, losses: NDArray[Any]) -> Array:
    """Return upper bounds of delta at losses, up to the first one, past the third, that is less."""
    values = np.empty(len(losses))
    for number, loss in enumerate(losses.tolist()):
        values[number] = pair.delta(loss).upper
        if number > 1 and values[number] <= negligible:
            return values[: number + 1]
    return values


def _touching(pair: AtomicPair, losses: Array) -> tuple[Bounds, Bounds]:
    """Return bounds of H and of -H' at losses: Q(L > loss), and any slope at an atom."""
    deltas = [pair.delta(loss) for loss in losses.tolist()]
    profile = Bounds(np.array([f.lower for f in deltas]), np.array([f.upper for f in deltas]))
    loss_error, mass_error = pair.errors
    order = np.argsort(-pair.losses)
    falling = pair.losses[order]
    under_q = np.append(0.0, np.cumsum(pair.masses[order] * np.exp(-falling)))
    off = 4 * UNIT * float(np.abs(falling).max()) + UNIT * (len(falling) + 8)
    off += mass_error + loss_error + FUNCTION_ERROR
    near = loss_error + 4 * UNIT * losses
    less = under_q[np.searchsorted(-falling, -(losses + near), "left")] * (1 - off)
    more = under_q[np.searchsorted(-falling, -(losses - near), "right")] * (1 + off)
    return profile, Bounds(less, more)
