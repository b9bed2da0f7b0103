"""Renyi moments of fixed-size sampling under replacement of one client.

Two routes, both proven. (1) The pair of C_q(Gaussian), `SymmetrizedPair`: with l = log r,

    I_C(a) - 1 = integral over x > 1/2 of phi (r^a + r^(1-a) - 1 - r)
               = integral over x > 1/2 of phi (1 - e^{-(a-1) l}) (e^{a l} - 1),

all terms non-negative, a > 1. (2) The bound of Wang, Balle, Kasiviswanathan 2019 at integer
orders, interpolated. Route 1 is the smaller wherever it was compared; both are reported.
Derivation and error bound: docs/derivations/uniform-sampling.md.
"""

from __future__ import annotations

import math

import numpy as np

from dpacct.binomial import log_binomials
from dpacct.budget import Interval
from dpacct.moments import log_moment
from dpacct.quadrature import (
    ERROR_FACTOR,
    IMAGINARY_AXIS,
    REAL_AXIS,
    RULE_ERROR,
    panel_nodes,
)
from dpacct.rounding import FUNCTION_ERROR, UNIT, Array, Bounds

MAX_WANG_ORDER = 1024
_ACCURACY = 42.0
_SMALL_SIGMA = 0.05
# Above this log I, the half-line moment differs from the whole-line one by less than e^-38.
_ALL_IN_TAIL = 40.0


def symmetrized_log_moment(order: float, sampling_rate: float, noise_std: float) -> Bounds:
    """log E_Q[(P/Q)^a] for the pair of C_q(N(1, sigma^2) against N(0, sigma^2)).

    Args:
        order: a > 1.
        sampling_rate: q in (0, 1].
        noise_std: sigma > 0 in units of the shift (z / 2 where a client is replaced).
    Returns:
        Lower and upper bounds (0-dimensional arrays).
    Error:
        Inside the bounds: quadrature, truncation and rounding; typically 1e-13 relative.
    Source: Dong, Roth, Su 2022 (arXiv:1905.02383), theorem 9, for the pair.
    """
    whole = log_moment(order, sampling_rate, noise_std)
    if sampling_rate == 1.0:
        return whole
    if whole.lower > _ALL_IN_TAIL:
        # Parts of mass at most one are exchanged: |I_C - I| <= 1.
        spread = 2 * np.exp(-whole.lower) + 4 * UNIT * whole.upper
        return Bounds(whole.lower - spread, whole.upper + spread)
    if noise_std <= _SMALL_SIGMA:
        excess = _separated_excess(order, sampling_rate, noise_std, whole)
    else:
        excess = _half_line_excess(order, sampling_rate, noise_std)
    return Bounds(
        np.log1p(excess.lower) * (1 - FUNCTION_ERROR),
        np.log1p(excess.upper) * (1 + FUNCTION_ERROR),
    )


def _separated_excess(a: float, q: float, sigma: float, whole: Bounds) -> Interval:
    """I_C(a) - 1 where N(0) hardly reaches beyond 1/2.

    Up to (a + 2) e^{-1/(8 sigma^2)} it is I(a) - (1-q)^a - q: left of 1/2 only r = 1 - q counts.
    """
    miss = -(1 - q) * math.expm1((a - 1) * math.log1p(-q))
    spill = (a + 2) * math.exp(-1 / (8 * sigma * sigma))
    lower, upper = math.expm1(float(whole.lower)), math.expm1(float(whole.upper))
    slack = 32 * UNIT * (abs(upper) + miss) + spill
    return Interval(max(0.0, lower + miss - slack), upper + miss + slack)


