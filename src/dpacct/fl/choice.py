"""Which way of local training: measured on made-up clients, limited by memory.

Cohort-parallel training is taken where it gives what sequential training gives, shows nothing of
who is trained beside whom, and is faster. What does not fit `torch.func` (data-dependent control
flow, say) is trained sequentially.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from dpacct import validate
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.batches import Batch, BatchPlan
from dpacct.fl.company import shows_company
from dpacct.fl.doubled import doubled
from dpacct.fl.footprint import client_bytes, default_memory_limit
from dpacct.fl.groups import LANES, GroupTrainer
from dpacct.fl.layout import Layout
from dpacct.fl.local import SGD
from dpacct.fl.losses import LocalLoss, LossFunction
from dpacct.fl.methods.protocol import Method
from dpacct.fl.tensors import norm
from dpacct.fl.training import Broadcast, SequentialTrainer, Task, Trainer
from dpacct.fl.vectorized import VectorizedTrainer

ONE_BY_ONE = "one by one"
SIDE_BY_SIDE = "side by side"
_PROBED_STEPS = 3
_SIZES = (LANES, 2 * LANES, 4 * LANES)
_COMPARED = 3
# Seconds for measuring one way of training.
_PATIENCE = 0.1
# Seconds for a few steps of the smallest group, one client after the other. On a CPU side by side
# saves what surrounds the arithmetic, and where arithmetic takes that long there is little of it.
_SLOW = 1.0
# What a model raises that `torch.func` cannot batch.
_UNBATCHABLE = (RuntimeError, ValueError, TypeError, NotImplementedError)


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The trainer, how many clients it gets at a time, and why, in words."""

    trainer: Trainer
    chunk: int
    reason: str


