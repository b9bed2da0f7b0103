"""The stages of one round, in which no method can leave one out; `RoundLoop` has their order.

Rule 1: every update passes the mask and the bound, whatever it holds. Rule 2: noise is added
whoever came, nobody included, and the denominator is that of the plan. Rule 3: what comes after
sees `Noised` and public state alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dpacct.fl.clients import Population
from dpacct.fl.engine.reproduction import check_noise, published_sum, reproduces
from dpacct.fl.examples import Examples
from dpacct.fl.layout import Layout, Params, State, copies
from dpacct.fl.local.batches import chunks
from dpacct.fl.local.sgd import SGD
from dpacct.fl.methods.protocol import Method, overrides
from dpacct.fl.methods.server_optimizers import ServerOptimizer, optimized, split
from dpacct.fl.privacy.adaptive_clip import INDICATOR_NORM, AdaptiveClip
from dpacct.fl.privacy.bounds import Bound
from dpacct.fl.privacy.charge import NoisePlan
from dpacct.fl.privacy.markers import Bounded, Noised, bounded, noised, scatter
from dpacct.fl.privacy.noise import Noise, drawn_std
from dpacct.fl.privacy.randomness import Randomness, torch_seed
from dpacct.fl.privacy.sums import add_rows, contribute
from dpacct.fl.tensors import forked_generators
from dpacct.fl.trainers.lot_trainer import LotTrainer
from dpacct.fl.trainers.tasks import Broadcast, Task, Trainer, join

# Spreads the seeds of a round's clients.
_GOLDEN = 0x9E3779B97F4A7C15

INDICATOR_LIMITS = [(0, 1, INDICATOR_NORM)]


@dataclass(slots=True, eq=False)
class TrainingState:
    """All that changes from round to round.

    Attributes:
        round: rounds done.
        params: released parameters, on the device.
        server_state: public. client_states: private, by client.
        bound: of the next round.
        released: vector of the last release, None before the first.
    """

    round: int
    params: Params
    server_state: State
    client_states: dict[int, State]
    bound: Bound
    released: Tensor | None


@dataclass(slots=True, eq=False)
class Collected:
    """Sums over a cohort, before any noise. Private.

    Attributes:
        total: sum of encoded rows, as `Noise.zeros` [k].
        indicators: encoded sum of the indicators [1], None without an adaptive clip.
        kept: the mask's coordinates, None for all.
        arrived: how many contributions the sum holds.
        norms: of the raw updates in it.
        dropped: how many of them were not finite.
        local_seconds, privacy_seconds: what it took.
        memories: new client states, applied once the round is committed.
        raw: unbounded rows, for a method that does what a paper prints; else None.
    """

    total: Tensor
    indicators: Tensor | None
    kept: Tensor | None
    arrived: int = 0
    norms: list[Tensor] = field(default_factory=list[Tensor])
    dropped: list[Tensor] = field(default_factory=list[Tensor])
    local_seconds: float = 0.0
    privacy_seconds: float = 0.0
    memories: dict[int, State] = field(default_factory=dict[int, State])
    raw: list[Tensor] | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Released:
    """What leaves the aggregator: the noised mean, and the noisy sum of the indicators."""

    mean: Noised
    indicator_sum: float | None


@dataclass(frozen=True, slots=True, eq=False)
class Engine:
    """The parts of a run that stay the same from round to round."""

    clients: Population
    method: Method
    layout: Layout
    local: SGD
    plan: NoisePlan
    noise: Noise
    source: Randomness
    device: torch.device
    server_lr: float
    server: ServerOptimizer | None = None
    num_clients: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_clients", len(self.clients))
        check_noise(self.method, self.noise)

    def broadcast(self, state: TrainingState) -> Broadcast:
        """What the clients of the next round are told; all of it is public."""
        params, norm = dict(state.params), state.bound.clip_norm
        server, _ = split(state.server_state)
        return Broadcast(state.round + 1, params, server, self.local, norm)

    @forked_generators()
    def collect(
        self, state: TrainingState, cohort: Sequence[int], trainer: Trainer, chunk: int
    ) -> Collected:
        """Train, mask, bound and sum: everything up to the noise.

        Args:
            state: the run so far, unchanged. cohort: whose contributions are summed.
            trainer: runs local training. chunk: clients held in memory at a time.
        """
        released = None if state.released is None else state.released.clone()
        kept = self.method.mask.select(self.layout, state.round + 1, released)
        kept = None if kept is None else kept.to(self.device)
        layout = self.layout if kept is None else self.layout.restrict(kept)
        bound = state.bound
        counted = isinstance(bound, AdaptiveClip)
        found = Collected(
            self.noise.zeros(layout.size, self.device),
            self.noise.zeros(1, self.device) if counted else None,
            kept,
            raw=[] if reproduces(self.method) else None,
        )
        broadcast = self.broadcast(state)
        order = torch_seed(self.source)
        members = set(cohort)
        workers = range(self.num_clients) if self.method.everyone_computes else cohort
        for part in chunks(workers, chunk):
            self._clock(started := time.perf_counter())
            tasks = self._tasks(part, state, order, trainer)
            rows = trainer.train(tasks, broadcast)
            found.local_seconds += self._clock(started)
            started = time.perf_counter()
            ours = [place for place, client in enumerate(part) if client in members]
            if found.raw is not None:
                found.raw.append(rows[ours] if kept is None else rows[ours][:, kept])
            # Rule 1.
            bounded_rows, norms, bad = self._bound(rows, kept, layout, bound)
            self._add(found, bounded_rows, norms, bad, ours, layout, bound)
            found.privacy_seconds += self._clock(started)
            if tasks[0].state is not None:
                full = scatter(bounded_rows.rows, kept, self.layout.size)
                memories = trainer.remember(tasks, full, broadcast) or []
                found.memories.update(zip(part, map(copies, memories), strict=True))
        return found

    def release(self, state: TrainingState, found: Collected) -> Released | None:
        """Add the noise and divide by the planned cohort size.

        Returns:
            None if too few noise shares arrived: then nothing may leave.
        """
        bound, plan = state.bound, self.plan
        kept = found.kept
        layout = self.layout if kept is None else self.layout.restrict(kept)
        std = drawn_std(self.noise, plan.update_std(bound), found.arrived)
        if std is None:
            return None
        # Rule 2.
        if found.raw is None:
            noisy = self.noise.add(found.total, bound.limits(layout), std, self.source)
        else:
            raw = torch.cat([found.total.new_zeros(0, layout.size), *found.raw])
            noisy = published_sum(self.method, raw, layout, bound, plan, self.source)
        indicator_sum = None
        indicator_std = plan.indicator_std(bound)
        if found.indicators is not None and indicator_std is not None:
            own = drawn_std(self.noise, indicator_std, found.arrived)
            if own is None:
                return None
            noisy_count = self.noise.add(found.indicators, INDICATOR_LIMITS, own, self.source)
            indicator_sum = float(noisy_count)
        dtype = next(iter(state.params.values())).dtype
        mean = scatter((noisy / plan.cohort_size).to(dtype), kept, self.layout.size)
        number = state.round + 1
        return Released(
            noised(
                mean,
                self.layout,
                std=std / plan.cohort_size,
                kept=kept,
                round_number=number,
                lr=self.local.learning_rate(number),
                steps=self.local.steps,
                server_lr=self.server_lr,
                cohort_size=plan.cohort_size,
                sampling_rate=plan.sampling.sampling_rate,
            ),
            indicator_sum,
        )

    def apply(self, state: TrainingState, release: Released) -> TrainingState:
        """The next state, from the release and public state; the method has copies alone."""
        # Rule 3.
        mean = release.mean.map(torch.clone)
        public, kept = split(state.server_state)
        noised_mean = self.method.post(mean, copies(public))
        moved, told = self.method.server(copies(state.params), noised_mean, copies(public))
        params, server_state = optimized(self.server, state.params, moved, told, copies(kept))
        bound = state.bound
        if isinstance(bound, AdaptiveClip) and release.indicator_sum is not None:
            bound = bound.adapt(release.indicator_sum, self.plan.cohort_size)
        return TrainingState(
            state.round + 1,
            copies({name: params[name] for name in self.layout.names}),
            copies(server_state),
            state.client_states,
            bound,
            release.mean.vector,
        )

    def task(
        self, client: int, state: TrainingState, order: int, trainer: Trainer | None = None
    ) -> Task:
        """A client with its batches and its memory, on the device.

        Args:
            client: its number. state: the run so far. trainer: judges its data.
            order: seed of the round's batches. Those of a client do not depend on who else came.
        """
        own = state.client_states.get(client)
        if own is None and overrides(self.method, "init_client"):
            own = self.method.init_client(copies(state.params))
        seed = (order + client * _GOLDEN) % 2**63
        return join(lambda: self.clients[client], self.local, own, seed, self.device, trainer)

    def _tasks(
        self, part: Sequence[int], state: TrainingState, order: int, trainer: Trainer
    ) -> Sequence[Task]:
        """The tasks of a chunk; examples are read together."""
        if isinstance(trainer, LotTrainer) and isinstance(self.clients, Examples):
            seeds = [(order + client * _GOLDEN) % 2**63 for client in part]
            return trainer.read(self.clients, part, seeds, self.device)
        return [self.task(client, state, order, trainer) for client in part]

    def _bound(
        self, rows: Tensor, kept: Tensor | None, layout: Layout, bound: Bound
    ) -> tuple[Bounded, Tensor, Tensor]:
        """Mask and bound a chunk; also the raw norms [c], and which rows were not finite [c]."""
        rows = rows if kept is None else rows.index_select(1, kept)
        inside, norms, bad = contribute(rows, bound, layout, self.plan.contributions)
        return bounded(inside), norms, bad

    def _add(
        self,
        found: Collected,
        rows: Bounded,
        norms: Tensor,
        bad: Tensor,
        ours: list[int],
        layout: Layout,
        bound: Bound,
    ) -> None:
        values = rows.rows
        if len(ours) < len(values):
            places = torch.tensor(ours, dtype=torch.int64, device=values.device)
            values, norms, bad = values[places], norms[places], bad[places]
        limits = bound.limits(layout)
        encoded = self.noise.encode(values, limits, self.plan.update_std(bound))
        add_rows(found.total, encoded)
        if found.indicators is not None and isinstance(bound, AdaptiveClip):
            signs = torch.where(norms <= bound.clip_norm, INDICATOR_NORM, -INDICATOR_NORM)
            std = self.plan.indicator_std(bound) or 0.0
            add_rows(found.indicators, self.noise.encode(signs.unsqueeze(1), INDICATOR_LIMITS, std))
        found.arrived += len(ours)
        found.norms.append(norms)
        found.dropped.append(bad.sum())

    def _clock(self, since: float) -> float:
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        return time.perf_counter() - since
