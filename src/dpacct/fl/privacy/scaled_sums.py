"""Rows that are scaled, put on their grid and added in one go, where nobody needs them behind it.

A bound that multiplies each row by one factor f turns it into whole numbers of its grid g by one
division, cut off: trunc(row / (g / f)). Those are added, and the sum is multiplied by g, which is a
power of two. Memory is passed through half as often as by `dpacct.fl.privacy.sums`, one stage after
the other; all numbers are float64.

The rules are those of `sums`: what is added was measured behind the division, and is within its
limit; it did not grow; and sums are exact, in any order. Proof: docs/derivations/federated.md.
"""

from __future__ import annotations

from typing import Any, Protocol, cast

from torch import Tensor

from dpacct.fl.layout import Layout
from dpacct.fl.privacy.adaptive_clip import AdaptiveClip
from dpacct.fl.privacy.bounds import Bound, Clip, SmoothedNormalization
from dpacct.fl.privacy.norms import MARGIN, row_norms
from dpacct.fl.privacy.sums import add_rows, finite_rows, hold, unit
from dpacct.fl.privacy.unseen import asks


def _maps(kind: Any) -> tuple[object, ...]:
    """What a bound does, by functions that somebody may put others in the place of."""
    return kind.apply, kind.factors, kind.limits


# Themselves alone, as they are written: what is derived from them may bound otherwise.
_SCALING: dict[type[Any], tuple[object, ...]] = {
    kind: _maps(kind) for kind in (Clip, AdaptiveClip, SmoothedNormalization)
}


class _Scaling(Bound, Protocol):
    def factors(self, norms: Tensor, margin: float) -> Tensor: ...


def scales(bound: Bound) -> bool:
    """Whether a bound is one factor for each row, and one limit."""
    written = _SCALING.get(type(bound))
    return written is not None and written == _maps(type(bound))


def add_scaled(
    total: Tensor, rows: Tensor, bound: Bound, layout: Layout, contributions: int
) -> tuple[Tensor, Tensor]:
    """total += the contributions of some rows, by a bound that `scales`.

    Args:
        total: float64 [k]. rows: raw updates [c, k] of any floating-point type, few enough for a
            cache; those of float64 are changed in place.
        bound: of the round. layout: of the k coordinates.
        contributions: the most that one round can hold, a public number.
    Returns:
        The raw norms [c], zero for rows that were not finite; and which those were [c]. They
        contribute zero.
    Error: a contribution is that of `dpacct.fl.privacy.sums.contribute` for rows of float64, but
        for the last bit of its factor; its real norm is within the limit.
    """
    wide = rows.double().contiguous()
    wide, norms, bad = finite_rows(wide, row_norms(wide))
    [(_, _, limit)] = bound.limits(layout)
    grid = unit(limit, contributions)
    units = grid / cast("_Scaling", bound).factors(norms, MARGIN)
    wide.div_(units.unsqueeze(1), rounding_mode="trunc")
    # Never, for these bounds; on a device it is done without a look, and changes nothing.
    if hold(wide, limit / grid) or not asks(wide):
        wide.trunc_()
    add_rows(total, wide, grid)
    return norms, bad
