"""The integrand of the inversion formula on one vertical line of the complex plane.

    delta(eps) = (1 / 2 pi i) * integral over Re s = c of M(s) e^{-s eps} / (s (s + 1)) ds.

The trapezoid sum in t = Im s with step eta is the sum over k of e^{2 pi c k / eta}
delta(eps + 2 pi k / eta), all terms non-negative: an upper bound, and minus bounds of the terms
k != 0 a lower bound.

Where the loss is nearly an atom the integrand hardly decays. Then one more release is composed, a
Gaussian of loss variance v so small that it does not matter: delta can only grow by it, and by at
most v e^{v / 8} times the density of the loss at eps, which the same contour gives.

Derivation and rounding: docs/derivations/inversion.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from dpacct.budget import Interval
from dpacct.errors import NotConverged
from dpacct.numerics.fourier import MAX_FREQUENCIES
from dpacct.numerics.rounding import UNIT, Array, Bounds, ComplexArray
from dpacct.tight.laws.cumulants import Tiltable
from dpacct.tight.laws.decay import decay_table
from dpacct.tight.saddle import log_chernoff_factor

# Aliases and the truncated part of the contour are about e^-34 and e^-26 of the result.
_ALIAS, _TRUNCATION = 34.0, 26.0
# Tilts, in units of c, for the Chernoff bound of the aliases from the right.
CHERNOFF_TILTS = np.array([1.03, 1.1, 1.4, 2.0])
# Frequencies at which the decay of the integrand is bounded, from 4 steps on.
_TABLE_LENGTH = 100
# A contour with more nodes than this is blurred, where a blur leaves less than this share of them.
_UNBLURRED, _FEWER = 1500, 1.0
# A delta above zero is never told as zero.
LEAST_DELTA = 1e-315
# Of a blur with a larger variance than this the lower bound says nothing.
_WIDEST_BLUR = 100.0


class Law(Protocol):
    """Tilted losses of some of the rounds."""

    def log_decay(self, first: float, number: int) -> Array:
        """Bounds of log of the product of all |phi(t')|^count, t' >= t, t in `decay_table`."""
        ...

    def log_characteristic(self, step: float, number: int) -> tuple[ComplexArray, Array]:
        """log of the product of all phi(t)^count at t = k step, and a bound of its error."""
        ...


class Composed(Tiltable, Protocol):
    """What a contour inverts: the moments of a product of laws and of one Gaussian."""

    @property
    def precision(self) -> float:
        """Variance of the Gaussian loss."""
        ...

    @property
    def kinds(self) -> int:
        """Number of distinct laws, for rounding."""
        ...

    def log_moment(self, tilt: float | Array) -> Bounds:
        """Bounds of log M(c), c > 0, shape () or (k,)."""
        ...

    def log_moment_above(self, tilts: Array) -> Array:
        """Upper bounds of log M(c), c > 0, that need not be close; shape (k,)."""
        ...

    def laws(self, tilt: float, frequency: float) -> Sequence[Law]:
        """The tilted laws, for frequencies up to the one given."""
        ...


class Contour:
    """The integrand of one composition, ready for any epsilon.

    Args:
        composition: what is composed.
        tilt: c > 0, best near the saddle point of the epsilons that will be asked for.
        epsilon, log_delta: about where delta will be asked for, and its logarithm there.
        width: what a blur may add to the width of epsilon; 0 for no blur at all.
        spread: about the variance of the loss under that tilt; influences the cost only.
        most: how many nodes it may have before it is blurred; by default 1500.
    Raises:
        NotConverged: the integrand decays too slowly for the largest contour.
    """

    def __init__(
        self,
        composition: Composed,
        tilt: float,
        epsilon: float,
        log_delta: float,
        width: float,
        spread: float = math.inf,
        most: int | None = None,
    ) -> None:
        # Orders are 1 + c: where that is rounded, c has to be what it stands for.
        tilts = (1 + tilt * np.concatenate([[1.0], CHERNOFF_TILTS])) - 1
        self._tilt = tilt = float(tilts[0])
        moment = composition.log_moment(tilt)
        self._log_moment = (float(moment.lower), float(moment.upper))
        self._chernoff = [
            (float(c), float(upper) + log_chernoff_factor(float(c)))
            for c, upper in zip(tilts[1:], composition.log_moment_above(tilts[1:]), strict=True)
        ]
        self._step = 2 * math.pi / alias_distance(tilt, epsilon, log_delta, self._chernoff)
        # What is cut off is relative to M(c) e^{-c eps}, which may be far above delta.
        log_scale = self._log_moment[0] - tilt * epsilon
        log_cut = min(0.0, log_delta - log_scale) - _TRUNCATION
        most = _UNBLURRED if most is None else most
        likely = min(9.0 / math.sqrt(spread), most * self._step)
        laws = composition.laws(tilt, likely)
        number = self._nodes(composition, laws, width / (1 + tilt), log_cut, most)
        self._t: Array = self._step * np.arange(float(number))
        last = float(self._t[-1])
        if last > likely:
            laws = composition.laws(tilt, last)

        precision = composition.precision + self.blur
        s = np.asarray(tilt + 1j * self._t, dtype=np.complex128)
        self._log_value, self._error = log_integrand(
            laws, precision, composition.kinds, s, self._step
        )
        self._horizon = -1.0
        self._kernel = 1 / (s * (1 + s))
        self._weights = np.full(number, self._step / math.pi)
        self._weights[0] /= 2

    def _nodes(
        self,
        composition: Composed,
        laws: Sequence[Law],
        blur: float,
        log_cut: float,
        cheap: int,
    ) -> int:
        """The number of nodes; sets the variance of the blur, or 0, and the truncation."""
        first = 4 * self._step
        table = decay_table(first, _TABLE_LENGTH)
        decay = -composition.precision / 2 * table**2
        for law in laws:
            decay = decay + law.log_decay(first, _TABLE_LENGTH)
        slope = np.log(table / table[0])
        number = np.ceil(table / self._step).astype(np.int64) + 1
        while True:
            found = _first_enough(decay - slope, number, log_cut)
            blurred = _first_enough(decay - blur / 2 * table**2 - slope, number, log_cut)
            most = number[blurred] if blur and blurred is not None else 0
            at, variance = found, 0.0
            # Unblurred where that is cheap, or cheaper.
            if found is None or number[found] > max(_FEWER * most, cheap):
                at, variance = blurred if most else None, blur
            if at is not None:
                bound = float(decay[at]) - variance / 2 * float(table[at]) ** 2
                last, rest = float(table[at]), math.exp(bound)
                # (1 / pi) * integral beyond of |M(c + i t)| / t^2, and without t^2.
                self._cut = 1.01 * rest / (math.pi * last)
                self._density_cut = 1.01 * rest / (math.pi * max(variance, 1e-300) * last)
                self.blur = variance
                return int(number[at])
            blur *= 2.0
            if not 0.0 < blur <= 1.0:
                raise NotConverged("the contour integrand decays too slowly")

    def delta(self, epsilon: float) -> Interval:
        """Lower and upper bound of delta at one epsilon >= 0."""
        return self.delta_and_slope(epsilon)[0]

    def delta_and_slope(self, epsilon: float) -> tuple[Interval, float]:
        """The same, and about the derivative of log delta; of that nothing is proven."""
        c = self._tilt
        value: ComplexArray = np.exp(self._log_value - 1j * (self._t * epsilon))
        sampled: ComplexArray = value * self._kernel
        total = float(self._weights @ sampled.real)
        falling = total * c - float((self._weights * self._t) @ sampled.imag)
        self._set_slack(epsilon)
        slack, density = self._slack, 0.0
        if self.blur:
            density = float(self._weights @ value.real) + self._density_slack
        self.rounding_dominates = slack > self.blur * density
        if not math.isfinite(total + slack + density):
            raise NotConverged("the contour sum is not finite")
        # The blur belongs to the composition: its moment e^{v c (1 + c) / 2} too.
        blurred = self.blur * c * (1 + c) / 2
        log_lower, log_upper = self._log_moment
        upper_exponent = log_upper + blurred - c * epsilon
        # Nothing is rounded down to zero: below e^-700 the upper bound is that of e^-700.
        upper_scale = math.exp(max(upper_exponent, -700.0)) if upper_exponent < 700.0 else math.inf
        lower_exponent = min(log_lower + blurred - c * epsilon, 700.0)
        lower_scale = math.exp(lower_exponent) if lower_exponent > -700.0 else 0.0
        spread = 8 * UNIT * (abs(log_upper) + blurred + c * epsilon + 8)
        upper = max(slack, total + slack) * upper_scale * (1 + spread) + LEAST_DELTA
        lower = max(0.0, total - slack) * lower_scale * (1 - spread) - self._aliases(epsilon)
        if self.blur > _WIDEST_BLUR:
            lower = 0.0
        elif self.blur:
            gap = self.blur * math.exp(self.blur / 8) * (1 + 1e-9)
            lower -= gap * max(0.0, density) * upper_scale * (1 + spread)
        slope = -falling / total if total > 0 and falling > 0 else -c
        return Interval(max(0.0, min(lower, 1.0)), min(1.0, upper)), slope

    def _set_slack(self, epsilon: float) -> None:
        """Bounds of what the sums are off by, for this epsilon and smaller ones."""
        if epsilon <= self._horizon:
            return
        self._horizon = 1.5 * epsilon
        phase = self._t * self._horizon
        off = terms_error(self._log_value, self._error, phase, self._weights)
        with np.errstate(over="ignore", invalid="ignore"):
            self._slack = float(np.abs(self._kernel) @ off) + self._cut
            self._density_slack = float(off.sum()) + self._density_cut

    def _aliases(self, epsilon: float) -> float:
        """Upper bound of the terms k != 0: for k < 0 delta <= 1, for k > 0 Chernoff."""
        c, turn = self._tilt, 2 * math.pi / self._step
        left = 1 / math.expm1(min(c * turn, 700.0))
        right = math.inf
        for tilt, log_upper in self._chernoff:
            gap = (tilt - c) * turn
            blurred = self.blur * tilt * (1 + tilt) / 2
            exponent = log_upper + blurred - tilt * epsilon - gap
            right = min(right, math.exp(min(exponent, 700.0)) / -math.expm1(-gap))
        return (left + right) * 1.01


def log_integrand(
    laws: Sequence[Law], precision: float, kinds: int, s: ComplexArray, step: float
) -> tuple[ComplexArray, Array]:
    """log of M(s) / M(c) at the nodes s = c + i k step, and a bound of its error.

    c (1 + c) is left out of s (1 + s) in the Gaussian's moment: the value is relative to M(c).
    """
    tilt, t = float(s[0].real), s.imag
    phase = 1j * t * (1 + 2 * tilt) - t**2
    log_value = np.asarray(precision / 2 * phase, dtype=np.complex128)
    # Beside a tilt below zero |1 + c + s| may be less than what is rounded.
    error = UNIT * (kinds + 8) * precision * t * (1 + abs(tilt) + np.abs(s))
    for law in laws:
        sampled, sampled_error = law.log_characteristic(step, len(t))
        log_value += sampled
        error += sampled_error
    return log_value, error


def terms_error(log_value: ComplexArray, error: Array, phase: Array, weights: Array) -> Array:
    """Bounds of what the terms of the sum are off by, but for their kernel.

    |v| (e^error - 1) <= |v| error e^error; a large error is not clipped, and what is not finite is
    no bound: whoever takes the sum looks.
    """
    error = error + 4 * UNIT * (phase + np.abs(log_value)) + 64 * UNIT
    with np.errstate(over="ignore", invalid="ignore"):
        off = error * np.exp(log_value.real + error)
        off += 2 * UNIT * len(phase) * np.exp(log_value.real)
        return off * (weights * (1 + 1e-9))


def _first_enough(log_terms: Array, number: NDArray[np.int64], log_cut: float) -> int | None:
    """The first frequency beyond which nothing matters, if there is one that can be reached."""
    enough = np.flatnonzero((log_terms <= log_cut) & (number <= MAX_FREQUENCIES))
    return int(enough[0]) if enough.size else None


def alias_distance(
    tilt: float, epsilon: float, log_delta: float, chernoff: Sequence[tuple[float, float]]
) -> float:
    """How far apart aliases have to be so that those to both sides hardly matter.

    Args:
        tilt: c.
        epsilon, log_delta: about where delta will be asked for, and its logarithm there.
        chernoff: tilts above c, and log of the Chernoff bound of delta(0) at each.
    """
    right = min((top - c * epsilon - log_delta + _ALIAS) / (c - tilt) for c, top in chernoff)
    return max((_ALIAS - log_delta) / tilt, right)
