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
from dpacct.numerics.rounding import UNIT, Array, Bounds, ComplexArray
from dpacct.tight.composition import Composition
from dpacct.tight.laws.cumulants import Cumulants
from dpacct.tight.laws.decay import decay_table, log_of_power, log_one_plus
from dpacct.tight.laws.split import Cut, SplitLosses
from dpacct.tight.laws.steps import Step
from dpacct.tight.laws.truncated import end_for

# Points of the sums that only search.
_POINTS = 1200
# The share of delta that is lost beyond the end.
_LOST = 1e-15
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
        tilts = np.atleast_1d(np.asarray(tilt, dtype=np.float64))
        found = [self.laws(c, 0.0)[0].log_moment for c in tilts.tolist()]
        full = self.precision * tilts * (1 + tilts) / 2
        slack = UNIT * (4 * self.kinds + 16) * (full + np.abs([float(b.upper) for b in found]))
        lower = np.array([float(b.lower) for b in found]) + full - slack
        upper = np.array([float(b.upper) for b in found]) + full + slack
        shape = np.shape(tilt)
        return Bounds(lower.reshape(shape), upper.reshape(shape))

    def log_moment_above(self, tilts: Array) -> Array:
        """See `contour.Composed`."""
        return self.log_moment(tilts).upper

    def log_small_moment(self, tilt: float) -> float:
        """Upper bound of the logarithm of the moment of outcomes with small losses alone."""
        law, full = self.laws(tilt, 0.0)[0], self.precision * tilt * (1 + tilt) / 2
        upper = float(law.log_small.upper)
        return upper + full + UNIT * (4 * self.kinds + 16) * (full + abs(upper))

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

    def small_log_moment(self, tilt: float) -> float:
        """About `log_small_moment`."""
        small = sum(cut.count * split_cumulants(cut, tilt)[0].log_moment for cut in self.cuts)
        return small + self.precision * tilt * (1 + tilt) / 2


def split_at(
    composition: Composition, center: float, enough: float, log_delta: float
) -> SplitComposition:
    """The composition with large losses from about ``center`` on; from ``enough`` on they fade.

    Args:
        composition: sampled pairs of the remove direction, rates at most 1/2.
        log_delta: about that of the delta that is asked for; far less may be lost beyond the end.
    Raises:
        NotConverged: some kind of round has no loss between, or too large ones.
    """
    check_reach(composition, enough, log_delta)
    lost = _lost_each(composition, log_delta)
    sharp = sharpness(log_delta)
    small = Step(center, 0.75 * sharp * center / _STEP)
    width = (_FADED - 1) * sharp * enough / _FADE
    faded = Step((1 + (_FADED - 1) * sharp) * enough, width)
    cuts: list[Cut] = []
    rows = zip(composition.rates, composition.noise, composition.counts, strict=True)
    for rate, noise, count in ((float(q), float(z), float(n)) for q, z, n in rows):
        end = min(_at_loss(faded.center + _KEPT * width, rate), end_for(rate, noise, lost))
        first = _at_loss(center - _STEP * small.width, rate)
        if first >= end:
            raise NotConverged("no loss of some kind of round is large")
        sure = min(_at_loss(center + _STEP * small.width, rate), end)
        fading = min(_at_loss(enough, rate), end)
        cuts.append(Cut(rate, noise, count, small, first, sure, faded, fading, end))
    return SplitComposition(tuple(cuts), composition.precision, composition.kinds)


def sharpness(log_delta: float) -> float:
    """By what steps are narrower where the density falls steeply across them."""
    return min(1.0, _SHARP / max(-log_delta, 1.0))


def check_reach(composition: Composition, enough: float, log_delta: float) -> None:
    """Refuse losses so large that their exponentials overflow.

    Raises:
        NotConverged: they are.
    """
    farthest = 2 * enough - math.log(float(composition.rates.min()))
    if farthest > _FARTHEST:
        lost = _lost_each(composition, log_delta)
        farthest = min(farthest, end_for(0.5, float(composition.noise.min()), lost))
    if farthest > _FARTHEST:
        raise NotConverged("the losses of so little noise are too large")


