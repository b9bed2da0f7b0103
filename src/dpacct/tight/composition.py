"""Composed pairs of one direction with multiplicities, their moments and tilted laws.

`Composition` has the pairs of a schedule. `TruncatedComposition` has the same pairs without the far
ends of their losses. `alike` and `above` replace thousands of kinds of rounds by a few. The search
for a saddle point uses cumulants, which are not proven.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dpacct.errors import NotConverged
from dpacct.numerics.rounding import UNIT, Array, Bounds, weighted_sum
from dpacct.numerics.special import dot
from dpacct.pairs.dominating import (
    AchievedPair,
    Direction,
    DominatingPair,
    GeneralPair,
    PairsOf,
    ReplacementPair,
    SampledGaussianPair,
    SymmetrizedPair,
    infinite_mass_of,
    pairs_of,
)
from dpacct.pairs.moments import (
    PairTable,
    log_moment,
    replacement_log_moment,
    rows_of,
    symmetrized_log_moment,
)
from dpacct.pairs.panels import LossFunction
from dpacct.rounds import Phase, Poisson, Round, Schedule
from dpacct.tight.laws import FEW, GeneralLosses, Law, TiltedLosses, TiltedNodes
from dpacct.tight.panel_laws import PanelPair, end_for, lost_mass, panel_law

# Above this number of kinds of rounds, similar kinds are merged. Numbers of rates, and of noises
# for each rate.
MANY = 500
_RATES, _NOISES = 24, 12
_LARGEST_EXPONENT = 600.0


def cells(rows: PairTable) -> list[NDArray[np.int64]]:
    """Return rounds that are much alike: their numbers, by cells."""
    parts: list[NDArray[np.int64]] = []
    for same in np.array_split(np.argsort(rows.rates, kind="stable"), _RATES):
        order = same[np.argsort(rows.noise[same], kind="stable")]
        parts += np.array_split(order, _NOISES)
    return [cell for cell in parts if cell.size]


def alike(rows: PairTable) -> PairTable:
    """Return hundreds of rounds with about the cost of all, for searches."""
    if len(rows.rates) <= MANY:
        return rows
    merged_rows: list[list[float]] = []
    for cell in cells(rows):
        rates, noise, counts = (part[cell] for part in rows)
        number = float(counts.sum())
        rate = dot(counts, rates) / number
        # Contribution of each kind to the total if there are many: the variance of r under Q.
        grown = np.expm1(np.minimum(noise**-2, _LARGEST_EXPONENT)) * (rates / rate) ** 2
        merged_rows.append([rate, math.log1p(dot(counts, grown) / number) ** -0.5, number])
    return PairTable(*np.array(merged_rows).T)


def merged(schedule: Schedule) -> Schedule:
    """Estimate the same schedule: of many kinds of Poisson rounds some hundred are left."""
    kinds, rounds = schedule.distinct(), schedule.only_rounds()
    drawn = {
        kind: n
        for kind, n in rounds.items()
        if isinstance(kind.sampling, Poisson) and kind.sampling.is_plain
    }
    if len(drawn) <= MANY:
        return schedule
    rows = [(kind.sampling_rate, kind.noise_multiplier, n) for kind, n in drawn.items()]
    phases = [Phase(kind, n) for kind, n in kinds.items() if kind not in drawn]
    for rate, noise, count in zip(*alike(PairTable(*np.array(rows).T)), strict=True):
        round_ = Round(float(noise), Poisson(float(rate)), schedule.adjacency)
        phases.append(Phase(round_, int(count)))
    return Schedule(phases)


def above(rows: PairTable) -> PairTable:
    """Return hundreds of rounds that cost at least as much as all.

    A round costs no less where its rate is higher or its noise lower.
    """
    if len(rows.rates) <= MANY:
        return rows
    groups = [tuple(part[cell] for part in rows) for cell in cells(rows)]
    worst = [[rates.max(), noise.min(), counts.sum()] for rates, noise, counts in groups]
    return PairTable(*np.array(worst).T)


# Accuracy e^-20 of the sums of nodes, and how many there may be: a search takes some dozens.
ACCURACY, MAX_NODES = 20.0, 200_000
# Of the midpoint rule, and how far it goes into the tails of a Gaussian.
_NODES, _REACH = 1500, 8.0


class Cumulants(NamedTuple):
    """K(c) = log M(c), K'(c) and K''(c): mean and variance of the loss tilted by e^{c L}."""

    log_moment: float
    mean: float
    variance: float


