"""Local training of many clients side by side: one batched computation instead of a loop.

Parameters get a leading dimension c; gradients of all clients come from one `torch.func.vmap`.
Ragged batches are padded and weighted, clients that have finished stand still, so that the
result is that of the sequential path up to the order of floating-point operations.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.func import vmap
from torch.nn import functional

from dpacct.fl.batches import Batch, BatchPlan, Steps, align, padded_width
from dpacct.fl.clients import ClientData
from dpacct.fl.layout import Layout, Params, State
from dpacct.fl.linear_layers import WeightMajorLinear
from dpacct.fl.local import SGD
from dpacct.fl.losses import LocalLoss
from dpacct.fl.methods.protocol import Method, overrides
from dpacct.fl.tensors import one_thread, unfold_first
from dpacct.fl.training import Broadcast, Task

# Clients side by side are a multiple of this: vector loops then have no tail of single elements,
# in which some functions round otherwise, on any processor and for any shape.
LANES = 32


class VectorizedTrainer:
    """All clients of a chunk at once. Needs a model and a method that `torch.func` can batch."""

    def __init__(
        self,
        method: Method,
        loss: LocalLoss,
        layout: Layout,
        *,
        clients: int = LANES,
        widest: int | None = None,
    ) -> None:
        self._clients = clients
        self._widest = math.inf if widest is None else widest
        self._method = method
        self._loss = loss
        self._layout = layout
        self._projects = overrides(method, "after_step")
        self._transforms = overrides(method, "local_update")
        self._steers = overrides(method, "gradient")

    def train(self, tasks: Sequence[Task], broadcast: Broadcast) -> Tensor:
        """See `Trainer`."""
        start = self._layout.flatten(broadcast.anchor)
        rows = start.new_empty(len(tasks), self._layout.size)
        with one_thread(start.device):
            for group in self._groups(tasks, broadcast.local):
                found = self._train_group(group, start, broadcast)
                for lane, place in enumerate(group.places):
                    rows[place] = found[lane]
        return rows

    def _train_group(self, group: Group, start: Tensor, broadcast: Broadcast) -> Tensor:
        tasks = group.tasks
        params = {
            name: value.unsqueeze(0).repeat(len(tasks), *([1] * value.ndim))
            for name, value in broadcast.anchor.items()
        }
        if any(task.plan.steps for task in tasks):
            params = self._descend(params, group, broadcast)
        deltas = self._layout.flatten(params).sub_(start)
        if not self._transforms:
            return deltas
        update = self._method.local_update
        return self._map_rows(update, tasks, deltas, broadcast, delta_first=True)

    def remember(
        self, tasks: Sequence[Task], rows: Tensor, broadcast: Broadcast
    ) -> list[State] | None:
        """See `Trainer`."""
        if tasks[0].state is None:
            return None
        kept: dict[int, State] = {}
        change = self._method.client_state
        with one_thread(rows.device):
            for group in self._groups(tasks, broadcast.local):
                own = rows.new_zeros(len(group.tasks), rows.shape[1])
                own[: len(group.places)] = rows[list(group.places)]
                states = self._map_rows(change, group.tasks, own, broadcast, delta_first=False)
                for lane, place in enumerate(group.places):
                    kept[place] = {n: v[lane].clone() for n, v in cast("State", states).items()}
        return [kept[place] for place in range(len(tasks))]

    def _groups(self, tasks: Sequence[Task], local: SGD) -> list[Group]:
        """The tasks in groups of one padded width, each filled up to a constant number."""
        widths: dict[int, list[int]] = {}
        for place, task in enumerate(tasks):
            widths.setdefault(padded_width(len(task.data), local), []).append(place)
        groups: list[Group] = []
        for width, places in widths.items():
            count = self._clients if width <= self._widest else 1
            for at in range(0, len(places), count):
                part = places[at : at + count]
                nobody = _nobody(tasks[part[0]])
                filled = [tasks[place] for place in part] + [nobody] * (count - len(part))
                groups.append(Group(part, filled, width))
        return groups

    def _map_rows(
        self,
        change: Callable[..., Any],
        tasks: Sequence[Task],
        rows: Tensor,
        broadcast: Broadcast,
        *,
        delta_first: bool,
    ) -> Any:
        """A pure per-client function applied to every row under vmap, so that rows cannot mix."""
        states = _stack_states([task.state for task in tasks])
        steps = [task.plan.steps for task in tasks]
        rates = rows.new_tensor([broadcast.step_size(count) for count in steps])
        counts = torch.tensor(steps, device=rows.device)

        def one(row: Tensor, state: State | None, lr: Tensor, count: Tensor) -> Any:
            context = broadcast.context(lr, count)
            return change(row, state, context) if delta_first else change(state, row, context)

        in_dims = (0, None if states is None else 0, 0, 0)
        return vmap(one, in_dims=in_dims, randomness="different")(rows, states, rates, counts)

    def _descend(self, params: Params, group: Group, broadcast: Broadcast) -> Params:
        local, tasks = broadcast.local, group.tasks
        like = next(iter(params.values()))
        device = like.device
        drawn = [_drawn(task) for task in tasks]
        inputs = torch.cat([data.inputs for data, _ in drawn])
        targets = torch.cat([data.targets for data, _ in drawn])
        plan = align([plan for _, plan in drawn], [len(data) for data, _ in drawn], group.width)
        steps = [task.plan.steps for task in tasks]
        rates = like.new_tensor([broadcast.step_size(count) for count in steps])
        counts = torch.tensor(steps, device=device)
        moving = _to(plan, like)
        momenta: Params = {}
        for step in range(len(plan.rows)):
            rows = moving.rows[step]
            chosen = rows.flatten()
            x = unfold_first(inputs.index_select(0, chosen), tuple(rows.shape))
            y = unfold_first(targets.index_select(0, chosen), tuple(rows.shape))
            grads = self._gradients(params, x, y, moving.weights[step], rates, counts, broadcast)
            if local.weight_decay:
                for name, value in params.items():
                    grads[name].add_(value, alpha=local.weight_decay)
            if local.momentum:
                grads = _accumulate(momenta, grads, local.momentum)
            for name, value in params.items():
                move = grads[name] * _like(rates, value)
                if not plan.all_active[step]:
                    # Zero times a gradient that overflowed would not stand still.
                    move = torch.where(_like(moving.active[step], value), move, 0.0)
                value.sub_(move)
            if self._projects:
                params = self._project(params, moving.active[step], rates, counts, broadcast)
        return params

    def _gradients(
        self,
        params: Params,
        inputs: Tensor,
        targets: Tensor,
        weights: Tensor,
        rates: Tensor,
        counts: Tensor,
        broadcast: Broadcast,
    ) -> Params:
        def one(
            own: Params, x: Tensor, y: Tensor, weight: Tensor, lr: Tensor, count: Tensor
        ) -> Params:
            context = broadcast.context(lr, count)
            return self._method.gradient(self._loss, own, Batch(x, y, weight), context)

        if not self._steers:
            return self.plain_gradients(params, inputs, targets, weights)
        in_dims = (0, 0, 0, 0, 0, 0)
        batched = vmap(one, in_dims=in_dims, randomness="different")
        return dict(batched(params, inputs, targets, weights, rates, counts))

    def plain_gradients(
        self, params: Params, inputs: Tensor, targets: Tensor, weights: Tensor | None
    ) -> Params:
        """Gradients of all clients by one backward pass of the sum of their losses.

        Args:
            params: [c, ...]. inputs, targets: [c, batch, ...]. weights: [c, batch], or equal ones.

        No loss depends on another client's parameters, so the gradient of the sum is each one's
        own. It saves the interpreter's share of `torch.func.grad`: half the time of small models.
        """
        leaves = {name: value.detach().requires_grad_() for name, value in params.items()}
        if weights is None:
            like = next(iter(params.values()))
            count, width = inputs.shape[:2]
            weights = like.new_full((count, width), 1 / width)
        total = self._total_loss(leaves, inputs, targets, weights)
        if not total.requires_grad:
            return {name: torch.zeros_like(leaf) for name, leaf in leaves.items()}
        grads = torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)
        return dict(zip(leaves, grads, strict=True))

    def _total_loss(
        self, params: Params, inputs: Tensor, targets: Tensor, weights: Tensor
    ) -> Tensor:
        """Sum of the clients' mean losses."""
        if self._loss.is_cross_entropy and not targets.is_floating_point():
            outputs = vmap(self._outputs, randomness="different")(params, inputs)
            if outputs.ndim == targets.ndim + 1:
                return self._cross_entropy(outputs, targets, weights).sum()

        def one(own: Params, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
            with WeightMajorLinear():
                return self._loss(own, Batch(x, y, weight))

        return vmap(one, randomness="different")(params, inputs, targets, weights).sum()

    def _cross_entropy(self, outputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
        """All examples of all clients at once: vmap would take this loss to pieces.

        Args:
            outputs: [c, b, classes, ...]. targets: [c, b, ...]. weights: [c, b].
        """
        ignored = self._loss.ignored_target
        wide = outputs if outputs.dtype == torch.float64 else outputs.float()
        each = functional.cross_entropy(
            wide.flatten(0, 1), targets.flatten(0, 1), reduction="none", ignore_index=ignored
        ).view_as(targets)
        counted = weights.reshape(*weights.shape, *[1] * (targets.ndim - 2)) * (targets != ignored)
        tiny = torch.finfo(counted.dtype).tiny
        whole = counted.flatten(1).sum(dim=1).clamp(min=tiny)
        return (each * counted).flatten(1).sum(dim=1) / whole

    def _outputs(self, own: Params, inputs: Tensor) -> Tensor:
        with WeightMajorLinear():
            return self._loss.outputs(own, inputs)

    def _project(
        self,
        params: Params,
        active: Tensor,
        rates: Tensor,
        counts: Tensor,
        broadcast: Broadcast,
    ) -> Params:
        def one(own: Params, lr: Tensor, count: Tensor) -> Params:
            return self._method.after_step(own, broadcast.context(lr, count))

        moved = vmap(one, randomness="different")(params, rates, counts)
        return {
            name: torch.where(_like(active, value), moved[name], value)
            for name, value in params.items()
        }


class Group(NamedTuple):
    """Clients that train side by side.

    Attributes:
        places: of the first ones in the chunk. tasks: theirs, then those of nobody.
        width: to which batches are padded.
    """

    places: list[int]
    tasks: list[Task]
    width: int


def _nobody(task: Task) -> Task:
    """A client like this one without examples and with an empty memory."""
    state = task.state
    return Task(
        ClientData(task.data.inputs[:0], task.data.targets[:0]),
        BatchPlan(torch.zeros(0, 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64)),
        None if state is None else {name: torch.zeros_like(v) for name, v in state.items()},
    )


def _drawn(task: Task) -> tuple[ClientData, BatchPlan]:
    """A client's data and plan; where the plan uses a part of the data, that part alone."""
    data, plan = task.data, task.plan
    if not len(data):
        # One row of zeros, which stands still.
        zeros = [part.new_zeros(1, *part.shape[1:]) for part in (data.inputs, data.targets)]
        return ClientData(*zeros), plan
    if plan.indices.numel() >= len(data):
        return data, plan
    rows = plan.indices.flatten().to(data.inputs.device)
    places = torch.arange(len(rows)).view_as(plan.indices)
    part = ClientData(data.inputs.index_select(0, rows), data.targets.index_select(0, rows))
    return part, BatchPlan(places, plan.counts)


def _accumulate(momenta: Params, grads: Params, momentum: float) -> Params:
    """The momentum buffers, updated in place (the first step fills them)."""
    if not momenta:
        momenta.update({name: value.clone() for name, value in grads.items()})
    else:
        for name, value in grads.items():
            momenta[name].mul_(momentum).add_(value)
    return momenta


def _like(row: Tensor, value: Tensor) -> Tensor:
    """[c] with as many trailing dimensions of one as ``value`` [c, ...] has."""
    return row.reshape(-1, *([1] * (value.ndim - 1)))


def _to(plan: Steps, like: Tensor) -> Steps:
    return plan._replace(
        rows=plan.rows.to(like.device),
        weights=plan.weights.to(like),
        active=plan.active.to(like.device),
    )


def _stack_states(states: Sequence[State | None]) -> State | None:
    first = states[0]
    if first is None:
        return None
    return {name: torch.stack([cast("State", s)[name] for s in states]) for name in first}
