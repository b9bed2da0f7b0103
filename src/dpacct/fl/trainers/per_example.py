"""Gradients of single examples, many at once: `torch.func` over examples that share parameters.

All examples of a round start at the same parameters, so these are not copied: a layer's output for
many examples is one product, and only its gradients are kept apart. One step for each example.

Rule: what is computed for one example has the same form whatever the others hold. Groups have a
constant size, filled up with zeros, and run on one thread; `dpacct.fl.trainers.groups` says why.
`dpacct.fl.trainers.example_chooser` tries every place in a group before it is used.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.func import grad, vmap

from dpacct.fl.clients import ClientData
from dpacct.fl.guards.watch import Watch
from dpacct.fl.layout import Layout, Params, State
from dpacct.fl.local.batches import Batch
from dpacct.fl.local.losses import LocalLoss
from dpacct.fl.methods.protocol import Method, overrides
from dpacct.fl.tensors import one_thread
from dpacct.fl.trainers.dropout import OwnDropout, seeds_of_steps
from dpacct.fl.trainers.isolation import Isolation, suspects
from dpacct.fl.trainers.kept_apart import KeptApart
from dpacct.fl.trainers.lots import Lot, as_lot
from dpacct.fl.trainers.one_way import OneWay
from dpacct.fl.trainers.recording import Compute, Group, RecordedGroups
from dpacct.fl.trainers.tasks import Broadcast, Task

OneExample = Callable[[Tensor, Tensor, Tensor], Any]


@dataclass(frozen=True, slots=True, eq=False)
class Updates:
    """What was computed for a group of examples.

    Attributes:
        parts: tensors [size, ...] that lie beside each other in an update.
        count: the examples; what is behind them is nobody's.
    """

    parts: list[Tensor]
    count: int

    def write(self, start: int, rows: Tensor) -> None:
        """The updates from number ``start`` on, into rows [n, d]."""
        parts = [part[start : start + len(rows)].reshape(len(rows), -1) for part in self.parts]
        torch.cat(parts, dim=1, out=rows)


class ExampleTrainer:
    """One step for each example, in groups of a constant size.

    Args:
        method, loss, layout: of the run; the loss differentiates with `torch.func`.
        size: of a group, a public number.
    """

    def __init__(self, method: Method, loss: LocalLoss, layout: Layout, size: int) -> None:
        self.size = size
        self._method = method
        self._loss = loss
        self._layout = layout
        self._projects = overrides(method, "after_step")
        changes = ("gradient", "after_step", "local_update")
        self._plain = not any(overrides(method, name) for name in changes)
        self._recorder = RecordedGroups()

    def admit(self, data: ClientData) -> bool:
        """See `Trainer`: every example."""
        del data
        return True

    def train(self, tasks: Sequence[Task], broadcast: Broadcast) -> Tensor:
        """See `Trainer`; an example that has failed has a row of NaN, nobody one of zeros."""
        lot = as_lot(tasks)
        like = next(iter(broadcast.anchor.values()))
        rows = like.new_empty(len(lot), self._layout.size)
        for start in range(0, len(lot), self.size):
            updates = self.group(lot[start : start + self.size], broadcast)
            updates.write(0, rows[start : start + self.size])
            del updates
        rows[lot.failed.to(rows.device)] = torch.nan
        for place, task in enumerate([] if isinstance(tasks, Lot) else tasks):
            if not task.failed and not task.plan.steps:
                rows[place] = 0.0
        return rows

    def group(self, lot: Lot, broadcast: Broadcast) -> Updates:
        """The updates of one group, at most `size` examples, as they were computed.

        One group after the other: threads would share the model, in which `torch.func` swaps
        parameters, and would not share modes such as autocast.
        """
        device = next(iter(broadcast.anchor.values())).device
        with one_thread(device):
            part = self._filled(lot)
            found = self._replayed(part, broadcast)
            if found is None:
                isolation = Isolation(broadcast, self._loss, self._method)
                with isolation as shown:
                    found = self._computed(part, shown, isolation.watch)
        if isinstance(found, Tensor):
            return Updates([found.detach()], len(lot))
        return Updates([found[name].detach() for name in self._layout.names], len(lot))

    def _replayed(self, part: Lot, broadcast: Broadcast) -> Params | None:
        """By a recording, which calls no code that could keep anything; None without one."""
        replica = self._loss.replica
        if not self._recorder.records or replica.seal().broken() is not None:
            return None
        watch = replica.noted(suspects(self._method))
        if watch is None:
            return None
        group = Group.of(broadcast.anchor, part.data, seeds_of_steps(part.seeds, 1)[0])
        return self._recorder.replay(self._basis(watch, broadcast.step_size(1)), group)

    def _computed(self, part: Lot, shown: Broadcast, watch: Watch) -> Tensor | Params:
        """For each example a dictionary of tensors, or a vector [d]."""
        rate, decay = shown.step_size(1), shown.local.weight_decay
        data, seeds = part.data, seeds_of_steps(part.seeds, 1)[0]
        if not self._plain or decay:
            with OneWay() as way:
                step = vmap(self._any_step(way, shown, decay))
                return cast("Tensor", step(data.inputs, data.targets, seeds))
        group = Group.of(shown.anchor, data, seeds)
        steps = self._plain_steps(rate)
        constants = [*self._loss.replica.tensors.values(), *watch.tensors]
        return self._recorder.compute(steps, self._basis(watch, rate), group, constants)

    def _basis(self, watch: Watch, rate: float) -> tuple[object, ...]:
        """What a group is computed by: classes of layers can be changed, and are not watched."""
        return (watch, rate, *(type(layer).forward for layer in self._loss.model.modules()))

    def remember(
        self, tasks: Sequence[Task], rows: Tensor, broadcast: Broadcast
    ) -> list[State] | None:
        """See `Trainer`: examples have no memory."""
        del tasks, rows, broadcast

    def _filled(self, part: Lot) -> Lot:
        """As many as a group has."""
        missing = self.size - len(part)
        if not missing:
            return part
        inputs, targets = (
            torch.cat([values, values.new_zeros(missing, *values.shape[1:])])
            for values in (part.data.inputs, part.data.targets)
        )
        seeds = torch.cat([part.seeds, part.seeds.new_zeros(missing)])
        return Lot(ClientData(inputs, targets), seeds, part.failed)

    def _plain_steps(self, rate: float) -> Compute:
        """-rate times the gradient: the gradient of -rate times the loss, which saves a pass."""
        loss = self._loss

        def steps(anchor: Params, inputs: Tensor, targets: Tensor, seeds: Tensor) -> Params:
            def one(x: Tensor, y: Tensor, seed: Tensor) -> Params:
                def scaled(params: Params) -> Tensor:
                    with KeptApart(way), OwnDropout(seed):
                        return -rate * loss(params, _alone(x, y))

                return cast("Params", grad(scaled)(anchor))

            with OneWay() as way:
                return vmap(one)(inputs, targets, seeds)

        return steps

    def _any_step(self, way: OneWay, shown: Broadcast, decay: float) -> OneExample:
        """What the method makes of one step, a vector [d]."""
        rate = shown.step_size(1)
        method, loss, layout, projects = self._method, self._loss, self._layout, self._projects
        start = layout.flatten(shown.anchor)

        def one(x: Tensor, y: Tensor, seed: Tensor) -> Tensor:
            with KeptApart(way):
                context = shown.context(rate, 1)
                with OwnDropout(seed):
                    found = method.gradient(loss, context.anchor, _alone(x, y), context)
                anchor = context.anchor
                move = {n: -rate * (g + decay * anchor[n]) for n, g in found.items()}
                if projects:
                    moved = {name: anchor[name] + step for name, step in move.items()}
                    delta = layout.flatten(method.after_step(moved, context)) - start
                else:
                    delta = layout.flatten(move)
                return method.local_update(delta, None, context)

        return one


def _alone(x: Tensor, y: Tensor) -> Batch:
    return Batch(x.unsqueeze(0), y.unsqueeze(0), None)