GeneralPairs = tuple[tuple[GeneralPair, int], ...]


class Composed:
    """A product of laws and one Gaussian that a contour inverts.

    Attributes:
        precision: variance of the Gaussian loss.
        kinds: number of distinct laws, for rounding.
        general: pairs by functions of their loss, without their infinite losses.
    """

    precision: float
    kinds: int
    general: GeneralPairs = ()

    def laws_of_rounds(self, tilt: float, frequency: float) -> Iterator[Law]:
        """Yield the tilted laws of sampled rounds, for frequencies up to the given one."""
        raise NotImplementedError

    def cumulants_of_rounds(self, tilt: float) -> Iterator[tuple[float, Cumulants]]:
        """Yield their counts and cumulants."""
        raise NotImplementedError

    def laws(self, tilt: float, frequency: float) -> list[Law]:
        """Return all tilted laws, for frequencies up to the given one."""
        general = (GeneralLosses(pair, float(n), tilt) for pair, n in self.general)
        return [*self.laws_of_rounds(tilt, frequency), *general]

    def cumulants(self, tilt: float) -> Cumulants:
        """Return log M(c), mean and variance of the loss tilted by e^{c L}, without proof."""
        value = self.precision * tilt * (1 + tilt) / 2
        mean, variance = self.precision * (0.5 + tilt), self.precision
        general = ((float(n), Cumulants(*pair.cumulants(tilt))) for pair, n in self.general)
        for count, part in chain(self.cumulants_of_rounds(tilt), general):
            value, mean = value + count * part.log_moment, mean + count * part.mean
            variance += count * part.variance
        return Cumulants(value, mean, max(variance, 1e-300))

    def log_moment(self, tilt: float | Array) -> Bounds:
        """Return bounds of log M(c), c > 0, for one tilt or several: shape () or (k,).

        Error: two roundings a law and four more, each at most `UNIT` of the sum of absolute values
            of either end. They are added outward twice.
        """
        tilts = np.atleast_1d(np.asarray(tilt, dtype=np.float64))
        lower = self.precision * tilts * (1 + tilts) / 2
        upper, size = lower.copy(), np.abs(lower)
        for k, c in enumerate(tilts.tolist()):
            for law in self.laws(c, 0.0):
                low, high = (law.count * float(end) for end in law.log_moment)
                lower[k], upper[k] = lower[k] + low, upper[k] + high
                # Either end may be the larger one: moments of measures may be less than one.
                size[k] += max(abs(low), abs(high))
        slack = UNIT * (4 * self.kinds + 16) * size
        shape = np.shape(tilt)
        return Bounds((lower - slack).reshape(shape), (upper + slack).reshape(shape))

    def log_moment_above(self, tilts: Array) -> Array:
        """Return rough upper bounds of log M(c), c > 0, of shape (k,)."""
        return self.log_moment(tilts).upper


def nodes_cumulants(nodes: TiltedNodes, noise: Array) -> tuple[Array, Array, Array]:
    """Return cumulants of each kind of round, of shape (m,) as the noise std.

    The logarithm of the moment is that of the density N(0, sigma^2) e^exponent.
    """
    grid = nodes.grid
    top = np.maximum.reduceat(nodes.exponent, grid.starts)
    weights = np.exp(nodes.exponent - grid.spread(top))
    total = grid.sum(weights)
    log_moment = top + np.log(total) + np.log(grid.step / noise) - 0.5 * math.log(2 * math.pi)
    first = grid.sum(weights * nodes.loss) / total
    second = grid.sum(weights * nodes.loss**2) / total - first**2
    return log_moment, first, second


