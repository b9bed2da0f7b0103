"""Local training of one client after the other, by autograd. Works for every model and method."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext

from torch import Tensor

from dpacct.fl.layout import Params, State
from dpacct.fl.local.batches import Batch
from dpacct.fl.local.sgd import shortened
from dpacct.fl.methods.protocol import Context, overrides
from dpacct.fl.tensors import numbers, seed_generators
from dpacct.fl.training.tasks import Broadcast, Task, Trainer, Trial


class SequentialTrainer(Trainer):
    """A `Trainer` that treats clients one by one."""

    def train(
        self, tasks: Sequence[Task], broadcast: Broadcast, *, attempt: bool = False
    ) -> Tensor:
        """See `Trainer`. An error of a client is raised, or is a row of NaN in an attempt."""
        rows = self._no_updates(len(tasks), broadcast)
        with self._isolation.around(broadcast) as shown:
            for row, task in zip(rows, tasks, strict=True):
                if not task.failed:
                    with Trial() if attempt else nullcontext():
                        row.copy_(self._update(task, shown))
        return rows

    def _update(self, task: Task, shown: Broadcast) -> Tensor:
        """Return the update [d] of one client."""
        if task.seed is not None:
            seed_generators(task.seed, shown.device)
        context = shown.context_of(task)
        end = self._layout.flatten(self._descend(task, context))
        delta = end - self._layout.flatten(shown.anchor)
        return self.method.local_update(delta, task.state, context).detach()

    def _descend(self, task: Task, context: Context) -> Params:
        """Return the parameters after the local steps, as torch's optimizers take them."""
        local, params = context.local, context.anchor
        projects = overrides(self.method, "after_step")
        optimizer: State = {}
        # One upload for all steps.
        plan = task.plan.indices.to(task.data.targets.device)
        for indices, count in zip(plan, numbers(task.plan.counts), strict=True):
            rows = indices[:count]
            data = task.data.map(lambda values: values[rows])  # noqa: B023 - called at once
            batch = Batch(data.inputs, data.targets, None)
            grads = self.method.gradient(self._loss, params, batch, context)
            if local.max_grad_norm is not None:
                grads = shortened(grads, local.max_grad_norm)
            grads, optimizer = local.direction(grads, params, optimizer)
            params = {n: p.sub(grads[n], alpha=float(context.lr)) for n, p in params.items()}
            if projects:
                params = self.method.after_step(params, context)
        return params
