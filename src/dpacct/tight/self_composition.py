"""Epochs that run many times, by powers of Fourier transforms on one grid of losses.

The law of a sum of whole numbers is the product of their transforms, and of n equal ones a power.
Epochs with different noises are brought to a common grid first. Masses are tilted by e^{c L}, so
that small deltas keep their digits. The errors of the transforms are charged, and so is what lies
outside the window of numbers (Chernoff's inequality).

Derivation: docs/derivations/epochs.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
# Steps of a common grid in the standard deviation of an average loss, and most points of a law.
_FINENESS, _POINTS = 200, 2**20
# Events of the lower bound begin this many numbers from eps / h.
_CANDIDATES = 12
_TOLERANCE, _LARGEST = 1e-9, 690.0


def repeated_epsilon(composition: Composition, delta: float) -> Interval:
    """Return eps(delta) of a composition of pairs that have a `RatioLaw`.

    Of lower laws the upper end is infinite.

    Raises:
        NotConverged: the transform would be too long.
    """
    log_delta = math.log(delta)
    tilt, at = tilt_at_delta(composition, log_delta)
    repeated = Repeated(_on_one_grid(_laws(composition)), tilt)
    guess = epsilon_estimate(tilt, at, log_delta)
    lower = _crossing(lambda epsilon: repeated.delta(epsilon).lower > delta, guess)[0]
    if not repeated.proven or repeated.lost >= delta:
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
    """Return delta(eps) in the same way. Of lower laws the upper end is that of their covers."""
    laws = _laws(composition)
    tilt, _ = tilt_at_epsilon(composition, epsilon)
    bracket = Repeated(_on_one_grid(laws), tilt).delta(epsilon)
    covers = [(law.cover, count) for law, count in laws if law.cover is not None]
    if len(covers) < len(laws):
        return bracket
    return Interval.bracket(
        bracket.lower, Repeated(_on_one_grid(covers), tilt).delta(epsilon).upper
    )


def _laws(composition: Composition) -> list[tuple[RatioLaw, int]]:
    return [(p.law, count) for p, count in composition.general if isinstance(p, RatioPair)]


def _on_one_grid(laws: list[tuple[RatioLaw, int]]) -> list[tuple[RatioLaw, int]]:
    """Return the laws on grids of the same step. What a grid adds to a sum is of second order."""
    if len({law.step for law, _ in laws}) == 1:
        return laws
    total = sum(count * law.variance for law, count in laws)
    average = math.sqrt(total / sum(count for _, count in laws))
    widest = max(law.step * len(law.p) for law, _ in laws)
    step = max(average / _FINENESS, widest / _POINTS)
    return [(law.on_grid(step), count) for law, count in laws]


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
    """Bounds of delta of repeated releases, for every epsilon near those of a tilt.

    Args:
        laws: laws with one step, all upper or all lower ones, and how often each of them runs.
        tilt: c > 0, best at the saddle point of the requested epsilons.
    Attributes:
        proven: True if both ends of delta are bounds, False if only the lower end is one.
        lost: the probability of losses that are beyond all bounds, rounded up.
    Raises:
        NotConverged: the transform would be too long.
    """

    def __init__(self, laws: Sequence[tuple[RatioLaw, int]], tilt: float) -> None:
        self._tilt, self._step = tilt, laws[0][0].step
        self.proven = all(law.proven for law, _ in laws)
        self.lost = sum(n * law.lost_p for law, n in laws) * (1 + (8 + 2 * len(laws)) * UNIT)
        self._loss_error = sum(n * law.loss_error for law, n in laws) * (1 + 1e-9)
        self._mass_error = sum(n * law.mass_error for law, n in laws) * 1.01
        self._p = _power([(law, law.p, n) for law, n in laws], tilt)
        self._q = None
        if not self.proven:
            self._q = _power([(law, law.q, n) for law, n in laws], tilt + 1)

    def delta(self, epsilon: float) -> Interval:
        """Return bounds of delta at one epsilon >= 0. Of a lower law, the upper end is 1."""
        if self._q is not None:
            return Interval(self._lower(epsilon, self._q), 1.0)
        moved = self._loss_error + 8 * UNIT * (1 + epsilon)
        lower = self._sum(epsilon + moved, -1.0)
        upper = self._sum(epsilon - moved, 1.0) + self.lost
        return Interval(min(1.0, lower), min(1.0, upper))

    def _sum(self, epsilon: float, side: float) -> float:
        """Return the sum of P(1 - e^{eps - L})_+ with all errors added or taken away."""
        step, c, p = self._step, self._tilt, self._p
        start = max(0, math.floor(epsilon / step) - p.start)
        stop = start + math.ceil(-_LOG_KERNEL / (c * step)) + 2
        values = p.values[start:stop]
        above = step * (p.start + start + np.arange(float(len(values)))) - epsilon
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
        p, c, step = self._p, self._tilt, self._step
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
        most = float(np.max((scales[0] * reached - scales[1] * paid)[near]))
        return min(1.0, max(0.0, most * (1 - 8 * UNIT)))

    def _relative(self, part: _Power) -> float:
        return math.expm1(min(self._mass_error + part.relative, 1.0))


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


def _power(parts: Sequence[tuple[RatioLaw, Array, int]], tilt: float) -> _Power:
    """Return the law of the sum of independent numbers with these masses, each so many times."""
    tilted = [_Tilted.of(law, masses, tilt, count) for law, masses, count in parts]
    low, high, outside = _window(tilted)
    length = 1 << max(high - low, 1).bit_length()
    if length > _LONGEST:
        releases = sum(part.times for part in tilted)
        raise NotConverged(f"{releases} releases need a transform of {length} numbers")
    each = FFT_ERROR * math.log2(length)
    powered = np.ones(length // 2 + 1, dtype=np.complex128)
    log_largest, worst = np.zeros(len(powered)), np.zeros(len(powered))
    for part in tilted:
        # Numbers count from the first one on. Sums are exact modulo the length.
        places = np.arange(len(part.weights)) % length
        transform = np.fft.rfft(np.bincount(places, part.weights, length))
        powered = powered * _whole_power(transform, part.times)
        # |y^n - x^n| <= n |y - x| max(|x|, |y|)^(n - 1), and so for each factor of a product.
        largest = np.log(np.abs(transform) + each)
        log_largest += part.times * largest
        worst += part.times * each * np.exp(-largest)
    values = np.fft.irfft(powered, length)
    off = np.exp(np.log(worst) + log_largest)
    rounds = sum(part.times for part in tilted) + 2 * len(tilted)
    off += (4 * rounds * UNIT + each) * np.abs(powered)
    # Each frequency but the first and the last one stands for two.
    error = 2 * float(off.sum()) / length * (1 + 1e-9)
    first = sum(part.times * part.law.first for part in tilted)
    return _Power(
        log_scale=sum(part.times * part.log_moment for part in tilted),
        start=low,
        values=np.roll(values, -((low - first) % length)),
        error=error,
        outside=outside,
        relative=sum(part.times * part.relative for part in tilted),
    )


class _Tilted(NamedTuple):
    """One law under the tilt: masses of total 1, their logarithms, and the error of each mass."""

    law: RatioLaw
    times: int
    weights: Array
    log_weights: Array
    log_moment: float
    relative: float

    @classmethod
    def of(cls, law: RatioLaw, masses: Array, tilt: float, count: int) -> _Tilted:
        with np.errstate(divide="ignore"):
            exponent = np.log(masses) + tilt * law.losses
        top = float(exponent.max())
        weights = np.exp(exponent - top)
        total = float(weights.sum())
        farthest = float(np.abs(law.losses).max())
        relative = UNIT * (64 + 8 * abs(top) + 8 * tilt * farthest + len(masses))
        log_moment = top + math.log(total)
        return cls(law, count, weights / total, exponent - log_moment, log_moment, relative)


def _whole_power(base: ComplexArray, count: int) -> ComplexArray:
    """Return base^count by squaring. Its relative error is at most 4 ``UNIT`` count."""
    power = base
    for bit in bin(count)[3:]:
        power = power * power
        if bit == "1":
            power = power * base
    return power


def _window(parts: Sequence[_Tilted]) -> tuple[int, int, float]:
    """Return the numbers between which the sum lies, and a bound of the mass elsewhere.

    Chernoff: P(sum >= e) <= exp(sum of n log E e^{d L} - d e) for each d > 0, and likewise to the
    left.
    """
    step, variance = parts[0].law.step, 0.0
    for part in parts:
        mean = float(part.weights @ part.law.losses)
        variance += part.times * float(part.weights @ (part.law.losses - mean) ** 2)
    spread = math.sqrt(max(variance, step**2))
    ends: list[float] = []
    for sign in (-1.0, 1.0):
        best = math.inf
        for d in (_EXPONENTS / spread).tolist():
            total = 0.0
            for part in parts:
                moved = part.log_weights + sign * d * part.law.losses
                top = float(moved.max())
                log_moment = top + math.log(float(np.exp(moved - top).sum()))
                total += part.times * (log_moment + 1e-9 * (1 + abs(log_moment)))
            best = min(best, (total - _LOG_OUTSIDE) / d)
        ends.append(best)
    least = sum(part.times * part.law.first for part in parts)
    most = least + sum(part.times * (len(part.weights) - 1) for part in parts)
    low = max(least, math.floor(-ends[0] / step) - 1)
    high = min(most, math.ceil(ends[1] / step) + 1)
    outside = 1.01 * math.exp(_LOG_OUTSIDE) * ((low > least) + (high < most))
    return low, max(high, low), outside
