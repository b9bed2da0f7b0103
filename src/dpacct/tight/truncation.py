"""A composition without the far ends of its losses, which hardly ever occur.

delta of the rest is at most delta, and delta is at most that plus the probability that is lost.
"""

from __future__ import annotations

from dataclasses import dataclass

from dpacct.numerics.rounding import UNIT, Array, Bounds
from dpacct.pairs.dominating import Direction
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
        ends: the largest u = (2x - 1) / (2 sigma^2) that is kept of each kind of round, first of
            the sampled pairs, then of the pairs of C_q.
        lost: an upper bound of the probability that some round lies beyond.
    """

    whole: Composition
    ends: tuple[float, ...]
    lost: float

    @classmethod
    def applies(cls, whole: Composition) -> bool:
        """Whether tails can be cut off: few kinds of sampled rounds with rates up to one half."""
        rates = [*whole.rates.tolist(), *(pair.sampling_rate for pair, _ in whole.symmetrized)]
        return 0 < len(rates) <= _MAX_KINDS and max(rates) <= 0.5 and not whole.replaced.rates.size

    @classmethod
    def losing(cls, whole: Composition, mass: float) -> TruncatedComposition:
        """The composition that loses about ``mass``."""
        kinds = _kinds(whole)
        each = mass / sum(share * count for _, _, count, share in kinds)
        # In the add direction P is the law without the client.
        sampled = len(whole.rates) if whole.direction is Direction.ADD else 0
        settings = [(rate * (k >= sampled), noise) for k, (rate, noise, _, _) in enumerate(kinds)]
        ends = tuple(end_for(*setting, each) for setting in settings)
        lost = sum(
            share * count * lost_mass(*setting, end)
            for (_, _, count, share), setting, end in zip(kinds, settings, ends, strict=True)
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
        sampled = len(self.whole.rates)
        for k, ((rate, noise, count, _), end) in enumerate(
            zip(_kinds(self.whole), self.ends, strict=True)
        ):
            setting = (rate, noise, count, tilt, frequency, end)
            if k < sampled:
                found.append(TruncatedLosses(*setting, self.whole.direction))
            else:
                found.append(SymmetrizedLosses(*setting))
        return found

    def log_moment(self, tilt: float | Array) -> Bounds:
        """See `Composition`."""

        def moments(c: float) -> list[tuple[float, Bounds]]:
            laws = zip(_kinds(self.whole), self.laws(c, 0.0), strict=True)
            return [(count, law.log_moment) for (_, _, count, _), law in laws]

        return summed_log_moment(moments, tilt, self.precision, self.kinds)

    def log_moment_above(self, tilts: Array) -> Array:
        """See `contour.Composed`."""
        return self.log_moment(tilts).upper

    def cumulants(self, tilt: float) -> Cumulants:
        """See `Composition`."""
        value = self.precision * tilt * (1 + tilt) / 2
        mean, variance = self.precision * (0.5 + tilt), self.precision
        sampled = len(self.whole.rates)
        kinds = zip(_kinds(self.whole), self.ends, strict=True)
        for k, ((rate, noise, count, _), end) in enumerate(kinds):
            if k < sampled:
                part = truncated_cumulants(rate, noise, tilt, end, self.whole.direction)
            else:
                part = symmetrized_cumulants(rate, noise, tilt, end)
            value += count * part.log_moment
            mean, variance = mean + count * part.mean, variance + count * part.variance
        return Cumulants(value, mean, max(variance, 1e-300))


def _kinds(whole: Composition) -> list[tuple[float, float, float, float]]:
    """Rate, noise and count of each kind of round, and how often it counts what is lost."""
    parts = (whole.rates, whole.noise, whole.counts)
    found = [(q, z, n, 1.0) for q, z, n in zip(*(part.tolist() for part in parts), strict=True)]
    # Of a pair of C_q both ends are lost, and the lower one carries less.
    found += [(p.sampling_rate, p.noise_std, float(n), 2.0) for p, n in whole.symmetrized]
    return found
