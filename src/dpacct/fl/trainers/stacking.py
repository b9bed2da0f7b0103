"""What clients bring along, in the form in which they are laid side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import torch

from dpacct.fl.clients import ClientData
from dpacct.fl.layout import State
from dpacct.fl.local.batches import BatchPlan
from dpacct.fl.trainers.tasks import Task
from dpacct.fl.uploads import sent


def nobody_like(data: ClientData) -> ClientData:
    """One row of zeros in place of the data of a client that takes no step."""
    return ClientData(*(part.new_zeros(1, *part.shape[1:]) for part in (data.inputs, data.targets)))


def drawn(task: Task) -> tuple[ClientData, BatchPlan]:
    """A client's data and plan; where the plan uses a part of the data, that part alone."""
    data, plan = task.data, task.plan
    if plan.indices.numel() >= len(data):
        return data, plan
    rows = sent(plan.indices.flatten(), data.inputs.device)
    places = torch.arange(len(rows)).view_as(plan.indices)
    part = ClientData(data.inputs.index_select(0, rows), data.targets.index_select(0, rows))
    return part, BatchPlan(places, plan.counts)


def stack_states(states: Sequence[State | None]) -> State | None:
    """The memories of clients with a leading dimension c; None where they have none."""
    first = states[0]
    if first is None:
        return None
    return {name: torch.stack([cast("State", s)[name] for s in states]) for name in first}
