"""Grids for the game (tilt, step and losses), its stages there, and their cost.

These choices decide the width and the cost of the bounds, never their validity.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from dpacct.errors import NotConverged
from dpacct.pairs.dominating import Direction, PairsOf
from dpacct.rounds import Adjacency, Phase, Round, Schedule
from dpacct.tight.composition import Composition
from dpacct.tight.contour import (
    epsilon_estimate,
    log_delta_estimate,
    tilt_at_delta,
    tilt_at_epsilon,
)
from dpacct.tight.engines import composed_epsilon
from dpacct.tight.game import has_choice, is_game
from dpacct.tight.game.kernels import TurnGuide, Turns
from dpacct.tight.game.laws import Kernel
from dpacct.tight.game.play import Frame, Stage, length_of, prepare, reach_of_laws, repeated_below
from dpacct.tight.game.positions import USUAL_SHARE, Thinned
from dpacct.tight.game.rounds import (
    RANGES,
    Played,
    Positions,
    beside,
    heavy_pairs,
    in_order,
    laws_above,
    laws_below,
    least_frame,
    moment_law,
    moment_on_grid,
    rate_bounds,
    simple_pairs,
    stages_of,
)

# Share of epsilon that the grid may cost.
_GRID_SHARE = 1e-3
# Mass that is left aside, relative to delta.
_NEGLIGIBLE, _OUTSIDE = 1e-6, 1e-3
_ATTEMPTS = 8
_TEN = math.log(10.0)
_PER_OCTAVE = 4
_WORTH = 0.7
# The lower bound's part of that share.
_LOWER_SHARE = 0.5
_FINER = 4
# From this number of steps to the least loss on, its place on the grid matters little.
_MANY = 12
_BITS = 20
# Largest number of kinds of rounds whose laws are made for a plan.
_MOST_LAWS = 24
_LEAST_EPSILON = 1e-3
_FEW_ROUNDS = 4
_SMALLEST_LOG_DELTA = -40.0
MAX_POINTS = 1 << 17


@dataclass(frozen=True, slots=True)
class Frames:
    """Frames for both bounds, and the part of one round's loss that may be left aside.

    Attributes:
        upper, lower: frames. The lower one is finer, since two strategies are cheap.
        negligible: probability.
        epsilon: about the answer.
        deviation: of the tilted sum of losses if it is known, otherwise 0.
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
    """Return the frame moved by less than a step, so that it holds this loss up to rounding."""
    offset = loss - math.floor(loss / frame.step) * frame.step
    return Frame(frame.step, frame.first, frame.size, frame.tilt, offset)


def plan_at_delta(
    schedule: Schedule,
    delta: float,
    share: float = _GRID_SHARE,
    *,
    both: bool = True,
    direction: Direction = Direction.REMOVE,
) -> Frames:
    """Return a plan for eps(delta). Without ``both`` bounds, the lower frame equals the upper one.

    Raises:
        NotConverged: delta is too small, or the grid would be too large.
    """
    log_delta, simple = math.log(delta), _composition(schedule, simple_pairs)
    tilt, at = tilt_at_delta(simple, log_delta)
    epsilon = epsilon_estimate(tilt, at, log_delta)
    if schedule.rounds <= _FEW_ROUNDS:
        # A saddle point is far from the answer there.
        with suppress(NotConverged):
            epsilon = composed_epsilon(simple, delta).upper
    plan = _plan(schedule, simple, tilt, epsilon, log_delta, share, both=both)
    return replace(plan, direction=direction)


def plan_at_epsilon(
    schedule: Schedule,
    epsilon: float,
    share: float = _GRID_SHARE,
    *,
    direction: Direction = Direction.REMOVE,
) -> Frames:
    """Return a plan for delta(eps).

    Raises:
        NotConverged: delta is too small, or the grid would be too large.
    """
    simple, tilt, log_delta = estimate_at_epsilon(schedule, epsilon)
    plan = _plan(schedule, simple, tilt, epsilon, log_delta, share, both=True)
    return replace(plan, direction=direction)


def estimate_at_epsilon(schedule: Schedule, epsilon: float) -> tuple[Composition, float, float]:
    """Return the simple pairs, and their tilt and about their log delta at an epsilon."""
    simple = _composition(schedule, simple_pairs)
    tilt, at = tilt_at_epsilon(simple, epsilon)
    return simple, tilt, min(log_delta_estimate(tilt, at, epsilon), -1e-3)


def _composition(schedule: Schedule, pairs: PairsOf) -> Composition:
    return Composition.of_schedule(schedule, pairs, Direction.REMOVE)


