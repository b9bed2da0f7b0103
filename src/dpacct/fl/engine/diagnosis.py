"""The figures of a report that come from before the noise, and are not private."""

from __future__ import annotations

import math

import torch

from dpacct.fl.engine.states import Collected
from dpacct.fl.privacy.bounds import Bound, SmoothedNormalization
from dpacct.fl.privacy.noise import grid_exponent
from dpacct.fl.report.reports import Diagnostics
from dpacct.fl.tensors import norm, numbers

_ROUNDING = 1e-5


def diagnose(
    found: Collected, bound: Bound, std: float, limits: list[tuple[int, int, float]]
) -> Diagnostics:
    """Statistics of the raw updates of one round.

    Args:
        found: what was summed. bound: of the round. std: of the noise on the sum.
        limits: of one row, which fix the grid of whole-number sums.
    """
    total = found.total
    norms = torch.cat([total.new_zeros(0, dtype=torch.float64), *found.norms])
    dropped = torch.stack([total.new_zeros((), dtype=torch.int64), *found.dropped])
    few = [norm(total.double()), dropped.sum().double()]
    if len(norms):
        # What a method has projected onto the ball lies on its edge, up to rounding.
        over = norms > bound.clip_norm * (1 + _ROUNDING)
        few += [over.double().mean(), norms.mean(), norms.median(), norms.max()]
    # A device is waited for once.
    length, count, *about = numbers(torch.stack(few))
    scale = 1.0 if total.is_floating_point() else 2.0 ** grid_exponent(limits)
    signal, noise = length * scale, std * math.sqrt(max(len(total), 1))
    if not about:
        return Diagnostics(found.arrived, math.nan, math.nan, math.nan, math.nan, int(count), 0.0)
    clipped, mean, median, most = about
    return Diagnostics(
        cohort_size=found.arrived,
        clipped_fraction=0.0 if isinstance(bound, SmoothedNormalization) else clipped,
        norm_mean=mean,
        norm_median=median,
        norm_max=most,
        dropped_updates=int(count),
        # A round that releases nothing has no noise to compare with.
        signal_to_noise=signal / noise if noise else math.nan,
    )
