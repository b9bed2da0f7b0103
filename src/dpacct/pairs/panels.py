"""The integrands of sampled pairs in u = (2x - 1) / (2 sigma^2): panels, node errors, suprema.

With r = 1 - q + q e^u the integrands are products of e^{-(sigma u + 1/(2 sigma))^2 / 2}, powers of
r, of r(-x), and e^{itL}. `LossFunction` has L(u) of each kind of pair.

These panels of Gauss-Legendre serve integrals over a half-line or a part of it, where the
trapezoid rule of `trapezoid` loses its exponential convergence.

Derivation: docs/derivations/uniform-sampling.md.
"""

from __future__ import annotations

import math

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.quadrature import IMAGINARY_AXIS, REAL_AXIS, RULE_ERROR
from dpacct.numerics.rounding import UNIT, Array
from dpacct.pairs.dominating import AchievedPair, Direction, ReplacementPair
from dpacct.pairs.trapezoid import ratio_error

MAX_PANELS = 40_000
_SAMPLES = 400
# Phase of e^{it log r} on one panel: the bound of the rule grows by its exponential.
_WAVE = 12.0
# e^u must not overflow.
_FARTHEST = 690.0


def probability(q: float, u: Array) -> Array:
    """Return p = q e^u / r, the slope of log r in u."""
    log_odds = math.log1p(-q) - math.log(q)
    return 1 / (1 + np.exp(np.clip(log_odds - u, -700.0, 700.0)))


def panel_edges(
    a: float,
    q: float,
    sigma: float,
    end: float,
    frequency: float = 0.0,
    start: float = 0.0,
) -> Array:
    """Return edges of panels from ``start`` to ``end``, small against the integrand's scales.

    These are the boundary layer at 0 if the panels begin there, the curvature of the exponent of
    phi r^a, the distance of the zeros of r, and the waves of e^{it log r}. Only the cost depends
    on them: the error is bounded for any panels.

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
    p, far = probability(q, u + 1.0), probability(q, u)
    steepest = (p >= 0.5) & (u < log_odds + 1.0)
    spread = np.where(steepest, 0.25, np.where(p < 0.5, p * (1 - p), far * (1 - far)))
    width = np.minimum(
        np.minimum(min(1.0, 1.4 / sigma), 2 / np.sqrt(1 + a * spread + sigma**2)),
        np.minimum(_WAVE / (frequency * p + 1e-300), layer + (u - start) / 2),
    )
    # The number of panels left of each sample. Edges are where it is a whole number.
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
    """Return the absolute error of log r, and the relative error of weight times Gaussian.

    Nodes u, weights, losses log r and the results have the shape (m, n), edges (m + 1,). If
    q > 1/2, u has to be at least 0.
    """
    width = np.diff(edges)[:, None]
    distance, size = np.abs(u), np.abs(loss)
    # A panel that contains 0 may have nodes with far larger errors than their own roundings.
    moved = 2 * RULE_ERROR * width + 3 * UNIT * distance
    slope = np.exp(math.log(q) + u - loss)
    gaussian = moved * (sigma**2 * distance + 1) + 4 * UNIT * (sigma * distance + 0.5 / sigma) ** 2
    return ratio_error(size, u) + slope * moved, gaussian + RULE_ERROR * width / weights


def suprema_beyond(at_nodes: Array, at_edges: Array) -> Array:
    """Return for each of m panels the largest value from its start on.

    Values are given at the nodes, shape (m, n), and at the edges, shape (m + 1,).
    """
    each = np.maximum(at_nodes.max(axis=1), np.maximum(at_edges[:-1], at_edges[1:]))
    return np.maximum.accumulate(each[::-1])[::-1]


class PanelBounds:
    """Suprema over the Bernstein ellipse of each panel, in arrays of shape (m,).

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
        self.angle: Array = probability(q, self._high) * height / np.cos(height)

    def power(self, exponent: float) -> Array:
        """Return a bound of |r^exponent| for an exponent <= 0."""
        with np.errstate(over="ignore"):
            return np.exp(exponent * self.log_smallest)

    @property
    def log_smallest(self) -> Array:
        """Logarithm of a lower bound of |r|."""
        return np.log(self._smallest) - 4 * UNIT * (1 + np.abs(np.log(self._smallest)))

    @property
    def log_largest(self) -> Array:
        """Logarithm of an upper bound of |r|."""
        log_r = np.log1p(self._q * np.expm1(np.minimum(self._high, 700.0)))
        return log_r + 32 * UNIT * np.abs(log_r)

    def peak(self, power: float, offset: float | Array = 0.0) -> Array:
        """Return a bound of |e^{-offset - (sigma u + 1/(2 sigma))^2/2} r^power|, power >= 0.

        On the real axis it follows from the value at the center and the slopes at the ends, which
        are monotone in parts. Off it the Gaussian grows by e^{sigma^2 height^2 / 2}.
        """
        center, variance = self._center, self._variance
        quadratic = variance * center**2 + center + 0.25 / variance
        log_r = np.logaddexp(np.log1p(-self._q), math.log(self._q) + center)
        up = -variance * self._low - 0.5 + power * probability(self._q, self._high)
        down = variance * self._high + 0.5 - power * probability(self._q, self._low)
        rise = self._reach * np.maximum(0.0, np.maximum(up, down))
        exponent = power * log_r - quadratic / 2 + rise + variance * self._height**2 / 2 - offset
        with np.errstate(over="ignore"):
            return np.exp(exponent)


