"""Epsilon and delta of schedules with rounds of fixed size, when one client is replaced.

The adversary chooses positions anew in each round, knowing the past. Upper: the best of a finite
number of cells of positions, each bounded by one law. Lower: the better of two strategies in each
round, which explicit data sets follow. Both are played backward on a grid of losses.

Statement, proofs and error bounds: docs/derivations/fixed-size-game.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

import numpy as np

from dpacct.budget import Interval
from dpacct.errors import NotConverged
from dpacct.numerics.rounding import UNIT, Array
from dpacct.rounds import Round, Schedule
from dpacct.tight.game.backward import Frame, Stage, play_lower, play_upper, prepare, rounds_above
from dpacct.tight.game.cover import Cover, default_cover, small_cover, split
from dpacct.tight.game.plan import GamePlan, moved, plan_at_delta, plan_at_epsilon
from dpacct.tight.game.refine import check_gap, gains
from dpacct.tight.game.rounds import check_schedule, fewer_kinds, is_game, laws_above, laws_below

# Losses times laws times rounds: about two, ten and forty seconds.
_QUICK, MOST_EFFORT, _MOST_REFINED = 3e8, 2e9, 6e9
_DEFAULT_SHARE, _COARSE_SHARE = 1e-3, 4e-3
# What the laws of one kind of round cost; the cells of a larger cover are thinner.
_A_COVER, _CHEAP = 1.7e4, 6e8
# Two laws, each worth a few of those next to each other in memory.
_STRATEGIES = 8
_MOST_CELLS = 400
# One cell in so many is split at once.
_PART = 12
_NUDGE = 2.0**-45
_BELOW = 1e-6


def game_epsilon(schedule: Schedule, delta: float, gap: float | None = None) -> Interval:
    """Achieved and proven eps(delta).

    Args:
        schedule: of rounds in which one client is replaced; see `rounds.check_schedule`.
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
    plan, cover = _start(schedule, lambda share: plan_at_delta(schedule, delta, share), gap)
    lower = _lower_epsilon(schedule, plan, delta) if _cheap(schedule, plan.lower) else 0.0
    upper = _upper_epsilon(schedule, plan, cover, delta)
    coarse: GamePlan | None = None
    while gap is not None and upper > lower * (1 + gap):
        coarse = coarse or plan_at_delta(schedule, delta, _COARSE_SHARE)
        cover = _refined(schedule, coarse, cover, upper)
        _check_cells(cover, gap, lower, upper)
        upper = min(upper, _upper_epsilon(schedule, plan, cover, delta))
    return Interval.bracket(lower, upper)


def game_upper_epsilon(schedule: Schedule, delta: float) -> float:
    """The proven end of `game_epsilon`."""
    if not schedule.rounds:
        return 0.0
    frame, deltas = deltas_at(schedule, delta)
    return _crossing(deltas, frame, delta)


def check_worth(schedule: Schedule, delta: float) -> None:
    """Refuse what `game_upper_epsilon` would refuse for its time, before anything is played.

    Raises:
        NotConverged: the game would take too long, or delta is too small for it.
    """
    if schedule.rounds:
        _start(schedule, lambda share: plan_at_delta(schedule, delta, share, both=False), None)


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
    check_schedule(schedule)

    def plan_with(share: float) -> GamePlan:
        return plan_at_delta(schedule, delta, share, both=False)

    plan, cover = _start(schedule, plan_with, None)
    stages = _stages(schedule, plan, plan.upper, cover)
    found = [_crossing(w, plan.upper, delta) for w in rounds_above(stages, plan.upper)]
    # All rounds cost at least what a part of them does.
    return np.minimum.accumulate(found[::-1])[::-1]


def deltas_at(schedule: Schedule, delta: float, *, whole: bool = False) -> tuple[Frame, Array]:
    """Proven delta at every loss of a frame tuned to one delta: eps is minus the loss.

    Args:
        schedule, delta: as for `game_epsilon`.
        whole: whether smaller epsilons are looked at too, which need more of the losses.
    Raises:
        As `game_epsilon`.
    """
    check_schedule(schedule)

    def plan_with(share: float) -> GamePlan:
        return plan_at_delta(schedule, delta, share, both=False)

    plan, cover = _start(schedule, plan_with, None)
    frame = plan.upper
    if whole:
        frame = replace(frame, size=max(frame.size, 2 * abs(frame.first)))
    return frame, _play_above(schedule, plan, cover, frame)


def game_delta(schedule: Schedule, epsilon: float) -> Interval:
    """Achieved and proven delta(eps), eps >= 0; see `game_epsilon`."""
    check_schedule(schedule)
    if not schedule.rounds:
        return Interval(0.0, 0.0)
    plan, cover = _start(schedule, lambda share: plan_at_epsilon(schedule, epsilon, share), None)
    lower = _lower_delta(schedule, plan, epsilon) if _cheap(schedule, plan.lower) else 0.0
    return Interval.bracket(lower, _upper_delta(schedule, plan, cover, epsilon))


