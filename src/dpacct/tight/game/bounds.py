"""Epsilon and delta of schedules with rounds of fixed size, one client replaced or set to zero.

The adversary chooses positions again in each round, knowing the past. Upper bound: the best of a
finite number of cells of positions, each bounded by one law. Lower bound: the better of a few
strategies in each round, which explicit data sets follow. Both are played backward on a grid of
losses. Each pass gives the whole curve eps -> delta. It is tuned to one delta, and is also sharp
for all smaller epsilons, because there the grid adds the same share to the spread of the loss.

Passes are tuned to a ladder of deltas, four a decade. Each answers for the deltas of its cell, in
both ways: as eps(delta), and as the delta at which its curve reaches an epsilon. So delta(eps) is
the delta whose proven epsilon is eps, and both ways come back to where they began.

Statement, proofs and error bounds: docs/derivations/fixed-size-game.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from dpacct.budget import Interval
from dpacct.errors import NotConverged
from dpacct.numerics.rounding import UNIT, Array
from dpacct.pairs.dominating import Direction
from dpacct.rounds import Round, Schedule
from dpacct.tight.game.choose import affordable
from dpacct.tight.game.plan import (
    Frames,
    estimate_at_epsilon,
    moved,
    plan_at_delta,
    plan_at_epsilon,
    stages_above,
    stages_below,
    window_above,
)
from dpacct.tight.game.play import Frame, play_lower, play_upper, rounds_above
from dpacct.tight.game.rounds import Positions, directions

# By so much a loss is put on the safe side of an epsilon.
_NUDGE = 2.0**-45
_BELOW = 1e-6
# A step of at most this share of epsilon is not worth a second pass.
_LITTLE = 3e-4


@dataclass(frozen=True, slots=True, eq=False)
class _Pass:
    """Upper bounds of w at the losses of a frame, or at its first ones. They rise with the loss."""

    frame: Frame
    deltas: Array
    part: bool = False

    @classmethod
    def played(
        cls, schedule: Schedule, plan: Frames, positions: Positions, window: int = 0
    ) -> _Pass:
        frame = plan.upper
        deltas = play_upper(stages_above(schedule, plan, frame, positions, window), frame, window)
        # w rises with the loss, so a bound holds for all smaller losses.
        kept = np.minimum.accumulate(deltas[::-1])[::-1]
        return cls(replace(frame, size=len(kept)), kept, window > 0)

    @property
    def _known(self) -> int:
        """The last place that is read. Above a part nothing is known, so that its top is loose."""
        return self.frame.size // 2 if self.part else self.frame.size - 1

    def epsilon(self, delta: float) -> float:
        """Return proven eps(delta), or infinity if a part of the losses does not show it."""
        if self.part and not self.deltas[0] <= delta < self.deltas[self._known]:
            return math.inf
        return crossing(self.deltas, self.frame, delta)

    def delta(self, epsilon: float) -> float:
        """Return proven delta, by the chords of `crossing`, or infinity outside the losses."""
        frame = self.frame
        i = math.floor(-epsilon / frame.step - frame.first)
        if not 0 <= i < self._known:
            return math.inf
        losses = frame.losses()[i : i + 2]
        share = math.expm1(epsilon + float(losses[0])) / math.expm1(-frame.step)
        slack = 64 * UNIT * (1 + epsilon + abs(frame.first) * frame.step) / frame.step
        share = min(1.0, max(0.0, share) + slack)
        less, more = float(self.deltas[i]), float(self.deltas[i + 1])
        return min(1.0, (less + share * (more - less)) * (1 + 8 * UNIT))


def upper_epsilon(schedule: Schedule, plan: Frames, positions: Positions, delta: float) -> float:
    """Return proven eps(delta), from few losses if they show it, and else from all."""
    window = window_above(schedule, plan, positions)
    epsilon = _Pass.played(schedule, plan, positions, window).epsilon(delta)
    if math.isinf(epsilon):
        epsilon = _Pass.played(schedule, plan, positions).epsilon(delta)
    return epsilon


def crossing(deltas: Array, frame: Frame, delta: float) -> float:
    """Return the least epsilon at which upper bounds of w at a frame's losses surely meet delta.

    Raises:
        NotConverged: none of the losses does.
    """
    losses = frame.losses()
    fits = np.flatnonzero((deltas <= delta) & (losses <= 0.0))
    if not fits.size:
        raise NotConverged("epsilon lies beyond the losses that were looked at")
    i = int(fits[-1])
    if losses[i] == 0.0:
        return 0.0
    # delta(eps) is convex in e^eps: a chord to the next loss, where epsilon is smaller.
    less, more = float(deltas[i]), float(deltas[i + 1])
    share = max(0.0, (delta - less) / (more - less) * (1 - 8 * UNIT))
    epsilon = -float(losses[i]) + math.log1p(math.expm1(-frame.step) * share)
    return max(0.0, epsilon) * (1 + 16 * UNIT) + 16 * UNIT


def lower_epsilon(schedule: Schedule, plan: Frames, delta: float) -> float:
    """Return achieved eps(delta)."""
    frame = plan.lower
    stages, window = stages_below(schedule, plan, frame)
    deltas = play_lower(stages, frame, window)
    if window and deltas.max() <= delta:
        stages, window = stages_below(schedule, plan, frame, windowed=False)
        deltas = play_lower(stages, frame)
    losses = frame.losses()[: len(deltas)]
    exceeds = np.flatnonzero((deltas > delta) & (losses <= 0.0))
    if not exceeds.size:
        return 0.0
    i = int(exceeds[0])
    first = -float(losses[i])
    if i == 0 or deltas[i - 1] <= 0.0:
        return first * (1 - 8 * UNIT)
    # Where a line through the logarithms meets delta: a little less is tried as a loss itself.
    fall = math.log(float(deltas[i] / deltas[i - 1]))
    ahead = math.log(float(deltas[i]) / delta) / fall
    guess = first + frame.step * ahead * (1 - _BELOW)
    if frame.step <= _LITTLE * first:
        return first * (1 - 8 * UNIT)
    shifted = moved(frame, -guess)
    place = math.floor(-guess / frame.step) - frame.first
    if play_lower(stages, shifted, window)[place] > delta:
        return guess * (1 - _NUDGE)
    return first * (1 - 8 * UNIT)


def lower_delta(schedule: Schedule, plan: Frames, epsilon: float) -> float:
    """Return achieved delta(eps)."""
    loss = -epsilon * (1 + _NUDGE)
    frame = moved(plan.lower, loss)
    place = math.floor(loss / frame.step) - frame.first
    stages, window = stages_below(schedule, plan, frame)
    if window and place >= window:
        stages, window = stages_below(schedule, plan, frame, windowed=False)
    deltas = play_lower(stages, frame, window)
    return float(deltas[place])


# Answers that are kept.
_REMEMBERED = 32


def game_epsilon(schedule: Schedule, delta: float) -> Interval:
    """Return achieved and proven eps(delta), each by the best positions that are affordable.

    They are about one percent apart or less, and a few percent for thousands of rounds.

    Args:
        schedule: rounds in which one client is replaced or sends zero. See
            `rounds.check_schedule`.
        delta: in (0, 1), at least about 1e-17.
    Raises:
        NotConverged: the game would take too long. Unsupported: a round is of another kind.
    """
    ways = directions(schedule)
    if not schedule.rounds:
        return Interval(0.0, 0.0)
    uppers = {way: _upper_end(schedule, delta, way)[0] for way in ways}
    worse = max(uppers, key=lambda way: uppers[way])
    bracket = _in_direction(schedule, delta, worse)
    # The other direction cannot achieve more than is proven of it.
    others = [
        _in_direction(schedule, delta, way)
        for way in uppers
        if uppers[way] > bracket.lower and way is not worse
    ]
    return _worse([bracket, *others])


def _in_direction(schedule: Schedule, delta: float, direction: Direction) -> Interval:
    upper, share = _upper_end(schedule, delta, direction)
    lower = 0.0
    # Where the finer grid below would be too large, the proven end stands.
    with suppress(NotConverged):
        plan = plan_at_delta(schedule, delta, share, direction=direction)
        lower = lower_epsilon(schedule, plan, delta)
    return Interval.bracket(lower, upper)


# Deltas to which passes are tuned in a decade. A cell reaches down to this share of its own one, so
# that usual deltas are inside. The first cell has no delta below 1 but this one.
_LADDER, _REACH, _FIRST, _LEAST_DELTA = ("1", "0.5623", "0.3162", "0.1778"), 0.8, 0.9, 1e-300


def _rung(cell: int) -> float:
    """Return the delta of a cell, decimals of which 1e-5 and its like are some."""
    decade, part = divmod(cell, len(_LADDER))
    return float(f"{_LADDER[part]}e-{decade}")


def _cell(delta: float) -> int:
    """Return the cell of a delta: its rung times `_REACH` is at most delta."""
    cell = max(0, math.floor(-len(_LADDER) * math.log10(delta / _REACH)))
    while cell and _REACH * _rung(cell - 1) <= delta:
        cell -= 1
    while _REACH * _rung(cell) > delta:
        cell += 1
    return cell


@lru_cache(maxsize=_REMEMBERED)
def _tuned(schedule: Schedule, cell: int, direction: Direction) -> tuple[Frames, Positions]:
    """Return grid and positions of a cell.

    Raises:
        NotConverged: no positions are affordable.
    """
    return affordable(schedule, _at_delta(schedule, min(_rung(cell), _FIRST), direction))


# A search needs the upper bound, and the report of its result needs both.
@lru_cache(maxsize=_REMEMBERED)
def _pass_of(schedule: Schedule, cell: int, direction: Direction, *, part: bool) -> _Pass:
    plan, positions = _tuned(schedule, cell, direction)
    window = window_above(schedule, plan, positions) if part else 0
    return _Pass.played(schedule, plan, positions, window)


def _read(
    schedule: Schedule, cell: int, direction: Direction, read: Callable[[_Pass], float]
) -> float:
    """Return what few losses of a cell's pass show, or else what all show."""
    value = read(_pass_of(schedule, cell, direction, part=True))
    if math.isinf(value):
        value = read(_pass_of(schedule, cell, direction, part=False))
    return value


