"""Moments of likelihood ratios by the trapezoid rule, with a proven error.

    I(a) = integral of phi r^a,   phi = N(0, sigma^2),   r(x) = 1 - q + q e^{(2x-1)/(2 sigma^2)},

and, if a client is replaced ("mirrored"), the integral of phi r(x)^a r(-x)^(1-a). Both are
E_Q[(P/Q)^a]: the density g of Q and the loss l = log P/Q are phi and log r, or phi r(-x) and
log r(x)/r(-x).

The rule with step h is off by at most 2 B / (e^{2 pi d/h} - 1), B the supremum of the integral of
|integrand| on lines at a distance up to d from the real one: `Nodes` chooses d and bounds B. Two
forms of the same sum:

* direct: log of the sum of g e^(a l), unless log I(a) is small,
* excess: I(a) - 1 as a sum of non-negative terms, if it is. E[e^l] = 1 gives
      I(a) - 1 = E[e^(a l) - 1 - a (e^l - 1)],
  and with the remainder e2(y) = e^y - 1 - y >= 0 the integrand is
      e^l (e2((a-1) l) + (a-1) e2(-l))      for a > 1,
      e2(a l) - a e2(l)                     otherwise.

The derivation of every constant is in docs/derivations/moments.md.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, Array, Bounds

_MAX_NODES = 8_000_000
_HALVINGS = 30


class Nodes:
    """Nodes k h of the trapezoid rule for several rows (a, q, sigma), laid end to end.

    They reach from left of all peaks to right of ``farthest``, the largest c for which a tilted
    Gaussian e^{c u} phi, centered at c, is part of the integrand. If a < 0 and ``farthest`` is 0,
    the integrand is phi r^a alone, which has one peak, and the nodes end right of that.

    Every h has 11 significant bits, so every node k h is exact in double precision.

    Args:
        a, q, sigma: orders, rates and noise of the rows, shape (m,).
        accuracy: exponent y such that tails and discretization are about e^-y, shape (m,).
        farthest: c as above, shape (m,).
        frequency: largest |t| if powers a + i t are integrated too.
        max_nodes: limit of the number of nodes in all rows together.
        mirrored: power b <= 1 of r(-x), if phi r(x)^a r(-x)^b is integrated. Then a >= 0, and
            powers a + i t go with b - i t. Shape (m,).
        nearest: the least c <= 0 as above, if b > 0, shape (m,).
    Raises:
        NotConverged: more than ``max_nodes`` would be needed.
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
        # The bound is exp(c d^2 / 2 - 2 pi d / h) up to the cosine's higher orders. The branch
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
        # 2 / (e^x - 1) <= 3 e^-x for x >= 2. The factor 1.01 pays for rounding.
        self.discretization: Array = 3.03 * np.exp(log_bound)

        reach = sigma * np.sqrt(2 * accuracy)
        log_odds = np.log(q) - np.log1p(-q)
        # For a < 0 the peak solves x = a p(x), p <= min(p(0), e^{log odds + u}). W(c) <= log(1+c).
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
        """Return a value per row as a value per node."""
        return np.repeat(per_row, self.counts)

    def sum(self, terms: Array) -> Array:
        """Return sums of terms >= 0 over the nodes of each row, within `summation_error`."""
        return np.add.reduceat(terms, self.starts)

    @property
    def summation_error(self) -> Array:
        """The relative error of `sum`, in any order of summation, and of a scale factor."""
        return 2 * UNIT * (self.counts + 16)

    def ends(self, terms: Array) -> Array:
        """Return first plus last term: both tails of a sum of h f are below sigma times it."""
        return terms[self.starts] + terms[self.starts + self.counts - 1]


