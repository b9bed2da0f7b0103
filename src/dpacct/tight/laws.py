"""Losses of one kind of round under an exponential tilt: characteristic functions and their decay.

For a pair (P, Q) with loss L = log dP/dQ and a tilt c > 0 let P_c be P weighted by e^{cL}. Its
characteristic function is phi(t) = E_P[e^{(c + it) L}] / E_P[e^{cL}]. A contour integral needs phi
with a bound of its error, and a bound of |phi(t')| for all t' >= t. Four laws have both:

* `TiltedLosses`: sampled pairs on the whole line, several kinds in the same arrays,
* `GeneralLosses`: a pair of a mechanism, which knows both itself,
* `TruncatedLosses` and `SymmetrizedLosses` of `panel_laws`.

Decay: |phi(t)| <= left + variation / t, where ``left`` is the mass left of some point and
``variation`` that of the density right of it, and 1 - |phi(t)|^2 >= (1 - |phi(2 t)|^2) / 4. Where
the density is analytic the path of integration is moved off the line as well.

Derivation: docs/derivations/inversion.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from copy import copy
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpacct.numerics.fourier import Laws, characteristic_shifts
from dpacct.numerics.rounding import UNIT, Array, Bounds, ComplexArray, positive_sum
from dpacct.pairs.dominating import Direction, GeneralPair
from dpacct.pairs.trapezoid import Nodes, log_ratio, mirrored_farthest, mirrored_ratio

# Frequencies grow by the factor 2^(1/4), and are doubled this often.
_PER_DOUBLING, _DOUBLINGS = 4, 30
_BLOCK = 2_000_000


def decay_table(first: float, number: int) -> Array:
    """Return the frequencies at which decay is bounded: first 2^(k/4), shape (number,)."""
    return first * np.exp2(np.arange(float(number)) / _PER_DOUBLING)


def doubled_length(number: int) -> int:
    """Return the number of entries of `decay_table` that bounds at the first ``number`` need."""
    return number + _PER_DOUBLING * _DOUBLINGS


def log_decay(
    first: float, number: int, left: Array, log_variation: Array, known: Array | None = None
) -> Array:
    """Return bounds of log |phi(t')| for every t' >= t, for several laws.

    Args:
        first, number: t runs through `decay_table`.
        left, log_variation: |phi(t)| <= left + e^log_variation / t for each entry, shape (m, n).
        known: other bounds of |phi(t')|, t' >= t, of shape (m, doubled_length(number)).
    Returns:
        Array (m, number), at most 0.
    """
    length = doubled_length(number)
    # 1e-9 pays for the rounding of t.
    log_t = np.log(decay_table(first, length)) - 1e-9
    decay = np.empty((len(left), number))
    block = max(1, _BLOCK // (left.shape[1] * length))
    for start in range(0, len(left), block):
        rows = slice(start, start + block)
        wave = np.minimum(log_variation[rows, :, None] - log_t, 1.0)
        bound = np.minimum(1.0, np.min(left[rows, :, None] + np.exp(wave), axis=1))
        if known is not None:
            bound = np.minimum(bound, known[rows])
        deficit = 1 - bound**2
        best = deficit[:, :number].copy()
        for k in range(1, _DOUBLINGS + 1):
            shift = _PER_DOUBLING * k
            np.maximum(best, 0.25**k * deficit[:, shift : shift + number], out=best)
        decay[rows] = 0.5 * np.log1p(-np.minimum(best, 1 - 1e-15))
        # One minus a square loses tiny values.
        decay[rows] = np.minimum(decay[rows], np.log(bound[:, :number] + 1e-300))
    return decay


def log_of_power(
    shift: ComplexArray, error: Array, count: float | Array
) -> tuple[ComplexArray, Array]:
    """Return log of (1 + shift)^count, of any shape, with an error bound from that of ``shift``.

    The error is relative to the value returned. Where ``shift`` may be -1, that stands for
    anything of at most its modulus: relative error 2.
    """
    x = np.asarray(shift.real, dtype=np.float64)
    y = np.asarray(shift.imag, dtype=np.float64)
    modulus = np.hypot(1 + x, y)
    # numpy's complex log1p is accurate only in absolute terms next to 1. This error is relative.
    size = np.hypot(x, y)
    near = size < 0.5
    log_modulus = 0.5 * np.log1p(np.where(near, x * (2 + x) + y * y, 0.0))
    log_modulus = np.where(near, log_modulus, np.log(np.maximum(modulus, 1e-300)))
    angle = np.arctan2(y, 1 + x)
    unsure = modulus <= 2 * error
    log_modulus = np.where(unsure, np.log(modulus + error + 1e-300), log_modulus)
    relative = (2 * error + 32 * UNIT * size) / np.maximum(modulus, 1e-300)
    bound = np.where(unsure, math.log(3.0), count * relative)
    log_value = count * log_modulus + 1j * (count * np.where(unsure, 0.0, angle))
    return log_value, bound + 8 * UNIT * (np.abs(log_value) + 1)


# Angles, in units of about the best one, and the largest one.
_UNITS, _LARGEST_ANGLE = (0.7, 1.0, 1.6), 1.5


def log_shifted(times: Array, order: float, noise: Array, share: Array) -> Array:
    """Return bounds of log |phi(t')| for every t' >= t >= 0, of several laws on the whole line.

    Args:
        times: t, shape (n,).
        order: a, as for `PanelMasses`.
        noise: of the rounds, shape (m,).
        share: the mean of p = q e^u / r under each tilted law, rounded down, shape (m,).
    Returns:
        Array (m, n), at most 0.
    """
    variance, mean = noise[:, None] ** 2, share[:, None]
    usual = times * mean / variance
    usual = usual / (1 + times * usual)
    best = np.zeros(usual.shape)
    for unit in _UNITS:
        angle = np.minimum(unit * usual, _LARGEST_ANGLE)
        # arg r is at least p sin(angle), and |r|^a grows by at most e^(-2 a tan^2(angle / 2) p).
        turn = times * np.sin(angle) + 2 * min(order, 0.0) * np.tan(angle / 2) ** 2 * (1 + 1e-9)
        # e^{-turn p} lies below its chord over [0, 1].
        gain = mean * -np.expm1(-np.maximum(turn, 0.0)) * (1 - 1e-9)
        growth = variance * angle**2 * (0.5 + 1e-9)
        best = np.minimum(best, growth + np.log1p(-gain))
    return best


class Law:
    """Tilted losses of some of the rounds.

    Attributes:
        count: how often the law occurs, if it is that of one kind of round.
        log_moment: bounds of the logarithm of its moment, each time.
    """

    count = 1.0
    log_moment: Bounds

    def log_decay(self, first: float, number: int) -> Array:
        """Return bounds of log of the product of all |phi(t')|^count, for every t' >= t.

        ``first``, ``number``: t runs through `decay_table`. Shape (number,), at most 0.
        """
        raise NotImplementedError

    def log_characteristic(self, step: float, number: int) -> tuple[ComplexArray, Array]:
        """Return log of the product of all phi(t)^count at t = k step, and a bound of its error.

        The logarithm has any branch with the right exponential. Both arrays have shape (number,).
        The largest frequency is at most the one that the law was made for.

        Raises:
            NotConverged: too many frequencies.
        """
        raise NotImplementedError


class GeneralLosses(Law):
    """Tilted finite losses of a pair that is given by functions of its loss, ``count`` times."""

    def __init__(self, pair: GeneralPair, count: float, tilt: float) -> None:
        self._pair, self.count, self._tilt = pair, count, tilt
        moment = pair.log_moment(np.array([tilt]))
        self.log_moment = Bounds(moment.lower[0], moment.upper[0])

    def log_decay(self, first: float, number: int) -> Array:
        """See `Law`."""
        times = decay_table(first, number) * (1 - 1e-9)
        bound = np.minimum(self._pair.decay(self._tilt, times) * (1 + 1e-12), 1.0)
        return self.count * np.log(np.maximum(bound, 1e-300))

    def log_characteristic(self, step: float, number: int) -> tuple[ComplexArray, Array]:
        """See `Law`."""
        frequencies = step * np.arange(float(number))
        shift, error = self._pair.characteristic(self._tilt, frequencies)
        return log_of_power(shift, error, self.count)


class TiltedNodes:
    """Nodes in x of several kinds of rounds under a tilt, laid end to end, one entry per node.

    P weighted by e^{cL} has a density that is e^exponent up to a constant:

    * remove: L = log r(x), exponent (1 + c) log r(x) - x^2 / (2 sigma^2),
    * add: L = -log r(x), exponent -c log r(x) - x^2 / (2 sigma^2),
    * replacement: L = log r(x) - log r(-x), exponent c L + log r(x) - x^2 / (2 sigma^2).

    Args:
        rates, noise: of the rows, rates in (0, 1), shape (m,).
        direction: remove or add, None if a client is replaced.
        tilt: c > 0.
        accuracy: tails and discretization are about e^-accuracy.
        frequency: the largest |t| at which e^{itL} will be integrated.
        max_nodes: how many nodes there may be.
    Raises:
        NotConverged: more would be needed.
    """

    def __init__(
        self,
        rates: Array,
        noise: Array,
        direction: Direction | None,
        tilt: float,
        accuracy: float,
        frequency: float,
        max_nodes: int,
    ) -> None:
        self._rates, self._noise, self._replaced = rates, noise, direction is None
        self._order = order = -tilt if direction is Direction.ADD else 1 + tilt
        a, setting = np.full_like(rates, order), (frequency, max_nodes)
        accuracies = np.full_like(rates, accuracy)
        if direction is None:
            # The density of L falls from here on, too: its logarithm adds a slope of at most 1.
            farthest = mirrored_farthest(a, rates, noise) + 1
            self.grid = Nodes(a, rates, noise, accuracies, farthest, *setting, mirrored=1 - a)
            ratios = mirrored_ratio(self.grid, rates, noise)
            self._quadratic, ratio, self.loss_error, self._base, self._base_error = ratios
        else:
            farthest = np.maximum(a, 0.0)
            self.grid = Nodes(a, rates, noise, accuracies, farthest, *setting)
            self._quadratic, ratio, self.loss_error = log_ratio(self.grid, rates, noise)
            self._base = self._base_error = np.zeros_like(ratio)
        self.loss: Array = -ratio if direction is Direction.ADD else ratio
        self.exponent: Array = order * ratio + self._base - self._quadratic

    def exponent_error(self) -> Array:
        """Return a bound of the absolute error of ``exponent``."""
        sizes = 5 * np.abs(self._order * self.loss) + 3 * np.abs(self._base) + 8 * self._quadratic
        return abs(self._order) * self.loss_error + self._base_error + UNIT * sizes

    def log_slope(self) -> Array:
        """Return log of |dL/dx|: that of p(x) / sigma^2, or of (p(x) + p(-x)) / sigma^2."""
        log_p = _log_probability(self.grid, self._rates, self._noise, self.grid.x)
        if self._replaced:
            there = _log_probability(self.grid, self._rates, self._noise, -self.grid.x)
            log_p = np.logaddexp(log_p, there)
        return log_p - self.grid.spread(2 * np.log(self._noise))

    def bend(self) -> Array:
        """Return a bound of -(log h)'' in x, one entry per row. h is the density of L."""
        most = (abs(self._order) + 1) / 4
        if self._replaced:
            most = (self._order - 1) / 4 + 3.25
        return (1 + most / self._noise**2) / self._noise**2

    def maxima(self) -> Array:
        """Return the largest number of maxima of h right of any point, one entry per row."""
        usual = np.where(self._order + 1 <= 4 * self._noise**2, 1.0, 2.0)
        return np.full_like(usual, 5.0) if self._replaced else usual

    def shares(self) -> Array:
        """Return p, of which `log_shifted` takes the mean."""
        return np.exp(_log_probability(self.grid, self._rates, self._noise, self.grid.x))

    def log_shifted(self, times: Array, mean_share: Array) -> Array:
        """Return bounds of log |phi(t')| <= 0, t' >= t, by a path off the line, of shape (m, n).

        There is no such bound if a client is replaced. ``mean_share``: the mean of the nodes'
        ``shares``, rounded down, one entry per row.
        """
        if self._replaced:
            return np.zeros((len(mean_share), len(times)))
        return log_shifted(times, self._order, self._noise, mean_share)


def _log_probability(grid: Nodes, rates: Array, noise: Array, x: Array) -> Array:
    """Return log p(x), p = q e^u / r."""
    log_odds = grid.spread(np.log(rates) - np.log1p(-rates))
    return -np.logaddexp(0.0, -((x - 0.5) / grid.spread(noise**2) + log_odds))


# Nodes of each row at which the decay is bounded, where there are many rows and where not.
_FEW, _MANY = 10, 64
# Bound of the growth of |p| off the line, including the error of the sum of weights. See `Nodes`.
_STRIP = 4000.0
# What this number of kinds of rounds has at a tilt is kept, of up to so many frequencies.
FEW, _MOST_KEPT = 4, 4096


class TiltedLosses(Law):
    """Tilted losses of several distinct rounds.

    Args:
        nodes: nodes of the integrals, made for the largest requested |t|.
        noise: noise std in units of the shift, shape (m,).
        counts: how often each round occurs, shape (m,).
    """

    def __init__(self, nodes: TiltedNodes, noise: Array, counts: Array) -> None:
        self._nodes, self.counts, self._grid = nodes, counts, nodes.grid
        self._known: dict[tuple[object, ...], Any] = {}
        grid = self._grid
        drop = grid.spread(np.maximum.reduceat(nodes.exponent, grid.starts)) - nodes.exponent
        weights = np.exp(-drop)
        sums = [positive_sum(part) for part in np.split(weights, grid.starts[1:])]
        totals = np.array([total for total, _ in sums])
        self._sum_error = [error for _, error in sums]
        self._weights = weights / grid.spread(totals)
        self._weight_error = nodes.exponent_error() + UNIT * (2 * drop + 32)
        self._tails = 1.26 * noise / grid.step * grid.ends(weights) / totals

    def times(self, counts: Array) -> TiltedLosses:
        """Return the same kinds of rounds, each so often. What does not depend on it is shared."""
        other = copy(self)
        other.counts = counts
        return other

    def _kept(self, of: Callable[[float, int], Any], step: float, number: int) -> Any:
        """Return a value of a step and a number, kept if it takes little memory."""
        if len(self.counts) > FEW or number > _MOST_KEPT:
            return of(step, number)
        key = (of.__name__, step, number)
        if key not in self._known:
            self._known[key] = of(step, number)
        return self._known[key]

    def _bounds_of_decay(self) -> tuple[Array, Array]:
        """Return at some nodes of each row the mass to the left, and log variation to the right.

        Returns:
            Two arrays of shape (m, n).
        """
        grid = self._grid
        common = self._common()
        log_density = np.log(np.maximum(self._weights, 1e-320)) - self._nodes.log_slope()
        log_density += self._weight_error + grid.spread(common)
        log_density -= grid.spread(np.log(grid.step))
        # Between nodes the logarithm of a density rises above its larger end by at most step^2 / 8
        # of its curvature.
        rise = grid.step**2 / 8 * self._nodes.bend() + 1e-6
        maxima = self._nodes.maxima()
        # Every node gives a valid bound. Some dozens are enough.
        some = _MANY if len(grid.counts) <= 8 else _FEW
        last = grid.counts[:, None] - 1
        column = np.arange(int(last.max()) + 1)
        index = grid.starts[:, None] + np.minimum(column, last)
        density, weights = log_density[index], self._weights[index]
        highest = np.maximum.accumulate(density[:, ::-1], axis=1)[:, ::-1]
        # A rise that large makes the bound void: left is then above one.
        growth = np.where(rise < 50.0, np.exp(np.minimum(rise, 50.0)), math.inf)
        between = np.maximum(weights[:, :-1], weights[:, 1:]) + 1e-300
        mass = np.cumsum(between, axis=1) * growth[:, None]
        mass = np.concatenate([np.zeros((len(grid.counts), 1)), mass], axis=1)
        chosen = (np.linspace(0.0, 1.0, some) * last).astype(np.int64)
        left = np.take_along_axis(mass, chosen, axis=1) + 1e-12
        left += (self._tails + 2 * common)[:, None]
        log_variation = np.take_along_axis(highest, chosen, axis=1)
        return left, log_variation + (rise + np.log(2 * maxima))[:, None]

    def log_decay(self, first: float, number: int) -> Array:
        """See `Law`."""
        return np.einsum("m,mt", self.counts, self._kept(self._decay, first, number))

    def _decay(self, first: float, number: int) -> Array:
        """Return the same of each row alone, of shape (m, number)."""
        left, log_variation = self._bounds_of_decay()
        decay = log_decay(first, number, left, log_variation)
        times = decay_table(first, number) * (1 - 1e-9)
        return np.minimum(decay, self._nodes.log_shifted(times, self._mean_share()))

    def _mean_share(self) -> Array:
        """Return the mean of p under the law of each row, rounded down, at least 0."""
        shares, grid = self._nodes.shares(), self._grid
        mean = grid.sum(shares * self._weights * (1 - self._weight_error))
        common = self._common() + 2.5 * self._tails + grid.summation_error
        return np.maximum(mean * (1 - 1e-9) - common - _STRIP * grid.discretization, 0.0)

    def log_characteristic(self, step: float, number: int) -> tuple[ComplexArray, Array]:
        """See `Law`."""
        log_value = np.zeros(number, dtype=np.complex128)
        total_error = np.zeros(number)
        for rows, shift, size in self._kept(self._shifts, step, number):
            value, value_error = log_of_power(shift, size, self.counts[rows, None])
            log_value += value.sum(axis=0)
            total_error += value_error.sum(axis=0)
        # Adding the rows up rounds once more for each.
        adding = UNIT * len(self.counts) * np.abs(log_value)
        return log_value, total_error * (1 + 1e-9) + adding

    def _shifts(
        self, step: float, number: int
    ) -> Iterable[tuple[NDArray[np.int64], ComplexArray, Array]]:
        """Return rows (b,), their phi(t) - 1 and bounds of its error (b, number), in parts."""
        quadrature = 2.5 * (self._grid.discretization + self._tails)
        error = self._weight_error + self._grid.spread(self._common())
        losses = self._nodes.loss
        phases = self._nodes.loss_error + 8 * UNIT * np.abs(losses)
        law = Laws(
            losses, self._weights, error * self._weights, self._grid.starts, self._grid.counts
        )
        phase_error = self._grid.sum(phases * self._weights) * (1 + 1e-9)
        frequencies = step * np.arange(float(number))
        parts = (
            (rows, shift, rounding + frequencies * phase_error[rows, None] + quadrature[rows, None])
            for rows, shift, rounding in characteristic_shifts(step, number, law)
        )
        # Of many kinds one part at a time.
        return [*parts] if len(self.counts) <= FEW else parts

    def _common(self) -> Array:
        """Return relative error of the sum by which each weight is divided: the mean of theirs."""
        mean = self._grid.sum(self._weight_error * self._weights)
        return mean * (1 + 1e-9) + np.array(self._sum_error) + 64 * UNIT