def _upper_end(schedule: Schedule, delta: float, direction: Direction) -> tuple[float, float]:
    """Return proven epsilon, and the share of it that the grid may have cost.

    Raises:
        NotConverged: no positions are affordable.
    """
    cell = _cell(delta)
    epsilon = _read(schedule, cell, direction, lambda one: one.epsilon(delta))
    return epsilon, _tuned(schedule, cell, direction)[0].share


def _upper_delta(schedule: Schedule, epsilon: float, direction: Direction) -> tuple[float, float]:
    """Return the least delta at which `_upper_end` is at most epsilon, and the share of the grid.

    A cell answers if its curve has a delta of this cell at epsilon. If two neighbors point to each
    other, it is their common end: there the curve of the cell above is below epsilon.
    """
    cell = _cell(max(math.exp(estimate_at_epsilon(schedule, epsilon)[2]), _LEAST_DELTA))
    before, moved_by = math.inf, 0
    while True:
        delta = _read(schedule, cell, direction, lambda one: one.delta(epsilon))
        share = _tuned(schedule, cell, direction)[0].share
        # An epsilon beyond the losses has a smaller delta.
        deeper = math.isinf(delta) or delta < _REACH * _rung(cell)
        if not deeper and (not cell or delta < _REACH * _rung(cell - 1)):
            return delta, share
        move = 1 if deeper else -1
        if move == -moved_by:
            end = _REACH * _rung(min(cell, cell + move))
            return max(min(delta, before), end), share
        cell, before, moved_by = cell + move, delta, move