def _plan(
    schedule: Schedule,
    simple: Composition,
    tilt: float,
    epsilon: float,
    log_delta: float,
    share: float,
    *,
    both: bool,
) -> Frames:
    """Return a plan near an answer: epsilon, log delta and the tilt of the simple pairs there."""
    epsilon = max(epsilon, _LEAST_EPSILON)
    if math.isinf(epsilon):
        raise NotConverged("infinite losses are more probable than the delta of the game")
    tilt = min(tilt, tilt_at_delta(_composition(schedule, heavy_pairs), log_delta)[0])
    if log_delta < _SMALLEST_LOG_DELTA:
        raise NotConverged(f"the game reaches down to delta {math.exp(_SMALLEST_LOG_DELTA):.1g}")
    # P(loss > epsilon) is about 1 + tilt times delta.
    far = log_delta + math.log(_OUTSIDE) - math.log1p(tilt)
    most = max(epsilon_estimate(*tilt_at_delta(simple, far), far), 1.02 * epsilon)
    most = max(most, least_frame(schedule, math.exp(far) / schedule.rounds))
    # Of few values, like the step: laws are kept between evaluations.
    negligible = 10.0 ** math.floor(math.log10(_NEGLIGIBLE / schedule.rounds) + log_delta / _TEN)

    def framed(step: float) -> Frame:
        first, size = math.floor(-most / step) - 8, math.ceil((2 * most - epsilon) / step) + 16
        if size > MAX_POINTS:
            raise NotConverged(f"the game would need {size} losses, more than {MAX_POINTS}")
        return Frame(step, first, size, tilt)

    grid = (schedule, simple, tilt, epsilon)
    upper = lower = framed(_step(*grid, share, negligible, upper=True))
    if both:
        part, least_loss = _LOWER_SHARE * share, _least_loss(schedule)
        # Two strategies are cheap, but not free.
        least = lattice(min(upper.step / _FINER, least_loss / 4))
        step = least
        if schedule.adjacency is not Adjacency.ZERO_OUT:
            # Where it is not played, the simple pair does not show the loss of its law on a grid.
            step = max(_step(*grid, part, negligible, upper=False), least)
            if step * _MANY > least_loss:
                lost = _lost(schedule, simple, tilt, negligible, upper=False)
                step = _aligned(lost, step, least_loss, part * epsilon * tilt)
        lower = framed(step)
    alike = len(schedule.only_rounds()) == 1
    deviation = math.sqrt(simple.cumulants(tilt).variance) if alike else 0.0
    return Frames(upper, lower, negligible, epsilon, deviation, share=share)


def lattice(step: float) -> float:
    """Return at most ``step``: one of four steps an octave, 4, 5, 6 or 7 times a power of two."""
    mantissa, exponent = math.frexp(step)
    return math.ldexp(math.floor(mantissa * 2 * _PER_OCTAVE), exponent - 3)


def _least_loss(schedule: Schedule) -> float:
    """Return the smallest distance below zero, over rounds, of the least loss of remove."""
    rates = [r.sampling_rate for r in schedule.only_rounds() if r.sampling_rate < 1.0]
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
    """Return the step at which M(tilt) on the grid is off by about the wanted share of epsilon."""
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
            # The rest comes from large losses, whose grid is coarser.
            return 2 * step
        before = lost
        step *= min(max(math.sqrt(wanted / lost), 0.25), 0.5)
    return lattice(step)


def _lost(
    schedule: Schedule, simple: Composition, tilt: float, negligible: float, *, upper: bool
) -> Callable[[float], float]:
    """Return the error of log M(tilt) of the simple strategy on a grid with a step."""
    if len(stages_of(schedule)) > _MOST_LAWS:
        schedule = _fewer(schedule)
        simple = _composition(schedule, simple_pairs)
    exact = float(simple.log_moment(tilt).lower)

    def lost(step: float) -> float:
        off = -exact
        for round_, count in stages_of(schedule).items():
            law = moment_law(round_, step, negligible, upper=upper)
            off += count * moment_on_grid(law, tilt, step)
        return off if upper else -off

    return lost


