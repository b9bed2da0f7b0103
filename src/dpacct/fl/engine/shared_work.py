"""Work on rows that is shared out over threads, and shows them in no bit.

Torch wakes its threads up anew for each operation; where a cache holds many rows, that takes longer
than the operation. Here a thread has its share of the rows from the first operation to the last.

Rule 1: a row has the bits that it would have had on the thread that asks: each share is computed
with one thread of torch's own, and a thread that torch treats otherwise (modes, autocast,
subnormal numbers) computes nothing. Rule 2: shares come back in the order of the rows. Rule 3: what
one of them raises is raised here, when nobody works any more.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any, TypeVar

import torch

from dpacct.fl.guards.holders import settings

Made = TypeVar("Made")
_torch: Any = torch


def in_shares(count: int, threads: int, work: Callable[[int, int], Made]) -> list[Made]:
    """What ``work(start, stop)`` makes of contiguous shares of so many rows, in their order.

    Args:
        count: of the rows. threads: that may work at a time, this one among them; where more than
            one does, torch has one here.
        work: is called from several threads, and asks torch for no other number of them.
    """
    ends = [count * share // threads for share in range(threads + 1)]
    shares = [(start, stop) for start, stop in pairwise(ends) if start < stop]
    if len(shares) < 2:
        return [work(0, count)]
    here = _treatment()

    def elsewhere(start: int, stop: int) -> Made | None:
        torch.set_num_threads(1)
        # Rule 1.
        return work(start, stop) if _treatment() == here else None

    with ThreadPoolExecutor(len(shares) - 1) as pool:
        others = [pool.submit(elsewhere, start, stop) for start, stop in shares[:-1]]
        own = work(*shares[-1])
    found = [other.result() for other in others]
    parts = zip(shares, found, strict=False)
    return [work(*share) if made is None else made for share, made in parts] + [own]


def _treatment() -> tuple[object, ...]:
    """How torch treats what this thread does, as far as threads may differ."""
    core: Any = _torch._C  # noqa: SLF001 - nobody else counts the modes
    modes = core._len_torch_function_stack(), core._len_torch_dispatch_stack()  # noqa: SLF001
    auto = _torch.is_autocast_enabled("cpu"), _torch.get_autocast_dtype("cpu")
    return (*settings(), *modes, *auto)
