"""Linear layers under vmap, whose gradients are products of a kind that is quick.

Of y = x W^T, autograd makes the gradient of W^T; of y^T = W x^T that of W, as it lies, and that of
x^T by W turned around. On a CPU a product of many clients with the first factor turned around takes
three to sixteen times as long as another one. So for weights that are worth it both gradients are
written here: that of W as of y^T = W x^T, that of x as of y = x W^T.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.autograd import Function
from torch.nn import functional
from torch.overrides import TorchFunctionMode

# Weights of one client below which the function of our own takes more than its gradient saves.
_WEIGHTS = 8192
_MATRIX = 2


class WeightMajorLinear(TorchFunctionMode):
    """While active, `torch.nn.functional.linear` computes (W x^T)^T + b."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Replace that one function, pass on all others."""
        del types
        if func is functional.linear:
            return _linear(*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))


def _linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:  # noqa: A002 - the name of the parameter that is replaced
    if weight.ndim != _MATRIX:
        return functional.linear(input, weight, bias)
    rows = input.reshape(-1, input.shape[-1])
    if weight.numel() < _WEIGHTS:
        product = _turned(rows, weight)
    else:
        product = _product(_cast(rows), _cast(weight))
    outputs = product.reshape(*input.shape[:-1], weight.shape[0])
    return outputs if bias is None else outputs + bias


def _turned(rows: Tensor, weight: Tensor) -> Tensor:
    # Contiguous: what follows (a softmax, say) is slow along a strided dimension.
    return torch.matmul(weight, rows.mT).mT.contiguous()


class Product(Function):
    """(W x^T)^T of x [..., rows, inputs] and W [..., outputs, inputs]."""

    @staticmethod
    def forward(rows: Tensor, weight: Tensor) -> Tensor:
        """Of one client, or of all."""
        return _turned(rows, weight)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        """Keep a factor for the slope of the other one; the first layer's weights for nothing."""
        del output
        rows, weight = inputs
        of_rows, of_weight = ctx.needs_input_grad
        ctx.save_for_backward(rows if of_weight else None, weight if of_rows else None)
        ctx.save_for_forward(rows, weight)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, Tensor | None]:
        """Slopes of x and of W, as far as they are asked for."""
        [slope] = slopes
        rows, weight = ctx.saved_tensors
        of_rows, of_weight = ctx.needs_input_grad
        return (
            torch.matmul(slope, weight.conj()) if of_rows else None,
            torch.matmul(slope.mT, rows.conj()) if of_weight else None,
        )

    @staticmethod
    def jvp(ctx: Any, *moves: Tensor) -> Tensor:
        """How it moves with x and W."""
        rows_move, weight_move = moves
        rows, weight = ctx.saved_tensors
        return torch.matmul(rows_move, weight.mT) + torch.matmul(rows, weight_move.mT)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *factors: Tensor) -> tuple[Tensor, int]:
        """The same with one more dimension: torch's own rule takes longer than the products."""
        rows, weight = (
            value.movedim(place, 0)
            if place is not None
            else value.expand(info.batch_size, *value.shape)
            for value, place in zip(factors, in_dims, strict=True)
        )
        return _product(rows, weight), 0


_product = cast("Callable[[Tensor, Tensor], Tensor]", Product.apply)  # pyright: ignore[reportUnknownMemberType]


def _cast(value: Tensor) -> Tensor:
    """As autocast casts a factor: behind it, slopes would meet factors of another type."""
    kind = value.device.type
    casts = torch.is_autocast_enabled(kind) and value.is_floating_point()
    if not casts or value.dtype == torch.float64:
        return value
    return value.to(torch.get_autocast_dtype(kind))
