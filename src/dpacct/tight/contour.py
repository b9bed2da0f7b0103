"""delta(eps) by one integral along a vertical line of the complex plane.

    delta(eps) = (1 / 2 pi i) * integral over Re s = c of M(s) e^{-s eps} / (s (s + 1)) ds.

The trapezoid sum in t = Im s with step eta is the sum over k of
e^{2 pi c k / eta} delta(eps + 2 pi k / eta). All terms are non-negative, so the sum is an upper
bound. Minus bounds of the terms k != 0, it is a lower bound.

Where the loss is nearly an atom the integrand hardly decays. Then one more release is composed, a
Gaussian of loss variance v so small that it does not matter. It can only increase delta, by at most
v e^{v / 8} times the density of the loss at eps. The same contour gives that density.

In this order: the tilt c (the saddle point, nothing proven), `Contour`, its cheapest tilt,
`Complement`, a contour left of zero for epsilons below most losses, and `crossing`, from delta(eps)
to eps(delta).

Derivation and rounding: docs/derivations/inversion.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from dpacct.budget import Interval
from dpacct.errors import NotConverged
from dpacct.numerics.fourier import MAX_FREQUENCIES
from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, Array, ComplexArray
from dpacct.numerics.search import bracket_root
from dpacct.numerics.special import dot
from dpacct.tight.composition import Composed, Cumulants
from dpacct.tight.laws import Law, decay_table

Counts = NDArray[np.int64]

# Tolerance of log c, which stays within 14 of 0 or of where a Gaussian loss would have it.
_TOLERANCE, _RANGE = 1e-3, 14.0
# Parts of 1 of log c on a lattice, and the inverse deviations of the loss up to which it serves.
_PARTS, _NEAR = 24, 7.0
_STEPS = 60


def tilt_at_delta(composition: Composed, log_delta: float) -> tuple[float, Cumulants]:
    """Return the tilt with the least Chernoff bound of epsilon: c (K + k)' = K + k - log delta."""

    def excess(tilt: float, at: Cumulants) -> tuple[float, float]:
        slope = at.mean - math.log1p(1 / tilt)
        value = tilt * slope - at.log_moment - log_chernoff_factor(tilt) + log_delta
        return value, tilt * tilt * _bend(tilt, at)

    return _solve(composition, excess)


def tilt_at_epsilon(composition: Composed, epsilon: float) -> tuple[float, Cumulants]:
    """Return the tilt with the least Chernoff bound of delta: (K + k)' = eps."""

    def excess(tilt: float, at: Cumulants) -> tuple[float, float]:
        return at.mean - math.log1p(1 / tilt) - epsilon, tilt * _bend(tilt, at)

    return _solve(composition, excess)


def _bend(tilt: float, at: Cumulants) -> float:
    """Return (K + k)'' of the logarithm of the Chernoff bound, k = `log_chernoff_factor`."""
    return at.variance + 1 / (tilt * (1 + tilt))


def log_delta_estimate(tilt: float, at: Cumulants, epsilon: float) -> float:
    """Return log delta(eps) by the saddle-point approximation, which may be positive."""
    bend = at.variance + 1 / tilt**2 + 1 / (1 + tilt) ** 2
    log_kernel = -math.log(tilt) - math.log1p(tilt) - 0.5 * math.log(2 * math.pi * bend)
    return at.log_moment - tilt * epsilon + log_kernel


def epsilon_estimate(tilt: float, at: Cumulants, log_delta: float) -> float:
    """Return the epsilon at which the same approximation gives delta. It may be negative."""
    return (log_delta_estimate(tilt, at, 0.0) - log_delta) / tilt


def log_chernoff_factor(tilt: float) -> float:
    """Return log of c^c / (1 + c)^(1 + c). Times M(c) e^{-c eps} it bounds delta(eps), c > 0."""
    return -tilt * math.log1p(1 / tilt) - math.log1p(tilt)


