"""The choice of training one client at a time or in groups, compared on synthetic clients.

Rule 1: groups are used only if they give the updates of one-by-one training, to 1e-4 of their norm.
Rule 2: of two equal trainers the faster one is taken. A seeded run does not measure, so that it can
be repeated, and single examples are always trained in groups. Rule 3: the choice follows from
public values and synthetic clients alone, and is kept in the checkpoint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from dpacct import validate
from dpacct.display import line
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.clients import ClientData
from dpacct.fl.layout import Layout, copies, set_training_mode
from dpacct.fl.local.losses import LocalLoss, LossFunction
from dpacct.fl.local.sgd import SGD, SHORT_BATCH, Batch, LocalAdam, padded_width
from dpacct.fl.methods.protocol import Method
from dpacct.fl.tensors import norm
from dpacct.fl.training.examples import STEP, ExampleTrainer, largest_group
from dpacct.fl.training.synthetic import Synthetic, synthetic_task
from dpacct.fl.training.tasks import Broadcast, SequentialTrainer, Task, Trainer, Trial
from dpacct.fl.training.vectorized import VectorizedTrainer, put_rows

# Memory for the clients that are trained at a time: this, or a share of a GPU's free memory.
_MEMORY, _FREE_SHARE = 1 << 30, 0.4
_BLOCK = (1 << 25) - (1 << 16)
# Clients in a group, at most.
_MOST = 128
# Copies of the parameters that a client in a group takes, with its gradient and momentum, and the
# further ones of Adam.
_COPIES, _ADAM_COPIES = 6, 2
# Examples of a synthetic batch, at most: the number of a client's examples is not known.
_BATCH = 32
# Seconds for a client from which on a CPU has nothing to save around the arithmetic.
_SLOW = 0.3
# Errors of a model that `torch.func` cannot batch.
_UNBATCHABLE = (RuntimeError, ValueError, TypeError, LookupError, AttributeError)


@dataclass(frozen=True, slots=True)
class TrainingMode:
    """The way in which clients, or examples, are trained: public, and the same on all ranks.

    Attributes:
        vectorized: whether in groups. group: clients in a group.
        widest: examples in a batch of a group, at most. Clients with more are trained alone.
        chunk: clients with updates in memory at a time.
        device: the type of the device on which it was chosen. reason: for the user.
    """

    vectorized: bool
    group: int
    widest: int
    chunk: int
    device: str
    reason: str

    def __post_init__(self) -> None:
        for name in ("group", "widest", "chunk"):
            validate.count(name, getattr(self, name), "a size for training")


class RoundTrainer(Trainer):
    """The `Trainer` of real rounds: no client's data can stop it, or change another update."""

    lenient = True

    def __init__(
        self,
        alone: SequentialTrainer,
        together: VectorizedTrainer | None,
        synthetic: Synthetic,
        local: SGD,
        widest: int,
    ) -> None:
        self.method, self.alone, self.together = alone.method, alone, together
        self._synthetic, self._local, self._widest = synthetic, local, widest

    def admit(self, data: ClientData) -> bool:
        """See `Trainer`."""
        labels, kind = self._synthetic.labels, self._synthetic.kind
        fitting = labels is None or labels.check(data.targets)
        if self.together is None or not fitting or not kind.fits(data):
            return False
        return padded_width(len(data), self._local) <= self._widest

    def train(self, tasks: Sequence[Task], broadcast: Broadcast) -> Tensor:
        """See `Trainer`. A client that fails has a row of NaN."""
        grouped = [self.together is not None and not task.alone for task in tasks]
        rows = self.alone.train(
            [replace(t, failed=t.failed or g) for t, g in zip(tasks, grouped, strict=True)],
            broadcast,
            attempt=True,
        )
        places = [n for n, task in enumerate(tasks) if grouped[n] and not task.failed]
        self._train_groups(tasks, places, broadcast, rows)
        return rows

    def _train_groups(
        self, tasks: Sequence[Task], places: list[int], broadcast: Broadcast, rows: Tensor
    ) -> None:
        """Fill in rows. Clients are split until those with an error are found.

        The other clients lose nothing: their updates are the same in every group.
        """
        if self.together is None or not places:
            return
        with Trial() as trial:
            updates = self.together.train([tasks[place] for place in places], broadcast)
            put_rows(rows, places, updates)
        if trial.error is not None and len(places) > 1:
            half = len(places) // 2
            self._train_groups(tasks, places[:half], broadcast, rows)
            self._train_groups(tasks, places[half:], broadcast, rows)


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The plan of a run with its trainer."""

    plan: TrainingMode
    trainer: RoundTrainer | ExampleTrainer


class TrainerChooser:
    """Builds both trainers of a run and picks one.

    Args:
        vectorize: "auto", True or False. chunk: clients at a time, None for as many as fit.
        examples: whether the population are single examples.

    Attributes:
        model: the copy that clients train. loss: with it.
        alone: trains one by one. vectorized: trains small groups. Both raise a client's errors.
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
        chunk: int | None = None,
        examples: bool = False,
    ) -> None:
        if vectorize not in ("auto", True, False):
            rule = 'vectorize is "auto", True or False'
            raise InvalidParameter("vectorize", vectorize, rule)
        if chunk is not None:
            chunk = validate.count("chunk_size", chunk, "the chunk size")
        # The C library of Linux gives freed memory back to the system, and each step would fault it
        # in again. After a block of almost 32 MiB was freed, it keeps twice as much (mallopt(3)).
        torch.empty(_BLOCK, dtype=torch.uint8)
        self._limit, device = _MEMORY, next(model.parameters()).device
        if device.type == "cuda":
            self._limit = max(_MEMORY, int(_FREE_SHARE * torch.cuda.mem_get_info(device)[0]))
        self.loss = LocalLoss.of_copies(model, loss, layout.names, local.precision)
        self.model = self.loss.model
        self._method, self._layout, self._local = method, layout, local
        self._vectorize, self._chunk, self._examples = vectorize, chunk, examples
        self.alone = SequentialTrainer(method, self.loss, layout)
        self._batched = self.loss.batched()
        kind = ExampleTrainer if examples else VectorizedTrainer
        self.vectorized: VectorizedTrainer | ExampleTrainer = kind(method, self._batched, layout, 2)
        self._tolerance = 5e-2 if local.precision == "bfloat16" else 1e-4

    def choose(
        self,
        synthetic: Synthetic,
        broadcast: Broadcast,
        cohort: int,
        *,
        varies: bool = True,
        timed: bool = True,
        before: TrainingMode | None = None,
    ) -> Choice:
        """Decide, on a few synthetic clients.

        ``vectorize=True`` is Unsupported if this model or method cannot be batched.

        Args:
            cohort: planned number of workers in a round. varies: whether it is a mean.
            timed: whether the speed may be measured.
            before: the choice of another rank, or before a resume. It is kept where it is possible.
        """
        here = broadcast.device.type
        if before and before.device == here and self._vectorize in ("auto", before.vectorized):
            return self._build(before, synthetic)
        rows = max(1, self._limit // (16 * max(self._layout.size, 1)))
        chunk = max(self._chunk or min(cohort, rows), 1)
        reason = f"one {'example' if self._examples else 'client'} at a time"
        sequential = TrainingMode(False, 1, 1, chunk, here, reason)  # noqa: FBT003
        few = not self._examples and (cohort < 2 or self._chunk == 1)
        if self._vectorize is False or (self._vectorize == "auto" and few):
            return self._build(sequential, synthetic)
        width = min(self._local.batch_size or _BATCH, _BATCH)
        size = 1 if self._examples else 2 * width - width // 3
        task = synthetic_task(synthetic.make(size, 0), self._method, broadcast)
        fitting = self._limit // max(self._bytes_each(task, broadcast), 1)
        # Of a Poisson cohort N, groups of g that hold mean + 1.5 standard deviations have about the
        # least expected work E[ceil(N / g)] (g + 32): calls of a group cost as much as 32 members.
        most = int(cohort + 1.5 * math.sqrt(cohort)) if varies else cohort
        plan = self._grouped(broadcast, most, fitting)
        complaint = "" if fitting >= 2 else "memory has no room for two at once"
        measured = self._vectorize == "auto" and timed and not self._examples
        alone = _seconds(self.alone, [task], broadcast) if measured and not complaint else 0.0
        if alone > _SLOW and here == "cpu":
            complaint = "a client takes long enough for its arithmetic alone"
        # Rounding may decide on which side of its kink an activation lies, and then two correct
        # results differ visibly. That hardly happens twice.
        short = replace(broadcast, local=broadcast.local.short())
        if not complaint and (complaint := self.compare(self._tasks(synthetic, short), short)):
            complaint = self.compare(self._tasks(synthetic, short, 10), short)
        if complaint and self._vectorize is True:
            raise Unsupported(
                f"vectorize=True, but {complaint}. vectorize=False trains one at a time"
            )
        if measured and not complaint:
            trainer = VectorizedTrainer(self._method, self._batched, self._layout, plan.group)
            together = _seconds(trainer, [task] * plan.group, broadcast)
            ratio = alone * cohort / (together * math.ceil(cohort / plan.group))
            if ratio < 1:
                complaint = f"{plan.group} at once take {1 / ratio:.1f} times as long"
            else:
                faster = f"{plan.reason}, {ratio:.1f} times as fast as one at a time"
                plan = replace(plan, reason=faster)
        if complaint:
            plan = replace(sequential, reason=f"{sequential.reason}: {complaint}")
        return self._build(plan, synthetic)

    def _build(self, plan: TrainingMode, synthetic: Synthetic) -> Choice:
        parts = (self._method, self._batched, self._layout, plan.group)
        if self._examples and plan.vectorized:
            return Choice(plan, ExampleTrainer(*parts, synthetic.kind, synthetic.labels))
        together = VectorizedTrainer(*parts) if plan.vectorized else None
        trainer = RoundTrainer(self.alone, together, synthetic, self._local, plan.widest)
        return Choice(plan, trainer)

    def compare(self, tasks: Sequence[Task], broadcast: Broadcast) -> str:
        """Return a fault of training these clients at once, or nothing. Rule 1."""
        tasks = [task for task in tasks if task.plan.steps]
        training = self.model.training
        try:
            # Without dropout, so that both trainers see the same function.
            self.model.eval()
            expected = self.alone.train(tasks, broadcast)
            updates = self.vectorized.train(tasks, broadcast)
            if training:
                set_training_mode(self.model)
            # With dropout, for functions that torch.func refuses.
            self.vectorized.train(tasks, broadcast)
        except _UNBATCHABLE as error:
            first = str(error).strip().partition("\n")[0]
            return f"torch.func cannot batch this model or method ({line(first[:200])})"
        finally:
            if training:
                set_training_mode(self.model)
        finite = expected.isfinite().all(dim=1)
        # An update that is not finite is dropped, so both have to drop the same clients.
        same = torch.equal(finite, updates.isfinite().all(dim=1))
        gap, scale = norm(updates - expected, dim=1), norm(expected, dim=1)
        floor = 1e-6 * norm(self._layout.flatten(broadcast.anchor))
        if same and bool((gap <= self._tolerance * scale + floor)[finite].all()):
            return ""
        return (
            "groups give another result: a loss must be the mean over the examples of a batch, and "
            "a method must treat each client separately"
        )

    def _tasks(self, synthetic: Synthetic, broadcast: Broadcast, first: int = 0) -> list[Task]:
        """Return clients of two batches (the second not full), one batch, and a few examples."""
        width = broadcast.local.batch_size or SHORT_BATCH
        sizes = (2 * width - width // 3, width, min(width, 2))
        if self._examples:
            sizes = (1, 1, 1)
        clients = [synthetic.make(size, seed) for seed, size in enumerate(sizes, start=first)]
        return [synthetic_task(data, self._method, broadcast) for data in clients]

    def _grouped(self, broadcast: Broadcast, most: int, fitting: int) -> TrainingMode:
        """Return the plan of as few equal groups as hold most cohorts and fit into memory."""
        device = broadcast.device.type
        largest = largest_group(self._layout) if self._examples else min(_MOST, max(fitting, 2))
        groups = -(-most // largest)
        group = min(-(-most // (groups * STEP)) * STEP, largest)
        if self._examples:
            chunk = max(group, (self._chunk or fitting) // group * group)
            return TrainingMode(True, group, 1, chunk, device, f"{group} examples at once")  # noqa: FBT003
        group = self._chunk or group
        width = self._local.batch_size or _BATCH
        # Of one full batch, clients may have as many examples as memory has room for.
        widest = max(width, fitting * width // group)
        chunk = self._chunk or max(group, min(4 * group, fitting // group * group))
        return TrainingMode(True, group, widest, chunk, device, f"{group} clients at once")  # noqa: FBT003

    def _bytes_each(self, task: Task, broadcast: Broadcast) -> int:
        """Return the memory that one more client, or example, takes apart from its data."""
        held = _COPIES + (_ADAM_COPIES if isinstance(self._local, LocalAdam) else 0)
        held *= sum(value.nbytes for value in broadcast.anchor.values())
        if 2 * held > self._limit:
            # There is no room for two whatever is saved for the backward pass.
            return held
        rows = task.plan.indices[0]
        data = task.data.map(lambda values: values[rows])
        saved: list[int] = []

        def count(tensor: Tensor) -> Tensor:
            saved.append(tensor.nbytes)
            return tensor

        hooks = torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor)
        # A model that uses torch.func bears no hooks.
        with Trial(), cast("Any", hooks):
            self.loss.gradient(copies(broadcast.anchor), Batch(data.inputs, data.targets, None))
        full = 1 if self._examples else (self._local.batch_size or len(rows))
        return held + 2 * sum(saved) * full // len(rows)


def _seconds(trainer: Trainer, tasks: Sequence[Task], broadcast: Broadcast) -> float:
    """Return the least time of three trainings, or that of a slow one. The first also warms up."""
    cuda, times = broadcast.device.type == "cuda", list[float]()
    # On a shared machine the clock also counts the time of other processes.
    clock = time.perf_counter if cuda else time.process_time
    for _ in range(3):
        began = clock()
        trainer.train(tasks, broadcast)
        if cuda:
            torch.cuda.synchronize(broadcast.device)
        times.append(clock() - began)
        if times[-1] > _SLOW and not cuda:
            break
    return max(min(times), 1e-9)
