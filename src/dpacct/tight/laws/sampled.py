"""The privacy loss of sampled Gaussian rounds under an exponential tilt: characteristic functions.

For a pair (P, Q) with loss L = log dP/dQ and a tilt c > 0 let P_c be P weighted by e^{c L}. Its
characteristic function phi(t) = E_P[e^{(c + i t) L}] / E_P[e^{c L}] is what the contour integral
of `inversion` needs. `tilted_nodes` has its density in x for each kind of pair.

Derivation of both bounds: docs/derivations/inversion.md.
"""

from __future__ import annotations

import math

import numpy as np

from dpacct.numerics.fourier import characteristic_shifts
from dpacct.numerics.powers import Rows
from dpacct.numerics.rounding import UNIT, Array, ComplexArray, positive_sum
from dpacct.tight.laws.decay import decay_table, log_decay, log_of_power
from dpacct.tight.laws.tilted_nodes import TiltedNodes

# Nodes of each row at which the decay is bounded, where there are many rows and where not.
_FEW, _MANY = 10, 64
# Off the line |p| grows at most by this, with what the sum of weights is off by; see `Nodes`.
_STRIP = 4000.0


class TiltedLosses:
    """Tilted losses of several distinct rounds.

    Args:
        nodes: where they are integrated; made for the largest |t| that will be asked for.
        noise: noise std in units of the shift, shape (m,).
        counts: how often each round occurs, shape (m,).
    """

    def __init__(self, nodes: TiltedNodes, noise: Array, counts: Array) -> None:
        self._nodes, self._counts, self._grid = nodes, counts, nodes.grid
        grid = self._grid
        drop = grid.spread(np.maximum.reduceat(nodes.exponent, grid.starts)) - nodes.exponent
        weights = np.exp(-drop)
        sums = [positive_sum(weights[start:stop]) for start, stop in self._slices()]
        totals = np.array([total for total, _ in sums])
        self._sum_error = [error for _, error in sums]
        self._weights = weights / grid.spread(totals)
        self._weight_error = nodes.exponent_error() + UNIT * (2 * drop + 32)
        self._tails = 1.26 * noise / grid.step * grid.ends(weights) / totals

    def _bounds_of_decay(self) -> tuple[Array, Array]:
        """At some nodes of each row: the mass to the left, and log of the variation to the right.

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
        # Every node gives a valid bound; some dozens are enough.
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

    def _slices(self) -> list[tuple[int, int]]:
        starts = self._grid.starts
        return [(int(s), int(s + n)) for s, n in zip(starts, self._grid.counts, strict=True)]

    def log_decay(self, first: float, number: int) -> Array:
        """Bounds of log of the product of all |phi(t')|^count, for every t' >= t.

        Args:
            first, number: t runs through `decay.decay_table`.
        Returns:
            Array (number,), at most 0.
        """
        left, log_variation = self._bounds_of_decay()
        found = log_decay(first, number, left, log_variation)
        times = decay_table(first, number) * (1 - 1e-9)
        found = np.minimum(found, self._nodes.log_shifted(times, self._mean_share()))
        return self._counts @ found

    def _mean_share(self) -> Array:
        """The mean of p under the law of each row, rounded down, at least 0."""
        shares, grid = self._nodes.shares(), self._grid
        mean = grid.sum(shares * self._weights * (1 - self._weight_error))
        common = self._common() + 2.5 * self._tails + grid.summation_error
        return np.maximum(mean * (1 - 1e-9) - common - _STRIP * grid.discretization, 0.0)

    def log_characteristic(self, step: float, number: int) -> tuple[ComplexArray, Array]:
        """log of the product of all phi(t)^count at t = k step, and a bound of its absolute error.

        Args:
            step: distance of the frequencies.
            number: how many, from 0 on; the largest is at most the one of the constructor.
        Returns:
            Complex array (number,), any branch of the logarithm that makes its exponential right,
            and an array (number,).
        Raises:
            NotConverged: too many frequencies.
        """
        quadrature = 2.5 * (self._grid.discretization + self._tails)
        error = self._weight_error + self._grid.spread(self._common())
        losses = self._nodes.loss
        phases = self._nodes.loss_error + 8 * UNIT * np.abs(losses)
        law = Rows(
            losses, self._weights, error * self._weights, self._grid.starts, self._grid.counts
        )
        phase_error = self._grid.sum(phases * self._weights) * (1 + 1e-9)
        log_value = np.zeros(number, dtype=np.complex128)
        total_error = np.zeros(number)
        frequencies = step * np.arange(float(number))
        for rows, shift, rounding in characteristic_shifts(step, number, law):
            size = rounding + frequencies * phase_error[rows, None] + quadrature[rows, None]
            value, value_error = log_of_power(shift, size, self._counts[rows, None])
            log_value += value.sum(axis=0)
            total_error += value_error.sum(axis=0)
        # Adding the rows up rounds once more for each.
        adding = UNIT * len(self._counts) * np.abs(log_value)
        return log_value, total_error * (1 + 1e-9) + adding

    def _common(self) -> Array:
        """Relative error of the sum by which each weight is divided: the mean of theirs."""
        mean = self._grid.sum(self._weight_error * self._weights)
        return mean * (1 + 1e-9) + np.array(self._sum_error) + 64 * UNIT
