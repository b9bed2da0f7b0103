"""Rounds of a method on the engine without noise, with every state in view."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dpacct import fl
from dpacct.fl.engine.engine import Engine
from dpacct.fl.engine.states import TrainingState
from dpacct.fl.layout import Layout, trainable
from dpacct.fl.local.losses import LocalLoss
from dpacct.fl.methods.protocol import Method
from dpacct.fl.privacy.account import RoundNoise
from dpacct.fl.privacy.noise import Noise
from dpacct.fl.privacy.randomness import Seeded
from dpacct.fl.public import PublicSize
from dpacct.fl.settings import choose_bound
from dpacct.fl.training.tasks import SequentialTrainer
from dpacct.fl.training.vectorized import VectorizedTrainer
from tests.fl.problems import Silent, half_square


class Curved(nn.Module):
    """Loss 0.5 |A (w - c)|^2 with w in two tensors: outputs A w, targets A c."""

    def __init__(self, start: Sequence[float], matrix: Tensor, split: int | None = None) -> None:
        super().__init__()
        whole = torch.tensor(list(start), dtype=torch.float64)
        split = len(whole) if split is None else split
        self.first = nn.Parameter(whole[:split].clone())
        if split < len(whole):
            self.second = nn.Parameter(whole[split:].clone().reshape(1, -1))
        self.register_buffer("matrix", matrix.double())

    def forward(self, inputs: Tensor) -> Tensor:
        parts = [value.flatten() for value in self.parameters()]
        return (self.matrix @ torch.cat(parts)).expand(len(inputs), -1)


def quadratics(centers: Any, matrix: Tensor | None = None) -> list[fl.ClientData]:
    """One client a center; a center may be several points, one example each."""
    clients: list[fl.ClientData] = []
    for center in centers:
        points = torch.as_tensor(center, dtype=torch.float64)
        points = points.reshape(-1, points.shape[-1])
        targets = points if matrix is None else points @ matrix.double().T
        clients.append(fl.ClientData(torch.zeros(len(points), 1, dtype=torch.float64), targets))
    return clients


def points(start: Sequence[float], split: int | None = None) -> Curved:
    return Curved(start, torch.eye(len(start)), split)


def simulate(
    method: Method,
    model: nn.Module,
    clients: Sequence[fl.ClientData],
    rounds: int,
    *,
    loss: Callable[[Tensor, Tensor], Tensor] = half_square,
    local: fl.SGD | None = None,
    clip_norm: float | None = None,
    bound: fl.Bound | None = None,
    sampling: Any = None,
    cohorts: Sequence[Sequence[int]] | None = None,
    server_lr: float = 1.0,
    noise: Noise | None = None,
    noise_multiplier: float = 1e-3,
    vectorized: bool = False,
) -> list[TrainingState]:
    """States before the first round and after each; client states as the player keeps them."""
    params = {name: value.detach().clone() for name, value in trainable(model).items()}
    layout = Layout.of(params)
    local = method.prepare(fl.SGD(lr=0.1, steps=2, batch_size=None) if local is None else local)
    if bound is None and clip_norm is None and method.bound is None:
        clip_norm = 10.0
    chosen = choose_bound(bound, clip_norm, method)
    scheme = fl.Full() if sampling is None else sampling
    public = PublicSize.choose(None, scheme, len(clients))
    plan = RoundNoise(scheme, public.adjacency(scheme, None), noise_multiplier, public)
    source = Seeded(3)
    objective = LocalLoss(model, loss, layout.names, local.precision, functional=vectorized)
    kind = VectorizedTrainer if vectorized else SequentialTrainer
    engine = Engine(
        clients, method, layout, local, plan, noise or Silent(), source, torch.device("cpu"),
        server_lr,
    )  # fmt: skip
    state = TrainingState(0, params, method.init(dict(params)), {}, chosen, None)
    states = [state]
    for number in range(rounds):
        cohort = range(len(clients)) if cohorts is None else cohorts[number]
        found = engine.collect(
            state, engine.draw_for(list(cohort)), kind(method, objective, layout), 3
        )
        release = engine.release(state, found)
        assert release is not None
        memories = state.client_states | found.memories
        state = engine.apply(state, release)
        state.client_states = memories
        states.append(state)
    return states


def vector(params: dict[str, Tensor]) -> Tensor:
    return torch.cat([value.flatten() for value in params.values()])


def moved(states: Sequence[TrainingState]) -> list[Tensor]:
    """What each round adds to the parameters [d]."""
    return [vector(b.params) - vector(a.params) for a, b in itertools.pairwise(states)]


def same(one: Sequence[TrainingState], two: Sequence[TrainingState]) -> bool:
    """Whether all parameters of two simulations are equal to the bit."""
    pairs = zip(one, two, strict=True)
    return all(torch.equal(vector(a.params), vector(b.params)) for a, b in pairs)