class LossFunction:
    """The privacy loss L of one pair as a function of u, and the density of Q.

    g is the density of N(0, sigma^2) in u, and Q has the density g e^base, so that P weighted by
    e^{cL} has the density g e^{base + (1 + c) L}:

    * remove: L = log r, base 0,
    * add: L = -log r, base log r,
    * replacement: L = log r - log r', base log r', with r' = r(-x), that is r at -u - 1 / sigma^2.

    Args:
        pair: with a sampling rate of at most 1/2.
    """

    def __init__(self, pair: AchievedPair) -> None:
        self.rate, self.noise = pair.sampling_rate, pair.noise_std
        self.replaced = isinstance(pair, ReplacementPair)
        self.added = not isinstance(pair, ReplacementPair) and pair.direction is Direction.ADD
        self._shift = 1 / self.noise**2

    def __call__(self, u: Array) -> tuple[Array, Array]:
        """Return L and base."""
        ratio = self._log_ratio(u)
        if self.replaced:
            opposite = self._log_ratio(-u - self._shift)
            return ratio - opposite, opposite
        return (-ratio, ratio) if self.added else (ratio, np.zeros_like(ratio))

    def _log_ratio(self, u: Array) -> Array:
        return np.log1p(self.rate * np.expm1(np.minimum(u, 700.0))) + np.maximum(u - 700.0, 0.0)

    def log_density(self, u: Array) -> Array:
        """Return log of g without the factor sigma / sqrt(2 pi)."""
        return -((self.noise * u + 0.5 / self.noise) ** 2) / 2

    def probabilities(self, u: Array) -> tuple[Array, Array]:
        """Return p = q e^u / r, and p at -x or 0. |dL/du| is their sum."""
        here = probability(self.rate, u)
        if not self.replaced:
            return here, np.zeros_like(here)
        return here, probability(self.rate, -u - self._shift)

    def start(self, tilt: float, reach: float) -> float:
        """Return the u left of which about e^(-reach^2 / 2) of the tilted mass lies.

        In the add direction, with powers r^-c, the slope is at most that at the peak of g. If a
        client is replaced, e^{cL} cuts off the losses far below zero, or, for c < 0, the part
        q N(-1) of Q counts.
        """
        peak = -0.5 * self._shift
        if self.replaced and tilt > 0.0:
            spreads = reach / 128 * np.arange(1.0, 129.0)
            u = peak - spreads / self.noise
            enough = spreads**2 / 2 - tilt * self(u)[0] >= reach**2 / 2
            return float(u[int(np.argmax(enough))]) if enough.any() else float(u[-1])
        if self.replaced:
            return peak - reach / self.noise - (self._shift if tilt < 0.0 else 0.0)
        log_odds = math.log1p(-self.rate) - math.log(self.rate)
        steepest = 1 / (1 + math.exp(min(log_odds - peak, 700.0)))
        order = -tilt if self.added else 1 + tilt
        return peak - reach / self.noise + min(order, 0.0) * steepest * self._shift

    def log_mass_before(self, start: float, tilt: float, reach: float) -> float:
        """Return an upper bound of log of the tilted mass left of ``start``, ``tilt`` > -1."""
        first = math.log1p(self.rate * math.expm1(start))
        gaussian = -((self.noise * start + 0.5 / self.noise) ** 2) / 2
        if self.added:
            # The logarithm of the integrand has at least the slope reach sigma there.
            scale = math.log(self.noise / math.sqrt(2 * math.pi)) - math.log(reach * self.noise)
            return gaussian - tilt * first + scale + 1e-6 * (1 + abs(tilt * first))
        if not self.replaced:
            # Left of ``start`` r is less than there.
            return (1 + tilt) * first * (1 - 1e-9) - reach**2 / 2
        # P has less than a Gaussian there. For c < 0, r' to the power of -c is at most 1 + r'.
        loss = float(self(np.array([start]))[0][0])
        return gaussian * (1 - 1e-12) + (tilt * loss * (1 - 1e-9) if tilt > 0 else math.log(2.0))

    def edges(self, tilt: float, start: float, end: float, frequency: float) -> Array:
        """Return edges of panels as `panel_edges` does, on both sides of x = 0 if needed."""
        order = abs(tilt) if self.added else 1 + tilt
        if not self.replaced:
            return panel_edges(order, self.rate, self.noise, end, frequency, start)
        middle, setting = -0.5 * self._shift, (self.rate, self.noise)
        if start >= middle:
            return panel_edges(order, *setting, end, frequency, start)
        # On either side of x = 0 one of the two powers varies. Next to 0 both have waves.
        mirrored = min(end, middle)
        if -start - self._shift > _FARTHEST:
            raise NotConverged("the losses of so little noise are too large")
        left = panel_edges(
            1 + abs(tilt), *setting, -start - self._shift, 2 * frequency, -mirrored - self._shift
        )
        left = -left[::-1] - self._shift
        left[0], left[-1] = start, mirrored
        if end <= middle:
            return left
        right = panel_edges(order, *setting, end, 2 * frequency, middle)
        return np.concatenate([left, right[1:]])

    def errors(self, edges: Array, u: Array, weights: Array) -> tuple[Array, Array, Array]:
        """Return absolute errors of L and base, and the relative one of weight times g."""
        ratio = self._log_ratio(u)
        error, weight_error = node_errors(self.rate, self.noise, edges, u, weights, ratio)
        if not self.replaced:
            return error, error if self.added else np.zeros_like(error), weight_error
        opposite_u = -u - self._shift
        opposite = self._log_ratio(opposite_u)
        width = np.diff(edges)[:, None]
        moved = 2 * RULE_ERROR * width + 6 * UNIT * (np.abs(u) + self._shift)
        size = np.abs(opposite)
        below = ratio_error(size, opposite_u)
        below += np.exp(math.log(self.rate) + opposite_u - opposite) * moved
        return error + below + UNIT * (np.abs(ratio) + size), below, weight_error

    def bounds(self, edges: Array) -> LossBounds:
        """Return suprema over the Bernstein ellipse of each panel."""
        return LossBounds(self, edges)


