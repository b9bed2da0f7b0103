"""What both tight engines compose: the pairs of one direction, with multiplicities."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from dpacct.numerics.rounding import UNIT, Array, Bounds, weighted_sum
from dpacct.pairs.dominating import (
    AchievedPair,
    Direction,
    DominatingPair,
    PairOf,
    ReplacementPair,
    SampledGaussianPair,
    SymmetrizedPair,
    pairs_of,
)
from dpacct.pairs.moments import log_moment
from dpacct.pairs.replacement import replacement_log_moment
from dpacct.pairs.symmetrized import symmetrized_log_moment
from dpacct.rounds import MAX_PHASES, Schedule
from dpacct.tight.laws.cumulants import (
    ACCURACY,
    MAX_NODES,
    Cumulants,
    nodes_cumulants,
    symmetrized_cumulants,
)
from dpacct.tight.laws.sampled import TiltedLosses
from dpacct.tight.laws.symmetrized import SymmetrizedLosses
from dpacct.tight.laws.tilted_nodes import ReplacementNodes, SampledNodes, TiltedNodes
from dpacct.tight.sketch import above, alike


class Rows(NamedTuple):
    """Rates below one, noise and multiplicities of several rounds, shape (m,)."""

    rates: Array
    noise: Array
    counts: Array


NO_ROWS = Rows(np.empty(0), np.empty(0), np.empty(0))
# Rounds whose nodes are kept in the same arrays.
_ROWS = 500
_ACCURACY, _MAX_NODES = 44.0, 500_000
TiltedLaw = TiltedLosses | SymmetrizedLosses


@dataclass(frozen=True, slots=True, eq=False)
class Composition:
    """Sampled Gaussian pairs of one direction, with multiplicities.

    Attributes:
        rates, noise, counts: of the rounds with a rate below one, shape (m,).
        precision: sum of count / noise^2 over the rounds of full participation.
        direction: remove or add.
        symmetrized: pairs of C_q and how often each occurs.
        replaced: pairs of a replaced client, with multiplicities.
        kinds: number of distinct pairs, for rounding.
    """

    rates: Array
    noise: Array
    counts: Array
    precision: float
    direction: Direction
    symmetrized: tuple[tuple[SymmetrizedPair, int], ...] = ()
    replaced: Rows = NO_ROWS
    kinds: int = 1

    @classmethod
    def of(cls, pairs: dict[DominatingPair, int], direction: Direction) -> Composition:
        """The composition of pairs that all have this direction."""
        plain = {p: n for p, n in pairs.items() if isinstance(p, SampledGaussianPair)}
        sampled = {pair: n for pair, n in plain.items() if pair.sampling_rate < 1.0}
        replaced = {p: n for p, n in pairs.items() if isinstance(p, ReplacementPair)}
        return cls(
            np.array([pair.sampling_rate for pair in sampled]),
            np.array([pair.noise_std for pair in sampled]),
            np.array([float(n) for n in sampled.values()]),
            sum(n / p.noise_std**2 for p, n in plain.items() if p.sampling_rate == 1.0),
            direction,
            tuple((p, n) for p, n in pairs.items() if isinstance(p, SymmetrizedPair)),
            Rows(
                np.array([pair.sampling_rate for pair in replaced]),
                np.array([pair.noise_std for pair in replaced]),
                np.array([float(n) for n in replaced.values()]),
            ),
            len(pairs),
        )

    @classmethod
    def of_schedule(cls, schedule: Schedule, pair_of: PairOf, direction: Direction) -> Composition:
        """The composition of the pairs that stand for the rounds of a schedule."""
        return cls.of(pairs_of(schedule.distinct(), pair_of, direction), direction)

    def without_least(self, mass: float) -> tuple[Composition, float]:
        """The composition without what hardly matters, and how much delta(eps) loses by that.

        A round that is left out costs no delta(eps) more than its total variation distance, whose
        sum stays below ``mass``: q times that of the unsampled Gaussians, at most
        0.4 shift / sigma.
        """
        symmetrized = [(p.sampling_rate, p.noise_std, float(n)) for p, n in self.symmetrized]
        kinds = [
            (1.0, self.rates, self.noise, self.counts),
            (1.0, *np.array(symmetrized).reshape(-1, 3).T),
            (2.0, *self.replaced),
        ]
        sizes = [n * q * np.minimum(1.0, 0.4 * shift / z) for shift, q, z, n in kinds]
        full = 0.4 * math.sqrt(self.precision)
        every = np.concatenate([*sizes, [full]])
        if not every.size or not np.min(every) <= mass:
            return self, 0.0
        # The least first, as long as their sum is small.
        order = np.argsort(every, kind="stable")
        dropped = np.zeros(len(every), dtype=bool)
        dropped[order] = np.cumsum(every[order]) <= mass
        lost = float(every[dropped].sum()) * (1 + UNIT * (2 * len(every) + 8))
        kept = np.split(~dropped, np.cumsum([len(part) for part in sizes]))
        plain, symmetric, opposed, gaussian = kept
        rest = Composition(
            self.rates[plain],
            self.noise[plain],
            self.counts[plain],
            self.precision if gaussian[0] else 0.0,
            self.direction,
            tuple(pair for pair, keep in zip(self.symmetrized, symmetric, strict=True) if keep),
            Rows(*(part[opposed] for part in self.replaced)),
            self.kinds,
        )
        return rest, lost

    def sampled_pairs(self) -> list[tuple[AchievedPair, float]]:
        """The pairs of all sampled rounds but those of C_q, with multiplicities."""
        rows = zip(self.rates.tolist(), self.noise.tolist(), self.counts.tolist(), strict=True)
        found: list[tuple[AchievedPair, float]] = [
            (SampledGaussianPair(q, z, self.direction), n) for q, z, n in rows
        ]
        opposed = zip(*(part.tolist() for part in self.replaced), strict=True)
        return found + [(ReplacementPair(q, z), n) for q, z, n in opposed]

    @property
    def is_symmetric(self) -> bool:
        """Whether rounds are there, besides full participation, whose two directions are equal."""
        return bool(self.symmetrized) or bool(self.replaced.rates.size)

    @property
    def sampled_rounds(self) -> float:
        """How many rounds there are besides those of full participation."""
        plain = float(self.counts.sum()) + float(self.replaced.counts.sum())
        return plain + sum(n for _, n in self.symmetrized)

    @property
    def largest_loss(self) -> float:
        """A bound of the loss of the whole composition; infinite where there is none."""
        if self.direction is Direction.REMOVE or self.precision or self.is_symmetric:
            return math.inf
        return float(-np.log1p(-self.rates) @ self.counts) * (1 + UNIT * (2 * self.kinds + 32))

    def log_moment(self, tilt: float | Array) -> Bounds:
        """Bounds of log M(c) for one tilt or several: shape () or (k,).

        c > 0; of sampled pairs and Gaussians alone also c in [-1, 0].
        """
        tilts = np.atleast_1d(np.asarray(tilt, dtype=np.float64))
        order = 1 + tilts if self.direction is Direction.REMOVE else -tilts
        rounds = (slice(None), None)
        moment = log_moment(order[None, :], self.rates[rounds], self.noise[rounds])
        sampled = weighted_sum(moment, self.counts)
        full = self.precision * tilts * (1 + tilts) / 2
        lower, upper = sampled.lower + full, sampled.upper + full
        if self.replaced.rates.size:
            setting = (self.replaced.rates[rounds], self.replaced.noise[rounds])
            opposed = replacement_log_moment(1 + tilts[None, :], *setting)
            part = weighted_sum(opposed, self.replaced.counts)
            lower, upper = lower + part.lower, upper + part.upper
        for pair, count in self.symmetrized:
            for k, c in enumerate(tilts):
                part = symmetrized_log_moment(1 + float(c), pair.sampling_rate, pair.noise_std)
                lower[k] += count * float(part.lower)
                upper[k] += count * float(part.upper)
        # All parts have one sign: below zero between -1 and 0.
        slack = UNIT * (4 * self.kinds + 16) * np.maximum(np.abs(lower), np.abs(upper))
        shape = np.shape(tilt)
        return Bounds((lower - slack).reshape(shape), (upper + slack).reshape(shape))

    def log_moment_above(self, tilts: Array) -> Array:
        """Upper bounds of log M(c), c > 0, that need not be close; shape (k,)."""
        rows = above(self.rates, self.noise, self.counts)
        return replace(self, rates=rows[0], noise=rows[1], counts=rows[2]).log_moment(tilts).upper

    def alike(self) -> Composition:
        """About the same composition, with some hundred kinds of sampled rounds at most."""
        rates, noise, counts = alike(self.rates, self.noise, self.counts)
        return replace(self, rates=rates, noise=noise, counts=counts)

    def cumulants(self, tilt: float) -> Cumulants:
        """log M(c), and mean and variance of the loss tilted by e^{c L}; not proven."""
        value = self.precision * tilt * (1 + tilt) / 2
        mean, variance = self.precision * (0.5 + tilt), self.precision
        for nodes, noise, counts in self._nodes(tilt, ACCURACY, 0.0, MAX_NODES, _ROWS):
            part = nodes_cumulants(nodes, noise, counts)
            value, mean = value + part.log_moment, mean + part.mean
            variance += part.variance
        for pair, count in self.symmetrized:
            part = symmetrized_cumulants(pair.sampling_rate, pair.noise_std, tilt)
            value, mean = value + count * part.log_moment, mean + count * part.mean
            variance += count * part.variance
        return Cumulants(value, mean, max(variance, 1e-300))

    def laws(self, tilt: float, frequency: float) -> list[TiltedLaw]:
        """The tilted losses of the sampled rounds, for frequencies up to the one given."""
        found: list[TiltedLaw] = []
        # A law of many rounds has to be known the better.
        accuracy = _ACCURACY + math.log(max(self.sampled_rounds, 1.0))
        parts = self._nodes(tilt, accuracy, frequency, _MAX_NODES, _ROWS)
        found += [TiltedLosses(nodes, noise, counts) for nodes, noise, counts in parts]
        for pair, count in self.symmetrized:
            setting = (pair.sampling_rate, pair.noise_std, float(count))
            found.append(SymmetrizedLosses(*setting, tilt, frequency))
        return found

    def _nodes(
        self, tilt: float, accuracy: float, frequency: float, most: int, block: int = MAX_PHASES
    ) -> Iterator[tuple[TiltedNodes, Array, Array]]:
        """Nodes of the rounds, with their noise and their counts, in blocks of so many kinds."""
        plain = Rows(self.rates, self.noise, self.counts)
        for rows in (plain, self.replaced):
            for start in range(0, len(rows.rates), block):
                rates, noise, counts = (part[start : start + block] for part in rows)
                setting = (tilt, accuracy, frequency, most)
                if rows is plain:
                    yield SampledNodes(rates, noise, self.direction, *setting), noise, counts
                else:
                    yield ReplacementNodes(rates, noise, *setting), noise, counts
