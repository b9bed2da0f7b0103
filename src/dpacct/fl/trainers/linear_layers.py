"""Linear layers under vmap, with gradients in the layout of their weights.

For y = x W^T with one W per client, `torch.func.vmap` leads to a backward pass that computes the
gradient of W^T, five times as slow on a CPU as that of W and strided when it comes to the update.
Written as (W x^T)^T, the gradient of W comes out by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode


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
    rows = input.reshape(-1, input.shape[-1])
    # Contiguous: what follows (a softmax, say) is slow along a strided dimension.
    product = torch.mm(weight, rows.mT).mT.contiguous()
    outputs = product.reshape(*input.shape[:-1], weight.shape[0])
    return outputs if bias is None else outputs + bias
