"""Whether matrix products have the same bits wherever their factors lie in memory.

Side by side, and for many examples at once, a factor's address follows from its place among
others. Where bits follow from addresses, a few made-up clients tell it only by chance.
"""

from __future__ import annotations

from functools import cache

import torch
from torch import Tensor

# A row with a multiple of 64 bytes would put all factors at good addresses.
_ROWS, _DEPTH, _COLUMNS = 31, 65, 5
_PLACES = 16


def shows_addresses(device: torch.device) -> str:
    """What is wrong with training many at once in this process, or nothing."""
    if device.type != "cpu" or _products_repeat():
        return ""
    return (
        "in this process the bits of matrix products depend on where their factors lie in memory; "
        "import dpacct.fl before the first product, or set MKL_CBWR=AUTO before Python starts"
    )


@cache
def _products_repeat() -> bool:
    """Tried once: a library decides at its first product."""
    generator = torch.Generator().manual_seed(0)
    left = torch.randn(_ROWS, _DEPTH, generator=generator)
    right = torch.randn(_COLUMNS, _DEPTH, generator=generator)
    like, turned = left @ right.mT, right @ left.mT
    for place in range(1, _PLACES):
        one, two = _moved(left, place), _moved(right, place)
        # One of them moves, then both.
        if not (torch.equal(one @ right.mT, like) and torch.equal(one @ two.mT, like)):
            return False
        if not (torch.equal(two @ left.mT, turned) and torch.equal(two @ one.mT, turned)):
            return False
    return True


def _moved(values: Tensor, place: int) -> Tensor:
    """The same values, so many numbers behind a good address; rows behind each other."""
    room = values.new_empty(place + values.numel())
    return room[place:].view(values.shape).copy_(values)