def game_upper_epsilon(schedule: Schedule, delta: float) -> float:
    """Return the proven end of `game_epsilon`."""
    if not schedule.rounds:
        return 0.0
    return max(_upper_end(schedule, delta, way)[0] for way in directions(schedule))


@lru_cache(maxsize=32)
def prefix_upper_epsilons(round_: Round, rounds: int, delta: float) -> Array:
    """Return proven eps(delta) of the first n of ``rounds`` equal rounds, n = 0, 1, ..., in a pass.

    The pass is tuned to all rounds, so a fixed pair may be tighter for few rounds.

    Returns:
        shape (rounds + 1,), not decreasing.
    Raises:
        As `game_epsilon`.
    """
    schedule = rounds * round_
    epsilons = np.zeros(rounds + 1)
    for direction in directions(schedule):
        plan, positions = affordable(schedule, _at_delta(schedule, delta, direction))
        stages = stages_above(schedule, plan, plan.upper, positions)
        each = [crossing(w, plan.upper, delta) for w in rounds_above(stages, plan.upper)]
        epsilons = np.maximum(epsilons, each)
    # All rounds cost at least as much as a part of them.
    return np.minimum.accumulate(epsilons[::-1])[::-1]


def game_delta(schedule: Schedule, epsilon: float) -> Interval:
    """Return achieved and proven delta(eps), eps >= 0. See `game_epsilon`.

    The proven one is the inverse of `game_upper_epsilon`: at it, that is at most ``epsilon``.
    """
    brackets: list[Interval] = []
    for direction in directions(schedule) if schedule.rounds else ():
        upper, share = _upper_delta(schedule, epsilon, direction)
        lower = 0.0
        with suppress(NotConverged):
            plan = plan_at_epsilon(schedule, epsilon, share, direction=direction)
            lower = lower_delta(schedule, plan, epsilon)
        brackets.append(Interval.bracket(lower, upper))
    return _worse(brackets)


