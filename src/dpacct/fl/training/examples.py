"""Gradients of single examples, many at once: vmap(grad) over examples that share parameters.

Each example is a client of its own that takes one step from the released parameters. Groups have
one constant size, filled up with zeros, so that the computation for an example has the same form
for every cohort. Dropout follows from the example's own seed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.func import grad, vmap

from dpacct.fl.clients import ClientData, Examples, Inputs, each, joined
from dpacct.fl.layout import Layout, Params, type_of_updates
from dpacct.fl.local.losses import Labels, LocalLoss
from dpacct.fl.local.sgd import Batch
from dpacct.fl.methods.protocol import Method, overrides
from dpacct.fl.tensors import listed
from dpacct.fl.training.own_functions import OwnFunctions, seeds_of_steps
from dpacct.fl.training.synthetic import Kind
from dpacct.fl.training.tasks import Broadcast, Task, Trainer, Trial

# Bytes of a group's gradients. More of them fall out of the cache, and are given back to the system
# and page-faulted again in each step.
_ROWS_BYTES = 16 << 20
STEP, _MOST = 8, 256


def largest_group(layout: Layout) -> int:
    """Return how many examples may be computed at once, a multiple of `STEP`."""
    fitting = _ROWS_BYTES // (4 * max(layout.size, 1))
    return max(STEP, min(_MOST, fitting // STEP * STEP))


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class ExampleBatch:
    """The examples of one chunk, on the device.

    Attributes:
        data: of n examples. seeds: int64 [n], of their random numbers.
        failed: bool [n] on the device: it could not be read, and counts as not finite.
    """

    data: ClientData
    seeds: Tensor
    failed: Tensor

    def __getitem__(self, part: slice) -> ExampleBatch:
        data = self.data.map(lambda values: values[part])
        return ExampleBatch(data, self.seeds[part], self.failed[part])


@dataclass(frozen=True, slots=True, eq=False)
class Gradients:
    """The updates of a group before any bound: ``scale`` times the parts [n, k], side by side."""

    parts: list[Tensor]
    scale: float

    def __len__(self) -> int:
        return len(self.parts[0])

    def rows(self) -> Tensor:
        """Return the updates [n, d]."""
        return torch.cat(self.parts, dim=1).mul_(self.scale)


class ExampleTrainer(Trainer):
    """A `Trainer` of examples, in groups of a public number. The loss uses `torch.func`.

    Examples of another kind or with other labels count as not finite. None admits all.
    """

    def __init__(
        self,
        method: Method,
        loss: LocalLoss,
        layout: Layout,
        group: int,
        kind: Kind | None = None,
        labels: Labels | None = None,
    ) -> None:
        super().__init__(method, loss, layout)
        self.group, self.kind, self.labels = group, kind, labels
        changes = ("gradient", "after_step", "local_update")
        self._plain = not any(overrides(method, name) for name in changes)

    def read(
        self, examples: Examples, rows: Sequence[int], seeds: Sequence[int], device: torch.device
    ) -> ExampleBatch:
        """Return some examples, on the device. An error with one of them is its own failure."""
        data = self._attempt(examples, rows)
        failed = torch.zeros(len(rows), dtype=torch.bool)
        if data is None:
            assert self.kind is not None  # noqa: S101 - a trainer that reads has a kind
            alone = [self._attempt(examples, [row]) for row in rows]
            failed = torch.tensor([one is None for one in alone])
            kept = [one or self.kind.zeros(1) for one in alone]
            inputs = joined([one.inputs for one in kept], torch.cat)
            data = ClientData(inputs, torch.cat([one.targets for one in kept]))
        if self.labels is not None and len(data):
            # On a GPU, a label out of range would break off all that runs there.
            wrong = ~self.labels.fit(data.targets)
            failed = failed.to(wrong.device) | wrong
            shape = (-1, *[1] * (data.targets.ndim - 1))
            data = ClientData(data.inputs, data.targets.masked_fill(wrong.view(shape), 0))
        moved = data.map(lambda values: values.to(device))
        return ExampleBatch(moved, listed(seeds, device), failed.to(device))

    def _attempt(self, examples: Examples, rows: Sequence[int]) -> ClientData | None:
        """Return some examples, None if they cannot be read or are of another kind."""
        with Trial():
            data = examples.batch(rows)
            if len(data) == len(rows) and (self.kind is None or self.kind.fits(data)):
                return data
        return None

    def train(self, tasks: Sequence[Task], broadcast: Broadcast) -> Tensor:
        """See `Trainer`: each task is the example of its first step."""
        rows = self._no_updates(len(tasks), broadcast)
        taken = [n for n, task in enumerate(tasks) if not task.failed and task.plan.steps]
        for place, task in enumerate(tasks):
            if not task.failed and not task.plan.steps:
                rows[place] = 0.0
        if taken:
            first = [(tasks[n].data, tasks[n].plan.indices[0, :1]) for n in taken]
            examples = [own.map(lambda v, row=row: v[row.to(v.device)]) for own, row in first]
            inputs = joined([own.inputs for own in examples], torch.cat)
            data = ClientData(inputs, torch.cat([own.targets for own in examples]))
            data = data.map(lambda values: values.to(rows.device))
            seeds = listed([tasks[n].seed or 0 for n in taken], rows.device)
            batch = ExampleBatch(data, seeds, torch.zeros_like(seeds, dtype=torch.bool))
            with self._isolation.around(broadcast) as shown:
                updates = [self._compute(part, shown).rows() for part in self._cut(batch)]
            rows[listed(taken, rows.device)] = torch.cat(updates).to(rows.dtype)
        return rows

    def groups(self, batch: ExampleBatch, broadcast: Broadcast) -> Iterator[Gradients]:
        """Yield the updates of examples, group by group, or NaN for an example that fails."""
        with self._isolation.around(broadcast) as shown:
            for part in self._cut(batch):
                yield from self._group(part, shown)

    def _cut(self, batch: ExampleBatch) -> Iterator[ExampleBatch]:
        for first in range(0, len(batch.seeds), self.group):
            yield batch[first : first + self.group]

    def _group(self, batch: ExampleBatch, shown: Broadcast) -> Iterator[Gradients]:
        """Yield the updates of a group, split until the examples with an error are found."""
        gradients: Gradients | None = None
        with Trial():
            gradients = self._compute(batch, shown)
        half = len(batch.seeds) // 2
        if gradients is not None:
            if bool(batch.failed.any()):
                first = gradients.parts[0]
                # Not in place: rows of a gradient that is the same for all examples are one row.
                gradients.parts[0] = torch.where(batch.failed.unsqueeze(1), torch.nan, first)
            yield gradients
        elif not half:
            start = self._layout.flatten(shown.anchor)
            yield Gradients([torch.full_like(start, torch.nan).unsqueeze(0)], 1.0)
        else:
            yield from self._group(batch[:half], shown)
            yield from self._group(batch[half:], shown)

    def _compute(self, batch: ExampleBatch, shown: Broadcast) -> Gradients:
        """Return the updates of at most a group of examples, filled up to a group."""
        count = len(batch.seeds)
        data = batch.data.map(partial(_filled, size=self.group))
        inputs, targets = data.inputs, data.targets
        seeds = _filled(seeds_of_steps(batch.seeds, 1)[0], self.group)

        def alone(x: Inputs, y: Tensor) -> Batch:
            return Batch(each(x, lambda values: values.unsqueeze(0)), y.unsqueeze(0), None)

        def gradient(params: Params, x: Inputs, y: Tensor, seed: Tensor) -> Params:
            def loss(params: Params) -> Any:
                with OwnFunctions(seed):
                    return self._loss(params, alone(x, y))

            return cast("Params", grad(loss)(params))

        if self._plain and not shown.local.weight_decay:
            grads = vmap(gradient, in_dims=(None, 0, 0, 0))(shown.anchor, inputs, targets, seeds)
            parts = [grads[n][:count, ..., None].detach().flatten(1) for n in self._layout.names]
            return Gradients(parts, -shown.step_size(1))

        def update(x: Inputs, y: Tensor, seed: Tensor) -> Tensor:
            with OwnFunctions(seed):
                return self._update(alone(x, y), shown)

        rows = vmap(update)(inputs, targets, seeds)
        # However a method computes, the updates of all examples have one type.
        return Gradients([rows[:count].detach().to(type_of_updates(shown.anchor))], 1.0)

    def _update(self, batch: Batch, shown: Broadcast) -> Tensor:
        """Return the update [d] that the method makes of one step."""
        rate, decay = shown.step_size(1), shown.local.weight_decay
        context = shown.context(rate, 1)
        anchor = context.anchor
        grads = self.method.gradient(self._loss, anchor, batch, context)
        moved = {n: anchor[n] - rate * (g + decay * anchor[n]) for n, g in grads.items()}
        moved = self.method.after_step(moved, context)
        delta = self._layout.flatten(moved) - self._layout.flatten(anchor)
        return self.method.local_update(delta, None, context)


def _filled(values: Tensor, size: int) -> Tensor:
    """Return values of some examples, then zeros."""
    if len(values) == size:
        return values
    return torch.cat([values, values.new_zeros(size - len(values), *values.shape[1:])])
