"""The exact sum of bounded contributions: whole numbers of a grid, added without rounding.

Rule 1: a contribution obeys its norm limits for every bound. A row that is not finite
contributes zero. Rule 2: each row is cut toward zero to whole multiples of a grid g, a power of
two, so that it does not grow. Rule 3: n such rows add up to at most n C / g whole numbers, which a
mantissa of p bits adds exactly, in any order and on any device, if

    g >= n C / 2^p.

Float64 sums (p = 53) take n from the whole population. Rows of float32 may be added n = 16 at a
time in float32 (p = 24), and these sums in float64. So neighbors' sums differ by exactly one
contribution (two if a client is replaced), and no rounding has to be charged. Proof, with the
margin for norms, factors and quotients: docs/derivations/exact-sums.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import groupby
from typing import Any, cast

import torch
from torch import Tensor

from dpacct.fl.layout import Layout
from dpacct.fl.privacy.bounds import (
    MARGIN,
    AdaptiveClip,
    Bound,
    Clip,
    ScaledRows,
    SmoothedNormalization,
    at_least_single,
    clip_rows,
    row_norms,
)
from dpacct.fl.tensors import may_hold, norm, split

SINGLE, DOUBLE = 24, 53
# Rows that are added in float32 before they go to float64.
SINGLE_ROWS = 16
# More than there are people. The grid of float64 sums, and of the whole numbers of secure noise,
# is finer than 2^-18 of the norm limit up to here.
MAX_CONTRIBUTIONS = 2**33
# Coordinates that are added at a time: as many as a cache holds.
_SLAB = 1 << 17
# Columns of a tensor up to which a copy beside its neighbors costs less than calls of its own.
_SMALL = 1 << 13
# Coordinates that are divided at a time, as no part is overwritten.
_PIECE = 1 << 20
# Share of the noise that the cut to a float32 grid may take from a coordinate of the sum.
_CUT = 1 / 16
# A unit in which float32 still has all its bits. A larger unit makes a contribution shorter.
_SMALLEST_UNIT = 2.0**-100
# Columns with squares added in float32, and the share of a limit that their rounding may take.
_QUICK, _QUICK_MARGIN = 64, 2.0**-18
# Underflow takes less than this times sqrt(d) from a norm, also where subnormals count as zero.
_UNDERFLOW = 2.0**-62


def unit(limit: float, rows: int, bits: int = DOUBLE) -> float:
    """Return the grid g on which this many rows within ``limit`` are added exactly. Rule 3.

    Args:
        limit: of one row's norm, hence of each coordinate. rows: at most 2^33 + 1.
        bits: of the mantissa of the sum.
    Returns:
        A power of two, at least ``limit * rows / 2^bits`` and less than four times that.
    """
    return 2.0 ** (math.frexp(limit)[1] + (rows - 1).bit_length() - bits)


def scales_rows(bound: Bound) -> bool:
    """Return whether a bound is one factor for each row. A subclass may bound in another way."""
    return type(bound) in (Clip, AdaptiveClip, SmoothedNormalization)


def coarsest_grid(std: float, cohort: float) -> float:
    """Return the coarsest grid with a small cut, compared with noise of this standard deviation.

    The cut moves a coordinate of the sum of a cohort by less than ``cohort * grid`` toward zero.
    """
    return _CUT * std / max(cohort, 1.0)


def add_clipped(
    total: Tensor,
    parts: Sequence[Tensor],
    bound: Bound,
    contributions: int,
    *,
    coarsest: float,
    scale: float = 1.0,
) -> tuple[Tensor, Tensor]:
    """Add the contributions of some rows to a sum, by a bound that `scales_rows`.

    A factor f and the cut to the grid are one division, trunc(row / (g / (f scale))).

    Args:
        total: float64 [k], the concatenation of the parts.
        parts: tensors [c, ...] that lie side by side in a row. They may share memory, as the
            gradients of a + b and of unused parameters do, so they stay as they are.
        bound: of the round. contributions: the most that one round can hold, a public number.
        coarsest: the largest grid that may be taken, by `coarsest_grid`. If the grid of
            float32 is coarser, rows are divided in float64, on the grid of the whole population.
        scale: rows are these multiples of the parts.
    Returns:
        The raw norms [c], zero for rows that were not finite, and bool [c] for these.
    """
    rows: list[Tensor] = []
    given = (at_least_single(part.flatten(1)) for part in parts)
    for small, neighbors in groupby(given, lambda part: part.shape[1] <= _SMALL):
        side_by_side = list(neighbors)
        rows += [torch.cat(side_by_side, dim=1)] if small else side_by_side
    norms = abs(scale) * norm(torch.stack([_quick_norms(part) for part in rows], 1), dim=1)
    bad = ~torch.isfinite(norms)
    dropped = may_hold(bad)
    if dropped:
        norms = norms.masked_fill(bad, 0.0)
    limit = bound.clip_norm
    fine = unit(limit, contributions + 1)
    # A public constant: a grid that followed from c would cut other rows in another way.
    grid = max(fine, unit(limit, SINGLE_ROWS, SINGLE))
    in_double = grid > coarsest
    grid = fine if in_double else grid
    # However large the scale, the factor is that of a norm which underflow has not shortened.
    lost = abs(scale) * _UNDERFLOW * math.sqrt(len(total))
    factors = cast("ScaledRows", bound).factors(norms + lost, _QUICK_MARGIN)
    units = (grid / (abs(scale) * factors)).clamp(min=_SMALLEST_UNIT).unsqueeze(1)
    units = units if scale > 0 else -units
    start, columns = 0, max(_PIECE // max(len(norms), 1), 1)
    for piece in (piece for part in rows for piece in split(part, columns)):
        values = piece.double() if in_double else piece
        if dropped:
            values = values.masked_fill(bad.unsqueeze(1), 0.0)
        # A unit beyond float32 is infinite, and its row contributes zero.
        values = torch.div(values, units.to(values.dtype), rounding_mode="trunc")
        stop = start + values.shape[1]
        for few in cast("tuple[Tensor, ...]", cast("Any", values).split(SINGLE_ROWS)):
            total[start:stop].add_(few.sum(dim=0), alpha=grid)
        start = stop
    return norms, bad


def _quick_norms(rows: Tensor) -> Tensor:
    """Return the norms of rows [c, d] as float64 [c], summed in their own type for a few columns.

    Error: relative error at most 2^-19, either direction, and 2^-62 sqrt(d) from underflow,
        or infinite if the norm of some columns of float32 is above 2^63.
    """
    count, size = rows.shape
    whole = size // _QUICK * _QUICK
    pieces = norm(rows[:, :whole].reshape(count, whole // _QUICK, _QUICK), dim=2)
    rest = norm(rows[:, whole:], dim=1).unsqueeze(1)
    return norm(torch.cat([pieces, rest], dim=1), 1, torch.float64)


def contribute(
    rows: Tensor, bound: Bound, layout: Layout, contributions: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows as they are summed: bounded, and on the grid of float64 sums.

    Args:
        rows: raw updates [c, k] of any floating-point type. Changed in place if possible.
        bound: of the round. layout: of the k coordinates.
        contributions: the most that one round can hold, a public number.
    Returns:
        The contributions [c, k], float32 or float64, and the raw norms [c]. Rows that were not
        finite are marked in a third tensor, bool [c]. Their norm and contribution are zero.
    """
    rows = at_least_single(rows)
    rows, norms, bad = _finite(rows, row_norms(rows))
    inside = at_least_single(bound.apply(rows, norms, layout, MARGIN)).contiguous()
    return _on_grid(inside, bound, layout, contributions), norms, bad


