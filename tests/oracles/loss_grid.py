"""Many equal rounds on a plain grid of losses, in plain numpy.

The losses of one round are rounded up, or down, to multiples of a step; the laws of their sums are
powers of discrete Fourier transforms. Both answers are bounds, and their mean is far more accurate
than they are apart. Rounding of the transforms is about 1e-15 of a probability.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import numpy as np
from scipy.special import ndtr

Array = np.ndarray


def _edges(kind: str, q: float, s: float, losses: Array) -> Array:
    """The x at which the loss is this; infinite below the least one."""
    if kind == "replace":
        odds = (1 - q) / q * math.exp(1 / (2 * s * s))
        return s * s * (losses / 2 + np.arcsinh(odds * np.sinh(losses / 2)))
    with np.errstate(divide="ignore", invalid="ignore"):
        u = np.log(np.maximum(np.expm1(losses) + q, 0.0) / q)
    return s * s * u + 0.5


def _tails(kind: str, q: float, s: float, x: Array) -> tuple[Array, Array]:
    """P below and above x; in the add direction P is the law without the client."""
    rate = 0.0 if kind == "add" else q
    below = (1 - rate) * ndtr(x / s) + rate * ndtr((x - 1) / s)
    return below, (1 - rate) * ndtr(-x / s) + rate * ndtr((1 - x) / s)


def _one_round(kind: str, q: float, s: float, losses: Array) -> tuple[Array, float, float, float]:
    """Masses between the losses, below all, above all, and exactly at zero."""
    if kind == "add":
        # The loss is minus that of the remove direction.
        below, above = _tails(kind, q, s, _edges(kind, q, s, -losses[::-1]))
        masses = np.maximum(np.diff(below), -np.diff(above))[::-1]
        return masses, float(above[-1]), float(below[0]), 0.0
    if kind == "cohort":
        # Above zero it is the remove pair, and below zero its mirror image.
        x = _edges(kind, q, s, losses[losses >= 0])
        p, mirrored = _tails(kind, q, s, x)[1], ndtr(-x / s)
        masses = np.concatenate([-np.diff(mirrored)[::-1], -np.diff(p)])
        return masses, float(mirrored[-1]), float(p[-1]), float(1 - p[0] - mirrored[0])
    x = _edges(kind, q, s, losses)
    below, above = _tails(kind, q, s, x)
    masses = np.where(x[:-1] > 0, -np.diff(above), np.diff(below))
    return masses, float(below[0]), float(above[-1]), 0.0


def _profiles(
    kind: str, q: float, s: float, rounds: int, step: float, reach: float
) -> Iterator[Callable[[float], float]]:
    """Lower and upper bound of delta(eps); see `epsilons` for the arguments."""
    half = round(reach / step)
    masses, least, most, zero = _one_round(kind, q, s, step * np.arange(-half, half + 1.0))
    length = 1 << (4 * len(masses)).bit_length()
    signed = np.fft.fftfreq(length, 1 / length) * step
    for up in (0, 1):
        law = np.zeros(length)
        law[np.arange(up - half, half + up)] = masses
        law[0] += zero
        # Beyond the reach: down to nothing below zero, or up to the nearest loss, or certain.
        law[-half] += least * up
        certain = rounds * most * up
        total = np.fft.irfft(np.fft.rfft(law) ** rounds, length)

        def delta(epsilon: float, total: Array = total, certain: float = certain) -> float:
            large = signed > epsilon
            return float(total[large] @ -np.expm1(epsilon - signed[large])) + certain

        yield delta


def deltas(
    kind: str, q: float, s: float, rounds: int, epsilon: float, step: float, reach: float
) -> tuple[float, float]:
    """Lower and upper bound of delta(eps); see `epsilons`."""
    lower, upper = (profile(epsilon) for profile in _profiles(kind, q, s, rounds, step, reach))
    return lower, upper


def epsilons(
    kind: str, q: float, s: float, rounds: int, delta: float, step: float, reach: float
) -> tuple[float, float]:
    """Lower and upper bound of eps(delta).

    Args:
        kind: "remove", "add", "replace", or "cohort" for the pair of C_q.
        step, reach: of the grid; losses beyond the reach either way are cut off.
    Source of the pair of C_q: Dong, Roth, Su 2022 (arXiv:1905.02383), theorem 9.
    """
    found: list[float] = []
    for profile in _profiles(kind, q, s, rounds, step, reach):
        low, high = 0.0, 3 * reach
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if profile(middle) > delta else (low, middle)
        found.append(low if low > 0 else 0.0)
    return found[0], found[1]
