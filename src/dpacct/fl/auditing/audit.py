"""`audit`: check a method, with its bound and noise, against the charge of a round of them.

Runs rounds on neighboring sets of clients and checks properties that the engine cannot enforce. It
finds faults. Passing is evidence, not a proof. Use it in the tests of a method of your own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from dpacct import validate
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.clients import ClientData, Inputs, each
from dpacct.fl.engine.engine import Engine
from dpacct.fl.engine.setup import choose_chooser, prepare
from dpacct.fl.engine.states import Collected, Released, TrainingState
from dpacct.fl.layout import copies
from dpacct.fl.local.sgd import SGD
from dpacct.fl.methods.protocol import Method, first_state
from dpacct.fl.privacy.bounds import INDICATOR_NORM, AdaptiveClip, Bound
from dpacct.fl.privacy.findings import (
    Audit,
    Finding,
    check_bound,
    check_charge,
    check_noise,
    repeated,
)
from dpacct.fl.privacy.noise import GaussianNoise, Noise, drawn_std
from dpacct.fl.privacy.randomness import Seeded
from dpacct.fl.settings import LocalSettings, choose_independent
from dpacct.fl.tensors import forked_generators, norm, undisturbed
from dpacct.fl.training.tasks import Trainer
from dpacct.rounds import Adjacency, AdjacencyName, Full, Sampling, Uniform

_CHUNK, _SEED = 3, 20
# Share of a contribution that rounding may change in other groups.
_ROUNDING = 1e-4
# Rounds in which the noise of a count is drawn, one number each. A standard deviation of half the
# charged one lies 15 standard errors of the square away.
_COUNTS = 512


# If the caller has switched gradients off, no client would move a sum.
@undisturbed()
def audit(
    method: Method | None = None,
    *,
    clip_norm: float | None = None,
    bound: Bound | None = None,
    noise: Noise | None = None,
    noise_multiplier: float = 1.0,
    sampling: Sampling | None = None,
    adjacency: Adjacency | AdjacencyName | None = None,
    local: SGD | None = None,
    model: nn.Module | None = None,
    loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    clients: Sequence[ClientData] | None = None,
    draws: int = 16,
    vectorize: bool | Literal["auto"] = "auto",
) -> Audit:
    """Check a method, its bound and its noise against the charge of a round of them.

    Args:
        method, clip_norm, bound, noise, noise_multiplier, sampling, adjacency, local: as for
            `Federation`. Default: DP-FedAvg, clip norm 0.5 if the method has no bound of its own,
            Gaussian noise, all clients in each round.
        model, loss, clients: the training, with at least three clients. Give all three or none.
            Default: a small classifier on synthetic clients.
        draws: rounds of noise to test.
        vectorize: the trainers to test. "auto": both, if the method can be batched.
    Returns:
        The findings: ``bound``, ``alone``, ``sensitivity``, ``charge``, ``noise``, ``empty
        cohort``, ``fresh``, ``release`` and ``memory``. An adaptive clip norm adds ``indicator``
        and ``joint charge``.
    Raises:
        InvalidParameter, Unsupported: as for `Federation`.
    """
    if clip_norm is None and bound is None and (method is None or method.bound is None):
        clip_norm = 0.5
    scheme = choose_independent(Full() if sampling is None else sampling)
    problem = _problem(model, loss, clients)
    # The clients of an audit are no secret: their number may be declared.
    declares = adjacency == Adjacency.ADD_REMOVE and not isinstance(scheme, Uniform)
    settings = LocalSettings(
        rounds=1,
        method=method,
        clip_norm=clip_norm,
        bound=bound,
        noise=noise,
        noise_multiplier=validate.noise_multiplier(noise_multiplier),
        sampling=scheme,
        adjacency=adjacency,
        local=SGD(lr=0.5, epochs=1, batch_size=4) if local is None else local,
        public_size=len(problem.clients) if declares else None,
        seed=_SEED,
        vectorize=vectorize,
    )
    rounds = _Rounds(problem, settings)
    like = next(iter(rounds.params.values()))
    return Audit(
        (
            check_bound(rounds.bound, rounds.layout, rounds.plan.contributions, like),
            _check_alone(rounds),
            _check_sensitivity(rounds),
            *check_charge(rounds.plan, rounds.bound, rounds.noise),
            *_check_noise(rounds, draws),
            *_check_indicator(rounds),
            _check_release(rounds),
            _check_memory(rounds),
        )
    )


class _Problem(NamedTuple):
    """A model, its loss, and a population to run an audit on."""

    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    clients: list[ClientData]


def _problem(model: Any, loss: Any, clients: Sequence[ClientData] | None) -> _Problem:
    """Return the given problem, or a classifier on synthetic clients of different sizes."""
    if model is not None and loss is not None and clients is not None:
        if len(clients) < 3:
            raise InvalidParameter("clients", len(clients), "an audit needs at least three")
        return _Problem(model, loss, list(clients))
    if any(part is not None for part in (model, loss, clients)):
        rule = "an audit is given all of model, loss and clients, or none of them"
        raise InvalidParameter("model", type(model).__name__, rule)
    features, classes = 24, 8
    generator = torch.Generator().manual_seed(7)
    network = nn.Sequential(nn.Linear(features, 48), nn.Tanh(), nn.Linear(48, classes))
    with torch.no_grad():
        for value in network.parameters():
            value.copy_(0.2 * torch.randn(value.shape, generator=generator))
    synthetic = [
        ClientData(
            torch.randn(size, features, generator=generator),
            torch.randint(classes, (size,), generator=generator),
        )
        for size in (8, 5, 12, 1, 7)
    ]
    return _Problem(network, nn.functional.cross_entropy, synthetic)


def _scaled(inputs: Inputs, factor: float) -> Inputs:
    return each(inputs, lambda v: v * factor if v.is_floating_point() else v.flip(0))


class _Rounds:
    """Rounds of an engine, all of which draw the same batches."""

    def __init__(self, problem: _Problem, settings: LocalSettings) -> None:
        parts = prepare(settings, problem.model, problem.clients)
        self._engine, self.params, self.bound = parts.engine, parts.state.params, parts.state.bound
        self.method, self.noise, self.plan = (
            parts.engine.method,
            parts.engine.noise,
            parts.engine.plan,
        )
        self.layout, self.clients = parts.engine.layout, problem.clients
        self.everybody = list(range(len(self.clients)))
        chooser = choose_chooser(parts.engine, problem.model, problem.loss, settings)
        # The first one is used if one is enough.
        self.trainers: dict[str, Trainer] = {"one by one": chooser.alone}
        if settings.vectorize is not False:
            tasks = [self._engine.task(client, self.state(), 0) for client in self.everybody[:3]]
            complaint = chooser.compare(tasks, self._engine.broadcast(self.state()))
            if complaint and settings.vectorize is True:
                raise Unsupported(f"vectorize=True, but {complaint}")
            if not complaint:
                self.trainers["in groups"] = chooser.vectorized

    def state(self) -> TrainingState:
        """Return a state before the first round, which shares nothing with another one."""
        params = copies(self.params)
        return TrainingState(0, params, first_state(self.method, params), {}, self.bound, None)

    def collect(
        self, cohort: Sequence[int], trainer: Trainer | None = None, **changes: Any
    ) -> tuple[Engine, TrainingState, Collected]:
        """Run a round with just these clients, up to its sums, with ``changes`` of the engine.

        Returns the engine with its randomness after this round, its state, and the sums.
        """
        engine = replace(self._engine, source=Seeded(_SEED), **changes)
        state, trainer = self.state(), trainer or self.trainers["one by one"]
        with forked_generators():
            return engine, state, engine.collect(state, engine.draw_for(cohort), trainer, _CHUNK)

    def exact(
        self,
        cohort: Sequence[int],
        clients: Sequence[ClientData] | None = None,
        trainer: Trainer | None = None,
    ) -> Collected:
        """Return the sums of a cohort without noise."""
        _, _, collected = self.collect(
            cohort, trainer, noise=GaussianNoise(), clients=clients or self.clients
        )
        return collected

    def releases(
        self, cohort: Sequence[int], draws: int, seed: int
    ) -> tuple[list[Released | None], Tensor | None]:
        """Release a cohort's sums ``draws`` times, and return also the mask's coordinates."""
        engine, state, collected = self.collect(cohort)
        engine = replace(engine, source=Seeded(seed))
        return [engine.release(state, collected) for _ in range(draws)], collected.kept

    def neighbors(self, client: int) -> list[tuple[list[ClientData], list[int]]]:
        """Return neighboring populations with their cohorts."""
        clients = self.clients
        if self.plan.adjacency is not Adjacency.REPLACE_ONE:
            return [(clients, [other for other in self.everybody if other != client])]
        own = clients[client]
        # Replacements that push the model elsewhere.
        extremes = [
            own.map(lambda values: values[:0]),
            ClientData(_scaled(own.inputs, -10), own.targets),
            ClientData(_scaled(own.inputs, 100), own.targets.flip(0)),
            clients[0],
            clients[-1],
        ]
        return [
            ([*clients[:client], other, *clients[client + 1 :]], self.everybody)
            for other in extremes
        ]


def _check_alone(rounds: _Rounds) -> Finding:
    """Check that a contribution is the same, up to rounding, with other clients in the round."""
    for name, trainer in rounds.trainers.items():
        whole = rounds.exact(rounds.everybody, trainer=trainer).total
        for client in rounds.everybody:
            whole = whole - rounds.exact([client], trainer=trainer).total
        gap = float(norm(whole))
        if gap > _ROUNDING * rounds.bound.clip_norm * len(rounds.everybody):
            detail = f"{name}, the sum differs from that of the clients alone by {gap:.3g}"
            return Finding("alone", passed=False, detail=detail)
    names = " and ".join(rounds.trainers)
    detail = f"trained {names}, contributions do not depend on the other clients"
    return Finding("alone", passed=True, detail=detail)


def _check_sensitivity(rounds: _Rounds) -> Finding:
    """Check how far the sum moves between neighbors."""
    claimed = rounds.bound.sensitivity(rounds.plan.adjacency)
    worst = 0.0
    for place, trainer in enumerate(rounds.trainers.values()):
        base = rounds.exact(rounds.everybody, trainer=trainer).total
        # `alone` compares the trainers: the neighbors of one client are enough for the second.
        for client in rounds.everybody[: 1 if place else None]:
            for clients, cohort in rounds.neighbors(client):
                moved = rounds.exact(cohort, clients, trainer).total - base
                worst = max(worst, float(norm(moved)))
    return Finding(
        "sensitivity",
        worst <= claimed * (1 + _ROUNDING),
        f"the sum moved by up to {worst:.6g} between neighbors, and {claimed:.6g} is claimed",
    )


def _check_noise(rounds: _Rounds, draws: int) -> list[Finding]:
    """Check spread, distribution and freshness of the noise, with all clients and with none."""
    findings: list[Finding] = []
    again = ""
    for name, cohort in (("noise", rounds.everybody), ("empty cohort", list[int]())):
        if not cohort and getattr(rounds.noise, "minimum", 0):
            continue  # Too few shares for a release.
        exact = rounds.exact(cohort).total
        rows: list[Tensor] = []
        releases, kept = rounds.releases(cohort, draws, seed=21)
        for release in releases:
            if release is None:
                rows.append(torch.full_like(exact, math.nan))
                continue
            vector = release.mean.vector.double() * rounds.plan.cohort_size
            rows.append((vector if kept is None else vector[kept]) - exact)
        noise = torch.stack(rows).numpy()
        if cohort:
            again = repeated(noise)
        std = drawn_std(rounds.noise, rounds.plan.update_std(rounds.bound), len(cohort))
        # Where fewer shares arrived than are charged, no release is right.
        limit = math.nan if std is None else std
        grid = 2.0**-24 * rounds.bound.clip_norm
        findings.append(check_noise(name, noise, limit, exact.numpy(), grid))
    return [*findings, Finding("fresh", not again, again or "no noise came twice")]


def _check_indicator(rounds: _Rounds) -> tuple[Finding, ...]:
    """Check the noisy count that moves an adaptive clip norm: its sensitivity and its noise."""
    std = rounds.plan.indicator_std(rounds.bound)
    if not isinstance(rounds.bound, AdaptiveClip) or std is None:
        return ()

    def count(cohort: Sequence[int], clients: Sequence[ClientData] | None = None) -> float:
        sums = rounds.exact(cohort, clients).indicators
        return math.nan if sums is None else float(sums)

    claimed = INDICATOR_NORM * (2 if rounds.plan.adjacency is Adjacency.REPLACE_ONE else 1)
    base = count(rounds.everybody)
    moved = max(
        abs(count(cohort, clients) - base)
        for client in rounds.everybody
        for clients, cohort in rounds.neighbors(client)
    )
    if moved > claimed * (1 + 1e-9):
        detail = f"the count moved by {moved:.6g} between neighbors, and {claimed:g} is claimed"
        return (Finding("indicator", passed=False, detail=detail),)
    counts = [
        math.nan if release is None or release.indicator_sum is None else release.indicator_sum
        for release in rounds.releases(rounds.everybody, _COUNTS, seed=22)[0]
    ]
    noise = np.array(counts, dtype=np.float64).reshape(-1, 1) - base
    charged = drawn_std(rounds.noise, std, len(rounds.everybody))
    return (check_noise("indicator", noise, math.nan if charged is None else charged),)


def _check_release(rounds: _Rounds) -> Finding:
    """Check that, given the release, the new state does not depend on the clients."""
    engine, state, collected = rounds.collect(rounds.everybody)
    release = engine.release(state, collected)
    if release is None:
        return Finding("release", passed=True, detail="nothing was released")
    clients = rounds.clients
    # As many clients, which have nothing in common with the others.
    strangers = [
        ClientData(_scaled(data.inputs, -3), data.targets) for data in clients[1:] + clients[:1]
    ]
    after: list[TrainingState] = []
    for people, cohort in (
        (clients, rounds.everybody),
        (strangers, rounds.everybody[: len(clients) // 2]),
    ):
        # The release is that of the first population in both worlds.
        engine, state, _ = rounds.collect(cohort, clients=people)
        after.append(engine.apply(state, release))
    same = _same(*after)
    detail = "the new model and server state follow from the release alone"
    fault = "the new model or server state depends on the clients apart from the noisy release"
    return Finding("release", same, detail if same else fault)


def _same(one: TrainingState, two: TrainingState) -> bool:
    if isinstance(one.bound, AdaptiveClip) and one.bound != two.bound:
        return False
    return all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
        for a, b in ((one.params, two.params), (one.server_state, two.server_state))
    )


def _check_memory(rounds: _Rounds) -> Finding:
    """Check that a client's memory does not depend on the other clients."""
    detail = "clients keep none"
    for trainer in rounds.trainers.values():
        one, two = (
            rounds.collect(cohort, trainer)[2].memories
            for cohort in (rounds.everybody, rounds.everybody[:1])
        )
        for client in one.keys() & two.keys():
            detail = "depend on data and broadcasts alone"
            if not all(
                torch.allclose(value, two[client][name], rtol=_ROUNDING, atol=1e-6)
                for name, value in one[client].items()
            ):
                fault = "they depend on the cohort or on noise"
                return Finding("memory", passed=False, detail=fault)
    return Finding("memory", passed=True, detail=detail)
