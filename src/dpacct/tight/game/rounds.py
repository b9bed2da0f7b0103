"""Which rounds the game is about, and the laws of each kind of round in it.

Rule 1: neighbors differ in one replaced client.
Rule 2: a round is of fixed size, Poisson, or takes everybody; what each client sends may depend on
    what was released before and on fresh randomness, not on whether a client took part before.
Rule 3: rates are rounded up for the upper bound, and down for the lower one; noise of many kinds
    of rounds is rounded down for the upper bound.
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np

from dpacct.errors import Unsupported
from dpacct.rounds import Adjacency, Phase, Poisson, Round, Schedule, Uniform
from dpacct.tight.game.cover import Cover
from dpacct.tight.game.gaussian_profile import LARGEST_SHIFT
from dpacct.tight.game.kernels import (
    cell_kernel,
    gaussian_above,
    gaussian_below,
    gaussian_reach,
    poisson_above,
    poisson_below,
    reach_of,
    remove_above,
    strategy_kernels,
)
from dpacct.tight.game.laws import Kernel
from dpacct.tight.game.mixtures import Mixing, mixing_laws

# How all positions in a round are bounded: one law for each of some cells, or mixtures of few.
Positions = Cover | Mixing

MOST_KINDS = 60


def is_game(round_: Round) -> bool:
    """Whether the adversary has a choice of positions in this round."""
    sampling = round_.sampling
    return (
        isinstance(sampling, Uniform)
        and round_.adjacency is Adjacency.REPLACE_ONE
        # So near one that the rate rounds up to it there is no choice that a double knows.
        and sampling.rate_bounds[1] < 1.0
    )


def takes_everybody(round_: Round) -> bool:
    """Whether it is a Gaussian with twice the clip norm as shift."""
    sampling = round_.sampling
    if isinstance(sampling, Uniform) and sampling.cohort_size < sampling.num_clients:
        return False
    return round_.adjacency is Adjacency.REPLACE_ONE and round_.sampling_rate == 1.0


def has_one_pair(round_: Round) -> bool:
    """Whether one fixed pair is exact for this round: everybody takes part, or each by a coin."""
    poisson = isinstance(round_.sampling, Poisson) and round_.adjacency is Adjacency.REPLACE_ONE
    return takes_everybody(round_) or poisson


def is_played(schedule: Schedule) -> bool:
    """Whether the game says more about a schedule than a fixed pair for each round.

    A single round has no past to choose by: there the fixed pair is exact.
    """
    kinds = schedule.distinct()
    return (
        schedule.rounds > 1
        and any(is_game(round_) for round_ in kinds)
        and all(is_game(round_) or has_one_pair(round_) for round_ in kinds)
        and all(LARGEST_SHIFT * round_.noise_multiplier >= 2.0 for round_ in kinds)
    )


@lru_cache(maxsize=64)
def fewer_kinds(schedule: Schedule) -> Schedule:
    """A schedule that costs at least as much, with fewer kinds of rounds; itself if there are few.

    Noise is rounded down to one of some values, evenly spaced in the logarithm.
    """
    noises = [round_.noise_multiplier for round_ in schedule.distinct() if is_game(round_)]
    if len(noises) <= MOST_KINDS:
        return schedule
    least = min(noises)
    width = math.log(max(noises) / least) / MOST_KINDS

    def louder(round_: Round) -> Round:
        if not is_game(round_) or not width:
            return round_
        noise = round_.noise_multiplier
        rounded = least * math.exp(width * math.floor(math.log(noise / least) / width))
        return Round(min(noise, rounded), round_.sampling, round_.adjacency)

    return Schedule(Phase(louder(round_), count) for round_, count in schedule)


def check_schedule(schedule: Schedule) -> None:
    """Refuse schedules that the game is not about.

    Raises:
        Unsupported: says why, and what to use instead.
    """
    for round_ in schedule.distinct():
        if not (is_game(round_) or has_one_pair(round_)):
            raise Unsupported(
                f"the game is about rounds, of fixed size, Poisson or of everybody, in which one "
                f"client is replaced; {round_!r} is another one: use the accountant 'tight'"
            )
        if LARGEST_SHIFT * round_.noise_multiplier < 2.0:
            raise Unsupported(
                f"the game needs a noise multiplier of at least {2 / LARGEST_SHIFT:.3f}, and "
                f"{round_!r} has less: use the accountant 'tight'"
            )


def laws_above(round_: Round, positions: Positions, step: float, negligible: float) -> list[Kernel]:
    """Laws of which one, or a mixture, dominates, whatever the positions in this round.

    Raises:
        NotConverged: there are no such laws of the kind asked for.
    """
    noise = round_.noise_multiplier
    if takes_everybody(round_):
        return [gaussian_above(noise, step, gaussian_reach(noise, step, negligible))]
    rate = _rates(round_)[1]
    reach = reach_of(rate, noise, step, negligible)
    if not is_game(round_):
        return [poisson_above(rate, noise, step, reach)]
    if isinstance(positions, Mixing):
        return list(mixing_laws(rate, noise, step, reach[0], negligible, positions))
    return [cell_kernel(rate, noise, cell, step, reach, negligible) for cell in positions]


def laws_below(round_: Round, step: float, negligible: float) -> list[Kernel]:
    """Laws below some positions in this round."""
    noise = round_.noise_multiplier
    if takes_everybody(round_):
        return [gaussian_below(noise, step, gaussian_reach(noise, step, negligible))]
    rate = _rates(round_)[0]
    reach = reach_of(rate, noise, step, negligible)
    if not is_game(round_):
        return [poisson_below(rate, noise, step, reach)]
    return list(strategy_kernels(rate, noise, step, reach))


def moment_on_grid(
    round_: Round, tilt: float, step: float, negligible: float, *, upper: bool
) -> float:
    """log M(tilt) of the law above, or below, one round of remove; for plans."""
    if upper and is_game(round_):
        rate, noise = _rates(round_)[1], round_.noise_multiplier
        law = remove_above(rate, noise, step, reach_of(rate, noise, step, negligible))
    elif upper:
        law = laws_above(round_, (), step, negligible)[0]
    else:
        law = laws_below(round_, step, negligible)[0]
    places = law.first + np.arange(len(law.masses))
    return math.log(float(law.masses @ np.exp(tilt * step * places)))


def _rates(round_: Round) -> tuple[float, float]:
    sampling = round_.sampling
    if isinstance(sampling, Uniform):
        return sampling.rate_bounds
    return round_.sampling_rate, round_.sampling_rate
