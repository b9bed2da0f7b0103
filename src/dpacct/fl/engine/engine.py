"""The stages of one round, in which no method can leave one out. `rounds` has their order.

Rule 1: every update passes the mask and the bound. Rule 2: noise is added to any
cohort, the empty one included, and the divisor is that of the plan. Rule 3: the stages after the
noise use `Noised` and public state alone. Rule 4: only members contribute. A worker outside the
cohort computes and remembers, and adds nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from dpacct.errors import Unsupported
from dpacct.fl.clients import Canary, Examples, Population, checked
from dpacct.fl.engine.states import (
    HOST,
    Collected,
    Contributions,
    Draw,
    Released,
    TrainingState,
    client_seed,
    together,
)
from dpacct.fl.layout import Layout, Noised, State, copies, scatter
from dpacct.fl.local.sgd import SGD, RoundValues, chunks, plan_batches
from dpacct.fl.methods.protocol import Cohort, Method, checked_state, moves_plainly, overrides
from dpacct.fl.postprocess import Average, ServerOptimizer, ServerState
from dpacct.fl.privacy.account import RoundNoise
from dpacct.fl.privacy.allocation import Allocation, Allocator
from dpacct.fl.privacy.bounds import INDICATOR_NORM, AdaptiveClip
from dpacct.fl.privacy.noise import GaussianNoise, Noise, drawn_std, sums_as_they_are
from dpacct.fl.privacy.randomness import Randomness, Seeded, draw_cohort, normals, torch_seed
from dpacct.fl.privacy.sums import (
    add_clipped,
    add_rows,
    coarsest_grid,
    contribute,
    received,
    scales_rows,
)
from dpacct.fl.tensors import undisturbed
from dpacct.fl.training.examples import ExampleTrainer, Gradients
from dpacct.fl.training.tasks import NO_DATA, NO_STEPS, Broadcast, Task, Trainer, Trial

INDICATOR_LIMITS = [(0, 1, INDICATOR_NORM)]


@dataclass(frozen=True, slots=True, eq=False)
class Engine:
    """The parts of a run.

    ``plan`` has noise and sampling of the next round. `RunPlan` replaces it from round to round.
    """

    clients: Population
    method: Method
    layout: Layout
    local: SGD
    plan: RoundNoise
    noise: Noise
    source: Randomness
    device: torch.device
    server_lr: float | RoundValues
    server: ServerOptimizer | None = None
    allocator: Allocator | None = None
    average: Average | None = None
    num_clients: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_clients", len(self.clients))

    def broadcast(self, state: TrainingState) -> Broadcast:
        """Return the public values that clients of the next round receive."""
        server = ServerState.of(state.server_state).method
        norm = state.bound.clip_norm
        return Broadcast(state.round + 1, dict(state.params), server, self.local, norm)

    def traffic(self, state: TrainingState, collected: Collected) -> tuple[int, int]:
        """Return the bytes of the values that a client of the round receives, and that it sends.

        Places of kept coordinates are public, and are not counted.
        """
        public = self.broadcast(state)
        received = [*public.anchor.values(), *public.server_state.values()]
        sent = len(collected.total) + (collected.indicators is not None)
        return sum(value.nbytes for value in received), sent * received[0].element_size()

    def draw(self, row: int | None = None) -> Draw:
        """Draw the cohort of a round from the run's randomness, or that of a row of noise.

        With an allocation it is that of a row: the number of the round, from 0.
        """
        correlation, sampling, count = self.plan.correlation, self.plan.sampling, self.num_clients
        if row is not None and correlation is not None:
            return self.draw_for(correlation.cohorts.members(row, count, self.source))
        if row is not None and self.allocator is not None:
            members = self.allocator.members(row, count)
        elif correlation is None and not isinstance(sampling, Allocation):
            members = draw_cohort(sampling, count, self.source)
        else:
            raise Unsupported("a cohort without its row of noise, or its step of the epoch")
        return self.draw_for(members)

    def draw_for(self, members: Sequence[int]) -> Draw:
        """Return a draw with this cohort."""
        workers = range(self.num_clients) if self.method.everyone_computes else members
        seed = torch_seed(self.source)
        return Draw(members, workers, seed, torch_seed(self.source))

    @undisturbed()
    def open(self, state: TrainingState, draw: Draw | None = None) -> Collected:
        """Return empty sums of the next round, for the coordinates of its mask and this draw."""
        released = None if state.released is None else state.released.clone()
        kept = self.method.mask.select(self.layout, state.round + 1, released)
        kept = None if kept is None else kept.to(self.device)
        layout = self.layout if kept is None else self.layout.restrict(kept)
        return Collected(
            self.noise.zeros(layout.size, self.device),
            self.noise.zeros(1, self.device) if isinstance(state.bound, AdaptiveClip) else None,
            state.bound,
            kept,
            layout,
            frozenset(() if draw is None else draw.members),
            b"" if draw is None else draw.token,
        )

    def collect(self, state: TrainingState, draw: Draw, trainer: Trainer, chunk: int) -> Collected:
        """Train, mask, bound and sum a cohort, or a share of it: all stages before the noise.

        Training draws from the global generators, so `forked_generators` is around this. At most
        ``chunk`` clients are held in memory at a time.
        """
        collected, broadcast = self.open(state, draw), self.broadcast(state)
        for part in chunks(draw.workers, chunk):
            if isinstance(trainer, ExampleTrainer) and isinstance(self.clients, Examples):
                # Each group is summed while a cache holds it.
                seeds = [draw.seed_of(example) for example in part]
                batch, done = trainer.read(self.clients, part, seeds, self.device), 0
                for group in trainer.groups(batch, broadcast):
                    self._add_group(collected, self.clients, group, part[done : done + len(group)])
                    done += len(group)
                continue
            tasks = self.tasks(part, state, draw.order, trainer)
            rows = trainer.train(tasks, broadcast)
            for row, task in zip(rows, tasks, strict=True):
                if task.planted is not None:
                    row.copy_(task.planted)
            contributions = self.bound(collected, rows)
            self.add(collected, part, contributions)
            if tasks[0].state is not None:
                inside = scatter(contributions.rows, collected.kept, self.layout.size)
                memories = zip(part, trainer.remember(tasks, inside, broadcast) or [], strict=True)
                # Memories of all clients may be too many for a device.
                held = {(c, name): v for c, new in memories for name, v in new.items()}
                own = {k: v.clone() if v.device == HOST else v for k, v in held.items()}
                for (client, name), value in together(own).items():
                    collected.memories.setdefault(client, {})[name] = value
        return collected

    def _add_group(
        self, collected: Collected, examples: Examples, group: Gradients, numbers: Sequence[int]
    ) -> None:
        """Mask, bound and add a group of examples, all of which are members. Rule 1."""
        bound, plan = collected.bound, self.plan
        simple = scales_rows(bound) and sums_as_they_are(self.noise)
        simple &= not self.method.as_printed and not examples.plants
        if simple and collected.kept is None:
            grid = coarsest_grid(plan.update_std(bound), plan.cohort_size)
            most, scale = plan.contributions, group.scale
            norms, bad = add_clipped(
                collected.total, group.parts, bound, most, coarsest=grid, scale=scale
            )
            collected.clients.extend(numbers)
            self._count(collected, norms, norms <= bound.clip_norm, bad)
            return
        rows = group.rows()
        for row, number in zip(rows, numbers, strict=True):
            update = examples.planted(number) if examples.plants else None
            if update is not None:
                row.copy_(update)
        self.add(collected, numbers, self.bound(collected, rows))

    def bound(self, collected: Collected, rows: Tensor) -> Contributions:
        """Mask and bound raw updates [c, d], which may be changed in place. Rule 1."""
        rows = rows if collected.kept is None else rows.index_select(1, collected.kept)
        inside, norms, bad = contribute(
            rows, collected.bound, collected.layout, self.plan.contributions
        )
        return Contributions(inside, norms, norms <= collected.bound.clip_norm, bad)

    def check(self, collected: Collected, rows: Tensor, below: Tensor) -> Contributions:
        """Hold updates [c, k] that were masked and bounded elsewhere to the same limits. Rule 1.

        Rows that `contribute` has made keep every bit. ``below`` is as in `Contributions`.
        """
        inside, norms, bad = received(
            rows, collected.bound, collected.layout, self.plan.contributions
        )
        return Contributions(inside, norms, below & ~bad, bad)

    def add(
        self, collected: Collected, clients: Sequence[int], contributions: Contributions
    ) -> None:
        """Add the contributions of workers to the sums of a round. Rule 4."""
        collected.clients.extend(clients)
        contributions = contributions.of(clients, collected.members)
        rows = contributions.rows
        if self.method.as_printed:
            collected.rows.append(rows.double())
        encoded = self.noise.encode(rows, collected.limits, self.plan.update_std(collected.bound))
        add_rows(collected.total, encoded)
        self._count(collected, contributions.norms, contributions.below, contributions.bad)

    def _count(self, collected: Collected, norms: Tensor, below: Tensor, bad: Tensor) -> None:
        """Count contributions and sum their indicators, with arguments as in `Contributions`."""
        if collected.indicators is not None:
            signs = torch.where(below, INDICATOR_NORM, -INDICATOR_NORM).to(norms.dtype)
            std = self.plan.indicator_std(collected.bound) or 0.0
            add_rows(
                collected.indicators, self.noise.encode(signs.unsqueeze(1), INDICATOR_LIMITS, std)
            )
        collected.arrived += len(norms)
        collected.norms.append(norms)
        collected.dropped.append(bad.sum())

    @undisturbed()
    def release(
        self, state: TrainingState, collected: Collected, row: int | None = None
    ) -> Released | None:
        """Add the noise, and divide by the planned cohort size. Rule 2.

        Correlated noise has its row, counted from 0. Returns None if too few noise shares arrived:
        then nothing may leave.
        """
        bound, plan, kept, limits = collected.bound, self.plan, collected.kept, collected.limits
        std = drawn_std(self.noise, plan.update_std(bound), collected.arrived)
        if std is None:
            return None
        stream = state.noise
        if stream is not None and row is not None:
            made = stream.take(row)
            noisy = collected.total + std * (made if kept is None else made[kept])
            std *= stream.std(row)
        elif self.method.as_printed:
            noisy, std = self.method.published(self._cohort(collected, std))
        else:
            noisy = self.noise.add(collected.total, limits, std, self.source)
        indicator_sum, indicator_std = None, plan.indicator_std(bound)
        if collected.indicators is not None and indicator_std is not None:
            own = drawn_std(self.noise, indicator_std, collected.arrived)
            if own is None:
                return None
            noisy_count = self.noise.add(collected.indicators, INDICATOR_LIMITS, own, self.source)
            indicator_sum = float(noisy_count)
        dtype, number = next(iter(state.params.values())).dtype, state.round + 1
        mean = Noised(
            scatter((noisy / plan.cohort_size).to(dtype), kept, self.layout.size),
            self.layout,
            std=std / plan.cohort_size,
            kept=kept,
            round=number,
            lr=self.local.learning_rate(number),
            steps=self.local.steps,
            server_lr=self.server_lr(number) if callable(self.server_lr) else self.server_lr,
            cohort_size=plan.cohort_size,
            sampling_rate=plan.cohort_share,
        )
        return Released(mean, indicator_sum)

    def _cohort(self, collected: Collected, std: float) -> Cohort:
        """Return the updates of a round one by one, for a method as printed."""
        none = collected.total.new_zeros(0, len(collected.total))
        rows, norms = torch.cat([none, *collected.rows]), torch.cat([none[:, 0], *collected.norms])
        clip_norm, sizes = collected.bound.clip_norm, collected.layout.sizes
        draw = partial(normals, self.source, device=self.device)
        return Cohort(rows, norms, std, clip_norm, self.plan.cohort_size, sizes, draw)

    @undisturbed()
    def apply(self, state: TrainingState, release: Released) -> TrainingState:
        """Return the next state. Methods get copies of the release and of public state. Rule 3."""
        public, optimizer, average = ServerState.of(state.server_state)
        if plainly := moves_plainly(self.method):
            moved, new_state = self.method.server(state.params, release.mean, public)
        else:
            mean = release.mean.map(torch.clone)
            noised_mean = self.method.post(mean, copies(public))
            moved, new_state = self.method.server(copies(state.params), noised_mean, copies(public))
        if self.server is not None:
            moves = {name: moved[name] - value for name, value in state.params.items()}
            steps, optimizer = self.server.step(moves, copies(optimizer))
            moved = {name: value + steps[name] for name, value in state.params.items()}
        after, bound = {name: moved[name] for name in self.layout.names}, state.bound
        if self.average is not None:
            average = self.average.step(after, average)
        if isinstance(bound, AdaptiveClip) and release.indicator_sum is not None:
            bound = bound.adapt(release.indicator_sum, self.plan.cohort_size)
        return TrainingState(
            state.round + 1,
            after if plainly else copies(after),
            copies(ServerState(new_state, optimizer, average).together()),
            state.client_states,
            bound,
            release.mean.vector,
            state.noise,
        )

    def tasks(
        self,
        clients: Sequence[int],
        state: TrainingState,
        order: int,
        trainer: Trainer | None = None,
    ) -> list[Task]:
        """Return clients with their batches and copies of their memories, which are on the device.

        ``order`` is the seed of the round's batches. Those of a client do not depend on others. A
        trainer judges its data. None admits all.
        """
        memories = {client: self.memory(client, state) for client in clients}
        # One upload for all of them.
        own = {(c, n): v for c, held in memories.items() for n, v in copies(held or {}).items()}
        there = together(own, self.device)
        return [
            self._task(c, h and {n: there[c, n] for n in h}, client_seed(order, c), trainer)
            for c, h in memories.items()
        ]

    def task(self, client: int, state: TrainingState, order: int) -> Task:
        """Return one client, see `tasks`."""
        return self.tasks([client], state, order)[0]

    def _task(self, client: int, own: State | None, seed: int, trainer: Trainer | None) -> Task:
        clients = self.clients
        planted = clients.planted(client) if isinstance(clients, Examples) else None
        with Trial():
            data = checked(clients[client])
            alone = trainer is not None and not trainer.admit(data)
            plan = plan_batches(len(data), self.local, torch.Generator().manual_seed(seed))
            if isinstance(data, Canary):
                planted = data.update.to(self.device)
            return Task(data, plan, own, seed, alone=alone, planted=planted)
        return Task(NO_DATA, NO_STEPS, own, seed, failed=True, planted=planted)

    def memory(self, client: int, state: TrainingState) -> State | None:
        """Return a client's memory, or None for methods without client memories."""
        own = state.client_states.get(client)
        if own is None and overrides(self.method, "init_client"):
            own = self.method.init_client(copies(state.params))
            own = None if own is None else checked_state(self.method, "init_client", own)
        return own


def for_rehearsal(engine: Engine) -> Engine:
    """Return the engine with repeatable randomness, and noise that needs no other rounds."""
    engine = replace(engine, source=Seeded(0))
    if engine.plan.correlation is None:
        return engine
    return replace(engine, noise=GaussianNoise(), plan=replace(engine.plan, correlation=None))
