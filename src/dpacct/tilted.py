"""The privacy loss of sampled Gaussian rounds under an exponential tilt: characteristic functions.

For a pair (P, Q) with loss L = log dP/dQ and a tilt c > 0 let P_c be P weighted by e^{c L}. Its
characteristic function phi(t) = E_P[e^{(c + i t) L}] / E_P[e^{c L}] is what the contour integral
of `inversion` needs. For the pairs of `dominating`, with a = 1 + c (remove) or
a = -c (add), P_c has the density phi_sigma r^a / I(a) in x, and L = +-log r(x).

Derivation of both bounds: docs/derivations/inversion.md.
"""

from __future__ import annotations

import math

import numpy as np

from dpacct.dominating import Direction
from dpacct.errors import NotConverged
from dpacct.rounding import UNIT, Array, ComplexArray
from dpacct.trapezoid_grid import Grid, log_ratio

_ACCURACY = 44.0
# Largest number of (frequency, node) pairs of one round.
MAX_CELLS = 15_000_000
_MAX_NODES = 400_000
_BLOCK_CELLS = 500_000
# How often the frequency is doubled in search of one at which the density's variation helps.
_DOUBLINGS = 40


class TiltedLosses:
    """Tilted losses of several distinct rounds.

    Args:
        rates: sampling rates in (0, 1), shape (m,).
        noise: noise std in units of the shift, shape (m,).
        counts: how often each round occurs, shape (m,).
        direction: remove or add.
        tilt: c > 0.
        frequency: the largest |t| that will be asked for.
    """

    def __init__(
        self,
        rates: Array,
        noise: Array,
        counts: Array,
        direction: Direction,
        tilt: float,
        frequency: float,
    ) -> None:
        remove = direction is Direction.REMOVE
        order = 1 + tilt if remove else -tilt
        a = np.full_like(rates, order)
        self._counts = counts
        accuracy = np.full_like(rates, _ACCURACY + math.log(float(counts.sum())))
        grid = Grid(a, rates, noise, accuracy, np.maximum(a, 0.0), frequency, _MAX_NODES)
        self._grid = grid
        quadratic, ratio, ratio_error = log_ratio(grid, rates, noise)
        exponent = order * ratio - quadratic
        drop = grid.spread(np.maximum.reduceat(exponent, grid.starts)) - exponent
        weights = np.exp(-drop)
        totals = grid.sum(weights)
        self._weights = weights / grid.spread(totals)
        self._losses = ratio if remove else -ratio
        self._loss_error = ratio_error
        self._weight_error = abs(order) * ratio_error + UNIT * (
            5 * np.abs(order * ratio) + 8 * quadratic + 2 * drop + 32
        )
        self._tails = 1.26 * noise / grid.step * grid.ends(weights) / totals
        self._set_decay(order, rates, noise)

    def _set_decay(self, order: float, rates: Array, noise: Array) -> None:
        """Density of L as seen from each node to the right, and the mass to its left."""
        grid, variance = self._grid, noise**2
        log_odds = grid.spread(np.log(rates) - np.log1p(-rates))
        exponent = (grid.x - 0.5) / grid.spread(variance)
        log_slope = -np.logaddexp(0.0, -(exponent + log_odds)) - grid.spread(np.log(variance))
        log_density = np.log(np.maximum(self._weights, 1e-320)) - log_slope
        log_density -= grid.spread(np.log(grid.step))
        # Between nodes the logarithm of a density rises above its larger end by at most step^2 / 8
        # of its curvature.
        bend = (1 + (abs(order) + 1) / (4 * variance)) / variance
        rise = grid.step**2 / 8 * bend + 1e-6
        maxima = np.where(order + 1 <= 4 * variance, 1.0, 2.0)
        self._left = np.empty_like(log_density)
        self._log_variation = np.empty_like(log_density)
        for row, (start, stop) in enumerate(self._slices()):
            part = slice(start, stop)
            highest = np.maximum.accumulate(log_density[part][::-1])[::-1]
            self._log_variation[part] = highest + rise[row] + math.log(2 * maxima[row])
            weights = self._weights[part]
            # A rise that large makes the bound void: left is then above one.
            between = np.maximum(weights[:-1], weights[1:]) * math.exp(min(rise[row], 700.0))
            between = between if rise[row] < 50.0 else np.ones_like(between)
            self._left[start] = 0.0
            self._left[start + 1 : stop] = np.cumsum(between)
            self._left[part] += 1e-12 + float(self._tails[row])

    def _slices(self) -> list[tuple[int, int]]:
        starts = self._grid.starts
        return [(int(s), int(s + n)) for s, n in zip(starts, self._grid.counts, strict=True)]

    def log_decay(self, frequencies: Array) -> Array:
        """Bounds of log of the product of all |phi(t')|^count, for every t' >= t.

        |phi(t)| <= mass left of x + variation right of x / t for each x, and
        1 - |phi(t)|^2 >= (1 - |phi(2 t)|^2) / 4.

        Args:
            frequencies: t > 0, shape (k,).
        Returns:
            Array (k,), at most 0.
        """
        total = np.zeros(len(frequencies))
        for row, (start, stop) in enumerate(self._slices()):
            # Every node gives a valid bound; some dozens are enough.
            some = slice(start, stop, 1 + (stop - start) // 64)
            bound = decay_of(frequencies, self._left[some], self._log_variation[some])
            total += self._counts[row] * bound
        return total

    def log_characteristic(self, frequencies: Array) -> tuple[ComplexArray, Array]:
        """log of the product of all phi(t)^count, and a bound of its absolute error.

        Args:
            frequencies: t >= 0, shape (k,).
        Returns:
            Complex array (k,), any branch of the logarithm that makes its exponential right, and
            an array (k,): infinite where the error may reach the value.
        """
        log_value = np.zeros(len(frequencies), dtype=np.complex128)
        error = np.zeros(len(frequencies))
        for row, (start, stop) in enumerate(self._slices()):
            if (stop - start) * len(frequencies) > MAX_CELLS:
                raise NotConverged("the contour needs too many nodes for this round")
            shift, shift_error = self._shift(row, slice(start, stop), frequencies)
            value, value_error = log_of_power(shift, shift_error, float(self._counts[row]))
            log_value += value
            error += value_error
        return log_value, error

    def _shift(self, row: int, part: slice, frequencies: Array) -> tuple[ComplexArray, Array]:
        """phi(t) - 1 of one round, without cancellation, and a bound of its absolute error."""
        weights, losses = self._weights[part], self._losses[part]
        # Each weight is divided by their sum, whose relative error is the mean of theirs.
        common = float(self._weight_error[part] @ weights) + UNIT * (2 * len(weights) + 64)
        relative = self._weight_error[part] + common
        phase_error = float((self._loss_error[part] + 8 * UNIT * np.abs(losses)) @ weights)
        shift, size = characteristic_shift(
            frequencies, losses, weights, weights, weights * relative
        )
        quadrature = self._grid.discretization[row] + self._tails[row]
        return shift, size + frequencies * phase_error + 2.5 * quadrature


def characteristic_shift(
    frequencies: Array, losses: Array, total: Array, balance: Array, error: Array
) -> tuple[ComplexArray, Array]:
    """Sums of e^{itl} - 1 over nodes, in blocks so that memory stays bounded.

    Args:
        frequencies: t, shape (k,).
        losses: l, shape (n,).
        total, balance: weights of the real part (cos - 1) and of the imaginary part (sin).
        error: weights of min(2, |t l|).
    Returns:
        sum of total (cos(tl) - 1) + i balance sin(tl), and sum of error min(2, |tl|); shape (k,).
    """
    shift = np.empty(len(frequencies), dtype=np.complex128)
    size = np.empty(len(frequencies))
    step = max(1, _BLOCK_CELLS // len(losses))
    for start in range(0, len(frequencies), step):
        block = slice(start, start + step)
        phase = frequencies[block, None] * losses[None, :]
        half = np.sin(phase / 2)
        shift[block] = -2 * (half * half) @ total + 1j * (np.sin(phase) @ balance)
        size[block] = np.minimum(2.0, np.abs(phase)) @ error
    return shift, size


def decay_of(frequencies: Array, left: Array, log_variation: Array) -> Array:
    """Bound of log |phi(t')| for every t' >= t, for one law.

    Args:
        frequencies: t > 0, shape (k,).
        left, log_variation: |phi(t)| <= left + e^log_variation / t for each entry, shape (n,).
    Returns:
        Array (k,), at most 0.
    """
    log_t = np.log(frequencies)[None, :] + math.log(2.0) * np.arange(_DOUBLINGS)[:, None]
    bound = np.ones_like(log_t)
    for mass, variation in zip(left, log_variation, strict=True):
        np.minimum(bound, mass + np.exp(np.minimum(variation - log_t, 1.0)), out=bound)
    discount = 0.25 ** np.arange(_DOUBLINGS)[:, None]
    deficit = np.max(discount * (1 - bound**2), axis=0)
    return 0.5 * np.log1p(-np.minimum(deficit, 1 - 1e-15))


def log_of_power(shift: ComplexArray, error: Array, count: float) -> tuple[ComplexArray, Array]:
    """log of (1 + shift)^count and a bound of its error, given that of ``shift``.

    The error is relative to the value returned. Where ``shift`` may be -1, that stands for
    anything of at most its modulus: relative error 2.
    """
    x = np.asarray(shift.real, dtype=np.float64)
    y = np.asarray(shift.imag, dtype=np.float64)
    modulus = np.hypot(1 + x, y)
    # numpy's complex log1p is accurate only next to 1 in absolute terms; this is relative to shift.
    size = np.hypot(x, y)
    near = size < 0.5
    log_modulus = 0.5 * np.log1p(np.where(near, x * (2 + x) + y * y, 0.0))
    log_modulus = np.where(near, log_modulus, np.log(np.maximum(modulus, 1e-300)))
    angle = np.arctan2(y, 1 + x)
    unsure = modulus <= 2 * error
    log_modulus = np.where(unsure, np.log(modulus + error + 1e-300), log_modulus)
    relative = (2 * error + 32 * UNIT * size) / np.maximum(modulus, 1e-300)
    bound = np.where(unsure, math.log(3.0), count * relative)
    log_value = count * log_modulus + 1j * count * np.where(unsure, 0.0, angle)
    return log_value, bound + 8 * UNIT * (np.abs(log_value) + 1)
