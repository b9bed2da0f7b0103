"""All rounds of a schedule as stages of the game, and what it costs to play them."""

from __future__ import annotations

from dpacct.rounds import Round, Schedule
from dpacct.tight.game.backward import Frame, Stage, prepare
from dpacct.tight.game.cover import Cover
from dpacct.tight.game.plan import GamePlan
from dpacct.tight.game.rounds import fewer_kinds, is_game, laws_above, laws_below

Stages = list[tuple[Stage, int]]

# What the laws of one kind of round cost; the cells of a larger cover are thinner.
_A_COVER = 1.7e4
# Two laws, each worth a few of those next to each other in memory.
_STRATEGIES = 8


def stages_above(schedule: Schedule, plan: GamePlan, frame: Frame, cover: Cover) -> Stages:
    """The phases with laws above them, by the cells of a cover."""
    played = fewer_kinds(schedule)
    ready: dict[Round, Stage] = {}
    for round_ in played.distinct():
        laws = laws_above(round_, cover, frame.step, plan.negligible)
        ready[round_] = prepare(laws, frame, upper=True)
    return [(ready[round_], count) for round_, count in played.phases]


def stages_below(schedule: Schedule, plan: GamePlan, frame: Frame) -> Stages:
    """The phases with laws below them."""
    ready = {
        round_: prepare(laws_below(round_, frame.step, plan.negligible), frame, upper=False)
        for round_ in schedule.distinct()
    }
    return [(ready[round_], count) for round_, count in schedule.phases]


def effort_above(schedule: Schedule, frame: Frame, cover: Cover) -> float:
    """Losses times laws times rounds, and what the laws cost, in the same unit."""
    kinds = fewer_kinds(schedule).distinct()
    laws = sum(is_game(round_) for round_ in kinds) * _A_COVER * len(cover) ** 2
    return laws + float(frame.size) * sum(
        count * (len(cover) if is_game(round_) else 1) for round_, count in kinds.items()
    )


def effort_below(schedule: Schedule, frame: Frame) -> float:
    """The same for two strategies."""
    return float(_STRATEGIES * schedule.rounds * frame.size)
