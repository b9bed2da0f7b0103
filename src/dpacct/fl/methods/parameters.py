"""Parts that the formulas of several methods share."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dpacct.errors import InvalidParameter
from dpacct.fl.layout import Layout, Params, State
from dpacct.fl.local.sgd import SGD, LocalAdam
from dpacct.fl.methods.protocol import Cohort, Context, Method
from dpacct.fl.postprocess import keep_largest
from dpacct.fl.tensors import norm

# The name of the vector [d] that a client remembers.
MEMORY = "memory"


def whole_norm(tensors: Params) -> Tensor:
    """Return the Euclidean norm of all tensors together, shape (). May run under vmap."""
    return norm(torch.stack([norm(value) for value in tensors.values()]))


def step_along(tensors: Params, radius: float) -> Params:
    """Return a step of norm ``radius`` along all tensors together, or zero if they are all zero."""
    length = whole_norm(tensors)
    scale = torch.where(length > 0, radius / length, 0.0)
    return {name: scale * value for name, value in tensors.items()}


def steps_taken(steps: int | Tensor) -> int | Tensor:
    """Return the number of local steps, 1 for a client that takes none (for divisions)."""
    return steps.clamp(min=1) if isinstance(steps, Tensor) else max(steps, 1)


def steps_with_momentum(steps: int | Tensor, momentum: float) -> float | Tensor:
    """Return W, by which K equal directions d move the parameters: -lr W d (1 if K is 0).

    The velocity of step k is (1 + mu + ... + mu^{k-1}) d, and W is the sum over k = 1 ... K.
    """
    taken = steps_taken(steps)
    if not momentum:
        return taken
    rest = 1 - momentum
    return taken / rest - momentum * (1 - momentum**taken) / rest**2


def one_if_any(steps: int | Tensor) -> int | Tensor:
    """Return 1 for a client that takes local steps, 0 for one that takes none."""
    return steps.clamp(max=1) if isinstance(steps, Tensor) else min(steps, 1)


def zeros(params: Params) -> State:
    """Return zeros in the shapes of the parameters."""
    return {name: torch.zeros_like(value) for name, value in params.items()}


def memory_tensors(context: Context) -> Params:
    """Return the client's memory in the shapes of the parameters."""
    if context.client_state is None:
        return zeros(context.anchor)
    return Layout.of(context.anchor).unflatten(context.client_state[MEMORY])


class ZeroState(Method):
    """A method with a server state of zeros at first, in the shapes of the parameters."""

    def init(self, params: Params) -> State:
        """Return zeros."""
        return zeros(params)


class ZeroMemory(ZeroState):
    """A method that also has clients remember a vector [d], zero at first."""

    def init_client(self, params: Params) -> State | None:
        """Return a memory as long as the parameters, zero."""
        return {MEMORY: torch.cat([torch.zeros_like(v).flatten() for v in params.values()])}


def largest_of_each(cohort: Cohort, fraction: float) -> tuple[Tensor, float]:
    """Return the sum over clients that keep the largest coordinates of their own noisy updates."""
    count, size = cohort.rows.shape
    own = cohort.std / math.sqrt(cohort.size)
    noisy = cohort.rows + own * cohort.normals(count * size).view(count, size)
    return keep_largest(noisy, cohort.sizes, fraction).sum(dim=0), own * math.sqrt(count)


class PlainSteps(Method):
    """A method that reads sums of directions off displacements: these are lr times such a sum.

    Attributes:
        takes_momentum: the method's formulas hold with local momentum as well.
    """

    takes_momentum = False

    def prepare(self, local: SGD) -> SGD:
        """Return the local training, or reject settings that rescale or bound its steps."""
        rescaled = {
            "local": isinstance(local, LocalAdam),
            "momentum": local.momentum > 0 and not self.takes_momentum,
            "total_lr": local.total_lr,
            "max_grad_norm": local.max_grad_norm is not None,
        }
        for name, given in rescaled.items():
            if given:
                value = "LocalAdam" if name == "local" else getattr(local, name)
                rule = f"{self.name} reads sums of gradients off displacements, which this changes"
                raise InvalidParameter(name, value, rule, "Take fl.SGD without it.")
        return local