class LossBounds:
    """Suprema of `LossFunction` over the Bernstein ellipse of each panel, of shape (m,).

    Attributes:
        half: half-widths of the panels.
        loss: bound of |L|.
        angle: bound of |Im L|.
    """

    def __init__(self, pair: LossFunction, edges: Array) -> None:
        self._pair = pair
        here = self._here = PanelBounds(pair.rate, pair.noise**2, edges)
        self.half: Array = here.half
        self.loss: Array = here.loss
        self.angle: Array = here.angle
        if pair.replaced:
            mirrored = -edges[::-1] - 1 / pair.noise**2
            there = PanelBounds(pair.rate, pair.noise**2, mirrored)
            self._least_there, self._most_there = there.log_smallest[::-1], there.log_largest[::-1]
            self.loss, self.angle = here.loss + there.loss[::-1], here.angle + there.angle[::-1]

    def peak(self, order: float, offset: float | Array = 0.0) -> Array:
        """Return a bound of |g e^{base + order L - offset}| without the constant factor of g."""
        rest = 1 - order
        if self._pair.replaced:
            side = self._least_there if rest < 0 else self._most_there
            return self._here.peak(order, offset - rest * side)
        if self._pair.added:
            least = self._here.log_smallest
            return self._here.peak(max(rest, 0.0), offset - min(rest, 0.0) * least)
        return self._here.peak(order, offset)
