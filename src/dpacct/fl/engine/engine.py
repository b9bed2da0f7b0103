"""The stages of one round, in which no method can leave one out; `RoundLoop` has their order.

Rule 1: every update passes the mask and the bound, whatever it holds. Rule 2: noise is added
whoever came, nobody included, and the denominator is that of the plan. Rule 3: what comes after
sees `Noised` and public state alone.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor

from dpacct.errors import Unsupported
from dpacct.fl.clients import Population
from dpacct.fl.data.dataset import PartitionedClients
from dpacct.fl.engine.states import (
    Collected,
    Contributions,
    Draw,
    Released,
    TrainingState,
    client_seed,
)
from dpacct.fl.examples import Examples
from dpacct.fl.layout import Layout, State, copies
from dpacct.fl.local.batches import chunks
from dpacct.fl.local.rates import RoundValues
from dpacct.fl.local.sgd import SGD
from dpacct.fl.methods.protocol import Method, moves_plainly, overrides
from dpacct.fl.methods.published import PublishedRound
from dpacct.fl.methods.server_optimizers import ServerOptimizer, optimized, split
from dpacct.fl.privacy.account import NoisePlan
from dpacct.fl.privacy.bounds import INDICATOR_NORM, MARGIN, AdaptiveClip, Bound, row_norms
from dpacct.fl.privacy.markers import bounded, noised, scatter
from dpacct.fl.privacy.noise import GaussianNoise, Noise, drawn_std, sums_as_they_are
from dpacct.fl.privacy.randomness import Randomness, draw_cohort, normals, torch_seed
from dpacct.fl.privacy.sums import (
    add_clipped,
    add_rows,
    coarsest_grid,
    contribute,
    received,
    scales_rows,
)
from dpacct.fl.surroundings import undisturbed
from dpacct.fl.tensors import listed, sent
from dpacct.fl.training.examples import ExampleBatch, ExampleTrainer, Gradients
from dpacct.fl.training.tasks import Broadcast, Task, Trainer, Trial, join, join_gathered, plant

INDICATOR_LIMITS = [(0, 1, INDICATOR_NORM)]
_PLANTS_NOTHING = Examples.planted


@dataclass(frozen=True, slots=True, eq=False)
class Engine:
    """The parts of a run; noise and sampling are those of its next round.

    `RunPlan` replaces ``plan`` from round to round; all else stays as it is.
    """

    clients: Population
    method: Method
    layout: Layout
    local: SGD
    plan: NoisePlan
    noise: Noise
    source: Randomness
    device: torch.device
    server_lr: float | RoundValues
    server: ServerOptimizer | None = None
    num_clients: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "num_clients", len(self.clients))
        check_noise(self.method, self.noise)

    def broadcast(self, state: TrainingState) -> Broadcast:
        """Return the public values that clients of the next round receive."""
        params, norm = dict(state.params), state.bound.clip_norm
        server, _ = split(state.server_state)
        return Broadcast(state.round + 1, params, server, self.local, norm)

    def draw(self) -> Draw:
        """Draw the cohort of a round from the run's randomness."""
        cohort = draw_cohort(self.plan.sampling, self.num_clients, self.source)
        return self.draw_for(self.noise.arrivals(cohort, self.source))

    def draw_for(self, members: Sequence[int]) -> Draw:
        """Return a draw whose arriving contributions are known."""
        workers = range(self.num_clients) if self.method.everyone_computes else members
        seed = torch_seed(self.source)
        return Draw(members, workers, seed, torch_seed(self.source))

    @undisturbed()
    def open(self, state: TrainingState) -> Collected:
        """Return empty sums of the next round, over the coordinates of its mask."""
        released = None if state.released is None else state.released.clone()
        kept = self.method.mask.select(self.layout, state.round + 1, released)
        kept = None if kept is None else sent(kept, self.device)
        size = self.kept_layout(kept).size
        return Collected(
            self.noise.zeros(size, self.device),
            self.noise.zeros(1, self.device) if isinstance(state.bound, AdaptiveClip) else None,
            kept,
            raw=[] if reproduces(self.method) else None,
        )

    def kept_layout(self, kept: Tensor | None) -> Layout:
        """Return the layout of a mask's coordinates."""
        return self.layout if kept is None else self.layout.restrict(kept)

    def collect(self, state: TrainingState, draw: Draw, trainer: Trainer, chunk: int) -> Collected:
        """Train, mask, bound and sum: everything up to the noise.

        Training draws from the global generators: `forked_generators` is around this.

        Args:
            state: the run so far, unchanged. draw: the cohort; a share of a draw gives its part of
                the sums.
            trainer: runs local training. chunk: clients held in memory at a time.
        """
        found = self.open(state)
        found.token, found.clients = draw.token, list(draw.workers)
        broadcast = self.broadcast(state)
        members = set(draw.members)
        laps = Laps(self.device)
        for part in chunks(draw.workers, chunk):
            seeds = [client_seed(draw.order, client) for client in part]
            if isinstance(trainer, ExampleTrainer) and isinstance(self.clients, Examples):
                batch = trainer.read(self.clients, part, seeds, self.device)
                self._collect_examples(state, found, trainer, part, batch, laps)
                continue
            tasks = self._tasks(part, state, seeds, trainer)
            rows = trainer.train(tasks, broadcast)
            plant(rows, tasks)
            self._plant_examples(rows, part)
            laps.end(LOCAL)
            ours = [place for place, client in enumerate(part) if client in members]
            if found.raw is not None:
                own = rows[listed(ours, self.device)]
                found.raw.append(own if found.kept is None else own[:, found.kept])
            contributions = self.bound(state, found.kept, rows)
            self.add(state, found, contributions.take(ours))
            laps.end(PRIVACY)
            if tasks[0].state is not None:
                full = scatter(contributions.bounded.rows, found.kept, self.layout.size)
                memories = trainer.remember(tasks, full, broadcast) or []
                found.memories.update(zip(part, map(copies, memories), strict=True))
                laps.end(LOCAL)
        found.local_seconds, found.privacy_seconds = laps.seconds(LOCAL), laps.seconds(PRIVACY)
        return found

    def _collect_examples(
        self,
        state: TrainingState,
        found: Collected,
        trainer: ExampleTrainer,
        part: Sequence[int],
        batch: ExampleBatch,
        laps: Laps,
    ) -> None:
        """Train single examples in groups; each group is summed while a cache holds it."""
        done = 0
        for group in trainer.groups(batch, self.broadcast(state)):
            laps.end(LOCAL)
            self._add_group(state, found, group, part[done:])
            done += len(group)
            laps.end(PRIVACY)
        laps.end(LOCAL)

    def _add_group(
        self,
        state: TrainingState,
        found: Collected,
        group: Gradients,
        numbers: Sequence[int],
    ) -> None:
        """Mask, bound and add a group of examples. Rule 1."""
        bound = state.bound
        simple = found.raw is None and scales_rows(bound) and sums_as_they_are(self.noise)
        if simple and found.kept is None and not self._has_canaries():
            coarsest = coarsest_grid(self.plan.update_std(bound), self.plan.cohort_size)
            most = self.plan.contributions
            norms, bad = add_clipped(
                found.total,
                group.parts,
                bound,
                most,
                coarsest=coarsest,
                scale=group.scale,
            )
            self._count(state, found, norms, norms <= bound.clip_norm, bad)
            return
        rows = group.rows()
        self._plant_examples(rows, numbers[: len(group)])
        if found.raw is not None:
            found.raw.append(rows if found.kept is None else rows[:, found.kept])
        self.add(state, found, self.bound(state, found.kept, rows))

    def _has_canaries(self) -> bool:
        planted = getattr(self.clients, "planted", None)
        return planted is not None and getattr(planted, "__func__", None) is not _PLANTS_NOTHING

    def _plant_examples(self, rows: Tensor, numbers: Sequence[int]) -> None:
        """Replace the updates [c, d] of canaries among single examples, see `Examples.planted`."""
        if not isinstance(self.clients, Examples) or not self._has_canaries():
            return
        for row, number in zip(rows, numbers, strict=True):
            update = self.clients.planted(number)
            if update is not None:
                row.copy_(update)

    def bound(self, state: TrainingState, kept: Tensor | None, rows: Tensor) -> Contributions:
        """Mask and bound raw updates [c, d], which may be changed in place. Rule 1."""
        rows = rows if kept is None else rows.index_select(1, kept)
        layout, most = self.kept_layout(kept), self.plan.contributions
        inside, norms, bad = contribute(rows, state.bound, layout, most)
        return Contributions(bounded(inside), norms, norms <= state.bound.clip_norm, bad)

    def check(
        self, state: TrainingState, kept: Tensor | None, rows: Tensor, below: Tensor
    ) -> Contributions:
        """Hold updates [c, k] that were masked and bounded elsewhere to the same limits. Rule 1.

        Args:
            state: the run so far. kept: the mask's coordinates.
            rows: as `contribute` gives them, to the last bit unchanged if they are.
            below: as in `Contributions`.
        """
        layout, most = self.kept_layout(kept), self.plan.contributions
        inside, norms, bad = received(rows, state.bound, layout, most)
        return Contributions(bounded(inside), norms, below & ~bad, bad)

    def add(self, state: TrainingState, found: Collected, contributions: Contributions) -> None:
        """Add contributions to the sums of the round."""
        bound = state.bound
        limits = bound.limits(self.kept_layout(found.kept))
        std = self.plan.update_std(bound)
        add_rows(found.total, self.noise.encode(contributions.bounded.rows, limits, std))
        self._count(state, found, contributions.norms, contributions.below, contributions.bad)

    def _count(
        self, state: TrainingState, found: Collected, norms: Tensor, below: Tensor, bad: Tensor
    ) -> None:
        """Count contributions and sum their indicators; see `Contributions`."""
        if found.indicators is not None:
            signs = torch.where(below, INDICATOR_NORM, -INDICATOR_NORM)
            signs = signs.to(norms.dtype)
            std = self.plan.indicator_std(state.bound) or 0.0
            add_rows(found.indicators, self.noise.encode(signs.unsqueeze(1), INDICATOR_LIMITS, std))
        found.arrived += len(norms)
        found.norms.append(norms)
        found.dropped.append(bad.sum())

    @undisturbed()
    def release(self, state: TrainingState, found: Collected) -> Released | None:
        """Add the noise and divide by the planned cohort size.

        Returns:
            None if too few noise shares arrived: then nothing may leave.
        """
        bound, plan = state.bound, self.plan
        kept = found.kept
        layout = self.kept_layout(kept)
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
                round=number,
                lr=self.local.learning_rate(number),
                steps=self.local.steps,
                server_lr=self.server_lr(number) if callable(self.server_lr) else self.server_lr,
                cohort_size=plan.cohort_size,
                sampling_rate=plan.sampling.sampling_rate,
            ),
            indicator_sum,
        )

    @undisturbed()
    def apply(self, state: TrainingState, release: Released) -> TrainingState:
        """Return the next state, from the release and public state; methods get copies of both."""
        # Rule 3.
        public, kept = split(state.server_state)
        if plainly := moves_plainly(self.method):
            moved, told = self.method.server(state.params, release.mean, public)
        else:
            mean = release.mean.map(torch.clone)
            noised_mean = self.method.post(mean, copies(public))
            moved, told = self.method.server(copies(state.params), noised_mean, copies(public))
        params, server_state = optimized(self.server, state.params, moved, told, copies(kept))
        after, bound = {name: params[name] for name in self.layout.names}, state.bound
        if isinstance(bound, AdaptiveClip) and release.indicator_sum is not None:
            bound = bound.adapt(release.indicator_sum, self.plan.cohort_size)
        return TrainingState(
            state.round + 1,
            after if plainly else copies(after),
            copies(server_state),
            state.client_states,
            bound,
            release.mean.vector,
        )

    def task(
        self, client: int, state: TrainingState, order: int, trainer: Trainer | None = None
    ) -> Task:
        """Return a client with its batches and its memory, on the device.

        Args:
            client: its number. state: the run so far. trainer: judges its data.
            order: seed of the round's batches; those of a client do not depend on other clients.
        """
        own, seed = self.memory(client, state), client_seed(order, client)
        return join(lambda: self.clients[client], self.local, own, seed, self.device, trainer)

    def _tasks(
        self,
        part: Sequence[int],
        state: TrainingState,
        seeds: Sequence[int],
        trainer: Trainer,
    ) -> Sequence[Task]:
        """Return the tasks of a chunk."""
        own = [self.memory(client, state) for client in part]
        if isinstance(self.clients, PartitionedClients):
            # Rows of one table are read at once. If that fails, clients are read one by one: an
            # error in one client's data is that client's failure alone.
            with Trial():
                gathered = self.clients.together(part)
                if gathered is not None:
                    return join_gathered(*gathered, self.local, own, seeds, self.device, trainer)
        return [
            join(
                partial(self.clients.__getitem__, client),
                self.local,
                memory,
                seed,
                self.device,
                trainer,
            )
            for client, memory, seed in zip(part, own, seeds, strict=True)
        ]

    def memory(self, client: int, state: TrainingState) -> State | None:
        """Return a client's memory; None for methods whose clients have none."""
        own = state.client_states.get(client)
        if own is None and overrides(self.method, "init_client"):
            own = self.method.init_client(copies(state.params))
        return own


