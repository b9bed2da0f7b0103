"""Estimators of a vector from that vector plus Gaussian noise of known standard deviation.

They are told the noise on the vector that they are given: z C / m on a mean of m, not z C.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dpacct.fl.tensors import norm


def james_stein(values: Tensor, noise_std: float, *, positive_part: bool = False) -> Tensor:
    """(1 - (d - 2) s^2 / |v|^2) v; unchanged for d < 3, and for |v| <= 1e-140 s.

    Args:
        values: v, of any shape; d is how many there are.
        noise_std: s on each of them.
        positive_part: replace a negative factor by 0, which never makes the risk larger.
    Error: that of the dtype of ``values``; the norm is taken in float64.
    Source: James and Stein 1961; for releases Balle and Wang 2018, arXiv:1805.06530.
    """
    size = values.numel()
    if size < 3:
        return values
    length = float(norm(values.double() if values.device.type != "mps" else values))
    if length <= 1e-140 * noise_std:  # The formula ends in infinities.
        return values
    factor = 1 - (size - 2) * (noise_std / length) ** 2
    return values * (max(factor, 0.0) if positive_part else factor)


def soft_threshold(values: Tensor, noise_std: float) -> Tensor:
    """sign(v_j) max(|v_j| - s sqrt(2 ln d), 0).

    Args:
        values: v, of any shape; d is how many there are (d = 1: threshold 0).
        noise_std: s on each of them.
    Source: Donoho 1995; for releases Balle and Wang 2018, arXiv:1805.06530.
    """
    threshold = noise_std * math.sqrt(2 * math.log(max(values.numel(), 1)))
    return torch.sign(values) * (values.abs() - threshold).clamp(min=0)
