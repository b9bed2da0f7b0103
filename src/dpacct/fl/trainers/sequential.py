"""Local training of a chunk of clients one after the other, by autograd."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dpacct.fl.clients import ClientData
from dpacct.fl.layout import Layout, Params, State
from dpacct.fl.local.batches import Batch
from dpacct.fl.local.losses import LocalLoss
from dpacct.fl.methods.protocol import Context, Method, overrides
from dpacct.fl.tensors import integers, seed_generators
from dpacct.fl.trainers.failures import Trial
from dpacct.fl.trainers.image_order import by_place
from dpacct.fl.trainers.isolation import Isolation
from dpacct.fl.trainers.tasks import Broadcast, Task, Trainer
from dpacct.fl.uploads import sent

__all__ = ["Broadcast", "SequentialTrainer", "Task", "Trainer"]


class SequentialTrainer:
    """One client after the other, by autograd. Works for every model and method.

    Attributes:
        by_place: whether a model is given images place by place, see `image_order`.
    """

    def __init__(
        self, method: Method, loss: LocalLoss, layout: Layout, *, by_place: bool = False
    ) -> None:
        self.by_place = by_place
        self._method = method
        self._loss = loss
        self._layout = layout
        self._projects = overrides(method, "after_step")

    def admit(self, data: ClientData) -> bool:
        """See `Trainer`: nobody is beside another."""
        del data
        return True

    def isolate(self, broadcast: Broadcast) -> Isolation:
        """What the clients of a chunk are shown."""
        return Isolation(broadcast, self._loss, self._method)

    def train(self, tasks: Sequence[Task], broadcast: Broadcast) -> Tensor:
        """See `Trainer`."""
        isolation = self.isolate(broadcast)
        start = self._layout.flatten(broadcast.anchor)
        rows = torch.empty(len(tasks), self._layout.size, dtype=start.dtype, device=start.device)
        for row, task in zip(rows, tasks, strict=True):
            with isolation:
                row.copy_(self._update(task, start, isolation, self.by_place))
        return rows

    def attempt(self, task: Task, start: Tensor, isolation: Isolation) -> Tensor | None:
        """What one client sends [d], None where it fails.

        Args:
            task: the client. start: released parameters [d]. isolation: of its chunk.

        A model that refuses images place by place in batches on which that was not tried is given
        them as they are.
        """
        for order in (True, False) if self.by_place else (False,):
            with Trial(), isolation:
                return self._update(task, start, isolation, order)
        return None

    def _update(
        self,
        task: Task,
        start: Tensor,
        isolation: Isolation,
        ordered: bool,  # noqa: FBT001 - called in two places
    ) -> Tensor:
        """What one client sends [d]; what it has changed is not looked at yet."""
        if task.failed:
            return torch.full_like(start, torch.nan)
        if task.seed is not None:
            seed_generators(task.seed, start.device)
        steps = task.plan.steps
        shown = isolation.shown
        context = shown.context(shown.step_size(steps), steps, task.state)
        end = self._layout.flatten(self._descend(task, context, ordered))
        return self._method.local_update(end - start, task.state, context).detach()

    def remember(
        self, tasks: Sequence[Task], rows: Tensor, broadcast: Broadcast
    ) -> list[State] | None:
        """See `Trainer`."""
        if any(task.state is None for task in tasks):
            return None
        isolation = self.isolate(broadcast)
        states: list[State] = []
        for row, task in zip(rows, tasks, strict=True):
            steps = task.plan.steps
            rate = broadcast.step_size(steps)
            context = isolation.shown.context(rate, steps, task.state)
            with isolation:
                # In storage of its own: a row of a matrix leads to all others.
                states.append(self._method.client_state(task.state or {}, row.clone(), context))
        return states

    def _descend(
        self,
        task: Task,
        context: Context,
        ordered: bool,  # noqa: FBT001 - called in one place
    ) -> Params:
        local = context.local
        params = context.anchor
        momenta: Params = {}
        counts = integers(task.plan.counts)
        # One upload for all steps.
        plan = sent(task.plan.indices, task.data.inputs.device)
        for indices, count in zip(plan, counts, strict=True):
            rows = indices[:count]
            inputs = task.data.inputs[rows]
            inputs = by_place(inputs) if ordered else inputs
            batch = Batch(inputs, task.data.targets[rows], None)
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
