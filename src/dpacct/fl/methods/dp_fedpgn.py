"""DP-FedPGN: a penalty on the norm of the global gradient, at one gradient per local step."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from dpacct.fl.layout import Noised, Params, State
from dpacct.fl.local.losses import Loss
from dpacct.fl.local.sgd import Batch
from dpacct.fl.methods.protocol import (
    Cohort,
    Context,
    PlainSteps,
    ZeroState,
    one_if_any,
    step_along,
    steps_with_momentum,
)
from dpacct.fl.postprocess import check_strength, smooth
from dpacct.fl.tensors import norm
from dpacct.validate import at_least_zero, probability


@dataclass(frozen=True)
class DPFedPGN(ZeroState, PlainSteps):
    """Local steps mix the client's gradient with the released pseudo-gradient g of the last round.

    With u = rho g / |g| (0 for g = 0), K local steps of size lr, and m the planned cohort::

        y <- y - lr [beta grad F_i(y + u) + (1 - beta) g]
        Dbar_i = y^K - x + (1 - beta) K lr g                 the public part is taken out
        g' = (1 - beta) g - (sum_i clip(Dbar_i, C) + N(0, (z C)^2)) / (m lr K)
        x' = x - server_lr lr K g'                           published: server_lr = 1

    Dbar_i is -lr beta times the sum of the client's gradients, so a fitting C is about beta times
    that of DP-FedAvg. g is public: taking it out is a translation before the bound, putting it back
    is post-processing, and epsilon is that of DP-FedAvg. beta = 1 with rho = 0 is DP-FedAvg.

    The server state is K g, zero at first, in the shapes of the parameters. So clients with
    different numbers of steps K_i need no common K: each walks lr (1 - beta) K g in its K_i steps.
    With equal numbers it is the method as printed. Local momentum replaces K by the number W of
    plain steps that go as far (`steps_with_momentum`), so the public part is still taken out.

    Args:
        rho: radius of the perturbation, at least 0. Printed: 0.2. The published program has no
            perturbation, which is 0 here, and local momentum 0.5.
        beta: share of the client's own gradient, in [0, 1]. Published: 0.3.
        as_printed: C is the median of the norms of the cohort's updates, which is private. The
            published program takes each client's own median of its layers instead.

    Raises:
        InvalidParameter: a value out of range, or a run with ``total_lr`` or ``max_grad_norm``,
            which change the public part.
    Source: "DP-FedPGN", Algorithm 1 (its Eqs. 15-18 double the public part instead of removing it).
    """

    rho: float = 0.2
    beta: float = 0.3
    as_printed: bool = field(default=False, kw_only=True, repr=False)

    name = "dp-fedpgn"
    takes_momentum = True
    printed = "the clip norm is the median of the clients' norms, to which no noise is added"

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "rho", at_least_zero("rho", self.rho, "the radius of the perturbation"))
        put(self, "beta", probability("beta", self.beta, "the share of the client's gradient"))

    def gradient(self, loss: Loss, params: Params, batch: Batch, context: Context) -> Params:
        """Return beta grad F_i(y + u) + (1 - beta) g, with weight decay as a part of F_i."""
        public, beta, decay = context.server_state, self.beta, context.local.weight_decay
        away = step_along(public, self.rho)
        moved = {name: value + away[name] for name, value in params.items()}
        steps = steps_with_momentum(context.steps, context.local.momentum)
        own = loss.gradient(moved, batch)
        gradient = {n: beta * g + (1 - beta) * public[n] / steps for n, g in own.items()}
        if decay:
            # The engine adds decay * y. F_i has decay / 2 |y|^2 in it, at y + u.
            gradient = {n: g + decay * (beta * moved[n] - params[n]) for n, g in gradient.items()}
        return gradient

    def local_update(self, delta: Tensor, client_state: State | None, context: Context) -> Tensor:
        """Return Dbar_i, zero for a client that took no step."""
        del client_state
        public = torch.cat([context.server_state[name].flatten() for name in context.anchor])
        walked = (1 - self.beta) * context.lr * one_if_any(context.steps)
        return delta + walked * public

    def published(self, cohort: Cohort) -> tuple[Tensor, float]:
        """Return the sum of updates clipped to their median norm, with noise for that norm."""
        norms, rows = cohort.norms, cohort.rows
        limit = float(norms.quantile(0.5)) if len(norms) else 0.0
        factors = norms.clamp(max=limit) / norm(rows, dim=1).clamp(min=1e-300)
        std = cohort.std * limit / cohort.clip_norm
        return factors @ rows + std * cohort.normals(rows.shape[1]), std

    def server(self, params: Params, noised: Noised, server_state: State) -> tuple[Params, State]:
        """Return K g' and x'."""
        mean, keep = noised.tensors, 1 - self.beta
        state = {
            name: self.denoise(keep * server_state[name] - mean[name] / noised.lr)
            for name in params
        }
        rate = noised.server_lr * noised.lr
        return {name: value - rate * state[name] for name, value in params.items()}, state

    def denoise(self, gradient: Tensor) -> Tensor:
        """Return each tensor of g' for its use, here unchanged."""
        return gradient


@dataclass(frozen=True)
class DPFedPGNLS(DPFedPGN):
    """DP-FedPGN with a smoothed pseudo-gradient: g' <- A_s^{-1} g' for each tensor.

    Args:
        smoothing: s, at least 0. Published: 0.01. 0 is DP-FedPGN.
    Source: as `DPFedPGN`, with A_s of `dpacct.fl.postprocess.smooth`.
    """

    smoothing: float = 0.01

    name = "dp-fedpgn-ls"

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "smoothing", check_strength(self.smoothing))

    def denoise(self, gradient: Tensor) -> Tensor:
        """Return A_s^{-1} g'."""
        return smooth(gradient, self.smoothing)
