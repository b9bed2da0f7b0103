"""Bounds: a map of each client's update into a ball of public radius.

Rule 1: the sensitivity is that of the whole update, all tensors together. Rule 2: a bound treats
each client separately and depends on no other client of the cohort. Rule 3: a bounded row is at
least float32: rounding to half precision would lengthen it again.

`AdaptiveClip` also learns its norm. Each client sends whether its update was within the norm, as
+1/2 or -1/2. The noisy sum of these indicators moves the norm of the next round. Both sums are one
release. Let s be the standard deviation of the noise on the indicators, and z_u the multiplier of
the update. Then both cost as much as one Gaussian sum with 1/z^2 = 1/z_u^2 + 1/(2 s)^2.
Source: Andrew, Thakkar, McMahan, Ramaswamy 2021, arXiv:1905.03871, theorem 1. All three
adjacencies in docs/derivations/federated.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol, cast

import torch
from torch import Tensor

from dpacct import validate
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.layout import Layout
from dpacct.fl.tensors import norm
from dpacct.rounds import Adjacency

# One client moves the sum of the centered indicators by at most this.
INDICATOR_NORM = 0.5
# Share of a limit that rounding of norms, factors and float32 products may use, four times over:
# rows scaled to C (1 - MARGIN) by `row_norms` have real norms of at most C.
MARGIN = 2.0**-20
# Float32 products stay far from underflow, sums and factors up to 1 / alpha far from overflow.
CLIP_NORM_RANGE = (1e-8, 1e12)
ALPHA_RANGE = (1e-12, 1e12)
# Columns that are converted to float64 at a time: few enough for a cache. The number is fixed, so
# that the last bits of a row's norm do not depend on how many rows there are.
_COLUMNS = 1 << 14

# Norm limits (start, stop, limit) on slices of an update.
Limits = Sequence[tuple[int, int, float]]


class Bound(Protocol):
    """A map of each update into a ball of public radius."""

    @property
    def clip_norm(self) -> float:
        """C: the largest norm of one whole contribution, at this round."""
        ...

    def sensitivity(self, adjacency: Adjacency) -> float:
        """Return the most that the sum moves between neighbors: C, or 2C under replace-one."""
        ...

    def limits(self, layout: Layout) -> Limits:
        """Return norm limits (start, stop, limit) on slices of the vector, which imply C."""
        ...

    def apply(self, rows: Tensor, norms: Tensor, layout: Layout, margin: float) -> Tensor:
        """Bound each row of [c, k], in place if possible.

        Args:
            rows: finite updates. norms: of the rows, float64 [c], by `row_norms`.
            layout: of the k coordinates. margin: share of each limit to stay below.
        Returns:
            Float32 or float64 [c, k]. Rows that are too long are shortened afterward.
        """
        ...


class ScaledRows:
    """A bound that multiplies each row by one factor, with one limit on the whole row.

    Contributions lie in a ball around zero. Adding, removing or zeroing a client moves their sum by
    at most the radius C, and replacing a client by at most 2C.
    """

    __slots__ = ()
    clip_norm: float

    def factors(self, norms: Tensor, margin: float) -> Tensor:
        """Return the factor of each row [c], from the norms: min(1, C / |v|)."""
        return (self.clip_norm * (1 - margin) / norms).clamp(max=1.0)

    def sensitivity(self, adjacency: Adjacency) -> float:
        """Return C, or 2C."""
        return 2 * self.clip_norm if adjacency is Adjacency.REPLACE_ONE else self.clip_norm

    def limits(self, layout: Layout) -> Limits:
        """Return the one limit."""
        return [(0, layout.size, self.clip_norm)]

    def apply(self, rows: Tensor, norms: Tensor, layout: Layout, margin: float) -> Tensor:
        """Scale whole rows."""
        del layout
        return scale_rows(at_least_single(rows), self.factors(norms, margin))


@dataclass(frozen=True, slots=True)
class Clip(ScaledRows):
    """v min(1, C / |v|) with |v| the Euclidean norm of the whole update.

    Raises:
        InvalidParameter: the norm is out of range. Unsupported: it is not a constant.
    """

    clip_norm: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip_norm", clip_norm(self.clip_norm))


@dataclass(frozen=True, slots=True)
class SmoothedNormalization(ScaledRows):
    """v / (alpha + |v|): every contribution is shorter than 1, and none is clipped.

    Args:
        alpha: in [1e-12, 1e12].

    Source: the normalization of Fed-alpha-NormEC.
    """

    alpha: float

    def __post_init__(self) -> None:
        alpha = validate.within("alpha", self.alpha, "alpha", ALPHA_RANGE)
        object.__setattr__(self, "alpha", alpha)

    @property
    def clip_norm(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride] - constant
        """1."""
        return 1.0

    def factors(self, norms: Tensor, margin: float) -> Tensor:
        """Return the factor of each row [c], from the norms."""
        return (1 - margin) / (self.alpha + norms)


@dataclass(frozen=True, slots=True)
class AdaptiveClip(ScaledRows):
    """`Clip` with a norm that moves after each round toward a quantile.

    Args:
        clip_norm: that of the first round, independent of the data.
        quantile: target share of updates within the norm, in (0, 1).
        rate: step of the norm's logarithm at a deviation of 1, above 0.
        indicator_noise: standard deviation of the noise on the sum of the indicators. None takes
            a twentieth of the planned cohort size (the paper's choice).
    """

    clip_norm: float
    quantile: float = 0.5
    rate: float = 0.2
    indicator_noise: float | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "clip_norm", clip_norm(self.clip_norm))
        validate.positive_probability("quantile", self.quantile, "a quantile", below_one=True)
        validate.above_zero("rate", self.rate, "the rate of an adaptive clip norm")
        if self.indicator_noise is not None:
            noun = "the indicator's noise"
            validate.above_zero("indicator_noise", self.indicator_noise, noun)

    def indicator_std(self, cohort: float) -> float:
        """Return the standard deviation of the noise on the sum of the indicators."""
        return cohort / 20 if self.indicator_noise is None else self.indicator_noise

    def update_multiplier(self, noise_multiplier: float, cohort: float) -> float:
        """Return z_u = (z^-2 - (2 s)^-2)^(-1/2), the update's own multiplier, rounded up.

        Args:
            noise_multiplier: z, that of both releases together. cohort: planned cohort size.
        Raises:
            InvalidParameter: the indicator alone costs more than z allows.
        """
        own = self.indicator_std(cohort) / INDICATOR_NORM
        rest = (1 - noise_multiplier / own) * (1 + noise_multiplier / own)
        if rest <= 0:
            rule = (
                f"with noise multiplier {noise_multiplier:g} the indicator's noise is above "
                f"{noise_multiplier * INDICATOR_NORM:g}"
            )
            hint = "Give more of it, or plan for a larger cohort."
            raise InvalidParameter("indicator_noise", self.indicator_std(cohort), rule, hint)
        # The subtraction may lose digits; its loss is bounded by 2^-50 of the minuend.
        return noise_multiplier / math.sqrt(max(rest - 2.0**-50, 2.0**-60)) * (1 + 2.0**-40)

    def adapt(self, noisy_sum: float, cohort: float) -> AdaptiveClip:
        """Return the bound of the next round, from the released sum of the indicators.

        C <- C exp(-rate (fraction - quantile)) with fraction = noisy_sum / cohort + 1/2. If more
        updates than the quantile are within the norm, it falls.
        """
        fraction = noisy_sum / cohort + INDICATOR_NORM
        low, high = CLIP_NORM_RANGE
        step = math.exp(min(max(-self.rate * (fraction - self.quantile), -50.0), 50.0))
        return replace(self, clip_norm=min(max(self.clip_norm * step, low), high))


@dataclass(frozen=True, slots=True)
class PerLayerClip(ScaledRows):
    """Each tensor l clipped to its own C_l. The whole update then has norm sqrt(sum of C_l^2).

    Args:
        clip_norms: one per trained tensor, in the model's order.
    """

    clip_norms: tuple[float, ...]

    def __post_init__(self) -> None:
        given = validate.several("clip_norms", self.clip_norms, "clip norms")
        norms = tuple(clip_norm(value, "clip_norms") for value in given)
        if not norms:
            raise InvalidParameter("clip_norms", "empty", "each trained tensor has a clip norm")
        object.__setattr__(self, "clip_norms", norms)

    @property
    def clip_norm(self) -> float:  # pyright: ignore[reportIncompatibleVariableOverride] - constant
        """sqrt(sum of C_l^2), rounded up."""
        return math.hypot(*self.clip_norms) * (1 + 2.0**-50)

    def limits(self, layout: Layout) -> Limits:
        """Return one limit a tensor.

        Raises:
            InvalidParameter: the model has another number of tensors.
        """
        if len(layout.segments) != len(self.clip_norms):
            rule = f"the model trains {len(layout.segments)} tensors, and each has a clip norm"
            raise InvalidParameter("clip_norms", len(self.clip_norms), rule)
        parts = zip(layout.segments, self.clip_norms, strict=True)
        return [(start, stop, limit) for (start, stop), limit in parts]

    def apply(self, rows: Tensor, norms: Tensor, layout: Layout, margin: float) -> Tensor:
        """Clip each tensor of each row."""
        del norms
        rows = at_least_single(rows)
        for start, stop, limit in self.limits(layout):
            part = rows[:, start:stop]
            clip_rows(part, row_norms(part), limit * (1 - margin))
        return rows


def clip_norm(value: object, name: str = "clip_norm") -> float:
    """Return a clip norm as a number."""
    if callable(value) or isinstance(value, str | Tensor):
        raise Unsupported(
            f"{name} is a constant. A median or any other rule on the clients' norms would release "
            "private values without noise; AdaptiveClip finds a quantile with noise, and is charged"
        )
    return validate.within(name, value, "a clip norm", CLIP_NORM_RANGE)


def check_limits(bound: Bound, layout: Layout) -> None:
    """Check that limits cover every coordinate once and imply the claimed sensitivity."""
    limits = sorted(bound.limits(layout))
    low, high = CLIP_NORM_RANGE
    outside = [limit for _, _, limit in limits if limit != 0 and not low <= limit <= high]
    whole = math.hypot(*(limit for _, _, limit in limits))
    claimed = bound.sensitivity(Adjacency.ADD_REMOVE)
    if [*(start for start, _, _ in limits), layout.size] != [0, *(stop for _, stop, _ in limits)]:
        rule = f"its limits cover each of the {layout.size} coordinates once"
    elif outside:
        rule = f"each of its limits is 0 or in [{low:g}, {high:g}], and one is {outside[0]:g}"
    elif whole > claimed * (1 + 2.0**-49):
        rule = f"its limits allow a norm of {whole:g}, and it claims a sensitivity of {claimed:g}"
    else:
        return
    raise InvalidParameter("bound", type(bound).__name__, rule)


def row_norms(rows: Tensor) -> Tensor:
    """Return the Euclidean norms of the rows of a matrix [c, d] of any real type, as float64 [c].

    Error: relative error at most 2^-29 for d up to 2^40, either direction. Rows of float64 also
        2^-517 from underflow. NaN or infinite if the row is, and infinite if squares of float64
        overflow (norms above 1e154).
    """
    whole = 0 if rows.device.type == "cpu" else rows.shape[1] // _COLUMNS * _COLUMNS
    pieces = cast("tuple[Tensor, ...]", cast("Any", rows[:, whole:]).split(_COLUMNS, dim=1))
    parts = [norm(piece, 1, torch.float64).unsqueeze(1) for piece in pieces]
    if whole:
        # A device takes all full pieces at once.
        full = rows[:, :whole].reshape(len(rows), whole // _COLUMNS, _COLUMNS)
        parts.insert(0, norm(full, 2, torch.float64))
    return parts[0][:, 0] if len(parts) == 1 else norm(torch.cat(parts, dim=1), dim=1)


def at_least_single(rows: Tensor) -> Tensor:
    """Return rows of half precision as float32, which changes no value. Others as they are."""
    return rows if rows.dtype in (torch.float32, torch.float64) else rows.float()


def clip_rows(rows: Tensor, norms: Tensor, limit: float) -> Tensor:
    """Scale rows in place to norms of at most ``limit``. Shorter rows stay as they are."""
    return scale_rows(rows, (limit / norms).clamp(max=1.0))


def scale_rows(rows: Tensor, scale: Tensor) -> Tensor:
    """Multiply each row of [c, k] by its factor, float64 [c], in place.

    Error: two roundings of the rows' type, for every factor.
    """
    # As float32, a smaller factor would have few bits left, or none.
    tiny = scale < 2.0**-60
    if bool(tiny.any()):
        rows[tiny] = (rows[tiny].double() * scale[tiny].unsqueeze(1)).to(rows.dtype)
        scale = torch.where(tiny, 1.0, scale)
    return rows.mul_(scale.to(rows.dtype).unsqueeze(1))
