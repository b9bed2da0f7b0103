"""The pairs of distributions that bound a release from above and from below.

`kinds` has the pairs themselves. A `Mechanism` brings its own.
docs/derivations/dominating-pairs.md proves the pair of each round.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from fractions import Fraction
from typing import Any, NamedTuple, cast

from dpacct.errors import InvalidParameter
from dpacct.numerics.rounding import UNIT, decimal
from dpacct.pairs.kinds import (
    AdditivePair,
    Direction,
    GeneralPair,
    ReplacementPair,
    SampledGaussianPair,
    SymmetrizedPair,
)
from dpacct.rounds import Adjacency, Phase, Poisson, Release, Round, Schedule, Uniform


class LossBound(NamedTuple):
    """A loss of size at most ``epsilon``, but for an infinite one of probability ``delta``.

    Both numbers add up over releases, however these are chosen (docs/derivations/adaptive.md).
    They are exact: the decimals of a mechanism's parameters.
    """

    epsilon: Fraction
    delta: Fraction = Fraction(0)


class Mechanism(Release):
    """A release beside the rounds that knows its own pairs.

    Attributes:
        loss_bound: of one release, in both directions, or None if there is none.
    """

    __slots__ = ()

    @property
    def loss_bound(self) -> LossBound | None:
        """See the class."""
        return None

    def __repr__(self) -> str:
        parameters, words = inspect.signature(type(self)).parameters, list[str]()
        for number, name in enumerate(part.name for part in fields(cast("Any", self))):
            value, default = getattr(self, name), parameters[name].default
            written = repr(str(value) if isinstance(value, Adjacency) else value)
            if number == 0 or default is inspect.Parameter.empty:
                words.append(written)
            elif value != default:
                words.append(f"{name}={written}")
        return f"{type(self).__name__}({', '.join(words)})"

    def proven_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return pairs whose composition dominates the release in one direction, with counts."""
        raise NotImplementedError

    def achieved_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return pairs that explicit neighboring data sets reach at once. Empty: none is known."""
        raise NotImplementedError

    def alone_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return pairs whose delta some data sets reach, at another epsilon perhaps others."""
        return self.achieved_pairs(direction)


DominatingPair = SampledGaussianPair | SymmetrizedPair | ReplacementPair | GeneralPair
AchievedPair = SampledGaussianPair | ReplacementPair
PairsOf = Callable[[Release, Direction], Mapping[DominatingPair, int]]


def proven_pairs(release: Release, direction: Direction) -> Mapping[DominatingPair, int]:
    """Return pairs that together dominate a release in one direction, with their counts."""
    if isinstance(release, Round):
        return {proven_pair(release, direction): 1}
    return _mechanism(release).proven_pairs(direction)


def achieved_pairs(release: Release, direction: Direction) -> Mapping[DominatingPair, int]:
    """Return pairs that explicit data sets reach together, in one direction. It may be empty."""
    if isinstance(release, Round):
        return {achieved_pair(release, direction): 1}
    return _mechanism(release).achieved_pairs(direction)


def loss_bound(release: Release) -> LossBound | None:
    """Return the largest loss of a release, or None if no bound is known, as for all rounds."""
    return release.loss_bound if isinstance(release, Mechanism) else None


def basic_composition(schedule: Schedule) -> LossBound | None:
    """Return the sums of epsilon and of delta, or None if a loss of the schedule has no bound.

    The schedule is (epsilon, delta)-DP, by basic composition.
    """
    epsilon = delta = Fraction(0)
    for release, count in schedule.distinct().items():
        bound = loss_bound(release)
        if bound is None:
            return None
        epsilon, delta = epsilon + count * bound.epsilon, delta + count * bound.delta
    return LossBound(epsilon, delta)


