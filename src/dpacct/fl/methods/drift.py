"""SCAFFOLD, FedDyn and FedCM: corrections of the drift of differing clients in their local steps.

Their server states and the memories of clients begin at zero. Each makes one release a round,
charged as DP-FedAvg. SCAFFOLD and FedDyn keep memories of the clients that take part: Poisson
cohorts or all clients, no cohorts of fixed size. As printed their states use the realized cohort
size over N. Here it is the planned q.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpacct.fl.layout import Noised, Params, State
from dpacct.fl.local.losses import Loss
from dpacct.fl.local.sgd import Batch
from dpacct.fl.methods.protocol import (
    MEMORY,
    Context,
    PlainSteps,
    ZeroMemory,
    ZeroState,
    memory_tensors,
    one_if_any,
    steps_taken,
)
from dpacct.validate import above_zero, probability


@dataclass(frozen=True)
class Scaffold(ZeroMemory, PlainSteps):
    """Each step is corrected by the difference of this client's gradients and those of all.

    G_i is the sum of the gradients of client i's last round (its memory), and G the public estimate
    of their mean. With K_i local steps of size lr, and M the noisy mean of the updates::

        y <- y - lr [grad F_i(y) - (G_i - G) / K_i]           K_i times
        D_i = clip(y - x, C)
        G_i <- G_i - G - D_i / lr                             if client i takes part
        G <- G + q (-M / lr - G)
        x <- x + server_lr M

    As printed clients also send the change of their control variate. It is -G - D_i / lr, so the
    server computes its mean from M. The first round is one of DP-FedAvg.

    Raises:
        InvalidParameter: a run with momentum or ``total_lr``: its steps are not plain gradients.
    Source: Karimireddy et al. 2020, arXiv:1910.06378, Algorithm 1 with option II, in sums of
        gradients instead of means, so that clients may take different numbers of steps.
    """

    name = "scaffold"

    def gradient(self, loss: Loss, params: Params, batch: Batch, context: Context) -> Params:
        """Return grad F_i(y) - (G_i - G) / K_i."""
        own, public = memory_tensors(context), context.server_state
        steps = steps_taken(context.steps)
        gradient = loss.gradient(params, batch)
        return {n: g - (own[n] - public[n]) / steps for n, g in gradient.items()}

    def client_state(self, client_state: State, bounded: Tensor, context: Context) -> State:
        """Return G_i - G - D_i / lr, or G_i for a client that took no step."""
        public = torch.cat([context.server_state[name].flatten() for name in context.anchor])
        moved = one_if_any(context.steps) * (public + bounded / context.lr)
        return {MEMORY: client_state[MEMORY] - moved}

    def server(self, params: Params, noised: Noised, server_state: State) -> tuple[Params, State]:
        """Return G and x."""
        mean, rate = noised.tensors, noised.sampling_rate
        moved, _ = super().server(params, noised, server_state)
        return moved, {
            name: server_state[name] - rate * (mean[name] / noised.lr + server_state[name])
            for name in params
        }


@dataclass(frozen=True)
class FedDyn(ZeroMemory):
    """The local loss has a linear term, which the client remembers, and a pull to the broadcast.

    With h_i the memory, h public, D_i = clip(y - x, C) and M the noisy mean of the updates::

        y <- y - lr [grad F_i(y) - h_i + strength (y - x)]    every local step
        h_i <- h_i - strength D_i                             if client i takes part
        h <- h - strength q M
        x <- x + server_lr M - h / strength

    h is computed from M. It adds up the noise of all rounds and forgets none, so the last line has
    the noise of many rounds. A larger strength does not change that.

    Args:
        strength: of the penalty, above 0. Published: 0.1, 0.01 and 0.001.
    Source: Acar et al. 2021, arXiv:2111.04263, Algorithm 1.
    """

    strength: float = 0.1

    name = "feddyn"

    def __post_init__(self) -> None:
        strength = above_zero("strength", self.strength, "the strength of the penalty")
        object.__setattr__(self, "strength", strength)

    def gradient(self, loss: Loss, params: Params, batch: Batch, context: Context) -> Params:
        """Return grad F_i(y) - h_i + strength (y - x)."""
        own, anchor = memory_tensors(context), context.anchor
        gradient = loss.gradient(params, batch)
        return {
            n: g - own[n] + self.strength * (params[n] - anchor[n]) for n, g in gradient.items()
        }

    def client_state(self, client_state: State, bounded: Tensor, context: Context) -> State:
        """Return h_i - strength D_i."""
        del context
        return {MEMORY: client_state[MEMORY] - self.strength * bounded}

    def server(self, params: Params, noised: Noised, server_state: State) -> tuple[Params, State]:
        """Return h and x."""
        mean, share = noised.tensors, self.strength * noised.sampling_rate
        state = {name: server_state[name] - share * mean[name] for name in params}
        moved, _ = super().server(params, noised, server_state)
        return {n: value - state[n] / self.strength for n, value in moved.items()}, state


@dataclass(frozen=True)
class FedCM(ZeroState, PlainSteps):
    """Local steps mix the client's gradient with the released direction of the last round.

    With K_i local steps of size lr, and M the noisy mean of the updates::

        y <- y - lr [alpha grad F_i(y) + (1 - alpha) G / K_i]
        G <- -M / lr
        x <- x + server_lr M

    G is released, so the mix costs nothing. A client's whole displacement is bounded, its public
    part included, and both need room within the clip norm. `DPFedPGN` takes that part out before.

    Args:
        alpha: share of the client's own gradient, in [0, 1]. Published: 0.1.

    Raises:
        InvalidParameter: a value out of range, or a run with momentum or ``total_lr``.
    Source: Xu et al. 2021, arXiv:2106.10874, Algorithm 2, in sums of gradients, so that clients may
        take different numbers of steps.
    """

    alpha: float = 0.1

    name = "fedcm"

    def __post_init__(self) -> None:
        alpha = probability("alpha", self.alpha, "the share of the client's gradient")
        object.__setattr__(self, "alpha", alpha)

    def gradient(self, loss: Loss, params: Params, batch: Batch, context: Context) -> Params:
        """Return alpha grad F_i(y) + (1 - alpha) G / K_i."""
        public, steps = context.server_state, steps_taken(context.steps)
        gradient = loss.gradient(params, batch)
        rest = 1 - self.alpha
        return {n: self.alpha * g + rest * public[n] / steps for n, g in gradient.items()}

    def server(self, params: Params, noised: Noised, server_state: State) -> tuple[Params, State]:
        """Return G and x."""
        moved, _ = super().server(params, noised, server_state)
        return moved, {name: -noised.tensors[name] / noised.lr for name in params}
