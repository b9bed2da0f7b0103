"""Canaries under ghost clipping, which never holds the gradient of a single example.

A canary's loss is replaced by the inner product of the parameters with what it sends, of which that
is the gradient; and its norms, which Opacus takes from the layers, by those of that gradient. Norm
of the whole, clip factor, sum, noise and division are Opacus' own; the norms of real layers are
not looked at.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any, cast

import torch
from torch import Tensor

from dpacct.errors import Unsupported
from dpacct.fl.opacus.steps import Steps
from dpacct.fl.tensors import norm, split


class GhostCanaries:
    """Plants canaries between the two backward passes of ghost clipping.

    Args:
        optimizer: of Opacus. criterion: that `make_private` returned beside it.
        planted: gradient [d] of an example by number, None where it keeps its own.
        steps: that know whose losses are next.
    """

    def __init__(
        self,
        optimizer: Any,
        criterion: Any,
        planted: Callable[[int], Tensor | None],
        steps: Steps,
    ) -> None:
        self._optimizer, self._criterion = optimizer, criterion
        self._planted, self._steps = planted, steps
        self._zero_grad = optimizer.zero_grad
        self._gradients: dict[int, Tensor] = {}
        self._factors: Tensor | None = None

    def attach(self, undo: ExitStack) -> None:
        """Get between the criterion and its losses, and between the two passes.

        The user's own loss is not touched: it may serve other trainings.

        Args:
            undo: takes how to get out again.
        Raises:
            Unsupported: there is no criterion, or that of another training.
        """
        criterion, optimizer = self._criterion, self._optimizer
        inner = getattr(criterion, "criterion", None)
        if inner is None or getattr(criterion, "optimizer", None) is not optimizer:
            raise Unsupported(
                "an audit of ghost clipping needs its loss: attach_ledger(..., "
                "criterion=criterion) with what make_private returned beside this optimizer"
            )
        undo.callback(setattr, criterion, "criterion", inner)
        undo.callback(setattr, optimizer, "zero_grad", self._zero_grad)
        criterion.criterion = _Losses(inner, self._replace)
        optimizer.zero_grad = self._between

    def _replace(self, losses: Tensor) -> Tensor:
        """The losses [b] with those of planted examples replaced."""
        if losses.ndim != 1:
            raise Unsupported("an audit of ghost clipping needs one loss for each example")
        if not losses.requires_grad:
            return losses
        found = {
            place: gradient
            for place, row in enumerate(self._steps.upcoming()[: len(losses)])
            if (gradient := self._planted(row)) is not None
        }
        self._gradients, self._factors = found, None
        if not found:
            return losses
        params = [parameter.flatten() for parameter in self._optimizer.params]
        whole = torch.cat(params)
        places = torch.tensor(list(found), device=losses.device)
        rows = torch.stack(list(found.values())).to(whole)
        linear = losses.new_zeros(len(losses)).index_put((places,), (rows @ whole).to(losses))
        ours = torch.zeros(len(losses), dtype=torch.bool, device=losses.device)
        ours[places] = True
        replaced = torch.where(ours, linear, losses)
        cast("Any", replaced).register_hook(self._note)
        return replaced

    def _note(self, grad: Tensor) -> None:
        """By what the user's loop multiplies each loss, in the first of the two passes."""
        if self._factors is None:
            mean = self._criterion.loss_reduction == "mean"
            self._factors = grad.detach() * (len(grad) if mean else 1)

    def _between(self, *words: Any, **named: Any) -> Any:
        """Opacus calls it between the passes; norms of planted examples are then replaced."""
        factors, gradients = self._factors, self._gradients
        if factors is not None and gradients:
            sizes = [parameter.numel() for parameter in self._optimizer.params]
            for place, gradient in gradients.items():
                parts = zip(self._optimizer.params, split(gradient, sizes), strict=True)
                for parameter, part in parts:
                    length = float(norm(part.double())) * abs(float(factors[place]))
                    parameter._norm_sample[place] = length  # noqa: SLF001 - Opacus' own
            self._gradients = {}
        return self._zero_grad(*words, **named)


class _Losses:
    """A loss as Opacus calls it, and what becomes of its losses."""

    def __init__(self, inner: Any, replace: Callable[[Tensor], Tensor]) -> None:
        self._inner, self._replace = inner, replace

    def __call__(self, *words: Any, **named: Any) -> Tensor:
        return self._replace(self._inner(*words, **named))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    @property
    def reduction(self) -> str:
        """Set by Opacus around each call."""
        return self._inner.reduction

    @reduction.setter
    def reduction(self, value: str) -> None:
        self._inner.reduction = value
