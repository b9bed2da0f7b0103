"""What a schedule surely costs: epsilon and delta that explicit data sets reach.

Rounds of full participation compose exactly to one Gaussian. Of the sampled rounds one is
taken alone: composition never lowers delta(eps), so one round bounds all from below. The bound
is honest but loose for many sampled rounds.
"""

from __future__ import annotations

import math

from dpacct.dominating import AchievedPair, Direction, SampledGaussianPair, achieved_pair
from dpacct.one_round import one_round_delta
from dpacct.rounding import UNIT
from dpacct.rounds import Schedule
from dpacct.search import bisect

_TOLERANCE = 1e-10


def _candidates(schedule: Schedule) -> list[AchievedPair]:
    """Pairs that are surely contained: all full rounds as one, the extreme sampled rounds."""
    found: list[AchievedPair] = []
    for direction in Direction:
        pairs: dict[AchievedPair, int] = {}
        for round_, count in schedule.distinct().items():
            pair = achieved_pair(round_, direction)
            pairs[pair] = pairs.get(pair, 0) + count
        mu_squared = sum(n / p.noise_std**2 for p, n in pairs.items() if p.sampling_rate == 1.0)
        if mu_squared > 0:
            # Rounded towards more noise, so that the bound stays below.
            noise = (1 + 4 * UNIT * (len(pairs) + 4)) / math.sqrt(mu_squared)
            found.append(SampledGaussianPair(1.0, noise, direction))
        sampled = [p for p in pairs if p.sampling_rate < 1.0]
        if sampled:
            found.append(min(sampled, key=lambda p: (p.noise_std, -p.sampling_rate)))
            found.append(max(sampled, key=lambda p: (p.sampling_rate, -p.noise_std)))
    return list(dict.fromkeys(found))


def achieved_delta(schedule: Schedule, epsilon: float) -> float:
    """A lower bound of delta(eps), reached by explicit neighboring data sets."""
    pairs = _candidates(schedule)
    return max((one_round_delta(epsilon, pair).lower for pair in pairs), default=0.0)


def achieved_epsilon(schedule: Schedule, delta: float) -> float:
    """A lower bound of eps(delta), reached by explicit neighboring data sets."""
    pairs = _candidates(schedule)

    def exceeds(epsilon: float) -> bool:
        return any(one_round_delta(epsilon, pair).lower > delta for pair in pairs)

    if not exceeds(0.0):
        return 0.0
    return bisect(exceeds, 1.0, _TOLERANCE)[0]
