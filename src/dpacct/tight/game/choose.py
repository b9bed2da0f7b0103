"""The choice of the grid and the positions of a game: the best that are affordable.

Large cells where positions are worth little, small ones elsewhere. Over many rounds the adversary
gains by log M(t) of a round's law. The tilts t are near that of the answer while many rounds are to
come, and further off in the last rounds. A cell is split while its law gains more than any
single position, by a tolerance that grows with the distance. Nothing here is proven, since any
split of a cover is a cover.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator
from fractions import Fraction
from functools import lru_cache

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.rounding import Array
from dpacct.rounds import Adjacency, Round, Schedule
from dpacct.tight.game import is_game
from dpacct.tight.game.kernels import MANY_TURNS, Grid, TurnGuide, known_values
from dpacct.tight.game.plan import Frames, effort_above
from dpacct.tight.game.positions import Thinned
from dpacct.tight.game.rounds import Positions, rate_bounds
from dpacct.tight.game.theorem import (
    Cell,
    Corner,
    Cover,
    Triangle,
    are_held,
    corner_of,
    default_cover,
    without_spare,
)

# Tilts to try, in inverse deviations of the tilted sum of losses from the answer's tilt. They are
# at least this share of it. The last rounds need tilts further off, and fewer.
_AWAY = np.array([0.0, -0.75, -1.5, -2.25, -3.0, -4.0, -6.0, 1.5])
_LEAST_TILT = 0.02
# Positions on the longest side. The best of them is the target for cells.
_POSITIONS = 8
MOST_CELLS = 400
# Largest unit that holds all splits into thirds.
_UNIT = 3**24


class _Gains:
    """The gains of positions in one kind of round, at a few tilts."""

    def __init__(self, round_: Round, plan: Frames, tilts: Array) -> None:
        rate, noise = rate_bounds(round_)[1], round_.noise_multiplier
        self._grid = Grid.of(rate, noise, plan.upper.step, plan.negligible)
        losses = self._grid.losses
        # The trapezoid rule in the loss.
        widths = np.zeros(len(losses))
        widths[:-1] += 0.5 * np.diff(losses)
        widths[1:] += 0.5 * np.diff(losses)
        self._rising = np.exp(np.outer(tilts, losses)) * widths
        self._falling = np.exp(-np.outer(tilts + 1, losses)) * widths

    def of(self, cell: Cell) -> Array:
        """Return about (M(t) - 1) / (t (t + 1)) of the cell's law."""
        positive, negative = (
            known_values(self._grid, Triangle(float(missing), float(cell.w)))
            for missing in (cell.b, cell.a)
        )
        return np.asarray(self._rising @ positive + self._falling @ negative)

    def best(self) -> Array:
        """Return the largest gain of a few positions on the longest side."""
        shares = (Fraction(k, _POSITIONS) for k in range(_POSITIONS + 1))
        return np.max([self.of(Cell(share, 1 - share, Fraction(0))) for share in shares], axis=0)


def has_cells(schedule: Schedule) -> bool:
    """Return True if cells of triangles bound any of its rounds. Zero-out has cells of an angle."""
    replaced = schedule.adjacency is Adjacency.REPLACE_ONE
    return replaced and any(is_game(round_) for round_ in schedule.only_rounds())


def _looked_at(schedule: Schedule) -> dict[Round, int]:
    """Return representative kinds of rounds with their numbers. They also serve kinds between."""
    counts = {one: count for one, count in schedule.only_rounds().items() if is_game(one)}

    def weight(one: Round) -> float:
        spread = math.expm1(min(4 / one.noise_multiplier**2, 100.0))
        return counts[one] * (spread * one.sampling_rate**2)

    kinds = [max(counts, key=weight), max(counts, key=lambda one: counts[one])]
    for end in (min, max):
        kinds.append(end(counts, key=lambda one: one.noise_multiplier))
        kinds.append(end(counts, key=lambda one: one.sampling_rate))
    return {one: counts[one] for one in kinds}


def _tilts(plan: Frames) -> Array:
    """Return tilts near that of the answer, and tilts further off for the last rounds."""
    tilt = plan.upper.tilt
    # Of the tilted sum of losses, or a Gaussian's if it is unknown.
    deviation = plan.deviation or math.sqrt(plan.epsilon / (tilt + 0.5))
    return np.maximum(tilt + _AWAY / deviation, _LEAST_TILT * tilt)


def turn_guide(plan: Frames, tolerance: float) -> TurnGuide:
    """Return the rule for ranges of the one angle if a contribution becomes zero."""
    tolerances = tolerance * np.hypot(1.0, _AWAY)
    return TurnGuide(tuple(_tilts(plan).tolist()), tuple(tolerances.tolist()))


