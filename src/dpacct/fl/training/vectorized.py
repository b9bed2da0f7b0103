"""Local training of many clients at once: vmap of one local step over stacked parameters [c, ...].

The result is that of the sequential trainer up to the order of floating-point operations. Three
rules keep a client's update independent of the other clients (rounding is discussed in
docs/explanation/assumptions.md):

Rule 1: groups have one constant size. Missing clients are empty clients with rows that are dropped.
Rule 2: batches are padded to a width that is public or follows from the client's own number of
examples. Clients of one width share a group. Padding repeats the client's own examples with weight
zero. A client that has taken all its steps stays exactly the same while others go on.
Rule 3: the order of its examples and its random numbers follow from the client's own seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate
from typing import Any, NamedTuple, TypeVar, TypeVarTuple, cast

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from dpacct.fl.clients import Inputs, each, joined
from dpacct.fl.layout import Layout, Params, State
from dpacct.fl.local.losses import LocalLoss
from dpacct.fl.local.sgd import SGD, Batch, padded_width, shortened
from dpacct.fl.methods.protocol import Context, Method, overrides
from dpacct.fl.tensors import listed, numbers
from dpacct.fl.training.own_functions import OwnFunctions, seeds_of_steps
from dpacct.fl.training.tasks import NO_STEPS, Broadcast, Task, Trainer

Made = TypeVar("Made")
Own = TypeVarTuple("Own")
GROUP = 32


class VectorizedTrainer(Trainer):
    """A `Trainer` of groups of a public number of clients.

    It needs a model and a method that `torch.func` can batch, and a loss that differentiates so.
    """

    def __init__(self, method: Method, loss: LocalLoss, layout: Layout, group: int = GROUP) -> None:
        super().__init__(method, loss, layout)
        self.group = group
        self._projects = overrides(method, "after_step")
        self._steers = overrides(method, "gradient")

    def train(self, tasks: Sequence[Task], broadcast: Broadcast) -> Tensor:
        """See `Trainer`."""
        rows = self._no_updates(len(tasks), broadcast)
        with self._isolation.around(broadcast) as shown:
            for places, group in self._groups(tasks, shown.local):
                updates = self._train_group(group, shown)[-len(places) :].to(rows.dtype)
                put_rows(rows, places, updates)
        return rows

    def _groups(self, tasks: Sequence[Task], local: SGD) -> Iterator[tuple[list[int], list[Task]]]:
        """Yield the places of clients of one width, and these clients, filled up. Rules 1, 2.

        Clients with about equally many steps share a group, for which the longest decides. Those
        with fewer steps come first, and empty ones before them.
        """
        widths: dict[int, list[int]] = {}
        for place, task in enumerate(tasks):
            if not task.failed:
                used = len(task.data) if task.plan.steps else 0
                widths.setdefault(padded_width(used, local), []).append(place)
        for places in widths.values():
            places.sort(key=lambda place: tasks[place].plan.steps)
            for first in range(0, len(places), self.group):
                part = places[first : first + self.group]
                yield part, self._filled([tasks[place] for place in part])

    def _filled(self, tasks: Sequence[Task]) -> list[Task]:
        """Return clients filled up with empty ones to the size of a group. Rule 1."""
        like = tasks[0]
        data = like.data.map(lambda values: values[:0])
        state = like.state and {n: torch.zeros_like(v) for n, v in like.state.items()}
        return [*[Task(data, NO_STEPS, state)] * (self.group - len(tasks)), *tasks]

    def _train_group(self, tasks: Sequence[Task], shown: Broadcast) -> Tensor:
        """Return the updates [c, d] of a group."""
        params = {n: v.expand(len(tasks), *v.shape).clone() for n, v in shown.anchor.items()}
        if any(task.plan.steps for task in tasks):
            params = self._descend(params, tasks, shown)
        rows = self._layout.flatten(params).sub_(self._layout.flatten(shown.anchor))
        if self._transforms:
            # An update that is the same for all clients comes as one row seen several times.
            rows = _separately(
                lambda own, row: self.method.local_update(row, own.client_state, own),
                _Known.of(tasks, shown, rows),
                shown,
                rows,
            ).contiguous()
        return rows.detach()

    def _gradients(
        self, params: Params, inputs: Inputs, targets: Tensor, weights: Tensor, seeds: Tensor
    ) -> Params:
        """Return the gradients of all clients by one backward pass of the sum of their losses.

        No loss depends on another client's parameters, so the gradient of the sum is each one's
        own. This saves half the time that `torch.func.grad` takes for a small model.

        Args:
            params: [c, ...]. inputs, targets: [c, b, ...]. weights: [c, b]. seeds: int64 [c].
        """
        leaves = {name: value.detach().requires_grad_() for name, value in params.items()}

        def outputs(own: Params, x: Inputs, seed: Tensor) -> Tensor:
            with OwnFunctions(seed, own_weights=True):
                return self._loss.outputs(own, x)

        def loss(own: Params, x: Inputs, y: Tensor, weight: Tensor, seed: Tensor) -> Tensor:
            with OwnFunctions(seed, own_weights=True):
                return self._loss(own, Batch(x, y, weight))

        if self._loss.takes_classes(targets):
            scores = vmap(outputs)(leaves, inputs, seeds)
            losses = self._loss.cross_entropies(scores, targets, weights)
        else:
            losses = vmap(loss)(leaves, inputs, targets, weights, seeds)
        if not losses.requires_grad:
            return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
        grads = torch.autograd.grad(losses.sum(), list(leaves.values()), materialize_grads=True)
        return dict(zip(leaves, grads, strict=True))

    def _descend(self, params: Params, tasks: Sequence[Task], shown: Broadcast) -> Params:
        """Return the stacked parameters after the local steps of all clients."""
        local, like = shown.local, next(iter(params.values()))
        known = _Known.of(tasks, shown, like)
        group, seeds = _GroupData.of(tasks, local, like), known.seeds
        rate, limit = 1.0 if local.total_lr else shown.step_size(0), local.max_grad_norm
        optimizer: State = {}
        for step, seed in enumerate(seeds_of_steps(seeds, len(group.rows))):
            rows = group.rows[step]
            inputs = each(group.inputs, partial(_taken, rows=rows))
            batch = (inputs, _taken(group.targets, rows), group.weights[step])
            if self._steers:
                grads = _separately(self._direction, known, shown, params, *batch, seed)
            else:
                grads = self._gradients(params, *batch, seed)
            if limit is not None:
                grads = vmap(partial(shortened, limit=limit))(grads)
            grads, optimizer = local.direction(grads, params, optimizer)
            if local.total_lr:
                grads = {n: g * _like(known.rates, g) for n, g in grads.items()}
            through = group.through[step]
            if not (self._steers or self._projects):
                # No method holds these tensors. Rule 2: those of clients that are through stay.
                for name, value in params.items():
                    value[through:].sub_(grads[name][through:], alpha=rate)
                continue
            moved = {n: v.sub(grads[n], alpha=rate) for n, v in params.items()}
            if self._projects:
                moved = _separately(
                    lambda own, point: self.method.after_step(point, own), known, shown, moved
                )
            # The old value itself: zero times a gradient that overflowed is no number.
            params = {n: torch.cat([params[n][:through], v[through:]]) for n, v in moved.items()}
        return params

    def _direction(
        self, own: Context, params: Params, x: Inputs, y: Tensor, weights: Tensor, seed: Tensor
    ) -> Params:
        """Return the direction of `Method.gradient` of one client."""
        with OwnFunctions(seed):
            return self.method.gradient(self._loss, params, Batch(x, y, weights), own)


class _Known(NamedTuple):
    """Learning rates [c], numbers of steps [c], memories [c, ...] and seeds [c] of a group."""

    rates: Tensor
    counts: Tensor
    memories: State | None
    seeds: Tensor

    @classmethod
    def of(cls, tasks: Sequence[Task], shown: Broadcast, like: Tensor) -> _Known:
        steps = [task.plan.steps for task in tasks]
        rates = listed([shown.step_size(n) for n in steps], like.device, like.dtype)
        states = [cast("State", task.state) for task in tasks]
        memories = tasks[0].state and {n: torch.stack([s[n] for s in states]) for n in states[0]}
        # One upload for both.
        counts, seeds = listed([*steps, *(t.seed or 0 for t in tasks)], like.device).view(2, -1)
        return cls(rates, counts, memories, seeds)

    @property
    def dims(self) -> tuple[int, int, int | None]:
        return (0, 0, None if self.memories is None else 0)


def _separately(
    call: Callable[[Context, *Own], Made], known: _Known, shown: Broadcast, *values: *Own
) -> Made:
    """Return ``call(context, *own)`` for each client of a group separately.

    ``values`` are [c, ...], and ``own`` the part of one client.
    """

    def one(own: tuple[*Own], *of: Any) -> Made:
        return call(shown.context(*of), *own)

    return vmap(one, in_dims=(0, *known.dims))(values, *known[:3])


class _GroupData(NamedTuple):
    """The data of the clients of a group behind each other, and the rows of each step.

    Attributes:
        inputs: [n, ...], in each of their tensors. targets: [n, ...].
        rows: int64 [steps, c, width]. weights: [steps, c, width] as in `Batch`.
        through: for each step, how many of the first clients have taken all their steps before.
    """

    inputs: Inputs
    targets: Tensor
    rows: Tensor
    weights: Tensor
    through: list[int]

    @classmethod
    def of(cls, tasks: Sequence[Task], local: SGD, like: Tensor) -> _GroupData:
        """Gather the data of clients, at least one of which takes a step. Rule 2."""
        working = [task for task in tasks if task.plan.steps]
        first = working[0].data
        nothing = first.map(lambda values: values.new_zeros(1, *values.shape[1:]))
        parts = [(task.data if task.plan.steps else nothing, task.plan) for task in tasks]
        starts = list(accumulate((len(data) for data, _ in parts), initial=0))
        width = padded_width(len(first), local)
        width = max(width, *(plan.indices.shape[1] for _, plan in parts))
        # Padding is the client's own first example: with weight zero, the data of another client
        # would still reach it if they are infinite.
        missing = [width - plan.indices.shape[1] for _, plan in parts]
        rows = pad_sequence(
            [
                functional.pad(plan.indices, (0, none)) if none else plan.indices
                for (_, plan), none in zip(parts, missing, strict=True)
            ]
        )
        rows += torch.tensor(starts[:-1]).unsqueeze(1)
        counts = pad_sequence([plan.counts for _, plan in parts])
        # In double precision until the model's is known: float32 thirds are off by 1e-8.
        inside = (torch.arange(width) < counts.unsqueeze(-1)).double()
        weights = inside / counts.clamp(min=1).unsqueeze(-1)
        # One upload each for a whole group.
        weights = weights.to(like.dtype).to(like.device)
        inputs = joined([data.inputs for data, _ in parts], torch.cat)
        return cls(
            each(inputs, lambda values: values.to(like.device)),
            torch.cat([data.targets for data, _ in parts]).to(like.device),
            rows.to(like.device),
            weights,
            numbers((counts == 0).sum(dim=1)),
        )


def put_rows(rows: Tensor, places: list[int], values: Tensor) -> None:
    """Write rows to their places, neighbors in order without an index on the device."""
    first, end = places[0], places[0] + len(places)
    if places == list(range(first, end)):
        rows[first:end].copy_(values)
    else:
        rows[listed(places, rows.device)] = values


def _taken(values: Tensor, rows: Tensor) -> Tensor:
    """Return values [c, b, ...] of rows [c, b], which is faster than an index of two dimensions."""
    return values.index_select(0, rows.flatten()).view(*rows.shape, *values.shape[1:])


def _like(values: Tensor, other: Tensor) -> Tensor:
    """Return [c] with as many trailing dimensions of one as ``other`` [c, ...] has."""
    return values.reshape(-1, *([1] * (other.ndim - 1)))
