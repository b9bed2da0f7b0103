"""A composition in which at least one round has a large loss, and none an even larger one.

The measure nu of the outcomes of all rounds with at least one large loss and no faded one (see
`laws.split`) has the moments prod M_j^n - prod S_j^n, M_j those of all losses of a round that are
left, S_j those of the small ones. It has no atom, and its integrand decays.

Derivation: docs/derivations/few-large-losses.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.rounding import Array, Bounds
from dpacct.pairs.panels import LossFunction
from dpacct.tight.composition import Composition
from dpacct.tight.laws.cumulants import Cumulants
from dpacct.tight.laws.joint import JointLaw
from dpacct.tight.laws.split import Cut, SplitLosses
from dpacct.tight.laws.steps import Step
from dpacct.tight.laws.truncated import end_for
from dpacct.tight.summed import summed_log_moment

# Points of the sums that only search.
_POINTS = 1200
# The share of delta that lies beyond the end, where the density drops to nothing: even under a tilt
# that drop must not be seen. Where exponentials would overflow, more.
_LOST, _MOST_LOST = 1e-60, 1e-15
# Widths of a step on its way from 0 to 1, and how far losses that are faded out are kept.
_STEP, _FADE, _KEPT = 10.0, 8.5, 12.5
# Where a loss is half faded out, in units of what is enough by itself.
_FADED = 1.4
# Below a delta of e to minus this steps are narrower.
_SHARP = 60.0
# How far above the epsilon that was guessed it is enough.
MARGIN = 1.05
# Nothing that matters lies further out in the Gaussian's exponent.
_FARTHEST = 600.0


@dataclass(frozen=True, slots=True, eq=False)
class SplitComposition:
    """The measure nu, times one Gaussian; what `contour.Contour` inverts.

    Attributes:
        cuts: the kinds of rounds.
        precision: variance of the Gaussian loss.
        kinds: number of distinct pairs of the whole composition, for rounding.
    """

    cuts: tuple[Cut, ...]
    precision: float
    kinds: int

    def laws(self, tilt: float, frequency: float) -> list[JointLaw]:
        """All rounds together: they do not factor."""
        return [JointLaw([SplitLosses(cut, tilt, frequency) for cut in self.cuts])]

    def log_moment(self, tilt: float | Array) -> Bounds:
        """Bounds of the logarithm of the moment of nu and the Gaussian."""

        def moments(c: float) -> list[tuple[float, Bounds]]:
            return [(1.0, self.laws(c, 0.0)[0].log_moment)]

        return summed_log_moment(moments, tilt, self.precision, self.kinds)

    def log_moment_above(self, tilts: Array) -> Array:
        """See `contour.Composed`."""
        return self.log_moment(tilts).upper

    def cumulants(self, tilt: float) -> Cumulants:
        """Of nu and the Gaussian; nothing is proven of them."""
        value = self.precision * tilt * (1 + tilt) / 2
        mean, variance = self.precision * (0.5 + tilt), self.precision
        # Logarithm of all over small ones, and its derivatives.
        excess, slope, bend = 0.0, 0.0, 0.0
        for cut in self.cuts:
            small, large = split_cumulants(cut, tilt)
            value, mean = value + cut.count * small.log_moment, mean + cut.count * small.mean
            variance += cut.count * small.variance
            odds = math.exp(min(large.log_moment - small.log_moment, 600.0))
            share, apart = odds / (1 + odds), large.mean - small.mean
            excess += cut.count * math.log1p(odds)
            slope += cut.count * share * apart
            bend += cut.count * share * (large.variance - small.variance)
            bend += cut.count * share * (1 - share) * apart**2
        excess = max(excess, 1e-290)
        growth = 1 / -math.expm1(-excess)
        bend = growth * bend - slope * slope * growth * (growth - 1)
        return Cumulants(
            value + excess - math.log(growth), mean + growth * slope, max(variance + bend, 1e-300)
        )


def split_at(
    composition: Composition, center: float, enough: float, log_delta: float
) -> SplitComposition:
    """The composition with large losses from about ``center`` on; from ``enough`` on they fade.

    Args:
        composition: sampled pairs of the remove direction, or of replaced clients, rates at most
            1/2.
        log_delta: about that of the delta that is asked for; far less may be lost beyond the end.
    Raises:
        NotConverged: some kind of round has no loss between, or too large ones.
    """
    check_reach(composition, enough, log_delta)
    lost = _lost_each(composition, log_delta, _LOST)
    most_lost = _lost_each(composition, log_delta, _MOST_LOST)
    sharp = sharpness(log_delta)
    small = Step(center, 0.75 * sharp * center / _STEP)
    width = (_FADED - 1) * sharp * enough / _FADE
    faded = Step((1 + (_FADED - 1) * sharp) * enough, width)
    cuts: list[Cut] = []
    for pair, count in composition.sampled_pairs():
        rate, noise, at_loss = pair.sampling_rate, pair.noise_std, LossFunction(pair).inverse
        end = min(at_loss(faded.center + _KEPT * width), end_for(rate, noise, lost))
        if end > _FARTHEST:
            end = min(end, max(_FARTHEST, end_for(rate, noise, most_lost)))
        first = at_loss(center - _STEP * small.width)
        if first >= end:
            raise NotConverged("no loss of some kind of round is large")
        sure = min(at_loss(center + _STEP * small.width), end)
        fading = min(at_loss(enough), end)
        cuts.append(Cut(pair, count, small, first, sure, faded, fading, end))
    return SplitComposition(tuple(cuts), composition.precision, composition.kinds)


def sharpness(log_delta: float) -> float:
    """By what steps are narrower where the density falls steeply across them."""
    return min(1.0, _SHARP / max(-log_delta, 1.0))


def check_reach(composition: Composition, enough: float, log_delta: float) -> None:
    """Refuse losses so large that their exponentials overflow.

    Raises:
        NotConverged: they are.
    """
    pairs = [pair for pair, _ in composition.sampled_pairs()]
    farthest = 2 * enough - math.log(min(pair.sampling_rate for pair in pairs))
    if farthest > _FARTHEST:
        lost = _lost_each(composition, log_delta, _MOST_LOST)
        farthest = min(farthest, end_for(0.5, min(pair.noise_std for pair in pairs), lost))
    if farthest > _FARTHEST:
        raise NotConverged("the losses of so little noise are too large")


def _lost_each(composition: Composition, log_delta: float, share: float) -> float:
    """What each round may have beyond its end."""
    return math.exp(max(log_delta, -600.0)) * share / composition.sampled_rounds


def split_cumulants(cut: Cut, tilt: float) -> tuple[Cumulants, Cumulants]:
    """Of the small and of the large losses of one round; nothing is proven of them."""
    loss, *log_masses = _points(cut)
    found: list[Cumulants] = []
    for log_mass in log_masses:
        exponent = log_mass + (1 + tilt) * loss
        top = float(exponent.max())
        if not math.isfinite(top):
            # None of the points is one of these.
            found.append(Cumulants(-math.inf, 0.0, 1.0))
            continue
        weight = np.exp(exponent - top)
        total = float(weight.sum())
        mean = float(weight @ loss) / total
        variance = float(weight @ (loss - mean) ** 2) / total
        found.append(Cumulants(math.log(total) + top, mean, variance))
    return found[0], found[1]


@lru_cache(maxsize=512)
def _points(cut: Cut) -> tuple[Array, Array, Array]:
    """Losses, and logarithms of the masses of small and of large ones."""
    pair, sigma = LossFunction(cut.pair), cut.pair.noise_std
    start = pair.start(-0.5, 9.0)
    width = (cut.end - start) / _POINTS
    u = start + width * (np.arange(float(_POINTS)) + 0.5)
    loss, base = pair(u)
    log_mass = math.log(sigma * width / math.sqrt(2 * math.pi)) + pair.log_density(u) + base
    fade = u >= cut.fading
    if fade.any():
        log_mass[fade] += _log(cut.faded.below(loss[fade]))
    later = u >= cut.first
    small, large = log_mass.copy(), np.full_like(u, -np.inf)
    below, above = cut.small.shares(loss[later])
    small[later] += _log(below)
    large[later] = log_mass[later] + _log(above)
    return loss, small, large


def _log(share: Array) -> Array:
    """Its logarithm; of zero minus infinity, as tilts may be larger than any share is small."""
    return np.log(share, out=np.full_like(share, -np.inf), where=share > 0.0)