def _half_line_excess(a: float, q: float, sigma: float) -> Interval:
    """I_C(a) - 1 by panels in u = (2x - 1) / (2 sigma^2) > 0.

    The integrand is (sigma / sqrt(2 pi)) e^{-(sigma u + 1/(2 sigma))^2 / 2} times
    (1 - e^{-(a-1) l})(e^{a l} - 1), l = log r.
    """
    b = a - 1
    variance = sigma * sigma
    log_size = math.log(a * b / 2) + 2 * math.log(q) + math.log(math.expm1(min(1 / variance, 1.0)))
    accuracy = _ACCURACY + max(0.0, -log_size)
    end = (max(a, 1.0) + sigma * math.sqrt(2 * accuracy) - 0.5) / variance
    edges = _panel_edges(a, q, sigma, end)
    u, weights = panel_nodes(edges)

    shift = q * np.expm1(np.minimum(u, 700.0))
    loss = np.where(u > 700.0, u + np.log(q + (1 - q) * np.exp(-u)), np.log1p(shift))
    log_weight = -((sigma * u + 0.5 / sigma) ** 2) / 2
    terms = weights * (-np.expm1(-b * loss) * (np.exp(a * loss + log_weight) - np.exp(log_weight)))
    small = a * loss < 1.0
    terms[small] = (
        (weights * np.exp(log_weight))[small]
        * -np.expm1(-b * loss[small])
        * np.expm1(a * loss[small])
    )
    # Relative errors: of the loss, of the exponents, of both factors, of the nodes.
    error_loss = UNIT * (16 * loss + np.minimum(1.45 * loss, 1.0) * (14 + 13 * u))
    slope = 1 / loss + 1 / loss + a
    p = q * np.exp(-np.log1p(shift) + np.minimum(u, 700.0))
    node_shift = RULE_ERROR * np.diff(edges)[:, None] + 3 * UNIT * u
    relative = (
        slope * (error_loss + p * node_shift)
        + node_shift * (variance * u + 1)
        + UNIT * (8 * np.abs(log_weight) + 3 * a * loss + 160)
        + RULE_ERROR * np.diff(edges)[:, None] / weights
    )
    magnitude = float(np.sum(terms))
    rounding = float(np.sum(terms * relative)) * 1.01 + 2 * UNIT * (terms.size + 16) * magnitude
    quadrature = float(np.sum(_panel_errors(a, q, variance, edges)))
    # Beyond the last panel phi r^a bounds the integrand, and X >= a: half a Gaussian tail.
    last = float(u[-1, -1])
    log_last = math.log(q) + last + math.log1p((1 - q) / q * math.exp(-last))
    tail = 1.26 / sigma * math.exp(a * log_last - (sigma * last + 0.5 / sigma) ** 2 / 2)
    scale = sigma / math.sqrt(2 * math.pi)
    slack = rounding + quadrature + tail
    spread = 64 * UNIT
    lower = max(0.0, (magnitude - slack) * scale * (1 - spread))
    upper = (magnitude + slack) * scale * (1 + spread) + 2.0**-900
    return Interval(lower, upper)


def _panel_edges(a: float, q: float, sigma: float, end: float) -> Array:
    """Panels small against the boundary layer at 0 and against the curvature of the exponent."""
    edges = [0.0]
    first = min(0.5, 0.5 / ((a - 1) * q + 1e-300))
    while edges[-1] < end:
        left = edges[-1]
        # Curvature of a log r in u is a p (1 - p), p taken where it is steepest in reach.
        p = 1 / (1 + (1 - q) / q * math.exp(-min(left + 1.0, 700.0)))
        spread = p * (1 - p) if p < 0.5 else 0.25 if left < math.log(1 / q) + 1 else p * (1 - p)
        width = min(
            first + left / 2,
            1.0,
            1.4 / sigma,
            2 / math.sqrt(1 + a * spread + sigma**2),
        )
        edges.append(left + width)
    return np.array(edges)


