"""Cumulants of tilted losses: what the search for a saddle point needs. Nothing here is proven."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import numpy as np

from dpacct.numerics.rounding import Array
from dpacct.pairs.dominating import AchievedPair
from dpacct.pairs.panels import LossFunction
from dpacct.tight.laws.tilted_nodes import TiltedNodes

# Accuracy e^-20 of the sums of nodes, and how many there may be: a search takes some dozens.
ACCURACY, MAX_NODES = 20.0, 200_000
# Of the midpoint rule, and how far it goes into the tails of a Gaussian.
_NODES, _REACH = 1500, 8.0


class Cumulants(NamedTuple):
    """K(c) = log M(c), K'(c) and K''(c): mean and variance of the loss tilted by e^{c L}."""

    log_moment: float
    mean: float
    variance: float


class Tiltable(Protocol):
    """What has cumulants at every tilt c > 0."""

    def cumulants(self, tilt: float) -> Cumulants:
        """To about 1e-8."""
        ...


def nodes_cumulants(nodes: TiltedNodes, noise: Array, counts: Array) -> Cumulants:
    """The same for rounds of which there are ``counts``; noise std and counts of shape (m,).

    The logarithm of the moment is that of the density N(0, sigma^2) e^exponent.
    """
    grid = nodes.grid
    top = np.maximum.reduceat(nodes.exponent, grid.starts)
    weights = np.exp(nodes.exponent - grid.spread(top))
    total = grid.sum(weights)
    log_moment = top + np.log(total) + np.log(grid.step / noise) - 0.5 * math.log(2 * math.pi)
    first = grid.sum(weights * nodes.loss) / total
    second = grid.sum(weights * nodes.loss**2) / total - first**2
    return Cumulants(float(counts @ log_moment), float(counts @ first), float(counts @ second))


def truncated_cumulants(pair: AchievedPair, tilt: float, end: float) -> Cumulants:
    """The same for one sampled pair with u = (2x - 1) / (2 sigma^2) up to ``end``."""
    law = LossFunction(pair)
    start = law.start(tilt, _REACH)
    u, scale = _midpoints(pair.noise_std, start, max(end, start / 2))
    loss, base = law(u)
    exponent = scale + law.log_density(u) + base + (1 + tilt) * loss
    top = float(exponent.max())
    weights = np.exp(exponent - top)
    total = float(weights.sum())
    mean = float(weights @ loss) / total
    second = float(weights @ (loss * loss)) / total
    return Cumulants(top + math.log(total), mean, second - mean**2)


def symmetrized_cumulants(q: float, sigma: float, tilt: float, end: float = math.inf) -> Cumulants:
    """The same for one pair of C_q, with losses up to that of u = ``end`` in size."""
    u, scale = _midpoints(sigma, 0.0, min(end, (1 + tilt) / sigma**2 + _REACH / sigma))
    loss = _log_ratio(q, u)
    gaussian = scale - (sigma * u + 0.5 / sigma) ** 2 / 2
    exponents = np.stack([gaussian + (1 + tilt) * loss, gaussian - tilt * loss])
    atom = (1 - q) * (1 - math.erfc(1 / (sigma * math.sqrt(8))))
    top = max(0.0, float(exponents.max()))
    rising, falling = np.exp(exponents - top)
    total = float((rising + falling).sum()) + atom * math.exp(-top)
    mean = float((rising - falling) @ loss) / total
    second = float((rising + falling) @ (loss * loss)) / total
    return Cumulants(top + math.log(total), mean, second - mean**2)


def _midpoints(sigma: float, start: float, end: float) -> tuple[Array, float]:
    """Points u of the midpoint rule, and log of the weight of each against N(0, sigma^2) in x."""
    width = (end - start) / _NODES
    u: Array = start + width * (np.arange(float(_NODES)) + 0.5)
    return u, math.log(sigma * width / math.sqrt(2 * math.pi))


def _log_ratio(q: float, u: Array) -> Array:
    return np.log1p(q * np.expm1(np.minimum(u, 700.0))) + np.maximum(u - 700.0, 0.0)
