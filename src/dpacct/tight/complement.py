"""delta where epsilon lies below most losses: one minus what is left, by a contour left of zero.

On a line -1 < c < 0 the integral of `contour` has the other sign, and is that of
J(eps) = E[min(1, e^{eps - L})]:

    delta(eps) = M(0) - J(eps), J(eps) = (1 / 2 pi i) * integral of -M(s) e^{-s eps} / (s (s + 1)).

Right of zero the best line would be so near to it that aliases lie thousands of epsilons apart.
Here heavy tails do not matter, either: no moment is above the first one.

Derivation: docs/derivations/few-large-losses.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dpacct.budget import Interval
from dpacct.errors import NotConverged
from dpacct.numerics.fourier import MAX_FREQUENCIES
from dpacct.numerics.rounding import UNIT, Array, ComplexArray
from dpacct.numerics.search import bracket_root
from dpacct.tight.contour import LEAST_DELTA, Composed, Law, log_integrand, terms_error
from dpacct.tight.laws.decay import decay_table

# Aliases are about e^-32 of delta; of what is cut off the first that can be reached is taken.
_ALIAS, _TRUNCATIONS = 32.0, (26.0, 20.0, 16.0, 13.0)
_TABLE_LENGTH = 100
# The tilt is e^y / (1 + e^y) - 1, and found to this accuracy in y.
_TOLERANCE, _FARTHEST = 0.05, 30.0
_LARGEST = 690.0


class Complement:
    """The integrand left of zero, ready for any epsilon near the one that it was made for.

    Args:
        composition: what is composed; its mass may be less than one.
        epsilon, log_delta: about where delta will be asked for, and its logarithm there.
        most: how many nodes there may be.
    Raises:
        NotConverged: the integrand decays too slowly, or next to everything is left.
    """

    blur = 0.0

    def __init__(
        self,
        composition: Composed,
        epsilon: float,
        log_delta: float,
        most: int = MAX_FREQUENCIES,
    ) -> None:
        # The order is 1 + c: where that is rounded, c has to be what it stands for.
        self._tilt = c = (1 + _best_tilt(composition, epsilon)) - 1
        others = (np.array([0.0, c / 2, (c - 1) / 2, -1.0]) + 1) - 1
        moments = composition.log_moment(np.append(others, c))
        self._mass = (float(moments.lower[0]), float(moments.upper[0]))
        self._log_moment = (float(moments.lower[-1]), float(moments.upper[-1]))
        tops = zip(others.tolist(), moments.upper[:-1].tolist(), strict=True)
        self._others = [(float(other), float(top)) for other, top in tops]
        self._step = 2 * math.pi / self._distance(epsilon, log_delta)
        variance = composition.cumulants(c).variance
        laws = composition.laws(c, min(9.0 / math.sqrt(variance), most * self._step))
        log_scale = self._log_moment[0] - c * epsilon
        number = self._nodes(composition.precision, laws, log_delta - log_scale, most)
        self._t: Array = self._step * np.arange(float(number))
        laws = composition.laws(c, float(self._t[-1]))
        s = np.asarray(c + 1j * self._t, dtype=np.complex128)
        self._log_value, self._error = log_integrand(
            laws, composition.precision, composition.kinds, s, self._step
        )
        self._kernel: ComplexArray = -1 / (s * (1 + s))
        self._weights = np.full(number, self._step / math.pi)
        self._weights[0] /= 2

    def _distance(self, epsilon: float, log_delta: float) -> float:
        """How far apart aliases have to be on either side."""
        c = self._tilt
        needed = [
            (other > c, (top - other * epsilon - log_delta + _ALIAS) / abs(other - c))
            for other, top in self._others
        ]
        sides = [min(size for right, size in needed if right is side) for side in (True, False)]
        # Where next to nothing is left any distance will do.
        return max(*sides, 1.0)

    def _nodes(self, precision: float, laws: Sequence[Law], log_least: float, most: int) -> int:
        """The number of nodes; sets the truncation."""
        first = 4 * self._step
        table = decay_table(first, _TABLE_LENGTH)
        decay = -precision / 2 * table**2
        for law in laws:
            decay = decay + law.log_decay(first, _TABLE_LENGTH)
        number = np.ceil(table / self._step).astype(np.int64) + 1
        terms = decay - np.log(table / table[0])
        for accuracy in _TRUNCATIONS:
            enough = np.flatnonzero((terms <= log_least - accuracy) & (number <= most))
            if enough.size:
                at = int(enough[0])
                self._cut = 1.01 * math.exp(float(decay[at])) / (math.pi * float(table[at]))
                return int(number[at])
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
        rising = float((self._weights * self._t) @ sampled.imag) - c * total
        off = terms_error(self._log_value, self._error, self._t * epsilon, self._weights)
        with np.errstate(over="ignore", invalid="ignore"):
            slack = float(np.abs(self._kernel) @ off) + self._cut
        log_lower, log_upper = self._log_moment
        exponent = log_upper - c * epsilon
        if not (math.isfinite(total + slack) and exponent < _LARGEST):
            raise NotConverged("the contour sum is not finite")
        spread = 8 * UNIT * (abs(log_upper) + abs(c) * epsilon + 8)
        scale = math.exp(exponent) * (1 + spread)
        # Nothing is rounded up to what an exponential can still hold.
        small = log_lower - c * epsilon
        least = math.exp(small) * (1 - spread) if small > -_LARGEST else 0.0
        most_left = max(slack, total + slack) * scale + 1e-300
        least_left = max(0.0, total - slack) * least - self._aliases(epsilon)
        mass = [math.exp(self._mass[0]) * (1 - 4 * UNIT), math.exp(self._mass[1]) * (1 + 4 * UNIT)]
        lower = max(0.0, mass[0] - most_left - 2 * UNIT * mass[0])
        upper = min(mass[1] - max(0.0, least_left) + 2 * UNIT * mass[1] + LEAST_DELTA, 1.0)
        return Interval.bracket(lower, upper), -rising * scale / max(upper, 1e-300)

    def _aliases(self, epsilon: float) -> float:
        """Upper bound of the terms k != 0 of the sum, by J(e) <= M(c') e^{-c' e}."""
        c, turn = self._tilt, 2 * math.pi / self._step
        total = 0.0
        for side in (True, False):
            least = math.inf
            for other, top in self._others:
                if (other > c) is side:
                    gap = abs(other - c) * turn
                    exponent = top - other * epsilon - gap
                    least = min(least, math.exp(min(exponent, 700.0)) / -math.expm1(-gap))
            total += least
        return total * (1 + 1e-6)


def lies_below(composition: Composed, epsilon: float) -> bool:
    """Whether most losses are larger, as far as a search can tell."""
    return composition.cumulants(0.0).mean > epsilon


def _best_tilt(composition: Composed, epsilon: float) -> float:
    """Where the integrand is least on (-1, 0); a search."""

    def falling(y: float) -> float:
        c = -1 / (1 + math.exp(y))
        return epsilon - composition.cumulants(c).mean + 1 / c + 1 / (1 + c)

    low, high = bracket_root(falling, 0.0, (-_FARTHEST, _FARTHEST), _TOLERANCE)
    return -1 / (1 + math.exp((low + high) / 2))
