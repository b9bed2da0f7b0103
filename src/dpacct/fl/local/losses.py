"""The local objective as a pure function of parameters and a batch."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from dpacct.errors import InvalidParameter
from dpacct.fl.guards.replica import Replica
from dpacct.fl.layout import Params
from dpacct.fl.local.batches import Batch
from dpacct.fl.local.sgd import Precision

LossFunction = Callable[[Tensor, Tensor], Tensor]


class Loss(Protocol):
    """What a method's `gradient` is given."""

    def __call__(self, params: Params, batch: Batch) -> Tensor:
        """Mean loss of the batch at the parameters; a tensor without dimensions."""
        ...

    def gradient(self, params: Params, batch: Batch) -> Params:
        """Gradient of the mean loss; zero for parameters that it does not use."""
        ...


class LocalLoss:
    """Loss of a module whose trained tensors are passed in, and whose buffers are constants.

    Args:
        model: the module. loss: mean loss of (outputs, targets).
        names: of the trained tensors.
        functional: differentiate with `torch.func` (inside vmap) instead of autograd.

    Attributes:
        model, function, functional: as they were given.
        replica: what of the model must stay as it is while clients train.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: LossFunction,
        names: tuple[str, ...],
        precision: Precision,
        *,
        functional: bool,
    ) -> None:
        self.model = model
        self.function = loss
        self._precision: Precision = precision
        self.functional = functional
        self.replica = Replica(model, loss, names)

    def batched(self) -> LocalLoss:
        """The same objective, differentiated with `torch.func`."""
        twin = copy.copy(self)
        twin.functional = True
        return twin

    @property
    def is_cross_entropy(self) -> bool:
        """Whether it is the mean cross entropy with torch's defaults."""
        loss = self.function
        if isinstance(loss, nn.CrossEntropyLoss):
            plain = loss.weight is None and loss.reduction == "mean"
            return plain and loss.ignore_index < 0 and not loss.label_smoothing
        return loss is functional.cross_entropy

    @property
    def ignored_target(self) -> int:
        """The class that a cross entropy leaves out."""
        loss = self.function
        return loss.ignore_index if isinstance(loss, nn.CrossEntropyLoss) else -100

    def outputs(self, params: Params, inputs: Tensor) -> Tensor:
        """What the model says."""
        with self._reduced_precision(inputs.device.type):
            return self._called(params, inputs)

    def __call__(self, params: Params, batch: Batch) -> Tensor:
        """Mean loss of the batch."""
        with self._reduced_precision(batch.inputs.device.type):
            outputs = self._called(params, batch.inputs)
            if batch.weights is None:
                value = self.function(outputs, batch.targets)
            else:
                each = vmap(self._one)(outputs, batch.targets)
                value = torch.where(batch.weights > 0, each, 0.0).mul(batch.weights).sum()
        if value.ndim != 0:
            rule = "a loss returns the mean over the batch, a tensor without dimensions"
            raise InvalidParameter("loss", tuple(value.shape), rule)
        return value

    def _called(self, params: Params, inputs: Tensor) -> Any:
        tensors = self.replica.placed(params)
        return functional_call(self.model, tensors, (inputs,), tie_weights=False)

    def gradient(self, params: Params, batch: Batch) -> Params:
        """Gradient of the mean loss."""
        if self.functional:
            return cast("Params", grad(self.__call__)(params, batch))
        leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
        value = self(leaves, batch)
        if not value.requires_grad:
            return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
        grads = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True)
        return dict(zip(leaves, grads, strict=True))

    def _one(self, output: Tensor, target: Tensor) -> Tensor:
        return self.function(output.unsqueeze(0), target.unsqueeze(0))

    def _reduced_precision(self, device: str) -> AbstractContextManager[object]:
        if self._precision == "bfloat16":
            return torch.autocast(device, dtype=torch.bfloat16, cache_enabled=False)
        return nullcontext()
