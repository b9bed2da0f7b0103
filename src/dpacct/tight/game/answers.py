"""Epsilon at a delta and delta at an epsilon, read from a game that was played backward."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.rounding import UNIT, Array
from dpacct.rounds import Schedule
from dpacct.tight.game.backward import Frame, play_lower, play_upper
from dpacct.tight.game.plan import GamePlan, moved
from dpacct.tight.game.rounds import Positions
from dpacct.tight.game.stages import stages_above, stages_below, window_above

# By so much a loss is put on the safe side of an epsilon.
_NUDGE = 2.0**-45
_BELOW = 1e-6
# A step of at most this share of epsilon is not worth a second pass.
_LITTLE = 3e-4


def play_above(schedule: Schedule, plan: GamePlan, positions: Positions, frame: Frame) -> Array:
    """Proven delta at the losses of a frame."""
    return play_upper(stages_above(schedule, plan, frame, positions), frame)


def upper_epsilon(schedule: Schedule, plan: GamePlan, positions: Positions, delta: float) -> float:
    """Proven eps(delta)."""
    frame, window = plan.upper, window_above(schedule, plan, positions)
    deltas = play_upper(stages_above(schedule, plan, frame, positions, window), frame, window)
    if window and not deltas[0] <= delta < deltas[-1]:
        deltas = play_above(schedule, plan, positions, frame)
    return crossing(deltas, replace(frame, size=len(deltas)), delta)


def crossing(deltas: Array, frame: Frame, delta: float) -> float:
    """The least epsilon at which upper bounds of w at the losses of a frame surely meet delta.

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


def lower_epsilon(schedule: Schedule, plan: GamePlan, delta: float) -> float:
    """Achieved eps(delta)."""
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


def upper_delta(schedule: Schedule, plan: GamePlan, positions: Positions, epsilon: float) -> float:
    """Proven delta(eps)."""
    loss = -epsilon * (1 - _NUDGE)
    frame, window = moved(plan.upper, loss), window_above(schedule, plan, positions)
    place = math.floor(loss / frame.step) - frame.first
    window = window if place < window else 0
    deltas = play_upper(stages_above(schedule, plan, frame, positions, window), frame, window)
    return float(deltas[place])


def lower_delta(schedule: Schedule, plan: GamePlan, epsilon: float) -> float:
    """Achieved delta(eps)."""
    loss = -epsilon * (1 + _NUDGE)
    frame = moved(plan.lower, loss)
    place = math.floor(loss / frame.step) - frame.first
    stages, window = stages_below(schedule, plan, frame)
    if window and place >= window:
        stages, window = stages_below(schedule, plan, frame, windowed=False)
    deltas = play_lower(stages, frame, window)
    return float(deltas[place])
