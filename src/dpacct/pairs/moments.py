"""Moments of the likelihood ratio of each kind of pair, E_Q[(P/Q)^a], with proven bounds.

* `log_moment`: sampled Gaussians, I(a) = E[r(x)^a], x ~ N(0, sigma^2), any real a,
* `replacement_log_moment`: a client replaced by its opposite, the integral of
  phi r(x)^a r(-x)^(1-a),
* `symmetrized_log_moment`: the pair of C_q(Gaussian), with l = log r

      I_C(a) - 1 = integral over x > 1/2 of phi (1 - e^{-(a-1) l}) (e^{a l} - 1),

* `wang_log_moment`: the published bound of the same rounds, larger in all comparisons,
* `PairMoments`: the sum over all rounds of a direction.

The first two integrands are analytic on the whole line, where the trapezoid rule converges
exponentially (`trapezoid`). At the edges of the parameter range, where it would need too many
nodes, simple inequalities are as tight as double precision. The third integrand stops at x = 1/2,
which takes the panels of `panels`. Derivations: docs/derivations/moments.md, replacement.md,
uniform-sampling.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np

from dpacct.budget import Interval
from dpacct.numerics.quadrature import ERROR_FACTOR, panel_nodes
from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, Array, Bounds, weighted_sum
from dpacct.pairs.dominating import (
    Direction,
    DominatingPair,
    GeneralPair,
    ReplacementPair,
    SampledGaussianPair,
    SymmetrizedPair,
)
from dpacct.pairs.panels import PanelBounds, node_errors, panel_edges
from dpacct.pairs.trapezoid import trapezoid_log_moment

# For a < 0 the integral needs about 15 (-a)^(1/2) / sigma nodes: the inequality from here on.
_MOST_NODES = 2e4
# For 0 < a < 1 it needs about 40 / sigma^2: the inequality below this sigma.
_LITTLE_NOISE = 0.02


def log_moment(order: object, sampling_rate: object, noise_std: object) -> Bounds:
    """Return bounds of log I(a), the moment of the likelihood ratio of a sampled Gaussian.

    Args:
        order: a, any real number. Shapes of the three arguments broadcast to (n,) or ().
        sampling_rate: q in (0, 1].
        noise_std: sigma > 0, in units of the shift.
    Error:
        Contained in the bounds, which are typically 1e-13 apart (relative), also for log I(a)
        as small as 1e-300. For 0 < a < 1 the relative width grows as 1 / (1 - a).
    Raises:
        NotConverged: more than 8 million nodes would be needed, which never happened for orders
            from -1e7 to 1e7 and noise stds from 5e-4 on.
    Source: Mironov, Talwar, Zhang 2019, arXiv:1908.10530, section 3, docs/derivations/moments.md.
    """
    (a, q, sigma), shape = _rows(order, sampling_rate, noise_std)
    lower, upper = _gaussian(a, sigma)
    unknown = (q < 1) & (a != 0) & (a != 1)
    upper[unknown] = np.nan
    for route, smallest, largest in (
        (_dominated, 1.0, np.inf),
        (_far_apart, 1.0, 2.0),
        (_absent, -np.inf, 0.0),
        (_subadditive, 0.0, 1.0),
        (_swapped, -np.inf, 0.0),
        (trapezoid_log_moment, -np.inf, np.inf),
    ):
        rows = np.flatnonzero(np.isnan(upper) & (a > smallest) & (a <= largest))
        if rows.size:
            lower[rows], upper[rows] = route(a[rows], q[rows], sigma[rows])
    return _checked(lower, upper, a, shape)


def _rows(*parameters: object) -> tuple[list[Array], tuple[int, ...]]:
    """Return broadcast parameters as vectors, and their common shape."""
    values = np.broadcast_arrays(*(np.asarray(value, dtype=np.float64) for value in parameters))
    return [np.atleast_1d(value).ravel() for value in values], values[0].shape


def _checked(lower: Array, upper: Array, a: Array, shape: tuple[int, ...]) -> Bounds:
    """Return bounds in a shape. NaN bounds nothing, and I(a) >= 1 outside [0, 1] (Jensen)."""
    lower = np.where(np.isnan(lower), -np.inf, lower)
    upper = np.where(np.isnan(upper), np.inf, upper)
    lower = np.where((a < 0) | (a > 1), np.maximum(lower, 0.0), lower)
    return Bounds(lower.reshape(shape), upper.reshape(shape))


def _gaussian(a: Array, sigma: Array) -> Bounds:
    """Return log I(a) = a (a - 1) / (2 sigma^2), which holds at q = 1."""
    value = a * (a - 1) / (2 * sigma**2)
    slack = 8 * UNIT * np.abs(value)
    return Bounds(value - slack, value + slack)


def _dominated(a: Array, q: Array, sigma: Array) -> Bounds:
    """Return bounds for a > 1 so large that only q e^u matters, and NaN elsewhere.

    q e^u <= r gives the lower side, Minkowski's inequality in L^a the upper one:
    0 <= log I(a) - a log q - a (a-1) / (2 sigma^2) <= a (1-q)/q e^{-(a-1)/(2 sigma^2)}.
    """
    gaussian = _gaussian(a, sigma)
    exponent = np.log1p(-q) - np.log(q) - (a - 1) / (2 * sigma**2)
    rest = a * np.exp(np.minimum(exponent, 0.0))
    applies = rest < UNIT * gaussian.upper
    shift, slack = a * np.log(q), FUNCTION_ERROR * np.abs(a * np.log(q))
    return Bounds(
        np.where(applies, gaussian.lower + shift - slack, np.nan),
        np.where(applies, gaussian.upper + shift + slack + 2 * rest, np.nan),
    )


def _far_apart(a: Array, q: Array, sigma: Array) -> Bounds:
    """Return bounds for 1 < a <= 2 if N(0) and N(1) hardly overlap, and NaN elsewhere.

    With A = 1 - q, B = q e^u: A^a + B^a <= (A + B)^a <= A^a + B^a + a 2^(a-1) (A B)^(a/2), hence
    I(a) - 1 = (1-q) (e^{b log(1-q)} - 1) + q (e^{b (log q + a/(2 sigma^2))} - 1), b = a - 1, up to
    a 2^(a-1) (q (1-q))^(a/2) e^{-a (2-a) / (8 sigma^2)}.
    """
    b, log_q, log_rest = a - 1, np.log(q), np.log1p(-q)
    log_overlap = np.log(4 * a) + a / 2 * (log_q + log_rest) - a * (2 - a) / (8 * sigma**2)
    overlap = np.exp(np.minimum(log_overlap, 0.0))
    growth = np.minimum(b * (log_q + a / (2 * sigma**2)), 600.0)
    hit, miss = q * np.expm1(growth), (1 - q) * np.expm1(b * log_rest)
    excess = hit + miss
    slack = UNIT * (32 * (hit - miss) + 16 * q * np.exp(growth) * b * (a / sigma**2 - log_q))
    applies = (growth > 0) & (growth < 600.0) & (overlap < UNIT * excess)
    excess, slack = np.where(applies, excess, 1.0), np.where(applies, slack, 0.0)
    return Bounds(
        np.where(applies, np.log1p(excess - slack) * (1 - FUNCTION_ERROR), np.nan),
        np.where(applies, np.log1p(excess + slack + overlap) * (1 + FUNCTION_ERROR), np.nan),
    )


def _absent(a: Array, q: Array, sigma: Array) -> Bounds:
    """Return bounds for a < 0 if q e^u hardly matters where N(0) is, and NaN elsewhere.

    r >= 1 - q gives the upper side. Left of x = 0.4 r is at most (1 - q) (1 + y),
    y = q / (1 - q) e^{-1 / (10 sigma^2)}, and of N(0) at most e^{-0.08 / sigma^2} / 2 lies beyond.
    """
    value = a * np.log1p(-q)
    log_y = np.log(q) - np.log1p(-q) - 0.1 / sigma**2
    rest = -a * np.exp(np.minimum(log_y, 0.0)) + np.exp(-0.08 / sigma**2)
    slack = FUNCTION_ERROR * value
    applies = rest < UNIT * value
    return Bounds(
        np.where(applies, value - slack - 2 * rest, np.nan),
        np.where(applies, value + slack, np.nan),
    )


def _subadditive(a: Array, q: Array, sigma: Array) -> Bounds:
    """Return bounds for 0 < a < 1 and so little noise that nodes are many, and NaN elsewhere.

    A^a <= (A + B)^a <= A^a + B^a with A = 1 - q, B = q e^u. The mean of e^{a u} is that of a
    Gaussian, and no affinity exceeds 1.
    """
    log_rest, log_hit = a * np.log1p(-q), a * np.log(q) - a * (1 - a) / (2 * sigma**2)
    upper = np.logaddexp(log_rest, log_hit)
    slack = 4 * FUNCTION_ERROR * (np.abs(log_rest) + np.abs(upper)) + 2.0**-1000
    few = sigma < _LITTLE_NOISE
    return Bounds(
        np.where(few, log_rest - slack, np.nan), np.where(few, np.minimum(upper + slack, 0), np.nan)
    )


def _swapped(a: Array, q: Array, sigma: Array) -> Bounds:
    """Return bounds for a < 0 so large that the integral has millions of nodes, and NaN elsewhere.

    1 <= I(a) <= I(1 - a): no divergence of the add direction exceeds that of the remove direction.

    Source: Mironov, Talwar, Zhang 2019 (arXiv:1908.10530), theorem 5.
    """
    upper = np.full_like(a, np.nan)
    rows = np.flatnonzero(np.sqrt(-a) > _MOST_NODES * sigma)
    if rows.size:
        upper[rows] = log_moment(1 - a[rows], q[rows], sigma[rows]).upper
    return Bounds(np.zeros_like(a), upper)


# With less noise, or more nodes (about 2 a^(3/2) / sigma^2), `_product` replaces the integral.
_SMALL_SIGMA, _MANY_NODES = 0.03, 2e5


def replacement_log_moment(order: object, sampling_rate: object, noise_std: object) -> Bounds:
    """Return bounds of log I(a) of a round in which a client may be replaced.

    Args:
        order: a > 0. Shapes of the three arguments broadcast to (n,) or ().
        sampling_rate: q in (0, 1].
        noise_std: sigma > 0, in units of the largest contribution.
    Error:
        Contained in the bounds, as for `log_moment`. For 0 < a < 1 and sigma below 0.03, simple
        inequalities give the bounds.
    Source: docs/derivations/replacement.md.
    """
    (a, q, sigma), shape = _rows(order, sampling_rate, noise_std)
    # q = 1: N(1) against N(-1), with shift 2.
    lower, upper = _gaussian(a, sigma / 2)
    small = sigma < _SMALL_SIGMA
    few = a**1.5 <= _MANY_NODES * sigma**2
    for rows, route in (
        (small & (a < 1), _separated),
        ((a > 1) & (small | ~few), _product),
        (~small & ((a < 1) | few), partial(trapezoid_log_moment, mirrored=True)),
    ):
        some = np.flatnonzero(rows & (q < 1) & (a != 1))
        if some.size:
            part = route(a[some], q[some], sigma[some])
            lower[some] = part.lower
            # A mixture diverges no more than the worst of its parts.
            most = np.where(a[some] > 1, upper[some], 0.0)
            upper[some] = np.fmin(part.upper, most)
    return _checked(lower, upper, a, shape)


def _product(a: Array, q: Array, sigma: Array) -> Bounds:
    """Return bounds for a > 1 if N(-1) hardly reaches to the mass of the moment.

    With y = q / (1-q) e^{u(-x)}, r(-x)^(1-a) = (1-q)^(1-a) (1 + y)^(1-a) lies between (1-q)^(1-a)
    and that less min((a-1) y, ((a-1) y)^(1/2)) times it. The mean of y^s r^a is bounded by
    Minkowski's inequality under phi y^s, a Gaussian around -s.
    """
    b, log_rest, log_odds = a - 1, np.log1p(-q), np.log(q) - np.log1p(-q)
    whole = log_moment(a, q, sigma)
    missing = np.full_like(a, np.inf)
    for share in (0.5, 1.0):
        grown = log_odds + (a - 1 - 2 * share) / (2 * sigma**2)
        mean = share * (log_odds + np.log(b)) - share * (1 - share) / (2 * sigma**2)
        mean += a * (log_rest + np.logaddexp(0.0, grown))
        size = share * (np.abs(log_odds) + np.abs(np.log(b))) + 1 / sigma**2
        size += a * (np.abs(log_rest) + np.abs(log_odds) + a / sigma**2)
        missing = np.minimum(missing, mean + 8 * FUNCTION_ERROR * size - whole.lower)
    shift = -b * log_rest
    slack = FUNCTION_ERROR * (shift + whole.upper)
    lost = np.log1p(-np.exp(np.minimum(missing, -1e-9)))
    return Bounds(whole.lower + shift - slack + 2 * lost, whole.upper + shift + slack)


def _separated(a: Array, q: Array, sigma: Array) -> Bounds:
    """Return bounds for 0 < a < 1: P and Q share (1-q) N(0), and (x + y)^a <= x^a + y^a."""
    log_q, log_rest = np.log(q), np.log1p(-q)
    near = -a * (1 - a) / (2 * sigma**2)
    terms = [
        a * log_rest + (1 - a) * log_q + near,
        a * log_q + (1 - a) * log_rest + near,
        log_q + 4 * near,
    ]
    upper = np.logaddexp.reduce(np.stack([log_rest, *terms]))
    slack = 16 * FUNCTION_ERROR * (np.abs(log_rest) + np.abs(upper)) + 2.0**-1000
    return Bounds(log_rest - slack, upper + slack)


_ACCURACY = 42.0
_LEAST_SIGMA = 0.05
# Above this log I, the half-line moment differs from the whole-line one by less than e^-38.
_ALL_IN_TAIL = 40.0


def symmetrized_log_moment(order: float, sampling_rate: float, noise_std: float) -> Bounds:
    """Return bounds of log E_Q[(P/Q)^a] for the pair of C_q(N(1, sigma^2) against N(0, sigma^2)).

    Args:
        order: a > 1.
        sampling_rate: q in (0, 1].
        noise_std: sigma > 0 in units of the shift (z / 2 if a client is replaced).
    Error:
        Inside the bounds: quadrature, truncation and rounding, typically 1e-13 relative.
    Source: Dong, Roth, Su 2022 (arXiv:1905.02383), theorem 9, for the pair.
    """
    whole = log_moment(order, sampling_rate, noise_std)
    if sampling_rate == 1.0:
        return whole
    if whole.lower > _ALL_IN_TAIL:
        # Parts of mass at most one are exchanged: |I_C - I| <= 1.
        spread = 2 * np.exp(-whole.lower) + 4 * UNIT * whole.upper
        return Bounds(whole.lower - spread, whole.upper + spread)
    if noise_std <= _LEAST_SIGMA:
        excess = _separated_excess(order, sampling_rate, noise_std, whole)
    else:
        excess = _half_line_excess(order, sampling_rate, noise_std)
    return Bounds(
        np.log1p(excess.lower) * (1 - FUNCTION_ERROR),
        np.log1p(excess.upper) * (1 + FUNCTION_ERROR),
    )


def _separated_excess(a: float, q: float, sigma: float, whole: Bounds) -> Interval:
    """Return I_C(a) - 1 if N(0) hardly reaches beyond 1/2.

    Up to (a + 2) e^{-1/(8 sigma^2)} it is I(a) - (1-q)^a - q: left of 1/2 only r = 1 - q counts.
    """
    miss = -(1 - q) * math.expm1((a - 1) * math.log1p(-q))
    spill = (a + 2) * math.exp(-1 / (8 * sigma * sigma))
    lower, upper = math.expm1(float(whole.lower)), math.expm1(float(whole.upper))
    slack = 32 * UNIT * (abs(upper) + miss) + spill
    return Interval(max(0.0, lower + miss - slack), upper + miss + slack)


def _half_line_excess(a: float, q: float, sigma: float) -> Interval:
    """Return I_C(a) - 1 by panels in u = (2x - 1) / (2 sigma^2) > 0.

    The integrand is (sigma / sqrt(2 pi)) e^{-(sigma u + 1/(2 sigma))^2 / 2} times
    (1 - e^{-(a-1) l})(e^{a l} - 1), l = log r.
    """
    b = a - 1
    variance = sigma * sigma
    log_size = math.log(a * b / 2) + 2 * math.log(q) + math.log(math.expm1(min(1 / variance, 1.0)))
    accuracy = _ACCURACY + max(0.0, -log_size)
    end = (max(a, 1.0) + sigma * math.sqrt(2 * accuracy) - 0.5) / variance
    edges = panel_edges(a, q, sigma, end)
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
    loss_error, weight_error = node_errors(q, sigma, edges, u, weights, loss)
    relative = (2 / loss + a) * loss_error + weight_error + UNIT * (3 * a * loss + 160)
    magnitude = float(np.sum(terms))
    rounding = float(np.sum(terms * relative)) * 1.01 + 2 * UNIT * (terms.size + 16) * magnitude
    bounds = PanelBounds(q, variance, edges)
    # |1 - e^{-c}| <= |c| max(1, e^{-Re c}): both factors are small where the loss is.
    shrink = np.minimum(1.0, b * bounds.loss) * np.minimum(1.0, a * bounds.loss)
    size = (1 + bounds.power(-b)) * (bounds.peak(a) + bounds.peak(0.0))
    quadrature = 1.01 * ERROR_FACTOR * float(np.sum(bounds.half * shrink * size))
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


MAX_WANG_ORDER = 1024


def wang_log_moment(order: float, sampling_rate: float, noise_std: float) -> float:
    """Return the upper bound of log E_Q[(P/Q)^a] by Wang et al., at any real order a > 1.

    At integers a <= 1024: 1 + q^2 C(a,2) min(4 (e^{e2} - 1), 2 e^{e2})
    + sum_{j>=3} 2 q^j C(a,j) e^{(j-1) e_j} with e_j = j / (2 sigma^2), the Gaussian's own order-j
    divergence. Between integers log E is convex in a, so a chord bounds it, and it is 0 at 1.
    The bound is rounded up, and infinite for a > 1024.

    Source: Wang, Balle, Kasiviswanathan 2019 (arXiv:1808.00087), theorem 9 and corollary 10.
    """
    below = math.floor(order)
    if below + 1 > MAX_WANG_ORDER:
        return math.inf
    at_below = _wang_integer(below, sampling_rate, noise_std) if below >= 2 else 0.0
    if order == below:
        return at_below
    at_above = _wang_integer(below + 1, sampling_rate, noise_std)
    share = order - below
    return ((1 - share) * at_below + share * at_above) * (1 + 8 * UNIT)


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
    value = float(np.logaddexp(0.0, top + math.log(total) + 4 * UNIT * abs(top)))
    return value * (1 + 2 * FUNCTION_ERROR)


@lru_cache(maxsize=64)
def log_binomials(order: int) -> Array:
    """Return log C(a, k) for k = 0..a, within 4 ulp: integers are exact before the logarithm."""
    return np.array([math.log(math.comb(order, k)) for k in range(order + 1)])


class PairTable(NamedTuple):
    """Sampling rates, noise stds and multiplicities of pairs of one kind, shape (m,)."""

    rates: Array
    noise: Array
    counts: Array


def rows_of(
    pairs: Mapping[DominatingPair, int], kind: type[SampledGaussianPair | ReplacementPair]
) -> PairTable:
    """Return the pairs of one kind as rows."""
    some = [(p.sampling_rate, p.noise_std, n) for p, n in pairs.items() if isinstance(p, kind)]
    return PairTable(*(np.array(part) for part in np.array(some, dtype=float).reshape(-1, 3).T))


class PairMoments:
    """The sum of log E_Q[(P/Q)^order] over pairs of one direction, with multiplicities.

    A remove pair has log I(order), an add pair log I(1 - order).
    """

    def __init__(self, pairs: Mapping[DominatingPair, int], direction: Direction) -> None:
        self.pairs, self.direction = dict(pairs), direction
        self._sampled = rows_of(pairs, SampledGaussianPair)
        self._replaced = rows_of(pairs, ReplacementPair)
        self.symmetrized = [(p, n) for p, n in pairs.items() if isinstance(p, SymmetrizedPair)]
        self._general = [(p, n) for p, n in pairs.items() if isinstance(p, GeneralPair)]

    def log_moment(self, order: float) -> Bounds:
        """Return bounds of the sum, 0-dimensional."""
        a = order if self.direction is Direction.REMOVE else 1 - order
        rates, noise, counts = self._sampled
        total = weighted_sum(log_moment(a, rates, noise), counts)
        if len(self.pairs) == len(rates):
            return total
        parts: list[tuple[Bounds, float]] = [(total, 1.0)]
        parts += [(general.renyi_moment(order), count) for general, count in self._general]
        for pair, count in self.symmetrized:
            moment = symmetrized_log_moment(order, pair.sampling_rate, pair.noise_std)
            wang = wang_log_moment(order, pair.sampling_rate, pair.noise_std)
            parts.append((Bounds(moment.lower, np.minimum(moment.upper, wang)), count))
        rates, noise, counts = self._replaced
        if len(rates):
            parts.append((weighted_sum(replacement_log_moment(order, rates, noise), counts), 1.0))
        each = Bounds(*(np.array(ends) for ends in zip(*(part for part, _ in parts), strict=True)))
        return weighted_sum(each, np.array([count for _, count in parts]))
