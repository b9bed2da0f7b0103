"""The interface between engine and trainers: tasks, broadcasts, failures, and shared tensors.

`SequentialTrainer` trains one client after the other, by autograd. It works for every model and
method.

Rule 1: an error with one client's data is that client's failure alone. Its update counts as one
that is not finite, so as zero, and the round goes on: whether a client fails must not show outside.
Errors of the program surface before the first charge, on synthetic clients
(`dpacct.fl.engine.rehearsal`). Rule 2: a client's batches and random numbers follow from the
round's seed and the client's number, not from the other clients of the cohort.

Clients share a model and a loss, and must leave them as they were: a write to a shared weight or
buffer would reach the next client and so the release, past the bound on one client's update.
Rule 3: clients are shown copies of the released parameters. After each chunk of clients the copies,
the parameters and the buffers are compared with their earlier values. A change is refused before
anything is released. This finds mistakes. `dpacct.fl.engine.rehearsal` finds state that a program
keeps elsewhere, if it changes the updates of synthetic clients.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from dpacct.errors import Unsupported
from dpacct.fl.clients import ClientData
from dpacct.fl.layout import Layout, Params, State, copies, type_of_updates
from dpacct.fl.local.losses import LocalLoss
from dpacct.fl.local.sgd import SGD, Batch, Batches, shortened
from dpacct.fl.methods.protocol import Context, Method, overrides
from dpacct.fl.tensors import numbers, same_all, same_numbers, seed_generators


class Trial:
    """A block that may fail: ``with Trial() as trial: ...``, then read ``trial.error``.

    `Unsupported` (a client reached further than itself), warnings that were made errors, and
    interrupts pass through.
    """

    error: Exception | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """Keep an exception of the client."""
        if not isinstance(error, Exception) or isinstance(error, Unsupported | Warning):
            return False
        self.error = error
        return True


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Task:
    """A client with its data for one round, which stay where they are until it is trained.

    Attributes:
        data: its examples. plan: its batches. state: its memory, on the device.
        seed: of the random numbers while it trains. None leaves the global generators alone.
        alone: it must not be trained in a group.
        failed: its data could not be read, and count as an update that is not finite.
        planted: the update of a `Canary`, None of all other clients.
    """

    data: ClientData
    plan: Batches
    state: State | None
    seed: int | None = None
    alone: bool = False
    failed: bool = False
    planted: Tensor | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Broadcast:
    """The public values that all clients of a round receive."""

    round: int
    anchor: Params
    server_state: State
    local: SGD
    clip_norm: float = math.inf

    @property
    def device(self) -> torch.device:
        """The device on which clients train."""
        return next(iter(self.anchor.values())).device

    def context(
        self, lr: float | Tensor, steps: int | Tensor | None, memory: State | None = None
    ) -> Context:
        """Return the context of a client with this memory and ``steps`` steps of rate lr.

        Its dictionaries are its own: an entry that one client adds reaches no other client. Without
        a number of steps it has none to read.
        """
        anchor, state = dict(self.anchor), dict(self.server_state)
        own = None if memory is None else dict(memory)
        count = 0 if steps is None else steps
        context = Context(self.round, anchor, state, self.local, lr, count, self.clip_norm, own)
        if steps is None:
            object.__delattr__(context, "steps")
        return context

    def context_of(self, task: Task) -> Context:
        """Return the context of a client's task."""
        return self.context(self.step_size(task.plan.steps), task.plan.steps, task.state)

    def step_size(self, steps: int) -> float:
        """Return the learning rate of each of a client's steps."""
        rate = self.local.learning_rate(self.round)
        return rate / max(steps, 1) if self.local.total_lr else rate


def check_unwritten(*shown: tuple[Params, Params]) -> None:
    """Compare values that clients were shown with (after, before) those they were. Rule 3."""
    pairs = [(n, after[n].detach(), old) for after, before in shown for n, old in before.items()]
    if same_all([(one, two) for _, one, two in pairs]):
        return
    for name, one, two in pairs:
        if not same_numbers(one, two):
            raise Unsupported(
                f"{name} is written to in place while a client trains: it would reach the next "
                "client, or the release, past the bound. In a loop of your own, optimizers take "
                "local.parameters()"
            )


class Isolation:
    """A check around the training of clients, with the model of a loss."""

    def __init__(self, loss: LocalLoss) -> None:
        self._loss = loss
        self._before: Params | None = None

    @contextmanager
    def around(self, broadcast: Broadcast) -> Generator[Broadcast]:
        """Give clients copies of a broadcast, and check them afterward, even after an error.

        Raises:
            Unsupported: something that clients share has changed.
        """
        if self._before is None:
            # A layer may have replaced a tensor when it was first called.
            self._before = copies(self._shared())
        anchor, server = copies(broadcast.anchor), copies(broadcast.server_state)
        try:
            yield replace(broadcast, anchor=anchor, server_state=server)
        finally:
            public = (anchor, broadcast.anchor), (server, broadcast.server_state)
            check_unwritten(*public, (self._shared(), self._before))

    def _shared(self) -> Params:
        model, loss = self._loss.model, self._loss.function
        # A loss may be a module as well, such as one that keeps means.
        own = list(loss.named_buffers()) if isinstance(loss, nn.Module) else []
        return {
            **{f"{name} of the loss": value for name, value in own},
            **dict(model.named_parameters()),
            **dict(model.named_buffers()),
            **self._loss.constants,
        }