def reproduces(method: Method) -> bool:
    """Return whether the method replaces the engine's sum by the procedure of its paper."""
    return method.not_private_because is not None and overrides(method, "published")


def check_noise(method: Method, noise: Noise) -> None:
    """Refuse other noise for a method with a printed procedure, which has its own.

    Raises:
        Unsupported: another noise was asked for.
    """
    if reproduces(method) and type(noise) is not GaussianNoise:
        raise Unsupported(
            f"{noise.name} noise: {method.name} with paper_mode adds noise as its paper prints it"
        )


def published_sum(
    method: Method, rows: Tensor, layout: Layout, bound: Bound, plan: NoisePlan, source: Randomness
) -> Tensor:
    """Return the sum [k] as a method's paper computes it, from raw masked rows [m, k].

    Only a method with ``not_private_because`` gets here: its epsilon is infinite.
    """

    def inside(values: Tensor) -> Tensor:
        return bound.apply(values.clone(), row_norms(values), layout, MARGIN)

    def draw(count: int, size: int) -> Tensor:
        return normals(source, count * size, rows.device).reshape(count, size)

    multiplier, planned = plan.noise_multiplier, plan.cohort_size
    cohort = PublishedRound(
        finite(rows), layout, multiplier, bound.clip_norm, planned, inside, draw
    )
    return method.published(cohort)


