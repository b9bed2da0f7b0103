"""FedDyn: a local penalty that follows the client, so that all agree on one optimum."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dpacct.fl.layout import Params, State
from dpacct.fl.local.batches import Batch
from dpacct.fl.local.losses import Loss
from dpacct.fl.methods.parameters import MEMORY, memory_tensors, zero_memory, zeros
from dpacct.fl.methods.protocol import Context, Method
from dpacct.fl.privacy.markers import Noised
from dpacct.validate import above_zero


@dataclass(frozen=True)
class FedDyn(Method):
    """The local loss has a linear term, which the client remembers, and a pull to the broadcast.

    With h_i the memory, h public, D_i = clip(y - x, C) and M the noisy mean of the updates::

        y <- y - lr [grad F_i(y) - h_i + strength (y - x)]    every local step
        h_i <- h_i - strength D_i                             those who take part
        h <- h - strength q M
        x <- x + server_lr M - h / strength

    h is computed from M: one release a round, charged as DP-FedAvg. h adds up the noise of all
    rounds and forgets none, so that the last line pays for many rounds with noise; a larger
    strength does not change that. As printed h has the number of those who came over N; here it is
    the planned q.

    Those who take part remember: Poisson cohorts or everybody, no cohorts of fixed size.

    Args:
        strength: of the penalty, above 0; published 0.1, 0.01 and 0.001.

    Raises:
        InvalidParameter: a value out of range.
    Source: Acar et al. 2021, arXiv:2111.04263, Algorithm 1.
    """

    strength: float = 0.1

    name = "feddyn"

    def __post_init__(self) -> None:
        strength = above_zero("strength", self.strength, "the strength of the penalty")
        object.__setattr__(self, "strength", strength)

    def init(self, params: Params) -> State:
        """h = 0."""
        return zeros(params)

    def init_client(self, params: Params) -> State | None:
        """h_i = 0."""
        return zero_memory(params)

    def gradient(self, loss: Loss, params: Params, batch: Batch, context: Context) -> Params:
        """grad F_i(y) - h_i + strength (y - x)."""
        own, anchor = memory_tensors(context), context.anchor
        found = loss.gradient(params, batch)
        return {n: g - own[n] + self.strength * (params[n] - anchor[n]) for n, g in found.items()}

    def client_state(self, client_state: State, bounded: Tensor, context: Context) -> State:
        """h_i - strength D_i."""
        del context
        return {MEMORY: client_state[MEMORY] - self.strength * bounded}

    def server(self, params: Params, noised: Noised, server_state: State) -> tuple[Params, State]:
        """h and x."""
        mean = noised.tensors
        share = self.strength * noised.sampling_rate
        state = {name: server_state[name] - share * mean[name] for name in params}
        moved = {
            name: value + noised.server_lr * mean[name] - state[name] / self.strength
            for name, value in params.items()
        }
        return moved, state
