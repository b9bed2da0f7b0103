"""Many kinds of rounds bounded by few: laws cost more than rounds do.

Rule 1: less noise costs more (data processing), and so does a larger rate, so that rounds of a
group may all have the least noise and the largest rate in it.
"""

from __future__ import annotations

import math
from functools import lru_cache

from dpacct.rounds import Phase, Round, Schedule
from dpacct.tight.game.played import is_game
from dpacct.tight.game.rounds import rate_bounds

MOST_KINDS = 60

Group = list[Round]


@lru_cache(maxsize=64)
def fewer_kinds(schedule: Schedule) -> Schedule:
    """A schedule that costs at least as much, with fewer kinds of rounds; itself if there are few.

    The order of the rounds stays what it is.
    """
    counts = schedule.distinct()
    kinds = [round_ for round_ in counts if is_game(round_)]
    if len(kinds) <= MOST_KINDS:
        return schedule
    groups = [kinds]
    while len(groups) < MOST_KINDS:
        widest = max(groups, key=lambda group: _width(group) * sum(counts[r] for r in group))
        groups.remove(widest)
        groups.extend(_halves(widest))
    worst = {round_: _worst(group) for group in groups for round_ in group}
    return Schedule(Phase(worst.get(round_, round_), count) for round_, count in schedule)


def _places(group: Group) -> tuple[list[float], list[float]]:
    noises = [math.log(round_.noise_multiplier) for round_ in group]
    return noises, [math.log(rate_bounds(round_)[1]) for round_ in group]


def _width(group: Group) -> float:
    return max(max(axis) - min(axis) for axis in _places(group))


def _halves(group: Group) -> tuple[Group, Group]:
    """Both sides of the middle of the wider axis; a group of equals is cut anywhere."""
    axis = max(_places(group), key=lambda axis: max(axis) - min(axis))
    middle = 0.5 * (min(axis) + max(axis))
    less = [round_ for round_, place in zip(group, axis, strict=True) if place <= middle]
    more = [round_ for round_, place in zip(group, axis, strict=True) if place > middle]
    return (less, more) if more else (group[:1], group[1:])


def _worst(group: Group) -> Round:
    noise = min(round_.noise_multiplier for round_ in group)
    often = max(group, key=lambda round_: rate_bounds(round_)[1])
    return Round(noise, often.sampling, often.adjacency)
