"""What a trainer is given, and what it gives back; and how a client's data get there.

Rule 1: what goes wrong with one client's data is that client's failure alone. Rule 2: its batches
and its randomness follow from the round's seed and its number, not from who else came.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dpacct.fl.clients import Canary, ClientData, checked
from dpacct.fl.layout import Params, State, copies
from dpacct.fl.local.batches import BatchPlan, plan_batches
from dpacct.fl.local.sgd import SGD
from dpacct.fl.methods.protocol import Context
from dpacct.fl.trainers.failures import Trial


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Task:
    """A client with what it needs for one round, on the device.

    Attributes:
        data: its examples. plan: its batches. state: its memory, in storage of its own.
        seed: of the global generators while it trains; None leaves them alone.
        alone: it must not be trained beside others.
        failed: its data could not be read, and count as an update that is not finite.
        planted: the update of a `Canary`, None of everybody else.
    """

    data: ClientData
    plan: BatchPlan
    state: State | None
    seed: int | None = None
    alone: bool = False
    failed: bool = False
    planted: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Broadcast:
    """What all clients of a round are told."""

    round: int
    anchor: Params
    server_state: State
    local: SGD
    clip_norm: float = math.inf

    def context(
        self, lr: float | Tensor, steps: int | Tensor, memory: State | None = None
    ) -> Context:
        """The context of a client with this memory, that takes so many steps at this rate."""
        # Dictionaries of its own: one client's entries are not the next one's.
        anchor, state = dict(self.anchor), dict(self.server_state)
        own = None if memory is None else dict(memory)
        return Context(self.round, anchor, state, self.local, lr, steps, self.clip_norm, own)

    def step_size(self, steps: int) -> float:
        """Learning rate of each of a client's steps."""
        rate = self.local.learning_rate(self.round)
        return rate / max(steps, 1) if self.local.total_lr else rate


class Trainer(Protocol):
    """Turns a chunk of clients into their updates."""

    def admit(self, data: ClientData) -> bool:
        """Whether a client may be trained beside others, judged by its own data alone.

        Raises:
            InvalidParameter: it cannot be trained at all.
        """
        ...

    def train(self, tasks: Sequence[Task], broadcast: Broadcast) -> Tensor:
        """Updates [c, d] as `Method.local_update` returns them, in the dtype of the parameters.

        Raises:
            Unsupported: a client changed what another one, or the release, depends on.
        """
        ...

    def remember(
        self, tasks: Sequence[Task], rows: Tensor, broadcast: Broadcast
    ) -> list[State] | None:
        """New client states from the bounded rows [c, d]; None for clients without memory."""
        ...


def plant(rows: Tensor, tasks: Sequence[Task]) -> None:
    """Put the updates of canaries in the place of what they trained, [c, d]."""
    for row, task in zip(rows, tasks, strict=True):
        if task.planted is not None:
            row.copy_(task.planted)


NO_DATA = ClientData(torch.zeros(0), torch.zeros(0))
NO_STEPS = BatchPlan(torch.zeros(0, 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))


def join(
    read: Callable[[], object],
    local: SGD,
    memory: State | None,
    seed: int,
    device: torch.device,
    trainer: Trainer | None,
) -> Task:
    """A client with its batches and its memory, on the device.

    Args:
        read: its data. local: training. memory: copied here.
        seed: of its batches, and of the global generators while it trains.
        trainer: judges its data; None takes everybody.
    """
    if memory is not None:
        memory = {name: value.to(device) for name, value in copies(memory).items()}
    with Trial():
        data = checked(read())
        moved = ClientData(data.inputs.to(device), data.targets.to(device))
        planted = data.update.to(device) if isinstance(data, Canary) else None
        return _ready(data, moved, local, memory, seed, trainer, planted)
    return Task(NO_DATA, NO_STEPS, memory, seed, failed=True)


def join_gathered(
    whole: ClientData,
    sizes: Sequence[int],
    local: SGD,
    memories: Sequence[State | None],
    seeds: Sequence[int],
    device: torch.device,
    trainer: Trainer | None,
) -> list[Task]:
    """As `join`, of clients whose examples lie behind each other in ``whole``; ``sizes`` of each.

    They get views of it: what trains sees copies of batches alone.
    """
    moved = ClientData(whole.inputs.to(device), whole.targets.to(device))
    # Labels are looked at on the host: a device is waited for once.
    targets = whole.targets.cpu()
    tasks: list[Task] = []
    start = 0
    for size, memory, seed in zip(sizes, memories, seeds, strict=True):
        part = slice(start, start + size)
        start += size
        own = memory and {name: value.to(device) for name, value in copies(memory).items()}
        task = Task(NO_DATA, NO_STEPS, own, seed, failed=True)
        with Trial():
            shown = ClientData(whole.inputs[part], targets[part])
            data = ClientData(moved.inputs[part], moved.targets[part])
            task = _ready(shown, data, local, own, seed, trainer)
        tasks.append(task)
    return tasks


def _ready(
    shown: ClientData,
    data: ClientData,
    local: SGD,
    memory: State | None,
    seed: int,
    trainer: Trainer | None,
    planted: Tensor | None = None,
) -> Task:
    """A client whose data, ``shown`` where the trainer looks at them, are on the device."""
    beside = trainer is None or trainer.admit(shown)
    plan = plan_batches(len(data), local, torch.Generator().manual_seed(seed))
    return Task(data, plan, memory, seed, alone=not beside, planted=planted)
