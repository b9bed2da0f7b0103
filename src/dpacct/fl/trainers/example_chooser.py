"""How the examples of a run are trained: many at once, in groups of which size, or one by one.

Compared on made-up examples, as `dpacct.fl.trainers.chooser` does for clients, and not timed. In a
group of the size that is chosen every place gives the same bits, or no group is used.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from dpacct.errors import Unsupported
from dpacct.fl.clients import ClientData
from dpacct.fl.layout import Layout
from dpacct.fl.local.labels import Labels
from dpacct.fl.methods.protocol import Method
from dpacct.fl.tensors import keep_freed_memory, same_numbers
from dpacct.fl.trainers.addresses import shows_addresses
from dpacct.fl.trainers.choice import Choice
from dpacct.fl.trainers.chooser import TrainerChooser
from dpacct.fl.trainers.examples import Kind, Maker, made_up_task
from dpacct.fl.trainers.groups import LANES, expected_work
from dpacct.fl.trainers.lot_trainer import LotTrainer
from dpacct.fl.trainers.lots import Lot
from dpacct.fl.trainers.per_example import ExampleTrainer
from dpacct.fl.trainers.step_bytes import bytes_of_example
from dpacct.fl.trainers.tasks import Broadcast

# Examples in a group, at most: what more of them hold falls out of the cache. Sizes that are tried.
_WIDEST, _TRIED = 9 * LANES, 4
# Made-up examples that are compared with one-by-one training.
_COMPARED = 3
# Bytes for each weight: its gradient as it is made, as a row, and as it is bounded and summed.
_ROW_BYTES = 32
_PLACE = "the last bits of a gradient depend on its place among others"


class ExampleChooser:
    """As `TrainerChooser`, for a population of examples.

    Args:
        chooser: of the same run; compares, and knows the limits.
        method, layout: of the run.
        vectorize: "auto" or True: many at once wherever that can be; False: one by one.
        chunk: examples at a time, None for as many as fit.

    Attributes:
        model, loss, alone: of the chooser. vectorize: as asked.
        vectorized: trains many at once, in the groups that were chosen last.
    """

    def __init__(
        self,
        chooser: TrainerChooser,
        method: Method,
        layout: Layout,
        *,
        vectorize: bool | str,
        chunk: int | None,
    ) -> None:
        self.model = chooser.model
        self.loss = chooser.loss
        self.alone = chooser.alone
        self._chooser = chooser
        self._method = method
        self._layout = layout
        self.vectorize = vectorize
        self._chunk = chunk
        self.vectorized = self.trainer_of(LANES)

    def choose(
        self, make: Maker, kind: Kind, labels: Labels | None, broadcast: Broadcast, cohort: int
    ) -> Choice:
        """Decide, from a few made-up examples; see `TrainerChooser.choose`.

        Raises:
            Unsupported: vectorize=True, and this model or method cannot be batched.
        """
        slow = LotTrainer(self._layout, self.alone, None, kind, labels)
        chunk = self.chunk_of(None, make, broadcast)
        if self.vectorize is False:
            return Choice(slow, chunk, "one example at a time, as asked")
        size, words = self._group_size(make, broadcast, chunk, cohort)
        if not size:
            if self.vectorize is True:
                raise Unsupported(f"vectorize=True, but {words}")
            return Choice(slow, chunk, f"one example at a time: {words}")
        self.settle(size, _device(broadcast))
        whole = self.chunk_of(size, make, broadcast)
        return Choice(replace(slow, together=self.vectorized), whole, words)

    def settle(self, size: int, device: torch.device) -> None:
        """Train in groups of this size from now on."""
        self.vectorized = self.trainer_of(size)
        keep_freed_memory(device)

    def chunk_of(self, size: int | None, make: Maker, broadcast: Broadcast) -> int:
        """Examples at a time, whole groups of ``size`` where there are groups."""
        chunk = self._chunk or self._fitting(make, broadcast)
        return chunk if size is None else max(size, size * (chunk // size))

    def objection(self, size: int, make: Maker, broadcast: Broadcast, chunk: int) -> str:
        """What speaks against groups of this size, or nothing."""
        if size % LANES or not 0 < size <= max(LANES, min(chunk, _WIDEST)):
            return f"there is no room for groups of {size}"
        complaint = self._complaint(make, broadcast)
        if complaint:
            return complaint
        return _PLACE if shows_place(self.trainer_of(size), make, broadcast) else ""

    def _group_size(
        self, make: Maker, broadcast: Broadcast, chunk: int, cohort: int
    ) -> tuple[int, str]:
        """The size of a group, 0 where none can be trusted; and why."""
        complaint = self._complaint(make, broadcast)
        if complaint:
            return 0, complaint
        for size in _sizes(chunk, cohort):
            if not shows_place(self.trainer_of(size), make, broadcast):
                return size, f"{size} examples at once"
        return 0, _PLACE

    def _complaint(self, make: Maker, broadcast: Broadcast) -> str:
        tasks = [made_up_task(make(1, seed), self._method, broadcast) for seed in range(_COMPARED)]
        complaint = shows_addresses(_device(broadcast))
        return complaint or self._chooser.compare(tasks, broadcast, self.trainer_of(LANES))

    def trainer_of(self, size: int) -> ExampleTrainer:
        """A trainer of groups of this size."""
        return ExampleTrainer(self._method, self.loss.batched(), self._layout, size)

    def _fitting(self, make: Maker, broadcast: Broadcast) -> int:
        """How many examples fit into memory beside each other."""
        task = made_up_task(make(1, 0), self._method, broadcast)
        saved = bytes_of_example(self.loss, task, broadcast)
        each = saved + _ROW_BYTES * self._layout.size
        return max(1, self._chooser.limit // each)


def _sizes(chunk: int, cohort: int) -> list[int]:
    """Sizes of a group to try, whole `LANES`: a few with the least to compute."""
    sizes = range(LANES, max(LANES, min(chunk, _WIDEST)) + 1, LANES)
    return sorted(sizes, key=lambda n: expected_work(cohort, n))[:_TRIED]


def shows_place(trainer: ExampleTrainer, make: Maker, broadcast: Broadcast) -> bool:
    """Whether an example has other bits at another place of a group than alone; every place."""
    device, size = _device(broadcast), trainer.size
    target = _made_up_lot(lambda count, seed: make(count, seed + 1), 1, device)
    like = trainer.train(target, broadcast)
    for first in (0, 1):
        lot = _made_up_lot(make, size, device)
        lot.data.inputs[first::2] = target.data.inputs
        lot.data.targets[first::2] = target.data.targets
        lot.seeds.zero_()
        found = trainer.train(lot, broadcast)[first::2]
        if not same_numbers(found, like.expand_as(found)):
            return True
    return False


def _made_up_lot(make: Maker, size: int, device: torch.device) -> Lot:
    data = make(size, 0)
    inputs, targets = _own(data.inputs, device), _own(data.targets, device)
    seeds = torch.zeros(size, dtype=torch.int64, device=device)
    return Lot(ClientData(inputs, targets), seeds, torch.zeros(size, dtype=torch.bool))


def _own(values: Tensor, device: torch.device) -> Tensor:
    return values.to(device, copy=True)


def _device(broadcast: Broadcast) -> torch.device:
    return next(iter(broadcast.anchor.values())).device