@lru_cache(maxsize=64)
def guided_cover(
    schedule: Schedule, plan: Frames, tolerance: float, most: int = MOST_CELLS
) -> tuple[Cover, float]:
    """Return a cover for the kinds of rounds that matter most, and that differ most.

    Args:
        schedule, plan: the schedule, and the grid of its game.
        tolerance: largest extra gain of a cell, as a share of the best position's gain.
        most: cells, about.
    Returns:
        The cells, and the share that is reached with them.
    """
    if not has_cells(schedule):
        return default_cover(), 0.0
    kinds, tilts = _looked_at(schedule), _tilts(plan)
    every = [_Gains(round_, plan, tilts) for round_ in kinds]
    best = [gains.best() for gains in every]
    moments = [tilts * (tilts + 1) * most_of for most_of in best]
    counts = kinds.values()
    worth = [count * np.log1p(moment) for count, moment in zip(counts, moments, strict=True)]
    # A kind with little gain may gain more, since only the total counts.
    weights = [
        np.minimum(1.0, len(kinds) * part / sum(worth)) * moment / moment[0] / most_of
        for part, moment, most_of in zip(worth, moments, best, strict=True)
    ] / np.hypot(1.0, _AWAY)

    def excess(cell: Cell) -> float:
        return max(
            float(np.max(weight * (gains.of(cell) - most_of)))
            for gains, weight, most_of in zip(every, weights, best, strict=True)
        )

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


# Losses times laws times rounds: about one second, two, seven, ten and thirty.
_FEW, _QUICK, _MEDIUM, _LONG, MOST_EFFORT = 5e7, 1e8, 5e8, 8e8, 2e9
_DEFAULT_SHARE, _MIDDLE_SHARE, _COARSE_SHARE = 1e-3, 2e-3, 4e-3
# The share of epsilon that the grid may cost, and the extra gain of cells over positions.
_CELLS = (
    (_DEFAULT_SHARE, 1e-3, _LONG),
    (_MIDDLE_SHARE, 2e-3, _LONG),
    (_COARSE_SHARE, 4e-3, MOST_EFFORT),
    (_COARSE_SHARE, 1e-2, 2 * MOST_EFFORT),
)
_LAST = ((_COARSE_SHARE, math.inf, MOST_EFFORT),)
# The same where the usual cells are played, as they are first where kinds of rounds differ.
_KNOWN = ((_DEFAULT_SHARE, _LONG), (_MIDDLE_SHARE, MOST_EFFORT))
# The same for ranges of an angle, of which few are needed.
_RANGES = (
    (_DEFAULT_SHARE, 2e-4, 2 * _QUICK),
    (_MIDDLE_SHARE, 5e-4, _MEDIUM),
    (_COARSE_SHARE, 2e-3, MOST_EFFORT),
)


def affordable(
    schedule: Schedule, plan_with: Callable[[float], Frames], *, at_one_delta: bool = True
) -> tuple[Frames, Positions]:
    """Return a plan and positions that are affordable, the best first.

    Chosen cells serve one delta. If a pass answers for a whole curve, usual cells may cost more.

    Raises:
        NotConverged: none is.
    """
    effort = math.inf
    candidates = (
        _ranges_of_angle(schedule, plan_with)
        if schedule.adjacency is Adjacency.ZERO_OUT
        else _cells(schedule, plan_with, _FEW if at_one_delta else _MEDIUM)
    )
    for plan, positions, most in candidates:
        effort = effort_above(schedule, plan.upper, positions)
        if effort <= most:
            return plan, positions
    # Where the laws would take too much memory, the effort is infinite.
    need = "more memory than is taken at a time"
    if effort < math.inf:
        need = f"{effort:.2g} steps, more than {MOST_EFFORT:.2g}"
    raise NotConverged(f"the game of {schedule.rounds} rounds would need {need}")


# A plan, positions, and the most effort that they are worth.
_Candidates = Iterator[tuple[Frames, Positions, float]]


def _ranges_of_angle(schedule: Schedule, plan_with: Callable[[float], Frames]) -> _Candidates:
    """Yield ranges of the one angle that there is where a contribution becomes zero."""
    # One guide serves one kind of round.
    many = _QUICK if len(schedule.only_rounds()) == 1 else _LONG
    yield plan_with(_DEFAULT_SHARE), MANY_TURNS, many
    for share, tolerance, most in _RANGES:
        plan = plan_with(share)
        yield plan, turn_guide(plan, tolerance), most


def _cells(schedule: Schedule, plan_with: Callable[[float], Frames], first: float) -> _Candidates:
    """Yield cells of triangles: few rounds pay for the usual ones, others for chosen ones."""
    usual = Thinned(default_cover())

    def known(rows: tuple[tuple[float, float], ...]) -> _Candidates:
        for share, most in rows:
            yield plan_with(share), usual, most

    def chosen(rows: tuple[tuple[float, float, float], ...]) -> _Candidates:
        for share, enough, most in rows if has_cells(schedule) else ():
            plan = plan_with(share)
            one = effort_above(schedule, plan.upper, usual) / len(usual.cover)
            # The number of cells that are affordable.
            number = int(most / one)
            if number < 12:
                continue
            # A larger extra gain if time is short.
            tolerance, number = 2e-4 if number >= 250 else 5e-4, min(200, number)
            cover, reached = guided_cover(schedule, plan, tolerance, number)
            if reached <= enough:
                yield plan, Thinned(cover), math.inf

    yield from known(((_DEFAULT_SHARE, first),))
    # Cells that are chosen for some kinds of rounds may be worse than the usual ones for others.
    alike = sum(map(is_game, schedule.only_rounds())) == 1
    yield from chosen(_CELLS) if alike else known(_KNOWN)
    yield from known(_KNOWN) if alike else chosen(_CELLS)
    yield from chosen(_LAST)
    yield from known(((_COARSE_SHARE, MOST_EFFORT),))
