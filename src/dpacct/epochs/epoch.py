"""Epochs as releases of a schedule: random allocation, and shuffled batches of fixed size."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from dpacct import validate
from dpacct.epochs.averages import epoch_law
from dpacct.epochs.ratios import RatioLaw, RatioPair, merge_by_loss
from dpacct.errors import InvalidParameter
from dpacct.numerics.quadrature import panel_nodes
from dpacct.numerics.rounding import UNIT, Array, Bounds
from dpacct.numerics.special import ndtr
from dpacct.pairs.dominating import Direction, DominatingPair, Mechanism, SampledGaussianPair
from dpacct.rounds import Adjacency, AdjacencyName

# Outside these ranges the distribution of an epoch is not computed, and the bounds of full
# participation and of one step hold.
NOISE_OF_LAWS, STEPS_OF_LAWS = (0.05, 1e5), 10**7
# Distributions that are kept: one bracket needs four of each kind of epoch.
_REMEMBERED = 64


@dataclass(frozen=True, init=False, repr=False, slots=True)
class Epoch(Mechanism):
    """One epoch of random allocation: each example takes part in one random step.

    All t steps are released. The step of an example is drawn uniformly, in secret and independently
    of all others. ``10 * Epoch(1.0, 1000)`` draws afresh in each of ten epochs.

    Args:
        noise_multiplier: standard deviation of the noise on the sum of a step / clip norm.
        steps: t, the number of steps of an epoch.
        passes: how often the same allocation is used. k passes count as one with noise z / sqrt(k).
        adjacency: "zero-out" or "add-remove". The bounds are the same.
    Error:
        Both ends of epsilon lie within 1e-3 (relative) for a noise multiplier / sqrt(passes) of at
        least 0.7, up to 1,000 steps, 100 epochs and delta of at least 1e-8. Far outside, for less
        than 0.05 noise or more than 1e7 steps, the upper end is that of one full participation.
    Raises:
        InvalidParameter: a value out of range, or replace-one.
    Source: Feldman, Shenfeld 2025 (arXiv:2502.08202), docs/derivations/epochs.md.
    """

    noise_multiplier: float
    steps: int
    passes: int
    adjacency: Adjacency

    name = "allocation"

    def __init__(
        self,
        noise_multiplier: float,
        steps: int,
        passes: int = 1,
        adjacency: Adjacency | AdjacencyName = Adjacency.ZERO_OUT,
    ) -> None:
        relation = Adjacency.parse(adjacency)
        if relation is Adjacency.REPLACE_ONE:
            rule = "random allocation is bounded for examples that come, go or are zeroed"
            hint = "Choose zero-out or add-remove."
            raise InvalidParameter("adjacency", str(relation), rule, hint)
        noun = "the number of steps of an epoch"
        object.__setattr__(self, "noise_multiplier", validate.noise_multiplier(noise_multiplier))
        object.__setattr__(self, "steps", validate.count("steps", steps, noun))
        noun = "the number of passes over one allocation"
        object.__setattr__(self, "passes", validate.count("passes", passes, noun))
        object.__setattr__(self, "adjacency", relation)

    @property
    def sampling_rate(self) -> float:
        """The fraction of an epoch's steps in which an example takes part."""
        return 1 / self.steps

    def scale_noise(self, factor: float) -> Epoch:
        """Return the epoch with ``factor`` times its noise."""
        noise = factor * self.noise_multiplier
        return Epoch(noise, self.steps, self.passes, self.adjacency)

    @property
    def is_narrow(self) -> bool:
        """True if the distribution of the epoch is computed, False if simple bounds replace it."""
        low, high = NOISE_OF_LAWS
        within = low * math.sqrt(self.passes) <= self.noise_multiplier <= high
        return self.steps == 1 or (within and self.steps <= STEPS_OF_LAWS)

    def proven_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return (1/t) sum_i N(e_i) against N(0), rounded up in convex order."""
        noise = self._noise_of_one_pass(-4 * UNIT)
        if self.steps == 1 or not self.is_narrow:
            return {SampledGaussianPair(1.0, noise, direction): 1}
        return {_proven_pair(noise, self.steps, direction): 1}

    def achieved_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return the same, rounded down: only the target has a gradient, always the same.

        Where the distribution is not computed, only the first step is looked at.
        """
        noise = self._noise_of_one_pass(4 * UNIT)
        if self.steps == 1 or not self.is_narrow:
            rate = 1.0 if self.steps == 1 else math.nextafter(1 / self.steps, 0.0)
            return {SampledGaussianPair(rate, noise, direction): 1}
        return {_achieved_pair(noise, self._noise_of_one_pass(-4 * UNIT), self.steps, direction): 1}

    def _noise_of_one_pass(self, error: float) -> float:
        """Return z / sqrt(k), rounded to the side of the relative error."""
        if self.passes == 1:
            return self.noise_multiplier
        return self.noise_multiplier / math.sqrt(self.passes) * (1 + error)


class AllocationPair(RatioPair):
    """The pair of an epoch. Rounding leaves it an infinite loss of tiny probability."""

    def __init__(self, law: RatioLaw, noise: float) -> None:
        super().__init__(law)
        self._noise = noise

    def renyi_moment(self, order: float) -> Bounds:
        """See `GeneralPair`. An upper bound is that of one full participation.

        Renyi divergences are quasi-convex, and each step alone has that of a Gaussian.
        """
        moment = super().renyi_moment(order)
        if order <= 1.0:
            return moment
        full = order * (order - 1) / (2 * self._noise**2) * (1 + 8 * UNIT)
        return Bounds(np.minimum(moment.lower, full), np.minimum(moment.upper, full))


