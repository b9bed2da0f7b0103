"""Random allocation without grids: one contour integral for an epoch, drawn samples for several.

The ratio of an epoch is S = mean of t independent W = exp(x / z - 1 / (2 z^2)). For K > 0

    E(K - S)_+ = (1 / 2 pi i) integral over Re s = c > 0 of e^(s K) (E e^(-s W / t))^t / s^2 ds,

and E(S - K)_+ = E(K - S)_+ + 1 - K. Nothing is shared with dpacct: E e^(-s W) is a trapezoid sum
over x, and the integral a trapezoid sum over Im s at the saddle point.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr

_MOST_NODES = 20_000


def _log_laplace(s: np.ndarray, z: float) -> np.ndarray:
    x = np.linspace(-13.0, 13.0, 1301)
    weights = np.exp(-(x**2) / 2) * (x[1] - x[0]) / math.sqrt(2 * math.pi)
    ratio = np.exp(x / z - 0.5 / z**2)
    found = np.empty(len(s), dtype=complex)
    for start in range(0, len(s), 200):
        part = s[start : start + 200]
        found[start : start + 200] = np.exp(-np.outer(part, ratio)) @ weights
    # Where nothing is left, next to nothing stands for it.
    return np.log(np.where(found == 0.0, 1e-300, found))


def put(level: float, z: float, steps: int) -> float:
    """Return E(level - S)_+, to about ten digits, or NaN if that takes too long."""

    def exponent(c: float) -> float:
        value = _log_laplace(np.array([c / steps]), z)[0].real
        return c * level + steps * value - 2 * math.log(c)

    grid = np.exp(np.linspace(math.log(0.05), math.log(1e5), 60))
    values = [exponent(c) for c in grid]
    c = float(grid[int(np.argmin(values))])
    # The integrand decays over about 1 / sqrt of its second derivative.
    step = 2 * math.pi * c / (40 + 2 * c * level)
    total, start, block = 0.0, 0, 400
    while start < _MOST_NODES:
        t = step * np.arange(start, start + block)
        s = c + 1j * t
        log_value = s * level + steps * _log_laplace(s / steps, z) - 2 * np.log(s)
        value = np.exp(log_value).real
        if start == 0:
            value[0] /= 2
        total += float(value.sum())
        # What follows falls at least as 1 / t^2.
        if (start + block) * np.abs(np.exp(log_value[-1])) < 1e-12 * abs(total):
            return total * step / math.pi
        start += block
    return math.nan


def epoch_delta(epsilon: float, z: float, steps: int) -> tuple[float, float]:
    """Return delta(eps) of one epoch in the remove and in the add direction."""
    level = math.exp(epsilon)
    remove = put(level, z, steps) + 1 - level
    add = put(1 / level, z, steps) * level
    return remove, add


def two_steps_delta(epsilon: float, z: float) -> tuple[float, float]:
    """Return the same for two steps: an integral over x_1 of a Black-Scholes formula in x_2."""
    x = np.linspace(-14.0, 14.0, 200_001)
    weights = np.exp(-(x**2) / 2) * (x[1] - x[0]) / math.sqrt(2 * math.pi)
    first = np.exp(x / z - 0.5 / z**2)

    def below(level: float) -> float:
        left = 2 * level - first
        some = left > 0
        at = z * np.log(left[some]) + 0.5 / z
        inner = left[some] * ndtr(at) - ndtr(at - 1 / z)
        return float(weights[some] @ inner) / 2

    def beyond(level: float) -> float:
        left = 2 * level - first
        at = z * np.log(np.maximum(left, 1e-300)) + 0.5 / z
        inner = np.where(left > 0, ndtr(1 / z - at) - left * ndtr(-at), 1 - left)
        return float(weights @ inner) / 2

    level = math.exp(epsilon)
    return beyond(level), level * below(1 / level)


def sampled_delta(
    epsilon: float, z: float, steps: int, epochs: int, samples: int, seed: int
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return delta(eps) of several epochs, remove and add, each as a mean and its standard error.

    Under P one W of each epoch has x ~ N(1 / z): delta_remove = E_P (1 - e^eps / L)_+. Under Q:
    delta_add = E_Q (1 - e^eps L)_+.
    """
    rng = np.random.default_rng(seed)
    found = []
    for removed in (True, False):
        log_ratio = np.zeros(samples)
        for _ in range(epochs):
            x = rng.standard_normal((samples, steps))
            if removed:
                x[:, 0] += 1 / z
            log_ratio += np.log(np.mean(np.exp(x / z - 0.5 / z**2), axis=1))
        gain = epsilon - log_ratio if removed else epsilon + log_ratio
        terms = np.maximum(-np.expm1(gain), 0.0)
        found.append((float(terms.mean()), float(terms.std()) / math.sqrt(samples)))
    return found[0], found[1]
