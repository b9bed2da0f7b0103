"""Max pooling as a record plays it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_aten: Any = torch.ops.aten
_pooling: Any = _aten.max_pool2d_with_indices.default
# Below so many channels, images lie no better with these last.
_CHANNELS = 8


def pooled(values: Tensor, *options: Any, **named: Any) -> tuple[Tensor, Tensor]:
    """As ``aten::max_pool2d_with_indices`` to the last bit, on a CPU in a fraction of the time.

    With channels last, the greatest of many channels are found at once.

    Args:
        values: [n, channels, height, width]. options, named: as they are passed on.
    """
    plain = values.is_contiguous() and values.device.type == "cpu" and values.ndim == 4
    if not plain or values.shape[1] < _CHANNELS:
        return _pooling(values, *options, **named)
    values = values.contiguous(memory_format=torch.channels_last)
    found, places = _pooling(values, *options, **named)
    return found.contiguous(), places.contiguous()
