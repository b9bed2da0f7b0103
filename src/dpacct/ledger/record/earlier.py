"""Bounds that earlier versions charged by, where this one has a smaller one: for verifying.

What an entry was charged then stays charged. It has to be what that version charged for the same
round, so that an entry cannot be changed into one that asks for less.

0.1 bounded Poisson sampling under replace-one by the pair of fixed-size sampling at the same rate.
"""

from __future__ import annotations

from dpacct.rounds import Adjacency, Phase, Poisson, Round, Schedule, Uniform


def charged_then(round_: Round) -> Round:
    """A round whose cost is what the given one was charged by the first version that differs."""
    match round_:
        case Round(sampling=Poisson(rate), adjacency=Adjacency.REPLACE_ONE):
            return Round(round_.noise_multiplier, Uniform.at_rate(rate), round_.adjacency)
        case _:
            return round_


def planned_then(plan: Schedule) -> Schedule | None:
    """A plan that was charged by an earlier bound; None where that is today's."""
    if all(charged_then(round_) == round_ for round_ in plan.distinct()):
        return None
    return Schedule(Phase(charged_then(round_), count) for round_, count in plan)