def _lost_each(composition: Composition, log_delta: float) -> float:
    """What each round may lose beyond its end."""
    return math.exp(max(log_delta, -600.0)) * _LOST / float(composition.counts.sum())


def _at_loss(loss: float, rate: float) -> float:
    """The u at which log r is this."""
    if loss > 30.0:
        return loss - math.log(rate)
    return math.log1p(math.expm1(loss) / rate)


def split_cumulants(cut: Cut, tilt: float) -> tuple[Cumulants, Cumulants]:
    """Of the small and of the large losses of one round; nothing is proven of them."""
    loss, *log_masses = _points(cut)
    found: list[Cumulants] = []
    for log_mass in log_masses:
        exponent = log_mass + (1 + tilt) * loss
        top = float(exponent.max())
        weight = np.exp(exponent - top)
        total = float(weight.sum())
        mean = float(weight @ loss) / total
        variance = float(weight @ (loss - mean) ** 2) / total
        found.append(Cumulants(math.log(total) + top, mean, variance))
    return found[0], found[1]


@lru_cache(maxsize=64)
def _points(cut: Cut) -> tuple[Array, Array, Array]:
    """Losses, and logarithms of the masses of small and of large ones."""
    sigma = cut.noise
    start = -9.0 / sigma - 0.5 / sigma**2
    width = (cut.end - start) / _POINTS
    u = start + width * (np.arange(float(_POINTS)) + 0.5)
    loss = np.log1p(cut.rate * np.expm1(u))
    log_mass = math.log(sigma * width / math.sqrt(2 * math.pi)) - (sigma * u + 0.5 / sigma) ** 2 / 2
    fade = u >= cut.fading
    if fade.any():
        log_mass[fade] += np.log(cut.faded.below(loss[fade]) + 1e-300)
    later = u >= cut.first
    small, large = log_mass.copy(), np.full_like(u, -1e6)
    below, above = cut.small.shares(loss[later])
    small[later] += np.log(below + 1e-300)
    large[later] = log_mass[later] + np.log(above + 1e-300)
    return loss, small, large


