"""Renyi moments of fixed-size sampling under replacement of one client.

The pair of C_q(Gaussian), `SymmetrizedPair`: with l = log r,

    I_C(a) - 1 = integral over x > 1/2 of phi (r^a + r^(1-a) - 1 - r)
               = integral over x > 1/2 of phi (1 - e^{-(a-1) l}) (e^{a l} - 1),

all terms non-negative, a > 1. `dpacct.renyi.wang` has another bound, larger wherever compared.
Derivation and error bound: docs/derivations/uniform-sampling.md.
"""

from __future__ import annotations

import math

import numpy as np

from dpacct.budget import Interval
from dpacct.numerics.quadrature import ERROR_FACTOR, panel_nodes
from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, Bounds
from dpacct.pairs.moments import log_moment
from dpacct.pairs.panels import PanelBounds, node_errors, panel_edges

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
