"""A training run with correlated noise, as one release of a schedule.

Without sampling the whole run is one Gaussian mechanism with mu = sens / z, also if each gradient
depends on the earlier releases (Denisov et al. 2022, theorem 2.1). Given the past, round t moves by
a vector v_t with sum |v_t|^2 <= sens^2, and Gaussian rounds cost the sum of squares only.

With cyclic Poisson sampling the clients form b groups. Round t draws each client of group t mod b
with probability q. If C has at most b bands, then two participations of a client have no row in
common. Then the participation in round i is a round of Poisson sampling with noise z / |C e_i|
(Choquette-Choo et al. 2023, theorem 4). Columns of norm 1 give ceil(n / b) rounds at (z, q).

docs/derivations/correlated-noise.md has the proofs.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from dpacct import validate
from dpacct.budget import Interval
from dpacct.correlated.sensitivity import check_participation, column_norms
from dpacct.correlated.strategy import Strategy
from dpacct.errors import InvalidParameter
from dpacct.numerics.rounding import UNIT, Array
from dpacct.pairs.dominating import (
    Direction,
    DominatingPair,
    Mechanism,
    ReplacementPair,
    SampledGaussianPair,
)
from dpacct.rounds import Adjacency, AdjacencyName, Full, Poisson, Sampling

# Norms are rounded to this many digits, away from the truth, so that equal columns stay equal.
_DIGITS = 12


@dataclass(frozen=True, init=False, repr=False)
class Correlated(Mechanism):
    """All rounds of a run with correlated noise: C G + Z, of which rows are released one by one.

    Args:
        noise_multiplier: standard deviation of the entries of Z / clip norm.
        strategy: the matrix C. Its rounds are those of the run.
        min_separation: two participations of one client are at least this many rounds apart. With
            cyclic sampling, the number of groups.
        participations: the most participations of one client. Default: as many as fit.
        sampling: None, or `Poisson` for cyclic Poisson sampling inside the group whose turn it is.
        adjacency: the neighboring relation. All other clients take part in the same rounds in both
            data sets. With sampling, a replacement joins the group of its predecessor.
    Raises:
        InvalidParameter: a value out of range, more participations than fit, or sampling with more
            bands than groups.
    Source: Denisov et al. 2022 (arXiv:2202.08312), Choquette-Choo et al. 2023 (arXiv:2306.08153).
    """

    noise_multiplier: float
    strategy: Strategy
    min_separation: int
    participations: int
    sampling: Sampling
    adjacency: Adjacency

    def __init__(
        self,
        noise_multiplier: float,
        strategy: Strategy,
        *,
        min_separation: int,
        participations: int | None = None,
        sampling: Sampling | None = None,
        adjacency: Adjacency | AdjacencyName = Adjacency.ADD_REMOVE,
    ) -> None:
        if not isinstance(strategy, Strategy):
            rule = "a strategy is made by dpacct.correlated, for example square_root(rounds)"
            raise InvalidParameter("strategy", strategy, rule)
        b, k = check_participation(strategy.rounds, min_separation, participations)
        scheme = Full() if sampling is None else sampling
        if not isinstance(scheme, Full | Poisson):
            rule = "correlated noise is proven without sampling, or with Poisson(rate) in groups"
            raise InvalidParameter("sampling", sampling, rule)
        if isinstance(scheme, Poisson):
            if not scheme.is_plain:
                rule = "groups are sampled with one record a client and cohorts of any size"
                raise InvalidParameter("sampling", scheme, rule, "Choose Poisson(rate).")
            if participations not in (None, -(-strategy.rounds // b)):
                rule = "a client may be drawn whenever it is the turn of its group"
                raise InvalidParameter("participations", participations, rule, "Leave it out.")
            if strategy.bands > b:
                rule = f"sampling in {b} groups amplifies strategies of at most {b} bands"
                raise InvalidParameter("bands", strategy.bands, rule, "Use fewer bands.")
        noise = validate.noise_multiplier(noise_multiplier)
        object.__setattr__(self, "noise_multiplier", noise)
        object.__setattr__(self, "strategy", strategy)
        object.__setattr__(self, "min_separation", b)
        object.__setattr__(self, "participations", k)
        object.__setattr__(self, "sampling", scheme)
        object.__setattr__(self, "adjacency", Adjacency.parse(adjacency))

    @property
    def rounds(self) -> int:
        """The number of rounds of the run."""
        return self.strategy.rounds

    @property
    def sampling_rate(self) -> float:
        """The probability with which a client of the group takes part."""
        return self.sampling.sampling_rate

    @property
    def sensitivity(self) -> Interval:
        """Bounds of the sensitivity for clip norm 1, twice as large under replace-one."""
        bracket = self.strategy.sensitivity(self.min_separation, self.participations)
        factor = 2.0 if self.adjacency is Adjacency.REPLACE_ONE else 1.0
        return Interval(factor * bracket.lower, factor * bracket.upper)

    def __repr__(self) -> str:
        parts = [repr(self.noise_multiplier), repr(self.strategy)]
        parts.append(f"min_separation={self.min_separation}")
        if isinstance(self.sampling, Poisson):
            parts.append(f"sampling={self.sampling!r}")
        else:
            parts.append(f"participations={self.participations}")
        if self.adjacency is not Adjacency.ADD_REMOVE:
            parts.append(f"adjacency={str(self.adjacency)!r}")
        return f"Correlated({', '.join(parts)})"

    def scale_noise(self, factor: float) -> Correlated:
        """Return the same run with ``factor`` times its noise."""
        taken = None if isinstance(self.sampling, Poisson) else self.participations
        return Correlated(
            factor * self.noise_multiplier,
            self.strategy,
            min_separation=self.min_separation,
            participations=taken,
            sampling=self.sampling,
            adjacency=self.adjacency,
        )

    def prefix_error(self) -> float:
        """Return `Strategy.prefix_error` at this noise, for clip norm 1."""
        return self.strategy.prefix_error(self.noise_multiplier)

    def proven_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return the pair of one Gaussian, or those of the rounds of a group."""
        if isinstance(self.sampling, Full):
            noise = math.nextafter(self.noise_multiplier / self.sensitivity.upper, 0.0)
            return {SampledGaussianPair(1.0, noise, direction): 1}
        norms = _worst_norms(self.strategy, self.min_separation)
        return self._sampled_pairs(direction, norms, math.ceil)

    def achieved_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return the pairs that the best known pattern, or the worst group, reaches."""
        if isinstance(self.sampling, Full):
            noise = math.nextafter(self.noise_multiplier / self.sensitivity.lower, math.inf)
            return {SampledGaussianPair(1.0, noise, direction): 1}
        norms = _norms_of_worst_group(self.strategy, self.min_separation)
        return self._sampled_pairs(direction, norms, math.floor)

    def _sampled_pairs(
        self, direction: Direction, norms: Array, rounded: Callable[[float], int]
    ) -> Mapping[DominatingPair, int]:
        """Return one pair for each different column norm, rounded to `_DIGITS` digits."""
        pairs: dict[DominatingPair, int] = {}
        bands = self.strategy.bands
        for norm, count in Counter(
            _round_to(float(norm), rounded, bands) for norm in norms
        ).items():
            pair = self._sampled_pair(self.noise_multiplier / norm, direction)
            pairs[pair] = pairs.get(pair, 0) + count
        return pairs

    def _sampled_pair(self, noise: float, direction: Direction) -> DominatingPair:
        if self.adjacency is Adjacency.REPLACE_ONE:
            return ReplacementPair(self.sampling_rate, noise)
        return SampledGaussianPair(self.sampling_rate, noise, direction)


def _worst_norms(strategy: Strategy, groups: int) -> Array:
    """Return the largest column norm of each turn of all groups, shape (turns,)."""
    norms = column_norms(strategy)
    return np.maximum.reduceat(norms, np.arange(0, strategy.rounds, groups))


def _norms_of_worst_group(strategy: Strategy, groups: int) -> Array:
    """Return the column norms of the group with the largest sum of squares."""
    norms = column_norms(strategy)
    return max((norms[g::groups] for g in range(min(groups, len(norms)))), key=lambda x: x @ x)


def _round_to(norm: float, rounded: Callable[[float], int], bands: int) -> float:
    """Return a norm, rounded to `_DIGITS` digits in one direction after its error is added.

    `column_norms` is off by at most bands + 4 units.
    """
    sign = 1 if rounded is math.ceil else -1
    scale = 10.0 ** (_DIGITS - math.ceil(math.log10(norm)))
    error = UNIT * (bands + 16)
    return rounded(norm * (1 + sign * error) * scale) * (1 + sign * 4 * UNIT) / scale
