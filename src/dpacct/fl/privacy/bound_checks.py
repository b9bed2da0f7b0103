"""Whether a bound bounds, tried on hand-made updates, and whether the charge follows from it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import torch
from torch import Tensor

from dpacct.errors import InvalidParameter
from dpacct.fl.layout import Layout
from dpacct.fl.privacy.adaptive_clip import INDICATOR_NORM
from dpacct.fl.privacy.bounds import Bound, check_limits
from dpacct.fl.privacy.charge import NoisePlan
from dpacct.fl.privacy.findings import Finding
from dpacct.fl.privacy.noise import Noise
from dpacct.fl.privacy.norms import MARGIN, row_norms
from dpacct.fl.privacy.sums import add_clipped, contribute, scales_rows
from dpacct.fl.tensors import numbers
from dpacct.rounds import Adjacency

# Float32 rounding; everything that is checked is larger than this when it is wrong.
SLACK = 1e-5
# Norms, as shares of the clip norm, of updates that are bounded beside each other.
_SHARES = (0.9, 0.01, 5.0)


def extreme_updates(layout: Layout, claimed: float, dtype: torch.dtype) -> Iterator[Tensor]:
    """Updates [1, d] that a bound should not be surprised by; the telling ones come first."""
    size, kind = layout.size, torch.finfo(dtype)
    generator = torch.Generator().manual_seed(0)

    def drawn(scale: float) -> Tensor:
        return (scale * torch.randn(1, size, generator=generator)).to(dtype)

    # Every tensor equally long: what is clipped tensor by tensor stays long as a whole.
    level = torch.cat([torch.full((n,), n**-0.5, dtype=dtype) for n in layout.sizes if n])
    yield (1e4 * level).unsqueeze(0)
    yield drawn(100 * claimed)
    yield drawn(1e12)
    yield (level * claimed / len(layout.sizes) ** 0.5).unsqueeze(0)
    yield drawn(0.01 * claimed / size**0.5)
    yield torch.zeros(1, size, dtype=dtype)
    spike = torch.zeros(1, size, dtype=dtype)
    spike[0, 0] = -1e9
    yield spike
    yield drawn(1.0).sign() * kind.max
    yield drawn(kind.smallest_normal)
    mixed = drawn(1e30)
    mixed[0, ::3] = 1e-30
    yield mixed
    broken = drawn(1.0)
    broken[0, -1] = torch.nan
    yield broken


def check_bound(
    bound: Bound, layout: Layout, contributions: int, like: Tensor, most: int = 99
) -> Finding:
    """Bound so many extreme updates, as a round does.

    Args:
        bound: of the round. layout: of an update. contributions: room of the sum.
        like: a parameter, for dtype and device. most: updates to try.
    """
    claimed = bound.sensitivity(Adjacency.ADD_REMOVE)
    try:
        check_limits(bound, layout)
    except InvalidParameter as error:
        return Finding("bound", passed=False, detail=str(error))
    worst = 0.0
    for number, row in enumerate(extreme_updates(layout, claimed, like.dtype)):
        if number == most:
            break
        raw = row.to(like.device)
        if bool(torch.isfinite(raw).all()):
            inside = bound.apply(raw.clone(), row_norms(raw), layout, MARGIN)
            if float((raw.double() * inside.double()).sum()) < 0:
                detail = "an update comes out of it turned around"
                return Finding("bound", passed=False, detail=detail)
            worst = max(worst, float(row_norms(inside)[0]) / (1 + SLACK))
        # What is summed is held to the bound, whatever the bound did.
        total = torch.zeros(layout.size, dtype=torch.float64, device=like.device)
        if scales_rows(bound):
            add_clipped(total, [raw], bound, contributions, group=1, coarsest=math.inf)
        inside, *_ = contribute(raw, bound, layout, contributions)
        worst = max(worst, *numbers(row_norms(torch.stack([inside[0].double(), total]))))
    if _minds_others(bound, layout, like):
        detail = "an update comes out of it otherwise beside another one: it looks at both"
        return Finding("bound", passed=False, detail=detail)
    detail = f"contributions have norm up to {worst:.6g}, and {claimed:.6g} is claimed"
    return Finding("bound", worst <= claimed, detail)


def _minds_others(bound: Bound, layout: Layout, like: Tensor) -> bool:
    """Whether an update is bounded otherwise because of another one, beside it or before it."""
    level = torch.ones(layout.size, dtype=like.dtype, device=like.device)
    level *= bound.clip_norm / layout.size**0.5
    for one, other in itertools.permutations(_SHARES, 2):
        pair = torch.stack([one * level, other * level])
        alone = _applied(bound, pair[:1], layout)
        beside = _applied(bound, pair, layout)
        again = _applied(bound, pair[:1], layout)
        if not (torch.equal(alone[0], beside[0]) and torch.equal(alone, again)):
            return True
    return False


def _applied(bound: Bound, rows: Tensor, layout: Layout) -> Tensor:
    return bound.apply(rows.clone(), row_norms(rows), layout, MARGIN)


def check_charge(plan: NoisePlan, bound: Bound, noise: Noise) -> Finding:
    """The charge follows from the noise and the sensitivity."""
    charged = plan.event(bound, noise, {}).charged.noise_multiplier
    doubled = 2 if plan.adjacency is Adjacency.REPLACE_ONE else 1
    real = plan.update_std(bound) * doubled / bound.sensitivity(plan.adjacency)
    detail = f"noise multiplier {charged:.6g} is charged, and the sum gets {real:.6g}"
    return Finding("charge", charged <= real, detail)


def check_joint_charge(plan: NoisePlan, bound: Bound, noise: Noise) -> tuple[Finding, ...]:
    """The charge next to the multiplier of update and count together; nothing for other bounds."""
    std = plan.indicator_std(bound)
    if std is None:
        return ()
    charged = plan.event(bound, noise, {}).charged.noise_multiplier
    update = plan.update_std(bound) / bound.clip_norm
    both = 1 / math.hypot(1 / update, INDICATOR_NORM / std)
    detail = f"multiplier {charged:.6g} is charged, and update and count together have {both:.6g}"
    return (Finding("joint charge", charged <= both, detail),)
