"""BLUR: a penalty that keeps local updates short. BLURS: sparsified as well."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpacct.fl.layout import Layout, Params, State
from dpacct.fl.local.batches import Batch
from dpacct.fl.local.losses import Loss
from dpacct.fl.methods.parameters import whole_norm
from dpacct.fl.methods.protocol import Context, Method
from dpacct.fl.postprocess.denoisers import keep_largest
from dpacct.fl.privacy.masks import fraction_kept
from dpacct.validate import above_zero, at_least_zero


@dataclass(frozen=True)
class BLUR(Method):
    """Bounded local update regularization: (lambda / 2) max(0, |w - w^t|^2 - B^2) in the loss.

    ::

        direction = grad F_i(w) + lambda (w - w^t)   where |w - w^t| > B, else grad F_i(w)

    Nothing before the bound matters for privacy. ``penalty=0`` is DP-FedAvg.

    Args:
        penalty: lambda, at least 0. With plain steps of size lr the iterate is stable for
            lr lambda < 2.
        radius: B, above 0; None is the clip norm of the round. No paper prints either value.

    Raises:
        InvalidParameter: a value out of range.
    Source: Cheng, Wang, Wu, Xu 2022 (CVPR), "bounded local update regularization"; the formula is
        one reading of it.
    """

    penalty: float = 0.1
    radius: float | None = None

    name = "blur"

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "penalty", at_least_zero("penalty", self.penalty, "the weight of the penalty"))
        if self.radius is not None:
            put(self, "radius", above_zero("radius", self.radius, "the radius without penalty"))

    def gradient(self, loss: Loss, params: Params, batch: Batch, context: Context) -> Params:
        """grad F_i(w), plus lambda (w - w^t) outside of the ball."""
        found = loss.gradient(params, batch)
        if self.penalty == 0:
            return found
        gap = {name: value - context.anchor[name] for name, value in params.items()}
        radius = context.clip_norm if self.radius is None else self.radius
        outside = whole_norm(gap) > radius
        pull = {
            name: torch.where(outside, self.penalty * value, 0.0) for name, value in gap.items()
        }
        return {name: value + pull[name] for name, value in found.items()}


@dataclass(frozen=True)
class BLURS(BLUR):
    """BLUR with local update sparsification: each client sends its own largest coordinates.

    A share p of each tensor, by magnitude, picked before the bound: which coordinates a client
    picked is its own affair, since the noise goes to all of them.

    Args:
        fraction: p in (0, 1], published 0.4; 1 is BLUR.

    Raises:
        InvalidParameter: as `BLUR`, or the fraction out of range.
    Source: as `BLUR`.
    """

    fraction: float = 0.4

    name = "blurs"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "fraction", fraction_kept(self.fraction))

    def local_update(self, delta: Tensor, client_state: State | None, context: Context) -> Tensor:
        """The client's largest coordinates of each tensor."""
        del client_state
        return keep_largest(delta, Layout.of(context.anchor).sizes, self.fraction)
