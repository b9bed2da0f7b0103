"""Where the game is looked at: the tilt, the step and the losses. Nothing here is proven.

What is chosen here decides how close the bounds are and what they cost, never whether they hold.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from dpacct.errors import NotConverged
from dpacct.pairs.dominating import Direction
from dpacct.rounds import Adjacency, Phase, Schedule
from dpacct.tight.composition import Composition
from dpacct.tight.contour import (
    epsilon_estimate,
    log_delta_estimate,
    tilt_at_delta,
    tilt_at_epsilon,
)
from dpacct.tight.game.backward import Frame
from dpacct.tight.game.rounds import (
    heavy_pair,
    least_frame,
    moment_law,
    moment_on_grid,
    simple_pair,
)

# Share of epsilon that the grid may cost.
_GRID_SHARE = 1e-3
# What is left aside, relative to delta.
_NEGLIGIBLE, _OUTSIDE = 1e-6, 1e-3
_ATTEMPTS = 8
_TEN = math.log(10.0)
_PER_OCTAVE = 4
_WORTH = 0.7
# The lower bound's part of that share.
_LOWER_SHARE = 0.5
_FINER = 4
# From so many steps to the least loss on, its place on the grid matters little; below, the last
# point is tried at these shares of an interval before it. How much finer a grid may be for that.
_MANY, _PLACES, _FINEST = 12, (0.3, 0.4, 0.5), 0.7
_BITS = 20
# Of so many kinds of rounds laws are made for a plan.
_MOST_LAWS = 24
_LEAST_EPSILON = 1e-3
_SMALLEST_LOG_DELTA = -40.0
MAX_POINTS = 1 << 17


@dataclass(frozen=True, slots=True)
class GamePlan:
    """Frames for both bounds, and what of one round's loss may be left aside.

    Attributes:
        upper, lower: frames; the lower one is finer, since two strategies are cheap.
        negligible: probability.
        epsilon: about the answer.
        deviation: of the tilted sum of losses, where it is known; 0 otherwise.
        direction: which of the neighbors plays P.
        share: of epsilon, which the grid may cost.
    """

    upper: Frame
    lower: Frame
    negligible: float
    epsilon: float
    deviation: float = 0.0
    direction: Direction = Direction.REMOVE
    share: float = _GRID_SHARE


def moved(frame: Frame, loss: float) -> Frame:
    """The frame moved by less than a step, so that it holds this loss but for its rounding."""
    offset = loss - math.floor(loss / frame.step) * frame.step
    return Frame(frame.step, frame.first, frame.size, frame.tilt, offset)


def plan_at_delta(
    schedule: Schedule,
    delta: float,
    share: float = _GRID_SHARE,
    *,
    both: bool = True,
    direction: Direction = Direction.REMOVE,
) -> GamePlan:
    """A plan for eps(delta); unless for ``both`` bounds, the lower frame is that of the upper.

    Raises:
        NotConverged: delta is too small, or the grid would be too large.
    """
    log_delta = math.log(delta)
    simple = Composition.of_schedule(schedule, simple_pair, Direction.REMOVE)
    tilt, at = tilt_at_delta(simple, log_delta)
    epsilon = max(epsilon_estimate(tilt, at, log_delta), _LEAST_EPSILON)
    heavy = Composition.of_schedule(schedule, heavy_pair, Direction.REMOVE)
    tilt = min(tilt, tilt_at_delta(heavy, log_delta)[0])
    return replace(
        _plan(schedule, simple, tilt, epsilon, log_delta, share, both=both), direction=direction
    )


def plan_at_epsilon(
    schedule: Schedule,
    epsilon: float,
    share: float = _GRID_SHARE,
    *,
    direction: Direction = Direction.REMOVE,
) -> GamePlan:
    """A plan for delta(eps).

    Raises:
        NotConverged: delta is too small, or the grid would be too large.
    """
    simple = Composition.of_schedule(schedule, simple_pair, Direction.REMOVE)
    tilt, at = tilt_at_epsilon(simple, epsilon)
    log_delta = min(log_delta_estimate(tilt, at, epsilon), -1e-3)
    least = max(epsilon, _LEAST_EPSILON)
    heavy = Composition.of_schedule(schedule, heavy_pair, Direction.REMOVE)
    tilt = min(tilt, tilt_at_delta(heavy, log_delta)[0])
    return replace(
        _plan(schedule, simple, tilt, least, log_delta, share, both=True), direction=direction
    )


def _plan(
    schedule: Schedule,
    simple: Composition,
    tilt: float,
    epsilon: float,
    log_delta: float,
    share: float,
    *,
    both: bool,
) -> GamePlan:
    if log_delta < _SMALLEST_LOG_DELTA:
        raise NotConverged(f"the game reaches down to delta {math.exp(_SMALLEST_LOG_DELTA):.1g}")
    # P(loss > epsilon) is about 1 + tilt times delta.
    far = log_delta + math.log(_OUTSIDE) - math.log1p(tilt)
    most = max(epsilon_estimate(*tilt_at_delta(simple, far), far), 1.02 * epsilon)
    most = max(most, least_frame(schedule, math.exp(far) / schedule.rounds))
    # Of few values, like the step: laws are kept between evaluations.
    negligible = 10.0 ** math.floor(math.log10(_NEGLIGIBLE / schedule.rounds) + log_delta / _TEN)
    frames: list[Frame] = []
    for upper in (True, False) if both else (True,):
        part = share if upper else _LOWER_SHARE * share
        step = _step(schedule, simple, tilt, epsilon, part, negligible, upper=upper)
        if not upper:
            # Two strategies are cheap, but not free.
            least = lattice(min(frames[0].step / _FINER, _least_loss(schedule) / 4))
            # Nor does the simple pair tell what its law loses on a grid where it is not played.
            simply_played = schedule.adjacency is not Adjacency.ZERO_OUT
            step = max(step, least) if simply_played else least
            if simply_played and step * _MANY > _least_loss(schedule):
                lost = _lost(schedule, simple, tilt, negligible, upper=False)
                step = _aligned(lost, step, _least_loss(schedule), part * epsilon * tilt)
        first, size = math.floor(-most / step) - 8, math.ceil((2 * most - epsilon) / step) + 16
        if size > MAX_POINTS:
            raise NotConverged(f"the game would need {size} losses, more than {MAX_POINTS}")
        frames.append(Frame(step, first, size, tilt))
    alike = len(schedule.distinct()) == 1
    deviation = math.sqrt(simple.cumulants(tilt).variance) if alike else 0.0
    return GamePlan(frames[0], frames[-1], negligible, epsilon, deviation, share=share)


def lattice(step: float) -> float:
    """At most ``step``, one of four steps in each octave: 4, 5, 6 or 7 times a power of two."""
    mantissa, exponent = math.frexp(step)
    return math.ldexp(math.floor(mantissa * 2 * _PER_OCTAVE), exponent - 3)


def _least_loss(schedule: Schedule) -> float:
    """How far below zero the loss of remove lies at most, in the round where that is least."""
    rates = [r.sampling_rate for r in schedule.distinct() if r.sampling_rate < 1.0]
    return min((-math.log1p(-rate) for rate in rates), default=math.inf)


def _step(
    schedule: Schedule,
    simple: Composition,
    tilt: float,
    epsilon: float,
    share: float,
    negligible: float,
    *,
    upper: bool,
) -> float:
    """The step with which M(tilt) on the grid is off by about the share of epsilon wanted."""
    wanted = share * epsilon * tilt
    lost_with = _lost(schedule, simple, tilt, negligible, upper=upper)
    step = math.sqrt(8 * share * epsilon / (schedule.rounds * (1 + tilt)))
    if not upper:
        # A law below has no losses beyond the least loss of remove and the largest of add.
        step = min(step, _least_loss(schedule) / 4)
    before = math.inf
    for _ in range(_ATTEMPTS):
        step = lattice(step)
        lost = lost_with(step)
        if lost <= 1.2 * wanted:
            return step
        if lost > _WORTH * before:
            # What is left comes from large losses, whose grid is coarser.
            return 2 * step
        before = lost
        step *= min(max(math.sqrt(wanted / lost), 0.25), 0.5)
    return lattice(step)


def _lost(
    schedule: Schedule, simple: Composition, tilt: float, negligible: float, *, upper: bool
) -> Callable[[float], float]:
    """By how much log M(tilt) of the simple strategy is off on a grid with a step."""
    if len(schedule.distinct()) > _MOST_LAWS:
        schedule = _fewer(schedule)
        simple = Composition.of_schedule(schedule, simple_pair, Direction.REMOVE)
    exact = float(simple.log_moment(tilt).lower)

    def lost(step: float) -> float:
        off = -exact
        for round_, count in schedule.distinct().items():
            law = moment_law(round_, step, negligible, upper=upper)
            off += count * moment_on_grid(law, tilt, step)
        return off if upper else -off

    return lost


def _fewer(schedule: Schedule) -> Schedule:
    """As many rounds of a few of the kinds: about the same grid serves."""
    kinds = sorted(
        schedule.distinct().items(),
        key=lambda kind: kind[0].sampling_rate / kind[0].noise_multiplier,
    )
    each = math.ceil(len(kinds) / _MOST_LAWS)
    groups = [kinds[first : first + each] for first in range(0, len(kinds), each)]
    return Schedule(
        Phase(group[len(group) // 2][0], sum(count for _, count in group)) for group in groups
    )


def _aligned(
    lost: Callable[[float], float], usual: float, least_loss: float, wanted: float
) -> float:
    """A step for the lower bound where the least loss is a few steps.

    Much of a round's probability lies next to that loss, so that what a law below lacks depends
    on where the last point lies before it: of a coarse step that lies well there may be less than
    of a finer one.
    """
    best, steps = (
        (lost(usual), usual),
        [_rounded(least_loss / (whole + part)) for whole in range(2, _MANY) for part in _PLACES],
    )
    for step in (step for step in steps if step > _FINEST * usual):
        if best[0] <= wanted and step <= best[1]:
            break
        best = min(best, (lost(step), step))
    return best[1]


def _rounded(step: float) -> float:
    """The step with few bits, so that its multiples are exact."""
    mantissa, exponent = math.frexp(step)
    return math.ldexp(math.floor(mantissa * 2**_BITS), exponent - _BITS)
