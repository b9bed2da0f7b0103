"""Which way of local training: measured on made-up clients, limited by memory.

Cohort-parallel training is taken where it gives what sequential training gives, shows nothing of
who is trained beside whom, and is faster. What does not fit `torch.func` (data-dependent control
flow, say) is trained sequentially. No client's data have a say in it.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from torch import nn

from dpacct import validate
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.guards.replica import separate
from dpacct.fl.layout import Layout, set_training_mode
from dpacct.fl.local.labels import Labels
from dpacct.fl.local.losses import LocalLoss, LossFunction
from dpacct.fl.local.sgd import SGD
from dpacct.fl.methods.protocol import Method
from dpacct.fl.trainers.addresses import shows_addresses
from dpacct.fl.trainers.agreement import disagreement, replays_exactly, unbatchable
from dpacct.fl.trainers.choice import Choice
from dpacct.fl.trainers.company import shows_company
from dpacct.fl.trainers.examples import Kind, Maker, made_up_task
from dpacct.fl.trainers.footprint import default_memory_limit
from dpacct.fl.trainers.groups import LANES, GroupTrainer, expected_groups, expected_work
from dpacct.fl.trainers.image_order import are_images
from dpacct.fl.trainers.number_widths import widths_in
from dpacct.fl.trainers.sequential import SequentialTrainer
from dpacct.fl.trainers.step_bytes import bytes_of_client
from dpacct.fl.trainers.stopwatch import Heat, faster, longer, seconds
from dpacct.fl.trainers.tasks import Broadcast, Task, Trainer
from dpacct.fl.trainers.tolerant import TolerantTrainer
from dpacct.fl.trainers.vectorized import VectorizedTrainer

ONE_BY_ONE = "one by one"
SIDE_BY_SIDE = "side by side"
_SIZES = (LANES, 2 * LANES, 4 * LANES)
# Examples of a made-up step, at most: how many a client has is not known.
_STEP = 32
# What share of the memory the clients' data may take.
_DATA_SHARE = 0.25
# Seconds for a few steps of the smallest group, one client after the other. On a CPU side by side
# saves what surrounds the arithmetic, and where arithmetic takes that long there is little of it.
_SLOW = 1.0
# And where it takes no longer than this, what is done once in a round has to be told from the rest.
_QUICK = 0.05
# Where the smallest group saves less than this, larger ones save no more that is worth a try.
_LITTLE = 1.3


class TrainerChooser:
    """Builds both trainers of a run and picks one.

    Args:
        model, loss, method, layout, local: of the run.
        vectorize: "auto", True or False.
        chunk: clients at a time, None for as many as fit.
        memory_limit: bytes for the clients of one chunk; None for `default_memory_limit`.

    Attributes:
        model: the copy that clients train. loss: with it.
        alone: trains one after the other. vectorized: trains all at once.
        vectorize, chunk: as asked. limit: bytes for what is in memory at a time.
        limited: whether the limit holds side by side, too.

    Raises:
        InvalidParameter: one of the last three makes no sense. Unsupported: no copy can be made.
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
        limit = default_memory_limit(next(model.parameters()).device)
        if memory_limit is not None:
            limit = validate.count("memory_limit", memory_limit, "a memory limit in bytes")

        self.model, objective = separate(model, loss)
        names, precision = layout.names, local.precision
        self.loss = LocalLoss(self.model, objective, names, precision, functional=False)
        self.alone = SequentialTrainer(method, self.loss, layout)
        self.vectorized = VectorizedTrainer(method, self.loss.batched(), layout)
        self._method = method
        self._layout = layout
        self._local = local
        self._width = min(local.batch_size or _STEP, _STEP)
        self.vectorize = vectorize
        self.chunk = chunk
        self.limit = limit
        # Asked for side by side and nothing else, clients get the memory that they need.
        self.limited = vectorize == "auto" or memory_limit is not None
        self._tolerance = 5e-2 if local.precision == "bfloat16" else 2e-3

    def trainers(self, tasks: Sequence[Task], broadcast: Broadcast) -> dict[str, Trainer]:
        """The ways in which these clients can be trained, as far as ``vectorize`` allows.

        Raises:
            Unsupported: vectorize=True, and this model or method cannot be.
        """
        found: dict[str, Trainer] = {ONE_BY_ONE: self.alone}
        tasks = [task for task in tasks if task.plan.steps]
        if self.vectorize is False or not tasks:
            return found
        complaint = self.compare(tasks, broadcast)
        if complaint and self.vectorize is True:
            raise Unsupported(f"vectorize=True, but {complaint}")
        if not complaint:
            found[SIDE_BY_SIDE] = GroupTrainer(self.vectorized)
        return found

    @contextmanager
    def still(self) -> Generator[None]:
        """Inside, the model is without dropout, so that everybody sees the same function."""
        training = self.model.training
        self.model.eval()
        try:
            yield
        finally:
            if training:
                set_training_mode(self.model)

    def choose(
        self, make: Maker, kind: Kind, labels: Labels | None, broadcast: Broadcast, cohort: int
    ) -> Choice:
        """Decide, from a few made-up clients.

        Args:
            make: makes them. kind, labels: of the examples of real ones.
            broadcast: of the round. cohort: planned number of workers in a round.
        Raises:
            Unsupported: vectorize=True, and this model or method cannot be.
        """
        if self.vectorize == "auto":
            self.alone.by_place = self._saves_by_place(make, kind, broadcast)
        one_by_one = TolerantTrainer(self._layout, self.alone, None, kind, labels, None)
        slow = Choice(one_by_one, self.chunk_alone(cohort), "one client at a time")
        few = self.vectorize == "auto" and (cohort < 2 or self.chunk == 1)
        if self.vectorize is False or few:
            return slow
        together, words = self._together(make, broadcast, cohort)
        if together is None:
            if self.vectorize is True:
                raise Unsupported(f"vectorize=True, but {words}")
            return replace(slow, reason=f"one client at a time{words}")
        # A client with more data than its share would break the limit: it is trained alone.
        share = None if self.chunk else int(_DATA_SHARE * self.limit) // (2 * together.clients)
        return Choice(replace(one_by_one, together=together, room=share), together.clients, words)

    def chunk_alone(self, cohort: int) -> int:
        """How many clients' updates are in memory at a time where clients train one by one."""
        rows = max(1, self.limit // (16 * max(self._layout.size, 1)))
        return self.chunk or min(cohort, rows)

    def most_examples(self, task: Task, broadcast: Broadcast) -> tuple[int, int]:
        """How many clients fit into memory side by side, and examples of their batches."""
        each = bytes_of_client(self.loss, self.vectorized, task, broadcast)
        fitting = int((1 - _DATA_SHARE) * self.limit) // each
        return fitting, max(fitting, 1) * self._width

    def made_up(self, make: Maker, broadcast: Broadcast) -> list[Task]:
        """Two batches, of which the second is not full where it need not be; one; a narrow one."""
        width = self._width
        sizes = (2 * width - width // 3, width, min(width, 2))
        people = [make(size, seed) for seed, size in enumerate(sizes)]
        return [made_up_task(data, self._method, broadcast) for data in people]

    def _saves_by_place(self, make: Maker, kind: Kind, broadcast: Broadcast) -> bool:
        """Whether one client is trained faster, to the same update, with images place by place."""
        if not are_images(kind):
            return False
        tasks = self.made_up(make, broadcast)
        other = self.same_by_place(tasks, broadcast)
        return other is not None and faster(other, self.alone, tasks[:1], broadcast)

    def same_by_place(
        self, tasks: Sequence[Task], broadcast: Broadcast
    ) -> SequentialTrainer | None:
        """A trainer that gives a model its images place by place; None where updates differ."""
        other = SequentialTrainer(self._method, self.loss, self._layout, by_place=True)
        return None if self.compare(tasks, broadcast, other) else other

    def _together(
        self, make: Maker, broadcast: Broadcast, cohort: int
    ) -> tuple[GroupTrainer | None, str]:
        """The best way side by side, None where it is none; and why."""
        tasks = self.made_up(make, broadcast)
        fitting, examples = self.most_examples(tasks[0], broadcast)
        complaint = shows_addresses(next(iter(broadcast.anchor.values())).device)
        if self.limited and fitting < LANES:
            complaint = f"memory has no room for {LANES}"
        complaint = complaint or self.compare(tasks, broadcast)
        if complaint:
            return self._refused(complaint)
        lanes = widths_in(self.vectorized, tasks[:1], broadcast).lanes
        if self.limited and fitting < lanes:
            return self._refused(f"memory has no room for {lanes}")
        trainers = [
            GroupTrainer(self.vectorized, size, examples // size)
            for size in self.sizes(cohort, fitting, lanes)
        ]
        best = min(trainers, key=lambda one: expected_work(cohort, one.clients))
        words = "side by side, as asked"
        if self.vectorize == "auto":
            best, words = self._fastest(tasks, broadcast, trainers, cohort)
        if best is not None:
            complaint = shows_company(best, tasks, broadcast)
        return self._refused(complaint) if complaint else (best, words)

    def _refused(self, complaint: str) -> tuple[None, str]:
        return None, complaint if self.vectorize is True else f": {complaint}"

    def sizes(self, cohort: int, fitting: int, lanes: int) -> list[int]:
        """How many clients may train side by side: multiples of ``lanes``, ascending."""
        # A Poisson cohort is larger than planned half of the time: leave most of them whole.
        asked = self.chunk or math.ceil(cohort + 2 * math.sqrt(cohort))
        most = lanes * math.ceil(asked / lanes)
        if self.chunk:
            return [most]
        most = min(most, max(lanes, lanes * (fitting // lanes)), _SIZES[-1])
        return sorted({max(lanes, min(size, most)) for size in _SIZES})

    def _fastest(
        self,
        tasks: Sequence[Task],
        broadcast: Broadcast,
        trainers: Sequence[GroupTrainer],
        cohort: int,
    ) -> tuple[GroupTrainer | None, str]:
        """The trainer that is fastest, None for one client at a time; and what was measured."""
        [alone] = seconds([Heat(self.alone, tasks[:1])], broadcast)
        if alone * LANES > _SLOW and next(iter(broadcast.anchor.values())).is_cpu:
            return None, ": a step takes long enough for nothing to be saved around it"
        quick = alone * LANES < _QUICK
        if quick:
            tasks = [longer(task, self._local) for task in tasks]
        heats = [Heat(self.alone, tasks[:1])]
        for trainer in trainers:
            many = [tasks[place % len(tasks)] for place in range(trainer.clients)]
            heats.append(Heat(trainer, many))
        alone, *times = seconds(heats if quick else heats[:2], broadcast)
        if not quick and alone * trainers[0].clients > _LITTLE * times[0]:
            alone, *times = seconds(heats, broadcast)
        best, best_time, least = None, alone, float("inf")
        words = ""
        for trainer, whole in zip(trainers, times, strict=False):
            size = trainer.clients
            # Whoever does not come takes as long as somebody who does.
            each = whole * expected_groups(cohort, size) / cohort
            least = min(least, each)
            # Timing is noisy, and fewer chunks have less around them: more clients win a near tie.
            if each < (best_time if best is None else 1.1 * best_time):
                words = f"{size} side by side, {alone / each:.1f} times as fast as one at a time"
                best, best_time = trainer, each
        if best is None:
            words = f", {least / alone:.1f} times as fast as side by side"
        return best, words

    def compare(
        self, tasks: Sequence[Task], broadcast: Broadcast, trainer: Trainer | None = None
    ) -> str:
        """What is wrong with training these side by side, or nothing.

        Args:
            tasks, broadcast: what is trained.
            trainer: that is compared with one-by-one training; default `vectorized`.
        """
        together = self.vectorized if trainer is None else trainer
        if together is self.vectorized:
            # Two of them: the bits of a step do not depend on how many there are.
            self.vectorized.replays = replays_exactly(self.vectorized, tasks[:2], broadcast)
        with self.still():
            found = disagreement(self.alone, together, tasks, broadcast, self._tolerance)
        return found or unbatchable(together, tasks, broadcast)