class _Kinds(NamedTuple):
    """A few kinds of rounds without their counts: what they have at a tilt is kept.

    Plans that differ in the number of rounds, delta or epsilon share it.
    """

    rates: bytes
    noise: bytes
    direction: Direction | None

    @property
    def rows(self) -> tuple[Array, Array, Direction | None]:
        return np.frombuffer(self.rates), np.frombuffer(self.noise), self.direction


@lru_cache(maxsize=4096)
def _cumulants_of(kinds: _Kinds, tilt: float) -> tuple[Array, Array, Array]:
    nodes = TiltedNodes(*kinds.rows, tilt, ACCURACY, 0.0, MAX_NODES)
    return nodes_cumulants(nodes, kinds.rows[1])


@lru_cache(maxsize=1024)
def _moments_of(kinds: _Kinds, tilts: bytes) -> Bounds:
    rates, noise, direction = kinds.rows
    c = np.frombuffer(tilts)
    if direction is None:
        return replacement_log_moment(1 + c, rates[:, None], noise[:, None])
    return log_moment(-c if direction is Direction.ADD else 1 + c, rates[:, None], noise[:, None])


@lru_cache(maxsize=64)
def _losses_of(kinds: _Kinds, tilt: float, accuracy: float, frequency: float) -> TiltedLosses:
    nodes = TiltedNodes(*kinds.rows, tilt, accuracy, frequency, _FEW_NODES)
    return TiltedLosses(nodes, kinds.rows[1], np.ones(len(kinds.rows[1])))


def weighted_cumulants(exponent: Array, loss: Array) -> Cumulants:
    """Return cumulants for weights e^exponent at the losses, or of no loss if all weights are 0."""
    top = float(exponent.max())
    if not math.isfinite(top):
        return Cumulants(-math.inf, 0.0, 1.0)
    weights = np.exp(exponent - top)
    total = float(weights.sum())
    mean = dot(weights, loss) / total
    return Cumulants(top + math.log(total), mean, dot(weights, (loss - mean) ** 2) / total)


def panel_cumulants(pair: PanelPair, tilt: float, end: float = math.inf) -> Cumulants:
    """Return the same for one pair, of losses up to that of u = ``end``.

    u = (2x - 1) / (2 sigma^2). The pair of C_q has the mirror images of these losses, too.
    """
    if not isinstance(pair, SymmetrizedPair):
        law = LossFunction(pair)
        start = law.start(tilt, _REACH)
        u, scale = _midpoints(pair.noise_std, start, max(end, start / 2))
        loss, base = law(u)
        return weighted_cumulants(scale + law.log_density(u) + base + (1 + tilt) * loss, loss)
    q, sigma = pair.sampling_rate, pair.noise_std
    law = LossFunction(SampledGaussianPair(q, sigma, Direction.REMOVE))
    u, scale = _midpoints(sigma, 0.0, min(end, (1 + tilt) / sigma**2 + _REACH / sigma))
    loss, gaussian = law(u)[0], scale + law.log_density(u)
    atom = math.log1p(-q) + math.log1p(-math.erfc(1 / (sigma * math.sqrt(8))))
    exponent = np.concatenate([gaussian + (1 + tilt) * loss, gaussian - tilt * loss, [atom]])
    return weighted_cumulants(exponent, np.concatenate([loss, -loss, [0.0]]))


def _midpoints(sigma: float, start: float, end: float) -> tuple[Array, float]:
    """Return points u of the midpoint rule, and their log weights against N(0, sigma^2) in x."""
    width = (end - start) / _NODES
    u: Array = start + width * (np.arange(float(_NODES)) + 0.5)
    return u, math.log(sigma * width / math.sqrt(2 * math.pi))


