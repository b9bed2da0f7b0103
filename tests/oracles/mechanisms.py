"""Mixtures of mechanisms on a plain geometric grid of probability ratios, in plain numpy.

A mechanism is a list of outcomes: the masses of P and of Q in cells of the ratio, computed from
distribution functions of its noise, or from sums over integers. Three laws are put on the grid:

* "dots": each cell's two masses are kept, on its two ends. That bounds delta from above, by a
  factor of about 1 + n c (1 + c) h^2 / 8 (Doroshenko et al. 2022),
* "floor" and "ceiling": each cell's mass of P at its lower, or upper end.

Sums of losses are products of discrete Fourier transforms of the masses times e^{c loss}.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

Array = np.ndarray


class Masses(NamedTuple):
    """P and Q in the cells between neighbors of the losses h k, k = -half..half, and P at infinity.

    Cell number k holds the losses in (h (k - 1), h k].
    """

    p: Array
    q: Array
    infinite: float = 0.0


def of_atoms(losses: Array, p: Array, grid: Array, infinite: float = 0.0) -> Masses:
    """Cells of finitely many losses."""
    place = np.clip(np.searchsorted(grid, losses - 1e-12), 0, len(grid) - 1)
    size = len(grid)
    q = p * np.exp(-losses)
    return Masses(np.bincount(place, p, size), np.bincount(place, q, size), infinite)


def _cells(edges: Array, below_p: Callable, below_q: Callable) -> Masses:
    """Cells of a loss that rises with the outcome, whose edges are outcomes."""
    p, q = below_p(edges), below_q(edges)
    return Masses(np.diff(p, prepend=0.0), np.diff(q, prepend=0.0))


def laplace(epsilon: float, grid: Array) -> Masses:
    """Lap(1) against Lap(0) with scale 1 / epsilon, by cells of the outcome x in [0, 1]."""

    def cdf(x: Array) -> Array:
        tail = 0.5 * np.exp(-epsilon * np.abs(x))
        return np.where(x < 0, tail, 1 - tail)

    # The loss is epsilon (2 x - 1) on [0, 1], -epsilon below and epsilon above.
    x = (grid / epsilon + 1) / 2
    x = np.where(grid < -epsilon - 1e-12, -np.inf, np.where(grid >= epsilon - 1e-12, np.inf, x))
    return _cells(x, lambda x: cdf(x - 1), cdf)


def integers(log_mass: Callable[[Array], Array], shift: int, grid: Array, reach: int) -> Masses:
    """Integer noise moved by a shift, by all its outcomes."""
    x = np.arange(-reach, reach + shift + 1.0)
    log_p, log_q = log_mass(x - shift), log_mass(x)
    norm = np.logaddexp.reduce(log_mass(np.arange(-reach, reach + 1.0)))
    kept = log_p - norm > -700
    return of_atoms((log_p - log_q)[kept], np.exp(log_p - norm)[kept], grid)


def sampled_gaussian(q: float, sigma: float, grid: Array, *, removed: bool) -> Masses:
    """(1 - q) N(0) + q N(1) against N(0), or the other way round."""
    losses = grid if removed else -grid
    with np.errstate(divide="ignore", invalid="ignore"):
        u = np.log(np.maximum(np.expm1(losses) + q, 0.0) / q)
    x = sigma * sigma * u + 0.5
    with_client = (1 - q) * ndtr(x / sigma) + q * ndtr((x - 1) / sigma)
    over = (1 - q) * ndtr(-x / sigma) + q * ndtr((1 - x) / sigma)
    plain, plain_over = ndtr(x / sigma), ndtr(-x / sigma)
    if removed:
        upper = x > 0
        p = np.where(upper, -np.diff(over, prepend=1.0), np.diff(with_client, prepend=0.0))
        return Masses(
            p, np.where(upper, -np.diff(plain_over, prepend=1.0), np.diff(plain, prepend=0))
        )
    # x falls as the loss grows: the mass below a loss is that above x.
    p = np.where(x > 0, np.diff(plain_over, prepend=0.0), -np.diff(plain, prepend=1.0))
    return Masses(
        p, np.where(x > 0, np.diff(over, prepend=0.0), -np.diff(with_client, prepend=1.0))
    )


class Composed(NamedTuple):
    """Positive losses, their masses of P, and the mass of infinite losses."""

    losses: Array
    masses: Array
    infinite: float

    def delta(self, epsilon: float) -> float:
        """delta(eps)."""
        large = self.losses > epsilon
        return float(self.masses[large] @ -np.expm1(epsilon - self.losses[large])) + self.infinite

    def epsilon(self, delta: float) -> float:
        """eps(delta) by bisection."""
        low, high = 0.0, float(self.losses.max())
        for _ in range(45):
            middle = (low + high) / 2
            low, high = (middle, high) if self.delta(middle) > delta else (low, middle)
        return low


def composed(
    parts: list[tuple[Masses, int]], grid: Array, law: str = "dots", tilt: float = 0.0
) -> Composed:
    """All parts, each some number of times. The grid is h k, k = -half..half."""
    step, half = float(grid[1] - grid[0]), len(grid) // 2
    length = 1 << math.ceil(math.log2(2 * len(grid)))
    product, log_scale, certain = np.ones(length // 2 + 1, complex), 0.0, 0.0
    for masses, count in parts:
        p = _on_grid(masses, step, half, law)
        weights = p * np.exp(tilt * grid)
        log_scale += count * math.log(weights.sum())
        rolled = np.zeros(length)
        rolled[np.arange(-half, half + 1)] = weights / weights.sum()
        product = product * np.fft.rfft(rolled) ** count
        certain += count * math.log1p(-masses.infinite)
    total = np.fft.irfft(product, length)[: length // 2]
    losses = np.arange(float(length // 2)) * step
    return Composed(losses, total * np.exp(log_scale - tilt * losses), -math.expm1(certain))


def _on_grid(masses: Masses, step: float, half: int, law: str) -> Array:
    """Masses of P at the losses h k."""
    if law == "ceiling":
        return masses.p
    moved = np.zeros_like(masses.p)
    if law == "floor":
        moved[:-1] = masses.p[1:]
        return moved
    grid = step * np.arange(-half, half + 1.0)
    low, high = np.exp(grid - step), np.exp(grid)
    upper = np.clip((masses.p - low * masses.q) / (high - low), 0.0, masses.q)
    moved = upper * high
    moved[:-1] += ((masses.q - upper) * low)[1:]
    # The mass of P is kept exactly, however the ratio was rounded.
    return moved
