"""Which grid and which positions a game is played with: the best that are affordable.

Nothing here is proven; whatever is taken bounds all positions.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from dpacct.errors import NotConverged
from dpacct.rounds import Adjacency, Schedule
from dpacct.tight.game.cover import default_cover
from dpacct.tight.game.guided import guided_cover, has_cells, spread_of, turn_guide
from dpacct.tight.game.mixtures import Mixing
from dpacct.tight.game.plan import GamePlan
from dpacct.tight.game.played import is_game
from dpacct.tight.game.rounds import Positions
from dpacct.tight.game.stages import are_bounded, effort_above, needed
from dpacct.tight.game.thinned import Thinned

# Losses times laws times rounds: about one second, two, seven, ten and thirty.
_FEW, _QUICK, _MEDIUM, _LONG, MOST_EFFORT = 5.5e7, 1e8, 5e8, 8e8, 2e9
# The share of the noise that mixtures may give away, and the noise from which on they are better
# than many cells: where one round's loss may be large, cells are.
_SLACK, _MIXED = 2e-3, 2.0
_FINE_SHARE, _DEFAULT_SHARE, _MIDDLE_SHARE, _COARSE_SHARE = 5e-4, 1e-3, 2e-3, 4e-3
_MIXTURES = ((_DEFAULT_SHARE, _LONG), (_COARSE_SHARE, MOST_EFFORT))
# The share of epsilon that the grid may cost, and what cells may gain more than positions do.
_CELLS = (
    (_FINE_SHARE, 5e-4, _LONG),
    (_DEFAULT_SHARE, 1e-3, _LONG),
    (_MIDDLE_SHARE, 2e-3, _LONG),
    (_COARSE_SHARE, 4e-3, MOST_EFFORT),
    (_COARSE_SHARE, 1e-2, 2 * MOST_EFFORT),
)
_LAST = ((_COARSE_SHARE, math.inf, MOST_EFFORT),)
# How much more that is where time is short, and where so many cells would be affordable.
_USUAL, _FINE, _PLENTY, _FEWEST, _MOST_CELLS = 5e-4, 2e-4, 250, 12, 200
# The same where the usual cells are played, as they are first where kinds of rounds differ.
_KNOWN = ((_DEFAULT_SHARE, _LONG), (_MIDDLE_SHARE, MOST_EFFORT))
# The same for ranges of an angle, of which few are needed.
_RANGES = (
    (_DEFAULT_SHARE, 5e-4, _QUICK),
    (_MIDDLE_SHARE, 1e-3, _MEDIUM),
    (_COARSE_SHARE, 2e-3, MOST_EFFORT),
)
# An epsilon of so few deviations depends on how much the last rounds gain, if rounds are some.
_NEAR, _SOME = (0.1, 1.4), 100


def affordable(
    schedule: Schedule, plan_with: Callable[[float], GamePlan]
) -> tuple[GamePlan, Positions]:
    """A plan and positions that are affordable, the best first.

    Raises:
        NotConverged: none is.
    """
    if schedule.adjacency is Adjacency.ZERO_OUT:
        return _angles(schedule, plan_with)
    quiet = min(round_.noise_multiplier for round_ in schedule.distinct()) >= _MIXED
    plan, positions = plan_with(_DEFAULT_SHARE), Thinned(default_cover())
    near = _NEAR[0] < plan.epsilon / spread_of(plan) < _NEAR[1]
    alike = sum(map(is_game, schedule.distinct())) == 1 and has_cells(schedule)
    near = near and schedule.rounds >= _SOME and alike
    if not near and effort_above(schedule, plan.upper, positions) <= (_QUICK if quiet else _FEW):
        return plan, positions
    for share, most in _MIXTURES if quiet and not near else ():
        plan = plan_with(share)
        mixing = Mixing(_SLACK, plan.upper.tilt)
        if effort_above(schedule, plan.upper, mixing) <= most:
            if are_bounded(schedule, plan, mixing):
                return plan, mixing
            # On another grid there are none either.
            break
    chosen = partial(_chosen, schedule, plan_with)
    known = partial(_known, schedule, plan_with)
    # Cells that are chosen for some kinds of rounds may be worse than the usual ones for others.
    ways = (partial(chosen, _CELLS if near else _CELLS[1:]), known)
    for way in (*(ways if alike else reversed(ways)), partial(chosen, _LAST)):
        found = way()
        if found is not None:
            return found
    effort = effort_above(schedule, plan_with(_COARSE_SHARE).upper, positions)
    raise NotConverged(
        f"the game of {schedule.rounds} rounds would need {needed(effort, MOST_EFFORT)}"
    )


def _angles(
    schedule: Schedule, plan_with: Callable[[float], GamePlan]
) -> tuple[GamePlan, Positions]:
    """Ranges of the one angle that there is where a contribution becomes zero.

    Raises:
        NotConverged: none are affordable.
    """
    effort = math.inf
    for share, tolerance, most in _RANGES:
        plan = plan_with(share)
        guide = turn_guide(plan, tolerance)
        effort = effort_above(schedule, plan.upper, guide)
        if effort <= most:
            return plan, guide
    raise NotConverged(
        f"the game of {schedule.rounds} rounds would need {needed(effort, MOST_EFFORT)}"
    )


def _known(
    schedule: Schedule, plan_with: Callable[[float], GamePlan]
) -> tuple[GamePlan, Positions] | None:
    """The usual cells, or the fewest angles, if these are affordable."""
    usual = Thinned(default_cover())
    for share, most in _KNOWN:
        plan = plan_with(share)
        if effort_above(schedule, plan.upper, usual) <= most:
            return plan, usual
    return None


def _chosen(
    schedule: Schedule,
    plan_with: Callable[[float], GamePlan],
    rows: tuple[tuple[float, float, float], ...],
) -> tuple[GamePlan, Positions] | None:
    """Cells chosen for this schedule, if so many are affordable as are needed."""
    for share, enough, most in rows if has_cells(schedule) else ():
        plan = plan_with(share)
        one = effort_above(schedule, plan.upper, Thinned(default_cover())) / len(default_cover())
        if most < _FEWEST * one:
            continue
        tolerance = _FINE if most >= _PLENTY * one else _USUAL
        cells = min(_MOST_CELLS, int(most / one))
        cover, reached = guided_cover(schedule, plan, tolerance, cells)
        if reached <= enough:
            return plan, Thinned(cover)
    return None
