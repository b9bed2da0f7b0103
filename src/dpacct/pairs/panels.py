"""The integrands of the C_q pair on the half-line u > 0: panels, node errors, suprema.

With r = 1 - q + q e^u the integrands are products of e^{-(sigma u + 1/(2 sigma))^2 / 2}, powers of
r and e^{it log r}. Derivation: docs/derivations/uniform-sampling.md.
"""

from __future__ import annotations

import math

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.quadrature import IMAGINARY_AXIS, REAL_AXIS, RULE_ERROR
from dpacct.numerics.rounding import UNIT, Array

MAX_PANELS = 40_000
_SAMPLES = 400
# Phase of e^{it log r} on one panel: the bound of the rule grows by its exponential.
_WAVE = 12.0


def panel_edges(
    a: float,
    q: float,
    sigma: float,
    end: float,
    frequency: float = 0.0,
    start: float = 0.0,
) -> Array:
    """Panels from ``start`` to ``end``, small against all scales of the integrand.

    These are the boundary layer at 0 if they begin there, the curvature of the exponent of phi r^a,
    the distance of the zeros of r, and the waves of e^{it log r}. They influence the cost only.

    Raises:
        NotConverged: more than `MAX_PANELS` would be needed.
    """
    layer = min(0.5, 0.5 / ((a - 1) * q + 1e-300)) if start == 0.0 else math.inf
    u = np.linspace(start, end, _SAMPLES)
    if start == 0.0:
        # The layer may be far thinner than the distance of the samples.
        u = np.union1d(u, np.geomspace(1e-6 * min(layer, end), end, _SAMPLES))
    log_odds = math.log1p(-q) - math.log(q)
    # Curvature of a log r in u is a p (1 - p), p taken where it is steepest within a unit.
    p = 1 / (1 + np.exp(np.clip(log_odds - u - 1.0, -700.0, 700.0)))
    steepest = (p >= 0.5) & (u < log_odds + 1.0)
    far = 1 / (1 + np.exp(np.clip(log_odds - u, -700.0, 700.0)))
    spread = np.where(steepest, 0.25, np.where(p < 0.5, p * (1 - p), far * (1 - far)))
    width = np.minimum(
        np.minimum(min(1.0, 1.4 / sigma), 2 / np.sqrt(1 + a * spread + sigma**2)),
        np.minimum(_WAVE / (frequency * p + 1e-300), layer + (u - start) / 2),
    )
    # How many panels lie left of each sample; the edges are where that is a whole number.
    density = np.maximum(1 / width[:-1], 1 / width[1:])
    count = np.concatenate([[0.0], np.cumsum(density * np.diff(u))])
    number = math.ceil(min(float(count[-1]), 1e9))
    if number > MAX_PANELS:
        raise NotConverged(f"the half-line needs {number} panels, more than {MAX_PANELS}")
    edges = np.interp(np.linspace(0.0, float(count[-1]), max(number, 1) + 1), count, u)
    edges[0], edges[-1] = start, end
    return edges


def node_errors(
    q: float, sigma: float, edges: Array, u: Array, weights: Array, loss: Array
) -> tuple[Array, Array]:
    """Error of the loss at each node, and relative error of weight times Gaussian.

    For any u where q <= 1/2; for u >= 0 otherwise.

    Args:
        edges: shape (m + 1,); u, weights, loss: nodes, weights and log r there, shape (m, n).
    Returns:
        Absolute bound of the loss's error, relative bound of the other's; shape (m, n).
    """
    width = np.diff(edges)[:, None]
    distance, size = np.abs(u), np.abs(loss)
    # A panel that contains 0 may have nodes with far larger errors than their own roundings.
    moved = 2 * RULE_ERROR * width + 3 * UNIT * distance
    slope = np.exp(math.log(q) + u - loss)
    rounding = UNIT * (16 * size + np.minimum(1.45 * size, 1.0) * (14 + 13 * np.maximum(u, 0.0)))
    gaussian = moved * (sigma**2 * distance + 1) + 4 * UNIT * (sigma * distance + 0.5 / sigma) ** 2
    return rounding + slope * moved, gaussian + RULE_ERROR * width / weights