def finite(rows: Tensor) -> Tensor:
    """Return rows [m, k] with those that hold NaN or infinity set to zero."""
    good = torch.isfinite(rows).all(dim=1, keepdim=True)
    return torch.where(good, rows, 0.0)


# The parts of a round whose seconds are reported.
LOCAL, PRIVACY = "local", "privacy"
_cuda: Any = torch.cuda


class Laps:
    """A clock for the parts of a round. A GPU marks times by itself, and is waited for once."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._marks = [self._mark()]
        self._parts: list[str] = []

    def end(self, part: str) -> None:
        """Count the time since the last mark for this part."""
        self._marks.append(self._mark())
        self._parts.append(part)

    def seconds(self, part: str) -> float:
        """Return the seconds of all laps of a part."""
        if self._device.type == "cuda":
            self._marks[-1].synchronize()
        pairs = zip(self._parts, self._marks, self._marks[1:], strict=False)
        return sum(self._between(start, end) for name, start, end in pairs if name == part)

    def _mark(self) -> Any:
        if self._device.type != "cuda":
            return time.perf_counter()
        mark = _cuda.Event(enable_timing=True)
        mark.record(_cuda.current_stream(self._device))
        return mark

    def _between(self, start: Any, end: Any) -> float:
        return end - start if self._device.type != "cuda" else start.elapsed_time(end) / 1e3
