"""Clients side by side in groups of one form, whoever comes: nobody's update shows the others.

The same operations on tensors of other shapes may round otherwise, and where training is chaotic
one bit becomes a difference of everything. So a group has a constant number of clients, and batches
of a width that is public or a client's own.

Rule 1: clients are grouped by their own number of examples. Rule 2: what is missing to a whole
group is filled up with nobody. Rule 3: one thread: where a loop is split over threads, elements at
the seams may be rounded otherwise, and whose they are depends on a client's place.

What a client's place in its group may change is tested bit by bit, not proven: that lies within
PyTorch's kernels. `dpacct.fl.engine.preflight` tries it on the model itself before anything is
charged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor

from dpacct.fl.clients import ClientData
from dpacct.fl.layout import State, type_of_updates
from dpacct.fl.local.batches import padded_width
from dpacct.fl.local.sgd import SGD
from dpacct.fl.tensors import one_thread
from dpacct.fl.trainers.tasks import NO_STEPS, Broadcast, Task
from dpacct.fl.trainers.vectorized import VectorizedTrainer
from dpacct.fl.uploads import listed

# Clients side by side are a multiple of this: vector loops over them then have no tail of single
# elements, in which some functions round otherwise.
LANES = 32
# The same where some numbers have two bytes.
HALF_LANES = 64
# What surrounds the arithmetic of a group takes about as long as so many more small members.
_OVERHEAD = 24


def expected_groups(cohort: int, size: int) -> float:
    """Groups that a cohort fills, in the mean over a few likely numbers of them."""
    spread = [cohort + step * math.sqrt(cohort) / 2 for step in range(-4, 5)]
    return sum(max(1, math.ceil(count / size)) for count in spread) / len(spread)


def expected_work(cohort: int, size: int) -> float:
    """What a round takes in groups of this size, in members, those that stand for nobody too."""
    return expected_groups(cohort, size) * (size + _OVERHEAD)


class Group(NamedTuple):
    """Clients that train side by side: those at ``places`` of the chunk, then nobody."""

    places: list[int]
    tasks: list[Task]


class GroupTrainer:
    """A trainer of clients side by side, given groups of one form.

    Args:
        trainer: of one group.
        clients: in a group; a public number, see `LANES`.
        widest: batches with more examples are trained in a group of one client.
    """

    def __init__(
        self, trainer: VectorizedTrainer, clients: int = LANES, widest: float = float("inf")
    ) -> None:
        self.clients = clients
        self.trainer = trainer
        self.widest = widest

    def admit(self, data: ClientData) -> bool:
        """See `Trainer`."""
        return self.trainer.admit(data)

    def train(self, tasks: Sequence[Task], broadcast: Broadcast) -> Tensor:
        """See `Trainer`."""
        first = next(iter(broadcast.anchor.values()))
        size = sum(value.numel() for value in broadcast.anchor.values())
        rows = first.new_empty(len(tasks), size, dtype=type_of_updates(broadcast.anchor))
        with one_thread(first.device):
            for group in self._groups(tasks, broadcast.local):
                found = self.trainer.train(group.tasks, broadcast)
                places = listed(group.places, rows.device)
                rows[places] = found[: len(group.places)].to(rows.dtype)
        return rows

    def remember(
        self, tasks: Sequence[Task], rows: Tensor, broadcast: Broadcast
    ) -> list[State] | None:
        """See `Trainer`."""
        if tasks[0].state is None:
            return None
        kept: dict[int, State] = {}
        with one_thread(rows.device):
            for group in self._groups(tasks, broadcast.local):
                own = rows.new_zeros(len(group.tasks), rows.shape[1])
                own[: len(group.places)] = rows[listed(group.places, rows.device)]
                states = self.trainer.remember(group.tasks, own, broadcast) or []
                for place, state in zip(group.places, states, strict=False):
                    kept[place] = {name: value.clone() for name, value in state.items()}
        return [kept[place] for place in range(len(tasks))]

    def _groups(self, tasks: Sequence[Task], local: SGD) -> list[Group]:
        widths: dict[int, list[int]] = {}
        for place, task in enumerate(tasks):
            used = len(task.data) if task.plan.steps else 0
            widths.setdefault(padded_width(used, local), []).append(place)
        groups: list[Group] = []
        for width, places in widths.items():
            count = self.clients if width <= self.widest else 1
            for start in range(0, len(places), count):
                part = places[start : start + count]
                filled = [tasks[place] for place in part]
                filled += [_nobody(tasks[part[0]])] * (count - len(part))
                groups.append(Group(part, filled))
        return groups


def _nobody(task: Task) -> Task:
    """A client like this one without examples, and with an empty memory."""
    data = ClientData(task.data.inputs[:0], task.data.targets[:0])
    state = task.state and {name: v.new_zeros(v.shape) for name, v in task.state.items()}
    return Task(data, NO_STEPS, state)
