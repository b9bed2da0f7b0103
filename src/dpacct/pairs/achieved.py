"""Lower bounds of epsilon and delta that explicit data sets reach, quickly.

Three bounds from below, of which the largest counts. Composition never lowers delta(eps), so a
bound of some of the rounds bounds all of them:

* rounds of full participation compose exactly to one Gaussian,
* a sampled round alone has a closed form,
* min(p, e^eps q) <= p^(1-s) (e^eps q)^s for each s in (0, 1), so of all rounds together
      delta(eps) >= 1 - e^{s eps + K},    eps(delta) >= (log(1 - delta) - K) / s,
  K the sum of log integral P^(1-s) Q^s = log E_Q[(P/Q)^(1-s)]: moments of orders between 0 and 1.

The first two are loose for many sampled rounds, the third one for a small delta.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from heapq import nlargest

from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT
from dpacct.numerics.search import bisect, minimize_unimodal
from dpacct.pairs.dominating import (
    AchievedPair,
    Direction,
    DominatingPair,
    GeneralPair,
    Mechanism,
    SampledGaussianPair,
    SymmetrizedPair,
    achieved_pairs,
    pairs_of,
    proven_pairs,
)
from dpacct.pairs.moments import PairMoments
from dpacct.pairs.one_round import one_round_delta
from dpacct.rounds import Release, Round, Schedule

_TOLERANCE = 1e-10
# Above this number of kinds of rounds, only the most expensive kinds are used.
_MAX_KINDS = 50


def achieved_delta(schedule: Schedule, epsilon: float) -> float:
    """Return a lower bound of delta(eps) that explicit neighboring data sets reach."""
    pairs = _alone(schedule)
    alone = max((one_round_delta(epsilon, pair).lower for pair in pairs), default=0.0)
    return max([alone, *(affinity_delta(rounds, epsilon) for rounds in _all_rounds(schedule))])


def achieved_epsilon(schedule: Schedule, delta: float) -> float:
    """Return a lower bound of eps(delta) that explicit neighboring data sets reach."""
    pairs = _alone(schedule)

    def exceeds(epsilon: float) -> bool:
        return any(one_round_delta(epsilon, pair).lower > delta for pair in pairs)

    alone = bisect(exceeds, 1.0, _TOLERANCE)[0] if exceeds(0.0) else 0.0
    return max([alone, *(_affinity_epsilon(rounds, delta) for rounds in _all_rounds(schedule))])


def certain_delta(schedule: Schedule, epsilon: float) -> float:
    """Return `achieved_delta` for s = 1/2, for schedules with a delta hardly below 1."""
    rounds = _all_rounds(schedule)[:1]
    return max((_delta_at(part, epsilon, 0.5) for part in rounds), default=0.0)


def _pairs(schedule: Schedule, direction: Direction) -> dict[DominatingPair, int]:
    """Return the pairs of the releases that matter most, with multiplicities."""
    counts = schedule.distinct()
    if len(counts) > _MAX_KINDS:
        weights = {kind: count * loss_variance(kind, direction) for kind, count in counts.items()}
        counts = {
            kind: counts[kind] for kind in nlargest(_MAX_KINDS, weights, key=weights.__getitem__)
        }
    return pairs_of(counts, achieved_pairs, direction)


def loss_variance(release: Release, direction: Direction) -> float:
    """Return about the variance of the loss: (q / z)^2, or (2.5 delta(0))^2 as for a Gaussian."""
    if isinstance(release, Round):
        return (release.sampling_rate / release.noise_multiplier) ** 2
    total = 0.0
    for pair, count in proven_pairs(release, direction).items():
        if isinstance(pair, GeneralPair):
            total += count * (2.5 * pair.delta(0.0).upper) ** 2
        else:
            total += count * (pair.sampling_rate / pair.noise_std) ** 2
    return total


def _is_full(pair: DominatingPair) -> bool:
    return isinstance(pair, SampledGaussianPair) and pair.sampling_rate == 1.0


def _alone(schedule: Schedule) -> list[AchievedPair | GeneralPair]:
    """Return pairs that are surely contained: all full rounds as one, and each other one."""
    pairs_alone: list[AchievedPair | GeneralPair] = []
    for direction in Direction:
        pairs = _pairs(schedule, direction)
        mu_squared = sum(
            n / pair.noise_std**2
            for pair, n in pairs.items()
            if isinstance(pair, SampledGaussianPair) and _is_full(pair)
        )
        if mu_squared > 0:
            # Rounded towards more noise, so that the bound stays below.
            noise = (1 + 4 * UNIT * (len(pairs) + 4)) / math.sqrt(mu_squared)
            pairs_alone.append(SampledGaussianPair(1.0, noise, direction))
        pairs_alone += [
            pair for pair in pairs if not _is_full(pair) and not isinstance(pair, SymmetrizedPair)
        ]
        for kind in schedule.distinct():
            if isinstance(kind, Mechanism):
                alone = kind.alone_pairs(direction)
                pairs_alone += [pair for pair in alone if isinstance(pair, GeneralPair)]
    return list(dict.fromkeys(pairs_alone))


def _all_rounds(schedule: Schedule) -> list[PairMoments]:
    """Return all rounds together, in each direction, unless there is one alone."""
    together: list[PairMoments] = []
    for direction in Direction:
        pairs = _pairs(schedule, direction)
        sampled = {pair: count for pair, count in pairs.items() if not _is_full(pair)}
        if sum(sampled.values()) + (len(sampled) < len(pairs)) > 1:
            together.append(PairMoments(pairs, direction))
        if not any(isinstance(pair, SampledGaussianPair | GeneralPair) for pair in sampled):
            # Then both directions are the same.
            break
    return together


def affinity_delta(rounds: PairMoments, epsilon: float) -> float:
    """Return the third bound of the module's head, for one direction."""
    best = _best_share(lambda t: _log_rest(rounds, epsilon, _share(t)))
    return _delta_at(rounds, epsilon, _share(best))


def _delta_at(rounds: PairMoments, epsilon: float, share: float) -> float:
    rest = min(_log_rest(rounds, epsilon, share), 0.0)
    return max(0.0, -math.expm1(rest) * (1 - 2 * FUNCTION_ERROR))


def _log_rest(rounds: PairMoments, epsilon: float, share: float) -> float:
    """Return s eps + K, rounded up."""
    size = share * epsilon
    return size + float(rounds.log_moment(1 - share).upper) + 4 * FUNCTION_ERROR * size


def _affinity_epsilon(rounds: PairMoments, delta: float) -> float:
    excused = math.log1p(-delta) * (1 + FUNCTION_ERROR)

    def cost(log_share: float) -> float:
        share = _share(log_share)
        return (float(rounds.log_moment(1 - share).upper) - excused) / share

    return max(0.0, -cost(_best_share(cost))) * (1 - 4 * FUNCTION_ERROR)


def _share(logarithm: float) -> float:
    """Return s, such that 1 - s is exact."""
    return 1 - (1 - math.exp(logarithm))


def _best_share(function: Callable[[float], float]) -> float:
    """Return about the best log s."""
    return minimize_unimodal(function, math.log(0.05), (-20.0, math.log(0.999)), 0.02)
