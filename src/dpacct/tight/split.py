"""Compositions of rounds whose losses are split: at least one large loss, or small ones alone.

The measure nu of the outcomes of all rounds with at least one large loss and no faded one has the
moments prod M_j^n - prod S_j^n. M_j are the moments of all losses that round j keeps, S_j those of
its small losses. The measure has no atom, and its integrand decays. Small losses alone have a
separate contour. Without large losses their moments are tame, and they have a suitable tilt.

Derivation: docs/derivations/few-large-losses.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.rounding import UNIT, Array, Bounds, ComplexArray
from dpacct.pairs.panels import LossFunction
from dpacct.tight.composition import Composed, Composition, Cumulants, weighted_cumulants
from dpacct.tight.large_losses import Cut, SplitLosses, Step
from dpacct.tight.laws import (
    Law,
    PanelLosses,
    decay_table,
    end_for,
    log_decay_of_panels,
    log_of_power,
    log_one_plus,
)

# A relative error that is not worth a second attempt.
_CLOSE = 1e-3
# The exponential of a larger logarithm may overflow, and cutting it off would be no bound.
_LARGEST = 700.0

# Of small and large losses: phi(t) - 1, and bounds of their errors.
_Shifts = tuple[ComplexArray, Array, ComplexArray, Array]


class JointLaw(Law):
    """nu under a tilt, for `contour.Contour`.

    Attributes:
        log_moment: bounds of the logarithm of its moment.

    Raises:
        NotConverged: large losses outweigh small ones by more than a double can hold.
    """

    def __init__(self, kinds: list[SplitLosses]) -> None:
        self._kinds = kinds
        counts = [kind.count for kind in kinds]
        small = [kind.small.log_moment for kind in kinds]
        lower = math.fsum(n * float(b.lower) for n, b in zip(counts, small, strict=True))
        upper = math.fsum(n * float(b.upper) for n, b in zip(counts, small, strict=True))
        size = math.fsum(n * abs(float(b.upper)) for n, b in zip(counts, small, strict=True))
        # Large over small, and the logarithm of the moment of all over that of small losses.
        log_odds = [
            float(kind.large.log_moment.upper + kind.large.log_moment.lower) / 2
            - float(kind.small.log_moment.upper + kind.small.log_moment.lower) / 2
            for kind in kinds
        ]
        if not max(log_odds) < _LARGEST:
            raise NotConverged("the odds of large losses overflow under this tilt")
        self._odds = [math.exp(value) for value in log_odds]
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
        lower, upper = lower - 4 * UNIT * size, upper + 4 * UNIT * size
        self.log_moment = Bounds(lower + growth - off, upper + growth + off)

    def log_decay(self, first: float, number: int) -> Array:
        """See `Law`: (S + B)^n - S^n, B the bound of large ones, over (S + L)^n - S^n."""
        times = decay_table(first, number) * (1 - 1e-9)
        excess = np.zeros(number)
        for kind, odds in zip(self._kinds, self._odds, strict=True):
            excess += kind.count * np.log1p(odds * kind.large_decay(times))
        excess *= 1 + self._odds_error + 1e-9
        # The excess that it is divided by may be less, by as much: see `log_moment`.
        less = (1 + self._excess) * self._odds_error * 1.01 + 1e-9
        return np.minimum(_log_expm1(excess) - _log_expm1(self._excess) + less, 0.0)

    def log_characteristic(self, step: float, number: int) -> tuple[ComplexArray, Array]:
        """See `Law`."""
        shifts = [
            (*kind.small.shift(step, number), *kind.large.shift(step, number))
            for kind in self._kinds
        ]
        value, error = self._by_odds(shifts)
        # Where small losses cancel each other, odds against them say nothing.
        unknown = ~(error < _CLOSE)
        if unknown.any():
            other, other_error = self._by_difference(
                [(a[unknown], b[unknown], c[unknown], d[unknown]) for a, b, c, d in shifts]
            )
            better = ~(error[unknown] <= other_error)
            value[unknown] = np.where(better, other, value[unknown])
            error[unknown] = np.where(better, other_error, error[unknown])
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

    def _by_odds(self, shifts: Sequence[_Shifts]) -> tuple[ComplexArray, Array]:
        """Return the value relative to the moment, as S^n (e^X - 1), and a bound of its error.

        That is no number, or infinite, where nothing is known.
        """
        number = len(shifts[0][1])
        small, excess = np.zeros(number, dtype=np.complex128), np.zeros(number, np.complex128)
        small_error, excess_error = np.zeros(number), np.zeros(number)
        with np.errstate(over="ignore", invalid="ignore"):
            for kind, odds, parts in zip(self._kinds, self._odds, shifts, strict=True):
                shift, shift_error, large, large_error = parts
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
            grown = np.exp(small + scale)
            value = grown * _complex_expm1(excess)
            modulus = np.abs(grown) * np.exp(excess.real)
            error = modulus * (np.expm1(excess_error) + 64 * UNIT * np.minimum(np.abs(excess), 1.0))
            error += np.abs(value) * (
                np.expm1(small_error)
                + (1 + self._excess) * self._odds_error * 1.01
                + UNIT * (64 + 8 * abs(float(scale)))
            )
        return value, error

    def _by_difference(self, shifts: Sequence[_Shifts]) -> tuple[ComplexArray, Array]:
        """Return the value as (S + V)^n - S^n, and a bound of its error."""
        number = len(shifts[0][1])
        small, every = np.zeros(number, dtype=np.complex128), np.zeros(number, np.complex128)
        small_error, every_error = np.zeros(number), np.zeros(number)
        with np.errstate(over="ignore", invalid="ignore"):
            for kind, odds, parts in zip(self._kinds, self._odds, shifts, strict=True):
                shift, shift_error, large, large_error = parts
                value, error = log_of_power(shift, shift_error, kind.count)
                small, small_error = small + value, small_error + error
                added = odds * (1 + large)
                off = shift_error + odds * large_error + np.abs(added) * self._odds_error
                off += 16 * UNIT * (np.abs(shift) + np.abs(added))
                value, error = log_of_power(shift + added, off, kind.count)
                every, every_error = every + value, every_error + error
            scale = -_log_expm1(self._excess)
            grown, whole = np.exp(small + scale), np.exp(every + scale)
            error = np.abs(grown) * np.expm1(small_error) + np.abs(whole) * np.expm1(every_error)
            error += (np.abs(grown) + np.abs(whole)) * (
                (1 + self._excess) * self._odds_error * 1.01 + UNIT * (64 + 8 * abs(float(scale)))
            )
            return whole - grown, error


def _log_expm1(y: float | Array) -> Array:
    """Return log(e^y - 1), y > 0."""
    value = np.asarray(y, dtype=np.float64)
    return np.where(value > 40.0, value, np.log(np.expm1(np.minimum(value, 40.0)) + 1e-300))


def _complex_expm1(z: ComplexArray) -> ComplexArray:
    """Return e^z - 1, each part within a few roundings of the modulus of z, or of e^z."""
    x, y = z.real, z.imag
    half = np.sin(y / 2)
    grown = np.exp(x)
    return np.expm1(x) - 2 * grown * half * half + 1j * grown * np.sin(y)


class SmallLosses(PanelLosses):
    """The small part of `SplitLosses`."""

    def __init__(self, kind: SplitLosses) -> None:
        super().__init__(kind.small, kind.count)
        self._kind = kind

    def log_decay(self, first: float, number: int) -> Array:
        """See `Law`."""
        return self.count * log_decay_of_panels(first, number, *self._kind.small_panels())


# Points of the sums that only search.
_POINTS = 1200
# The share of delta that lies beyond the end, where the density drops to nothing: even under a tilt
# that drop must not be seen. Where exponentials would overflow, more.
_LOST, _MOST_LOST = 1e-60, 1e-15
# Widths of a step on its way from 0 to 1, and how far losses that are faded out are kept.
_STEP, _FADE, _KEPT = 10.0, 8.5, 12.5
# The loss that is half faded out, in units of a loss that suffices alone.
_FADED = 1.4
# Below a delta of e to minus this steps are narrower.
_SHARP = 60.0
# How far above the epsilon that was guessed it is enough.
MARGIN = 1.05
# Nothing that matters lies further out in the Gaussian's exponent.
_FARTHEST = 600.0


@dataclass(frozen=True, slots=True, eq=False)
class SplitComposition(Composed):
    """The measure nu, times one Gaussian.

    Attributes:
        cuts: the kinds of rounds.
        precision, kinds: as in `Composed`. ``kinds`` counts the whole composition.
    """

    cuts: tuple[Cut, ...]
    precision: float
    kinds: int

    def laws(self, tilt: float, frequency: float) -> list[JointLaw]:
        """Return all rounds together: they do not factor."""
        return [JointLaw([SplitLosses(cut, tilt, frequency) for cut in self.cuts])]

    def cumulants(self, tilt: float) -> Cumulants:
        """Return cumulants of nu and the Gaussian, without proof."""
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
    """Return the composition with large losses from about ``center``, faded from ``enough`` on.

    Args:
        composition: sampled pairs of the remove direction, or of replaced clients, rates at most
            1/2.
        log_delta: estimate of the requested log delta. The mass lost beyond the end is far less.
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
    """Return the factor that narrows steps if the density falls steeply across them."""
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
    """Return the mass that each round may have beyond its end."""
    return math.exp(max(log_delta, -600.0)) * share / composition.sampled_rounds


