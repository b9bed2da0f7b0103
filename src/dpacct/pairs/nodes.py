"""Nodes of the trapezoid rule for the moments of sampled Gaussians, and the loss at the nodes.

The derivation of every constant is in docs/derivations/moments.md.
"""

from __future__ import annotations

import math

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.rounding import UNIT, Array

_MAX_NODES = 8_000_000
_HALVINGS = 30


class Nodes:
    """Nodes k h of the trapezoid rule for several rows (a, q, sigma), laid end to end.

    They reach from left of all peaks to right of ``farthest``, the largest c for which a tilted
    Gaussian e^{c u} phi, centered at c, is part of the integrand. Where a < 0 and ``farthest`` is 0
    the integrand is phi r^a alone, which has one peak, and the nodes end right of that.

    Every h has 11 significant bits, so every node k h is exact in double precision.

    Args:
        a, q, sigma: orders, rates and noise of the rows, shape (m,).
        accuracy: exponent y such that tails and discretization are about e^-y, shape (m,).
        farthest: c as above, shape (m,).
        frequency: largest |t| where powers a + i t are integrated too.
        max_nodes: how many nodes there may be in all rows together.
        mirrored: power b <= 1 of r(-x), where phi r(x)^a r(-x)^b is integrated; then a >= 0, and
            powers a + i t go with b - i t. Shape (m,).
        nearest: the least c <= 0 as above, where b > 0; shape (m,).
    Raises:
        NotConverged: more would be needed.
    """

    def __init__(
        self,
        a: Array,
        q: Array,
        sigma: Array,
        accuracy: Array,
        farthest: Array,
        frequency: float = 0.0,
        max_nodes: int = _MAX_NODES,
        mirrored: Array | None = None,
        nearest: Array | None = None,
    ) -> None:
        variance = sigma**2
        negative = np.minimum(a, 0.0)
        if mirrored is not None:
            negative = negative + np.minimum(mirrored, 0.0)
            frequency = 2 * frequency
        # The bound is exp(c d^2 / 2 - 2 pi d / h) up to the cosine's higher orders; the branch
        # points of r^a lie at |Im x| = pi sigma^2, and for a < 0 we stay well inside.
        curvature = 1 / variance - 0.31 * negative / variance**2
        limit = np.where(negative < 0, 2.0, 3.14) * variance
        strip = np.minimum(np.sqrt(2 * accuracy / curvature), limit)
        # |r^{i t}| <= e^{|t| d / sigma^2} at a distance d from the real line.
        wave = frequency * strip / variance
        mantissa, exponent = np.frexp(
            2 * math.pi * strip / (accuracy + curvature * strip**2 / 2 + wave)
        )
        self.step: Array = np.ldexp(np.floor(mantissa * 2048) / 2048, exponent)
        log_bound = (
            strip**2 / (2 * variance)
            + negative * np.log(np.cos(strip / (2 * variance)))
            + wave
            - 2 * math.pi * strip / self.step
        )
        # 2 / (e^x - 1) <= 3 e^-x for x >= 2; the factor 1.01 pays for rounding.
        self.discretization: Array = 3.03 * np.exp(log_bound)

        reach = sigma * np.sqrt(2 * accuracy)
        log_odds = np.log(q) - np.log1p(-q)
        # For a < 0 the peak solves x = a p(x), p <= min(p(0), e^{log odds + u}); W(c) <= log(1+c).
        at_zero = np.exp(-np.logaddexp(0.0, 1 / (2 * variance) - log_odds))
        log_c = np.log(np.maximum(-a, 1e-300) / variance) + log_odds - 1 / (2 * variance)
        peak = np.where(a < 0, np.maximum(a * at_zero, -variance * np.logaddexp(0.0, log_c)), 0.0)
        if nearest is not None:
            peak = peak + nearest
        right = np.array(farthest)
        far = np.flatnonzero((a < 0) & (farthest == 0.0) & (peak < -reach))
        if far.size:
            peak[far], right[far] = _close_in(peak[far], a[far], log_odds[far], variance[far])
        first = np.floor((peak - reach) / self.step) - 1
        last = np.ceil((right + reach) / self.step) + 1
        self.counts: np.ndarray = (last - first).astype(np.int64) + 1
        total = int(self.counts.sum())
        if total > max_nodes:
            raise NotConverged(f"the moment integral needs {total} nodes, more than {max_nodes}")
        self.starts: np.ndarray = np.cumsum(self.counts) - self.counts
        index = np.arange(total) - np.repeat(self.starts - first, self.counts)
        self.x: Array = index * self.spread(self.step)

    def spread(self, per_row: Array) -> Array:
        """A value per row as a value per node."""
        return np.repeat(per_row, self.counts)

    def sum(self, terms: Array) -> Array:
        """Sum over the nodes of each row; off by at most `summation_error` (terms >= 0)."""
        return np.add.reduceat(terms, self.starts)

    @property
    def summation_error(self) -> Array:
        """Relative error of `sum`, whatever the order of summation, plus that of a scale factor."""
        return 2 * UNIT * (self.counts + 16)

    def ends(self, terms: Array) -> Array:
        """First plus last term of each row: both tails of a sum of h f are below sigma times it."""
        return terms[self.starts] + terms[self.starts + self.counts - 1]


