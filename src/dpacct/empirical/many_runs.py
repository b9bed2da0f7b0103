"""What many runs on two neighboring data sets show: a lower bound of epsilon that assumes nothing.

A number is read off each run. On half of the runs the set of numbers is chosen that separates the
two data sets best; on the other half its probability under each is bounded by Clopper and Pearson.
The second half knows nothing of the choice, so that the bounds hold as for a set fixed beforehand.
Source: Jagielski, Ullman, Oprea 2020 (arXiv:2006.07709); the Gaussian form Nasr et al. 2023
(arXiv:2302.07956); docs/derivations/auditing.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri  # pyright: ignore[reportMissingTypeStubs]

from dpacct.empirical.confidence import (
    OUTWARD,
    Estimate,
    largest_probability,
    least_probability,
)
from dpacct.empirical.promises import Promise
from dpacct.errors import InvalidParameter
from dpacct.numerics.rounding import Array

_CANDIDATES, _FEWEST = 100, 4
# Of sums and logarithms of a few doubles, where a limit of a million runs is subtracted from one.
_ROUNDING = 5e-10


@dataclass(frozen=True, slots=True)
class Separated:
    """How a test that was fixed beforehand separates runs with somebody from runs without.

    Attributes:
        found: runs with, in which the test says so. missed: the other ones.
        accused: runs without, in which it says so too. cleared: the other ones.
    """

    found: int
    missed: int
    accused: int
    cleared: int

    def tpr(self, error: float) -> Estimate:
        """The share of runs with somebody that are recognized; each limit errs with ``error``."""
        return _estimate(self.found, self.found + self.missed, error)

    def fpr(self, error: float) -> Estimate:
        """The share of runs without that are taken for runs with; likewise."""
        return _estimate(self.accused, self.accused + self.cleared, error)

    def epsilon(self, delta: float, error: float) -> float:
        """An epsilon that the runs exceed at ``delta``, but for the probability of an error."""
        tpr, fpr = self.tpr(error / 2).lower, self.fpr(error / 2).upper
        return max(_ratio(tpr - delta, fpr), _ratio(1 - fpr - delta, 1 - tpr), 0.0)

    def refutes(self, promise: Promise, error: float) -> bool:
        """Whether runs that keep a promise do so with at most the probability of an error."""
        tpr, fpr = self.tpr(error / 2).lower, self.fpr(error / 2).upper
        growth = np.exp(promise.epsilons)
        most = np.minimum(
            promise.deltas + growth * fpr, 1 - (1 - promise.deltas - fpr) / growth
        ).min()
        return tpr > float(most) + _ROUNDING

    def distance(self, sampling_rate: float, error: float) -> float:
        """About how far apart both are in standard deviations of a Gaussian, at least.

        For choosing a test; `noise` is what it proves.
        """
        fpr = self.fpr(error / 2).upper
        missed = (1 - self.tpr(error / 2).lower - (1 - sampling_rate) * (1 - fpr)) / sampling_rate
        return float(ndtri(1 - fpr) - ndtri(min(max(missed, 0.0), 1.0)))

    def noise(self, sampling_rate: float, error: float, *, replaced: bool) -> float:
        """A bound of noise / contribution, if the noise is Gaussian and sampled at this rate.

        Args:
            sampling_rate: chance of a contribution to be there.
            error: probability that what is returned is below the truth.
            replaced: runs without have the opposite contribution, and not none.
        Returns:
            Infinite where nothing is shown.
        """
        tpr, fpr = self.tpr(error / 2).lower, self.fpr(error / 2).upper
        low, high = 1e-6, 1e6
        if not _power(high, fpr, sampling_rate, replaced=replaced) < tpr:
            return math.inf
        while high / low > 1 + 1e-9:
            middle = math.sqrt(low * high)
            if _power(middle, fpr, sampling_rate, replaced=replaced) < tpr:
                high = middle
            else:
                low = middle
        return high * OUTWARD


def separate(inside: Array, outside: Array, worth: Callable[[Separated], float]) -> Separated:
    """Choose a threshold on the first half of the runs, and count on the second.

    Args:
        inside, outside: the number of each run with, and without; in the order of the runs,
            float64 [n] and [m]. Runs with have the larger ones.
        worth: what is to be large.
    Raises:
        InvalidParameter: fewer than four runs of a kind, or a number that is not one.
    """
    for name, values in (("inside", inside), ("outside", outside)):
        if len(values) < _FEWEST or bool(np.isnan(values).any()):
            rule = f"there are at least {_FEWEST} runs of each kind, and a number of each"
            raise InvalidParameter(name, len(values), rule)
    (seen, kept), (seen_out, kept_out) = (np.array_split(v, 2) for v in (inside, outside))
    values = np.unique(np.concatenate([seen, seen_out]))
    between = (values[1:] + values[:-1]) / 2 if len(values) > 1 else values

    def best(places: range) -> int:
        return max(places, key=lambda place: worth(_counted(seen, seen_out, between[place])))

    step = -(-len(between) // _CANDIDATES)
    near = best(range(0, len(between), step))
    place = best(range(max(0, near - step), min(len(between), near + step + 1)))
    return _counted(kept, kept_out, between[place])


def _counted(inside: Array, outside: Array, threshold: float) -> Separated:
    found = int(np.count_nonzero(inside > threshold))
    accused = int(np.count_nonzero(outside > threshold))
    return Separated(found, len(inside) - found, accused, len(outside) - accused)


def _estimate(hits: int, runs: int, error: float) -> Estimate:
    lower, upper = least_probability(hits, runs, error), largest_probability(hits, runs, error)
    return Estimate(hits / runs, lower, upper)


def _ratio(more: float, less: float) -> float:
    """At most log(more / less)."""
    if more <= 0:
        return 0.0
    return math.inf if less <= 0 else math.log(more / less) - _ROUNDING


def _power(noise: float, fpr: float, rate: float, *, replaced: bool) -> float:
    """The largest TPR at an FPR, of a Gaussian with this noise for each contribution."""
    if not 0 < fpr < 1:
        return fpr
    other = -1.0 if replaced else 0.0
    low, high = other - 40 * noise, 1 + 40 * noise
    for _ in range(200):
        middle = (low + high) / 2
        accused = (1 - rate) * ndtr(-middle / noise) + rate * ndtr((other - middle) / noise)
        low, high = (middle, high) if accused > fpr else (low, middle)
    return float((1 - rate) * ndtr(-low / noise) + rate * ndtr((1 - low) / noise))