def _fewer(schedule: Schedule) -> Schedule:
    """Return as many rounds of a few of the kinds. About the same grid serves them."""
    kinds = sorted(
        schedule.only_rounds().items(),
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
    """Return a step for the lower bound if the least loss is a few steps.

    Much of a round's probability lies next to that loss. So the defect of a law below depends on
    the last point before it. A coarse step with a good last point may be better than a finer step.
    """
    # The last point is tried at some shares of an interval before the least loss.
    places = (whole + part for whole in range(2, _MANY) for part in (0.3, 0.4, 0.5))
    best, steps = (lost(usual), usual), map(_rounded, (least_loss / place for place in places))
    # Hardly finer than the usual one.
    for step in (step for step in steps if step > 0.7 * usual):
        if best[0] <= wanted and step <= best[1]:
            break
        best = min(best, (lost(step), step))
    return best[1]


def _rounded(step: float) -> float:
    """Return the step with few bits, so that its multiples are exact."""
    mantissa, exponent = math.frexp(step)
    return math.ldexp(math.floor(mantissa * 2**_BITS), exponent - _BITS)


Stages = list[tuple[Stage, int]]

# Two laws, each as expensive as a few laws next to each other in memory.
_STRATEGIES = 8
# Windows hold this number of deviations of the sum of losses.
_DEVIATIONS = 4.4
# Losses times laws times rounds for two strategies.
_CHEAP = 1e9
# The laws of two strategies for one kind of round.
_TWO_LAWS = 4e5
# Largest number of kinds of rounds with laws, and a smaller one for many rounds.
_FEW_KINDS, _MOST_KINDS = 64, 256
# Laws times losses that are kept at a time: less than a gigabyte.
_MOST_KEPT = 4e7


def stages_above(
    schedule: Schedule, plan: Frames, frame: Frame, positions: Positions, window: int = 0
) -> Stages:
    """Return the phases with laws above them, other releases first."""
    played = fewer_kinds(schedule)
    ready: dict[Played, Stage] = {}
    for kind in stages_of(played):
        laws = laws_above(kind, positions, frame.step, plan.negligible, plan.direction)
        ready[kind] = prepare(laws, frame, upper=True, window=window)
    return [(ready[kind], count) for kind, count in (*beside(played), *in_order(played))]


@lru_cache(maxsize=64)
def fewer_kinds(schedule: Schedule) -> Schedule:
    """Return a schedule that costs at least as much, with fewer kinds of rounds.

    Few kinds remain unchanged. Less noise costs more (data processing), and so does a larger rate:
    the rounds of a group all have the least noise and the largest rate in it. Laws cost more than
    rounds. The order of the rounds stays.
    """
    counts = schedule.only_rounds()
    kinds = [round_ for round_ in counts if is_game(round_)]
    most = min(_MOST_KINDS, max(_FEW_KINDS, _MOST_KINDS * 1000 // schedule.rounds))
    if len(kinds) <= most:
        return schedule
    groups = [kinds]
    while len(groups) < most:
        widest = max(groups, key=lambda group: _width(group) * sum(counts[r] for r in group))
        groups.remove(widest)
        # Cut at the middle of the wider axis, and a group of equals anywhere.
        axis = max(_axes(widest), key=lambda axis: max(axis) - min(axis))
        middle = 0.5 * (min(axis) + max(axis))
        less = [one for one, place in zip(widest, axis, strict=True) if place <= middle]
        more = [one for one, place in zip(widest, axis, strict=True) if place > middle]
        groups += [less, more] if more else [less[:1], less[1:]]
    worst: dict[Round, Round] = {}
    for group in groups:
        noise = min(round_.noise_multiplier for round_ in group)
        often = max(group, key=lambda round_: rate_bounds(round_)[1])
        worst |= dict.fromkeys(group, Round(noise, often.sampling, often.adjacency))
    return schedule.map(lambda kind: worst.get(kind, kind) if isinstance(kind, Round) else kind)


def _axes(group: list[Round]) -> tuple[list[float], list[float]]:
    noises = [math.log(round_.noise_multiplier) for round_ in group]
    return noises, [math.log(rate_bounds(round_)[1]) for round_ in group]


def _width(group: list[Round]) -> float:
    return max(max(axis) - min(axis) for axis in _axes(group))


def window_above(schedule: Schedule, plan: Frames, positions: Positions) -> int:
    """Return the number of losses worth keeping at a time in the upper frame, 0 for all."""
    if len(schedule.only_rounds()) < len(schedule.distinct()):
        # Losses of other releases may jump.
        return 0
    frame, first = plan.upper, schedule.round_phases()[0][0]
    return _window(
        plan,
        frame,
        schedule.rounds,
        lambda: laws_above(first, positions, frame.step, plan.negligible, plan.direction),
    )


def _window(
    plan: Frames, frame: Frame, rounds: int, laws_of_first: Callable[[], list[Kernel]]
) -> int:
    """Return the most losses with shorter transforms that hold all that matters, or 0.

    On its way from minus epsilon to about zero the tilted loss stays within half that number. A
    round that may cross most of the window rules it out.
    """
    # Where the tilt is small the loss ends far from zero.
    spread = math.hypot(plan.deviation, min(plan.deviation, 1 / frame.tilt))
    least = math.ceil(_DEVIATIONS * spread / frame.step)
    if not 0 < least < frame.size:
        return 0
    laws = laws_of_first()
    reach, usual = reach_of_laws(laws), plan.epsilon / (rounds * frame.step)
    window, length = 0, length_of(frame.size, reach)
    while True:
        length //= 2
        most = max(length - 1 - reach, (length - 1) // 2)
        # A round may cross a quarter of it with this tilted probability, in all rounds together.
        if most < least or rounds * _jumps(laws, frame, usual, most / 4) > 1e-4:
            return window
        window = min(most, frame.size)


def _jumps(laws: list[Kernel], frame: Frame, usual: float, far: float) -> float:
    """Return the tilted probability that one round's loss is ``far`` steps from the usual one."""
    most = 0.0
    for law in laws:
        places = law.first + np.arange(len(law.masses))
        tilted = law.masses * np.exp(frame.tilt * frame.step * places)
        most = max(most, float(tilted[np.abs(places - usual) > far].sum() / tilted.sum()))
    return most


def stages_below(
    schedule: Schedule, plan: Frames, frame: Frame, *, windowed: bool = True
) -> tuple[Stages, int]:
    """Return the phases with laws below them, and the window they are for: 0 for all losses.

    By all strategies where that is worth its time, so that an adversary may switch, and by the best
    one alone otherwise.
    """
    # Of three strategies, where a contribution becomes zero, one alone reaches nearly as much over
    # many rounds.
    most = min(_CHEAP, 2e8) if schedule.adjacency is Adjacency.ZERO_OUT else _CHEAP
    if effort_below(schedule, frame) > most:
        return _stages_of_one_strategy(schedule, plan, frame), 0

    def laws_of(round_: Played) -> list[Kernel]:
        return laws_below(round_, frame.step, plan.negligible, plan.direction)

    window = 0
    if windowed and len(schedule.only_rounds()) == len(schedule.distinct()):
        first = schedule.round_phases()[0][0]
        window = _window(plan, plan.lower, schedule.rounds, lambda: laws_of(first))
    phases = in_order(schedule, everything=True)
    ready = {kind: prepare(laws_of(kind), frame, upper=False, window=window) for kind, _ in phases}
    return [(ready[kind], count) for kind, count in phases], window


def _stages_of_one_strategy(schedule: Schedule, plan: Frames, frame: Frame) -> Stages:
    """Return the phases with one strategy, the same in all rounds of a kind, as few laws."""
    stages: Stages = []
    for round_, count in in_order(schedule, everything=True):
        laws = laws_below(round_, frame.step, plan.negligible, plan.direction)
        law = max(laws, key=lambda law: moment_on_grid(law, frame.tilt, frame.step))
        together = min(count, max(1, math.isqrt(count)))
        parts = [(repeated_below(law, together, frame), count // together), (law, count % together)]
        stages += [(prepare([part], frame, upper=False), times) for part, times in parts if times]
    return stages


def effort_above(schedule: Schedule, frame: Frame, positions: Positions) -> float:
    """Return losses times laws times rounds, plus the cost of the laws in the same unit.

    Infinite where the laws of all kinds of rounds would take too much memory.
    """
    played = fewer_kinds(schedule)
    if schedule.adjacency is Adjacency.ZERO_OUT or isinstance(positions, TurnGuide | Turns):
        ranges = isinstance(positions, Turns)
        # Or an estimate of ranges, with the cost of their laws.
        laws = len(positions.ends) - 1 if ranges else 8
        each = 5e5 * laws if ranges else 3e6
    else:
        thinned = isinstance(positions, Thinned)
        cells = len(positions.cover if thinned else positions)
        laws = USUAL_SHARE * cells if thinned else cells
        # The cells of a larger cover are thinner.
        each = 2.4e3 * cells**2 + 1e5 * cells
    kinds = sum(map(is_game, played.only_rounds()))
    if kinds * laws * frame.size > _MOST_KEPT:
        return math.inf
    effort = each * kinds
    return effort + float(frame.size) * sum(
        count * (laws if is_game(kind) else RANGES if has_choice(kind) else 1)
        for kind, count in in_order(played, everything=True)
    )


def effort_below(schedule: Schedule, frame: Frame) -> float:
    """Return the effort of two strategies."""
    kinds = len(stages_of(schedule))
    if 2 * kinds * frame.size > _MOST_KEPT:
        return math.inf
    laws = _TWO_LAWS * kinds
    return laws + float(_STRATEGIES * schedule.rounds * frame.size)