def _panel_errors(a: float, q: float, variance: float, edges: Array) -> Array:
    """Bound of the quadrature error on each panel, up to the factor sigma / sqrt(2 pi)."""
    half = np.diff(edges) / 2
    center = edges[:-1] + half
    reach = REAL_AXIS * half
    low, high = center - reach, center + reach
    height = IMAGINARY_AXIS * half

    def probability(u: Array) -> Array:
        return 1 / (1 + (1 - q) / q * np.exp(-u))

    def log_ratio(u: Array) -> Array:
        return np.logaddexp(np.log1p(-q), math.log(q) + u)

    # g(u) = -(sigma u + 1/(2 sigma))^2/2 + power * log r(u) on [low, high] by its end slopes.
    def peak(power: float) -> Array:
        quadratic = variance * center**2 + center + 0.25 / variance
        middle = -quadratic / 2 + power * log_ratio(center)
        up = -variance * low - 0.5 + power * probability(high)
        down = variance * high + 0.5 - power * probability(low)
        return middle + reach * np.maximum(0.0, np.maximum(up, down))

    # |r| >= Re r >= 1 - q + q e^low cos(height) > 0 in the ellipse; |r^a| <= r(Re)^a.
    smallest = 1 - q + q * np.exp(np.clip(low, -700.0, 700.0)) * np.cos(height)
    falling = 1 + np.exp(np.minimum(-(a - 1) * np.log(smallest), 700.0))
    # |log r| <= |u| sup |p| <= loss, and |1 - e^{-c}| <= |c| max(1, e^{-Re c}): small for small q.
    farthest = np.hypot(np.maximum(np.abs(low), high), height)
    loss = farthest * q * np.exp(np.minimum(high, 700.0)) / smallest
    shrink = np.minimum(1.0, (a - 1) * loss) * np.minimum(1.0, a * loss)
    rising = np.exp(np.minimum(peak(a), 700.0)) + np.exp(np.minimum(peak(0.0), 700.0))
    bound = falling * rising * np.exp(variance * height**2 / 2)
    return 1.01 * ERROR_FACTOR * half * shrink * bound


def wang_log_moment(order: float, sampling_rate: float, noise_std: float) -> float:
    """Upper bound of log E_Q[(P/Q)^a] by Wang et al., at any real order a > 1.

    At integers a <= 1024: 1 + q^2 C(a,2) min(4 (e^{e2} - 1), 2 e^{e2})
    + sum_{j>=3} 2 q^j C(a,j) e^{(j-1) e_j} with e_j = j / (2 sigma^2), the Gaussian's own order-j
    divergence. Between integers log E is convex in a, so it is interpolated linearly; it is 0 at 1.

    Returns:
        The bound, rounded up; infinity for a > 1024.
    Source: Wang, Balle, Kasiviswanathan 2019 (arXiv:1808.00087), theorem 9 and corollary 10.
    """
    below = math.floor(order)
    if below + 1 > MAX_WANG_ORDER:
        return math.inf
    at_below = _wang_integer(below, sampling_rate, noise_std) if below >= 2 else 0.0
    if order == below:
        return at_below
    above = _wang_integer(below + 1, sampling_rate, noise_std)
    share = order - below
    return ((1 - share) * at_below + share * above) * (1 + 8 * UNIT)


def _wang_integer(a: int, q: float, sigma: float) -> float:
    j = np.arange(2.0, a + 1)
    growth = j * (j - 1) / (2 * sigma**2)
    log_factor = np.full_like(j, math.log(2.0)) + growth
    second = 1 / sigma**2
    log_factor[0] = min(math.log(4.0) + second + math.log(-math.expm1(-second)), log_factor[0])
    log_choose = log_binomials(a)[2:]
    exponent = j * math.log(q) + log_choose + log_factor
    error = 2 * FUNCTION_ERROR * (-j * math.log(q) + log_choose + growth + 4)
    top = float(np.max(exponent + error))
    total = float(np.sum(np.exp(exponent + error - top))) * (1 + 2 * UNIT * (a + 16))
    value = float(np.logaddexp(0.0, top + math.log(total)))
    return value * (1 + 2 * FUNCTION_ERROR) + 2 * UNIT * abs(top)
