"""All rounds of a schedule as stages of the game, and what it costs to play them."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress

import numpy as np

from dpacct.errors import NotConverged
from dpacct.rounds import Adjacency, Round, Schedule
from dpacct.tight.game.backward import (
    Frame,
    Mean,
    Stage,
    Weighed,
    length_of,
    prepare,
    reach_of_laws,
    repeated_below,
)
from dpacct.tight.game.blends import Blend, Part, blends
from dpacct.tight.game.kinds import fewer_kinds
from dpacct.tight.game.laws import Kernel
from dpacct.tight.game.mixtures import LAWS, Mixing
from dpacct.tight.game.plan import GamePlan
from dpacct.tight.game.played import is_game
from dpacct.tight.game.rounds import Positions, laws_above, laws_below, moment_on_grid, plain_laws
from dpacct.tight.game.thinned import USUAL_SHARE, Thinned
from dpacct.tight.game.zero_out import TurnGuide

Above = list[tuple[Mean, int]]
Below = list[tuple[Stage, int]]

# What the laws of one kind of round cost; the cells of a larger cover are thinner.
_A_COVER, _A_CELL = 2.4e3, 1e5
# Ranges of the angle where a contribution becomes zero, about, and what their laws cost.
_RANGES, _OF_RANGES = 6, 2e6
# The same for mixtures, and of how much noise that is true.
_A_MIXTURE, _USUAL_SLACK = 2e8, 4e-3
# Where laws are few the transform of the values counts, too.
_ALONE = 6
# Two laws, each worth a few of those next to each other in memory.
_STRATEGIES = 8
# Windows hold so many deviations of the sum of losses, where one round that crosses this share of a
# window by itself is so rare, tilted, in all rounds together.
_DEVIATIONS, _JUMP, _RARE_JUMP = 4.4, 1 / 4, 1e-4
# Losses times laws times rounds for two strategies, and for three where a contribution becomes
# zero: one alone reaches nearly as much over many rounds.
_CHEAP, _CHEAP_ZERO_OUT = 1e9, 2e8
# The laws of two strategies for one kind of round.
_TWO_LAWS = 4e5
# Laws times losses that are kept at a time: less than a gigabyte.
_MOST_KEPT = 4e7


def stages_above(
    schedule: Schedule, plan: GamePlan, frame: Frame, positions: Positions, window: int = 0
) -> Above:
    """The phases with laws above them, by cells or by mixtures."""
    played, blended = bounded_by(schedule)
    ready: dict[Round, Stage] = {}
    for round_ in _kinds(blended):
        laws = laws_above(round_, positions, frame.step, plan.negligible, plan.direction)
        ready[round_] = prepare(laws, frame, upper=True, window=window)
    return [
        (tuple(Weighed(ready[part.round], part.share) for part in blended[round_]), count)
        for round_, count in played.phases
    ]


def bounded_by(schedule: Schedule) -> tuple[Schedule, dict[Round, Blend]]:
    """What is played in place of a schedule of many kinds of rounds, and what bounds each kind."""
    if schedule.adjacency is not Adjacency.ZERO_OUT:
        return schedule, blends(schedule)
    played = fewer_kinds(schedule)
    return played, {round_: (Part(round_, 1.0),) for round_ in played.distinct()}


def _kinds(blended: dict[Round, Blend]) -> list[Round]:
    return list(dict.fromkeys(part.round for blend in blended.values() for part in blend))


def are_bounded(schedule: Schedule, plan: GamePlan, positions: Positions) -> bool:
    """Whether there are such laws: any cells have some, mixtures may not be found."""
    if not isinstance(positions, Mixing):
        return True
    with suppress(NotConverged):
        for round_ in _kinds(bounded_by(schedule)[1]):
            laws_above(round_, positions, plan.upper.step, plan.negligible, plan.direction)
        return True
    return False


def window_above(schedule: Schedule, plan: GamePlan, positions: Positions) -> int:
    """How many losses are worth keeping at a time in the upper frame; 0 for all."""
    return _window(
        plan,
        plan.upper,
        schedule.rounds,
        lambda step: _laws_of_one(schedule, plan, positions, step),
    )


def _laws_of_one(
    schedule: Schedule, plan: GamePlan, positions: Positions, step: float
) -> list[Kernel]:
    round_ = schedule.phases[0].round
    return laws_above(round_, positions, step, plan.negligible, plan.direction)


def _window_below(schedule: Schedule, plan: GamePlan) -> int:
    """The same for the lower frame."""
    round_ = schedule.phases[0].round
    return _window(
        plan,
        plan.lower,
        schedule.rounds,
        lambda step: laws_below(round_, step, plan.negligible, plan.direction),
    )


def _window(
    plan: GamePlan, frame: Frame, rounds: int, laws_with: Callable[[float], list[Kernel]]
) -> int:
    """The most losses for which transforms are shorter, if those hold what matters.

    On its way from minus epsilon to about zero the loss stays, tilted, within half that many; but
    not where one round may take it most of the way.
    """
    # Where the tilt is small the loss ends far from zero.
    spread = math.hypot(plan.deviation, min(plan.deviation, 1 / frame.tilt))
    least = math.ceil(_DEVIATIONS * spread / frame.step)
    if not 0 < least < frame.size:
        return 0
    laws = laws_with(frame.step)
    reach, usual = reach_of_laws(laws), plan.epsilon / (rounds * frame.step)
    found, length = 0, length_of(frame.size, reach)
    while True:
        length //= 2
        most = max(length - 1 - reach, (length - 1) // 2)
        if most < least or rounds * _jumps(laws, frame, usual, _JUMP * most) > _RARE_JUMP:
            return found
        found = min(most, frame.size)


def _jumps(laws: list[Kernel], frame: Frame, usual: float, far: float) -> float:
    """How likely one round's loss, tilted, is further than this from the usual one, in steps."""
    most = 0.0
    for law in laws:
        places = law.first + np.arange(len(law.masses))
        tilted = law.masses * np.exp(frame.tilt * frame.step * places)
        most = max(most, float(tilted[np.abs(places - usual) > far].sum() / tilted.sum()))
    return most


