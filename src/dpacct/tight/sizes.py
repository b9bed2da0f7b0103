"""The largest cost of truncated cohorts over all sizes of the data set.

The size n of a data set is a constant of a plan, at most N, and the cost is not monotone in n. A
block of sizes has one pair for each round (`dpacct.pairs.truncated`). The bound of a plan is the
largest one of blocks that cover all sizes. Any cover is a proof. `Sizes.cover` chooses one by
moments at one tilt, narrow around the peak of the cost and wide elsewhere.

Derivation: docs/derivations/epochs.md, theorem 5.
"""

from __future__ import annotations

import heapq
import math
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from dpacct.budget import Interval
from dpacct.errors import NotConverged
from dpacct.pairs.dominating import Direction, DominatingPair, achieved_pairs, proven_pairs
from dpacct.pairs.moments import log_moment
from dpacct.pairs.truncated import cohort_law, cohort_pair, crowd_pair
from dpacct.rounds import Poisson, Release, Round, Schedule
from dpacct.tight.composition import Composition
from dpacct.tight.contour import log_chernoff_factor, log_delta_estimate
from dpacct.tight.engines import AtDelta, Question, by_pairs, is_surely_below

# The others of achieved data sets exceed the cohort by so many deviations.
_CROWDS = (1.5, 2.5, 3.5)


def truncated(release: Release) -> tuple[float, float, int] | None:
    """Return rate, noise and largest cohort of a round with truncated cohorts, else None."""
    if isinstance(release, Round) and isinstance(release.sampling, Poisson):
        cohort = release.sampling.max_cohort
        if cohort is not None:
            return release.sampling_rate, release.noise_multiplier, cohort
    return None


class OfSizes(NamedTuple):
    """Proven pairs for all data sets of ``least`` to ``most`` clients, as `proven_pairs`."""

    least: int
    most: int

    def __call__(self, release: Release, direction: Direction) -> dict[DominatingPair, int]:
        """Return the pairs of a release, with their counts."""
        cut = truncated(release)
        if cut is None:
            return dict(proven_pairs(release, direction))
        return {cohort_pair(*cut, (self.least, self.most), direction): 1}


class OfCrowd(NamedTuple):
    """Achieved pairs of a data set in which the others fill the cohort, as `achieved_pairs`."""

    clients: int

    def __call__(self, release: Release, direction: Direction) -> dict[DominatingPair, int]:
        """Return the pairs of a release, with their counts."""
        cut = truncated(release)
        pair = None if cut is None else crowd_pair(*cut, self.clients, direction)
        return dict(achieved_pairs(release, direction)) if pair is None else {pair: 1}


def crowds(schedule: Schedule, most: int) -> list[OfCrowd]:
    """Return a few data sets of at most ``most`` clients that may cost more than small ones."""
    rate, _, cohort = next(cut for kind in schedule.distinct() if (cut := truncated(kind)))
    sizes = {_crowded(rate, cohort, far, most) for far in _CROWDS}
    return [OfCrowd(clients) for clients in sorted(sizes) if clients > cohort]


def _crowded(rate: float, cohort: int, far: float, most: int) -> int:
    """Return a size at which the others exceed the cohort by so many deviations, about."""
    root = (far + math.sqrt(far * far + 4 * cohort)) / 2
    return min(most, round(root * root / rate) + 1)


def over_sizes(question: Question, schedule: Schedule, simple: Interval) -> Interval:
    """Return the largest answer over sizes of the population, or the ``simple`` one for all.

    Truncated cohorts of the schedule share one largest size.
    """
    kinds = (kind.sampling for kind in schedule.only_rounds() if truncated(kind))
    most = next(k.num_clients for k in kinds if isinstance(k, Poisson) and k.num_clients)
    sizes, worst = Sizes(schedule, most), Interval(0.0, 0.0)
    typical = Composition.of_schedule(schedule, sizes.typical, Direction.REMOVE)
    with suppress(NotConverged):
        tilt, at, (epsilon, _) = question.saddle(typical)
        # One bound for all sizes is kept if it is next to the estimate.
        if isinstance(question, AtDelta) and simple.upper <= epsilon * (1 + 5e-4):
            return simple
        chernoff = at.log_moment - tilt * epsilon + log_chernoff_factor(tilt)
        slack = chernoff - log_delta_estimate(tilt, at, epsilon)
        for block in sizes.cover(tilt, epsilon, slack):
            if not is_surely_below(question, block, schedule, worst.upper):
                bracket = by_pairs(question, block, schedule)
                worst = max(worst, bracket, key=lambda each: each.upper)
            if worst.upper >= simple.upper:
                break
        return min(simple, worst, key=lambda each: each.upper)
    return simple


@dataclass(frozen=True)
class Sizes:
    """All sizes up to ``most``, with the moments of a schedule at one tilt, remove direction."""

    schedule: Schedule
    most: int

    @cached_property
    def _kinds(self) -> list[tuple[float, float, int, int]]:
        kinds = self.schedule.distinct().items()
        return [(*cut, n) for kind, n in kinds if (cut := truncated(kind))]

    @property
    def typical(self) -> OfSizes:
        """A size whose cost is about the largest."""
        rate, _, cohort, _ = self._kinds[0]
        size = _crowded(rate, cohort, _CROWDS[1], self.most)
        return OfSizes(size, size)

    def exponent(self, tilt: float, least: int, most: int) -> float:
        """Return about log M(c) of the truncated rounds of a block."""
        total = 0.0
        for rate, noise, cohort, count in self._kinds:
            law = cohort_law(rate, cohort, (least, most))
            weights = np.append(law.weights, max(law.usual, 1e-300))
            noises = np.append(np.full(len(law.rates), noise / 2), noise)
            moments = log_moment(1 + tilt, np.append(law.rates, rate), noises).upper
            total += count * float(np.logaddexp.reduce(np.log(weights) + moments))
        return total

    def cover(self, tilt: float, epsilon: float, slack: float) -> list[OfSizes]:
        """Return blocks of all sizes, that with the largest exponent first.

        Blocks are halved, the worst first, until it costs hardly more than one of its sizes. Then
        neighbors are joined that stay below the worst, or as good as done.

        Args:
            tilt, epsilon: of the plan with the typical size, about.
            slack: blocks with an exponent that is less by this are as good as done.
        """
        # The share of epsilon, or the exponent, by which blocks may cost more than their sizes.
        gap, peak = max(1e-3 * tilt * epsilon, 2e-3), -math.inf
        waiting = [(-self.exponent(tilt, 1, self.most), 1, self.most)]
        # Of more blocks the gap may be larger.
        while len(waiting) < 32:
            reached, least, most = waiting[0]
            middle = (least + most) // 2 if most < 4 * least else math.isqrt(least * most)
            peak = max(peak, self.exponent(tilt, middle, middle))
            if least == most or -reached <= peak + gap:
                break
            heapq.heappop(waiting)
            for ends in ((least, middle), (middle + 1, most)):
                heapq.heappush(waiting, (-self.exponent(tilt, *ends), *ends))
        worst, done = waiting[0][0], slack - peak
        first_block, *others = sorted(waiting, key=lambda block: block[1])
        joined = [first_block]
        for cost, least, most in others:
            before, first, _ = joined[-1]
            both = -self.exponent(tilt, first, most)
            if both >= (done if min(before, cost) >= done else worst):
                joined[-1] = (both, first, most)
            else:
                joined.append((cost, least, most))
        return [OfSizes(least, most) for _, least, most in sorted(joined)]
