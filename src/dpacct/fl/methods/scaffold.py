"""SCAFFOLD: control variates that take the drift of differing clients out of their local steps."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from dpacct.fl.layout import Params, State
from dpacct.fl.local.batches import Batch
from dpacct.fl.local.losses import Loss
from dpacct.fl.local.sgd import SGD
from dpacct.fl.methods.parameters import (
    MEMORY,
    memory_tensors,
    one_if_any,
    plain_steps,
    steps_taken,
    zero_memory,
    zeros,
)
from dpacct.fl.methods.protocol import Context, Method
from dpacct.fl.privacy.markers import Noised


@dataclass(frozen=True)
class Scaffold(Method):
    """Each step is corrected by what this client's gradients and those of all differ.

    With G_i the sum of the gradients of client i's last round (its memory), G the public estimate
    of their mean, K_i local steps of size lr, and M the noisy mean of the updates::

        y <- y - lr [grad F_i(y) - (G_i - G) / K_i]           K_i times
        D_i = clip(y - x, C)
        G_i <- G_i - G - D_i / lr                             those who take part
        G <- G + q (-M / lr - G)
        x <- x + server_lr M

    As printed clients also send the change of their control variate. It is -G - D_i / lr, so the
    server computes its mean from M: one release a round, charged as DP-FedAvg. As printed the last
    line but one has the number of those who came over N; here it is the planned q.

    Those who take part remember: Poisson cohorts or everybody, no cohorts of fixed size. At first
    G_i = G = 0, which makes the first round one of DP-FedAvg.

    Raises:
        InvalidParameter: a run with momentum or ``total_lr``, whose steps are no plain gradients.
    Source: Karimireddy et al. 2020, arXiv:1910.06378, Algorithm 1 with option II, in sums of
        gradients instead of means, so that clients may take different numbers of steps.
    """

    name = "scaffold"

    def prepare(self, local: SGD) -> SGD:
        """Return plain steps; see `plain_steps`."""
        return plain_steps(self.name, local)

    def init(self, params: Params) -> State:
        """G = 0."""
        return zeros(params)

    def init_client(self, params: Params) -> State | None:
        """G_i = 0."""
        return zero_memory(params)

    def gradient(self, loss: Loss, params: Params, batch: Batch, context: Context) -> Params:
        """grad F_i(y) - (G_i - G) / K_i."""
        own, public = memory_tensors(context), context.server_state
        steps = steps_taken(context.steps)
        found = loss.gradient(params, batch)
        return {n: g - (own[n] - public[n]) / steps for n, g in found.items()}

    def client_state(self, client_state: State, bounded: Tensor, context: Context) -> State:
        """G_i - G - D_i / lr; as it was for a client that took no step."""
        public = torch.cat([context.server_state[name].flatten() for name in context.anchor])
        moved = one_if_any(context.steps) * (public + bounded / context.lr)
        return {MEMORY: client_state[MEMORY] - moved}

    def server(self, params: Params, noised: Noised, server_state: State) -> tuple[Params, State]:
        """G and x."""
        mean, rate = noised.tensors, noised.sampling_rate
        state = {
            name: server_state[name] - rate * (mean[name] / noised.lr + server_state[name])
            for name in params
        }
        moved = {name: value + noised.server_lr * mean[name] for name, value in params.items()}
        return moved, state
