"""Memory that one more client, or one more example, takes in a step, measured on a made-up one."""

from __future__ import annotations

from functools import partial

from dpacct.fl.layout import copies
from dpacct.fl.local.batches import Batch
from dpacct.fl.local.losses import LocalLoss
from dpacct.fl.trainers.agreement import UNBATCHABLE
from dpacct.fl.trainers.footprint import client_bytes
from dpacct.fl.trainers.tasks import Broadcast, Task
from dpacct.fl.trainers.vectorized import VectorizedTrainer


def bytes_of_example(loss: LocalLoss, task: Task, broadcast: Broadcast) -> int:
    """What one more example takes beside its gradient."""
    anchor = copies(broadcast.anchor)
    batch = _first_batch(task)
    return client_bytes(partial(loss.gradient, anchor, batch), {}, batch)[0]


def bytes_of_client(
    loss: LocalLoss, together: VectorizedTrainer, task: Task, broadcast: Broadcast
) -> int:
    """What one more client in a chunk takes beside its data."""
    anchor = copies(broadcast.anchor)
    batch = _first_batch(task)
    params = {name: value.unsqueeze(0) for name, value in anchor.items()}
    inputs, targets = batch.inputs.unsqueeze(0), batch.targets.unsqueeze(0)
    try:
        # As it is computed side by side: a model may save less where it is alone.
        step = partial(together.sum.gradients, params, inputs, targets, None)
        return client_bytes(step, anchor, batch)[0]
    except UNBATCHABLE:
        step = partial(loss.gradient, anchor, batch)
        return client_bytes(step, anchor, batch)[0]


def _first_batch(task: Task) -> Batch:
    rows = task.plan.indices[0]
    return Batch(task.data.inputs[rows], task.data.targets[rows], None)
