"""The largest cost of truncated cohorts over all sizes of the data set.

The size n of a data set is a constant of a plan, at most N, and the cost is not monotone in n. A
block of sizes has one pair for each round (`dpacct.pairs.truncated`). The bound of a plan is the
largest one of blocks that cover all sizes. Any cover is a proof. `cover` chooses one by moments at
one tilt, narrow around the peak of the cost and wide elsewhere.

Derivation: docs/derivations/epochs.md, theorem 5.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dpacct.numerics.rounding import Array
from dpacct.pairs.dominating import Direction, DominatingPair, achieved_pairs, proven_pairs
from dpacct.pairs.moments import log_moment
from dpacct.pairs.truncated import cohort_law, cohort_pair, crowd_pair
from dpacct.rounds import Poisson, Release, Round, Schedule

# Blocks around the peak cost at most this share of epsilon more than their sizes, or this much.
_SHARE, _LEAST = 1e-3, 2e-3
# Sizes of a first look and of closer ones, and the most blocks. Else the share grows by a factor.
_LOOK, _CLOSER, _MOST = 24, 8, 26
_WIDER = 4.0
# The others of achieved data sets exceed the cohort by so many deviations.
_CROWDS = (1.5, 2.5, 3.5)


def truncated(release: Release) -> tuple[float, float, int] | None:
    """Return rate, noise and largest cohort of a round with truncated cohorts, else None."""
    if isinstance(release, Round) and isinstance(release.sampling, Poisson):
        cohort = release.sampling.max_cohort
        if cohort is not None:
            return release.sampling_rate, release.noise_multiplier, cohort
    return None


@dataclass(frozen=True, slots=True)
class OfSizes:
    """Proven pairs for all data sets of ``least`` to ``most`` clients, as `proven_pairs`."""

    least: int
    most: int

    def __call__(self, release: Release, direction: Direction) -> dict[DominatingPair, int]:
        """Return the pairs of a release, with their counts."""
        cut = truncated(release)
        if cut is None:
            return dict(proven_pairs(release, direction))
        return {cohort_pair(*cut, (self.least, self.most), direction): 1}


@dataclass(frozen=True, slots=True)
class OfCrowd:
    """Achieved pairs of a data set in which the others fill the cohort, as `achieved_pairs`."""

    clients: int

    def __call__(self, release: Release, direction: Direction) -> dict[DominatingPair, int]:
        """Return the pairs of a release, with their counts."""
        cut = truncated(release)
        pair = None if cut is None else crowd_pair(*cut, self.clients, direction)
        return dict(achieved_pairs(release, direction)) if pair is None else {pair: 1}


def crowds(schedule: Schedule) -> list[OfCrowd]:
    """Return a few data sets that may cost more than small ones."""
    most = _populations(schedule)
    if not most:
        return []
    rate, _, cohort = next(cut for kind in schedule.distinct() if (cut := truncated(kind)))
    sizes = (_crowded(rate, cohort, far, min(most)) for far in _CROWDS)
    return [OfCrowd(clients) for clients in sorted({*sizes}) if clients > cohort]


def population(schedule: Schedule) -> int | None:
    """Return the N that all truncated cohorts share, or None if there is none."""
    found = _populations(schedule)
    return found.pop() if len(found) == 1 else None


def _populations(schedule: Schedule) -> set[int]:
    kinds = [kind.sampling for kind in schedule.only_rounds() if truncated(kind)]
    return {kind.num_clients for kind in kinds if isinstance(kind, Poisson) and kind.num_clients}


def _crowded(rate: float, cohort: int, far: float, most: int) -> int:
    """Return a size at which the others exceed the cohort by so many deviations, about."""
    root = (far + math.sqrt(far * far + 4 * cohort)) / 2
    return min(most, round(root * root / rate) + 1)


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
    def typical(self) -> int:
        """A size whose cost is about the largest."""
        rate, _, cohort, _ = self._kinds[0]
        return _crowded(rate, cohort, _CROWDS[1], self.most)

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

    def cover(self, tilt: float, epsilon: float, slack: float) -> list[tuple[int, int]]:
        """Return blocks of all sizes, that with the largest exponent first.

        Args:
            tilt, epsilon: of the plan with the typical size, about.
            slack: blocks with an exponent that is less by this are as good as done.
        """
        first = min(cohort for _, _, cohort, _ in self._kinds) + 1
        if first > self.most:
            return [(1, self.most)]
        peak = self._peak(lambda n: self.exponent(tilt, n, n), first)
        gap = max(_SHARE * tilt * epsilon, _LEAST)
        while gap < 1.0:
            blocks = self._blocks(tilt, first, (peak - slack, peak + gap), gap)
            if len(blocks) < _MOST:
                blocks.append((self.exponent(tilt, 1, first - 1), 1, first - 1))
                return [(least, most) for _, least, most in sorted(blocks, reverse=True)]
            gap *= _WIDER
        return [(1, self.most)]

    def _blocks(
        self, tilt: float, first: int, limits: tuple[float, float], gap: float
    ) -> list[tuple[float, int, int]]:
        """Return at most `_MOST` blocks down to a size, as wide as one of two limits permits."""
        blocks: list[tuple[float, int, int]] = []
        most = self.most
        while most >= first and len(blocks) < _MOST:
            far = self.exponent(tilt, most, most) < limits[0] - 2 * gap
            # The exponent falls as the least size rises. Next to a limit places are near enough.
            low, high, value = first, most, -math.inf
            while low < high and high - low > (most - high) // 16:
                middle = (low + high) // 2 if high < 4 * low else math.isqrt(low * high)
                found = self.exponent(tilt, middle, most)
                if found <= limits[0 if far else 1]:
                    high, value = middle, found
                else:
                    low = middle + 1
            value = self.exponent(tilt, high, most) if value == -math.inf else value
            blocks.append((value, high, most))
            most = high - 1
        return blocks

    def _peak(self, value: Callable[[int], float], first: int) -> float:
        """Return about the largest value of a size."""
        sizes: Array = np.geomspace(float(first), float(self.most), _LOOK)
        best = -math.inf
        for _ in range(3):
            values = [value(round(n)) for n in sizes.tolist()]
            at = int(np.argmax(values))
            best = max(best, values[at])
            low, high = float(sizes[max(at - 1, 0)]), float(sizes[min(at + 1, len(sizes) - 1)])
            sizes = np.linspace(low, high, _CLOSER)
        return best
