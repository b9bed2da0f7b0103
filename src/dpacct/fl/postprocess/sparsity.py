"""The largest coordinates of each tensor, kept in place."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dpacct.fl.privacy.masks import kept


def keep_largest(vector: Tensor, sizes: Sequence[int], fraction: float) -> Tensor:
    """The ceil(p d_l) largest coordinates of each part of a vector, the others zero.

    Of equal ones as many as fit are kept, so never more than ceil(p d_l). May run under vmap.

    Args:
        vector: [d], the parts one behind the other.
        sizes: d_l of each part. fraction: p in (0, 1]; 1 is the identity.
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
