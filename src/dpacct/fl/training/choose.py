"""How a run trains: one client at a time, or groups of them at once, compared on synthetic clients.

Rule 1: groups are used only if they give the updates of one-by-one training, to 1e-4 of their norm.
Rule 2: of two equal ways the faster one is taken. A seeded run does not measure, so that it can be
repeated, and single examples are always trained in groups. Rule 3: the choice follows from public
values and synthetic clients alone, and is kept in the checkpoint.
"""

from __future__ import annotations

import math
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor, nn

from dpacct import validate
from dpacct.display import line
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.clients import ClientData
from dpacct.fl.layout import Layout, Params, State, copies, set_training_mode
from dpacct.fl.local.batches import Batch, BatchPlan, padded_width
from dpacct.fl.local.losses import Labels, LocalLoss, LossFunction, separate
from dpacct.fl.local.sgd import SGD
from dpacct.fl.methods.protocol import Method
from dpacct.fl.tensors import listed, norm
from dpacct.fl.training.examples import STEP, ExampleTrainer, largest_group
from dpacct.fl.training.sequential import SequentialTrainer
from dpacct.fl.training.synthetic import Kind, Maker, synthetic_task
from dpacct.fl.training.tasks import Broadcast, Task, Trainer, Trial
from dpacct.fl.training.vectorized import VectorizedTrainer

_GIB = 1 << 30
_GROUPS = (16, 32, 64, 128)
# What surrounds the arithmetic of a group takes about as long as so many more small clients.
_OVERHEAD = 24
# Copies of the parameters that a client in a group takes, with its gradient and momentum.
_COPIES = 6
# Examples of a synthetic batch, at most: how many a client has is not known.
_BATCH = 32
# Seconds for a client after which a CPU has nothing to save around the arithmetic.
_SLOW = 0.3
# Steps of a client that is timed, at most.
_TIMED_STEPS = 10
# What a model raises that `torch.func` cannot batch.
_UNBATCHABLE = (RuntimeError, ValueError, TypeError, LookupError, AttributeError)
_LONGEST = 1000


