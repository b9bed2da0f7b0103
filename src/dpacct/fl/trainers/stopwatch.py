"""How long ways of training take, on a machine that may do other things beside."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch

from dpacct.fl.local.batches import BatchPlan
from dpacct.fl.local.sgd import SGD
from dpacct.fl.trainers.tasks import Broadcast, Task, Trainer

# Seconds for measuring each way of training.
_PATIENCE, _TURNS = 0.02, 2
# Of a client that is timed, at most.
_STEPS = 8
# A way that is taken for its speed alone is so many times as fast.
_PLAINLY = 1.1


class Heat(NamedTuple):
    """One way of training, and the clients that it is timed on."""

    trainer: Trainer
    tasks: Sequence[Task]


def seconds(heats: Sequence[Heat], broadcast: Broadcast) -> list[float]:
    """Least time of one training of each, in as many turns as fit into the patience; two at least.

    What slows the machine down for a while slows down all of them, and what is over soon is tried
    more than once in a turn. On a CPU the lesser of the clock's time and the processor's counts:
    while a machine is shared, a short try has it to itself now and then, and a long one never.
    """
    device = next(iter(broadcast.anchor.values())).device
    best = [float("inf")] * len(heats)
    spent, turns = 0.0, 0
    while turns < _TURNS or spent < _PATIENCE * len(heats):
        turns += 1
        for number, heat in enumerate(heats):
            own = 0.0
            while not own or own < _PATIENCE / _TURNS**2:
                taken = _once(heat, broadcast, device)
                best[number] = min(best[number], taken)
                own += taken
            spent += own
    return best


def faster(one: Trainer, other: Trainer, tasks: Sequence[Task], broadcast: Broadcast) -> bool:
    """Whether one way is plainly faster than another one."""
    mine, yours = seconds([Heat(one, tasks), Heat(other, tasks)], broadcast)
    return yours > _PLAINLY * mine


def longer(task: Task, local: SGD) -> Task:
    """The same client with as many steps as it would take, up to a few."""
    plan = task.plan
    steps = min(local.count_steps(len(task.data)), _STEPS)
    if not 0 < plan.steps < steps:
        return task
    repeats = -(-steps // plan.steps)
    indices, counts = plan.indices.repeat(repeats, 1), plan.counts.repeat(repeats)
    return replace(task, plan=BatchPlan(indices[:steps], counts[:steps]))


def _once(heat: Heat, broadcast: Broadcast, device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    clock, processor = time.perf_counter(), time.process_time()
    heat.trainer.train(heat.tasks, broadcast)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    taken = time.perf_counter() - clock
    # Where the processor's clock is too coarse to tell, it says nothing.
    own = time.process_time() - processor or taken
    return taken if device.type != "cpu" else min(taken, own)
