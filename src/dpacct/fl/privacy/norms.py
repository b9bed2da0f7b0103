"""Euclidean norms of updates, and the margin that keeps every bound true in floating point.

docs/derivations/federated.md proves that rows scaled to ``C (1 - MARGIN)`` by these norms have real
norms of at most C.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpacct.fl.tensors import norm

# Coordinates of a row that are added up at a time, and those of a few rows that are converted to
# float64 at a time: few enough for a cache, and many enough to hide what surrounds an operation.
_PIECE, _SLAB = 1 << 16, 1 << 19
# On a device more of them, in few kernels; rows that it reads alike lie so many numbers apart.
_DEVICE_SLAB, _APART = 1 << 20, 64
# Share of a limit that rounding of norms, factors and float32 products may eat up, four times over.
MARGIN = 2.0**-20
# Float32 products stay far from underflow, and sums far from overflow.
CLIP_NORM_RANGE = (1e-8, 1e12)
# Factors up to 1 / alpha stay far from overflow, too.
ALPHA_RANGE = (1e-12, 1e12)


def row_norms(rows: Tensor) -> Tensor:
    """Euclidean norms of the rows of a matrix [c, d] of any floating-point type, as float64 [c].

    A row's norm does not depend on the others, to the last bit.

    Error: relative error at most 2^-29 for d up to 2^40, either direction; rows of float64 also
        2^-517 from underflow. NaN or infinite where the row is, and infinite where squares of
        float64 overflow (norms above 1e154).
    """
    if rows.device.type != "cpu":
        return _norms_of_one_form(rows)
    count, size = rows.shape
    width = min(size, _PIECE)
    step = max(1, _SLAB // max(width, 1))
    if count <= step and size <= _PIECE:
        return norm(rows.double().contiguous(), dim=1)
    wide = rows.new_empty(min(step, count), width, dtype=torch.float64)
    parts: list[Tensor] = []
    for left in range(0, max(size, 1), _PIECE):
        columns = rows[:, left : left + _PIECE]
        slabs = [columns[top : top + step] for top in range(0, max(count, 1), step)]
        parts.append(torch.cat([norm(_into(wide, slab), dim=1) for slab in slabs]))
    return parts[0] if len(parts) == 1 else norm(torch.stack(parts, dim=1), dim=1)


def _norms_of_one_form(rows: Tensor) -> Tensor:
    """As `row_norms`, where how numbers are added up may follow from the form of a tensor.

    Whatever comes is laid into rooms of one form, each row at a good address and filled up with
    zeros. So a kernel cannot be chosen by how many rows there are, nor read one otherwise for where
    it lies.
    """
    count, size = rows.shape
    width = min(size, _PIECE)
    step = max(1, _DEVICE_SLAB // max(width, 1))
    tops = range(0, max(count, 1), step)
    parts: list[Tensor] = []
    for left in range(0, max(size, 1), _PIECE):
        columns = rows[:, left : left + _PIECE]
        room = _room(rows, step, columns.shape[1])
        parts.append(torch.cat([_laid(room, columns[top : top + step]) for top in tops]))
    if len(parts) == 1:
        return parts[0][:count]
    whole = torch.stack(parts, dim=1)
    room = _room(rows, step, len(parts))
    return torch.cat([_laid(room, whole[top : top + step]) for top in tops])[:count]


def _room(like: Tensor, rows: int, width: int) -> Tensor:
    """Zeros for so many rows, that are a multiple of a good address apart."""
    return like.new_zeros(rows, _APART * -(-width // _APART), dtype=torch.float64)


def _laid(room: Tensor, slab: Tensor) -> Tensor:
    """Norms of all rows of the room, of which the first ones are the slab's."""
    room[: len(slab), : slab.shape[1]].copy_(slab)
    return norm(room, dim=1)


def _into(wide: Tensor, slab: Tensor) -> Tensor:
    """A slab in float64, in memory that is there; it lies as if it were made for it."""
    room = wide.flatten()[: slab.numel()].view(slab.shape)
    return room.copy_(slab)


def at_least_single(rows: Tensor) -> Tensor:
    """Rows of half precision as float32, which changes no value; others as they are."""
    return rows if rows.dtype in (torch.float32, torch.float64) else rows.float()
