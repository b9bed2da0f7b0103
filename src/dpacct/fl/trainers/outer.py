"""Outer products as a record plays them: gradients of linear layers, for each example."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_product: Any = torch.ops.aten.bmm.default
# Each product is rounded once, to one of these, whoever multiplies.
_EXACT = (torch.float32, torch.float64)


def outer(left: Tensor, right: Tensor) -> Tensor:
    """As ``aten::bmm`` to the last bit, in half the time or less where it sums over one number.

    A library of matrix products packs its factors for sums that are none here.

    Args:
        left: [n, i, k]. right: [n, k, j].
    Returns:
        [n, i, j].
    """
    exact = left.device.type == "cpu" and left.dtype in _EXACT and left.dtype == right.dtype
    if not exact or not _is_outer(left.shape, right.shape):
        return _product(left, right)
    # In memory as a product of matrices has it.
    found = left.new_empty(left.shape[0], left.shape[1], right.shape[2])
    torch.mul(left, right, out=found)
    # A sum from zero on has no -0.
    return found.add_(0.0)


def _is_outer(left: torch.Size, right: torch.Size) -> bool:
    """Whether it is a product as it has to be, of more than one pair, with one number in each sum.

    A single pair is multiplied by another part of the library, which may leave a -0.
    """
    if len(left) != 3 or left[2] != 1 or left[0] == 1:
        return False
    return right[:-1] == (left[0], 1)