def stages_below(
    schedule: Schedule, plan: GamePlan, frame: Frame, *, windowed: bool = True
) -> tuple[Below, int]:
    """The phases with laws below them, and the window they are for: 0 for all losses.

    By all strategies where that is worth its time, so that an adversary may switch, and by the best
    one alone otherwise.
    """
    most = _CHEAP_ZERO_OUT if schedule.adjacency is Adjacency.ZERO_OUT else _CHEAP
    if effort_below(schedule, frame) > most:
        return _stages_of_one_strategy(schedule, plan, frame), 0
    window = _window_below(schedule, plan) if windowed else 0
    ready: dict[Round, Stage] = {}
    for round_ in schedule.distinct():
        laws = laws_below(round_, frame.step, plan.negligible, plan.direction)
        ready[round_] = prepare(laws, frame, upper=False, window=window)
    return [(ready[round_], count) for round_, count in schedule.phases], window


def _stages_of_one_strategy(schedule: Schedule, plan: GamePlan, frame: Frame) -> Below:
    """The phases with one strategy alone, the same in all rounds of a kind; many are one law."""
    found: Below = []
    for round_, count in schedule.phases:
        laws = laws_below(round_, frame.step, plan.negligible, plan.direction)
        law = max(laws, key=lambda law: moment_on_grid(law, frame.tilt, frame.step))
        together = min(count, max(1, math.isqrt(count)))
        parts = [(repeated_below(law, together, frame), count // together), (law, count % together)]
        found += [(prepare([part], frame, upper=False), times) for part, times in parts if times]
    return found


def stages_plain(schedule: Schedule, plan: GamePlan, frame: Frame) -> Below:
    """The phases with the plain strategies, as they are beside laws above; nothing is proven."""
    ready: dict[Round, Stage] = {}
    for round_ in schedule.distinct():
        laws = plain_laws(round_, frame.step, plan.negligible, plan.direction)
        ready[round_] = prepare(laws, frame, upper=True)
    return [(ready[round_], count) for round_, count in schedule.phases]


def effort_above(schedule: Schedule, frame: Frame, positions: Positions) -> float:
    """Losses times laws times rounds, and what the laws cost, in the same unit.

    Infinite where the laws of all kinds of rounds would take too much memory.
    """
    played, blended = bounded_by(schedule)
    if schedule.adjacency is Adjacency.ZERO_OUT or isinstance(positions, TurnGuide):
        laws, each = _RANGES, _OF_RANGES
    elif isinstance(positions, Mixing):
        laws, each = LAWS + _ALONE, _A_MIXTURE * max(1.0, _USUAL_SLACK / positions.slack)
    elif isinstance(positions, Thinned):
        cells = len(positions.cover)
        laws, each = USUAL_SHARE * cells, _A_COVER * cells**2 + _A_CELL * cells
    else:
        laws = len(positions)
        each = _A_COVER * laws**2 + _A_CELL * laws
    kinds = sum(is_game(round_) for round_ in _kinds(blended))
    if kinds * laws * frame.size > _MOST_KEPT:
        return math.inf
    found = each * kinds
    return found + float(frame.size) * sum(
        count * len(blended[round_]) * (laws if is_game(round_) else 1)
        for round_, count in played.distinct().items()
    )


def needed(effort: float, most: float) -> str:
    """What is too much, in words."""
    if effort == math.inf:
        return "more memory than is taken at a time"
    return f"{effort:.2g} steps, more than {most:.2g}"


def effort_below(schedule: Schedule, frame: Frame) -> float:
    """The same for two strategies."""
    kinds = len(schedule.distinct())
    if 2 * kinds * frame.size > _MOST_KEPT:
        return math.inf
    laws = _TWO_LAWS * kinds
    return laws + float(_STRATEGIES * schedule.rounds * frame.size)