@lru_cache(maxsize=_REMEMBERED)
def _proven_pair(noise: float, steps: int, direction: Direction) -> AllocationPair:
    # Both directions share one distribution.
    law = _law(noise, steps, proven=True)
    return AllocationPair((law.swapped() if direction is Direction.ADD else law).trimmed(), noise)


@lru_cache(maxsize=_REMEMBERED)
def _achieved_pair(
    noise: float, less_noise: float, steps: int, direction: Direction
) -> AllocationPair:
    law = _law(noise, steps, proven=False)
    law = (law.swapped() if direction is Direction.ADD else law).trimmed()
    cover = _proven_pair(less_noise, steps, direction).law
    return AllocationPair(replace(law, cover=cover), noise)


@lru_cache(maxsize=_REMEMBERED)
def _law(noise: float, steps: int, *, proven: bool) -> RatioLaw:
    return epoch_law(noise, steps, proven=proven)


# The largest output is looked at in cells of this width, in units of the noise, up to so far from
# its mean. Steps of the grid of losses in the largest loss of one step.
_CELL, _FARTHEST, _LOSSES = 0.02, 11.0, 4000
# Outside, only one participation in full is looked at.
_NOISE, _STEPS = (0.05, 1e4), 10**6


@dataclass(frozen=True, init=False, repr=False, slots=True)
class ShuffledEpoch(Mechanism):
    """One epoch of batches of fixed size, cut from a list that is shuffled before each epoch.

    Each example takes part exactly once. No amplification is proven beyond that, and little can be:
    the batches of all others tell where an example is not. Two ways out cost far less and train
    alike: random allocation (`Epoch`) and Poisson sampling.

    Args:
        noise_multiplier: standard deviation of the noise on the sum of a batch / clip norm.
        steps: the number of batches of an epoch.
        adjacency: "zero-out": one example contributes zero. Without an example, all batches that
            follow would be cut elsewhere.
    Raises:
        InvalidParameter: a value out of range, or another adjacency.
    Source: Chua et al. 2024 (arXiv:2403.17673), docs/derivations/epochs.md.
    """

    noise_multiplier: float
    steps: int
    adjacency: Adjacency

    name = "shuffle"

    def __init__(
        self,
        noise_multiplier: float,
        steps: int,
        adjacency: Adjacency | AdjacencyName = Adjacency.ZERO_OUT,
    ) -> None:
        relation = Adjacency.parse(adjacency)
        if relation is not Adjacency.ZERO_OUT:
            rule = "shuffled batches are bounded for an example whose contribution becomes zero"
            raise InvalidParameter("adjacency", str(relation), rule, "Choose zero-out.")
        object.__setattr__(self, "noise_multiplier", validate.noise_multiplier(noise_multiplier))
        noun = "the number of batches of an epoch"
        object.__setattr__(self, "steps", validate.count("steps", steps, noun))
        object.__setattr__(self, "adjacency", relation)

    @property
    def sampling_rate(self) -> float:
        """The fraction of an epoch's batches in which an example takes part."""
        return 1 / self.steps

    def scale_noise(self, factor: float) -> ShuffledEpoch:
        """Return the epoch with ``factor`` times its noise."""
        return ShuffledEpoch(factor * self.noise_multiplier, self.steps)

    def proven_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return one participation in full: the order of the list may be published."""
        return {SampledGaussianPair(1.0, self.noise_multiplier, direction): 1}

    def achieved_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return (1/t) sum N(2 e_i) against (1/t) sum N(e_i), seen by their largest entry.

        All others send -C, and the example +C or nothing.
        """
        low, high = _NOISE
        if self.steps == 1 or self.steps > _STEPS or not low <= self.noise_multiplier <= high:
            rate = math.nextafter(1 / self.steps, 0.0) if self.steps > 1 else 1.0
            return {SampledGaussianPair(rate, self.noise_multiplier, direction): 1}
        return {_largest_entry(self.noise_multiplier, self.steps, direction): 1}


@lru_cache(maxsize=16)
def _largest_entry(noise: float, steps: int, direction: Direction) -> RatioPair:
    law = largest_entry_law(noise, steps)
    return (law.swapped() if direction is Direction.ADD else law).trimmed().pair()


def largest_entry_law(noise: float, steps: int) -> RatioLaw:
    """Return the lower law of max_i y_i, y = 2 e_i + noise under P and e_i + noise under Q.

    The density of the maximum is that of the entry with the example times the distribution of the
    others, plus the other way round. All terms are positive: no digit is lost.
    """
    # Left of the first edge the largest of t entries hardly ever is.
    least = -noise * _FARTHEST if steps < 100 else 0.0
    cells = math.ceil(((2 + _FARTHEST * noise) - least) / (_CELL * noise))
    edges = np.linspace(least, 2 + _FARTHEST * noise, cells + 1)
    y, weights = panel_nodes(edges)

    def masses(shift: float) -> Array:
        others = ndtr(y / noise)
        first = _density((y - shift) / noise) * others ** (steps - 1)
        second = ndtr((y - shift) / noise) * _density(y / noise) * others ** (steps - 2)
        return (weights / noise * (first + (steps - 1) * second)).sum(axis=1)

    p, q = masses(2.0), masses(1.0)
    kept = (p > 1e-280) & (q > 1e-280)
    step = 2.0 / noise**2 / _LOSSES * (1 + noise)
    return merge_by_loss(p[kept], q[kept], step, 1e-12 + 16 * UNIT * steps)


def _density(x: Array) -> Array:
    return np.exp(-(x**2) / 2) / math.sqrt(2 * math.pi)
