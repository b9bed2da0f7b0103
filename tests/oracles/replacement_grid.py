"""Many rounds of Poisson sampling where a client is replaced, on a plain grid of losses.

P = (1-q) N(0) + q N(1) against Q = (1-q) N(0) + q N(-1). The losses of one round are rounded up, or
down, to multiples of a step; the laws of the sums are powers of discrete Fourier transforms. Both
answers are bounds, and their mean is far more accurate than they are apart.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import ndtr


def epsilons(
    q: float, s: float, rounds: int, delta: float, step: float, reach: float
) -> tuple[float, float]:
    """Lower and upper bound of eps(delta); losses beyond ``reach`` either way are cut off."""
    half = round(reach / step)
    losses = step * np.arange(-half, half + 1.0)
    odds = (1 - q) / q * math.exp(1 / (2 * s * s))
    x = s * s * (losses / 2 + np.arcsinh(odds * np.sinh(losses / 2)))
    below = (1 - q) * ndtr(x / s) + q * ndtr((x - 1) / s)
    above = (1 - q) * ndtr(-x / s) + q * ndtr((1 - x) / s)
    masses = np.where(x[:-1] > 0, -np.diff(above), np.diff(below))
    length = 1 << (4 * len(losses)).bit_length()
    signed = np.fft.fftfreq(length, 1 / length) * step
    found: list[float] = []
    for up in (0, 1):
        law = np.zeros(length)
        law[np.arange(up - half, half + up)] = masses
        # Beyond the reach: down to nothing below zero, or up to the nearest loss, or certain.
        law[-half] += below[0] * up
        certain = rounds * above[-1] * up
        total = np.fft.irfft(np.fft.rfft(law) ** rounds, length)

        def cost(epsilon: float, total: np.ndarray = total, certain: float = certain) -> float:
            large = signed > epsilon
            return float(total[large] @ -np.expm1(epsilon - signed[large])) + certain

        low, high = 0.0, 3 * reach
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if cost(middle) > delta else (low, middle)
        found.append(low)
    return found[0], found[1]
