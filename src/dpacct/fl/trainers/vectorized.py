"""Local training of many clients side by side: one batched computation instead of a loop.

Parameters get a leading dimension c; gradients of all clients come from one `torch.func.vmap`.
Ragged batches are padded and weighted, clients that have finished stand still, so that the
result is that of the sequential path up to the order of floating-point operations.

Rule: what is computed for one client has the same form whatever the others hold. Nothing here
branches on data, padding is a client's own, and zero weights stand even where none is needed.
`dpacct.fl.trainers.groups` sees to it that chunks have the same form as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import Tensor
from torch.func import vmap

from dpacct.fl.clients import ClientData
from dpacct.fl.layout import Layout, Params, State
from dpacct.fl.local.batches import Batch, Steps, align, padded_width, resting
from dpacct.fl.local.losses import LocalLoss
from dpacct.fl.methods.protocol import Method, overrides
from dpacct.fl.tensors import unfold_first
from dpacct.fl.trainers.cohort_loss import CohortLoss
from dpacct.fl.trainers.directions import accumulated, apart
from dpacct.fl.trainers.dropout import OwnDropout, seeds_of_steps
from dpacct.fl.trainers.isolation import Isolation
from dpacct.fl.trainers.kept_apart import KeptApart
from dpacct.fl.trainers.one_way import OneWay
from dpacct.fl.trainers.replay import Repeated
from dpacct.fl.trainers.stacking import drawn, nobody_like, stack_states
from dpacct.fl.trainers.tasks import Broadcast, Task
from dpacct.fl.uploads import listed, sent


class VectorizedTrainer:
    """All clients of a chunk at once. Needs a model and a method that `torch.func` can batch.

    Attributes:
        sum: of the clients' losses.
        replays: whether a step is recorded and played again, see `dpacct.fl.trainers.replay`.
    """

    def __init__(self, method: Method, loss: LocalLoss, layout: Layout) -> None:
        self._method = method
        self._loss = loss
        self._layout = layout
        self.sum = CohortLoss(loss)
        self.replays = True
        self._projects = overrides(method, "after_step")
        self._transforms = overrides(method, "local_update")
        self._steers = overrides(method, "gradient")

    def admit(self, data: ClientData) -> bool:
        """See `Trainer`: everybody, whose data then have to be of one kind."""
        del data
        return True

    def train(self, tasks: Sequence[Task], broadcast: Broadcast) -> Tensor:
        """See `Trainer`."""
        start = self._layout.flatten(broadcast.anchor)
        params = {
            name: value.unsqueeze(0).repeat(len(tasks), *([1] * value.ndim))
            for name, value in broadcast.anchor.items()
        }
        with Isolation(broadcast, self._loss, self._method) as shown:
            if any(task.plan.steps for task in tasks):
                params = self._descend(params, tasks, shown)
            rows = self._layout.flatten(params).sub_(start)
            if self._transforms:
                update = self._method.local_update
                found = self._map_rows(update, tasks, rows, shown, delta_first=True)
                # An update that is the same for all comes as one row seen several times.
                rows = cast("Tensor", found).contiguous()
        rows = rows.detach()
        for row, task in zip(rows, tasks, strict=True):
            if task.failed:
                row.fill_(torch.nan)
        return rows

    def remember(
        self, tasks: Sequence[Task], rows: Tensor, broadcast: Broadcast
    ) -> list[State] | None:
        """See `Trainer`."""
        if tasks[0].state is None:
            return None
        change = self._method.client_state
        with Isolation(broadcast, self._loss, self._method) as shown:
            states = cast("State", self._map_rows(change, tasks, rows, shown, delta_first=False))
        return [{name: value[i] for name, value in states.items()} for i in range(len(tasks))]

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
        states = stack_states([task.state for task in tasks])
        steps = [task.plan.steps for task in tasks]
        rates = listed([broadcast.step_size(n) for n in steps], rows.device, rows.dtype)
        counts = listed(steps, rows.device)

        def one(row: Tensor, state: State | None, lr: Tensor, count: Tensor) -> Any:
            context = broadcast.context(lr, count, state)
            with KeptApart(way):
                return change(row, state, context) if delta_first else change(state, row, context)

        in_dims = (0, None if states is None else 0, 0, 0)
        with OneWay() as way:
            return vmap(one, in_dims=in_dims)(rows, states, rates, counts)

    def _descend(self, params: Params, tasks: Sequence[Task], broadcast: Broadcast) -> Params:
        local = broadcast.local
        like = next(iter(params.values()))
        device = like.device
        working = [task for task in tasks if task.plan.steps]
        nobody = nobody_like(working[0].data)
        parts = [drawn(task) if task.plan.steps else (nobody, task.plan) for task in tasks]
        inputs = torch.cat([data.inputs for data, _ in parts])
        targets = torch.cat([data.targets for data, _ in parts])
        width = max(padded_width(len(task.data), local) for task in working)
        plan = align([plan for _, plan in parts], [len(data) for data, _ in parts], width)
        steps = [task.plan.steps for task in tasks]
        rates = listed([broadcast.step_size(n) for n in steps], device, like.dtype)
        counts = listed(steps, device)
        seeds = listed([task.seed or 0 for task in tasks], device)
        rate = None if local.total_lr else broadcast.step_size(0)
        moving, rests = _to(plan, like), resting(plan, device)
        # Of who takes no step at all (nobody, say) it is enough that it ends where it began.
        idle = listed([place for place, n in enumerate(steps) if not n], device)
        start = {name: value[:1].clone() for name, value in params.items()}
        states = stack_states([task.state for task in tasks])
        streams = seeds_of_steps(seeds, len(plan.rows))
        momenta: Params = {}
        decay = 0.0 if local.momentum else local.weight_decay
        # By what is public: how many steps there are depends on who is in the group.
        replays = self.replays and local.steps != 1
        directions = self._directions(params, (rates, counts, states), broadcast, replays)
        sizes = (len(tasks), width)
        each = zip(moving.rows.flatten(1), moving.weights, streams, rests, strict=True)
        for step, (chosen, weights, own, rest) in enumerate(each):
            x = unfold_first(inputs.index_select(0, chosen), sizes)
            y = unfold_first(targets.index_select(0, chosen), sizes)
            found = directions(*params.values(), x, y, weights, own)
            grads = dict(zip(params, found, strict=True))
            if local.momentum:
                grads = accumulated(momenta, grads, params, local)
            for name, value in params.items():
                # Put back as it was: zero times a gradient that overflowed would not stand still.
                still = None if rest is None else value.index_select(0, rest)
                if rate is None:
                    # Both parts are those of the parameters as they were.
                    move = grads[name].add(value, alpha=decay) if decay else grads[name]
                    value.sub_(move * _like(rates, value))
                else:
                    if decay:
                        value.sub_(value, alpha=rate * decay)
                    value.sub_(grads[name], alpha=rate)
                if rest is not None and still is not None:
                    value.index_copy_(0, rest, still)
            if self._projects:
                active = moving.active[step]
                params = self._project(params, active, rates, counts, states, broadcast)
        for name, value in params.items():
            value[idle] = start[name]
        return params

    def _directions(
        self,
        params: Params,
        known: tuple[Tensor, Tensor, State | None],
        broadcast: Broadcast,
        replays: bool,  # noqa: FBT001 - called in one place
    ) -> Repeated:
        """Of all clients in a step; ``known``: their rates, numbers of steps and memories."""
        names, way = list(params), OneWay()
        rates, counts, states = known

        def one(
            own: Params,
            x: Tensor,
            y: Tensor,
            weight: Tensor,
            seed: Tensor,
            lr: Tensor,
            count: Tensor,
            state: State | None,
        ) -> Params:
            context = broadcast.context(lr, count, state)
            with KeptApart(way), OwnDropout(seed):
                return self._method.gradient(self._loss, own, Batch(x, y, weight), context)

        in_dims = (0, 0, 0, 0, 0, 0, 0, None if states is None else 0)

        def step(*inputs: Tensor) -> list[Tensor]:
            own = dict(zip(names, inputs, strict=False))
            drawn = inputs[len(names) :]
            if self._steers:
                batched: Callable[..., Params] = vmap(one, in_dims=in_dims)
                with way:
                    found = batched(own, *drawn, *known)
            else:
                found = self.sum.gradients(own, *drawn)
            found = apart(found, own)
            return [found[name] for name in names]

        constants = [
            *(rates, counts, *(states or {}).values()),
            *(*broadcast.anchor.values(), *broadcast.server_state.values()),
            *self._loss.replica.tensors.values(),
        ]
        return Repeated(step, constants, replays)

    def _project(
        self,
        params: Params,
        active: Tensor,
        rates: Tensor,
        counts: Tensor,
        states: State | None,
        broadcast: Broadcast,
    ) -> Params:
        def one(own: Params, lr: Tensor, count: Tensor, state: State | None) -> Params:
            with KeptApart(way):
                return self._method.after_step(own, broadcast.context(lr, count, state))

        in_dims = (0, 0, 0, None if states is None else 0)
        with OneWay() as way:
            moved = vmap(one, in_dims=in_dims)(params, rates, counts, states)
        return {
            name: torch.where(_like(active, value), moved[name], value)
            for name, value in params.items()
        }


def _like(row: Tensor, value: Tensor) -> Tensor:
    """[c] with as many trailing dimensions of one as ``value`` [c, ...] has."""
    return row.reshape(-1, *([1] * (value.ndim - 1)))


def _to(plan: Steps, like: Tensor) -> Steps:
    return plan._replace(
        rows=sent(plan.rows, like.device),
        weights=sent(plan.weights.to(like.dtype), like.device),
        active=sent(plan.active, like.device),
    )
