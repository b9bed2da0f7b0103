"""A release that runs many times, by powers of one Fourier transform on a grid of losses.

The law of a sum of n whole numbers is the n-th power of a transform. Masses are tilted by e^{c L}
first, so that small deltas keep their digits. The errors of the transform are charged, and so is
what lies outside the window of numbers (Chernoff's inequality).

Derivation: docs/derivations/epochs.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from dpacct.budget import Interval
from dpacct.epochs.ratios import RatioLaw, RatioPair
from dpacct.errors import NotConverged
from dpacct.numerics.fourier import FFT_ERROR
from dpacct.numerics.rounding import UNIT, Array, ComplexArray
from dpacct.tight.composition import Composition
from dpacct.tight.contour import epsilon_estimate, tilt_at_delta, tilt_at_epsilon

# Exponents of the Chernoff bounds of what lies outside a window, and what may lie there.
_EXPONENTS, _LOG_OUTSIDE = np.geomspace(0.05, 20.0, 24), -52.0
# The longest transform.
_LONGEST = 2**24
# Losses with a weight e^{-c (L - eps)} below this are counted as if they weighed so much.
_LOG_KERNEL = -46.0
# Events of the lower bound begin this many numbers from eps / h.
_CANDIDATES = 12
_TOLERANCE, _LARGEST = 1e-9, 690.0


def repeated_epsilon(composition: Composition, delta: float) -> Interval:
    """Return eps(delta) of a composition of equal releases, whose pair has a `RatioLaw`.

    Of a lower law the upper end is infinite.

    Raises:
        NotConverged: the transform would be too long.
    """
    law, count = _only_law(composition)
    log_delta = math.log(delta)
    tilt, at = tilt_at_delta(composition, log_delta)
    repeated = Repeated(law, count, tilt)
    guess = epsilon_estimate(tilt, at, log_delta)
    lower = _crossing(lambda epsilon: repeated.delta(epsilon).lower > delta, guess)[0]
    if not law.proven or count * law.lost_p * (1 + 8 * UNIT) >= delta:
        return Interval(lower, math.inf)
    upper = _crossing(lambda epsilon: repeated.delta(epsilon).upper > delta, guess)[1]
    return Interval(min(lower, upper), upper)


def _crossing(above: Callable[[float], bool], guess: float) -> tuple[float, float]:
    """Return epsilons >= 0 next to each other at which a condition holds and no longer holds.

    Both are 0 if it does not hold at 0. Far from the guess, bounds may be too wide to say.
    """
    low = high = max(guess, 0.0)
    step = 1e-3 * high + 1e-6
    while above(high):
        low, high, step = high, high + step, 2 * step
        if not math.isfinite(high):
            raise NotConverged("no epsilon is enough")
    step = 1e-3 * low + 1e-6
    while low > 0.0 and not above(low):
        high, low, step = low, max(0.0, low - step), 2 * step
    if low == 0.0 and not above(0.0):
        return 0.0, 0.0
    while high - low > _TOLERANCE * high:
        middle = (low + high) / 2
        low, high = (middle, high) if above(middle) else (low, middle)
    return low, high


def repeated_delta(composition: Composition, epsilon: float) -> Interval:
    """Return delta(eps) in the same way. Of a lower law the upper end is that of its cover."""
    law, count = _only_law(composition)
    tilt, _ = tilt_at_epsilon(composition, epsilon)
    found = Repeated(law, count, tilt).delta(epsilon)
    if law.cover is None:
        return found
    return Interval.bracket(found.lower, Repeated(law.cover, count, tilt).delta(epsilon).upper)


def _only_law(composition: Composition) -> tuple[RatioLaw, int]:
    pair, count = composition.general[0]
    assert isinstance(pair, RatioPair)  # noqa: S101 - `is_repeated` checks it
    return pair.law, count


class _Power(NamedTuple):
    """Masses of a sum of numbers in a window: e^log_scale values e^{-c h j}.

    Attributes:
        start: the first number of the window.
        values: shape (N,), each within ``error`` of the truth plus some of ``outside``.
        error: absolute error of each value.
        outside: mass outside the window, which counts at some place inside.
        relative: error of all values relative to themselves.
    """

    log_scale: float
    start: int
    values: Array
    error: float
    outside: float
    relative: float


class Repeated:
    """Bounds of delta of ``count`` releases, for every epsilon near those that a tilt is made for.

    Args:
        law: of one release.
        count: how often it runs.
        tilt: c > 0, best at the saddle point of the requested epsilons.
    Raises:
        NotConverged: the transform would be too long.
    """

    def __init__(self, law: RatioLaw, count: int, tilt: float) -> None:
        self._law, self._count, self._tilt = law, count, tilt
        self._p = _power(law, law.p, tilt, count)
        self._q = None if law.proven else _power(law, law.q, tilt + 1, count)

    def delta(self, epsilon: float) -> Interval:
        """Return bounds of delta at one epsilon >= 0. Of a lower law, the upper end is 1."""
        if self._q is not None:
            return Interval(self._lower(epsilon, self._q), 1.0)
        moved = self._count * self._law.loss_error + 8 * UNIT * (1 + epsilon)
        lower = self._sum(epsilon + moved, -1.0)
        upper = self._sum(epsilon - moved, 1.0)
        upper += self._count * self._law.lost_p * (1 + 8 * UNIT)
        return Interval(min(1.0, lower), min(1.0, upper))

    def _sum(self, epsilon: float, side: float) -> float:
        """Return the sum of P(1 - e^{eps - L})_+ with all errors added or taken away."""
        law, c, p = self._law, self._tilt, self._p
        start = max(0, math.floor(epsilon / law.step) - p.start)
        stop = start + math.ceil(-_LOG_KERNEL / (c * law.step)) + 2
        values = p.values[start:stop]
        above = law.step * (p.start + start + np.arange(float(len(values)))) - epsilon
        above = np.maximum(above, 0.0)
        kernel = np.exp(-c * above) * -np.expm1(-above)
        slack = p.error * float(kernel.sum()) + p.outside + 2 * math.exp(_LOG_KERNEL)
        total = float(np.maximum(values, 0.0) @ kernel) + side * slack
        rounding = 64 * UNIT * (1 + abs(p.log_scale) + c * abs(epsilon)) + self._relative(p)
        # Nothing is rounded down to zero.
        exponent = min(max(p.log_scale - c * epsilon, -_LARGEST), _LARGEST)
        return max(0.0, total) * math.exp(exponent) * (1 + side * rounding)

    def _lower(self, epsilon: float, q: _Power) -> float:
        """Return the largest P(A) - e^eps Q(A) for events A = {number >= j}."""
        p, c, step = self._p, self._tilt, self._law.step
        middle = round(epsilon / step)
        first = middle + np.arange(-float(_CANDIDATES), _CANDIDATES + 1.0)
        exponents = p.log_scale - c * step * first, q.log_scale - (c + 1) * step * first + epsilon
        rounding = 64 * UNIT * (1 + max(float(np.abs(part).max()) for part in exponents))
        reached, reached_error = _events(p, c * step, first)
        reached = reached * (1 - rounding - self._relative(p)) - reached_error
        paid, paid_error = _events(q, (c + 1) * step, first)
        paid = paid * (1 + rounding + self._relative(q)) + paid_error
        scales = [np.exp(np.clip(part, -_LARGEST, _LARGEST)) for part in exponents]
        # Events too far right of the first one leave the range of doubles.
        near = (c + 1) * step * (first - first[0]) <= _LARGEST / 2
        found = float(np.max((scales[0] * reached - scales[1] * paid)[near]))
        return min(1.0, max(0.0, found * (1 - 8 * UNIT)))

    def _relative(self, part: _Power) -> float:
        each = self._count * self._law.mass_error * 1.01
        return math.expm1(min(each + part.relative, 1.0))


def _events(part: _Power, tilt: float, first: Array) -> tuple[Array, Array]:
    """Return masses of {number >= j} relative to e^{-tilt j}, and bounds of their errors."""
    start = max(0, int(first[0]) - part.start)
    stop = start + len(first) + math.ceil(-_LOG_KERNEL / tilt)
    values = np.maximum(part.values[start:stop], 0.0)
    number = part.start + start + np.arange(float(len(values)))
    at = np.maximum(first - part.start - start, 0).astype(np.int64)
    kernel = np.exp(-tilt * (number - first[0]))
    sums = [np.append(np.cumsum(part[::-1])[::-1], 0.0) for part in (values * kernel, kernel)]
    at = np.minimum(at, len(values))
    mass, room = (
        each[at] * np.exp(np.minimum(tilt * (first - first[0]), _LARGEST)) for each in sums
    )
    return mass, part.error * room + part.outside + 2 * math.exp(_LOG_KERNEL)


def _power(law: RatioLaw, masses: Array, tilt: float, count: int) -> _Power:
    """Return the law of the sum of ``count`` independent numbers with these masses."""
    with np.errstate(divide="ignore"):
        exponent = np.log(masses) + tilt * law.losses
    top = float(exponent.max())
    weights = np.exp(exponent - top)
    total = float(weights.sum())
    weights, log_moment = weights / total, top + math.log(total)
    low, high, outside = _window(law, exponent - log_moment, weights, count)
    length = 1 << max(high - low, 1).bit_length()
    if length > _LONGEST:
        raise NotConverged(f"{count} releases need a transform of {length} numbers")
    # Numbers count from the first one on. Sums are exact modulo the length.
    transform = np.fft.rfft(np.bincount(np.arange(len(masses)) % length, weights, length))
    powered = _whole_power(transform, count)
    values = np.fft.irfft(powered, length)
    # |y^n - x^n| <= n |y - x| max(|x|, |y|)^(n - 1).
    each = FFT_ERROR * math.log2(length)
    largest = np.log(np.abs(transform) + each)
    off = count * each * np.exp((count - 1) * largest)
    off += (4 * count * UNIT + each) * np.abs(powered)
    # Each frequency but the first and the last one stands for two.
    error = 2 * float(off.sum()) / length * (1 + 1e-9)
    relative = UNIT * (64 + 8 * abs(top) + 8 * tilt * float(np.abs(law.losses).max()) + len(masses))
    values = np.roll(values, -((low - count * law.first) % length))
    return _Power(count * log_moment, low, values, error, outside, count * relative)


def _whole_power(base: ComplexArray, count: int) -> ComplexArray:
    """Return base^count by squaring. Its relative error is at most 4 ``UNIT`` count."""
    found = base
    for bit in bin(count)[3:]:
        found = found * found
        if bit == "1":
            found = found * base
    return found


def _window(law: RatioLaw, exponent: Array, weights: Array, count: int) -> tuple[int, int, float]:
    """Return the numbers between which the sum lies, and a bound of the mass elsewhere.

    Chernoff: P(sum >= e) <= exp(n log E e^{d L} - d e) for each d > 0, and likewise to the left.
    """
    losses = law.losses
    mean = float(weights @ losses)
    spread = math.sqrt(max(count * float(weights @ (losses - mean) ** 2), law.step**2))
    ends: list[float] = []
    for sign in (-1.0, 1.0):
        best = math.inf
        for d in (_EXPONENTS / spread).tolist():
            moved = exponent + sign * d * losses
            top = float(moved.max())
            log_moment = top + math.log(float(np.exp(moved - top).sum()))
            slack = 1e-9 * (1 + abs(log_moment))
            best = min(best, (count * (log_moment + slack) - _LOG_OUTSIDE) / d)
        ends.append(best)
    least, most = count * law.first, count * (law.first + len(weights) - 1)
    low = max(least, math.floor(-ends[0] / law.step) - 1)
    high = min(most, math.ceil(ends[1] / law.step) + 1)
    outside = 1.01 * math.exp(_LOG_OUTSIDE) * ((low > least) + (high < most))
    return low, max(high, low), outside