def _start(
    schedule: Schedule, plan_with: Callable[[float], GamePlan], gap: float | None
) -> tuple[GamePlan, Cover]:
    """A plan and a cover that are affordable, the best first.

    Raises:
        NotConverged: none is.
    """
    if gap is not None:
        return plan_with(min(_DEFAULT_SHARE, gap / 8)), default_cover()
    effort = math.inf
    for share, cover, most in (
        (_DEFAULT_SHARE, default_cover(), _QUICK),
        (_COARSE_SHARE, default_cover(), MOST_EFFORT),
        (_COARSE_SHARE, small_cover(), MOST_EFFORT),
    ):
        plan = plan_with(share)
        effort = _effort(schedule, plan.upper, cover)
        if effort <= most:
            return plan, cover
    raise NotConverged(
        f"the game of {schedule.rounds} rounds would need {effort:.2g} steps, more than "
        f"{MOST_EFFORT:.2g}"
    )


def _cheap(schedule: Schedule, frame: Frame) -> bool:
    """Whether two strategies are worth their time; remove alone is known otherwise."""
    return _STRATEGIES * schedule.rounds * frame.size <= _CHEAP


def _effort(schedule: Schedule, frame: Frame, cover: Cover) -> float:
    kinds = fewer_kinds(schedule).distinct()
    laws = sum(is_game(round_) for round_ in kinds) * _A_COVER * len(cover) ** 2
    return laws + float(frame.size) * sum(
        count * (len(cover) if is_game(round_) else 1) for round_, count in kinds.items()
    )


def two_strategies_delta(schedule: Schedule, epsilon: float) -> float:
    """What the better of two strategies in each round surely reaches, at eps >= 0."""
    check_schedule(schedule)
    return _lower_delta(schedule, plan_at_epsilon(schedule, epsilon), epsilon)


def _upper_epsilon(schedule: Schedule, plan: GamePlan, cover: Cover, delta: float) -> float:
    return _crossing(_play_above(schedule, plan, cover, plan.upper), plan.upper, delta)


def _crossing(deltas: Array, frame: Frame, delta: float) -> float:
    """The least epsilon at which upper bounds of w at the losses of a frame surely meet delta."""
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


def _lower_epsilon(schedule: Schedule, plan: GamePlan, delta: float) -> float:
    frame = plan.lower
    stages = _stages(schedule, plan, frame, None)
    deltas, losses = play_lower(stages, frame), frame.losses()
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
    shifted = moved(frame, -guess)
    place = math.floor(-guess / frame.step) - frame.first
    if play_lower(stages, shifted)[place] > delta:
        return guess * (1 - _NUDGE)
    return first * (1 - 8 * UNIT)


def _upper_delta(schedule: Schedule, plan: GamePlan, cover: Cover, epsilon: float) -> float:
    loss = -epsilon * (1 - _NUDGE)
    frame = moved(plan.upper, loss)
    deltas = _play_above(schedule, plan, cover, frame)
    return float(deltas[math.floor(loss / frame.step) - frame.first])


def _lower_delta(schedule: Schedule, plan: GamePlan, epsilon: float) -> float:
    loss = -epsilon * (1 + _NUDGE)
    frame = moved(plan.lower, loss)
    stages = _stages(schedule, plan, frame, None)
    return float(play_lower(stages, frame)[math.floor(loss / frame.step) - frame.first])


def _play_above(schedule: Schedule, plan: GamePlan, cover: Cover, frame: Frame) -> Array:
    effort = _effort(schedule, frame, cover)
    if effort > _MOST_REFINED:
        raise NotConverged(
            f"so narrow a gap would need {effort:.2g} steps, more than {_MOST_REFINED:.2g}: ask "
            f"for a wider one"
        )
    stages = _stages(schedule, plan, frame, cover)
    return play_upper(stages, frame)


def _stages(
    schedule: Schedule, plan: GamePlan, frame: Frame, cover: Cover | None
) -> list[tuple[Stage, int]]:
    """The phases with laws above them, by the cells of a cover, or below them without one."""
    ready: dict[Round, Stage] = {}
    played = schedule if cover is None else fewer_kinds(schedule)
    for round_ in played.distinct():
        if cover is None:
            laws = laws_below(round_, frame.step, plan.negligible)
        else:
            laws = laws_above(round_, cover, frame.step, plan.negligible)
        ready[round_] = prepare(laws, frame, upper=cover is not None)
    return [(ready[round_], count) for round_, count in played.phases]


def _refined(schedule: Schedule, coarse: GamePlan, cover: Cover, epsilon: float) -> Cover:
    """The cover with those cells split that add the most."""
    frame = coarse.upper
    above = _stages(schedule, coarse, frame, cover)
    below = _stages(fewer_kinds(schedule), coarse, frame, None)
    stages = [
        (cells, plain, count) for (cells, count), (plain, _) in zip(above, below, strict=True)
    ]
    _, found = gains(stages, frame, -epsilon)
    if len(found) < len(cover) or not found.any():
        return cover
    order = np.argsort(found)[::-1]
    most = [int(k) for k in order[: max(2, len(cover) // _PART)]]
    return split(cover, [cover[k] for k in most if found[k] > 0])


def _check_cells(cover: Cover, gap: float, lower: float, upper: float) -> None:
    if len(cover) > _MOST_CELLS:
        raise NotConverged(
            f"the gap {gap:g} is not reached with {_MOST_CELLS} cells: the answer lies in "
            f"[{lower:.8g}, {upper:.8g}]; ask for a wider gap"
        )
