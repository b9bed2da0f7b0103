"""The game on request of a width: cells are split where they add most, until that is reached.

Every pass is counted before it is made, so that a width out of reach ends in a sentence, not in a
wait.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from dpacct.budget import Interval
from dpacct.errors import NotConverged
from dpacct.pairs.dominating import Direction
from dpacct.rounds import Adjacency, Schedule
from dpacct.tight.game.answers import lower_epsilon, upper_epsilon
from dpacct.tight.game.cover import Cover, default_cover, split
from dpacct.tight.game.guided import guided_cover, has_cells, heaviest
from dpacct.tight.game.kernels import reach_of
from dpacct.tight.game.mixtures import Mixing
from dpacct.tight.game.plan import GamePlan, plan_at_delta
from dpacct.tight.game.refine import gains
from dpacct.tight.game.rounds import rate_bounds
from dpacct.tight.game.stages import (
    bounded_by,
    effort_above,
    effort_below,
    needed,
    stages_above,
    stages_plain,
)
from dpacct.tight.game.thinned import Thinned, thinned_laws

# Losses times laws times rounds of all passes together: about a minute.
MOST_REFINED = 6e9
_SHARE, _PART_OF_GAP, _COARSE_SHARE = 1e-3, 1 / 8, 4e-3
# Parts of the gap that mixtures may give away as noise.
_SLACKS = (0.2, 0.1)
_MOST_CELLS = 400
# One cell in so many is split at once.
_PART = 6
# A pass that brings the bound nearer by less than this share of what is missing is the last.
_STALLED = 0.02
# A look at what each cell adds, forward and backward, counts as so many passes.
_LOOKS = 3


@dataclass(slots=True)
class _Found:
    """What is known so far, and what it took."""

    gap: float
    lower: float = 0.0
    upper: float = math.inf
    spent: float = 0.0

    @property
    def reached(self) -> bool:
        return self.upper <= self.lower * (1 + self.gap)

    def spend(self, effort: float) -> None:
        """Count what the next pass takes."""
        if self.spent + effort > MOST_REFINED:
            raise NotConverged(f"it would need {needed(self.spent + effort, MOST_REFINED)}")
        self.spent += effort


def narrow_epsilon(
    schedule: Schedule,
    delta: float,
    gap: float,
    direction: Direction = Direction.REMOVE,
    known: Interval | None = None,
) -> Interval:
    """Achieved and proven eps(delta), at most the relative ``gap`` apart.

    Args:
        schedule, delta, gap: see `dpacct.tight.game.game.game_epsilon`. direction: of the game.
        known: what another way has found, which is not given up.
    Raises:
        NotConverged: that is not reached; says between which values epsilon lies.
    """
    found = _Found(gap) if known is None else _Found(gap, known.lower, known.upper)
    if known is not None and found.reached:
        return known
    try:
        _narrow(schedule, delta, found, direction)
    except NotConverged as reason:
        ends = f"epsilon lies in [{found.lower:.8g}, {found.upper:.8g}]"
        if found.upper == math.inf:
            ends = f"epsilon is at least {found.lower:.8g}"
        raise NotConverged(
            f"the gap {gap:g} is not reached ({reason}): {ends}; ask for a wider gap"
        ) from reason
    return Interval.bracket(found.lower, found.upper)


def _narrow(schedule: Schedule, delta: float, found: _Found, direction: Direction) -> None:
    plan = plan_at_delta(
        schedule, delta, min(_SHARE, found.gap * _PART_OF_GAP), direction=direction
    )
    found.spend(effort_below(schedule, plan.lower))
    found.lower = max(found.lower, lower_epsilon(schedule, plan, delta))
    _by_mixtures(schedule, plan, delta, found)
    cover, _ = guided_cover(schedule, plan, found.gap * _PART_OF_GAP, _MOST_CELLS)
    coarse, reached = plan, math.inf
    while not found.reached:
        thinned = Thinned(cover)
        found.spend(effort_above(schedule, plan.upper, thinned))
        before, reached = reached, upper_epsilon(schedule, plan, thinned, delta)
        found.upper = min(found.upper, reached)
        if found.reached:
            return
        if before - reached < _STALLED * (found.upper - found.lower * (1 + found.gap)):
            raise NotConverged("more cells hardly help")
        if coarse is plan:
            coarse = plan_at_delta(schedule, delta, _COARSE_SHARE, direction=direction)
        found.spend(_LOOKS * effort_above(schedule, coarse.upper, thinned))
        finer = refined(schedule, coarse, cover, found.upper)
        if finer == cover:
            raise NotConverged("no cell adds anything")
        if len(finer) > _MOST_CELLS:
            raise NotConverged(f"with {_MOST_CELLS} cells")
        cover = finer


def _by_mixtures(schedule: Schedule, plan: GamePlan, delta: float, found: _Found) -> None:
    """Few laws with as little noise given away as the gap needs, where cells would take longer."""
    cells = effort_above(schedule, plan.upper, default_cover())
    for part in _SLACKS if schedule.adjacency is not Adjacency.ZERO_OUT else ():
        mixing = Mixing(part * found.gap, plan.upper.tilt)
        effort = effort_above(schedule, plan.upper, mixing)
        if found.reached or effort > cells or found.spent + effort > MOST_REFINED:
            return
        found.spend(effort)
        with suppress(NotConverged):
            found.upper = min(found.upper, upper_epsilon(schedule, plan, mixing, delta))


def with_laws(schedule: Schedule, plan: GamePlan, cover: Cover) -> Cover:
    """The cells that have laws of their own in the kind of round that matters most."""
    round_, step = heaviest(schedule), plan.upper.step
    rate, noise = rate_bounds(round_)[1], round_.noise_multiplier
    reach = reach_of(rate, noise, step, plan.negligible)[0]
    found = thinned_laws(rate, noise, step, reach, plan.negligible, cover)
    return tuple(cover[k] for k in found)


def refined(schedule: Schedule, coarse: GamePlan, cover: Cover, epsilon: float) -> Cover:
    """The cover with those cells split that add the most; itself if none adds anything."""
    frame = coarse.upper
    # Cells without a law lie below a mixture of others, and gain no more than the better of these.
    laws = with_laws(schedule, coarse, cover) if has_cells(schedule) else cover
    above = stages_above(schedule, coarse, frame, laws)
    simple = stages_plain(bounded_by(schedule)[0], coarse, frame)
    # Of a mean the part with the largest share tells enough.
    stages = [
        (max(mean, key=lambda part: part.share).stage, plain, count)
        for (mean, count), (plain, _) in zip(above, simple, strict=True)
    ]
    _, found = gains(stages, frame, -epsilon)
    if len(found) < len(laws) or not found.any():
        return cover
    order = np.argsort(found)[::-1]
    most = [int(k) for k in order[: max(2, len(laws) // _PART)]]
    return split(cover, [laws[k] for k in most if found[k] > 0])