def _solve(
    composition: Composed, excess: Callable[[float, Cumulants], tuple[float, float]]
) -> tuple[float, Cumulants]:
    """Return the root in log c of an increasing function: Newton's iteration in a bracket.

    Where K is smooth enough, tilts are of a lattice, whose cumulants are kept (`composition`), and
    the last step goes along its second-order expansion.
    """
    # For about a thousandth of probability, as if the loss were Gaussian.
    likely = math.log(3.5) - 0.5 * math.log(composition.cumulants(0.5).variance)
    low, high = min(0.0, likely) - _RANGE, max(0.0, likely) + _RANGE
    t = round(_PARTS * min(max(likely, low + 1), 3.0)) / _PARTS
    at, off = composition.cumulants(math.exp(t)), 0.0
    for _ in range(_STEPS):
        value, slope = excess(math.exp(t), at)
        low, high = (t, high) if value < 0 else (low, t)
        step = -value / slope if slope > 0 else math.inf
        step = math.copysign(min(abs(step), 2.0), -value)
        new = t + step
        if not low < new < high:
            new = (low + high) / 2
        elif is_near(math.exp(t), at):
            place = round(_PARTS * new) / _PARTS
            off = step if place == t else 0.0
            new = new if place in (low, high) and not off else place
        if abs(new - t) < _TOLERANCE:
            break
        try:
            at, t = composition.cumulants(math.exp(new)), new
        except NotConverged:
            # Too many nodes out there: the nearest tilt that can be had will do.
            high = new
    off = math.exp(t) * math.expm1(off)
    log_moment = at.log_moment + off * (at.mean + off * at.variance / 2)
    return math.exp(t) + off, Cumulants(log_moment, at.mean + off * at.variance, at.variance)


def is_near(tilt: float, at: Cumulants) -> bool:
    """Return True if M(c) e^{-c eps} is hardly larger a few percent away from a saddle point.

    Both are half the square of so many deviations if the loss is Gaussian. Far tails are not.
    """
    return max(tilt**2 * at.variance, 2 * (tilt * at.mean - at.log_moment)) < _NEAR**2


# Aliases and the truncated part of the contour are about e^-34 and e^-26 of the result.
_ALIAS, _TRUNCATION = 34.0, 26.0
# Tilts, in units of c, for the Chernoff bound of the aliases from the right.
CHERNOFF_TILTS = np.array([1.03, 1.1, 1.4, 2.0])
# Frequencies at which the decay of the integrand is bounded, from 4 steps on.
_TABLE_LENGTH = 100
# A contour with more nodes than this is blurred, where a blur leaves less than this share of them.
_UNBLURRED, _FEWER = 1500, 1.0
# A delta above zero is never reported as zero.
LEAST_DELTA = 1e-315
# Of a blur with a larger variance than this the lower bound says nothing.
_WIDEST_BLUR = 100.0


class Bounding:
    """Bounds of delta for every epsilon near the one that they were made for.

    Attributes:
        blur: zero where both bounds are as close as rounding allows.
        nodes: the number of terms of the sum, to which the time of each epsilon is proportional.
    """

    blur = 0.0
    nodes = 0

    def delta(self, epsilon: float) -> Interval:
        """Return a lower and an upper bound of delta at one epsilon >= 0."""
        return self.delta_and_slope(epsilon)[0]

    def delta_and_slope(self, epsilon: float) -> tuple[Interval, float]:
        """Return the same, and about the derivative of log delta, which is not proven."""
        raise NotImplementedError