def suprema_beyond(at_nodes: Array, at_edges: Array) -> Array:
    """For each panel the largest value from its start on, over nodes and edges.

    Args:
        at_nodes: values at the nodes, shape (m, n).
        at_edges: values at the panels' ends, shape (m + 1,).
    Returns:
        Array (m,).
    """
    each = np.maximum(at_nodes.max(axis=1), np.maximum(at_edges[:-1], at_edges[1:]))
    return np.maximum.accumulate(each[::-1])[::-1]


class PanelBounds:
    """Suprema over the Bernstein ellipse of each panel; all arrays have shape (m,).

    Attributes:
        half: half-widths of the panels.
        loss: bound of |log r|.
        angle: bound of |arg r|, infinite where none is known.
    """

    def __init__(self, q: float, variance: float, edges: Array) -> None:
        self._q, self._variance = q, variance
        self.half: Array = np.diff(edges) / 2
        self._center = edges[:-1] + self.half
        self._reach = REAL_AXIS * self.half
        self._low, self._high = self._center - self._reach, self._center + self._reach
        height = IMAGINARY_AXIS * self.half
        self._height = height
        # |r| >= Re r >= 1 - q + q e^low cos(height) > 0 in the ellipse, height being below 1.
        self._smallest = 1 - q + q * np.exp(np.clip(self._low, -700.0, 700.0)) * np.cos(height)
        # |log r| <= |u| sup |p|, the supremum between 0 and u: for u < 0 it is next to 0.
        farthest = np.hypot(np.maximum(np.abs(self._low), self._high), height)
        highest = np.clip(self._high, 0.0, 700.0)
        self.loss: Array = farthest * (q * np.exp(highest) / self._smallest)
        # |arg(A + B e^{iv})| <= B |v| / (A + B cos v) <= p |v| / cos v.
        self.angle: Array = self._probability(self._high) * height / np.cos(height)

    def _probability(self, u: Array) -> Array:
        log_odds = math.log1p(-self._q) - math.log(self._q)
        return 1 / (1 + np.exp(np.clip(log_odds - u, -700.0, 700.0)))

    def power(self, exponent: float) -> Array:
        """Bound of |r^exponent| for an exponent <= 0."""
        with np.errstate(over="ignore"):
            return np.exp(exponent * self.log_smallest)

    @property
    def log_smallest(self) -> Array:
        """Logarithm of a bound of |r| from below."""
        return np.log(self._smallest) - 4 * UNIT * (1 + np.abs(np.log(self._smallest)))

    @property
    def log_largest(self) -> Array:
        """Logarithm of a bound of |r| from above."""
        log_r = np.log1p(self._q * np.expm1(np.minimum(self._high, 700.0)))
        return log_r + 32 * UNIT * np.abs(log_r)

    def peak(self, power: float, offset: float | Array = 0.0) -> Array:
        """Bound of |e^{-offset - (sigma u + 1/(2 sigma))^2/2} r^power| for a power >= 0.

        On the real axis from the value at the center and the slopes at the ends, which are
        monotone in parts; off it the Gaussian grows by e^{sigma^2 height^2 / 2}.
        """
        center, variance = self._center, self._variance
        quadratic = variance * center**2 + center + 0.25 / variance
        log_r = np.logaddexp(np.log1p(-self._q), math.log(self._q) + center)
        up = -variance * self._low - 0.5 + power * self._probability(self._high)
        down = variance * self._high + 0.5 - power * self._probability(self._low)
        rise = self._reach * np.maximum(0.0, np.maximum(up, down))
        exponent = power * log_r - quadratic / 2 + rise + variance * self._height**2 / 2 - offset
        with np.errstate(over="ignore"):
            return np.exp(exponent)
