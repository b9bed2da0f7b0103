"""Epsilon and delta of schedules with rounds of fixed size, one client replaced or set to zero.

The adversary chooses positions anew in each round, knowing the past. Upper: the best of a finite
number of cells of positions, each bounded by one law. Lower: the better of two strategies in each
round, which explicit data sets follow. Both are played backward on a grid of losses.

Statement, proofs and error bounds: docs/derivations/fixed-size-game.md.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache

import numpy as np

from dpacct.budget import Interval
from dpacct.errors import NotConverged
from dpacct.numerics.rounding import Array
from dpacct.pairs.dominating import Direction
from dpacct.rounds import Round, Schedule
from dpacct.tight.game.affordable import affordable
from dpacct.tight.game.answers import (
    crossing,
    lower_delta,
    lower_epsilon,
    play_above,
    upper_delta,
    upper_epsilon,
)
from dpacct.tight.game.backward import Frame, rounds_above
from dpacct.tight.game.gap import narrow_epsilon
from dpacct.tight.game.kernels import (
    cell_kernel,
    cell_side,
    known_values,
    sampled_above,
    strategy_kernels,
)
from dpacct.tight.game.mixtures import mixing_laws
from dpacct.tight.game.plan import GamePlan, plan_at_delta, plan_at_epsilon
from dpacct.tight.game.refine import check_gap
from dpacct.tight.game.rounds import check_schedule, directions
from dpacct.tight.game.stages import stages_above
from dpacct.tight.game.thinned import thinned_laws

# Answers that are kept.
_REMEMBERED = 32


def game_epsilon(schedule: Schedule, delta: float, gap: float | None = None) -> Interval:
    """Achieved and proven eps(delta).

    Args:
        schedule: of rounds in which one client is replaced or sends zero; see
            `rounds.check_schedule`.
        delta: in (0, 1), at least about 1e-17.
        gap: the relative width wanted; by default a cover that serves most settings is taken,
            which leaves about one percent or less, and a few where there are thousands of rounds.
    Raises:
        NotConverged: the game would take too long, or the width is not reached.
        Unsupported: a round is of another kind. InvalidParameter: ``gap`` out of range.
    """
    check_gap(gap)
    check_schedule(schedule)
    if not schedule.rounds:
        return Interval(0.0, 0.0)
    if gap is None:
        return _usual_epsilon(schedule, delta)
    found: list[Interval] = []
    for direction in directions(schedule):
        known = None
        with suppress(NotConverged):
            known = _in_direction(schedule, delta, direction)
        found.append(narrow_epsilon(schedule, delta, gap, direction, known))
    return _worse(found)


def _usual_epsilon(schedule: Schedule, delta: float) -> Interval:
    """The larger of both directions, each by the best positions that are affordable.

    Raises:
        NotConverged: none are.
    """
    uppers = {way: _upper_end(schedule, delta, way)[0] for way in directions(schedule)}
    worse = max(uppers, key=lambda way: uppers[way])
    found = _in_direction(schedule, delta, worse)
    # The other direction cannot achieve more than is proven of it.
    others = [
        _in_direction(schedule, delta, way)
        for way in uppers
        if uppers[way] > found.lower and way is not worse
    ]
    return _worse([found, *others])


def _in_direction(schedule: Schedule, delta: float, direction: Direction) -> Interval:
    upper, share = _upper_end(schedule, delta, direction)
    plan = plan_at_delta(schedule, delta, share, direction=direction)
    return Interval.bracket(lower_epsilon(schedule, plan, delta), upper)


# A search asks for the proven side, and whoever tells its result for both.
@lru_cache(maxsize=_REMEMBERED)
def _upper_end(schedule: Schedule, delta: float, direction: Direction) -> tuple[float, float]:
    """Proven epsilon, and the share of it that the grid may have cost.

    Raises:
        NotConverged: no positions are affordable.
    """
    plan, positions = affordable(schedule, _at_delta(schedule, delta, direction))
    return upper_epsilon(schedule, plan, positions, delta), plan.share


def game_upper_epsilon(schedule: Schedule, delta: float) -> float:
    """The proven end of `game_epsilon`."""
    if not schedule.rounds:
        return 0.0
    return max(_upper_end(schedule, delta, way)[0] for way in _checked_directions(schedule))


@lru_cache(maxsize=32)
def prefix_upper_epsilons(round_: Round, rounds: int, delta: float) -> Array:
    """Proven eps(delta) of the first n of so many equal rounds, n = 0 to ``rounds``, by one pass.

    It is tuned to all of them, so that for a few a fixed pair may say more.

    Returns:
        shape (rounds + 1,), not decreasing.
    Raises:
        As `game_epsilon`.
    """
    schedule = rounds * round_
    found = np.zeros(rounds + 1)
    for direction in _checked_directions(schedule):
        plan, positions = affordable(schedule, _at_delta(schedule, delta, direction))
        stages = stages_above(schedule, plan, plan.upper, positions)
        each = [crossing(w, plan.upper, delta) for w in rounds_above(stages, plan.upper)]
        found = np.maximum(found, each)
    # All rounds cost at least what a part of them does.
    return np.minimum.accumulate(found[::-1])[::-1]


def deltas_at(
    schedule: Schedule,
    delta: float,
    direction: Direction = Direction.REMOVE,
    *,
    whole: bool = False,
) -> tuple[Frame, Array]:
    """Proven delta at every loss of a frame tuned to one delta: eps is minus the loss.

    Args:
        schedule, delta: as for `game_epsilon`.
        direction: one of `rounds.directions`; the largest of their values counts.
        whole: whether smaller epsilons are looked at too, which need more of the losses.
    Raises:
        As `game_epsilon`.
    """
    check_schedule(schedule)
    plan, positions = affordable(schedule, _at_delta(schedule, delta, direction))
    frame = plan.upper
    if whole:
        frame = replace(frame, size=max(frame.size, 2 * abs(frame.first)))
    return frame, play_above(schedule, plan, positions, frame)


def game_delta(schedule: Schedule, epsilon: float) -> Interval:
    """Achieved and proven delta(eps), eps >= 0; see `game_epsilon`."""
    check_schedule(schedule)
    if not schedule.rounds:
        return Interval(0.0, 0.0)
    found: list[Interval] = []
    for direction in directions(schedule):
        plan, positions = affordable(
            schedule,
            lambda share, way=direction: plan_at_epsilon(schedule, epsilon, share, direction=way),
        )
        lower = lower_delta(schedule, plan, epsilon)
        found.append(Interval.bracket(lower, upper_delta(schedule, plan, positions, epsilon)))
    return _worse(found)


def _worse(found: list[Interval]) -> Interval:
    return Interval(max(one.lower for one in found), max(one.upper for one in found))


def _checked_directions(schedule: Schedule) -> tuple[Direction, ...]:
    check_schedule(schedule)
    return directions(schedule)


def _at_delta(
    schedule: Schedule, delta: float, direction: Direction
) -> Callable[[float], GamePlan]:
    return lambda share: plan_at_delta(schedule, delta, share, both=False, direction=direction)


def two_strategies_delta(schedule: Schedule, epsilon: float) -> float:
    """What the better of two strategies in each round surely reaches, at eps >= 0."""
    check_schedule(schedule)
    return lower_delta(schedule, plan_at_epsilon(schedule, epsilon), epsilon)


def forget() -> None:
    """Compute laws and answers anew from here on; for measurements of time."""
    for kept in (
        _upper_end,
        cell_kernel,
        cell_side,
        known_values,
        mixing_laws,
        sampled_above,
        strategy_kernels,
        thinned_laws,
    ):
        kept.cache_clear()