def _close_in(low: Array, a: Array, log_odds: Array, variance: Array) -> tuple[Array, Array]:
    """Points on both sides of the peak of phi r^a, a < 0, where x - a p(x) increases through 0."""
    high = np.zeros_like(low)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        p = np.exp(-np.logaddexp(0.0, (0.5 - middle) / variance - log_odds))
        beyond = middle >= a * p
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    return low, high


def log_ratio(
    grid: Nodes, q: Array, sigma: Array, at: Array | None = None
) -> tuple[Array, Array, Array]:
    """x^2 / (2 sigma^2), l = log r(x), and a bound of the absolute error of l, at each node.

    ``at``: other points x than the nodes, one for each.
    """
    x = grid.x if at is None else at
    inverse = grid.spread(1 / sigma**2)
    q_row = q
    q = grid.spread(q)
    exponent = (x - 0.5) * inverse
    shift = q * np.expm1(np.minimum(exponent, 700.0))
    loss = np.log1p(shift)
    if np.any(q_row > 0.5):
        deep = shift < -0.5
        loss[deep] = np.log((1 - q[deep]) + q[deep] * np.exp(exponent[deep]))
    far = exponent > 700.0
    if far.any():
        odds = np.exp(np.log1p(-q[far]) - np.log(q[far]) - exponent[far])
        loss[far] = exponent[far] + np.log(q[far]) + np.log1p(odds)
    size = np.abs(loss)
    error = UNIT * (
        16 * size + np.minimum(1.45 * size, 1.0) * (14 + 13 * np.maximum(exponent, 0.0))
    )
    return x**2 * (inverse / 2), loss, error


def mirrored_ratio(grid: Nodes, q: Array, sigma: Array) -> tuple[Array, ...]:
    """The loss L = log r(x) - log r(-x), and log r(-x), at each node.

    With y = |x| and m = (r(y) - r(-y)) / r(-y), |L| = log(1 + m): nothing is cancelled.

    Returns:
        x^2 / (2 sigma^2), L, a bound of the absolute error of L, log r(-x), and a bound of its.
    """
    quadratic, ratio, ratio_error = log_ratio(grid, q, sigma, np.abs(grid.x))
    _, below, below_error = log_ratio(grid, q, sigma, -np.abs(grid.x))
    inverse, log_q = grid.spread(1 / sigma**2), grid.spread(np.log(q))
    distance = np.abs(grid.x) * inverse
    exponent = (np.abs(grid.x) - 0.5) * inverse
    gap = np.log(-np.expm1(-2 * np.maximum(distance, 1e-300)))
    log_m = log_q + exponent - below + gap
    loss = np.where(grid.x == 0.0, 0.0, np.logaddexp(0.0, log_m))
    size = np.abs(log_q) + np.abs(exponent) + np.abs(below) + np.abs(gap)
    error = UNIT * (16 * loss + np.minimum(loss, 1.0) * (16 * size + 64))
    error += np.minimum(loss, 1.0) * below_error
    right = grid.x > 0
    return (
        quadratic,
        np.where(right, loss, -loss),
        error,
        np.where(right, below, ratio),
        np.where(right, below_error, ratio_error),
    )


def mirrored_farthest(a: Array, q: Array, sigma: Array) -> Array:
    """``farthest`` of `Nodes` for phi r(x)^a r(-x)^(1-a), a > 0.

    Right of x = a the last factor grows at most with the slope (a - 1) p(-a) / sigma^2.
    """
    slope = np.exp(-np.logaddexp(0.0, (a + 0.5) / sigma**2 + np.log1p(-q) - np.log(q)))
    return np.where(a > 1, a + (a - 1) * slope, a)
