"""A composition in which all losses are small: the part of `split` that has no large one.

Where small losses add up to as much as one large loss, they have a contour of their own: without
large ones their moments are tame, and their tilt is the one that suits them.

Derivation: docs/derivations/few-large-losses.md.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from dpacct.numerics.rounding import Array, Bounds
from dpacct.tight.laws.cumulants import Cumulants
from dpacct.tight.laws.small import SmallLosses
from dpacct.tight.laws.split import Cut, SplitLosses
from dpacct.tight.split import SplitComposition, split_cumulants
from dpacct.tight.summed import summed_log_moment


@dataclass(frozen=True, slots=True, eq=False)
class SmallComposition:
    """The measure of all outcomes with small losses alone, times one Gaussian.

    Attributes:
        cuts: the kinds of rounds; what they have beyond the step is left out.
        precision: variance of the Gaussian loss.
        kinds: number of distinct pairs of the whole composition, for rounding.
    """

    cuts: tuple[Cut, ...]
    precision: float
    kinds: int

    @classmethod
    def of(cls, split: SplitComposition) -> SmallComposition:
        """The small losses of a composition that was split."""
        # No loss beyond the step is small, and next to the largest ones these would underflow.
        cuts = tuple(
            replace(cut, end=cut.sure, fading=min(cut.fading, cut.sure)) for cut in split.cuts
        )
        return cls(cuts, split.precision, split.kinds)

    def laws(self, tilt: float, frequency: float) -> list[SmallLosses]:
        """See `contour.Composed`."""
        return [SmallLosses(SplitLosses(cut, tilt, frequency)) for cut in self.cuts]

    def log_moment(self, tilt: float | Array) -> Bounds:
        """See `contour.Composed`."""

        def moments(c: float) -> list[tuple[float, Bounds]]:
            return [(law.count, law.log_moment) for law in self.laws(c, 0.0)]

        return summed_log_moment(moments, tilt, self.precision, self.kinds)

    def log_moment_above(self, tilts: Array) -> Array:
        """See `contour.Composed`."""
        return self.log_moment(tilts).upper

    def cumulants(self, tilt: float) -> Cumulants:
        """See `contour.Composed`; nothing is proven of them."""
        value = self.precision * tilt * (1 + tilt) / 2
        mean, variance = self.precision * (0.5 + tilt), self.precision
        for cut in self.cuts:
            part = split_cumulants(cut, tilt)[0]
            value, mean = value + cut.count * part.log_moment, mean + cut.count * part.mean
            variance += cut.count * part.variance
        return Cumulants(value, mean, max(variance, 1e-300))
