"""A lot: the examples of one chunk, in one tensor, each of them a client of its own.

Rule 1: what goes wrong with one example is that example's failure alone. Rule 2: its randomness
follows from the round's seed and its number, not from who else came. Rule 3: dtypes and shapes are
those of a public kind: padding to the longest of a chunk, say, would show who is in it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import overload

import torch
from torch import Tensor

from dpacct.fl.clients import ClientData, Population
from dpacct.fl.examples import Examples
from dpacct.fl.local.batches import BatchPlan
from dpacct.fl.trainers.examples import Kind
from dpacct.fl.trainers.failures import Trial
from dpacct.fl.trainers.tasks import NO_DATA, NO_STEPS, Task
from dpacct.fl.uploads import listed

# As it is written, whatever somebody puts in its place.
_NOTHING = Examples.planted


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Lot(Sequence[Task]):
    """Examples in one tensor; as a sequence, the task of each of them.

    Attributes:
        data: inputs [n, ...] and targets [n, ...], on the device.
        seeds: int64 [n], of what is drawn for each example.
        failed: bool [n] on the CPU: it could not be read, and counts as not finite.
    """

    data: ClientData
    seeds: Tensor
    failed: Tensor

    def __len__(self) -> int:
        return len(self.seeds)

    @overload
    def __getitem__(self, place: int) -> Task: ...

    @overload
    def __getitem__(self, place: slice) -> Lot: ...

    def __getitem__(self, place: int | slice) -> Task | Lot:
        """The task of one example, or a part of the lot."""
        if isinstance(place, slice):
            part = ClientData(self.data.inputs[place], self.data.targets[place])
            return Lot(part, self.seeds[place], self.failed[place])
        row = range(len(self))[place]
        seed = int(self.seeds[row])
        if bool(self.failed[row]):
            return Task(NO_DATA, NO_STEPS, None, seed, failed=True)
        own = ClientData(self.data.inputs[row : row + 1], self.data.targets[row : row + 1])
        return Task(own, one_step(), None, seed)

    def cut(self, lengths: Iterable[int]) -> Iterator[Lot]:
        """Parts of these lengths, in their order."""
        start = 0
        for length in lengths:
            yield self[start : start + length]
            start += length


def one_step() -> BatchPlan:
    """One step on one example."""
    return BatchPlan(torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, dtype=torch.int64))


def read_lot(
    examples: Examples, rows: Sequence[int], seeds: Sequence[int], device: torch.device, kind: Kind
) -> Lot:
    """The lot of some examples, on the device.

    Args:
        examples, rows: which ones. seeds: one for each. device: where they go.
        kind: of all examples; what is of another kind, or cannot be read, has failed.
    """
    drawn = listed(seeds, device)
    with Trial():
        data = examples.batch(rows)
        if Kind.of(data) == kind and len(data) == len(rows):
            return Lot(_moved(data, device), drawn, torch.zeros(len(rows), dtype=torch.bool))
    found: list[ClientData | None] = []
    for row in rows:
        found.append(None)
        with Trial():
            found[-1] = _moved(examples.batch([row]), device)
    return _joined(found, drawn, kind)


def as_lot(tasks: Sequence[Task]) -> Lot:
    """Tasks as a lot: of each client the example that its first step is for.

    What is no lot was made up for a trial: the kind is that of the first one.
    """
    if isinstance(tasks, Lot):
        return tasks
    kind = Kind.of(next((task for task in tasks if not task.failed), tasks[0]).data)
    device = tasks[0].data.inputs.device
    seeds = listed([task.seed or 0 for task in tasks], device)
    found: list[ClientData | None] = []
    for task in tasks:
        if task.failed or not task.plan.steps:
            found.append(None)
            continue
        row = int(task.plan.indices[0, 0])
        data = task.data
        found.append(ClientData(data.inputs[row : row + 1], data.targets[row : row + 1]))
    return _joined(found, seeds, kind)


def plant_examples(
    pieces: Iterator[Tensor], rows: Sequence[int], examples: Population
) -> Iterator[Tensor]:
    """Put the updates of canaries in the place of what they trained; see `Examples.planted`.

    Args:
        pieces: updates [c, d] of the examples of a lot, in their order.
        rows: the numbers of all of them. examples: the population.
    """
    if not isinstance(examples, Examples) or plants_nothing(examples):
        yield from pieces
        return
    numbers = iter(rows)
    for piece in pieces:
        for place, number in enumerate(islice(numbers, len(piece))):
            update = examples.planted(number)
            if update is not None:
                piece[place] = update
        yield piece


def plants_nothing(examples: Population) -> bool:
    """Whether its `planted` is that of all examples, which need not be asked one by one."""
    if not isinstance(examples, Examples):
        return True
    return getattr(examples.planted, "__func__", None) is _NOTHING


def nothing(count: int, kind: Kind, device: torch.device) -> ClientData:
    """Zeros in place of examples."""
    inputs = torch.zeros(count, *kind.input_shape, dtype=kind.input_dtype, device=device)
    targets = torch.zeros(count, *kind.target_shape, dtype=kind.target_dtype, device=device)
    return ClientData(inputs, targets)


def _joined(found: Sequence[ClientData | None], seeds: Tensor, kind: Kind) -> Lot:
    """Single examples; those that are missing, or of another kind, have failed."""
    kept = [one if one is not None and _is(one, kind) else None for one in found]
    empty = nothing(1, kind, seeds.device)
    rows = [empty if one is None else one for one in kept]
    inputs, targets = torch.cat([r.inputs for r in rows]), torch.cat([r.targets for r in rows])
    return Lot(ClientData(inputs, targets), seeds, torch.tensor([one is None for one in kept]))


def _is(one: ClientData, kind: Kind) -> bool:
    return len(one) == 1 and Kind.of(one) == kind


def _moved(data: ClientData, device: torch.device) -> ClientData:
    return ClientData(data.inputs.to(device), data.targets.to(device))
