"""Gradients of single examples, many at once: `torch.func` over examples that share parameters.

All examples of a round start at the same parameters, so these are not copied: a layer's output for
many examples is one product, and only its gradients are kept apart. One step for each example.

Rule: what is computed for one example has the same bits whatever the others hold, and however many
they are. Groups have one of few sizes, filled up with zeros, and each runs on one thread;
`dpacct.fl.trainers.groups` says why. `dpacct.fl.trainers.example_chooser` tries every place in a
group of each size before one is used.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.func import grad, vmap

from dpacct.fl.clients import ClientData
from dpacct.fl.guards.watch import Watch
from dpacct.fl.layout import Layout, Params, State, type_of_updates
from dpacct.fl.local.batches import Batch
from dpacct.fl.local.losses import LocalLoss
from dpacct.fl.methods.protocol import Method, overrides
from dpacct.fl.tensors import one_thread
from dpacct.fl.trainers.at_once import can_share
from dpacct.fl.trainers.dropout import OwnDropout, seeds_of_steps
from dpacct.fl.trainers.isolation import Isolation, suspects
from dpacct.fl.trainers.kept_apart import KeptApart
from dpacct.fl.trainers.lots import Lot, as_lot
from dpacct.fl.trainers.one_way import OneWay
from dpacct.fl.trainers.recording import Compute, Group, RecordedGroups
from dpacct.fl.trainers.sizes import Sizes
from dpacct.fl.trainers.tasks import Broadcast, Task

OneExample = Callable[[Tensor, Tensor, Tensor], Any]


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What was computed for some examples.

    Attributes:
        tensors: [size, ...], which lie beside each other in an update.
        count: the examples; what is behind them is nobody's.
    """

    tensors: list[Tensor]
    count: int


@dataclass(frozen=True, slots=True, eq=False)
class Updates:
    """What was computed for a group of examples.

    Attributes:
        parts: in their order. dtype: of the rows that are made of them.
    """

    parts: list[Part]
    dtype: torch.dtype

    def __len__(self) -> int:
        return sum(part.count for part in self.parts)

    def write(self, start: int, rows: Tensor) -> None:
        """The updates from number ``start`` on, into rows [n, d]."""
        done = 0
        for part in self.parts:
            few = min(part.count - start, len(rows) - done)
            if few > 0:
                shown = [one[start : start + few].reshape(few, -1) for one in part.tensors]
                torch.cat(shown, dim=1, out=rows[done : done + few])
                done += few
            start = max(0, start - part.count)

    def pieces(self, start: int, stop: int, few: int) -> Iterator[Tensor]:
        """The updates from number ``start`` up to ``stop``, rows [c, d] with c at most ``few``.

        They are made as they are asked for, so that they are summed while a cache holds them.
        """
        tensors = self.parts[0].tensors
        size = sum(one[0].numel() for one in tensors)
        for first in range(start, stop, few):
            rows = tensors[0].new_empty(min(few, stop - first), size, dtype=self.dtype)
            self.write(first, rows)
            yield rows


