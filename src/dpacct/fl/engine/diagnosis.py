"""The figures of a report that come from before the noise, and are not private."""

from __future__ import annotations

import math

import torch

from dpacct.fl.engine.states import Collected
from dpacct.fl.privacy.bounds import Bound, SmoothedNormalization
from dpacct.fl.privacy.secure_noise import grid_exponent
from dpacct.fl.report.reports import Diagnostics
from dpacct.fl.tensors import norm

_ROUNDING = 1e-5


def diagnose(
    found: Collected, bound: Bound, std: float, limits: list[tuple[int, int, float]]
) -> Diagnostics:
    """Statistics of the raw updates of one round.

    Args:
        found: what was summed. bound: of the round. std: of the noise on the sum.
        limits: of one row, which fix the grid of whole-number sums.
    """
    norms = torch.cat(found.norms) if found.norms else torch.zeros(0, dtype=torch.float64)
    dropped = int(sum(int(count) for count in found.dropped))
    total = found.total
    scale = 1.0 if total.is_floating_point() else 2.0 ** grid_exponent(limits)
    signal = float(norm(total.double())) * scale
    noise = std * math.sqrt(max(len(total), 1))
    if not len(norms):
        return Diagnostics(found.arrived, math.nan, math.nan, math.nan, math.nan, dropped, 0.0)
    # What a method has projected onto the ball lies on its edge, up to rounding.
    clipped = float((norms > bound.clip_norm * (1 + _ROUNDING)).double().mean())
    if isinstance(bound, SmoothedNormalization):
        clipped = 0.0
    return Diagnostics(
        cohort_size=found.arrived,
        clipped_fraction=clipped,
        norm_mean=float(norms.mean()),
        norm_median=float(norms.median()),
        norm_max=float(norms.max()),
        dropped_updates=dropped,
        # A round that releases nothing has no noise to compare with.
        signal_to_noise=signal / noise if noise else math.nan,
    )
