"""The updates of examples, bounded and summed group by group as they come.

Rule 1: every row passes ``take``, which masks, bounds and adds it. Rule 2: sums are exact, so that
the shares of several threads add up to the bits of one; see `dpacct.fl.engine.shared_work`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from dpacct.fl.engine.shared_work import in_shares
from dpacct.fl.engine.states import Collected
from dpacct.fl.tensors import one_thread
from dpacct.fl.trainers.per_example import Updates

_OWN = "dpacct"


@dataclass(frozen=True, slots=True, eq=False)
class ExampleSums:
    """How the updates of a chunk of examples are summed.

    Attributes:
        take: bounds rows [c, d] and adds them to sums. Rule 1.
        plant: of the pieces of some of the rows, and which ones; see
            `dpacct.fl.trainers.lots.plant_examples`.
        few: rows at a time. threads: that may sum, at most.
        device: of the rows.
    """

    take: Callable[[Collected, Tensor], None]
    plant: Callable[[Iterator[Tensor], slice], Iterator[Tensor]]
    few: int
    threads: int
    device: torch.device

    def fill(self, found: Collected, groups: Iterator[Updates]) -> None:
        """Add all groups to sums."""
        first = 0
        # Rows of which a cache holds many are bounded before torch's other threads wake up.
        with one_thread(self.device) if self.few > 1 else nullcontext():
            started = self.clock()
            for updates in groups:
                found.local_seconds += self.clock() - started
                started = self.clock()
                self._add(found, updates, first)
                first += updates.count
                del updates
                found.privacy_seconds += self.clock() - started
                started = self.clock()
            found.local_seconds += self.clock() - started

    def _add(self, found: Collected, updates: Updates, first: int) -> None:
        """Add the updates of a group, whose first row has this number."""

        def summed(start: int, stop: int, into: Collected) -> Collected:
            pieces = updates.pieces(start, stop, self.few)
            for rows in self.plant(pieces, slice(first + start, first + stop)):
                self.take(into, rows)
            return into

        # A share of fewer rows is over before a thread has begun, and more of them than a few wait
        # for each other's Python.
        threads = min(self.threads, updates.count // self.few)
        if threads < 2:
            summed(0, updates.count, found)
            return
        # Rule 2.
        apart = in_shares(
            updates.count, threads, lambda start, stop: summed(start, stop, found.apart())
        )
        for part in apart:
            found.merge(part)

    def clock(self) -> float:
        """Seconds, once the device has done what it was asked for."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter()


def threads_for(few: int, device: torch.device, *parts: Any) -> int:
    """How many threads may sum: one, unless torch has more and all that they call is known.

    Args:
        few: rows at a time; of longer ones torch's own threads share each. device: of the rows.
        parts: bound and noise. What others have written may keep something.
    """
    own = all(type(part).__module__.partition(".")[0] == _OWN for part in parts)
    return torch.get_num_threads() if own and few > 1 and device.type == "cpu" else 1