class ExampleTrainer:
    """One step for each example, in groups of few sizes.

    Args:
        method, loss, layout: of the run; the loss differentiates with `torch.func`.
        sizes: of a group, public numbers.
    """

    def __init__(self, method: Method, loss: LocalLoss, layout: Layout, sizes: Sizes) -> None:
        self.sizes = sizes
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
        rows = like.new_empty(len(lot), self._layout.size, dtype=type_of_updates(broadcast.anchor))
        start = 0
        for part in lot.cut(self.sizes.groups(len(lot))):
            updates = self.group(part, broadcast)
            updates.write(0, rows[start : start + len(part)])
            del updates
            start += len(part)
        rows[lot.failed.to(rows.device)] = torch.nan
        for place, task in enumerate([] if isinstance(tasks, Lot) else tasks):
            if not task.failed and not task.plan.steps:
                rows[place] = 0.0
        return rows

    def group(self, lot: Lot, broadcast: Broadcast, threads: int = 1) -> Updates:
        """The updates of one group, at most the largest size, as they were computed.

        By `torch.func` one group after the other: threads would share the model, in which
        parameters are swapped, and would not share modes such as autocast. A replay calls no
        model, and may be split.

        Args:
            lot: the examples. broadcast: what they are told.
            threads: of torch, where it was called from; what is computed does not depend on them.
        """
        like = next(iter(broadcast.anchor.values()))
        with one_thread(like.device):
            parts = list(lot.cut(self._lengths(len(lot), threads)))
            found = self._replayed(parts, broadcast)
            if found is None:
                isolation = Isolation(broadcast, self._loss, self._method)
                with isolation as shown:
                    found = [self._computed(lot, shown, isolation.watch, list(map(len, parts)))]
                parts = [lot]
        made = [self._part(own, len(part)) for own, part in zip(found, parts, strict=True)]
        return Updates(made, type_of_updates(broadcast.anchor))

    def _lengths(self, count: int, threads: int) -> list[int]:
        """Of the parts that are replayed at once."""
        if threads > 1 and can_share():
            lengths = self.sizes.parts(count, threads)
            if all(self._recorder.long(self.sizes.holding(length)) for length in lengths):
                return lengths
        return [count]

    def _part(self, found: Params | Tensor, count: int) -> Part:
        if isinstance(found, Tensor):
            return Part([found.detach()], count)
        return Part([found[name].detach() for name in self._layout.names], count)

    def _replayed(self, parts: Sequence[Lot], broadcast: Broadcast) -> Sequence[Params] | None:
        """By recordings, which call no code that could keep anything; None without one."""
        replica = self._loss.replica
        if not self._recorder.records or replica.seal().broken() is not None:
            return None
        watch = replica.noted(suspects(self._method))
        if watch is None:
            return None
        groups = [self._group_of(part, broadcast) for part in parts]
        return self._recorder.replay(self._basis(watch, broadcast.step_size(1)), groups)

    def _group_of(self, lot: Lot, shown: Broadcast) -> Group:
        """With as many as a group has."""
        size = self.sizes.holding(len(lot))
        inputs, targets = _filled(lot.data.inputs, size), _filled(lot.data.targets, size)
        seeds = _filled(seeds_of_steps(lot.seeds, 1)[0], size)
        return Group(shown.anchor, inputs, targets, seeds)

    def _computed(
        self, lot: Lot, shown: Broadcast, watch: Watch, lengths: Sequence[int]
    ) -> Tensor | Params:
        """For each example a dictionary of tensors, or a vector [d].

        Args:
            lot, shown: as they are. watch: over the model.
            lengths: of the parts that are to be replayed next time.
        """
        rate, decay = shown.step_size(1), shown.local.weight_decay
        group = self._group_of(lot, shown)
        if not self._plain or decay:
            with OneWay() as way:
                step = vmap(self._any_step(way, shown, decay))
                return cast("Tensor", step(group.inputs, group.targets, group.seeds))
        steps = self._plain_steps(rate)
        constants = [*self._loss.replica.tensors.values(), *watch.tensors]
        sizes = [self.sizes.holding(length) for length in lengths]
        return self._recorder.compute(steps, self._basis(watch, rate), group, constants, sizes)

    def _basis(self, watch: Watch, rate: float) -> tuple[object, ...]:
        """What a group is computed by: classes of layers can be changed, and are not watched."""
        return (watch, rate, *(type(layer).forward for layer in self._loss.model.modules()))

    def remember(
        self, tasks: Sequence[Task], rows: Tensor, broadcast: Broadcast
    ) -> list[State] | None:
        """See `Trainer`: examples have no memory."""
        del tasks, rows, broadcast

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


def _filled(values: Tensor, size: int) -> Tensor:
    """Values of some examples, then zeros, in memory one behind the other whoever they are."""
    filled = values.new_empty(size, *values.shape[1:])
    if len(values) == size and values.stride() == filled.stride():
        return values
    filled[: len(values)] = values
    filled[len(values) :] = 0
    return filled


def _alone(x: Tensor, y: Tensor) -> Batch:
    return Batch(x.unsqueeze(0), y.unsqueeze(0), None)