def _close_in(low: Array, a: Array, log_odds: Array, variance: Array) -> tuple[Array, Array]:
    """Return points around the peak of phi r^a, a < 0, where x - a p(x) increases through 0."""
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
    """Return x^2 / (2 sigma^2), l = log r(x), and a bound of the absolute error of l.

    At each node, or at other points ``at``, one for each node.
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
    return x**2 * (inverse / 2), loss, ratio_error(np.abs(loss), exponent)


def ratio_error(size: Array, exponent: Array) -> Array:
    """Return the absolute rounding error of log r, of a given size, computed from e^exponent."""
    relative = np.minimum(1.45 * size, 1.0) * (14 + 13 * np.maximum(exponent, 0.0))
    return UNIT * (16 * size + relative)


def mirrored_ratio(grid: Nodes, q: Array, sigma: Array) -> tuple[Array, ...]:
    """Return x^2 / (2 sigma^2), L = log r(x) - log r(-x), its error, log r(-x), and its error.

    With y = |x| and m = (r(y) - r(-y)) / r(-y), |L| = log(1 + m): nothing is cancelled.
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
    """Return ``farthest`` of `Nodes` for phi r(x)^a r(-x)^(1-a), a > 0.

    Right of x = a the last factor grows at most with the slope (a - 1) p(-a) / sigma^2.
    """
    slope = np.exp(-np.logaddexp(0.0, (a + 0.5) / sigma**2 + np.log1p(-q) - np.log(q)))
    return np.where(a > 1, a + (a - 1) * slope, a)


# Truncation and discretization may add e^-42 = 6e-19, relative to the result.
_ACCURACY = 42.0
_SMALL_SIGMA = 0.03
# 1/k! * 2 for k = 2..13: Taylor coefficients of e2(y) / (y^2 / 2). Next term < 1e-17 at |y| = 1/4.
_REMAINDER_SERIES = [2.0 / math.factorial(k) for k in range(13, 1, -1)]


def trapezoid_log_moment(a: Array, q: Array, sigma: Array, *, mirrored: bool = False) -> Bounds:
    """Return bounds of log I(a), row by row, by the form of the sum that suits each row.

    Args:
        a, q, sigma: shape (n,). Orders are neither 0 nor 1, and above 0 if ``mirrored``.
    Error:
        Inside the bounds, typically 1e-13 relative.
    Raises:
        NotConverged: more than 8 million nodes would be needed.
    """
    lower, upper = np.empty_like(a), np.empty_like(a)
    small = _surely_small(a, q, sigma, mirrored=mirrored)
    for rows in _batches(a, sigma, np.flatnonzero(~small)):
        lower[rows], upper[rows] = _direct(a[rows], q[rows], sigma[rows], mirrored=mirrored)
    # For a < 0 and tiny sigma the excess needs nodes up to x = 1 that the moment does not.
    excess_pays = (a > 0) | (sigma > _SMALL_SIGMA)
    small |= excess_pays & (np.abs(np.where(small, 0.0, upper)) < 0.5)
    for rows in _batches(a, sigma, np.flatnonzero(small)):
        for side in (rows[a[rows] > 1], rows[a[rows] <= 1]):
            if side.size:
                lower[side], upper[side] = _excess(a[side], q[side], sigma[side], mirrored=mirrored)
    return Bounds(lower, upper)


def _surely_small(a: Array, q: Array, sigma: Array, *, mirrored: bool) -> np.ndarray:
    """Return True if |log I(a)| < 1 follows from simple bounds, so that the excess form applies.

    a > 1: Minkowski, log I <= a log(1 + q (e^{(a-1)/(2 sigma^2)} - 1)), and r(-x) >= 1 - q.
    a < 0: r >= 1 - q. Between: joint convexity, log I >= -a (1-a) shift^2 / (2 sigma^2).
    """
    growth = np.minimum(np.maximum(a - 1, 0.0) / (2 * sigma**2), 600.0)
    log_moment = a * np.log1p(q * np.expm1(growth))
    if mirrored:
        log_moment -= (a - 1) * np.log1p(-q)
    above_one = (log_moment < 1) & (growth < 600.0)
    below_zero = (a * np.log1p(-q) < 1) & (sigma > _SMALL_SIGMA)
    between = a * (1 - a) * (4.0 if mirrored else 1.0) < 2 * sigma**2
    return np.where(a > 1, above_one, np.where(a < 0, below_zero, between))


