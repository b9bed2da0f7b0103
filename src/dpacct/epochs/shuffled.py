"""Epochs of shuffled batches of fixed size, as a data loader cuts them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpacct import validate
from dpacct.epochs.ratios import RatioLaw, RatioPair, merge_by_loss
from dpacct.errors import InvalidParameter
from dpacct.numerics.quadrature import panel_nodes
from dpacct.numerics.rounding import UNIT, Array
from dpacct.numerics.special import ndtr
from dpacct.pairs.dominating import Direction, DominatingPair, Mechanism, SampledGaussianPair
from dpacct.rounds import Adjacency, AdjacencyName

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
        """The share of an epoch's batches in which an example takes part."""
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
