"""Many equal rounds of Poisson sampling on a plain grid of losses, in plain numpy.

The losses of one round are rounded up, or down, to multiples of a step; the laws of their sums are
powers of discrete Fourier transforms. Both answers are bounds, and their mean is far more accurate
than they are apart. Rounding of the transforms is about 1e-15 of a probability.
"""

from __future__ import annotations

import math

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


def _one_round(kind: str, q: float, s: float, losses: Array) -> tuple[Array, float, float]:
    """Masses between the losses, and those below all and above all of them."""
    if kind == "add":
        # The loss is minus that of the remove direction.
        below, above = _tails(kind, q, s, _edges(kind, q, s, -losses[::-1]))
        masses = np.maximum(np.diff(below), -np.diff(above))[::-1]
        return masses, float(above[-1]), float(below[0])
    x = _edges(kind, q, s, losses)
    below, above = _tails(kind, q, s, x)
    masses = np.where(x[:-1] > 0, -np.diff(above), np.diff(below))
    return masses, float(below[0]), float(above[-1])


def epsilons(
    kind: str, q: float, s: float, rounds: int, delta: float, step: float, reach: float
) -> tuple[float, float]:
    """Lower and upper bound of eps(delta).

    Args:
        kind: "remove", "add" or "replace".
        step, reach: of the grid; losses beyond the reach either way are cut off.
    """
    half = round(reach / step)
    masses, least, most = _one_round(kind, q, s, step * np.arange(-half, half + 1.0))
    length = 1 << (4 * len(masses)).bit_length()
    signed = np.fft.fftfreq(length, 1 / length) * step
    found: list[float] = []
    for up in (0, 1):
        law = np.zeros(length)
        law[np.arange(up - half, half + up)] = masses
        # Beyond the reach: down to nothing below zero, or up to the nearest loss, or certain.
        law[-half] += least * up
        certain = rounds * most * up
        total = np.fft.irfft(np.fft.rfft(law) ** rounds, length)

        def cost(epsilon: float, total: Array = total, certain: float = certain) -> float:
            large = signed > epsilon
            return float(total[large] @ -np.expm1(epsilon - signed[large])) + certain

        low, high = 0.0, 3 * reach
        for _ in range(40):
            middle = (low + high) / 2
            low, high = (middle, high) if cost(middle) > delta else (low, middle)
        found.append(low if low > 0 else 0.0)
    return found[0], found[1]
