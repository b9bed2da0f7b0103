"""Composition of the C_q pair by brute force: losses rounded to a grid, down and up, then FFT.

Rounding every loss up bounds delta(eps) = E_P[(1 - e^{eps - L})_+] from above, rounding down from
below. The masses come from normal distribution functions; nothing is shared with the package.
Source of the pair: Dong, Roth, Su 2022 (arXiv:1905.02383), theorem 9.
"""

from __future__ import annotations

import numpy as np
from scipy.special import ndtr


def delta_bounds(
    epsilon: float,
    rate: float,
    noise_std: float,
    rounds: int,
    step: float,
    span: float,
    total_span: float,
) -> tuple[float, float]:
    """Lower and upper delta; losses of a round beyond ``span`` count as the worst."""
    cells = round(span / step)
    edges = step * np.arange(cells + 1)
    # loss >= l  <=>  x >= x(l), from l = log(1 - q + q e^{(2x-1)/(2 s^2)}).
    x = 0.5 + noise_std**2 * np.log((np.exp(edges) - 1 + rate) / rate)
    above_q = 1 - ndtr(x / noise_std)
    above_p = (1 - rate) * above_q + rate * (1 - ndtr((x - 1) / noise_std))
    positive = above_p[:-1] - above_p[1:]
    negative = above_q[:-1] - above_q[1:]
    beyond_p, beyond_q = above_p[-1], above_q[-1]
    rest = 1 - above_p[0] - above_q[0]
    # The composed loss wraps around far outside of where its mass is.
    size = 2 * round(total_span / step)
    result = []
    for up in (False, True):
        mass = np.zeros(size)
        # Index 0 is loss 0; negative losses wrap around.
        index = np.arange(cells)
        np.add.at(mass, index + (1 if up else 0), positive)
        np.add.at(mass, -(index + (0 if up else 1)), negative)
        mass[0] += rest
        # Beyond the span: infinite loss when rounding up, none when rounding down.
        mass[0 if up else cells] += 0.0 if up else beyond_p
        mass[-cells] += beyond_q
        total = np.fft.irfft(np.fft.rfft(mass) ** rounds, size)
        losses = step * np.fft.fftfreq(size, 1 / size)
        value = float(
            np.sum(
                np.maximum(total, 0.0)
                * np.maximum(0.0, -np.expm1(np.minimum(epsilon - losses, 1.0)))
            )
        )
        result.append(value + (1 - (1 - beyond_p) ** rounds if up else 0.0))
    return result[0], result[1]