def received(
    rows: Tensor, bound: Bound, layout: Layout, contributions: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows that were bounded elsewhere, held to the limits here (see `contribute`).

    The rows of `contribute` come out as they went in, to the last bit. Any other row that is too
    long is shortened, whether or not the bound would have mapped it there.
    """
    rows = at_least_single(rows).contiguous()
    rows, norms, bad = _finite(rows, row_norms(rows))
    return _on_grid(rows, bound, layout, contributions), norms, bad


def _finite(rows: Tensor, norms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return rows and norms with zeros for the rows that are not finite, and bool [c] for these."""
    bad = ~torch.isfinite(norms)
    if may_hold(bad):
        rows = torch.where(bad.unsqueeze(1), 0.0, rows)
        norms = torch.where(bad, 0.0, norms)
    return rows, norms, bad


def _on_grid(rows: Tensor, bound: Bound, layout: Layout, contributions: int) -> Tensor:
    """Return rows within their limits and on their grid, changed in place. Rules 1 and 2."""
    for start, stop, limit in bound.limits(layout):
        part = rows[:, start:stop]
        hold(part, limit)
        # Neighbors have one contribution more.
        grid = unit(limit, contributions + 1)
        part.div_(grid, rounding_mode="trunc").mul_(grid)
    return rows


def hold(part: Tensor, limit: float) -> None:
    """Shorten rows that are longer than the limit, in place. A correct bound leaves none.

    A row is short enough if its measured norm is below the limit by half the margin.
    """
    norms = row_norms(part)
    long = ~(norms <= limit * (1 - MARGIN / 2))
    if not bool(long.any()):
        return
    long_rows, lengths = part[long], norms[long]
    finite = torch.isfinite(lengths)
    long_rows = torch.where(finite.unsqueeze(1), long_rows, 0.0)
    # Not zero: with a limit of zero, zero times the factor would be no number.
    lengths = torch.where(finite, lengths, 1.0)
    part[long] = clip_rows(long_rows, lengths, limit * (1 - MARGIN))


def add_rows(total: Tensor, rows: Tensor) -> None:
    """Add rows to a total, in the precision of the total and a cache's worth at a time.

    The order is free, since the sum is exact (Rule 3).
    """
    if total.device.type != "cpu":
        total.add_(rows.sum(dim=0, dtype=total.dtype))
        return
    step = max(1, _SLAB // max(len(rows), 1))
    for start in range(0, len(total), step):
        part = rows[:, start : start + step]
        total[start : start + step].add_(part.sum(dim=0, dtype=total.dtype))
