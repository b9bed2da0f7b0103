"""What the host knows and a device needs, on its way there: plans, places, counts.

Rule: a GPU is not waited for, and what is sent can be written to at once. So it goes by way of
pinned memory of PyTorch's own, which keeps it until it has arrived. What is large, or was pinned by
somebody else, goes as usual.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# Bytes of what is sent without waiting, at most: pinned memory is dear.
_MOST = 1 << 20


def sent(values: Tensor, device: torch.device) -> Tensor:
    """The values on a device."""
    waits = device.type != "cuda" or values.device.type != "cpu"
    if waits or values.nbytes > _MOST or values.is_pinned():
        return values.to(device)
    return values.pin_memory().to(device, non_blocking=True)


def listed(
    values: Sequence[float], device: torch.device, dtype: torch.dtype = torch.int64
) -> Tensor:
    """A list [n] as a tensor on a device.

    An index should be one, too: as a list it would be copied in each operation that takes it.
    """
    return sent(torch.tensor(values, dtype=dtype), device)
