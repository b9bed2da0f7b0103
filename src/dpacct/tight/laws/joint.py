"""All rounds of a split composition together: at least one large loss, under a tilt.

Its moments (S + V)^n - S^n do not factor: odds of large against small losses are followed instead.

Derivation: docs/derivations/few-large-losses.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.rounding import UNIT, Array, Bounds, ComplexArray
from dpacct.tight.laws.decay import decay_table, log_of_power, log_one_plus
from dpacct.tight.laws.split import SplitLosses

# A relative error that is not worth a second attempt.
_CLOSE = 1e-3
# The exponential of a larger logarithm may overflow, and cutting it off would be no bound.
_LARGEST = 700.0

# Of small and large losses: phi(t) - 1, and bounds of their errors.
_Shifts = tuple[ComplexArray, Array, ComplexArray, Array]


class JointLaw:
    """nu under a tilt, for `contour.Contour`.

    Attributes:
        log_moment: bounds of the logarithm of its moment.
        log_small: the same of the outcomes with small losses alone.

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
        self.log_small = Bounds(
            np.array(lower - 4 * UNIT * size), np.array(upper + 4 * UNIT * size)
        )
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
        # The excess that it is divided by may be less, by as much: see `log_moment`.
        less = (1 + self._excess) * self._odds_error * 1.01 + 1e-9
        return np.minimum(_log_expm1(excess) - _log_expm1(self._excess) + less, 0.0)

    def log_characteristic(self, step: float, number: int) -> tuple[ComplexArray, Array]:
        """See `contour.Law`."""
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
        """The measure's value, relative to its moment, as S^n (e^X - 1), and a bound of its error.

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
        """The same as (S + V)^n - S^n."""
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
    """log(e^y - 1), y > 0."""
    value = np.asarray(y, dtype=np.float64)
    return np.where(value > 40.0, value, np.log(np.expm1(np.minimum(value, 40.0)) + 1e-300))


def _complex_expm1(z: ComplexArray) -> ComplexArray:
    """e^z - 1, each part within a few roundings of the modulus of z, or of e^z."""
    x, y = z.real, z.imag
    half = np.sin(y / 2)
    grown = np.exp(x)
    return np.expm1(x) - 2 * grown * half * half + 1j * grown * np.sin(y)
