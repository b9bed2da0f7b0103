"""Local training of one client after the other, by autograd. Works for every model and method."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from dpacct.fl.clients import ClientData
from dpacct.fl.layout import Layout, Params, State
from dpacct.fl.local.batches import Batch
from dpacct.fl.local.losses import LocalLoss
from dpacct.fl.methods.protocol import Context, Method, overrides
from dpacct.fl.tensors import integers, seed_generators, sent
from dpacct.fl.training.isolation import Isolation
from dpacct.fl.training.tasks import Broadcast, Task, Trial


class SequentialTrainer:
    """A `Trainer` that treats clients one by one."""

    def __init__(self, method: Method, loss: LocalLoss, layout: Layout) -> None:
        self._method = method
        self._loss = loss
        self._layout = layout
        self._isolation = Isolation(loss, method)
        self._projects = overrides(method, "after_step")

    def admit(self, data: ClientData) -> bool:
        """Admit all clients: there are no groups."""
        del data
        return True

    def train(self, tasks: Sequence[Task], broadcast: Broadcast) -> Tensor:
        """See `Trainer`; an error of a client is raised."""
        rows = self._empty(tasks, broadcast)
        with self._isolation.around(broadcast) as shown:
            for row, task in zip(rows, tasks, strict=True):
                if not task.failed:
                    row.copy_(self._update(task, shown))
        return rows

    def attempt(self, tasks: Sequence[Task], broadcast: Broadcast) -> Tensor:
        """Return updates as `train` does, with a row of NaN for each client that fails."""
        rows = self._empty(tasks, broadcast)
        with self._isolation.around(broadcast) as shown:
            for row, task in zip(rows, tasks, strict=True):
                if not task.failed:
                    with Trial():
                        row.copy_(self._update(task, shown))
        return rows

    def remember(
        self, tasks: Sequence[Task], rows: Tensor, broadcast: Broadcast
    ) -> list[State] | None:
        """See `Trainer`."""
        if any(task.state is None for task in tasks):
            return None
        states: list[State] = []
        with self._isolation.around(broadcast) as shown:
            for row, task in zip(rows, tasks, strict=True):
                steps = task.plan.steps
                context = shown.context(shown.step_size(steps), steps, task.state)
                # In storage of its own: a row of a matrix leads to all others.
                states.append(self._method.client_state(task.state or {}, row.clone(), context))
        return states

    def _empty(self, tasks: Sequence[Task], broadcast: Broadcast) -> Tensor:
        start = self._layout.flatten(broadcast.anchor)
        return start.new_full((len(tasks), self._layout.size), torch.nan)

    def _update(self, task: Task, shown: Broadcast) -> Tensor:
        """Return the update [d] of one client."""
        if task.seed is not None:
            seed_generators(task.seed, shown.device)
        steps = task.plan.steps
        context = shown.context(shown.step_size(steps), steps, task.state)
        end = self._layout.flatten(self._descend(task, context))
        delta = end - self._layout.flatten(shown.anchor)
        return self._method.local_update(delta, task.state, context).detach()

    def _descend(self, task: Task, context: Context) -> Params:
        """Return the parameters after the local steps, as `torch.optim.SGD` takes them."""
        local = context.local
        params = context.anchor
        momenta: Params = {}
        counts = integers(task.plan.counts)
        # One upload for all steps.
        plan = sent(task.plan.indices, task.data.inputs.device)
        for indices, count in zip(plan, counts, strict=True):
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
