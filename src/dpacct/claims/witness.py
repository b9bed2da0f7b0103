"""The neighboring data sets that reach an achieved epsilon, in words.

They are those of docs/derivations/dominating-pairs.md; C is the clip norm, and all contributions
point along one line.
"""

from __future__ import annotations

from dpacct.rounds import Adjacency, Round, Schedule, Uniform

_LINE = "In every round"
_ADDED = {
    Adjacency.ADD_REMOVE: "or is not there",
    Adjacency.ZERO_OUT: "or zero",
    Adjacency.REPLACE_ONE: "or is replaced by a client who contributes -C",
}
_INSTEAD = {
    Adjacency.ADD_REMOVE: "+C instead",
    Adjacency.ZERO_OUT: "+C or -C instead",
    Adjacency.REPLACE_ONE: "+C instead, like the target",
}


def witness(schedule: Schedule, *, adaptive: bool = False) -> str:
    """Two neighboring data sets that tell the most apart, as far as is known here.

    Args:
        schedule: with at least one round; of several kinds the most frequent one is described.
        adaptive: the pair may react to what was released, as an adaptive game has it.
    """
    counts = schedule.distinct()
    round_ = max(counts, key=lambda kind: counts[kind])
    words = _of_round(round_)
    if not adaptive:
        return words
    return (
        f"{words} Depending on what was released so far, the others contribute "
        f"{_INSTEAD[round_.adjacency]}: in each round whatever is worth more at the loss so far, "
        "the logarithm of how much likelier the releases are in one data set than in the other."
    )


def _of_round(round_: Round) -> str:
    scheme, relation = round_.sampling, round_.adjacency
    if not isinstance(scheme, Uniform) or _everybody(round_):
        others = "all other clients contribute zero"
        return f"{_LINE} {others}; the target contributes C, {_ADDED[relation]}."
    match relation:
        case Adjacency.REPLACE_ONE:
            return (
                f"{_LINE} all other clients contribute -C; the target contributes +C, or is "
                "replaced by a client who contributes -C like the others."
            )
        case Adjacency.ADD_REMOVE:
            return (
                f"{_LINE} all other clients contribute -C; the target contributes +C, or is not "
                "there, so that another client takes its place in the cohort."
            )
        case Adjacency.ZERO_OUT:
            return f"{_LINE} all other clients contribute zero; the target contributes C, or zero."


def _everybody(round_: Round) -> bool:
    scheme = round_.sampling
    if not isinstance(scheme, Uniform):
        return round_.sampling_rate == 1.0
    everybody = scheme.cohort_size == scheme.num_clients
    return everybody and round_.adjacency is not Adjacency.ADD_REMOVE