def _batches(a: Array, sigma: Array, rows: np.ndarray) -> list[np.ndarray]:
    """Return rows in batches of about 2^19 nodes, so that memory stays bounded."""
    if rows.size <= 1:
        return [rows] if rows.size else []
    step = np.minimum(sigma[rows], sigma[rows] ** 2)
    nodes = (np.maximum(a[rows], 0.0) + 30 * sigma[rows]) / step * 2
    batch = (np.cumsum(nodes) // 2**19).astype(np.int64)
    return np.split(rows, np.flatnonzero(np.diff(batch)) + 1)


class _Nodes(NamedTuple):
    """The loss and log of the density of Q without its constant at each node, and their errors."""

    loss: Array
    loss_error: Array
    log_density: Array
    density_error: Array


def _at_nodes(grid: Nodes, q: Array, sigma: Array, *, mirrored: bool) -> _Nodes:
    if not mirrored:
        quadratic, loss, error = log_ratio(grid, q, sigma)
        return _Nodes(loss, error, -quadratic, 8 * UNIT * quadratic)
    quadratic, loss, error, below, below_error = mirrored_ratio(grid, q, sigma)
    density_error = below_error + UNIT * (8 * quadratic + 2 * np.abs(below))
    return _Nodes(loss, error, below - quadratic, density_error)


def _direct(a: Array, q: Array, sigma: Array, *, mirrored: bool) -> Bounds:
    """Return log I(a) as the logarithm of a sum of exponentials, with exponents as intervals."""
    # Between 0 and 1 the moment itself may be tiny.
    dip = np.where((a > 0) & (a < 1), a * (1 - a) / (2 * sigma**2), 0.0)
    if mirrored:
        ends = (mirrored_farthest(a, q, sigma), np.minimum(a - 1, 0.0))
        grid = Nodes(a, q, sigma, _ACCURACY + 4 * dip, ends[0], mirrored=1 - a, nearest=ends[1])
    else:
        grid = Nodes(a, q, sigma, _ACCURACY + dip, np.maximum(a, 0.0))
    nodes = _at_nodes(grid, q, sigma, mirrored=mirrored)
    power = grid.spread(a)
    term = power * nodes.loss
    exponent = term + nodes.log_density
    error = np.abs(power) * nodes.loss_error + nodes.density_error + 5 * UNIT * np.abs(term)
    top = np.maximum.reduceat(exponent + error, grid.starts)
    centered = exponent - grid.spread(top)
    high = np.exp(centered + error)
    low = np.exp(centered - error)
    # Each tail of the trapezoid sum is at most sqrt(2 pi) sigma f(end) / 2.
    tails = 1.26 * sigma / grid.step * grid.ends(high)
    slack = grid.summation_error
    total_high = (grid.sum(high) * (1 + slack) + tails) / (1 - grid.discretization)
    total_low = grid.sum(low) * (1 - slack) / (1 + grid.discretization)
    scale = np.log(grid.step / sigma) - 0.5 * math.log(2 * math.pi)
    lower = top + np.log(total_low) + scale
    upper = top + np.log(total_high) + scale
    rounding = FUNCTION_ERROR * (np.abs(top) + np.abs(np.log(total_low)) + np.abs(scale) + 1)
    return Bounds(lower - rounding, upper + rounding)


def _excess(a: Array, q: Array, sigma: Array, *, mirrored: bool) -> Bounds:
    """Return log(1 + (I(a) - 1)) from the sum of remainders, for rows on one side of a = 1."""
    above_one = bool(a[0] > 1)
    log_size = (
        np.log(np.abs(a * (a - 1)) / 2)
        + 2 * np.log(q)
        + np.log(np.expm1(np.minimum(1 / sigma**2, 1.0)))
    )
    accuracy = _ACCURACY + np.log(2 + 2 * np.abs(a)) + np.maximum(-log_size, 0.0)
    if mirrored:
        farthest = np.maximum(mirrored_farthest(a, q, sigma), 1.0)
        grid = Nodes(a, q, sigma, accuracy, farthest, mirrored=1 - a, nearest=np.full_like(a, -1.0))
    else:
        grid = Nodes(a, q, sigma, accuracy, np.maximum(a, 1.0))
    nodes = _at_nodes(grid, q, sigma, mirrored=mirrored)
    loss = nodes.loss
    power = grid.spread(a)
    relative = nodes.loss_error / np.maximum(np.abs(loss), 1e-300) + 2 * UNIT
    if above_one:
        weight = loss + nodes.log_density
        first = _remainder((power - 1) * loss, weight, relative)
        second = _remainder(-loss, weight, relative)
        second_factor = power - 1
        weight_error = nodes.loss_error + nodes.density_error + 3 * UNIT * np.abs(loss)
    else:
        weight = nodes.log_density
        first = _remainder(power * loss, weight, relative)
        second = _remainder(loss, weight, relative)
        second_factor = -power
        weight_error = nodes.density_error
    terms = first[0] + second_factor * second[0]
    errors = (
        first[1]
        + np.abs(second_factor) * second[1]
        + (weight_error + 4 * UNIT) * (first[0] + np.abs(second_factor) * second[0])
    )
    # |R^a - 1 - a (R - 1)| <= R^a + |a - 1| + |a| R bounds tails and discretization.
    edge = np.exp(power * loss + nodes.log_density)
    edge += np.abs(power - 1) * np.exp(nodes.log_density)
    edge += np.abs(power) * np.exp(loss + nodes.log_density)
    factor = grid.step / (sigma * math.sqrt(2 * math.pi))
    total = grid.sum(terms) * factor
    magnitude = grid.sum(np.abs(terms)) * factor
    rounding = (grid.sum(errors) * factor + magnitude * grid.summation_error) * (1 + 1e-9)
    tails = grid.ends(edge) * 0.51
    bulk = np.where((a > 0) & (a < 1), 1.0, 1 + total + rounding)
    discretization = 1.1 * grid.discretization * (bulk + np.abs(a - 1) + np.abs(a))
    # Products below 2^-1022 lose their digits: an absolute 2^-1000 a node covers them.
    slack = rounding + tails + discretization + grid.counts * 2.0**-1000
    # I(a) >= 1 outside [0, 1]. Inside, log I(a) > -1 where this form is used.
    low = np.maximum(total - slack, np.where((a > 0) & (a < 1), -0.9, 0.0))
    lower, upper = np.log1p(low), np.log1p(total + slack)
    return Bounds(
        lower - FUNCTION_ERROR * np.abs(lower),
        upper + FUNCTION_ERROR * np.abs(upper),
    )


def _remainder(y: Array, log_weight: Array, relative: Array) -> tuple[Array, Array]:
    """Return e^w (e^y - 1 - y) and its absolute error, from the relative error of y."""
    inner = np.where(np.abs(y) < 0.25, y, 0.0)
    series = np.full_like(inner, _REMAINDER_SERIES[0])
    for coefficient in _REMAINDER_SERIES[1:]:
        series = series * inner + coefficient
    middle = np.minimum(y, 30.0)
    kernel = np.where(np.abs(y) < 0.25, series * inner**2 / 2, np.expm1(middle) - middle)
    value = np.exp(log_weight) * kernel
    growth = np.maximum(y, 0.0)
    error = (2 + growth) * relative + 96 * UNIT
    large = y > 30.0
    if large.any():
        exponent = log_weight[large] + y[large]
        value[large] = np.exp(exponent) * (1 - (1 + y[large]) * np.exp(-y[large]))
        error[large] += 2 * UNIT * (np.abs(log_weight[large]) + y[large])
    return value, value * error