def split_cumulants(cut: Cut, tilt: float) -> tuple[Cumulants, Cumulants]:
    """Return cumulants of the small and of the large losses of one round, without proof."""
    loss, small, large = _points(cut)
    tilted = (1 + tilt) * loss
    return weighted_cumulants(small + tilted, loss), weighted_cumulants(large + tilted, loss)


@lru_cache(maxsize=512)
def _points(cut: Cut) -> tuple[Array, Array, Array]:
    """Return Losses, and logarithms of the masses of small and of large ones."""
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
    """Return the logarithm of a share, or -inf for 0. Tilts may exceed the log of any share."""
    return np.log(share, out=np.full_like(share, -np.inf), where=share > 0.0)


@dataclass(frozen=True, slots=True, eq=False)
class SmallComposition(Composed):
    """The measure of all outcomes with small losses alone, times one Gaussian.

    Attributes:
        cuts: the kinds of rounds, without losses beyond the step.
        precision, kinds: as in `Composed`. ``kinds`` counts the whole composition.
    """

    cuts: tuple[Cut, ...]
    precision: float
    kinds: int

    @classmethod
    def of(cls, split: SplitComposition) -> SmallComposition:
        """Return the small losses of a composition that was split."""
        # No loss beyond the step is small, and next to the largest ones these would underflow.
        cuts = tuple(
            replace(cut, end=cut.sure, fading=min(cut.fading, cut.sure)) for cut in split.cuts
        )
        return cls(cuts, split.precision, split.kinds)

    def laws(self, tilt: float, frequency: float) -> list[SmallLosses]:
        """See `Composed`."""
        return [SmallLosses(SplitLosses(cut, tilt, frequency)) for cut in self.cuts]

    def _cumulants_of_laws(self, tilt: float) -> Iterator[tuple[float, Cumulants]]:
        for cut in self.cuts:
            yield cut.count, split_cumulants(cut, tilt)[0]
