"""What a schedule surely costs: epsilon and delta that explicit data sets reach, quickly.

Three bounds from below, of which the largest counts. Composition never lowers delta(eps), so what
some of the rounds cost bounds what all do:

* rounds of full participation compose exactly to one Gaussian;
* a sampled round alone has a closed form;
* min(p, e^eps q) <= p^(1-s) (e^eps q)^s for each s in (0, 1), so of all rounds together
      delta(eps) >= 1 - e^{s eps + K},    eps(delta) >= (log(1 - delta) - K) / s,
  K the sum of log integral P^(1-s) Q^s: the Renyi divergence of the order 1 - s, less what delta
  excuses.

The first two are loose for many sampled rounds, the last one for a small delta.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from heapq import nlargest

import numpy as np

from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, Array, weighted_sum
from dpacct.numerics.search import bisect, minimize_unimodal
from dpacct.pairs.dominating import (
    AchievedPair,
    Direction,
    ReplacementPair,
    SampledGaussianPair,
    achieved_pair,
    pairs_of,
)
from dpacct.pairs.moments import log_moment, replacement_log_moment
from dpacct.pairs.one_round import one_round_delta
from dpacct.rounds import Schedule

_TOLERANCE = 1e-10
# Of more kinds of rounds than this only those that cost most are looked at.
_MAX_KINDS = 50
# log s, where the search for it begins, and its tolerance.
_SHARES, _FIRST_SHARE, _SHARE_TOLERANCE = (-20.0, math.log(0.999)), math.log(0.05), 0.02


def _pairs(schedule: Schedule, direction: Direction) -> dict[AchievedPair, int]:
    """The pairs of the rounds that matter most, with multiplicities."""
    counts = schedule.distinct()
    if len(counts) > _MAX_KINDS:
        weights = {
            kind: count * (kind.sampling_rate / kind.noise_multiplier) ** 2
            for kind, count in counts.items()
        }
        counts = {
            kind: counts[kind] for kind in nlargest(_MAX_KINDS, weights, key=weights.__getitem__)
        }
    return pairs_of(counts, achieved_pair, direction)


def _candidates(schedule: Schedule) -> list[AchievedPair]:
    """Pairs that are surely contained: all full rounds as one, and each sampled one."""
    found: list[AchievedPair] = []
    for direction in Direction:
        pairs = _pairs(schedule, direction)
        mu_squared = _precision(pairs)
        if mu_squared > 0:
            # Rounded towards more noise, so that the bound stays below.
            noise = (1 + 4 * UNIT * (len(pairs) + 4)) / math.sqrt(mu_squared)
            found.append(SampledGaussianPair(1.0, noise, direction))
        found += [pair for pair in pairs if not _is_full(pair)]
    return list(dict.fromkeys(found))


def achieved_delta(schedule: Schedule, epsilon: float) -> float:
    """A lower bound of delta(eps), reached by explicit neighboring data sets."""
    pairs = _candidates(schedule)
    alone = max((one_round_delta(epsilon, pair).lower for pair in pairs), default=0.0)
    return max([alone, *(affinity_delta(every, epsilon) for every in _all_rounds(schedule))])


def achieved_epsilon(schedule: Schedule, delta: float) -> float:
    """A lower bound of eps(delta), reached by explicit neighboring data sets."""
    pairs = _candidates(schedule)

    def exceeds(epsilon: float) -> bool:
        return any(one_round_delta(epsilon, pair).lower > delta for pair in pairs)

    alone = bisect(exceeds, 1.0, _TOLERANCE)[0] if exceeds(0.0) else 0.0
    return max([alone, *(_epsilon_of_all(every, delta) for every in _all_rounds(schedule))])


@dataclass(frozen=True, slots=True)
class AllRounds:
    """The pairs of one direction, with multiplicities."""

    pairs: dict[AchievedPair, int]
    direction: Direction

    def log_affinity(self, share: float) -> float:
        """Upper bound of log of the integral of P^(1-s) Q^s, s in (0, 1).

        That is log M(-s): the moments of orders between 0 and 1.
        """
        order = 1 - share if self.direction is Direction.REMOVE else share
        rates, noise, counts = self._rows(SampledGaussianPair)
        found = weighted_sum(log_moment(order, rates, noise), counts).upper
        rates, noise, counts = self._rows(ReplacementPair)
        found = found + weighted_sum(replacement_log_moment(1 - share, rates, noise), counts).upper
        full = _precision(self.pairs) * share * (1 - share) / 2
        slack = UNIT * (4 * len(self.pairs) + 16) * (abs(float(found)) + full)
        return float(found) - full + slack

    def _rows(self, kind: type[AchievedPair]) -> tuple[Array, Array, Array]:
        rows = [(p, n) for p, n in self.pairs.items() if isinstance(p, kind) and not _is_full(p)]
        return (
            np.array([pair.sampling_rate for pair, _ in rows]),
            np.array([pair.noise_std for pair, _ in rows]),
            np.array([float(count) for _, count in rows]),
        )


def _is_full(pair: AchievedPair) -> bool:
    return isinstance(pair, SampledGaussianPair) and pair.sampling_rate == 1.0


def _precision(pairs: dict[AchievedPair, int]) -> float:
    return sum(count / pair.noise_std**2 for pair, count in pairs.items() if _is_full(pair))


def _all_rounds(schedule: Schedule) -> list[AllRounds]:
    """All rounds together, in each direction, unless there is one alone."""
    found: list[AllRounds] = []
    for direction in Direction:
        pairs = _pairs(schedule, direction)
        sampled = {pair: count for pair, count in pairs.items() if not _is_full(pair)}
        if sum(sampled.values()) + (len(sampled) < len(pairs)) > 1:
            found.append(AllRounds(pairs, direction))
        if not any(isinstance(pair, SampledGaussianPair) for pair in sampled):
            # Then both directions are the same.
            break
    return found


def certain_delta(schedule: Schedule, epsilon: float) -> float:
    """What `achieved_delta` has for s = 1/2: for schedules of which it is hardly below 1."""
    return max((_delta_at(every, epsilon, 0.5) for every in _all_rounds(schedule)[:1]), default=0)


def _delta_at(rounds: AllRounds, epsilon: float, share: float) -> float:
    rest = min(_log_rest(rounds, epsilon, share), 0.0)
    return max(0.0, -math.expm1(rest) * (1 - 2 * FUNCTION_ERROR))


def _log_rest(rounds: AllRounds, epsilon: float, share: float) -> float:
    size = share * epsilon
    return size + rounds.log_affinity(share) + 4 * FUNCTION_ERROR * size


def affinity_delta(rounds: AllRounds, epsilon: float) -> float:
    """The third of the bounds of the module's head, of one direction."""
    best = _best_share(lambda t: _log_rest(rounds, epsilon, _share(t)))
    return _delta_at(rounds, epsilon, _share(best))


def _epsilon_of_all(rounds: AllRounds, delta: float) -> float:
    excused = math.log1p(-delta) * (1 + FUNCTION_ERROR)

    def cost(log_share: float) -> float:
        share = _share(log_share)
        return (rounds.log_affinity(share) - excused) / share

    return max(0.0, -cost(_best_share(cost))) * (1 - 4 * FUNCTION_ERROR)


def _share(logarithm: float) -> float:
    """s, such that 1 - s is exact."""
    return 1 - (1 - math.exp(logarithm))


def _best_share(function: Callable[[float], float]) -> float:
    return minimize_unimodal(function, _FIRST_SHARE, _SHARES, _SHARE_TOLERANCE)
