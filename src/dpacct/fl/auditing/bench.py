"""The checks of `audit`, on an engine whose randomness can be replayed."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.clients import ClientData
from dpacct.fl.engine.engine import Engine
from dpacct.fl.engine.states import Collected, Released, TrainingState
from dpacct.fl.layout import Layout, trainable
from dpacct.fl.local.sgd import SGD
from dpacct.fl.methods.protocol import Method
from dpacct.fl.privacy.account import NoisePlan
from dpacct.fl.privacy.bounds import AdaptiveClip, Bound
from dpacct.fl.privacy.findings import (
    Finding,
    check_bound,
    repeated,
    wrong_mean,
    wrong_scale,
    wrong_shape,
    wrong_std,
)
from dpacct.fl.privacy.noise import GaussianNoise, Noise, drawn_std
from dpacct.fl.privacy.randomness import Seeded
from dpacct.fl.tensors import forked_generators, norm
from dpacct.fl.training.choose import TrainerChooser
from dpacct.fl.training.tasks import Trainer
from dpacct.rounds import Adjacency

_FEATURES = 24
_CLASSES = 8
_CHUNK = 3
# Share of a contribution that rounding may change in other groups.
_ROUNDING = 1e-4


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A model, its loss, and a population to run an audit on."""

    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    clients: Sequence[ClientData]

    def extremes(self, client: ClientData) -> list[ClientData]:
        """Return replacements of a client that push the model elsewhere."""
        return [
            ClientData(client.inputs[:0], client.targets[:0]),
            ClientData(_scaled(client.inputs, -10), client.targets),
            ClientData(_scaled(client.inputs, 100), client.targets.flip(0)),
            *([self.clients[0], self.clients[-1]]),
        ]

    def strangers(self) -> list[ClientData]:
        """Return a population of as many clients that has nothing in common with this one."""
        clients = list(self.clients)
        return [
            ClientData(_scaled(data.inputs, -3), data.targets) for data in clients[1:] + clients[:1]
        ]


def default_problem(
    model: nn.Module | None,
    loss: Callable[[Tensor, Tensor], Tensor] | None,
    clients: Sequence[ClientData] | None,
) -> Problem:
    """Return the problem that was given, or a classifier on synthetic clients of different sizes.

    Raises:
        InvalidParameter: only part of it was given, or there are fewer than three clients.
    """
    given = [part is not None for part in (model, loss, clients)]
    if model is not None and loss is not None and clients is not None:
        if len(clients) < 3:
            raise InvalidParameter("clients", len(clients), "an audit needs at least three")
        return Problem(model, loss, clients)
    if any(given):
        rule = "an audit is given all of model, loss and clients, or none of them"
        raise InvalidParameter("model", type(model).__name__, rule)
    generator = torch.Generator().manual_seed(7)
    network = nn.Sequential(nn.Linear(_FEATURES, 48), nn.Tanh(), nn.Linear(48, _CLASSES))
    with torch.no_grad():
        for value in network.parameters():
            value.copy_(0.2 * torch.randn(value.shape, generator=generator))
    people = [
        ClientData(
            torch.randn(size, _FEATURES, generator=generator),
            torch.randint(_CLASSES, (size,), generator=generator),
        )
        for size in (8, 5, 12, 1, 7)
    ]
    return Problem(network, nn.functional.cross_entropy, people)


def _scaled(values: Tensor, factor: float) -> Tensor:
    return values * factor if values.is_floating_point() else values.flip(0)


def collect(
    engine: Engine, state: TrainingState, cohort: Sequence[int], trainer: Trainer
) -> Collected:
    """Return the sums of a round with just these clients."""
    with forked_generators():
        return engine.collect(state, engine.draw_for(cohort), trainer, _CHUNK)


