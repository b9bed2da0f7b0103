"""The local objective as a pure function of parameters and a batch."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.clients import Inputs, arguments
from dpacct.fl.layout import Params, modules_of
from dpacct.fl.local.sgd import Batch, Precision
from dpacct.fl.tensors import numbers

LossFunction = Callable[[Tensor, Tensor], Tensor]
# The target that cross entropy passes over where nothing else is given.
_DEFAULT_IGNORED = -100


class Loss(Protocol):
    """The loss that a method's `gradient` takes."""

    def __call__(self, params: Params, batch: Batch) -> Tensor:
        """Return the mean loss of the batch at the parameters, a tensor without dimensions."""
        ...

    def gradient(self, params: Params, batch: Batch) -> Params:
        """Return the gradient of the mean loss, or zero for parameters that it does not use."""
        ...


class LocalLoss:
    """The mean loss of a module as a function of its trained tensors ``names``.

    It differentiates with `torch.func` (inside vmap) if ``functional``, else by autograd.
    ``constants`` has copies of frozen parameters and buffers by name.
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
        fixed = {n: p for n, p in model.named_parameters() if n not in names}
        fixed |= dict(model.named_buffers())
        self.constants = {name: value.detach().clone() for name, value in fixed.items()}
        self._places = _places(model)

    @classmethod
    def of_copies(
        cls, model: nn.Module, loss: Any, names: tuple[str, ...], precision: Precision
    ) -> LocalLoss:
        """Return the loss of a copy of the model, by a copy of a loss that is a module.

        Without a loss it is the one that the model returns.
        """
        loss = returned_loss if loss is None else loss
        check_loss(loss)
        try:
            own = copy.deepcopy(model)
            objective = copy.deepcopy(loss) if isinstance(loss, nn.Module) else loss
        except (RuntimeError, TypeError, copy.Error) as error:
            line = str(error).strip().partition("\n")[0]
            raise Unsupported(
                f"the model cannot be copied ({line[:200]}). Clients train on a copy, so that "
                "nothing that they write reaches the released one"
            ) from error
        for value in own.parameters():
            value.grad = None
        return cls(own, objective, names, precision, functional=False)

    def batched(self) -> LocalLoss:
        """Return the same objective, differentiated with `torch.func`."""
        twin = copy.copy(self)
        twin.functional = True
        return twin

    @property
    def is_cross_entropy(self) -> bool:
        """Return whether it is the mean cross entropy with torch's defaults."""
        loss = self.function
        if isinstance(loss, nn.CrossEntropyLoss):
            plain = loss.weight is None and loss.reduction == "mean"
            return plain and loss.ignore_index < 0 and not loss.label_smoothing
        return loss is functional.cross_entropy

    def outputs(self, params: Params, inputs: Inputs) -> Tensor:
        """Return the outputs of the model."""
        with self._reduced_precision(next(iter(params.values())).device.type):
            return self._called(params, inputs)

    def __call__(self, params: Params, batch: Batch) -> Tensor:
        """Return the mean loss of the batch."""
        return self.of_outputs(self.outputs(params, batch.inputs), batch)

    def of_outputs(self, outputs: Tensor, batch: Batch) -> Tensor:
        """Return the mean loss of the model's outputs of the batch."""
        with self._reduced_precision(batch.targets.device.type):
            if batch.weights is None:
                value = self.function(outputs, batch.targets)
            else:
                value = self._weighted(outputs, batch.targets, batch.weights)
        if value.ndim != 0:
            rule = "a loss returns the mean over the batch, a tensor without dimensions"
            raise InvalidParameter("loss", tuple(value.shape), rule)
        return value

    def _weighted(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the mean loss of the examples with positive weight [b].

        Weights are equal for these and zero for padding. A loss that is no mean over examples gives
        another result than without padding, which the comparison of both trainers finds.
        """
        if self.takes_classes(targets):
            return self.cross_entropies(outputs[None], targets[None], weights[None])[0]
        losses = vmap(self._one)(outputs, targets)
        return torch.where(weights > 0, losses, 0.0).mul(weights).sum()

    def takes_classes(self, targets: Tensor) -> bool:
        """Return whether the loss is the mean cross entropy of these class labels."""
        return self.is_cross_entropy and not targets.is_floating_point()

    def cross_entropies(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """Return the mean cross entropies [c] of clients at once, which vmap would take to pieces.

        The mean is over all targets of a client that are not ignored, as torch takes it. Outputs
        are [c, b, classes, ...], targets [c, b, ...], weights [c, b], zero for padding.
        """
        ignored = getattr(self.function, "ignore_index", _DEFAULT_IGNORED)
        flat = outputs.flatten(0, 1)
        losses = functional.cross_entropy(
            flat if flat.dtype == torch.float64 else flat.float(),
            targets.flatten(0, 1),
            reduction="none",
            ignore_index=ignored,
        ).view(targets.shape)
        padding = (weights == 0).view(*weights.shape, *[1] * (targets.ndim - 2))
        counted = ~padding & (targets != ignored)
        sums = torch.where(counted, losses, 0.0).flatten(1).sum(dim=1)
        return sums / counted.flatten(1).sum(dim=1).clamp(min=1)

    def _called(self, params: Params, inputs: Inputs) -> Any:
        known: Mapping[str, Tensor] = {**params, **self.constants}
        tensors = {place: known[name] for place, name in self._places.items()}
        return functional_call(self.model, tensors, *arguments(inputs), tie_weights=False)

    def gradient(self, params: Params, batch: Batch) -> Params:
        """Return the gradient of the mean loss."""
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


def check_loss(loss: object) -> None:
    """Refuse a loss that cannot be called."""
    if isinstance(loss, type) or not callable(loss):
        rule = "a loss is a function of outputs and targets, or a module that was made"
        raise InvalidParameter("loss", loss, rule, "For example torch.nn.CrossEntropyLoss().")


def returned_loss(outputs: Any, targets: Tensor) -> Tensor:
    """Return the loss that a model has computed itself: ``outputs.loss``, or the outputs alone."""
    del targets
    held = isinstance(outputs, Mapping)
    loss: Any = cast("Any", outputs).get("loss") if held else getattr(outputs, "loss", outputs)
    if not isinstance(loss, Tensor):
        rule = "without a loss of outputs and targets, the model returns one: model(...).loss"
        raise InvalidParameter("loss", None, rule, "Are the labels among the inputs?")
    return loss


def _places(model: nn.Module) -> dict[str, str]:
    """Return, for each place of a parameter or buffer, the first name of the same tensor.

    A layer that a model holds by several names is one layer, and tied weights are one tensor.
    """
    names: dict[Tensor, str] = {}
    places: dict[str, str] = {}
    for layer, own in modules_of(model):
        for listed in (own.named_parameters, own.named_buffers):
            for name, value in listed(layer, recurse=False, remove_duplicate=False):
                places[name] = names.setdefault(value, name)
    return places


@dataclass(frozen=True, slots=True)
class Labels:
    """0 .. count - 1, and one value that a loss passes over.

    Attributes:
        padded: whether padded batches leave out the ignored label, as the loss does.
    """

    count: int
    ignored: int
    padded: bool = False

    @classmethod
    def of(cls, loss: LocalLoss, outputs: Tensor, targets: Tensor) -> Labels | None:
        """Return the labels for torch's losses of classes, or None for other losses."""
        function = loss.function
        classes = isinstance(function, nn.CrossEntropyLoss | nn.NLLLoss)
        plain = function is functional.cross_entropy or function is functional.nll_loss
        if not (classes or plain) or outputs.ndim < 2 or targets.is_floating_point():
            return None
        ignored = getattr(function, "ignore_index", _DEFAULT_IGNORED)
        return cls(outputs.shape[1], ignored, loss.is_cross_entropy)

    def check(self, targets: Tensor) -> bool:
        """Return whether batches of these labels may be padded.

        Labels out of range, on which a GPU would break off all that runs there, raise.
        """
        if not targets.numel():
            return True
        # A device is waited for once.
        low, high = numbers(torch.stack(torch.aminmax(targets)))
        if low >= 0 and high < self.count:
            return self.padded or not bool((targets == self.ignored).any())
        if not bool(self.fit(targets).all()):
            rule = f"labels lie in 0..{self.count - 1}"
            raise InvalidParameter("targets", low if low < 0 else high, rule)
        return self.padded

    def fit(self, targets: Tensor) -> Tensor:
        """Return whether all labels of each example are in range, bool [n]."""
        inside = (targets >= 0) & (targets < self.count) | (targets == self.ignored)
        return inside.flatten(1).all(dim=1) if inside.ndim > 1 else inside
