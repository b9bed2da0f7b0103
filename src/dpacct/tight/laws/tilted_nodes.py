"""Nodes in x of rounds under an exponential tilt, for each kind of pair of `dominating`.

P weighted by e^{cL} has a density in x that is e^exponent up to a constant, and the loss L is a
monotone function of x. What `sampled` and `cumulants` need to know of a pair is here:

* remove: L = log r(x), exponent (1 + c) log r(x) - x^2 / (2 sigma^2),
* add: L = -log r(x), exponent -c log r(x) - x^2 / (2 sigma^2),
* replacement: L = log r(x) - log r(-x), exponent c L + log r(x) - x^2 / (2 sigma^2).

Derivation: docs/derivations/inversion.md.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from dpacct.numerics.rounding import UNIT, Array
from dpacct.pairs.dominating import Direction
from dpacct.pairs.nodes import Nodes, log_ratio, mirrored_farthest, mirrored_ratio
from dpacct.tight.laws.shifted import log_shifted


class TiltedNodes(Protocol):
    """Several rows of nodes, laid end to end; arrays have one entry per node."""

    grid: Nodes
    loss: Array
    loss_error: Array
    exponent: Array

    def exponent_error(self) -> Array:
        """A bound of the absolute error of ``exponent``."""
        ...

    def log_slope(self) -> Array:
        """log of |dL/dx|."""
        ...

    def bend(self) -> Array:
        """What -(log h)'' is at most, in x, h the density of L; one entry per row."""
        ...

    def maxima(self) -> Array:
        """How many maxima h has at most, right of any point; one entry per row."""
        ...

    def log_shifted(self, times: Array, mean_share: Array) -> Array:
        """Bounds of log |phi(t')|, t' >= t, by a path off the line; shape (m, n), at most 0.

        ``mean_share``: of the nodes' ``shares``, rounded down; one entry per row.
        """
        ...

    def shares(self) -> Array:
        """What `log_shifted` takes the mean of, in [0, 1]."""
        ...


class SampledNodes:
    """See `TiltedNodes`: sampled Gaussian pairs of one direction.

    Args:
        rates, noise: of the rows, rates in (0, 1), shape (m,).
        direction: remove or add.
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
        direction: Direction,
        tilt: float,
        accuracy: float,
        frequency: float,
        max_nodes: int,
    ) -> None:
        remove = direction is Direction.REMOVE
        self._order = order = 1 + tilt if remove else -tilt
        self._rates, self._noise = rates, noise
        a = np.full_like(rates, order)
        accuracies = np.full_like(rates, accuracy)
        farthest = np.maximum(a, 0.0)
        self.grid = Nodes(a, rates, noise, accuracies, farthest, frequency, max_nodes)
        self._quadratic, ratio, self.loss_error = log_ratio(self.grid, rates, noise)
        self.loss = ratio if remove else -ratio
        self.exponent = order * ratio - self._quadratic

    def exponent_error(self) -> Array:
        """See `TiltedNodes`."""
        sizes = 5 * np.abs(self._order * self.loss) + 8 * self._quadratic
        return abs(self._order) * self.loss_error + UNIT * sizes

    def log_slope(self) -> Array:
        """See `TiltedNodes`: p / sigma^2."""
        log_p = _log_probability(self.grid, self._rates, self._noise, self.grid.x)
        return log_p - self.grid.spread(2 * np.log(self._noise))

    def bend(self) -> Array:
        """See `TiltedNodes`."""
        variance = self._noise**2
        return (1 + (abs(self._order) + 1) / (4 * variance)) / variance

    def maxima(self) -> Array:
        """See `TiltedNodes`."""
        return np.where(self._order + 1 <= 4 * self._noise**2, 1.0, 2.0)

    def shares(self) -> Array:
        """See `TiltedNodes`: p."""
        return np.exp(_log_probability(self.grid, self._rates, self._noise, self.grid.x))

    def log_shifted(self, times: Array, mean_share: Array) -> Array:
        """See `TiltedNodes`."""
        return log_shifted(times, self._order, self._noise, mean_share)


class ReplacementNodes:
    """See `TiltedNodes`: pairs of a replaced client; arguments as for `SampledNodes`."""

    def __init__(
        self,
        rates: Array,
        noise: Array,
        tilt: float,
        accuracy: float,
        frequency: float,
        max_nodes: int,
    ) -> None:
        self._rates, self._noise, self._tilt = rates, noise, tilt
        a = np.full_like(rates, 1 + tilt)
        # The density of L falls from here on, too: its logarithm adds a slope of at most 1.
        farthest = mirrored_farthest(a, rates, noise) + 1
        accuracies = np.full_like(rates, accuracy)
        self.grid = Nodes(
            a, rates, noise, accuracies, farthest, frequency, max_nodes, mirrored=1 - a
        )
        found = mirrored_ratio(self.grid, rates, noise)
        self._quadratic, self.loss, self.loss_error, self._below, self._below_error = found
        self.exponent = (1 + tilt) * self.loss + self._below - self._quadratic

    def exponent_error(self) -> Array:
        """See `TiltedNodes`."""
        order = 1 + self._tilt
        sizes = 5 * order * np.abs(self.loss) + 3 * np.abs(self._below) + 8 * self._quadratic
        return order * self.loss_error + self._below_error + UNIT * sizes

    def log_slope(self) -> Array:
        """See `TiltedNodes`: (p(x) + p(-x)) / sigma^2."""
        here, there = (
            _log_probability(self.grid, self._rates, self._noise, x)
            for x in (self.grid.x, -self.grid.x)
        )
        return np.logaddexp(here, there) - self.grid.spread(2 * np.log(self._noise))

    def bend(self) -> Array:
        """See `TiltedNodes`."""
        variance = self._noise**2
        return (1 + (self._tilt / 4 + 3.25) / variance) / variance

    def maxima(self) -> Array:
        """See `TiltedNodes`."""
        return np.full_like(self._noise, 5.0)

    def shares(self) -> Array:
        """See `TiltedNodes`: none is known."""
        return np.zeros_like(self.loss)

    def log_shifted(self, times: Array, mean_share: Array) -> Array:
        """See `TiltedNodes`: there is no such bound."""
        return np.zeros((len(mean_share), len(times)))


def _log_probability(grid: Nodes, rates: Array, noise: Array, x: Array) -> Array:
    """log p(x), p = q e^u / r."""
    log_odds = grid.spread(np.log(rates) - np.log1p(-rates))
    return -np.logaddexp(0.0, -((x - 0.5) / grid.spread(noise**2) + log_odds))
