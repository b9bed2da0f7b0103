"""How the clients of a chunk are read: together where they are rows of one table, else one by one.

Rule: what goes wrong with one client's data is that client's failure alone. Where a table cannot
be read at once, its clients are read one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

import torch

from dpacct.fl.clients import Population
from dpacct.fl.data.dataset import PartitionedClients
from dpacct.fl.layout import State
from dpacct.fl.local.sgd import SGD
from dpacct.fl.training.tasks import Task, Trainer, Trial, join, join_gathered


def read_clients(
    clients: Population,
    part: Sequence[int],
    memories: Sequence[State | None],
    seeds: Sequence[int],
    local: SGD,
    device: torch.device,
    trainer: Trainer,
) -> list[Task]:
    """The tasks of some clients, on the device.

    Args:
        clients: the population. part: their numbers. memories: what each remembers.
        seeds: of the batches of each. local: training. trainer: judges their data.
    """
    if isinstance(clients, PartitionedClients):
        with Trial():
            gathered = clients.together(part)
            if gathered is not None:
                return join_gathered(*gathered, local, memories, seeds, device, trainer)
    return [
        join(partial(clients.__getitem__, client), local, memory, seed, device, trainer)
        for client, memory, seed in zip(part, memories, seeds, strict=True)
    ]
