"""Euclidean norms of updates, and the margin that keeps every bound true in floating point.

docs/derivations/exact-sums.md proves that rows scaled to ``C (1 - MARGIN)`` by these norms have
real norms of at most C.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor

from dpacct.fl.tensors import norm

# Columns that are converted to float64 at a time: few enough for a cache. The number is fixed, so
# that the last bits of a row's norm do not depend on how many rows there are.
_COLUMNS = 1 << 11
# Share of a limit that rounding of norms, factors and float32 products may eat up, four times over.
MARGIN = 2.0**-20
# Float32 products stay far from underflow, and sums far from overflow.
CLIP_NORM_RANGE = (1e-8, 1e12)
# Factors up to 1 / alpha stay far from overflow, too.
ALPHA_RANGE = (1e-12, 1e12)


def row_norms(rows: Tensor) -> Tensor:
    """Return the Euclidean norms of the rows of a matrix [c, d] of any real type, as float64 [c].

    Error: relative error at most 2^-29 for d up to 2^40, either direction; rows of float64 also
        2^-517 from underflow. NaN or infinite if the row is, and infinite if squares of float64
        overflow (norms above 1e154).
    """
    pieces = cast("tuple[Tensor, ...]", cast("Any", rows).split(_COLUMNS, dim=1))
    parts = [norm(piece, 1, torch.float64) for piece in pieces]
    return parts[0] if len(parts) == 1 else norm(torch.stack(parts, dim=1), dim=1)


def at_least_single(rows: Tensor) -> Tensor:
    """Return rows of half precision as float32, which changes no value; others as they are."""
    return rows if rows.dtype in (torch.float32, torch.float64) else rows.float()
