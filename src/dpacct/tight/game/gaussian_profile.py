"""The privacy profile of a Gaussian with shift mu, at many thresholds k of either sign at once.

    Delta_mu(k) = Phi(mu/2 - k/mu) - e^k Phi(-mu/2 - k/mu)

Its derivative in k is -e^k Phi(-mu/2 - k/mu), at most Phi(mu/2 - k/mu) in size, and that in mu is
phi(mu/2 - k/mu), so that errors of k and mu cost little.

Derivation: docs/derivations/fixed-size-game.md.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpacct.numerics.rounding import UNIT, Array, Bounds

# Absolute error from underflow where mu <= LARGEST_SHIFT.
UNDERFLOW = 1e-180
LARGEST_SHIFT = 7.0


class GaussianProfile(NamedTuple):
    """Delta_mu(k) and its parts.

    Attributes:
        value: Delta_mu(k).
        near, far: Phi(mu/2 - k/mu) and Phi(-mu/2 - k/mu).
        relative: error of ``value``, and of ``near`` alone, in units of ``UNIT`` times ``near``.
    """

    value: Array
    near: Array
    far: Array
    relative: Array


def gaussian_profile(k: Array, mu: float, error: Array) -> GaussianProfile:
    """Delta_mu(k); ``mu`` <= `LARGEST_SHIFT` may be off by 24 roundings, k by ``error`` of them.

    ``error`` counts in units of roundoff, absolute; the computation of k from its last two parts by
    logaddexp or a sum is charged here.
    """
    near, far = mu / 2 - k / mu, -mu / 2 - k / mu
    above, below = normal(near), normal(far)
    value = above - np.exp(np.minimum(k, 700.0)) * below
    # phi(x) <= (1 + |x|) Phi(x) carries absolute errors of the arguments over.
    size_near, size_far, size_k = np.abs(near), np.abs(far), np.abs(k)
    relative = 52 * (1 + size_near) * (mu + size_k / mu) + 4 * size_near * (1 + size_near)
    relative += 4 * size_far * (1 + size_far) + 10 * size_k + error + 96
    return GaussianProfile(value, above, below, relative)


def normal(x: Array) -> Array:
    """Standard normal distribution function, within 16 + 4 x^2 units of roundoff (relative)."""
    scaled = (x * -math.sqrt(0.5)).ravel()
    values = np.fromiter(map(math.erfc, scaled.tolist()), np.float64, scaled.size)
    return 0.5 * values.reshape(x.shape)


def bounds(scale: Array, plain: GaussianProfile, error: Array) -> Bounds:
    """Bounds of ``scale`` times Delta_mu; ``error`` of the scale, relative, in roundoffs."""
    off = 1.01 * UNIT * plain.near * (plain.relative + error) + UNDERFLOW
    lower, upper = np.maximum(plain.value - off, 0.0), plain.value + off
    return Bounds(scale * lower * (1 - 4 * UNIT), scale * upper * (1 + 4 * UNIT))
