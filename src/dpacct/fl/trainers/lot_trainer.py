"""The trainer of a real round of examples: no example can stop it, or change another one's update.

As `dpacct.fl.trainers.tolerant`, for lots.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from dpacct.fl.clients import ClientData
from dpacct.fl.examples import Examples
from dpacct.fl.layout import Layout, State
from dpacct.fl.local.labels import Labels
from dpacct.fl.tensors import integers
from dpacct.fl.trainers.examples import Kind
from dpacct.fl.trainers.failures import Trial
from dpacct.fl.trainers.lots import Lot, as_lot, read_lot
from dpacct.fl.trainers.per_example import ExampleTrainer, Part, Updates
from dpacct.fl.trainers.sequential import SequentialTrainer
from dpacct.fl.trainers.tasks import Broadcast, Task
from dpacct.fl.uploads import listed, sent


@dataclass(frozen=True, slots=True, eq=False)
class LotTrainer:
    """Examples many at once, or, where the model cannot be batched, one after the other.

    Attributes:
        layout: of the update.
        alone: trains one after the other.
        together: trains many at once, None for nobody.
        kind: of the examples.
        labels: what targets may be, None for anything.
    """

    layout: Layout
    alone: SequentialTrainer
    together: ExampleTrainer | None
    kind: Kind
    labels: Labels | None

    def read(
        self, examples: Examples, rows: Sequence[int], seeds: Sequence[int], device: torch.device
    ) -> Lot:
        """The lot of some examples; those with labels out of range have failed."""
        lot = read_lot(examples, rows, seeds, device, self.kind)
        if self.labels is not None and len(lot):
            lot.failed.logical_or_(~self.labels.fit(lot.data.targets).cpu())
        return lot

    def admit(self, data: ClientData) -> bool:
        """See `Trainer`: every example."""
        del data
        return True

    def train(self, tasks: Sequence[Task], broadcast: Broadcast) -> Tensor:
        """See `Trainer`; an example that fails has a row of NaN."""
        lot = as_lot(tasks)
        start = self.layout.flatten(broadcast.anchor)
        whole = not bool(lot.failed.any())
        if whole and self.together is not None:
            with Trial():
                return self.together.train(lot, broadcast)
        rows = start.new_full((len(lot), self.layout.size), torch.nan)
        places = integers((~lot.failed).nonzero().flatten())
        if self.together is None:
            self._one_by_one(lot, places, broadcast, rows)
        else:
            self._many(lot, places, broadcast, rows)
        return rows

    def groups(self, lot: Lot, broadcast: Broadcast) -> Iterator[Updates]:
        """What `train` computes, one group after the other.

        On the threads that torch has now, even if it has fewer by then.
        """
        return self._groups(lot, broadcast, torch.get_num_threads())

    def _groups(self, lot: Lot, broadcast: Broadcast, threads: int) -> Iterator[Updates]:
        many = self.together
        lengths = [len(lot)] if many is None else many.sizes.groups(len(lot))
        for part in lot.cut(lengths):
            updates = self._group(part, broadcast, threads)
            if updates is None:
                rows = self.train(part, broadcast)
                updates = Updates([Part([rows], len(part))], rows.dtype)
            yield updates

    def _group(self, part: Lot, broadcast: Broadcast, threads: int) -> Updates | None:
        """The updates of a group, none of which fails; else None."""
        if self.together is not None and not bool(part.failed.any()):
            with Trial():
                return self.together.group(part, broadcast, threads)
        return None

    def remember(
        self, tasks: Sequence[Task], rows: Tensor, broadcast: Broadcast
    ) -> list[State] | None:
        """See `Trainer`: examples have no memory."""
        del tasks, rows, broadcast

    def _many(self, lot: Lot, places: list[int], broadcast: Broadcast, rows: Tensor) -> None:
        """Fill in the rows of some examples, except of those that fail."""
        if self.together is None or not places:
            return
        with Trial() as trial:
            found = self.together.train(_part(lot, places), broadcast)
            rows[listed(places, rows.device)] = found
        if trial.error is not None and len(places) > 1:
            half = len(places) // 2
            self._many(lot, places[:half], broadcast, rows)
            self._many(lot, places[half:], broadcast, rows)

    def _one_by_one(self, lot: Lot, places: list[int], broadcast: Broadcast, rows: Tensor) -> None:
        """Fill in the rows of some examples, except of those that fail."""
        isolation = self.alone.isolate(broadcast)
        start = self.layout.flatten(broadcast.anchor)
        for place in places:
            row = self.alone.attempt(lot[place], start, isolation)
            if row is not None:
                rows[place] = row


def _part(lot: Lot, places: list[int]) -> Lot:
    chosen = torch.tensor(places, dtype=torch.int64)
    there = sent(chosen, lot.seeds.device)
    data = ClientData(lot.data.inputs[there], lot.data.targets[there])
    return Lot(data, lot.seeds[there], lot.failed[chosen])
