"""Which cells a kind of round needs: large ones where positions are worth little, small elsewhere.

Over many rounds the adversary gains by log M(t) of a round's law, at tilts t about that of the
answer: near it while many rounds are to come, further off in the last ones. A cell is split while
its law has more of that than any single position, by a tolerance that grows with the distance.
Nothing here is proven; any split of a cover is a cover.

What it is for: docs/derivations/fixed-size-game.md.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

import numpy as np

from dpacct.numerics.rounding import Array
from dpacct.rounds import Adjacency, Round, Schedule
from dpacct.tight.game.cover import (
    Cell,
    Corner,
    Cover,
    are_held,
    corner_of,
    default_cover,
    without_spare,
)
from dpacct.tight.game.kernels import grid_losses, known_values, points_to, reach_of
from dpacct.tight.game.plan import GamePlan
from dpacct.tight.game.played import is_game
from dpacct.tight.game.rounds import rate_bounds
from dpacct.tight.game.triangles import Triangle

# Where tilts are looked at, in inverse deviations of the tilted sum of losses from the answer's,
# but not below this share of it; the last rounds' are further off, and fewer.
_AWAY = np.array([0.0, -0.75, -1.5, -2.25, -3.0, -4.0, -6.0, 1.5])
_LEAST_TILT = 0.02
# Positions on the longest side, of which the best counts as what a cell can be brought to.
_POSITIONS = 8
MOST_CELLS = 400
# Of splits into thirds, so many fit.
_UNIT = 3**24


@dataclass(frozen=True, slots=True)
class _Gains:
    """What positions in one kind of round are worth, at a few tilts."""

    rate: float
    noise: float
    step: float
    reach: int
    negligible: float
    rising: Array
    falling: Array

    def of(self, cell: Cell) -> Array:
        """About (M(t) - 1) / (t (t + 1)) of the cell's law."""
        sides = (
            known_values(self.rate, self.noise, triangle, self.step, self.reach, self.negligible)
            for triangle in (
                Triangle(float(cell.b), float(cell.w)),
                Triangle(float(cell.a), float(cell.w)),
            )
        )
        positive, negative = sides
        return np.asarray(self.rising @ positive + self.falling @ negative)


def guided_cover(
    schedule: Schedule, plan: GamePlan, tolerance: float, most: int = MOST_CELLS
) -> tuple[Cover, float]:
    """A cover for the kind of round that matters most.

    Args:
        schedule, plan: what is played, and where.
        tolerance: the share of what the best position gains that a cell may gain more.
        most: cells, about.
    Returns:
        The cells, and the share that is reached with them.
    """
    if not has_cells(schedule):
        return default_cover(), 0.0
    return _cover(heaviest(schedule), plan, tolerance, most)


def has_cells(schedule: Schedule) -> bool:
    """Whether cells of triangles bound any of its rounds; for zero-out those of an angle do."""
    replaced = schedule.adjacency is Adjacency.REPLACE_ONE
    return replaced and any(is_game(round_) for round_ in schedule.distinct())


def heaviest(schedule: Schedule) -> Round:
    """The kind of round of fixed size that matters most."""
    counts = schedule.distinct()
    return max(filter(is_game, counts), key=lambda one: counts[one] * _weight(one))


def spread_of(plan: GamePlan) -> float:
    """The deviation of the tilted sum of losses; a Gaussian's, where it is not known."""
    return plan.deviation or math.sqrt(plan.epsilon / (plan.upper.tilt + 0.5))


def _weight(round_: Round) -> float:
    return math.expm1(min(4 / round_.noise_multiplier**2, 100.0)) * round_.sampling_rate**2


@lru_cache(maxsize=64)
def _cover(round_: Round, plan: GamePlan, tolerance: float, most: int) -> tuple[Cover, float]:
    frame = plan.upper
    tilts = np.maximum(frame.tilt + _AWAY / spread_of(plan), _LEAST_TILT * frame.tilt)
    gains = _gains(round_, plan, tilts)
    side = [
        gains.of(Cell(share, 1 - share, Fraction(0)))
        for share in (Fraction(k, _POSITIONS) for k in range(_POSITIONS + 1))
    ]
    best = np.max(side, axis=0)
    worth = tilts * (tilts + 1) * best
    weights = worth / worth[0] / np.hypot(1.0, _AWAY) / best

    def excess(cell: Cell) -> float:
        return float(np.max(weights * (gains.of(cell) - best)))

    kept: dict[Cell, Corner] = {}
    waiting: list[tuple[float, Cell]] = []

    def add(cell: Cell) -> None:
        kept[cell] = corner_of(cell, _UNIT)
        heapq.heappush(waiting, (-excess(cell), cell))

    add(Cell.whole())
    while len(kept) < most:
        reached, cell = waiting[0]
        if -reached <= tolerance or _UNIT % (cell.size / 3).denominator:
            break
        heapq.heappop(waiting)
        corner = kept.pop(cell)
        if not are_held(corner, kept.values(), _UNIT):
            for child in cell.children():
                if child not in kept:
                    add(child)
    return without_spare(tuple(sorted(kept))), -waiting[0][0]


def _gains(round_: Round, plan: GamePlan, tilts: Array) -> _Gains:
    rate, noise, step = rate_bounds(round_)[1], round_.noise_multiplier, plan.upper.step
    reach = reach_of(rate, noise, step, plan.negligible)[0]
    losses = grid_losses(points_to(reach), step)
    widths = np.zeros(len(losses))
    widths[:-1] += 0.5 * np.diff(losses)
    widths[1:] += 0.5 * np.diff(losses)
    rising = np.exp(np.outer(tilts, losses)) * widths
    falling = np.exp(-np.outer(tilts + 1, losses)) * widths
    return _Gains(rate, noise, step, reach, plan.negligible, rising, falling)
