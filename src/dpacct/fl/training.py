"""Local training of a chunk of clients: one after the other, or side by side."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from dpacct.fl.batches import Batch, BatchPlan
from dpacct.fl.clients import ClientData
from dpacct.fl.layout import Layout, Params, State
from dpacct.fl.local import SGD
from dpacct.fl.losses import LocalLoss
from dpacct.fl.methods.protocol import Context, Method, overrides
from dpacct.fl.tensors import integers


@dataclass(frozen=True, slots=True, eq=False)
class Task:
    """A client with what it needs for one round, on the device."""

    data: ClientData
    plan: BatchPlan
    state: State | None


@dataclass(frozen=True, slots=True, eq=False)
class Broadcast:
    """What all clients of a round are told."""

    round: int
    anchor: Params
    server_state: State
    local: SGD
    clip_norm: float = math.inf

    def context(self, lr: float | Tensor, steps: int | Tensor) -> Context:
        """The context of a client that takes so many steps at this rate."""
        state, local = self.server_state, self.local
        return Context(self.round, self.anchor, state, local, lr, steps, self.clip_norm)

    def step_size(self, steps: int) -> float:
        """Learning rate of each of a client's steps."""
        rate = self.local.learning_rate(self.round)
        return rate / max(steps, 1) if self.local.total_lr else rate


class Trainer(Protocol):
    """Turns a chunk of clients into their updates."""

    def train(self, tasks: Sequence[Task], broadcast: Broadcast) -> Tensor:
        """Updates [c, d] as `Method.local_update` returns them, in the dtype of the parameters."""
        ...

    def remember(
        self, tasks: Sequence[Task], rows: Tensor, broadcast: Broadcast
    ) -> list[State] | None:
        """New client states from the bounded rows [c, d]; None for clients without memory."""
        ...


class SequentialTrainer:
    """One client after the other, by autograd. Works for every model and method."""

    def __init__(self, method: Method, loss: LocalLoss, layout: Layout) -> None:
        self._method = method
        self._loss = loss
        self._layout = layout
        self._projects = overrides(method, "after_step")

    def train(self, tasks: Sequence[Task], broadcast: Broadcast) -> Tensor:
        """See `Trainer`."""
        start = self._layout.flatten(broadcast.anchor)
        rows = torch.empty(len(tasks), self._layout.size, dtype=start.dtype, device=start.device)
        for row, task in zip(rows, tasks, strict=True):
            steps = task.plan.steps
            context = broadcast.context(broadcast.step_size(steps), steps)
            end = self._layout.flatten(self._descend(task, context))
            row.copy_(self._method.local_update(end - start, task.state, context))
        return rows

    def remember(
        self, tasks: Sequence[Task], rows: Tensor, broadcast: Broadcast
    ) -> list[State] | None:
        """See `Trainer`."""
        states: list[State] = []
        for row, task in zip(rows, tasks, strict=True):
            if task.state is None:
                return None
            steps = task.plan.steps
            context = broadcast.context(broadcast.step_size(steps), steps)
            states.append(self._method.client_state(task.state, row, context))
        return states

    def _descend(self, task: Task, context: Context) -> Params:
        local = context.local
        params = context.anchor
        momenta: Params = {}
        counts = integers(task.plan.counts)
        for indices, count in zip(task.plan.indices, counts, strict=True):
            rows = indices[:count]
            batch = Batch(task.data.inputs[rows], task.data.targets[rows], None)
            grads = self._method.gradient(self._loss, params, batch, context)
            if local.weight_decay:
                grads = {n: g + local.weight_decay * params[n] for n, g in grads.items()}
            if local.momentum:
                momenta = (
                    {name: local.momentum * momenta[name] + g for name, g in grads.items()}
                    if momenta
                    else dict(grads)
                )
                grads = momenta
            params = {n: p.sub(grads[n], alpha=float(context.lr)) for n, p in params.items()}
            if self._projects:
                params = self._method.after_step(params, context)
        return params