NO_ROWS = PairTable(np.empty(0), np.empty(0), np.empty(0))
# Number of rounds whose nodes share the same arrays.
_ROWS = 500
_CLOSE, _MOST_NODES, _FEW_NODES = 44.0, 500_000, 20_000


@dataclass(frozen=True, slots=True, eq=False)
class Composition(Composed):
    """Sampled Gaussian pairs of one direction, with multiplicities.

    Attributes:
        sampled: rows of the rounds with a rate below one.
        precision: sum of count / noise^2 over the rounds of full participation.
        direction: remove or add.
        symmetrized: pairs of C_q and how often each occurs.
        replaced: pairs of a replaced client, with multiplicities.
        kinds: number of distinct pairs, for rounding.
        general: other pairs and how often each occurs, without their infinite losses.
    """

    sampled: PairTable
    precision: float
    direction: Direction
    symmetrized: tuple[tuple[SymmetrizedPair, int], ...] = ()
    replaced: PairTable = NO_ROWS
    kinds: int = 1
    general: GeneralPairs = ()

    @classmethod
    def of(cls, pairs: dict[DominatingPair, int], direction: Direction) -> Composition:
        """Return the composition of pairs that all have this direction."""
        plain = {p: n for p, n in pairs.items() if isinstance(p, SampledGaussianPair)}
        sampled: dict[DominatingPair, int] = {
            pair: n for pair, n in plain.items() if pair.sampling_rate < 1.0
        }
        return cls(
            rows_of(sampled, SampledGaussianPair),
            sum(n / p.noise_std**2 for p, n in plain.items() if p.sampling_rate == 1.0),
            direction,
            tuple((p, n) for p, n in pairs.items() if isinstance(p, SymmetrizedPair)),
            rows_of(pairs, ReplacementPair),
            len(pairs),
            tuple((p, n) for p, n in pairs.items() if isinstance(p, GeneralPair)),
        )

    @classmethod
    def of_schedule(cls, schedule: Schedule, pairs: PairsOf, direction: Direction) -> Composition:
        """Return the composition of the pairs that stand for the rounds of a schedule."""
        return cls.of(pairs_of(schedule.distinct(), pairs, direction), direction)

    def without_least(self, mass: float) -> tuple[Composition, float]:
        """Return the composition without negligible rounds, and the delta(eps) that this loses.

        Leaving out a round costs at most its total variation distance in delta(eps). The
        sum stays below ``mass``: q times that of the unsampled Gaussians, at most
        0.4 shift / sigma.
        """
        symmetrized = [(p.sampling_rate, p.noise_std, float(n)) for p, n in self.symmetrized]
        kinds = [
            (1.0, *self.sampled),
            (1.0, *np.array(symmetrized).reshape(-1, 3).T),
            (2.0, *self.replaced),
        ]
        sizes = [n * q * np.minimum(1.0, 0.4 * shift / z) for shift, q, z, n in kinds]
        sizes.append(np.array([n * pair.delta(0.0).upper for pair, n in self.general]))
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
        plain, symmetric, opposed, others, gaussian = kept
        rest = Composition(
            PairTable(*(part[plain] for part in self.sampled)),
            self.precision if gaussian[0] else 0.0,
            self.direction,
            tuple(pair for pair, keep in zip(self.symmetrized, symmetric, strict=True) if keep),
            PairTable(*(part[opposed] for part in self.replaced)),
            self.kinds,
            tuple(pair for pair, keep in zip(self.general, others, strict=True) if keep),
        )
        return rest, lost

    def sampled_pairs(self) -> list[tuple[AchievedPair, float]]:
        """Return the pairs of all sampled rounds except C_q, with multiplicities."""
        plain, opposed = (
            zip(*(part.tolist() for part in rows), strict=True)
            for rows in (self.sampled, self.replaced)
        )
        pairs: list[tuple[AchievedPair, float]]
        pairs = [(SampledGaussianPair(q, z, self.direction), n) for q, z, n in plain]
        return pairs + [(ReplacementPair(q, z), n) for q, z, n in opposed]

    @property
    def is_symmetric(self) -> bool:
        """True if any sampled round has two equal directions."""
        return bool(self.symmetrized) or bool(self.replaced.rates.size)

    @property
    def sampled_rounds(self) -> float:
        """Number of releases other than rounds of full participation."""
        plain = float(self.sampled.counts.sum()) + float(self.replaced.counts.sum())
        return plain + sum(n for _, n in self.symmetrized) + sum(n for _, n in self.general)

    @property
    def infinite_mass(self) -> float:
        """Upper bound of the probability that some loss is infinite."""
        return infinite_mass_of(self.general)

    @property
    def largest_loss(self) -> float:
        """Upper bound of the finite losses of the whole composition, infinite if there is none."""
        removed = self.direction is Direction.REMOVE and self.sampled.rates.size
        if removed or self.precision or self.is_symmetric:
            return math.inf
        total = float(-np.log1p(-self.sampled.rates) @ self.sampled.counts)
        total += sum(n * pair.largest_loss for pair, n in self.general)
        return max(0.0, total) * (1 + UNIT * (2 * self.kinds + 32))

    def log_moment(self, tilt: float | Array) -> Bounds:
        """Return bounds of log M(c) for one tilt or several, of shape () or (k,).

        c > 0. For sampled pairs and Gaussians alone, c may also lie in [-1, 0].
        """
        tilts = np.atleast_1d(np.asarray(tilt, dtype=np.float64))
        lower = self.precision * tilts * (1 + tilts) / 2
        upper = lower.copy()
        for kinds, counts in self._kinds():
            of = _moments_of if len(counts) <= FEW else _moments_of.__wrapped__
            part = weighted_sum(of(kinds, tilts.tobytes()), counts)
            lower, upper = lower + part.lower, upper + part.upper
        for pair, count in self.symmetrized:
            for k, c in enumerate(tilts):
                part = symmetrized_log_moment(1 + float(c), pair.sampling_rate, pair.noise_std)
                lower[k] += count * float(part.lower)
                upper[k] += count * float(part.upper)
        # Moments of rounds have one sign: below zero between -1 and 0.
        size = np.maximum(np.abs(lower), np.abs(upper))
        for general, count in self.general:
            part = general.log_moment(tilts)
            lower, upper = lower + count * part.lower, upper + count * part.upper
            size = size + count * np.maximum(np.abs(part.lower), np.abs(part.upper))
        slack = UNIT * (4 * self.kinds + 16) * size
        shape = np.shape(tilt)
        return Bounds((lower - slack).reshape(shape), (upper + slack).reshape(shape))

    def log_moment_above(self, tilts: Array) -> Array:
        """Return rough upper bounds of log M(c), c > 0, of shape (k,)."""
        return replace(self, sampled=above(self.sampled)).log_moment(tilts).upper

    def alike(self) -> Composition:
        """Estimate the same composition, with some hundred kinds of sampled rounds at most."""
        return replace(self, sampled=alike(self.sampled))

    def cumulants_of_rounds(self, tilt: float) -> Iterator[tuple[float, Cumulants]]:
        """See `Composed`."""
        for kinds, counts in self._kinds():
            of = _cumulants_of if len(counts) <= FEW else _cumulants_of.__wrapped__
            yield 1.0, Cumulants(*(dot(counts, part) for part in of(kinds, tilt)))
        for pair, count in self.symmetrized:
            yield count, panel_cumulants(pair, tilt)

    def laws_of_rounds(self, tilt: float, frequency: float) -> Iterator[Law]:
        """See `Composed`."""
        # A law of many rounds has to be known the better. Few accuracies are shared.
        accuracy = _CLOSE + 3 * math.ceil(math.log(max(self.sampled_rounds, 1.0)) / 3)
        for kinds, counts in self._kinds():
            with suppress(NotConverged):
                if len(counts) <= FEW:
                    yield _losses_of(kinds, tilt, accuracy, frequency).times(counts)
                    continue
            nodes = TiltedNodes(*kinds.rows, tilt, accuracy, frequency, _MOST_NODES)
            yield TiltedLosses(nodes, kinds.rows[1], counts)
        for pair, count in self.symmetrized:
            yield panel_law(pair, count, tilt, frequency)

    def _kinds(self) -> Iterator[tuple[_Kinds, Array]]:
        """Yield the rounds with their counts, in blocks of kinds."""
        for rows, direction in ((self.sampled, self.direction), (self.replaced, None)):
            for start in range(0, len(rows.rates), _ROWS):
                rates, noise, counts = (part[start : start + _ROWS] for part in rows)
                yield _Kinds(rates.tobytes(), noise.tobytes(), direction), counts