class JointLaw:
    """nu under a tilt, for `contour.Contour`.

    Attributes:
        log_moment: bounds of the logarithm of its moment.
        log_small: the same of the outcomes with small losses alone.
    """

    def __init__(self, kinds: list[SplitLosses]) -> None:
        self._kinds = kinds
        counts = [kind.count for kind in kinds]
        small = [kind.small.log_moment for kind in kinds]
        lower = math.fsum(n * float(b.lower) for n, b in zip(counts, small, strict=True))
        upper = math.fsum(n * float(b.upper) for n, b in zip(counts, small, strict=True))
        size = math.fsum(n * abs(float(b.upper)) for n, b in zip(counts, small, strict=True))
        self.log_small = Bounds(
            np.array(lower - 4 * UNIT * size), np.array(upper + 4 * UNIT * size)
        )
        # Large over small, and the logarithm of the moment of all over that of small losses.
        log_odds = [
            float(kind.large.log_moment.upper + kind.large.log_moment.lower) / 2
            - float(kind.small.log_moment.upper + kind.small.log_moment.lower) / 2
            for kind in kinds
        ]
        self._odds = [math.exp(min(value, 600.0)) for value in log_odds]
        self._excess = math.fsum(
            n * math.log1p(odds) for n, odds in zip(counts, self._odds, strict=True)
        )
        # Relative error of any of the odds, and so of the excess.
        widths = [
            float(part.log_moment.upper - part.log_moment.lower) / 2
            for kind in kinds
            for part in (kind.large, kind.small)
        ]
        self._odds_error = 16 * UNIT * (1 + max(map(abs, log_odds))) + 2.02 * max(widths)
        growth = _log_expm1(self._excess)
        # d log expm1(y) = y / (1 - e^-y) d log y, at most 1 + y.
        off = (1 + self._excess) * self._odds_error * 1.01 + 8 * UNIT * (1 + abs(growth))
        self.log_moment = Bounds(
            self.log_small.lower + growth - off, self.log_small.upper + growth + off
        )

    def log_decay(self, first: float, number: int) -> Array:
        """See `contour.Law`: (S + B)^n - S^n, B the bound of large ones, over (S + L)^n - S^n."""
        times = decay_table(first, number) * (1 - 1e-9)
        excess = np.zeros(number)
        for kind, odds in zip(self._kinds, self._odds, strict=True):
            excess += kind.count * np.log1p(odds * kind.large_decay(times))
        excess *= 1 + self._odds_error + 1e-9
        return np.minimum(_log_expm1(excess) - _log_expm1(self._excess) + 1e-9, 0.0)

    def log_characteristic(self, step: float, number: int) -> tuple[ComplexArray, Array]:
        """See `contour.Law`."""
        small, excess = np.zeros(number, dtype=np.complex128), np.zeros(number, np.complex128)
        small_error, excess_error = np.zeros(number), np.zeros(number)
        # What overflows is no bound, and replaced below.
        with np.errstate(over="ignore", invalid="ignore"):
            for kind, odds in zip(self._kinds, self._odds, strict=True):
                shift, shift_error = kind.small.shift(step, number)
                large, large_error = kind.large.shift(step, number)
                value, error = log_of_power(shift, shift_error, kind.count)
                small, small_error = small + value, small_error + error
                # Odds of large losses at each frequency.
                least = np.maximum(np.abs(1 + shift) - 1.01 * shift_error, 0.0) + 1e-300
                ratio = odds * (1 + large) / (1 + shift + 1e-300)
                off = odds * (large_error + np.abs(1 + large) * (shift_error + 16 * UNIT) / least)
                off = off / least + np.abs(ratio) * self._odds_error
                value, error = log_one_plus(ratio, off)
                excess, excess_error = (
                    excess + kind.count * value,
                    excess_error + kind.count * error,
                )
        scale = -_log_expm1(self._excess)
        with np.errstate(over="ignore", invalid="ignore"):
            grown = np.exp(small + scale)
            value = grown * _complex_expm1(excess)
            modulus = np.abs(grown) * np.exp(excess.real)
            error = modulus * (np.expm1(excess_error) + 64 * UNIT * np.minimum(np.abs(excess), 1.0))
            error += np.abs(value) * (
                np.expm1(small_error)
                + (1 + self._excess) * self._odds_error * 1.01
                + UNIT * (64 + 8 * abs(float(scale)))
            )
        # No value of a characteristic function exceeds one.
        known = np.isfinite(error) & (error < 1.0)
        value, error = np.where(known, value, 0.0), np.where(known, error, 1.0)
        size = np.abs(value)
        unsure = size <= 2 * error
        log_value = np.where(
            unsure, np.log(size + error + 1e-300), np.log(np.where(unsure, 1, value))
        )
        bound = np.where(unsure, math.log(3.0), 2 * error / np.where(unsure, 1, size))
        return log_value, bound + 8 * UNIT * (np.abs(log_value) + 1)


def _log_expm1(y: float | Array) -> Array:
    """log(e^y - 1), y > 0."""
    value = np.asarray(y, dtype=np.float64)
    return np.where(value > 40.0, value, np.log(np.expm1(np.minimum(value, 40.0)) + 1e-300))


def _complex_expm1(z: ComplexArray) -> ComplexArray:
    """e^z - 1, each part within a few roundings of the modulus of z, or of e^z."""
    x, y = z.real, z.imag
    half = np.sin(y / 2)
    grown = np.exp(x)
    return np.expm1(x) - 2 * grown * half * half + 1j * grown * np.sin(y)
