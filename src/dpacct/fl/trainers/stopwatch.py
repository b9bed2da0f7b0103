"""How long a trainer takes."""

from __future__ import annotations

import time
from collections.abc import Sequence

import torch

from dpacct.fl.trainers.tasks import Broadcast, Task, Trainer

# Seconds for measuring one way of training.
_PATIENCE = 0.1


def seconds(trainer: Trainer, tasks: Sequence[Task], broadcast: Broadcast) -> float:
    """Least time of one training of the tasks, in as many tries as fit into the patience."""
    device = next(iter(broadcast.anchor.values())).device
    best = float("inf")
    began = time.perf_counter()
    while time.perf_counter() - began < _PATIENCE or best == float("inf"):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        started = time.perf_counter()
        trainer.train(tasks, broadcast)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - started)
    return best
