"""Max pooling as a record plays it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

_aten: Any = torch.ops.aten
_pooling: Any = _aten.max_pool2d_with_indices.default
# Below so many channels, images lie no better with these last.
_CHANNELS = 8
# Beyond so many, what is pooled at a time falls out of the cache.
_MOST = 160


def pooled(values: Tensor, *options: Any, **named: Any) -> tuple[Tensor, Tensor]:
    """As ``aten::max_pool2d_with_indices`` to the last bit, on a CPU in a fraction of the time.

    With channels last, the greatest of many channels are found at once.

    Args:
        values: [n, channels, height, width]. options, named: as they are passed on.
    """
    plain = values.is_contiguous() and values.device.type == "cpu" and values.ndim == 4
    if not plain or values.shape[1] < _CHANNELS:
        return _pooling(values, *options, **named)
    count, channels, height, width = values.shape
    # As channels of fewer images. Of an odd number of these: where rows lie powers of two apart, a
    # cache holds few of them.
    images = max(n for n in range(1, max(_MOST // channels, 1) + 1, 2) if count % n == 0)
    wide = values.view(count // images, images * channels, height, width)
    found = _pooling(wide.contiguous(memory_format=torch.channels_last), *options, **named)
    # Flat in between: where a place is all that is left of an image, channels last are contiguous,
    # and what follows would choose kernels by their strides.
    flat = (part.contiguous().view(-1) for part in found)
    first, places = (one.view(count, channels, *found[0].shape[2:]) for one in flat)
    return first, places