def infinite_mass(schedule: Schedule) -> float:
    """Return an upper bound of the probability that any loss of a schedule is infinite."""
    worst = 0.0
    if all(isinstance(kind, Round) for kind in schedule.distinct()):
        return worst
    kinds = schedule.distinct()
    for direction in Direction:
        pairs = pairs_of(kinds, proven_pairs, direction)
        general = [(pair, n) for pair, n in pairs.items() if isinstance(pair, GeneralPair)]
        worst = max(worst, infinite_mass_of(general))
    return worst


def has_renyi(release: Release) -> bool:
    """Return True if the release has finite Renyi divergences."""
    if isinstance(release, Round):
        return True
    pairs = [pair for d in Direction for pair in proven_pairs(release, d)]
    general = (pair for pair in pairs if isinstance(pair, GeneralPair))
    return all(math.isfinite(float(pair.renyi_moment(2.0).upper)) for pair in general)


def infinite_mass_of(pairs: Sequence[tuple[GeneralPair, int]]) -> float:
    """Return 1 - prod (1 - m)^n, rounded up."""
    kept = sum(n * math.log1p(-min(pair.infinite_mass, 1 - UNIT)) for pair, n in pairs)
    return min(1.0, -math.expm1(kept) * (1 + UNIT * (2 * len(pairs) + 16)))


def refuse_infinite_losses(schedule: Schedule, delta: float) -> None:
    """Check that some epsilon is enough at a delta.

    Raises:
        InvalidParameter: infinite losses have that much probability.
    """
    mass, simply = infinite_mass(schedule), basic_composition(schedule)
    if simply is not None and simply.delta <= decimal(delta):
        # Promises of a probability of delta in all: the sum of their epsilons is enough.
        return
    if mass >= delta:
        # Where Renyi divergences are finite the mass is that of rounding, and another bound holds.
        kinds = schedule.distinct().items()
        mass = infinite_mass(Schedule(Phase(k, n) for k, n in kinds if not has_renyi(k)))
    if mass >= delta:
        rule = f"no epsilon is enough there, since {mass:.6g} of the mass has infinite loss"
        raise InvalidParameter("delta", delta, rule, f"Choose a delta above {mass:.6g}.")


def is_exact(release: Release) -> bool:
    """Return True if explicit data sets reach the proven pairs, in both directions."""
    return all(proven_pairs(release, d) == achieved_pairs(release, d) for d in Direction)


def _mechanism(release: Release) -> Mechanism:
    if not isinstance(release, Mechanism):
        rule = "a release is a Round or a mechanism that knows its pairs"
        raise InvalidParameter("schedule", release, rule)
    return release


def pairs_of(
    releases: Mapping[Release, int], pairs: PairsOf, direction: Direction
) -> dict[DominatingPair, int]:
    """Return the pairs of distinct releases in one direction, with their counts."""
    counts: dict[DominatingPair, int] = {}
    for release, count in releases.items():
        for pair, times in pairs(release, direction).items():
            counts[pair] = counts.get(pair, 0) + count * times
    additive = [(pair, n) for pair, n in counts.items() if isinstance(pair, AdditivePair)]
    if sum(n for _, n in additive) > 1:
        total = sum(n * pair.rho for pair, n in additive) * (1 + UNIT * (2 * len(additive) + 2))
        for pair, _ in additive:
            del counts[pair]
        counts[additive[0][0].with_sum(total)] = 1
    return counts


