"""DP-FedAvg, and variants that change how an update is kept short: BLUR, BLURS, smoothed."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from dpacct.fl.layout import Layout, Noised, Params, State
from dpacct.fl.local.losses import Loss
from dpacct.fl.local.sgd import Batch
from dpacct.fl.methods.protocol import Context, Method, whole_norm
from dpacct.fl.postprocess import keep_largest
from dpacct.fl.privacy.bounds import Bound, SmoothedNormalization
from dpacct.fl.privacy.masks import fraction_kept
from dpacct.validate import above_zero, at_least_zero


@dataclass(frozen=True)
class DPFedAvg(Method):
    """DP-FedAvg, the plain `Method`: SGD, whole updates, no memory, the mean moves the model.

    Source: McMahan, Ramage, Talwar, Zhang 2018, arXiv:1710.06963.
    """

    name = "dp-fedavg"


@dataclass(frozen=True)
class FedAvgSmoothed(Method):
    """Each update becomes Norm(Delta) = Delta / (alpha + |Delta|), shorter than 1.

    ::

        x <- x + server_lr beta (sum_i Norm(Delta_i) + N(0, z^2)) / (q N)

    beta scales contributions and noise alike, so epsilon does not depend on it. Unlike
    `FedAlphaNormEC` it keeps no memory, and where clients disagree it converges to a point that is
    not the optimum. The run takes no clip norm.

    Args:
        alpha: of the normalization, in [1e-12, 1e12]. Published: 0.01.
        beta: above 0. Published: 0.1 as the best of 0.001, 0.01, 0.1 (how it enters is not printed,
            and this is the one consistent reading).
    Source: the baseline of "Fed-alpha-NormEC".
    """

    alpha: float = 0.01
    beta: float = 0.1
    bound: Bound | None = field(init=False, repr=False, default=None)

    name = "fedavg-smoothed"

    def __post_init__(self) -> None:
        bound = SmoothedNormalization(self.alpha)
        object.__setattr__(self, "bound", bound)
        object.__setattr__(self, "alpha", bound.alpha)
        object.__setattr__(self, "beta", above_zero("beta", self.beta, "the factor on the mean"))

    def post(self, noised: Noised, server_state: State) -> Noised:
        """Return beta times the mean."""
        del server_state
        return noised.map(lambda mean: self.beta * mean)


@dataclass(frozen=True)
class BLUR(Method):
    """Bounded local update regularization: (lambda / 2) max(0, |w - w^t|^2 - B^2) in the loss.

    ::

        direction = grad F_i(w) + lambda (w - w^t)   where |w - w^t| > B, else grad F_i(w)

    Nothing before the bound matters for privacy. ``penalty=0`` is DP-FedAvg.

    Args:
        penalty: lambda, at least 0. With plain steps of size lr the iterate is stable for
            lr lambda < 2.
        radius: B, above 0. None is the clip norm of the round. No paper prints either value.
    Source: Cheng, Wang, Wu, Xu 2022 (CVPR), "bounded local update regularization". The formula is
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
        """Return grad F_i(w), plus lambda (w - w^t) outside of the ball."""
        gradient = loss.gradient(params, batch)
        if self.penalty == 0:
            return gradient
        gap = {name: value - context.anchor[name] for name, value in params.items()}
        radius = context.clip_norm if self.radius is None else self.radius
        outside = whole_norm(gap) > radius
        return {
            name: value + torch.where(outside, self.penalty * gap[name], 0.0)
            for name, value in gradient.items()
        }


@dataclass(frozen=True)
class BLURS(BLUR):
    """BLUR with local update sparsification: each client sends its own largest coordinates.

    A share p of each tensor, by magnitude, picked before the bound. The choice may depend on the
    client's data, since the noise goes to all coordinates.

    Args:
        fraction: p in (0, 1]. Published: 0.4. 1 is BLUR.
    Source: as `BLUR`.
    """

    fraction: float = 0.4

    name = "blurs"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "fraction", fraction_kept(self.fraction))

    def local_update(self, delta: Tensor, client_state: State | None, context: Context) -> Tensor:
        """Return the client's largest coordinates of each tensor."""
        del client_state
        return keep_largest(delta, Layout.of(context.anchor).sizes, self.fraction)
