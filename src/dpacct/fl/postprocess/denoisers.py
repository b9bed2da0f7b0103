"""Estimators of a vector from that vector plus Gaussian noise, as functions and by name.

Each takes the standard deviation of the noise on its own argument. On a mean of m that is z C / m,
not z C.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial

import torch
from torch import Tensor

from dpacct.fl.postprocess.laplacian import smooth
from dpacct.fl.privacy.masks import kept
from dpacct.fl.tensors import norm


def james_stein(values: Tensor, noise_std: float, *, positive_part: bool = False) -> Tensor:
    """Return (1 - (d - 2) s^2 / |v|^2) v, or v for d < 3 and for |v| <= 1e-140 s.

    Args:
        values: v, of any shape, d numbers.
        noise_std: s on each of them.
        positive_part: replace a negative factor by 0, which never makes the risk larger.
    Error: that of the dtype of ``values``. The norm is taken in float64.
    Source: James and Stein 1961. For releases Balle and Wang 2018, arXiv:1805.06530.
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
    """Return sign(v_j) max(|v_j| - s sqrt(2 ln d), 0).

    Args:
        values: v, of any shape, d numbers (d = 1: threshold 0).
        noise_std: s on each of them.
    Source: Donoho 1995. For releases Balle and Wang 2018, arXiv:1805.06530.
    """
    threshold = noise_std * math.sqrt(2 * math.log(max(values.numel(), 1)))
    return torch.sign(values) * (values.abs() - threshold).clamp(min=0)


def keep_largest(vector: Tensor, sizes: Sequence[int], fraction: float) -> Tensor:
    """Set all but the ceil(p d_l) largest coordinates of each part of a vector to zero.

    Of equal coordinates as many as fit are kept, never more than ceil(p d_l). May run under vmap.

    Args:
        vector: [d], the parts one behind the other.
        sizes: d_l of each part. fraction: p in (0, 1]. 1 is the identity.
    Source: top-k by layer as in DP-FedSAM, Definition 5.
    """
    if fraction == 1:
        return vector
    parts: list[Tensor] = []
    start = 0
    for size in sizes:
        part = vector[..., start : start + size]
        places = part.abs().topk(kept(size, fraction), dim=-1).indices
        chosen = torch.zeros_like(part).scatter(-1, places, torch.ones_like(part))
        parts.append(torch.where(chosen > 0, part, 0.0))
        start += size
    return torch.cat(parts, dim=-1)


def top_k(values: Tensor, noise_std: float, fraction: float = 0.4) -> Tensor:
    """Return `keep_largest` of one noisy tensor. The noise level is not used."""
    del noise_std
    return keep_largest(values.flatten(), [values.numel()], fraction).view_as(values)


# Public functions of one released tensor, and of the noise on each of its coordinates.
DENOISERS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "laplacian": lambda values, _: smooth(values, 1.0),
    "james-stein": james_stein,
    "james-stein-plus": partial(james_stein, positive_part=True),
    "soft-threshold": soft_threshold,
    "top-k": top_k,
}