class _Line(Bounding):
    """The integrand at the nodes s = c + i k step of a vertical line, relative to M(c) e^{-c eps}.

    A contour sets the tilt c, which is exact as 1 + c, and the step, and then calls `_evaluate`.
    """

    _tilt: float
    _step: float

    def _decay(self, precision: float, laws: Sequence[Law]) -> tuple[Array, Array, Counts]:
        """Return frequencies, bounds of log |M(s) / M(c)| beyond each, and the nodes up to it."""
        first = 4 * self._step
        table = decay_table(first, _TABLE_LENGTH)
        decay = -precision / 2 * table**2
        for law in laws:
            decay = decay + law.log_decay(first, _TABLE_LENGTH)
        return table, decay, np.ceil(table / self._step).astype(np.int64) + 1

    def _evaluate(
        self, laws: Sequence[Law], t: Array, precision: float, kinds: int, sign: float
    ) -> None:
        """Set log of M(s) / M(c) at the nodes, a bound of its error, and the kernel."""
        c, self._t, self.nodes = self._tilt, t, len(t)
        s = np.asarray(c + 1j * t, dtype=np.complex128)
        # The Gaussian's moment: c (1 + c) is left out of s (1 + s).
        log_value = np.asarray(precision / 2 * (1j * t * (1 + 2 * c) - t**2), dtype=np.complex128)
        # With a tilt below zero, |1 + c + s| may be less than the rounded terms.
        error = UNIT * (kinds + 8) * precision * t * (1 + abs(c) + np.abs(s))
        for law in laws:
            sampled, sampled_error = law.log_characteristic(self._step, len(t))
            log_value += sampled
            error += sampled_error
        self._log_value, self._error = log_value, error
        self._kernel: ComplexArray = sign / (s * (1 + s))
        self._weights = np.full(len(t), self._step / math.pi)
        self._weights[0] /= 2

    def _sums(self, epsilon: float) -> tuple[float, float, float]:
        """Return the trapezoid sum, minus its derivative, and the sum without the kernel."""
        value: ComplexArray = np.exp(self._log_value - 1j * (self._t * epsilon))
        sampled: ComplexArray = value * self._kernel
        total = dot(self._weights, sampled.real)
        falling = total * self._tilt - dot(self._weights * self._t, sampled.imag)
        return total, falling, dot(self._weights, value.real)

    def _rounding(self, epsilon: float) -> tuple[float, float]:
        """Return bounds of the errors of both sums, for this epsilon and smaller ones.

        |v| (e^error - 1) <= |v| error e^error. A large error is not clipped, and an infinite one is
        no bound: callers check the sum.
        """
        phase, size = self._t * epsilon, self._log_value.real
        error = self._error + 4 * UNIT * (phase + np.abs(self._log_value)) + 64 * UNIT
        with np.errstate(over="ignore", invalid="ignore"):
            off = error * np.exp(size + error) + 2 * UNIT * len(phase) * np.exp(size)
            off *= self._weights * (1 + 1e-9)
            return dot(np.abs(self._kernel), off), float(off.sum())


