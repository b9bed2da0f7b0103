"""The local objective as a pure function of parameters and a batch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.batches import Batch
from dpacct.fl.layout import Params
from dpacct.fl.local import Precision

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
        self._model = model
        self._loss = loss
        self._precision: Precision = precision
        self._functional = functional
        fixed = {n: p.detach() for n, p in model.named_parameters() if n not in names}
        self._buffers = {name: value.detach().clone() for name, value in model.named_buffers()}
        self._versions = {name: value._version for name, value in self._buffers.items()}  # noqa: SLF001 - the one way to see a write
        self._fixed = fixed | self._buffers

    @property
    def is_cross_entropy(self) -> bool:
        """Whether it is the mean cross entropy with torch's defaults."""
        loss = self._loss
        if isinstance(loss, nn.CrossEntropyLoss):
            plain = loss.weight is None and loss.reduction == "mean"
            return plain and loss.ignore_index < 0 and not loss.label_smoothing
        return loss is functional.cross_entropy

    @property
    def ignored_target(self) -> int:
        """The class that a cross entropy leaves out."""
        return self._loss.ignore_index if isinstance(self._loss, nn.CrossEntropyLoss) else -100

    def outputs(self, params: Params, inputs: Tensor) -> Tensor:
        """What the model says."""
        with self._reduced_precision(inputs.device.type):
            return functional_call(self._model, (params, self._fixed), (inputs,))

    def __call__(self, params: Params, batch: Batch) -> Tensor:
        """Mean loss of the batch."""
        with self._reduced_precision(batch.inputs.device.type):
            outputs = functional_call(self._model, (params, self._fixed), (batch.inputs,))
            if batch.weights is None:
                value = self._loss(outputs, batch.targets)
            else:
                each = vmap(self._one)(outputs, batch.targets)
                value = torch.where(batch.weights > 0, each, 0.0).mul(batch.weights).sum()
        if value.ndim != 0:
            rule = "a loss returns the mean over the batch, a tensor without dimensions"
            raise InvalidParameter("loss", tuple(value.shape), rule)
        return value

    def gradient(self, params: Params, batch: Batch) -> Params:
        """Gradient of the mean loss."""
        if self._functional:
            return cast("Params", grad(self.__call__)(params, batch))
        leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
        value = self(leaves, batch)
        if not value.requires_grad:
            return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
        grads = torch.autograd.grad(value, list(leaves.values()), materialize_grads=True)
        return dict(zip(leaves, grads, strict=True))

    def check_buffers(self) -> None:
        """Refuse a model that writes to its buffers while it trains.

        Raises:
            Unsupported: one was written to.
        """
        for name, value in self._buffers.items():
            if value._version != self._versions[name]:  # noqa: SLF001 - as above
                raise Unsupported(
                    f"the model changes its buffer {name} while it trains; such a value is neither "
                    "bounded nor noised. Make it a parameter, or constant"
                )

    def _one(self, output: Tensor, target: Tensor) -> Tensor:
        return self._loss(output.unsqueeze(0), target.unsqueeze(0))

    def _reduced_precision(self, device: str) -> AbstractContextManager[object]:
        if self._precision == "bfloat16":
            return torch.autocast(device, dtype=torch.bfloat16, cache_enabled=False)
        return nullcontext()
