"""The choice of training one client at a time or in groups, compared on synthetic clients.

Rule 1: groups are used only if they give the updates of one-by-one training, to 1e-4 of their norm.
Rule 2: of two equal trainers the faster one is taken. A seeded run does not measure, so that it can
be repeated, and single examples are always trained in groups. Rule 3: the choice follows from
public values and synthetic clients alone, and is kept in the checkpoint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_forward_hook,
    register_module_forward_pre_hook,
)

from dpacct import validate
from dpacct.display import line
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.clients import ClientData
from dpacct.fl.layout import Layout, Params, State, copies, modules_of, set_training_mode
from dpacct.fl.local.batches import Batch, BatchPlan, padded_width
from dpacct.fl.local.losses import LocalLoss, LossFunction, separate
from dpacct.fl.local.sgd import SGD, LocalAdam
from dpacct.fl.methods.protocol import Method
from dpacct.fl.tensors import listed, norm
from dpacct.fl.training.examples import STEP, ExampleTrainer, largest_group
from dpacct.fl.training.sequential import SequentialTrainer
from dpacct.fl.training.synthetic import Kind, Synthetic, synthetic_task
from dpacct.fl.training.tasks import Broadcast, Task, Trainer, Trial
from dpacct.fl.training.vectorized import VectorizedTrainer

_GIB = 1 << 30
_GROUPS = (16, 32, 64, 128)
# The time around the arithmetic of a group, in small clients.
_OVERHEAD = 24
# Copies of the parameters that a client in a group takes, with its gradient and momentum, and the
# further ones of Adam.
_COPIES, _ADAM_COPIES = 6, 2
# Examples of a synthetic batch, at most: the number of a client's examples is not known.
_BATCH = 32
# Seconds for a client from which on a CPU has nothing to save around the arithmetic.
_SLOW = 0.3
# Steps of a client that is timed, at most.
_TIMED_STEPS = 10
# Errors of a model that `torch.func` cannot batch.
_UNBATCHABLE = (RuntimeError, ValueError, TypeError, LookupError, AttributeError)


@dataclass(frozen=True, slots=True)
class TrainingPlan:
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

    def trains_like(self, other: TrainingPlan) -> bool:
        """Return whether two plans form the same groups."""
        if not (self.vectorized and other.vectorized):
            return self.vectorized == other.vectorized
        return (self.group, self.widest) == (other.group, other.widest)


@dataclass(frozen=True, slots=True, eq=False)
class RoundTrainer(Trainer):
    """The `Trainer` of real rounds: no client's data can stop it, or change another update.

    Attributes:
        alone: trains one client after the other. together: trains groups, or None.
        synthetic: has kind and labels of clients in groups.
        local: of the run. widest: as in `TrainingPlan`.
    """

    alone: SequentialTrainer
    together: VectorizedTrainer | None
    synthetic: Synthetic
    local: SGD
    widest: int

    def admit(self, data: ClientData) -> bool:
        """See `Trainer`."""
        labels = self.synthetic.labels
        fitting = labels is None or labels.check(data.targets)
        if self.together is None or not fitting or Kind.of(data) != self.synthetic.kind:
            return False
        return padded_width(len(data), self.local) <= self.widest

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
            rows[listed(places, rows.device)] = updates
        if trial.error is not None and len(places) > 1:
            half = len(places) // 2
            self._train_groups(tasks, places[:half], broadcast, rows)
            self._train_groups(tasks, places[half:], broadcast, rows)

    def remember(
        self, tasks: Sequence[Task], rows: Tensor, broadcast: Broadcast
    ) -> list[State] | None:
        """See `Trainer`. A client that fails keeps its memory as it is."""
        if tasks[0].state is None:
            return None
        trainer = self.together or self.alone
        with Trial():
            return trainer.remember(tasks, rows, broadcast)
        states: list[State] = []
        for task, row in zip(tasks, rows, strict=True):
            states.append(task.state or {})
            with Trial():
                states[-1:] = trainer.remember([task], row.unsqueeze(0), broadcast) or []
        return states


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """The plan of a run with its trainer. ``note`` has the reason against an earlier plan."""

    plan: TrainingPlan
    trainer: RoundTrainer | ExampleTrainer
    note: str = ""

    @property
    def words(self) -> str:
        """The way in which clients are trained, with its reason."""
        return f"{self.plan.reason}; {self.note}" if self.note else self.plan.reason


class TrainerChooser:
    """Builds both trainers of a run and picks one.

    Args:
        model, loss, method, layout, local: of the run.
        vectorize: "auto", True or False. chunk: clients at a time, None for as many as fit.
        memory_limit: bytes for the clients that are trained at a time. None: 1 GiB, or 40 % of the
            free memory of a GPU.
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
        memory_limit: int | None = None,
        examples: bool = False,
    ) -> None:
        if vectorize not in ("auto", True, False):
            rule = 'vectorize is "auto", True or False'
            raise InvalidParameter("vectorize", vectorize, rule)
        if chunk is not None:
            chunk = validate.count("chunk_size", chunk, "the chunk size")
        if memory_limit is not None:
            memory_limit = validate.count("memory_limit", memory_limit, "a memory limit in bytes")
        device, free = next(model.parameters()).device, 0
        if device.type == "cuda":
            free, _ = torch.cuda.mem_get_info(device)
        self._limit = memory_limit or max(_GIB, int(0.4 * free))
        self.model, objective = separate(model, loss)
        names, precision = layout.names, local.precision
        self.loss = LocalLoss(self.model, objective, names, precision, functional=False)
        self._method, self._layout, self._local = method, layout, local
        self._vectorize, self._chunk, self._examples = vectorize, chunk, examples
        self.alone = SequentialTrainer(method, self.loss, layout)
        self._batched = self.loss.batched()
        kind = ExampleTrainer if examples else VectorizedTrainer
        self.vectorized: VectorizedTrainer | ExampleTrainer = kind(method, self._batched, layout, 2)
        self._tolerance = 5e-2 if precision == "bfloat16" else 1e-4

    def choose(
        self, synthetic: Synthetic, broadcast: Broadcast, cohort: int, *, timed: bool = True
    ) -> Choice:
        """Decide, on a few synthetic clients.

        ``vectorize=True`` is Unsupported if this model or method cannot be batched.

        Args:
            synthetic: makes them. broadcast: of the round.
            cohort: planned number of workers in a round.
            timed: whether the speed may be measured.
        """
        reason = f"one {'example' if self._examples else 'client'} at a time"
        few = not self._examples and (cohort < 2 or self._chunk == 1)
        if self._vectorize is False or (self._vectorize == "auto" and few):
            return self._build(self._sequential(broadcast, cohort, reason), synthetic)
        tasks = self._tasks(synthetic, broadcast)
        fitting = self._limit // max(self._bytes_each(tasks[0], broadcast), 1)
        plan = self._grouped(broadcast, cohort, fitting)
        complaint = "" if fitting >= 2 else "memory has no room for two at once"
        complaint = complaint or self.compare(tasks, broadcast)
        if complaint and self._vectorize is True:
            raise Unsupported(
                f"vectorize=True, but {complaint}. vectorize=False trains one at a time"
            )
        if not complaint and self._vectorize == "auto" and timed and not self._examples:
            ratio = self._speedup(plan, tasks[0], broadcast, cohort)
            if ratio < 1:
                complaint = f"{plan.group} at once take {1 / ratio:.1f} times as long"
            else:
                faster = f"{plan.reason}, {ratio:.1f} times as fast as one at a time"
                plan = replace(plan, reason=faster)
        if complaint:
            plan = self._sequential(broadcast, cohort, f"{reason}: {complaint}")
        return self._build(plan, synthetic)

    def retake(self, plan: TrainingPlan, synthetic: Synthetic, broadcast: Broadcast) -> Choice:
        """Return the choice of another process, or of a run before it was stopped.

        Speed is not measured again. Equality is. A plan that is impossible here is Unsupported.
        """
        here = broadcast.device.type
        if plan.device != here:
            raise Unsupported(f"it was chosen on {plan.device}, and this is {here}")
        if self._vectorize not in ("auto", plan.vectorized):
            raise Unsupported(f"vectorize={self._vectorize} asks for another way")
        if plan.vectorized:
            complaint = self.compare(self._tasks(synthetic, broadcast), broadcast)
            if complaint:
                raise Unsupported(complaint)
        return self._build(plan, synthetic)

    def _build(self, plan: TrainingPlan, synthetic: Synthetic) -> Choice:
        parts = (self._method, self._batched, self._layout, plan.group)
        if self._examples and plan.vectorized:
            return Choice(plan, ExampleTrainer(*parts, synthetic.kind, synthetic.labels))
        together = VectorizedTrainer(*parts) if plan.vectorized else None
        trainer = RoundTrainer(self.alone, together, synthetic, self._local, plan.widest)
        return Choice(plan, trainer)

    def compare(self, tasks: Sequence[Task], broadcast: Broadcast) -> str:
        """Return a fault of training these clients at once, or nothing. Rule 1."""
        tasks = [task for task in tasks if task.plan.steps]
        try:
            # Without dropout, so that both trainers see the same function.
            with self._evaluating():
                same = self._agree(tasks, broadcast)
                if not same and all(v.dtype == torch.float32 for v in broadcast.anchor.values()):
                    # Rounding may decide on which side of its kink an activation lies, and then
                    # two correct results differ visibly. With 53 bits that hardly happens twice. A
                    # model that holds constants in float32 fails here.
                    with Trial():
                        same = self._agree(*_in_double(tasks, broadcast))
            # With dropout, for functions that torch.func refuses.
            self.vectorized.train(tasks, broadcast)
        except _UNBATCHABLE as error:
            first = str(error).strip().partition("\n")[0]
            place = self._failing_module(tasks, broadcast)
            return f"torch.func cannot batch this {place} ({line(first[:200])})"
        if same:
            return ""
        return (
            "groups give another result: a loss must be the mean over the examples of a batch, and "
            "a method must treat each client separately"
        )

    def _failing_module(self, tasks: Sequence[Task], broadcast: Broadcast) -> str:
        """Return the module of the model in which training in groups fails, in words."""
        names = {id(module): name for name, module in modules_of(self.model)}
        inside: list[nn.Module] = []

        def enter(module: nn.Module, *_: Any) -> None:
            inside.append(module)

        def leave(*_: Any) -> None:
            inside.pop()

        with ExitStack() as stack:
            for register, hook in (
                (register_module_forward_pre_hook, enter),
                (register_module_forward_hook, leave),
            ):
                stack.callback(register(cast("Any", hook)).remove)
            with suppress(*_UNBATCHABLE):
                self.vectorized.train(tasks, broadcast)
        found = [module for module in inside if id(module) in names]
        if not found:
            return "model or method"
        name, kind = names[id(found[-1])], type(found[-1]).__name__
        return f"model: {name or 'the model'} ({kind})"

    def _agree(self, tasks: Sequence[Task], broadcast: Broadcast) -> bool:
        expected = self.alone.train(tasks, broadcast)
        updates = self.vectorized.train(tasks, broadcast)
        finite = expected.isfinite().all(dim=1)
        # An update that is not finite is dropped, so both have to drop the same clients.
        if not torch.equal(finite, updates.isfinite().all(dim=1)):
            return False
        gap, scale = norm(updates - expected, dim=1), norm(expected, dim=1)
        floor = 1e-6 * norm(self._layout.flatten(broadcast.anchor))
        return bool((gap <= self._tolerance * scale + floor)[finite].all())

    @contextmanager
    def _evaluating(self) -> Generator[None]:
        training = self.model.training
        self.model.eval()
        try:
            yield
        finally:
            if training:
                set_training_mode(self.model)

    def _tasks(self, synthetic: Synthetic, broadcast: Broadcast) -> list[Task]:
        """Return clients of two batches (the second not full), one batch, and a few examples."""
        width = min(self._local.batch_size or _BATCH, _BATCH)
        sizes = (2 * width - width // 3, width, min(width, 2))
        clients = [synthetic.make(size, seed) for seed, size in enumerate(sizes)]
        if self._examples:
            clients = [synthetic.make(1, seed) for seed in range(3)]
        return [synthetic_task(data, self._method, broadcast) for data in clients]

    def _sequential(self, broadcast: Broadcast, cohort: int, reason: str) -> TrainingPlan:
        rows = max(1, self._limit // (16 * max(self._layout.size, 1)))
        chunk = max(self._chunk or min(cohort, rows), 1)
        return TrainingPlan(False, 1, 1, chunk, broadcast.device.type, reason)  # noqa: FBT003

    def _grouped(self, broadcast: Broadcast, cohort: int, fitting: int) -> TrainingPlan:
        """Return the plan of groups that take the least work and fit into memory."""
        device = broadcast.device.type

        def work(size: int) -> float:
            """Return the work of a round in clients, empty ones included."""
            return _expected_groups(cohort, size) * (size + _OVERHEAD)

        if self._examples:
            group = min(range(STEP, largest_group(self._layout) + 1, STEP), key=work)
            chunk = max(group, (self._chunk or fitting) // group * group)
            return TrainingPlan(True, group, 1, chunk, device, f"{group} examples at once")  # noqa: FBT003
        sizes = [size for size in _GROUPS if size <= fitting] or [max(fitting, 2)]
        group = self._chunk or min(sizes, key=work)
        width = self._local.batch_size or _BATCH
        # Of one full batch, clients may have as many examples as memory has room for.
        widest = max(width, fitting * width // group)
        chunk = self._chunk or max(group, min(4 * group, fitting // group * group))
        return TrainingPlan(True, group, widest, chunk, device, f"{group} clients at once")  # noqa: FBT003

    def _bytes_each(self, task: Task, broadcast: Broadcast) -> int:
        """Return the memory that one more client, or example, takes apart from its data."""
        rows = task.plan.indices[0]
        data = task.data.map(lambda values: values[rows])
        batch = Batch(data.inputs, data.targets, None)
        saved = 0

        def count(tensor: Tensor) -> Tensor:
            nonlocal saved
            saved += tensor.nbytes
            return tensor

        hooks = torch.autograd.graph.saved_tensors_hooks(count, lambda tensor: tensor)
        # A model that uses torch.func bears no hooks.
        with Trial(), cast("Any", hooks):
            self.loss.gradient(copies(broadcast.anchor), batch)
        if not self._examples and self._local.batch_size:
            saved = saved * self._local.batch_size // len(rows)
        held = _COPIES + (_ADAM_COPIES if isinstance(self._local, LocalAdam) else 0)
        return held * sum(value.nbytes for value in broadcast.anchor.values()) + 2 * saved

    def _speedup(self, plan: TrainingPlan, task: Task, broadcast: Broadcast, cohort: int) -> float:
        """Return how many times as fast as one by one a cohort is trained in groups. Rule 2."""
        # As many steps as the client would take, up to a few.
        steps = min(self._local.count_steps(len(task.data)), _TIMED_STEPS)
        again = [step % task.plan.steps for step in range(max(steps, task.plan.steps))]
        longer = BatchPlan(task.plan.indices[again], task.plan.counts[again])
        timed = replace(task, plan=longer)
        alone = _seconds(self.alone, [timed], broadcast)
        if alone > _SLOW and broadcast.device.type == "cpu":
            return 0.5
        trainer = VectorizedTrainer(self._method, self._batched, self._layout, plan.group)
        together = _seconds(trainer, [timed] * plan.group, broadcast)
        return alone * cohort / (together * _expected_groups(cohort, plan.group))


def _expected_groups(cohort: int, size: int) -> float:
    """Return the mean number of groups that a Poisson cohort fills."""
    spread = [cohort + step * math.sqrt(cohort) / 2 for step in range(-4, 5)]
    return sum(max(1, math.ceil(count / size)) for count in spread) / len(spread)


def _seconds(trainer: Trainer, tasks: Sequence[Task], broadcast: Broadcast) -> float:
    """Return the least time of three trainings. The first one also warms up."""
    best, cpu = math.inf, broadcast.device.type == "cpu"
    for _ in range(3):
        if not cpu:
            torch.cuda.synchronize(broadcast.device)
        began, spent = time.perf_counter(), time.process_time()
        trainer.train(tasks, broadcast)
        if not cpu:
            torch.cuda.synchronize(broadcast.device)
        # On a shared machine the clock also counts the time of other processes.
        own = time.process_time() - spent if cpu else math.inf
        best = min(best, time.perf_counter() - began, own or math.inf)
    return best


def _in_double(tasks: Sequence[Task], broadcast: Broadcast) -> tuple[list[Task], Broadcast]:
    """Return the same clients in float64."""

    def wide(values: Tensor) -> Tensor:
        return values.double() if values.dtype == torch.float32 else values

    def each(tensors: Params) -> Params:
        return {name: wide(value) for name, value in tensors.items()}

    clients = [
        replace(
            task,
            data=task.data.map(wide),
            state=None if task.state is None else each(task.state),
        )
        for task in tasks
    ]
    anchor, server = each(broadcast.anchor), each(broadcast.server_state)
    return clients, replace(broadcast, anchor=anchor, server_state=server)