class Trainer:
    """Turns a chunk of clients into their updates.

    An error with a client is that client's failure alone if the trainer is ``lenient``, and is
    raised otherwise.
    """

    lenient = False

    def __init__(self, method: Method, loss: LocalLoss, layout: Layout) -> None:
        self.method, self._loss, self._layout = method, loss, layout
        self._isolation = Isolation(loss)
        self._transforms = overrides(method, "local_update")

    def admit(self, data: ClientData) -> bool:
        """Return whether a client may be trained in a group, judged by its own data alone.

        A client that cannot be trained at all is an InvalidParameter.
        """
        del data
        return True

    def train(self, tasks: Sequence[Task], broadcast: Broadcast) -> Tensor:
        """Return updates [c, d] of `Method.local_update`, in the type of the parameters.

        A client that changes something which another client, or the release, depends on is
        Unsupported.
        """
        raise NotImplementedError

    def _no_updates(self, count: int, broadcast: Broadcast) -> Tensor:
        """Return rows [count, d] of NaN, in the type of the parameters."""
        kind, size = type_of_updates(broadcast.anchor), self._layout.size
        return torch.full((count, size), torch.nan, dtype=kind, device=broadcast.device)

    def remember(
        self, tasks: Sequence[Task], rows: Tensor, broadcast: Broadcast
    ) -> list[State] | None:
        """Return new client states from bounded rows [c, d], or None for clients without memory.

        In real rounds a client that fails keeps its memory as it is.
        """
        if tasks[0].state is None:
            return None
        states: list[State] = []
        anchor, server = copies(broadcast.anchor), copies(broadcast.server_state)
        shown = replace(broadcast, anchor=anchor, server_state=server)
        for task, row in zip(tasks, rows, strict=True):
            states.append(task.state or {})
            with Trial() if self.lenient else nullcontext():
                # In storage of its own: a row of a matrix leads to all other rows.
                states[-1] = self.method.client_state(
                    task.state or {}, row.clone(), shown.context_of(task)
                )
        return states


class LocalSteps:
    """The local steps of one client, as torch's optimizers take them.

    Attributes:
        params: where the steps have led. taken: how many.
    """

    def __init__(self, method: Method, loss: LocalLoss, context: Context) -> None:
        self._method, self._loss, self._context = method, loss, context
        self.params, self.taken = context.anchor, 0
        self._projects = overrides(method, "after_step")
        self._optimizer: State = {}

    def direction(self, batch: Batch) -> Params:
        """Return the method's direction, within the bound of a local gradient."""
        gradient = self._method.gradient(self._loss, self.params, batch, self._context)
        limit = self._context.local.max_grad_norm
        return gradient if limit is None else shortened(gradient, limit)

    def take(self, batch: Batch, rate: float) -> None:
        """Take a step of the run's local training."""
        direction, local = self.direction(batch), self._context.local
        direction, self._optimizer = local.direction(direction, self.params, self._optimizer)
        self.params = {n: p.sub(direction[n], alpha=rate) for n, p in self.params.items()}
        self.project()
        self.taken += 1

    def project(self) -> None:
        """Let the method's `after_step` change the parameters."""
        if self._projects:
            self.params = self._method.after_step(self.params, self._context)


class SequentialTrainer(Trainer):
    """A `Trainer` that treats clients one by one, by autograd."""

    def train(
        self, tasks: Sequence[Task], broadcast: Broadcast, *, attempt: bool = False
    ) -> Tensor:
        """See `Trainer`. An error of a client is raised, or is a row of NaN in an attempt."""
        rows = self._no_updates(len(tasks), broadcast)
        if all(task.failed for task in tasks):
            return rows
        start = self._layout.flatten(broadcast.anchor)
        with self._isolation.around(broadcast) as shown:
            for row, task in zip(rows, tasks, strict=True):
                if not task.failed:
                    with Trial() if attempt else nullcontext():
                        self._update(task, shown, start, row)
        return rows

    def _update(self, task: Task, shown: Broadcast, start: Tensor, row: Tensor) -> None:
        """Write the update [d] of one client, who begins at ``start``."""
        if task.seed is not None:
            seed_generators(task.seed, shown.device)
        context = shown.context_of(task)
        end = self._layout.flatten(self._descend(task, context)).detach()
        if self._transforms:
            # In storage of its own: a row of a matrix leads to all other rows.
            row.copy_(self.method.local_update(end - start, task.state, context).detach())
        else:
            torch.sub(end, start, out=row)

    def _descend(self, task: Task, context: Context) -> Params:
        """Return the parameters after the local steps."""
        steps = LocalSteps(self.method, self._loss, context)
        # One upload for all steps.
        device = next(iter(context.anchor.values())).device
        plan, whole = task.plan.indices.to(device), task.data.map(lambda v: v.to(device))
        for indices, count in zip(plan, numbers(task.plan.counts), strict=True):
            rows = indices[:count]
            data = whole.map(lambda values: values[rows])  # noqa: B023 - called at once
            steps.take(Batch(data.inputs, data.targets, None), float(context.lr))
        return steps.params


NO_DATA = ClientData(torch.zeros(0), torch.zeros(0))
NO_STEPS = Batches(torch.zeros(0, 1, dtype=torch.int64), torch.zeros(0, dtype=torch.int64))