def is_same_both_ways(remove: Composition, add: Composition) -> bool:
    """Return True if both directions of a schedule compose to the same.

    Gaussians without sampling, pairs of C_q and of a replaced client are the same both ways.
    """
    return not remove.sampled.rates.size and remove.general == add.general


_MAX_KINDS = 40


@dataclass(frozen=True, slots=True, eq=False)
class TruncatedComposition(Composed):
    """The `Composition` of the pairs up to ``ends``.

    Attributes:
        pairs: the sampled pairs with their multiplicities, of rates of at most one half.
        ends: for each pair, the largest u = (2x - 1) / (2 sigma^2) that is kept.
        lost: an upper bound of the probability that some round lies beyond.
        precision, kinds, general: as in `Composed`.
    """

    pairs: tuple[tuple[PanelPair, float], ...]
    ends: tuple[float, ...]
    lost: float
    precision: float
    kinds: int
    general: GeneralPairs = ()

    @classmethod
    def applies(cls, whole: Composition) -> bool:
        """Return True if there are few kinds of sampled rounds, with rates up to one half."""
        rates = [pair.sampling_rate for pair, _ in _kinds(whole)]
        return 0 < len(rates) <= _MAX_KINDS and max(rates) <= 0.5

    @classmethod
    def losing(cls, whole: Composition, mass: float) -> TruncatedComposition:
        """Return the composition that loses about ``mass``."""
        kinds = _kinds(whole)
        # A pair of C_q loses both ends. The lower one has less mass.
        counts = [n * (2.0 if isinstance(pair, SymmetrizedPair) else 1.0) for pair, n in kinds]
        each = mass / sum(counts)
        settings = [(_rate_of_p(pair), pair.noise_std) for pair, _ in kinds]
        ends = tuple(end_for(*setting, each) for setting in settings)
        lost = sum(
            count * lost_mass(*setting, end)
            for count, setting, end in zip(counts, settings, ends, strict=True)
        )
        lost *= 1 + UNIT * (4 * len(kinds) + 8)
        return cls(tuple(kinds), ends, lost, whole.precision, whole.kinds, whole.general)

    def laws_of_rounds(self, tilt: float, frequency: float) -> Iterator[Law]:
        """See `Composed`."""
        for (pair, count), end in zip(self.pairs, self.ends, strict=True):
            yield panel_law(pair, count, tilt, frequency, end)

    def cumulants_of_rounds(self, tilt: float) -> Iterator[tuple[float, Cumulants]]:
        """See `Composed`."""
        for (pair, count), end in zip(self.pairs, self.ends, strict=True):
            yield count, panel_cumulants(pair, tilt, end)


def _kinds(whole: Composition) -> list[tuple[PanelPair, float]]:
    return [*whole.sampled_pairs(), *((pair, float(n)) for pair, n in whole.symmetrized)]


def _rate_of_p(pair: PanelPair) -> float:
    """Return the rate of P. In the add direction P is the law without the client."""
    added = isinstance(pair, SampledGaussianPair) and pair.direction is Direction.ADD
    return 0.0 if added else pair.sampling_rate
