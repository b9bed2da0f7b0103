"""Whether two ways of training give the same updates, and recorded steps the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from dpacct.display import line
from dpacct.fl.local.batches import BatchPlan
from dpacct.fl.tensors import norm, same_numbers
from dpacct.fl.trainers.doubled import doubled
from dpacct.fl.trainers.tasks import Broadcast, Task, Trainer
from dpacct.fl.trainers.vectorized import VectorizedTrainer

# Steps of which the first is recorded, and the others played.
_REPEATED = 3
# What a model raises that `torch.func` cannot batch.
UNBATCHABLE = (RuntimeError, ValueError, TypeError, LookupError, AttributeError)


def disagreement(
    alone: Trainer,
    together: Trainer,
    tasks: Sequence[Task],
    broadcast: Broadcast,
    tolerance: float,
) -> str:
    """What is wrong with training these clients side by side, or nothing.

    Args:
        alone: trains one by one, the way to be met. together: side by side.
        tasks, broadcast: what is trained. tolerance: share of an update that may differ.
    """
    try:
        expected = alone.train(tasks, broadcast)
        found = together.train(tasks, broadcast)
        same = _agree(expected, found, broadcast, tolerance)
        same = same or _agree_in_double(alone, together, tasks, broadcast, tolerance)
    except UNBATCHABLE as error:
        return _told(error)
    if same:
        return ""
    return (
        "side by side this model or loss gives another result: a loss must be the mean over "
        "the examples of a batch, and a method must treat each client by itself"
    )


def unbatchable(together: Trainer, tasks: Sequence[Task], broadcast: Broadcast) -> str:
    """What stops side by side training as the model is now, with its random layers, or nothing."""
    try:
        together.train(tasks, broadcast)
    except UNBATCHABLE as error:
        return _told(error)
    return ""


def replays_exactly(
    trainer: VectorizedTrainer, tasks: Sequence[Task], broadcast: Broadcast
) -> bool:
    """Whether recorded steps give the bits of the steps themselves; ``trainer`` stays as it is."""
    before = trainer.replays
    # A step that is not repeated shows nothing.
    tasks = [_longer(task) for task in tasks]
    found: list[Tensor] = []
    try:
        for trainer.replays in (True, False):
            found.append(trainer.train(tasks, broadcast))
    except UNBATCHABLE:
        return False
    finally:
        trainer.replays = before
    return same_numbers(*found)


def _longer(task: Task) -> Task:
    """The same client with three steps or more, on other examples as far as it has some."""
    plan = task.plan
    missing = _REPEATED - plan.steps
    if not plan.steps or missing <= 0:
        return task
    again = [place % plan.steps for place in range(missing)]
    further = torch.arange(1, missing + 1).unsqueeze(1)
    indices = torch.cat([plan.indices, (plan.indices[again] + further) % len(task.data)])
    counts = torch.cat([plan.counts, plan.counts[again]])
    return replace(task, plan=BatchPlan(indices, counts))


def _told(error: Exception) -> str:
    first = str(error).strip().partition("\n")[0]
    return f"torch.func cannot batch this model or method ({line(first[:200])})"


def _agree(expected: Tensor, found: Tensor, broadcast: Broadcast, tolerance: float) -> bool:
    """Whether rows are equal up to rounding, or none can be told from another."""
    gap = norm(found - expected, dim=1)
    scale = norm(expected, dim=1)
    floor = 1e-6 * float(norm(torch.stack([norm(v) for v in broadcast.anchor.values()])))
    near = bool((gap <= tolerance * scale + floor).all())
    return near or not bool(gap.isfinite().all())


def _agree_in_double(
    alone: Trainer,
    together: Trainer,
    tasks: Sequence[Task],
    broadcast: Broadcast,
    tolerance: float,
) -> bool:
    """The same comparison with twice the digits.

    Rounding may decide on which side of its kink an activation lies, and then two correct
    results differ visibly; with 53 bits that hardly happens twice.
    """
    if any(value.dtype != torch.float32 for value in broadcast.anchor.values()):
        return False
    same, wide = doubled(tasks, broadcast)
    try:
        expected = alone.train(same, wide)
        return _agree(expected, together.train(same, wide), wide, tolerance)
    except UNBATCHABLE:
        # A model that holds constants in float32, say.
        return False
