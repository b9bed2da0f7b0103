"""Laplacian smoothing: the inverse of a circulant matrix, applied by FFT.

A_s = I + s L with L the Laplacian of the cycle graph on d nodes. A_s^{-1} v minimizes
|u - v|^2 + s |grad u|^2 over u, the gradient being the periodic difference.
"""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor

from dpacct import validate
from dpacct.errors import InvalidParameter

AXES = "OIHW"


def smooth(values: Tensor, strength: float, order: str = AXES) -> Tensor:
    """Return A_s^{-1} v for a tensor of any shape, flattened in a chosen order.

    The eigenvalue for the Fourier vector k is 1 + 4 s sin^2(pi k / d), which is
    1 + 2 s (1 - cos(2 pi k / d)) without its cancellation. The mean is preserved. The norm never
    increases.

    Args:
        values: of any shape, d numbers.
        strength: s, at least 0. 0 is the identity.
        order: the order in which axes are flattened, the last one running fastest. ``"OIHW"`` is
            that of the memory of a convolution's kernel [out, in, height, width]. A tensor with
            fewer axes uses those of the letters that it has, one with more its own order.
    Error:
        Relative to |v|: that of a float64 FFT, about 1e-16 log2(d) (a float32 one on devices
        without float64), and the rounding to the dtype of ``values``.
    Source: Osher et al. 2018, arXiv:1806.06317, and docs/derivations/methods.md.
    """
    strength, order = check_strength(strength), check_order(order)
    size = values.numel()
    if strength == 0 or size < 2:
        return values
    axes = [AXES.index(letter) for letter in order if AXES.index(letter) < values.ndim]
    if len(axes) < values.ndim:
        axes = list(range(values.ndim))
    turned = values.permute(axes)
    dtype = torch.float32 if values.device.type == "mps" else torch.float64
    flat = turned.flatten().to(dtype)
    wave = torch.arange(size // 2 + 1, dtype=dtype, device=values.device)
    eigenvalues = 1 + 4 * strength * torch.sin(wave * (math.pi / size)).square()
    fft = cast("Any", torch.fft)
    smoothed = cast("Tensor", fft.irfft(fft.rfft(flat) / eigenvalues, n=size))
    back = [axes.index(axis) for axis in range(values.ndim)]
    return smoothed.to(values.dtype).reshape(turned.shape).permute(back)


def noise_gain(size: int, strength: float) -> float:
    """Return the trace of A_s^{-2} / d, the variance of smoothed unit noise, per coordinate.

    For large d it is (1 + 2 s) / (1 + 4 s)^(3/2).
    """
    wave = torch.arange(size, dtype=torch.float64)
    sines = torch.sin(wave * (math.pi / size)).square()
    return float((1 + 4 * check_strength(strength) * sines).pow(-2).mean())


def check_strength(value: object) -> float:
    """Check a smoothing strength."""
    return validate.at_least_zero("smoothing", value, "the strength of smoothing")


def check_order(value: object) -> str:
    """Check an order of axes.

    Raises:
        InvalidParameter: not a permutation of OIHW.
    """
    if not isinstance(value, str) or sorted(value) != sorted(AXES):
        rule = f"an order of flattening is a permutation of {AXES}, such as OWHI"
        raise InvalidParameter("order", value, rule)
    return value