class Contour(_Line):
    """The integrand right of zero, ready for any epsilon.

    Args:
        composition: the composition to invert.
        tilt: c > 0, best near the saddle point of the requested epsilons.
        epsilon, log_delta: estimates of the requested epsilon, and of log delta there.
        width: largest share of the width of epsilon that a blur may add. 0 allows no blur.
        spread: estimate of the variance of the loss under that tilt, for the cost only.
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
    ) -> None:
        # Orders are 1 + c. Rounding them must not change c.
        tilts = (1 + tilt * np.concatenate([[1.0], CHERNOFF_TILTS])) - 1
        self._tilt = tilt = float(tilts[0])
        moment = composition.log_moment(tilt)
        self._log_moment = (float(moment.lower), float(moment.upper))
        self._chernoff = [
            (float(c), float(upper) + log_chernoff_factor(float(c)))
            for c, upper in zip(tilts[1:], composition.log_moment_above(tilts[1:]), strict=True)
        ]
        distance = alias_distance(tilt, epsilon, log_delta, self._chernoff)
        # Blurs are made to measure. Other plans may share what has no blur.
        self._step = 2 * math.pi / (distance if width else on_lattice(distance, 4, math.ceil))
        # The truncated part is relative to M(c) e^{-c eps}, which may be far above delta.
        log_scale = self._log_moment[0] - tilt * epsilon
        log_cut = min(0.0, log_delta - log_scale) - _TRUNCATION
        likely = 9.0 / math.sqrt(spread)
        likely = min(likely if width else on_lattice(likely, 2, math.ceil), _UNBLURRED * self._step)
        laws = composition.laws(tilt, likely)
        number = self._nodes(composition, laws, width / (1 + tilt), log_cut)
        t: Array = self._step * np.arange(float(number))
        if t[-1] > likely:
            laws = composition.laws(tilt, float(t[-1]))
        self._evaluate(laws, t, composition.precision + self.blur, composition.kinds, 1.0)
        self._horizon = -1.0

    def _nodes(
        self,
        composition: Composed,
        laws: Sequence[Law],
        blur: float,
        log_cut: float,
    ) -> int:
        """Return the number of nodes. Set the truncation, and the variance of the blur or 0."""
        table, decay, number = self._decay(composition.precision, laws)
        slope = np.log(table / table[0])
        while True:
            unblurred = _first_enough(decay - slope, number, log_cut)
            blurred = _first_enough(decay - blur / 2 * table**2 - slope, number, log_cut)
            most = number[blurred] if blur and blurred is not None else 0
            at, variance = unblurred, 0.0
            # Unblurred where that is cheap, or cheaper.
            if unblurred is None or number[unblurred] > max(_FEWER * most, _UNBLURRED):
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

    def delta_and_slope(self, epsilon: float) -> tuple[Interval, float]:
        """See `Bounding`."""
        c = self._tilt
        total, falling, density = self._sums(epsilon)
        if epsilon > self._horizon:
            self._horizon = 1.5 * epsilon
            slack, density_slack = self._rounding(self._horizon)
            self._slack = slack + self._cut, density_slack + self._density_cut
        slack, density_slack = self._slack
        density = density + density_slack if self.blur else 0.0
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

    def rounding_dominates(self, epsilon: float) -> bool:
        """Return True if rounding costs more than the blur, at an epsilon like those before."""
        slack, density_slack = self._slack
        return slack > self.blur * (self._sums(epsilon)[2] + density_slack)

    def _aliases(self, epsilon: float) -> float:
        """Return upper bound of the terms k != 0: for k < 0 delta <= 1, for k > 0 Chernoff."""
        c, turn = self._tilt, 2 * math.pi / self._step
        left = 1 / math.expm1(min(c * turn, 700.0))
        right = math.inf
        for tilt, log_upper in self._chernoff:
            gap = (tilt - c) * turn
            blurred = self.blur * tilt * (1 + tilt) / 2
            exponent = log_upper + blurred - tilt * epsilon - gap
            right = min(right, math.exp(min(exponent, 700.0)) / -math.expm1(-gap))
        return (left + right) * 1.01


def on_lattice(value: float, parts: int, rounded: Callable[[float], int] = round) -> float:
    """Return a power of 2^(1 / parts) near a value >= 0: plans share few tilts and steps."""
    return value and 2.0 ** (rounded(parts * math.log2(value)) / parts)


def _first_enough(log_terms: Array, number: Counts, log_cut: float) -> int | None:
    """Return the first frequency beyond which nothing matters, if it can be reached."""
    enough = np.flatnonzero((log_terms <= log_cut) & (number <= MAX_FREQUENCIES))
    return int(enough[0]) if enough.size else None


def alias_distance(
    tilt: float, epsilon: float, log_delta: float, chernoff: Sequence[tuple[float, float]]
) -> float:
    """Return the distance of aliases at which both neighbors hardly matter.

    Args:
        tilt: c.
        epsilon, log_delta: about where delta will be asked for, and its logarithm there.
        chernoff: tilts above c, and log of the Chernoff bound of delta(0) at each.
    """
    right = min((top - c * epsilon - log_delta + _ALIAS) / (c - tilt) for c, top in chernoff)
    return max((_ALIAS - log_delta) / tilt, right)


# Shares of the saddle point's tilt that are tried for a blurred contour.
_SHARES = (1.0, 0.85, 0.7, 0.55, 0.4)


def cheapest_tilt(composition: Composed, tilt: float, epsilon: float, log_delta: float) -> float:
    """Return a tilt, at most the given one, at which a contour has the fewest nodes.

    Next to a heavy tail the moments explode soon, and the aliases of a smaller tilt are nearer.
    """

    def nodes(factor: float) -> float:
        c = factor * tilt
        tops = [
            (b, composition.cumulants(b).log_moment + log_chernoff_factor(b))
            for b in (c * CHERNOFF_TILTS).tolist()
        ]
        # The blur's variance is a width divided by 1 + c.
        return alias_distance(c, epsilon, log_delta, tops) * math.sqrt(1 + c)

    return tilt * min(_SHARES, key=nodes)


# Aliases are about e^-32 of delta. The first truncation within reach is taken.
_LEFT_ALIAS, _TRUNCATIONS = 32.0, (26.0, 20.0, 16.0, 13.0)
# The tilt is e^y / (1 + e^y) - 1, and found to this accuracy in y.
_LEFT_TOLERANCE, _FARTHEST_TILT = 0.05, 30.0
_LARGEST = 690.0


class Complement(_Line):
    """The integrand left of zero, ready for any epsilon near the one that it was made for.

    Args:
        composition: the composition to invert.
        epsilon, log_delta: estimates of the requested epsilon, and of log delta there.
    Raises:
        NotConverged: the integrand decays too slowly, or next to everything is left.
    """

    def __init__(
        self,
        composition: Composed,
        epsilon: float,
        log_delta: float,
    ) -> None:
        # The order is 1 + c. Rounding it must not change c.
        self._tilt = c = (1 + _tilt_left_of_zero(composition, epsilon)) - 1
        others = (np.array([0.0, c / 2, (c - 1) / 2, -1.0]) + 1) - 1
        moments = composition.log_moment(np.append(others, c))
        self._mass = (float(moments.lower[0]), float(moments.upper[0]))
        self._log_moment = (float(moments.lower[-1]), float(moments.upper[-1]))
        tops = zip(others.tolist(), moments.upper[:-1].tolist(), strict=True)
        self._others = [(float(other), float(top)) for other, top in tops]
        self._step = 2 * math.pi / self._distance(epsilon, log_delta)
        variance = composition.cumulants(c).variance
        laws = composition.laws(c, min(9.0 / math.sqrt(variance), MAX_FREQUENCIES * self._step))
        log_scale = self._log_moment[0] - c * epsilon
        number = self._nodes(composition.precision, laws, log_delta - log_scale)
        t: Array = self._step * np.arange(float(number))
        laws = composition.laws(c, float(t[-1]))
        self._evaluate(laws, t, composition.precision, composition.kinds, -1.0)

    def _distance(self, epsilon: float, log_delta: float) -> float:
        """Return the required distance of aliases on either side."""
        c = self._tilt
        needed = [
            (other > c, (top - other * epsilon - log_delta + _LEFT_ALIAS) / abs(other - c))
            for other, top in self._others
        ]
        sides = [min(size for right, size in needed if right is side) for side in (True, False)]
        # Where next to nothing is left any distance will do.
        return max(*sides, 1.0)

    def _nodes(self, precision: float, laws: Sequence[Law], log_least: float) -> int:
        """Return the number of nodes, and set the truncation."""
        table, decay, number = self._decay(precision, laws)
        terms = decay - np.log(table / table[0])
        for accuracy in _TRUNCATIONS:
            enough = np.flatnonzero((terms <= log_least - accuracy) & (number <= MAX_FREQUENCIES))
            if enough.size:
                at = int(enough[0])
                self._cut = 1.01 * math.exp(float(decay[at])) / (math.pi * float(table[at]))
                return int(number[at])
        raise NotConverged("the contour integrand decays too slowly")

    def delta_and_slope(self, epsilon: float) -> tuple[Interval, float]:
        """See `Bounding`."""
        c = self._tilt
        total, falling, _ = self._sums(epsilon)
        slack = self._rounding(epsilon)[0] + self._cut
        log_lower, log_upper = self._log_moment
        exponent = log_upper - c * epsilon
        if not (math.isfinite(total + slack) and exponent < _LARGEST):
            raise NotConverged("the contour sum is not finite")
        spread = 8 * UNIT * (abs(log_upper) + abs(c) * epsilon + 8)
        scale = math.exp(exponent) * (1 + spread)
        # A lower bound too small for an exponential becomes 0, never the least positive number.
        small = log_lower - c * epsilon
        least = math.exp(small) * (1 - spread) if small > -_LARGEST else 0.0
        most_left = max(slack, total + slack) * scale + 1e-300
        least_left = max(0.0, total - slack) * least - self._aliases(epsilon)
        mass = [math.exp(self._mass[0]) * (1 - 4 * UNIT), math.exp(self._mass[1]) * (1 + 4 * UNIT)]
        lower = max(0.0, mass[0] - most_left - 2 * UNIT * mass[0])
        upper = min(mass[1] - max(0.0, least_left) + 2 * UNIT * mass[1] + LEAST_DELTA, 1.0)
        return Interval.bracket(lower, upper), falling * scale / max(upper, 1e-300)

    def _aliases(self, epsilon: float) -> float:
        """Return upper bound of the terms k != 0 of the sum, by J(e) <= M(c') e^{-c' e}."""
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
    """Return True if most losses are larger, as far as a search can tell."""
    return composition.cumulants(0.0).mean > epsilon


def _tilt_left_of_zero(composition: Composed, epsilon: float) -> float:
    """Search for the minimum of the integrand on (-1, 0)."""

    def falling(y: float) -> float:
        c = -1 / (1 + math.exp(y))
        return epsilon - composition.cumulants(c).mean + 1 / c + 1 / (1 + c)

    low, high = bracket_root(falling, 0.0, (-_FARTHEST_TILT, _FARTHEST_TILT), _LEFT_TOLERANCE)
    return -1 / (1 + math.exp((low + high) / 2))


_TINY = 1e-320
_NEWTON_STEPS, _FARTHEST_EPSILON = 30, 1e9


def crossing(contour: Bounding, guess: float, log_upper: float, log_lower: float) -> Interval:
    """Return epsilons >= 0 at which the bounds of delta cross e^log_upper and e^log_lower."""
    # Both logarithms may be off by their functions' errors: each end has that much to spare.
    spare = 4 * FUNCTION_ERROR * (1 - log_lower)

    def above(epsilon: float) -> tuple[float, float]:
        bracket, slope = contour.delta_and_slope(epsilon)
        if not slope < 0.0:
            raise NotConverged("delta does not fall on this contour")
        return math.log(max(bracket.upper, _TINY)) - log_upper + spare, slope

    def below(epsilon: float) -> float:
        return math.log(max(contour.delta(epsilon).lower, _TINY)) - log_lower - spare

    # Newton's iteration in epsilon. The steps that follow prove its result.
    tolerance = (1e-9 if contour.blur else 3e-11) * guess
    center, low, high = guess, 0.0, math.inf
    excess, slope = above(center)
    for _ in range(_NEWTON_STEPS):
        low, high = (center, high) if excess > 0 else (low, center)
        move = max(-excess / slope, -0.75 * center)
        if abs(move) <= tolerance:
            break
        center += min(move, 4 * center + 1.0)
        # Where delta falls in steps, a slope leads far away.
        center = center if low <= center <= high else (low + high) / 2
        excess, slope = above(center)
    upper, step = center + max(0.0, -excess / slope) + tolerance, tolerance
    # In this form, NaN proves nothing.
    while not above(upper)[0] <= 0:
        upper, step = upper + step, 2 * step
        if not upper < _FARTHEST_EPSILON:
            raise NotConverged("delta does not fall to its target on this contour")
    if upper <= 4 * tolerance and above(0.0)[0] <= 0:
        return Interval(0.0, 0.0)
    lower = min(center, upper) - 1.02 * max(0.0, below(center) / slope) - tolerance
    step = max(tolerance, 0.1 * (center - lower))
    while lower > 0 and not below(lower) >= 0:
        lower, step = lower - step, 2 * step
    return Interval(max(lower, 0.0), upper)
