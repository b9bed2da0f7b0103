"""Sums that move by exactly one contribution: bounded rows on a grid, added without rounding.

Rule 1: what is summed is within its norm limits, whatever the bound did: a row is measured again
behind it, shortened where it is too long, and zero where it is not finite. Rule 2: every row is
rounded toward zero to whole multiples of a power of two, so that it does not grow. Rule 3: that
unit leaves room for the whole population: sums of so many rows in float64 are exact, in any order
and on any device.

So neighbors' sums differ by one contribution (two where a client is replaced), and rounding has no
share in it. Proof: docs/derivations/federated.md.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dpacct.fl.layout import Layout
from dpacct.fl.privacy.bounds import Bound, clip_rows
from dpacct.fl.privacy.norms import MARGIN, at_least_single, row_norms
from dpacct.fl.privacy.unseen import asks, cleared, held

_MANTISSA = 53
# Coordinates that are bounded at a time: on a CPU what a cache holds, on a device enough for the
# kernels that it takes to be few.
_SLAB, _DEVICE_SLAB = 1 << 19, 1 << 26
# Rows of at most so many are added several at once.
_SHORT = 1 << 15
# More than there are people. The grid of float64 sums, and of the whole numbers of secure noise,
# is finer than 2^-18 of the norm limit up to here.
MAX_CONTRIBUTIONS = 2**33


def unit(limit: float, contributions: int) -> float:
    """The grid of coordinates up to ``limit``, so many of which are added exactly in float64.

    Args:
        limit: of one row's norm, hence of each coordinate. contributions: at most 2^33.
    Returns:
        A power of two, at least ``limit * contributions / 2^53`` and less than four times that.
    """
    return 2.0 ** (math.frexp(limit)[1] + contributions.bit_length() - _MANTISSA)


def few_rows(layout: Layout, device: torch.device) -> int:
    """Rows that are bounded at a time; on a CPU those that a cache holds."""
    slab = _SLAB if device.type == "cpu" else _DEVICE_SLAB
    return max(1, slab // max(layout.size, 1))


def contribute(
    rows: Tensor, bound: Bound, layout: Layout, contributions: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows as they are summed: bounded, and on their grid.

    Args:
        rows: raw updates [c, k] of any floating-point type; changed in place where possible.
        bound: of the round. layout: of the k coordinates.
        contributions: the most that one round can hold, a public number.
    Returns:
        The contributions [c, k], float32 or float64; the raw norms [c], zero for rows that were
        not finite; and which those were [c]. They contribute zero.
    """
    step = few_rows(layout, rows.device)
    if len(rows) <= step:
        return _contribute_few(rows, bound, layout, contributions)
    parts = [
        _contribute_few(rows[top : top + step], bound, layout, contributions)
        for top in range(0, len(rows), step)
    ]
    norms, bad = torch.cat([part[1] for part in parts]), torch.cat([part[2] for part in parts])
    if all(part[0].data_ptr() == rows[k * step].data_ptr() for k, part in enumerate(parts)):
        # All of them changed in place.
        return rows, norms, bad
    return torch.cat([part[0] for part in parts]), norms, bad


def _contribute_few(
    rows: Tensor, bound: Bound, layout: Layout, contributions: int
) -> tuple[Tensor, Tensor, Tensor]:
    """As `contribute`, of so few rows that they stay in a cache from the first norm to the grid."""
    rows = at_least_single(rows)
    rows, norms, bad = finite_rows(rows, row_norms(rows))
    inside = at_least_single(bound.apply(rows, norms, layout, MARGIN)).contiguous()
    return _on_grid(inside, bound, layout, contributions), norms, bad


def finite_rows(rows: Tensor, norms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Rows and their norms, zero where a row is not finite, and where that is [c].

    On a device rows are changed in place, without a look.
    """
    if not asks(rows):
        bad = ~torch.isfinite(norms)
        return *cleared(rows, norms, bad), bad
    if math.isfinite(float(norms.sum())):
        # No norm is negative: a finite sum has finite parts.
        return rows, norms, torch.zeros(len(norms), dtype=torch.bool, device=norms.device)
    bad = ~torch.isfinite(norms)
    return torch.where(bad.unsqueeze(1), 0.0, rows), torch.where(bad, 0.0, norms), bad


def received(
    rows: Tensor, bound: Bound, layout: Layout, contributions: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows that were bounded elsewhere, held to the limits here.

    What `contribute` made comes out as it went in, to the last bit. Whatever else is sent obeys the
    limits behind it: a row that is too long is shortened, whether or not the bound would have
    mapped it there.

    Args, Returns: as `contribute`, with the norms of what came.
    """
    rows = at_least_single(rows).contiguous()
    norms = row_norms(rows)
    bad = ~torch.isfinite(norms)
    rows = torch.where(bad.unsqueeze(1), 0.0, rows)
    norms = torch.where(bad, 0.0, norms)
    return _on_grid(rows, bound, layout, contributions), norms, bad


def _on_grid(rows: Tensor, bound: Bound, layout: Layout, contributions: int) -> Tensor:
    """Rows within their limits and on their grid, in place."""
    for start, stop, limit in bound.limits(layout):
        part = rows[:, start:stop]
        hold(part, limit)
        grid = unit(limit, contributions)
        # By a power of two, which is exact. What torch calls trunc takes ten times as long on AMD.
        part.div_(grid, rounding_mode="trunc").mul_(grid)
    return rows


def hold(part: Tensor, limit: float) -> bool:
    """Shorten what is longer than the limit, in place; a bound that keeps its word has none.

    Returns:
        Whether something was; on a device, where nobody looks, False.
    """
    if not asks(part):
        held(part, limit)
        return False
    norms = row_norms(part)
    short = norms <= limit * (1 - MARGIN / 2)
    if bool(short.all()):
        return False
    long = ~short
    found, lengths = part[long], norms[long]
    finite = torch.isfinite(lengths)
    found = torch.where(finite.unsqueeze(1), found, 0.0)
    # Not zero: beside a limit of zero, zero times the factor would be no number.
    lengths = torch.where(finite, lengths, 1.0)
    part[long] = clip_rows(found, lengths, limit * (1 - MARGIN))
    return True


def add_rows(total: Tensor, rows: Tensor, scale: float = 1) -> None:
    """total += scale * sum of rows, in the precision of total.

    In any order, since it is exact (Rule 3); a scale is a power of two.

    On the CPU, long rows one by one and a piece at a time: torch first copies what it adds to a
    wider type. Of short ones as many at once as a cache holds.
    """
    size = total.numel()
    if total.device.type != "cpu":
        total.add_(rows.sum(dim=0, dtype=total.dtype), alpha=scale)
    elif size <= _SHORT:
        step = max(1, _SLAB // max(size, 1))
        for top in range(0, len(rows), step):
            total.add_(rows[top : top + step].sum(dim=0, dtype=total.dtype), alpha=scale)
    else:
        for row in rows:
            for left in range(0, size, _SLAB):
                total[left : left + _SLAB].add_(row[left : left + _SLAB], alpha=scale)