class TrainerChooser:
    """Builds both trainers of a run and picks one.

    Args:
        model, loss, method, layout, local: of the run.
        vectorize: "auto", True or False.
        chunk: clients at a time, None for as many as fit.
        memory_limit: bytes for the clients of one chunk; None for `default_memory_limit`.

    Raises:
        InvalidParameter: one of the last three makes no sense.
    """

    def __init__(
        self,
        model: nn.Module,
        loss: LossFunction,
        method: Method,
        layout: Layout,
        local: SGD,
        *,
        vectorize: bool | str,
        chunk: int | None,
        memory_limit: int | None,
    ) -> None:
        if vectorize not in ("auto", True, False):
            rule = 'vectorize is "auto", True or False'
            raise InvalidParameter("vectorize", vectorize, rule)
        if chunk is not None:
            chunk = validate.count("chunk_size", chunk, "the chunk size")
        if memory_limit is None:
            memory_limit = default_memory_limit(next(model.parameters()).device)
        limit = validate.count("memory_limit", memory_limit, "a memory limit in bytes")

        def local_loss(*, functional: bool) -> LocalLoss:
            return LocalLoss(model, loss, layout.names, local.precision, functional=functional)

        self._model = model
        self._losses = (local_loss(functional=False), local_loss(functional=True))
        self._sequential = SequentialTrainer(method, self._losses[0], layout)
        self._vectorized = VectorizedTrainer(method, self._losses[1], layout)
        self._vectorize = vectorize
        self._chunk = chunk
        self._limit = limit
        self._tolerance = 5e-2 if local.precision == "bfloat16" else 2e-3

    def trainers(self, tasks: Sequence[Task], broadcast: Broadcast) -> dict[str, Trainer]:
        """The ways in which these clients can be trained, as far as ``vectorize`` allows.

        Raises:
            Unsupported: vectorize=True, and this model or method cannot be.
        """
        found: dict[str, Trainer] = {ONE_BY_ONE: self._sequential}
        tasks = [task for task in tasks if task.plan.steps]
        if self._vectorize is False or not tasks:
            return found
        complaint = self._compare(tasks, broadcast)
        if complaint and self._vectorize is True:
            raise Unsupported(f"vectorize=True, but {complaint}")
        if not complaint:
            found[SIDE_BY_SIDE] = GroupTrainer(self._vectorized)
        return found

    @contextmanager
    def still(self) -> Generator[None]:
        """Inside, the model is without dropout, so that everybody sees the same function."""
        training = self._model.training
        self._model.eval()
        try:
            yield
        finally:
            self._model.train(training)

    def check_buffers(self) -> None:
        """Refuse a model that wrote to a buffer.

        Raises:
            Unsupported: it did.
        """
        for loss in self._losses:
            loss.check_buffers()

    def choose(self, tasks: Sequence[Task], broadcast: Broadcast, cohort: int) -> Choice:
        """Decide, from a few made-up clients.

        Args:
            tasks: clients with at least one local step.
            broadcast: of the round. cohort: planned number of workers in a round.
        Raises:
            Unsupported: vectorize=True, and this model or method cannot be.
        """
        short = [replace(task, plan=_few_steps(task.plan)) for task in tasks]
        fitting = max(1, self._limit // self._client_bytes(short[0], broadcast))
        rows = max(1, self._limit // (16 * sum(v.numel() for v in broadcast.anchor.values())))
        chunk = self._chunk or min(cohort, rows)
        slow = Choice(self._sequential, chunk, "one client at a time")
        if self._vectorize is False:
            return slow
        if self._vectorize == "auto" and (cohort < 2 or self._chunk == 1):
            return slow
        if self._vectorize == "auto" and fitting < LANES:
            return replace(slow, reason=f"one client at a time: memory has no room for {LANES}")
        complaint = self._compare(short[:_COMPARED], broadcast)
        if complaint:
            return self._refused(slow, complaint)
        widest = fitting * len(short[0].plan.indices[0])
        sizes = self._sizes(cohort, fitting)
        trainers = [GroupTrainer(self._vectorized, size, widest // size) for size in sizes]
        if self._vectorize is True:
            best = Choice(trainers[-1], trainers[-1].clients, "side by side, as asked")
        else:
            best = self._fastest(short, broadcast, trainers, slow, cohort)
        if best.trainer is self._sequential:
            return best
        with self.still():
            complaint = shows_company(best.trainer, short, broadcast)
        return self._refused(slow, complaint) if complaint else best

    def _refused(self, slow: Choice, complaint: str) -> Choice:
        if self._vectorize is True:
            raise Unsupported(f"vectorize=True, but {complaint}")
        return replace(slow, reason=f"one client at a time: {complaint}")

    def _sizes(self, cohort: int, fitting: int) -> list[int]:
        """How many clients may train side by side: multiples of `LANES`, ascending."""
        # A Poisson cohort is larger than planned half of the time: leave most of them whole.
        asked = self._chunk or math.ceil(cohort + 2 * math.sqrt(cohort))
        most = LANES * math.ceil(asked / LANES)
        if not self._chunk:
            most = min(most, max(LANES, LANES * (fitting // LANES)), _SIZES[-1])
        return [most] if self._chunk else sorted({min(size, most) for size in _SIZES})

    def _fastest(
        self,
        tasks: Sequence[Task],
        broadcast: Broadcast,
        trainers: Sequence[GroupTrainer],
        slow: Choice,
        cohort: int,
    ) -> Choice:
        alone = _seconds(self._sequential, tasks[:1], broadcast)
        if alone * LANES > _SLOW and next(iter(broadcast.anchor.values())).is_cpu:
            words = (
                "one client at a time: a step takes long enough for nothing to be saved around it"
            )
            return replace(slow, reason=words)
        best, best_time, least = slow, alone, float("inf")
        for trainer in trainers:
            size = trainer.clients
            many = [tasks[place % len(tasks)] for place in range(size)]
            # Whoever does not come takes as long as somebody who does.
            each = _seconds(trainer, many, broadcast) * math.ceil(cohort / size) / cohort
            least = min(least, each)
            # Timing is noisy, and fewer chunks have less around them: more clients win a near tie.
            if each < (best_time if best is slow else 1.1 * best_time):
                words = f"{size} side by side, {alone / each:.1f} times as fast as one at a time"
                best, best_time = Choice(trainer, size, words), each
        if best is slow:
            words = f"one client at a time, {least / alone:.1f} times as fast as side by side"
            return replace(slow, reason=words)
        return best

    def _compare(self, tasks: Sequence[Task], broadcast: Broadcast) -> str:
        """What is wrong with training these clients side by side, or nothing."""
        try:
            with self.still():
                expected = self._sequential.train(tasks, broadcast)
                found = self._vectorized.train(tasks, broadcast)
                same = self._agree(expected, found, broadcast)
                same = same or self._agree_in_double(tasks, broadcast)
        except _UNBATCHABLE as error:
            line = str(error).strip().partition("\n")[0]
            return f"torch.func cannot batch this model or method ({line[:200]})"
        if same:
            return ""
        return (
            "side by side this model or loss gives another result: a loss must be the mean over "
            "the examples of a batch, and a method must treat each client by itself"
        )

    def _agree(self, expected: Tensor, found: Tensor, broadcast: Broadcast) -> bool:
        """Whether rows are equal up to rounding, or none can be told from another."""
        gap = norm(found - expected, dim=1)
        scale = norm(expected, dim=1)
        floor = 1e-6 * float(norm(torch.stack([norm(v) for v in broadcast.anchor.values()])))
        near = bool((gap <= self._tolerance * scale + floor).all())
        return near or not bool(gap.isfinite().all())

    def _agree_in_double(self, tasks: Sequence[Task], broadcast: Broadcast) -> bool:
        """The same comparison with twice the digits.

        Rounding may decide on which side of its kink an activation lies, and then two correct
        results differ visibly; with 53 bits that hardly happens twice.
        """
        if any(value.dtype != torch.float32 for value in broadcast.anchor.values()):
            return False
        same, wide = doubled(tasks, broadcast)
        try:
            expected = self._sequential.train(same, wide)
            return self._agree(expected, self._vectorized.train(same, wide), wide)
        except _UNBATCHABLE:
            # A model that holds constants in float32, say.
            return False

    def _client_bytes(self, task: Task, broadcast: Broadcast) -> int:
        """Memory that one more client in a chunk takes, measured on one local step."""
        rows = task.plan.indices[0]
        batch = Batch(task.data.inputs[rows], task.data.targets[rows], None)
        anchor = broadcast.anchor
        params = {name: value.unsqueeze(0) for name, value in anchor.items()}
        inputs, targets = batch.inputs.unsqueeze(0), batch.targets.unsqueeze(0)
        data = 2 * (task.data.inputs.nbytes + task.data.targets.nbytes)
        try:
            # As it is computed side by side: a model may save less where it is alone.
            step = partial(self._vectorized.plain_gradients, params, inputs, targets, None)
            return data + client_bytes(step, anchor, batch)[0]
        except _UNBATCHABLE:
            step = partial(self._losses[0].gradient, anchor, batch)
            return data + client_bytes(step, anchor, batch)[0]


def _few_steps(plan: BatchPlan) -> BatchPlan:
    """Some steps, the one with the smallest batch among them: padding is what may go wrong."""
    chosen = sorted({*range(min(_PROBED_STEPS - 1, plan.steps)), int(plan.counts.argmin())})
    return BatchPlan(plan.indices[chosen], plan.counts[chosen])


def _seconds(trainer: Trainer, tasks: Sequence[Task], broadcast: Broadcast) -> float:
    """Least time of one training of the tasks, in as many tries as fit into the patience."""
    device = next(iter(broadcast.anchor.values())).device
    best = float("inf")
    began = time.perf_counter()
    while time.perf_counter() - began < _PATIENCE or best == float("inf"):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        started = time.perf_counter()
        trainer.train(tasks, broadcast)
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        best = min(best, time.perf_counter() - started)
    return best