@dataclass(frozen=True, slots=True)
class TrainingPlan:
    """How clients, or examples, are trained: public, and the same on all ranks.

    Attributes:
        vectorized: whether in groups. group: clients in a group.
        widest: examples in a batch of a group, at most; clients with more are trained alone.
        chunk: clients whose updates are in memory at a time.
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
        mine, theirs = (
            (plan.vectorized, plan.vectorized and (plan.group, plan.widest))
            for plan in (self, other)
        )
        return mine == theirs

    def plain(self) -> dict[str, Any]:
        """Return the plan as a checkpoint holds it."""
        return asdict(self) | {"reason": line(self.reason, _LONGEST)[:_LONGEST]}

    @classmethod
    def of(cls, content: object) -> TrainingPlan | None:
        """Read what `plain` wrote; None if a checkpoint holds no plan.

        Raises:
            InvalidParameter: it is damaged.
        """
        if content is None:
            return None
        kinds: dict[str, type] = dict.fromkeys(("group", "widest", "chunk"), int)
        kinds |= {"vectorized": bool, "device": str, "reason": str}
        found: dict[str, Any] = cast("Any", content) if isinstance(content, dict) else {}
        right = found.keys() == kinds.keys() and all(
            type(found[name]) is kind for name, kind in kinds.items()
        )
        if not right or min(found["group"], found["widest"], found["chunk"]) < 1:
            rule = "it says how clients are trained"
            raise InvalidParameter("training plan", str(found)[:60], rule)
        return cls(**found)


@dataclass(frozen=True, slots=True, eq=False)
class RoundTrainer:
    """The `Trainer` of real rounds: no client's data can stop it, or change another update.

    Attributes:
        alone: trains one client after the other. together: trains groups, or None.
        kind: of the examples of clients in groups. labels: their targets, None for any.
        local: of the run. widest: see `TrainingPlan`.
    """

    alone: SequentialTrainer
    together: VectorizedTrainer | None
    kind: Kind
    labels: Labels | None
    local: SGD
    widest: int

    def admit(self, data: ClientData) -> bool:
        """See `Trainer`."""
        fitting = self.labels is None or self.labels.check(data.targets)
        if self.together is None or not fitting or Kind.of(data) != self.kind:
            return False
        return padded_width(len(data), self.local) <= self.widest

    def train(self, tasks: Sequence[Task], broadcast: Broadcast) -> Tensor:
        """See `Trainer`; a client that fails has a row of NaN."""
        grouped = [self.together is not None and not task.alone for task in tasks]
        rows = self.alone.attempt(
            [replace(t, failed=t.failed or g) for t, g in zip(tasks, grouped, strict=True)],
            broadcast,
        )
        places = [n for n, task in enumerate(tasks) if grouped[n] and not task.failed]
        self._train_groups(tasks, places, broadcast, rows)
        return rows

    def _train_groups(
        self, tasks: Sequence[Task], places: list[int], broadcast: Broadcast, rows: Tensor
    ) -> None:
        """Fill in rows; clients are split until it is clear whose data raise an error.

        The other clients lose nothing: their updates are the same whoever shares their group.
        """
        if self.together is None or not places:
            return
        with Trial() as trial:
            found = self.together.train([tasks[place] for place in places], broadcast)
            rows[listed(places, rows.device)] = found
        if trial.error is not None and len(places) > 1:
            half = len(places) // 2
            self._train_groups(tasks, places[:half], broadcast, rows)
            self._train_groups(tasks, places[half:], broadcast, rows)

    def remember(
        self, tasks: Sequence[Task], rows: Tensor, broadcast: Broadcast
    ) -> list[State] | None:
        """See `Trainer`; a client that fails keeps its memory as it is."""
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
    """The plan of a run with its trainer.

    Attributes:
        note: on a plan that could not be kept; empty for none.
    """

    plan: TrainingPlan
    trainer: RoundTrainer | ExampleTrainer
    kind: Kind
    labels: Labels | None
    note: str = ""

    @property
    def words(self) -> str:
        """How clients are trained, and why."""
        return f"{self.plan.reason}; {self.note}" if self.note else self.plan.reason


class TrainerChooser:
    """Builds both trainers of a run and picks one.

    Args:
        model, loss, method, layout, local: of the run.
        vectorize: "auto", True or False. chunk: clients at a time, None for as many as fit.
        memory_limit: bytes for what is in memory at a time; None for 1 GiB, or 40 % of what is free
            on a GPU.
        examples: whether the population are single examples.

    Attributes:
        model: the copy that clients train. loss: with it.
        alone: trains one by one. vectorized: trains small groups. Both raise a client's errors.

    Raises:
        InvalidParameter: one of the settings makes no sense. Unsupported: no copy can be made.
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
        device = next(model.parameters()).device
        self._limit = memory_limit or _default_memory(device)
        self.model, objective = separate(model, loss)
        self.loss = LocalLoss(
            self.model, objective, layout.names, local.precision, functional=False
        )
        self._method, self._layout, self._local = method, layout, local
        self._vectorize, self._chunk, self._examples = vectorize, chunk, examples
        self.alone = SequentialTrainer(method, self.loss, layout)
        self._batched = self.loss.batched()
        self.vectorized: VectorizedTrainer | ExampleTrainer = (
            ExampleTrainer(method, self._batched, layout, 2)
            if examples
            else VectorizedTrainer(method, self._batched, layout, 2)
        )
        self._tolerance = 5e-2 if local.precision == "bfloat16" else 1e-4

    def choose(
        self,
        make: Maker,
        kind: Kind,
        labels: Labels | None,
        broadcast: Broadcast,
        cohort: int,
        *,
        timed: bool = True,
    ) -> Choice:
        """Decide, on a few synthetic clients.

        Args:
            make: makes them. kind, labels: of the examples of real ones.
            broadcast: of the round. cohort: planned number of workers in a round.
            timed: whether the faster way may be measured.
        Raises:
            Unsupported: vectorize=True, and this model or method cannot be.
        """
        unit = "example" if self._examples else "client"
        few = not self._examples and (cohort < 2 or self._chunk == 1)
        if self._vectorize is False or (self._vectorize == "auto" and few):
            return self.build(
                self._sequential(broadcast, cohort, f"one {unit} at a time"), kind, labels
            )
        tasks = self._tasks(make, broadcast)
        fitting = self._limit // max(self._bytes_each(tasks[0], broadcast), 1)
        plan = self._grouped(broadcast, cohort, fitting)
        complaint = "" if fitting >= 2 else "memory has no room for two at once"
        complaint = complaint or self.compare(tasks, broadcast)
        if complaint and self._vectorize is True:
            raise Unsupported(f"vectorize=True, but {complaint}")
        measured = self._vectorize == "auto" and timed and not self._examples
        if not complaint and measured:
            ratio = self._speedup(plan, tasks, broadcast, cohort)
            if ratio < 1:
                complaint = f"{plan.group} at once take {1 / ratio:.1f} times as long"
            else:
                plan = replace(
                    plan, reason=f"{plan.reason}, {ratio:.1f} times as fast as one at a time"
                )
        if complaint:
            plan = self._sequential(broadcast, cohort, f"one {unit} at a time: {complaint}")
        return self.build(plan, kind, labels)

    def retake(
        self,
        plan: TrainingPlan,
        make: Maker,
        kind: Kind,
        labels: Labels | None,
        broadcast: Broadcast,
    ) -> Choice:
        """Return the choice of another process, or of a run before it was stopped.

        Speed is not measured again. Equality is.

        Raises:
            Unsupported: that plan is not possible here.
        """
        if plan.device != broadcast.device.type:
            raise Unsupported(
                f"it was chosen on {plan.device}, and this is {broadcast.device.type}"
            )
        if self._vectorize not in ("auto", plan.vectorized):
            raise Unsupported(f"vectorize={self._vectorize} asks for another way")
        if plan.vectorized:
            complaint = self.compare(self._tasks(make, broadcast), broadcast)
            if complaint:
                raise Unsupported(complaint)
        return self.build(plan, kind, labels)

    def build(self, plan: TrainingPlan, kind: Kind, labels: Labels | None) -> Choice:
        """Return the trainer of a plan."""
        method, layout = self._method, self._layout
        if self._examples and plan.vectorized:
            trainer = ExampleTrainer(method, self._batched, layout, plan.group, kind, labels)
            return Choice(plan, trainer, kind, labels)
        together = VectorizedTrainer(method, self._batched, layout, plan.group)
        grouped = together if plan.vectorized else None
        return Choice(
            plan,
            RoundTrainer(self.alone, grouped, kind, labels, self._local, plan.widest),
            kind,
            labels,
        )

    def compare(self, tasks: Sequence[Task], broadcast: Broadcast) -> str:
        """Return what is wrong with training these clients at once, or nothing. Rule 1."""
        tasks = [task for task in tasks if task.plan.steps]
        try:
            # Without dropout, so that both trainers see the same function.
            with self._evaluating():
                same = self._agree(tasks, broadcast)
                wide = None if same else _in_double(tasks, broadcast)
                if wide is not None:
                    # A model that holds constants in float32 fails here.
                    with Trial():
                        same = self._agree(*wide)
            # With dropout, for what torch.func refuses.
            self.vectorized.train(tasks, broadcast)
        except _UNBATCHABLE as error:
            first = str(error).strip().partition("\n")[0]
            return f"torch.func cannot batch this model or method ({line(first[:200])})"
        if same:
            return ""
        return (
            "groups give another result: a loss must be the mean over the examples of a batch, and "
            "a method must treat each client by itself"
        )

    def _agree(self, tasks: Sequence[Task], broadcast: Broadcast) -> bool:
        expected = self.alone.train(tasks, broadcast)
        found = self.vectorized.train(tasks, broadcast)
        gap, scale = norm(found - expected, dim=1), norm(expected, dim=1)
        floor = 1e-6 * norm(self._layout.flatten(broadcast.anchor))
        near = (gap <= self._tolerance * scale + floor).all()
        return bool(near) or not bool(gap.isfinite().all())

    @contextmanager
    def _evaluating(self) -> Generator[None]:
        training = self.model.training
        self.model.eval()
        try:
            yield
        finally:
            if training:
                set_training_mode(self.model)

    def _tasks(self, make: Maker, broadcast: Broadcast) -> list[Task]:
        """Return a client of two batches, of which the second is not full; one batch; a few."""
        if self._examples:
            people = [make(1, seed) for seed in range(3)]
        else:
            width = min(self._local.batch_size or _BATCH, _BATCH)
            sizes = (2 * width - width // 3, width, min(width, 2))
            people = [make(size, seed) for seed, size in enumerate(sizes)]
        return [synthetic_task(data, self._method, broadcast) for data in people]

    def _sequential(self, broadcast: Broadcast, cohort: int, reason: str) -> TrainingPlan:
        rows = max(1, self._limit // (16 * max(self._layout.size, 1)))
        chunk = self._chunk or min(cohort, rows)
        return TrainingPlan(False, 1, 1, max(chunk, 1), broadcast.device.type, reason)  # noqa: FBT003

    def _grouped(self, broadcast: Broadcast, cohort: int, fitting: int) -> TrainingPlan:
        """Return the plan of groups that take the least work and fit into memory."""
        device = broadcast.device.type
        if self._examples:
            sizes = range(STEP, largest_group(self._layout) + 1, STEP)
            group = min(sizes, key=lambda size: _expected_work(cohort, size))
            chunk = max(group, (self._chunk or fitting) // group * group)
            return TrainingPlan(True, group, 1, chunk, device, f"{group} examples at once")  # noqa: FBT003
        sizes = [size for size in _GROUPS if size <= fitting] or [max(fitting, 2)]
        group = self._chunk or min(sizes, key=lambda size: _expected_work(cohort, size))
        width = self._local.batch_size or _BATCH
        # Of one full batch, clients may have as many examples as memory has room for.
        widest = max(width, fitting * width // group)
        chunk = self._chunk or max(group, min(4 * group, fitting // group * group))
        return TrainingPlan(True, group, widest, chunk, device, f"{group} clients at once")  # noqa: FBT003

    def _bytes_each(self, task: Task, broadcast: Broadcast) -> int:
        """Return the memory that one more client, or example, takes beside its data."""
        rows = task.plan.indices[0]
        batch = Batch(task.data.inputs[rows], task.data.targets[rows], None)
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
        return _COPIES * sum(value.nbytes for value in broadcast.anchor.values()) + 2 * saved

    def _speedup(
        self, plan: TrainingPlan, tasks: Sequence[Task], broadcast: Broadcast, cohort: int
    ) -> float:
        """Return how many times as fast as one by one a cohort is trained in groups. Rule 2."""
        timed = self._longer(tasks[0])
        alone = _seconds(self.alone, [timed], broadcast)
        if alone > _SLOW and broadcast.device.type == "cpu":
            return 0.5
        trainer = VectorizedTrainer(self._method, self._batched, self._layout, plan.group)
        whole = _seconds(trainer, [timed] * plan.group, broadcast)
        return alone * cohort / (whole * _expected_groups(cohort, plan.group))

    def _longer(self, task: Task) -> Task:
        """Return a client with as many steps as it would take, up to a few."""
        plan = task.plan
        steps = min(self._local.count_steps(len(task.data)), _TIMED_STEPS)
        again = [step % plan.steps for step in range(max(steps, plan.steps))]
        return replace(task, plan=BatchPlan(plan.indices[again], plan.counts[again]))


def _default_memory(device: torch.device) -> int:
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return max(_GIB, int(0.4 * free))
    return _GIB


def _expected_groups(cohort: int, size: int) -> float:
    """Return the mean number of groups that a Poisson cohort fills."""
    spread = [cohort + step * math.sqrt(cohort) / 2 for step in range(-4, 5)]
    return sum(max(1, math.ceil(count / size)) for count in spread) / len(spread)


def _expected_work(cohort: int, size: int) -> float:
    """Return the work of a round in clients, empty ones included."""
    return _expected_groups(cohort, size) * (size + _OVERHEAD)


def _seconds(trainer: Trainer, tasks: Sequence[Task], broadcast: Broadcast) -> float:
    """Return the least time of three trainings; the first one also warms up."""
    best = math.inf
    cpu = broadcast.device.type == "cpu"
    for _ in range(3):
        if not cpu:
            torch.cuda.synchronize(broadcast.device)
        began, spent = time.perf_counter(), time.process_time()
        trainer.train(tasks, broadcast)
        if not cpu:
            torch.cuda.synchronize(broadcast.device)
        taken = time.perf_counter() - began
        # On a shared machine the clock also counts the time of others.
        own = time.process_time() - spent if cpu else 0.0
        best = min(best, taken, own or taken)
    return best


def _in_double(tasks: Sequence[Task], broadcast: Broadcast) -> tuple[list[Task], Broadcast] | None:
    """Return the same clients in float64, None if they are.

    Rounding may decide on which side of its kink an activation lies, and then two correct results
    differ visibly; with 53 bits that hardly happens twice.
    """
    if any(value.dtype == torch.float64 for value in broadcast.anchor.values()):
        return None

    def wide(values: Tensor) -> Tensor:
        return values.double() if values.dtype == torch.float32 else values

    def each(tensors: Params) -> Params:
        return {name: wide(value) for name, value in tensors.items()}

    people = [
        replace(
            task,
            data=ClientData(wide(task.data.inputs), wide(task.data.targets)),
            state=None if task.state is None else each(task.state),
        )
        for task in tasks
    ]
    anchor, server = each(broadcast.anchor), each(broadcast.server_state)
    return people, replace(broadcast, anchor=anchor, server_state=server)