def _worse(brackets: list[Interval]) -> Interval:
    return Interval(
        max((one.lower for one in brackets), default=0.0),
        max((one.upper for one in brackets), default=0.0),
    )


def _at_delta(schedule: Schedule, delta: float, direction: Direction) -> Callable[[float], Frames]:
    return lambda share: plan_at_delta(schedule, delta, share, both=False, direction=direction)


# The deltas that passes of whole curves are tuned to, and how much further each serves.
_TUNED, _FURTHER = (1e-5, 1e-11), 1.1


@lru_cache(maxsize=8)
def _pass_of_curve(schedule: Schedule, tuned: float, direction: Direction) -> _Pass | None:
    try:
        plan_with = _at_delta(schedule, tuned, direction)
        plan, positions = affordable(schedule, plan_with, at_one_delta=False)
        # Smaller epsilons are looked at too, which need more of the losses.
        size = max(plan.upper.size, 2 * abs(plan.upper.first))
        wide = replace(plan, upper=replace(plan.upper, size=size))
        return _Pass.played(schedule, wide, positions)
    except NotConverged:
        return None


def curve_delta(schedule: Schedule, epsilon: float) -> float:
    """Return proven delta(eps), eps >= 0, or infinity if no pass is worth its time."""
    return max(_at(schedule, epsilon, direction) for direction in directions(schedule))


def _at(schedule: Schedule, epsilon: float, direction: Direction) -> float:
    best = math.inf
    for tuned in _TUNED:
        curve = _pass_of_curve(schedule, tuned, direction)
        if curve is None:
            break
        best = min(best, curve.delta(epsilon))
        if tuned < curve.delta(epsilon / _FURTHER) < math.inf:
            break
    return best
