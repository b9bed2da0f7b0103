"""Cumulants of tilted losses: what the search for a saddle point needs. Nothing here is proven."""

from __future__ import annotations

import math
from typing import NamedTuple, Protocol

import numpy as np

from dpacct.rounding import Array
from dpacct.trapezoid_grid import Grid, log_ratio

# Accuracy e^-20 of the sums.
_ACCURACY = 20.0
_NODES = 1500
# A search takes some dozens of these sums.
_MAX_NODES = 2_000_000


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


def sampled_cumulants(order: float, rates: Array, noise: Array, counts: Array) -> Cumulants:
    """The same for log r of sampled Gaussians weighted by r^order; rates in (0, 1), shapes (m,)."""
    a = np.full_like(noise, order)
    accuracy = np.full_like(a, _ACCURACY)
    grid = Grid(a, rates, noise, accuracy, np.maximum(a, 0.0), max_nodes=_MAX_NODES)
    quadratic, ratio, _ = log_ratio(grid, rates, noise)
    exponent = order * ratio - quadratic
    top = np.maximum.reduceat(exponent, grid.starts)
    weights = np.exp(exponent - grid.spread(top))
    total = grid.sum(weights)
    log_moment = top + np.log(total) + np.log(grid.step / noise) - 0.5 * math.log(2 * math.pi)
    first = grid.sum(weights * ratio) / total
    second = grid.sum(weights * ratio * ratio) / total - first**2
    return Cumulants(float(counts @ log_moment), float(counts @ first), float(counts @ second))


def symmetrized_cumulants(q: float, sigma: float, tilt: float) -> Cumulants:
    """The same for one pair of C_q, by the midpoint rule in u > 0."""
    end = (1 + tilt) / sigma**2 + 8.0 / sigma
    u = end * (np.arange(_NODES) + 0.5) / _NODES
    loss = np.log1p(q * np.expm1(np.minimum(u, 700.0))) + np.maximum(u - 700.0, 0.0)
    scale = math.log(sigma * end / (_NODES * math.sqrt(2 * math.pi)))
    gaussian = scale - (sigma * u + 0.5 / sigma) ** 2 / 2
    exponents = np.stack([gaussian + (1 + tilt) * loss, gaussian - tilt * loss])
    atom = (1 - q) * (1 - math.erfc(1 / (sigma * math.sqrt(8))))
    top = max(0.0, float(exponents.max()))
    rising, falling = np.exp(exponents - top)
    total = float((rising + falling).sum()) + atom * math.exp(-top)
    mean = float((rising - falling) @ loss) / total
    second = float((rising + falling) @ (loss * loss)) / total
    return Cumulants(top + math.log(total), mean, second - mean**2)
