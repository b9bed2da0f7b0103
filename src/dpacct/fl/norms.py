"""Euclidean norms of updates, and the margin that keeps every bound true in floating point.

docs/derivations/federated.md proves that clipping to ``C (1 - margin)`` by these norms leaves a
float64 sum whose real sensitivity is at most C.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpacct.fl.tensors import norm

# Squares are added up in float32 over so many coordinates, above that in float64.
_BLOCK = 64
_MARGIN = 2.0**-17
# A bound outside this range meets under- or overflow of float32 squares.
CLIP_NORM_RANGE = (1e-8, 1e12)


def row_norms(rows: Tensor) -> Tensor:
    """Euclidean norms of the rows of a matrix [c, d], as float64 [c].

    Error: relative error at most 2.1e-6 for d up to 2^40, either direction, plus 1e-16 from
        underflow. NaN or infinite where the row is, or where squares overflow.
    """
    count, size = rows.shape
    whole = size // _BLOCK * _BLOCK
    blocks = rows[:, :whole].reshape(count, whole // _BLOCK, _BLOCK)
    norms = norm(blocks, dim=2).double()
    tail = rows[:, whole:].double()
    return norm(torch.cat([norms, tail], dim=1), dim=1)


def margin(cohort: float) -> float:
    """Share of the bound that rounding of norms, scaling and the float64 sum may eat up.

    Args:
        cohort: planned cohort size; twice as many may come.
    """
    return _MARGIN + 2.0**-50 * cohort**2
