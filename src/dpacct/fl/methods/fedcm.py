"""FedCM: local steps mix the client's gradient with the released direction of the last round."""

from __future__ import annotations

from dataclasses import dataclass

from dpacct.fl.layout import Params, State
from dpacct.fl.local.batches import Batch
from dpacct.fl.local.losses import Loss
from dpacct.fl.local.sgd import SGD
from dpacct.fl.methods.parameters import plain_steps, steps_taken, zeros
from dpacct.fl.methods.protocol import Context, Method
from dpacct.fl.privacy.markers import Noised
from dpacct.validate import probability


@dataclass(frozen=True)
class FedCM(Method):
    """Momentum in the local steps, from what was released.

    With G = 0 at first, K_i local steps of size lr, and M the noisy mean of the updates::

        y <- y - lr [alpha grad F_i(y) + (1 - alpha) G / K_i]
        G <- -M / lr
        x <- x + server_lr M

    G is released, so the mix costs nothing. A client's whole displacement is bounded, its public
    part included, and both need room within the clip norm; `DPFedPGN` takes that part out before.

    Args:
        alpha: share of the client's own gradient, in [0, 1]; published 0.1.

    Raises:
        InvalidParameter: a value out of range; a run with momentum or ``total_lr``.
    Source: Xu et al. 2021, arXiv:2106.10874, Algorithm 2, in sums of gradients, so that clients may
        take different numbers of steps.
    """

    alpha: float = 0.1

    name = "fedcm"

    def __post_init__(self) -> None:
        alpha = probability("alpha", self.alpha, "the share of the client's gradient")
        object.__setattr__(self, "alpha", alpha)

    def prepare(self, local: SGD) -> SGD:
        """Return plain steps; see `plain_steps`."""
        return plain_steps(self.name, local)

    def init(self, params: Params) -> State:
        """G = 0."""
        return zeros(params)

    def gradient(self, loss: Loss, params: Params, batch: Batch, context: Context) -> Params:
        """alpha grad F_i(y) + (1 - alpha) G / K_i."""
        public, steps = context.server_state, steps_taken(context.steps)
        found = loss.gradient(params, batch)
        rest = 1 - self.alpha
        return {n: self.alpha * g + rest * public[n] / steps for n, g in found.items()}

    def server(self, params: Params, noised: Noised, server_state: State) -> tuple[Params, State]:
        """G and x."""
        del server_state
        mean = noised.tensors
        moved = {name: value + noised.server_lr * mean[name] for name, value in params.items()}
        return moved, {name: -mean[name] / noised.lr for name in params}
