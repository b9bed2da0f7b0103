"""The adaptive game of fixed-size sampling, and the test whether a schedule needs it.

In every round the adversary chooses a triangle again (`theorem`). Laws on a grid bound it from
above and below (`laws`, `kernels`, `positions`), and other releases (`rounds`). The game is solved
backward (`play`) on a grid that a plan sets (`plan`, `choose`). `bounds` reads epsilon and delta.
Statement, proofs and error bounds: docs/derivations/fixed-size-game.md.

Only this module decides about schedules, without importing the modules that solve the game.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeGuard

from dpacct.rounds import Adjacency, Poisson, Round, Schedule, Uniform

if TYPE_CHECKING:
    from dpacct.mechanisms.laplace import ExponentialMechanism

# The largest shift of a Gaussian over its deviation for which profiles are computed.
LARGEST_SHIFT = 7.0
_PLAYED = (Adjacency.REPLACE_ONE, Adjacency.ZERO_OUT)


def is_game(round_: object) -> TypeGuard[Round]:
    """Return True if the adversary has a choice of positions in this round."""
    sampling = round_.sampling if isinstance(round_, Round) else None
    return (
        isinstance(round_, Round)
        and isinstance(sampling, Uniform)
        and round_.adjacency in _PLAYED
        # So near one that the rate rounds up to it there is no choice that a double knows.
        and sampling.rate_bounds[1] < 1.0
    )


def has_choice(kind: object) -> TypeGuard[ExponentialMechanism]:
    """Return True for another release in which the adversary has a choice of pairs."""
    return getattr(kind, "has_choice", False)


def takes_everybody(round_: Round) -> bool:
    """Return True for a Gaussian with the adjacency's shift."""
    sampling = round_.sampling
    if isinstance(sampling, Uniform) and sampling.cohort_size < sampling.num_clients:
        return False
    return round_.adjacency in _PLAYED and round_.sampling_rate == 1.0


def has_one_pair(round_: Round) -> bool:
    """Return True if one fixed pair is exact: full participation, or independent coins."""
    if isinstance(round_.sampling, Poisson):
        return round_.sampling.is_plain and round_.adjacency in _PLAYED
    return takes_everybody(round_)


def is_played(schedule: Schedule) -> bool:
    """Return True if the game improves on a fixed pair for each round.

    In a single round there is no past to react to. There the fixed pair is exact, except for
    zero-out, which uses the fixed pair of replace-one. Other releases are stages of the game.
    """
    kinds = schedule.only_rounds()
    several = schedule.rounds > 1
    played = any(map(is_game, kinds)) and (several or schedule.adjacency is Adjacency.ZERO_OUT)
    return (
        (played or (several and any(map(has_choice, schedule.distinct()))))
        and all(is_game(round_) or has_one_pair(round_) for round_ in kinds)
        and all(LARGEST_SHIFT * round_.noise_multiplier >= 2.0 for round_ in kinds)
    )
