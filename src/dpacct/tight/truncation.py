"""A composition without the far ends of its losses, which hardly ever occur.

delta of the rest is at most delta, and delta is at most that plus the probability that is lost.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpacct.numerics.rounding import UNIT, Array, Bounds
from dpacct.pairs.dominating import AchievedPair, Direction, SampledGaussianPair, SymmetrizedPair
from dpacct.tight.composition import Composition
from dpacct.tight.laws.cumulants import Cumulants, symmetrized_cumulants, truncated_cumulants
from dpacct.tight.laws.symmetrized import SymmetrizedLosses
from dpacct.tight.laws.truncated import TruncatedLosses, end_for, lost_mass
from dpacct.tight.summed import summed_log_moment

_MAX_KINDS = 30


@dataclass(frozen=True, slots=True, eq=False)
class TruncatedComposition:
    """What `Composition` is, of the pairs up to ``ends``.

    Attributes:
        whole: the composition with its tails; rates of at most one half.
        ends: the largest u = (2x - 1) / (2 sigma^2) that is kept of each kind of round.
        lost: an upper bound of the probability that some round lies beyond.
    """

    whole: Composition
    ends: tuple[float, ...]
    lost: float

    @classmethod
    def applies(cls, whole: Composition) -> bool:
        """Whether tails can be cut off: few kinds of sampled rounds with rates up to one half."""
        rates = [pair.sampling_rate for pair, _ in _kinds(whole)]
        return 0 < len(rates) <= _MAX_KINDS and max(rates) <= 0.5

    @classmethod
    def losing(cls, whole: Composition, mass: float) -> TruncatedComposition:
        """The composition that loses about ``mass``."""
        kinds = _kinds(whole)
        # Of a pair of C_q both ends are lost, and the lower one carries less.
        counts = [n * (2.0 if isinstance(pair, SymmetrizedPair) else 1.0) for pair, n in kinds]
        each = mass / sum(counts)
        settings = [(_rate_of_p(pair), pair.noise_std) for pair, _ in kinds]
        ends = tuple(end_for(*setting, each) for setting in settings)
        lost = sum(
            count * lost_mass(*setting, end)
            for count, setting, end in zip(counts, settings, ends, strict=True)
        )
        return cls(whole, ends, lost * (1 + UNIT * (4 * len(kinds) + 8)))

    @property
    def precision(self) -> float:
        """See `Composition`."""
        return self.whole.precision

    @property
    def kinds(self) -> int:
        """See `Composition`."""
        return self.whole.kinds

    @property
    def largest_loss(self) -> float:
        """See `Composition`."""
        return self.whole.largest_loss

    def laws(self, tilt: float, frequency: float) -> list[TruncatedLosses | SymmetrizedLosses]:
        """See `Composition`."""
        found: list[TruncatedLosses | SymmetrizedLosses] = []
        for (pair, count), end in zip(_kinds(self.whole), self.ends, strict=True):
            setting = (count, tilt, frequency, end)
            if isinstance(pair, SymmetrizedPair):
                found.append(SymmetrizedLosses(pair.sampling_rate, pair.noise_std, *setting))
            else:
                found.append(TruncatedLosses(pair, *setting))
        return found

    def log_moment(self, tilt: float | Array) -> Bounds:
        """See `Composition`."""

        def moments(c: float) -> list[tuple[float, Bounds]]:
            laws = zip(_kinds(self.whole), self.laws(c, 0.0), strict=True)
            return [(count, law.log_moment) for (_, count), law in laws]

        return summed_log_moment(moments, tilt, self.precision, self.kinds)

    def log_moment_above(self, tilts: Array) -> Array:
        """See `contour.Composed`."""
        return self.log_moment(tilts).upper

    def cumulants(self, tilt: float) -> Cumulants:
        """See `Composition`."""
        value = self.precision * tilt * (1 + tilt) / 2
        mean, variance = self.precision * (0.5 + tilt), self.precision
        for (pair, count), end in zip(_kinds(self.whole), self.ends, strict=True):
            if isinstance(pair, SymmetrizedPair):
                part = symmetrized_cumulants(pair.sampling_rate, pair.noise_std, tilt, end)
            else:
                part = truncated_cumulants(pair, tilt, end)
            value += count * part.log_moment
            mean, variance = mean + count * part.mean, variance + count * part.variance
        return Cumulants(value, mean, max(variance, 1e-300))


def _kinds(whole: Composition) -> list[tuple[AchievedPair | SymmetrizedPair, float]]:
    return [*whole.sampled_pairs(), *((pair, float(n)) for pair, n in whole.symmetrized)]


def _rate_of_p(pair: AchievedPair | SymmetrizedPair) -> float:
    """In the add direction P is the law without the client."""
    added = isinstance(pair, SampledGaussianPair) and pair.direction is Direction.ADD
    return 0.0 if added else pair.sampling_rate