class Bench:
    """The engine of a run with randomness that can be replayed."""

    def __init__(
        self,
        problem: Problem,
        method: Method,
        bound: Bound,
        noise: Noise,
        plan: NoisePlan,
        local: SGD,
        *,
        vectorize: bool | str,
    ) -> None:
        params = {n: p.detach().clone() for n, p in trainable(problem.model).items()}
        self.layout = Layout.of(params)
        self.source = Seeded(20)
        self.method, self.bound, self.noise, self.plan = method, bound, noise, plan
        chooser = TrainerChooser(
            problem.model,
            problem.loss,
            method,
            self.layout,
            local,
            vectorize=vectorize,
        )
        device = next(iter(params.values())).device
        self.engine = Engine(
            problem.clients, method, self.layout, local, plan, noise, self.source, device, 1.0
        )
        self.problem = problem
        self.params = params
        self.everybody = list(range(len(problem.clients)))
        tasks = [self.engine.task(client, self.state(), 0) for client in self.everybody[:3]]
        self.trainer: Trainer = chooser.alone
        self.trainers: dict[str, Trainer] = {"one by one": chooser.alone}
        if vectorize is not False:
            complaint = chooser.compare(tasks, self.engine.broadcast(self.state()))
            if complaint and vectorize is True:
                raise Unsupported(f"vectorize=True, but {complaint}")
            if not complaint:
                self.trainers["in groups"] = chooser.vectorized

    def state(self) -> TrainingState:
        """Return a fresh state; nothing in it is shared with another one."""
        params = {name: value.clone() for name, value in self.params.items()}
        server = {n: v.clone() for n, v in self.method.init(dict(params)).items()}
        return TrainingState(0, params, server, {}, self.bound, None)

    def exact(
        self,
        cohort: Sequence[int],
        clients: Sequence[ClientData] | None = None,
        trainer: Trainer | None = None,
    ) -> Tensor:
        """Return the noiseless sum of the bounded updates of a cohort, float64 [k]."""
        plain = replace(self.engine, noise=GaussianNoise(), clients=clients or self.problem.clients)
        self.replay()
        return collect(plain, self.state(), cohort, trainer or self.trainer).total

    def replay(self) -> None:
        """Make the next round draw the batches that the last one drew."""
        self.source = Seeded(20)
        self.engine = replace(self.engine, source=self.source)

    def check_bound(self) -> Finding:
        """Bound hand-made rows of any length and direction."""
        like = next(iter(self.params.values()))
        return check_bound(self.bound, self.layout, self.plan.contributions, like)

    def check_alone(self) -> Finding:
        """Check that a contribution is the same up to rounding beside other clients."""
        for way, trainer in self.trainers.items():
            whole = self.exact(self.everybody, trainer=trainer)
            for client in self.everybody:
                whole -= self.exact([client], trainer=trainer)
            gap = float(norm(whole))
            if gap > _ROUNDING * self.bound.clip_norm * len(self.everybody):
                detail = f"{way}, the sum differs from that of the clients alone by {gap:.3g}"
                return Finding("alone", passed=False, detail=detail)
        ways = " and ".join(self.trainers)
        detail = f"trained {ways}, contributions are the same whoever else comes"
        return Finding("alone", passed=True, detail=detail)

    def check_sensitivity(self) -> Finding:
        """Check how far the sum moves between neighbors."""
        claimed = self.bound.sensitivity(self.plan.adjacency)
        worst = 0.0
        for trainer in self.trainers.values():
            base = self.exact(self.everybody, trainer=trainer)
            # Contributions are the same either way: one client's neighbors will do.
            for client in self.everybody if trainer is self.trainer else self.everybody[:1]:
                for clients, cohort in self.neighbors(client):
                    moved = self.exact(cohort, clients, trainer) - base
                    worst = max(worst, float(norm(moved)))
        return Finding(
            "sensitivity",
            worst <= claimed * (1 + _ROUNDING),
            f"the sum moved by up to {worst:.6g} between neighbors, and {claimed:.6g} is claimed",
        )

    def neighbors(self, client: int) -> list[tuple[list[ClientData], list[int]]]:
        """Return neighboring populations with their cohorts."""
        clients = list(self.problem.clients)
        if self.plan.adjacency is not Adjacency.REPLACE_ONE:
            return [(clients, [other for other in self.everybody if other != client])]
        return [
            ([*clients[:client], other, *clients[client + 1 :]], self.everybody)
            for other in self.problem.extremes(clients[client])
        ]

    def check_noise(self, draws: int) -> list[Finding]:
        """Check spread, law and freshness of the noise, with all clients and with none."""
        findings: list[Finding] = []
        whole = self.residuals(self.everybody, draws)
        least = getattr(self.noise, "minimum", 0)
        cohorts = [("noise", self.everybody, whole)]
        if not least:
            cohorts.append(("empty cohort", [], self.residuals([], draws)))
        for name, cohort, found in cohorts:
            std = drawn_std(self.noise, self.plan.update_std(self.bound), len(cohort))
            if std is None or not np.isfinite(found).all():
                findings.append(Finding(name, passed=False, detail="nothing was released"))
                continue
            wrong = wrong_scale(found, self.exact(cohort).numpy(), std) or wrong_std(found, std)
            wrong = wrong or wrong_mean(found, std) or wrong_shape(found, std)
            detail = wrong or f"standard deviation {std:.6g} over {found.size} values, as charged"
            findings.append(Finding(name, not wrong, detail))
        again = repeated(whole)
        findings.append(Finding("fresh", not again, again or "no noise came twice"))
        return findings

    def residuals(self, cohort: Sequence[int], draws: int) -> np.ndarray:
        """Return release minus exact sum, float64 [draws, k]; NaN if nothing was released."""
        exact = self.exact(cohort)
        rows: list[np.ndarray] = []
        fresh = Seeded(21)
        for _ in range(draws):
            self.replay()
            state = self.state()
            found = collect(self.engine, state, cohort, self.trainer)
            # Batches are replayed, noise is not.
            engine = replace(self.engine, source=fresh)
            release = engine.release(state, found)
            if release is None:
                rows.append(np.full(len(exact), math.nan))
                continue
            vector = release.mean.vector.double() * self.plan.cohort_size
            kept = vector if found.kept is None else vector[found.kept]
            rows.append((kept - exact).numpy())
        return np.stack(rows)

    def check_release(self) -> Finding:
        """Check that, given the release, the new state does not depend on the clients."""
        self.replay()
        state = self.state()
        found = collect(self.engine, state, self.everybody, self.trainer)
        release = self.engine.release(state, found)
        if release is None:
            return Finding("release", passed=True, detail="nothing was released")
        worlds = [
            (self.problem.clients, self.everybody),
            (self.problem.strangers(), self.everybody[: len(self.everybody) // 2]),
        ]
        after = [self.after(release, clients, cohort) for clients, cohort in worlds]
        same = _equal(after[0], after[1])
        detail = (
            "the new model and server state follow from the release alone"
            if same
            else "the new model or server state depends on the clients beside the noisy release"
        )
        return Finding("release", same, detail)

    def after(
        self, release: Released, clients: Sequence[ClientData], cohort: Sequence[int]
    ) -> TrainingState:
        """Return the state after a round on these clients with this release forced on it."""
        self.replay()
        engine = replace(self.engine, clients=clients)
        state = self.state()
        collect(engine, state, cohort, self.trainer)
        return engine.apply(state, release)

    def check_memory(self) -> Finding:
        """Check that a client's memory does not depend on the other clients."""
        detail = "clients keep none"
        for trainer in self.trainers.values():
            one, two = (self.memories(trainer, n) for n in (len(self.everybody), 1))
            for client in one.keys() & two.keys():
                detail = "depend on data and broadcasts alone"
                if not all(_near(one[client][n], two[client][n]) for n in one[client]):
                    fault = "they depend on the cohort or on noise"
                    return Finding("memory", passed=False, detail=fault)
        return Finding("memory", passed=True, detail=detail)

    def memories(self, trainer: Trainer, first: int) -> dict[int, dict[str, Tensor]]:
        """Return the memories of the first clients after a round."""
        self.replay()
        return collect(self.engine, self.state(), self.everybody[:first], trainer).memories


def _near(one: Tensor, two: Tensor) -> bool:
    return torch.allclose(one, two, rtol=_ROUNDING, atol=1e-6)


def _equal(one: TrainingState, two: TrainingState) -> bool:
    tensors = [
        (one.params, two.params),
        (one.server_state, two.server_state),
    ]
    if isinstance(one.bound, AdaptiveClip) and one.bound != two.bound:
        return False
    return all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
        for a, b in tensors
    )
