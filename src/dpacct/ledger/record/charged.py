"""Plans with the accountant that they may be charged by, and what they cost.

Rule 1: a plan is charged by fixed pairs (`pairs`), unless whoever registered its run said that no
client remembers whether it took part: then by `tight`, which plays a game. The run's entry has it.
Who takes part in the place of others may not be remembered by anybody, whoever charges it
(docs/derivations/federated.md, "Client memories").
Rule 2: the game is about rounds in the order of their plan. Rounds of several runs may run in any
order, so plans are charged together by it only where all their rounds are equal.
Rule 3: rounds outside plans are charged by neither, but by the odometer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from functools import lru_cache
from typing import NamedTuple

from dpacct.accountant import ACCOUNTANTS
from dpacct.errors import InvalidParameter, NotConverged, Unsupported
from dpacct.pairs import achieved
from dpacct.rounds import Schedule
from dpacct.tight.accountant import TightAccountant

PAIRS, TIGHT = "pairs", "tight"
# Beside one of those two, in the order in which they are asked; each upper bound is proven.
_OTHERS = ("rdp", "closed-form", "gdp")
# So many answers are remembered: a report asks for the same schedule several times.
_KEPT = 256
_GAME = TightAccountant()


class Charged(NamedTuple):
    """A schedule, and the accountant that it may be charged by: `PAIRS` or `TIGHT`."""

    schedule: Schedule
    accountant: str = PAIRS


def accountant_of(plan: Schedule | None, name: str) -> str:
    """The accountant that makes a difference for a plan: `PAIRS` where no game is played.

    Raises:
        InvalidParameter: there is no such accountant of plans.
    """
    promised = _checked(name) == TIGHT
    return TIGHT if promised and plan is not None and _GAME.plays(plan) else PAIRS


def join(schedules: Iterable[Schedule]) -> Schedule:
    """All rounds of several schedules."""
    return Schedule(phase for schedule in schedules for phase in schedule)


def together(parts: Iterable[Charged]) -> Charged:
    """All rounds of several plans, by the accountant that they may be charged by together."""
    plans = [part for part in parts if part.schedule.rounds]
    whole = join(part.schedule for part in plans)
    promised = all(part.accountant == TIGHT for part in plans)
    ordered = len(plans) == 1 or len(whole.distinct()) == 1
    return Charged(whole, TIGHT if plans and promised and ordered else PAIRS)


@lru_cache(maxsize=_KEPT)
def proven_epsilon(plan: Charged, delta: float, target: float = 0.0) -> float:
    """The smallest proven epsilon of all accountants; the first that meets the target ends it."""
    best = math.inf
    # What fits by fixed pairs need not be played.
    names = (TIGHT,) if math.isinf(target) else (PAIRS, TIGHT)
    for name in (*(names if plan.accountant == TIGHT else (PAIRS,)), *_OTHERS):
        try:
            best = min(best, ACCOUNTANTS[name].upper_epsilon(plan.schedule, delta))
        except (Unsupported, NotConverged):
            continue
        if best <= target:
            break
    return best


def epsilon_so_far(whole: Charged, used: Schedule, delta: float) -> float:
    """Proven epsilon of the rounds of plans that were used: the first ones of each.

    Args:
        whole: all plans together.
        used: what was used of them.
    """
    if used == whole.schedule:
        return proven_epsilon(whole, delta, math.inf)
    best = proven_epsilon(Charged(used), delta, math.inf)
    if whole.accountant == TIGHT and used.rounds:
        best = min(best, _GAME.upper_epsilon_of_first(whole.schedule, used.rounds, delta))
    return best


@lru_cache(maxsize=_KEPT)
def achieved_epsilon(schedule: Schedule, delta: float) -> float:
    """The achieved epsilon of a schedule that was fixed in advance."""
    try:
        return ACCOUNTANTS[PAIRS].epsilon(schedule, delta).lower
    except (Unsupported, NotConverged):
        return achieved.achieved_epsilon(schedule, delta)


def fits(plan: Charged, delta: float, epsilon: float) -> bool:
    """Whether the proven epsilon is at most this one."""
    if proven_epsilon(Charged(plan.schedule), delta, epsilon) <= epsilon:
        return True
    if plan.accountant != TIGHT or achieved_epsilon(plan.schedule, delta) > epsilon:
        return False
    return proven_epsilon(plan, delta, epsilon) <= epsilon


def proven_delta(plan: Charged, epsilon: float) -> float:
    """The proven delta at an epsilon."""
    return ACCOUNTANTS[plan.accountant].delta(plan.schedule, epsilon).upper


def _checked(name: object) -> str:
    if name not in (PAIRS, TIGHT):
        rule = (
            f"a plan is charged by {PAIRS}, or by {TIGHT} where no client remembers whether it "
            "took part"
        )
        raise InvalidParameter("accountant", name, rule)
    return str(name)
