"""DP-Fed-LS: the noisy mean is smoothed by the inverse of a circulant Laplacian."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from dpacct.fl.layout import Noised, Params, State
from dpacct.fl.methods.protocol import Cohort, Context, Method, whole_norm
from dpacct.fl.postprocess import AXES, DENOISERS, check_order, check_strength, smooth
from dpacct.validate import one_of


@dataclass(frozen=True)
class DPFedLS(Method):
    """Local iterates stay in the ball of radius C. The released mean is denoised per tensor.

    ::

        w <- w^t + clip(w - lr grad F_i(w) - w^t, C)          after every local step
        w^{t+1} = w^t + server_lr A_s^{-1} (sum_i Delta_i + N(0, (z C)^2)) / (q N)

    with A_s of `dpacct.fl.postprocess.smooth`. Poisson cohorts (add-remove) and uniform ones
    (replace-one, charged for 2C) are those of the run. ``smoothing=0`` is the DP-Fed
    of the paper.

    Args:
        smoothing: s, at least 0. Published: 0.5 to 3.
        order: of flattening, as in `dpacct.fl.postprocess.smooth`.
        denoiser: instead of ``"laplacian"``: ``"james-stein"``, ``"james-stein-plus"`` (positive
            part), ``"soft-threshold"`` or ``"top-k"`` (0.4 of each tensor).
        as_printed: Poisson cohorts are divided by the number of clients that came, which is
            private. Without any the model stays. Uniform cohorts need no such form.
    Source: Liang, Wang, Gu, Osher, Yao, "DP-Fed-LS", arXiv:2005.00218.
    """

    smoothing: float = 1.0
    order: str = AXES
    denoiser: str = "laplacian"
    as_printed: bool = field(default=False, kw_only=True, repr=False)

    name = "dp-fed-ls"
    printed = "the sum is divided by the number of clients that came, which is private"

    def __post_init__(self) -> None:
        object.__setattr__(self, "smoothing", check_strength(self.smoothing))
        check_order(self.order)
        one_of("denoiser", self.denoiser, "a denoiser", DENOISERS)

    def after_step(self, params: Params, context: Context) -> Params:
        """Return the nearest point of the ball of radius C around w^t."""
        gap = {name: value - context.anchor[name] for name, value in params.items()}
        scale = (context.clip_norm / whole_norm(gap)).clamp(max=1.0)
        return {
            name: torch.where(scale < 1, context.anchor[name] + scale * gap[name], value)
            for name, value in params.items()
        }

    def published(self, cohort: Cohort) -> tuple[Tensor, float]:
        """Return the noisy sum, as divided by the realized cohort size, or zero without clients."""
        ratio = cohort.size / len(cohort.rows) if len(cohort.rows) else 0.0
        std, size = ratio * cohort.std, cohort.rows.shape[1]
        return ratio * cohort.rows.sum(dim=0) + std * cohort.normals(size), std

    def post(self, noised: Noised, server_state: State) -> Noised:
        """Return the mean denoised tensor by tensor."""
        del server_state
        if self.denoiser == "laplacian":
            return noised.map_tensors(lambda tensor: smooth(tensor, self.smoothing, self.order))
        denoise = DENOISERS[self.denoiser]
        return noised.map_tensors(lambda tensor: denoise(tensor, noised.std))