def proven_pair(round_: Round, direction: Direction) -> DominatingPair:
    """Return a pair that dominates the round for all neighboring data sets, in one direction.

    Source: Poisson add-remove: Zhu, Dong, Wang 2022 (arXiv:2106.08567), theorem 11. Uniform
        replace-one: Dong, Roth, Su 2022 (arXiv:1905.02383), theorem 9, and Balle, Barthe, Gaboardi
        2018 (arXiv:1807.01647), theorem 9. Others: docs/derivations/dominating-pairs.md.
    """
    z, relation = round_.noise_multiplier, round_.adjacency
    if _takes_everybody(round_):
        return _full_pair(round_, direction)
    match round_.sampling:
        case Poisson() as special if not special.is_plain:
            return _special_pair(round_, special, direction, proven=True)
        case Uniform() as uniform if relation is Adjacency.ADD_REMOVE:
            # An added client displaces another one: the sum moves by up to 2 C at rate m / N.
            return SampledGaussianPair(uniform.rate_bounds[1], z / 2, direction)
        case Uniform() as uniform if uniform.rate_bounds[1] == 1.0:
            # A rate that rounds up to one is bounded by full participation.
            return _full_pair(round_, direction)
        case Uniform() as uniform:
            return SymmetrizedPair(uniform.rate_bounds[1], z / 2)
        case _:
            return achieved_pair(round_, direction)


def achieved_pair(round_: Round, direction: Direction) -> DominatingPair:
    """Return a pair that some explicit neighboring data sets reach, in one direction.

    Source: docs/derivations/dominating-pairs.md lists the data sets.
    """
    z, relation = round_.noise_multiplier, round_.adjacency
    if _takes_everybody(round_):
        return _full_pair(round_, direction)
    match round_.sampling:
        case Poisson() as special if not special.is_plain:
            return _special_pair(round_, special, direction, proven=False)
        case Uniform(cohort_size, num_clients) if relation is Adjacency.ADD_REMOVE:
            # A cohort of all clients has only the neighbor with one client more.
            rate = cohort_size / max(num_clients, cohort_size + 1)
            return SampledGaussianPair(math.nextafter(rate, 0.0), z / 2, direction)
        case Uniform() as uniform:
            # Zero-out: the others send zero, so the target moves the sum by C only.
            noise = z / 2 if relation is Adjacency.REPLACE_ONE else z
            return SampledGaussianPair(uniform.rate_bounds[0], noise, direction)
        case sampling if relation is Adjacency.REPLACE_ONE:
            # The others send zero, and the replacement sends the opposite.
            return ReplacementPair(sampling.sampling_rate, z)
        case sampling:
            return SampledGaussianPair(sampling.sampling_rate, z, direction)


def _takes_everybody(round_: Round) -> bool:
    """Return True if all clients surely take part, in both neighboring data sets."""
    if isinstance(round_.sampling, Uniform):
        everybody = round_.sampling.cohort_size == round_.sampling.num_clients
        return everybody and round_.adjacency is not Adjacency.ADD_REMOVE
    return round_.sampling_rate == 1.0


def _special_pair(
    round_: Round, special: Poisson, direction: Direction, *, proven: bool
) -> DominatingPair:
    """Return a pair of a user with several records, or of a cohort that is cut or counted."""
    rate, noise = special.sampling_rate, round_.noise_multiplier
    if special.reveals_size is not None:
        from dpacct.pairs.revealed import revealed_pair  # noqa: PLC0415 - for a quick start

        return revealed_pair(round_, direction, proven=proven)
    if special.max_cohort is None or special.num_clients is None:
        from dpacct.pairs.records import RecordsPair  # noqa: PLC0415 - for a quick start

        # All records of the user send the same, and all others send zero.
        return RecordsPair(rate, noise, special.records, direction)
    if proven:
        from dpacct.pairs.truncated import cohort_pair  # noqa: PLC0415 - for a quick start

        return cohort_pair(rate, noise, special.max_cohort, (1, special.num_clients), direction)
    # Small data sets never have a cohort that is too large. The others send zero.
    return SampledGaussianPair(rate, noise, direction)


def _full_pair(round_: Round, direction: Direction) -> SampledGaussianPair:
    shift = 2.0 if round_.adjacency is Adjacency.REPLACE_ONE else 1.0
    if isinstance(round_.sampling, Poisson):
        # All records of a user move the sum together.
        shift *= round_.sampling.records
    return SampledGaussianPair(1.0, round_.noise_multiplier / shift, direction)
