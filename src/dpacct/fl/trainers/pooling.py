"""Max pooling of overlapping windows under vmap, in the layout for which a CPU has a fast kernel.

Of images whose channels lie apart, PyTorch 2 takes maxima one number at a time; of images whose
channels lie beside each other, a vector of them at a time: ten times as fast, with the same values
at the same places. Windows that overlap have about as many maxima as there are numbers, and that
pays for changing the layout and back; of windows that do not, it does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from torch.overrides import TorchFunctionMode

_POOLS = (functional.max_pool2d, cast("Any", torch).max_pool2d)
# Images, channels, height, width.
_DIMENSIONS = 4


class ChannelsLastPooling(TorchFunctionMode):
    """While active, `torch.nn.functional.max_pool2d` lays channels beside each other meanwhile."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Lay out the input of that one function, pass on everything else."""
        del types
        named = dict(kwargs or {})
        if func in _POOLS and len(args) > 1 and _is_slow(args[0], *args[1:3], **named):
            return func(_channels_last(args[0]), *args[1:], **named).contiguous()
        return func(*args, **named)


def _is_slow(
    input: Tensor,  # noqa: A002 - the name of the parameter that is replaced
    kernel_size: Any,
    stride: Any = None,
    **others: Any,
) -> bool:
    """Whether it is an image on a CPU, and windows overlap both ways."""
    if input.ndim != _DIMENSIONS or input.device.type != "cpu" or others.get("return_indices"):
        return False
    # Without a stride windows lie side by side.
    return stride is not None and all(
        step < length for step, length in zip(_pair(stride), _pair(kernel_size), strict=True)
    )


def _pair(value: Any) -> tuple[int, int]:
    """For height and width."""
    if isinstance(value, int):
        return value, value
    found = tuple(cast("list[int]", value))
    return (found[0], found[-1]) if found else (1, 1)


def _channels_last(images: Tensor) -> Tensor:
    """The same values; vmap takes no memory format, so by way of what is contiguous."""
    return images.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
