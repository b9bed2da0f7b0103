"""The adaptive game of fixed-size sampling, and which schedules it is about.

Every round is a triangle, chosen anew (`theorem`); laws on a grid bound it from above and below
(`laws`, `strategies`, `kernels`, `positions`, `rounds`); they are played backward (`play`), where
and how finely a plan says (`plan`, `choose`); `bounds` reads epsilon and delta. Statement, proofs
and error bounds: docs/derivations/fixed-size-game.md.

This module alone says which schedules a game is about, without importing what it is played with.
"""

from __future__ import annotations

from dpacct.rounds import Adjacency, Poisson, Round, Schedule, Uniform
from dpacct.tight.game.theorem import LARGEST_SHIFT

_PLAYED = (Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT)


def is_game(round_: Round) -> bool:
    """Whether the adversary has a choice of positions in this round."""
    sampling = round_.sampling
    return (
        isinstance(sampling, Uniform)
        and round_.adjacency in _PLAYED
        # So near one that the rate rounds up to it there is no choice that a double knows.
        and sampling.rate_bounds[1] < 1.0
    )


def takes_everybody(round_: Round) -> bool:
    """Whether it is a Gaussian, with the adjacency's shift."""
    sampling = round_.sampling
    if isinstance(sampling, Uniform) and sampling.cohort_size < sampling.num_clients:
        return False
    return round_.adjacency in _PLAYED and round_.sampling_rate == 1.0


def has_one_pair(round_: Round) -> bool:
    """Whether one fixed pair is exact for this round: everybody takes part, or each by a coin."""
    poisson = isinstance(round_.sampling, Poisson) and round_.adjacency in _PLAYED
    return takes_everybody(round_) or poisson


def is_played(schedule: Schedule) -> bool:
    """Whether the game says more about a schedule than a fixed pair for each round.

    A single round has no past to choose by: there the fixed pair is exact, except for zero-out,
    whose fixed pair is that of replace-one.
    """
    kinds = schedule.distinct()
    return (
        (schedule.rounds > 1 or schedule.adjacency is Adjacency.ZERO_OUT)
        and any(is_game(round_) for round_ in kinds)
        and all(is_game(round_) or has_one_pair(round_) for round_ in kinds)
        and all(LARGEST_SHIFT * round_.noise_multiplier >= 2.0 for round_ in kinds)
    )
