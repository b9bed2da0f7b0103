"""The pairs of distributions that bound a round from above and from below.

All pairs lie on the line, in units in which the shift is one. phi is the density of
N(0, sigma^2) and r(x) = 1 - q + q e^{(2x-1)/(2 sigma^2)}.

* `SampledGaussianPair`, remove: P = phi r against Q = phi. Add: P = phi against Q = phi r.
* `SymmetrizedPair`: the pair of the trade-off function C_q(f) of Dong, Roth, Su (2022), f the
  Gaussian's: losses log r where r > 1 with the masses of the remove pair, their mirror image,
  and an atom at zero.
* `ReplacementPair`: P = phi(x) r(x) against Q = phi(x) r(-x), a client that sends 1 or -1.
* `GeneralPair`: any other pair, by functions of its loss. A `Mechanism` brings its own.

docs/derivations/dominating-pairs.md proves the pair of each round.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from dpacct.budget import Interval
from dpacct.errors import InvalidParameter
from dpacct.numerics.rounding import UNIT, Array, Bounds, ComplexArray
from dpacct.rounds import Adjacency, Poisson, Release, Round, Schedule, Uniform


class Direction(StrEnum):
    """The neighbor with output law P. Each direction composes with itself."""

    REMOVE = "remove"
    ADD = "add"


@dataclass(frozen=True, slots=True)
class SampledGaussianPair:
    """phi r against phi (remove) or phi against phi r (add), with the r of the module's head."""

    sampling_rate: float
    noise_std: float
    direction: Direction


@dataclass(frozen=True, slots=True)
class SymmetrizedPair:
    """The pair of C_q(Gaussian), the same in both directions."""

    sampling_rate: float
    noise_std: float


@dataclass(frozen=True, slots=True)
class ReplacementPair:
    """(1-q) N(0) + q N(1) against (1-q) N(0) + q N(-1). The other direction is a mirror image."""

    sampling_rate: float
    noise_std: float


class GeneralPair:
    """A pair P, Q by functions of its loss L = log dP/dQ. Subclasses are frozen and hashable.

    The moment M(c) = E_P[e^{cL}; L finite] is E_Q[(P/Q)^{1+c}]. P may have mass where Q has none
    (an infinite loss). Then M(c) leaves it out.

    Attributes:
        infinite_mass: an upper bound of P(L = infinity).
        largest_loss: an upper bound of the finite losses, infinite if there is none.
    """

    infinite_mass = 0.0
    largest_loss = math.inf

    def delta(self, epsilon: float) -> Interval:
        """Return bounds of E_P[(1 - e^{eps - L})_+], eps >= 0, infinite losses included."""
        raise NotImplementedError

    def log_moment(self, tilts: Array) -> Bounds:
        """Return bounds of log M(c) for tilts c >= -1. Shape (k,)."""
        raise NotImplementedError

    def renyi_moment(self, order: float) -> Bounds:
        """Return bounds of log E_Q[(P/Q)^order], order > 0, infinite losses included. Shape ()."""
        moment = self.log_moment(np.array([order - 1]))
        # An infinite loss has no part in moments of orders below one.
        infinite = self.infinite_mass > 0.0 and order > 1.0
        return Bounds(moment.lower[0], np.where(infinite, math.inf, moment.upper[0]))

    def cumulants(self, tilt: float) -> tuple[float, float, float]:
        """Return log M(c), and mean and variance of the loss under e^{cL} P, without proof."""
        raise NotImplementedError

    def characteristic(self, tilt: float, frequencies: Array) -> tuple[ComplexArray, Array]:
        """Return phi(t) - 1 for phi(t) = E_P[e^{(c + it) L}; L finite] / M(c), and its error.

        Shape (k,). The second array bounds the absolute error of the first. Frequencies are
        multiples of a step: 0, step, 2 step, and so on.
        """
        raise NotImplementedError

    def decay(self, tilt: float, frequencies: Array) -> Array:
        """Return bounds of |phi(t')| for all t' >= t, of shape (k,). Atoms do not decay."""
        del tilt
        return np.ones_like(frequencies)

    def atoms(self) -> GeneralPair | None:
        """Return the finite losses that have a mass, as an `AtomicPair`, or None if not known."""
        return None

    def density_decay(self, tilt: float, frequencies: Array) -> Array:
        """Return bounds of the part of phi(t') without `atoms`, for all t' >= t, of shape (k,)."""
        return self.decay(tilt, frequencies)


class AdditivePair(GeneralPair):
    """A pair for all releases with some ``rho``, where rhos of releases add up."""

    rho: float

    def with_sum(self, rho: float) -> AdditivePair:
        """Return the pair of releases with this rho in all."""
        raise NotImplementedError


class Mechanism(Release):
    """A release beside the rounds that knows its own pairs."""

    __slots__ = ()

    def proven_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return pairs whose composition dominates the release in one direction, with counts."""
        raise NotImplementedError

    def achieved_pairs(self, direction: Direction) -> Mapping[DominatingPair, int]:
        """Return pairs that explicit neighboring data sets reach at once. Empty: none is known."""
        raise NotImplementedError


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


def infinite_mass(schedule: Schedule) -> float:
    """Return an upper bound of the probability that any loss of a schedule is infinite."""
    worst = 0.0
    kinds = schedule.distinct()
    if len(schedule.only_rounds()) == len(kinds):
        return worst
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
    mass = infinite_mass(schedule)
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
        case Poisson(max_cohort=int(cohort)) as truncated:
            return _truncated_pair(round_, truncated, cohort, direction)
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
            return _special_pair(special, z, direction)
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


def _special_pair(special: Poisson, noise: float, direction: Direction) -> DominatingPair:
    """Return the achieved pair of a user with several records, or of a truncated cohort."""
    from dpacct.pairs.records import RecordsPair  # noqa: PLC0415 - it imports this module
    from dpacct.pairs.truncated import kept_share  # noqa: PLC0415 - as above

    rate = special.sampling_rate
    if special.max_cohort is None or special.num_clients is None:
        # All records of the user send the same, and all others send zero.
        return RecordsPair(rate, noise, special.records, direction)
    # The others send zero. A random part of the cohort keeps the client.
    kept = kept_share(rate, special.max_cohort, special.num_clients)
    return SampledGaussianPair(math.nextafter(rate * kept, 0.0), noise, direction)


def _truncated_pair(
    round_: Round, truncated: Poisson, cohort: int, direction: Direction
) -> DominatingPair:
    """Return the pair of a cohort of which a random part of a largest size is kept.

    Whether the others fill the cohort is published. If they do, the client displaces one of them.
    """
    from dpacct.pairs.choice import ChoicePair  # noqa: PLC0415 - it imports this module
    from dpacct.pairs.records import RecordsPair  # noqa: PLC0415 - as above
    from dpacct.pairs.truncated import full_probability  # noqa: PLC0415 - as above

    rate, z = truncated.sampling_rate, round_.noise_multiplier
    clients = truncated.num_clients or cohort
    full = full_probability(rate, cohort, clients)
    usual = RecordsPair(rate, z, 1, direction)
    if full <= 0.0:
        return SampledGaussianPair(rate, z, direction)
    return ChoicePair((usual, RecordsPair(rate, z / 2, 1, direction)), (1.0 - full, full))


def _full_pair(round_: Round, direction: Direction) -> SampledGaussianPair:
    shift = 2.0 if round_.adjacency is Adjacency.REPLACE_ONE else 1.0
    if isinstance(round_.sampling, Poisson):
        # All records of a user move the sum together.
        shift *= round_.sampling.records
    return SampledGaussianPair(1.0, round_.noise_multiplier / shift, direction)
