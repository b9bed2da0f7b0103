"""Canaries in random directions, all of them in, and the estimate from their cosines.

Source: Andrew et al. 2023 (arXiv:2302.03098), algorithm 1 (the final model) and 2 (all rounds). An
estimate: nothing says how far it may be from the truth, in either direction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, overload

import numpy as np
import torch
from numpy.typing import NDArray

from dpacct import fl
from dpacct.fl.clients import Canary, ClientData, Population
from dpacct.fl.tensors import norm
from dpacct_cli.train.job import Job, build_job
from dpacct_cli.train.run import federation
from dpacct_cli.train.settings import combine

Array = NDArray[np.float64]
ROUNDS, EPSILON, DELTA = "20", "8", 1e-5
WORDS = {"eps": EPSILON, "rounds": ROUNDS, "delta": str(DELTA), "device": "cpu", "sampling": "full"}


class GaussianClients(Sequence[ClientData]):
    """Clients, and canaries after them with random unit vectors, longer than any bound."""

    def __init__(self, clients: Population, directions: torch.Tensor, *, silent: bool) -> None:
        self._clients, self._directions, self._silent = clients, directions, silent

    def __len__(self) -> int:
        return len(self._clients) + len(self._directions)

    @overload
    def __getitem__(self, place: int) -> ClientData: ...
    @overload
    def __getitem__(self, place: slice) -> Sequence[ClientData]: ...
    def __getitem__(self, place: int | slice) -> ClientData | Sequence[ClientData]:
        if isinstance(place, slice):
            return [self[number] for number in range(*place.indices(len(self)))]
        number = range(len(self))[place] - len(self._clients)
        data = self._clients[place if number < 0 else 0]
        if number >= 0:
            return Canary(data.inputs, data.targets, 1e3 * self._directions[number])
        nothing = torch.zeros(self._directions.shape[1])
        return Canary(data.inputs, data.targets, nothing) if self._silent else data


def estimated(canaries: int, others: str) -> dict[str, Any]:
    """Return epsilon estimated from one run: from the final model, and from all rounds."""
    job: Job = build_job(combine("dp-fedavg", WORDS))
    size = sum(value.numel() for value in job.model.parameters())
    directions = torch.nn.functional.normalize(torch.randn(canaries, size), dim=1)
    people = GaussianClients(job.clients, directions, silent=others == "silent")
    cosines: list[Array] = []
    total = torch.zeros(size)
    with federation(job, people) as run:
        for _ in run:
            released = run.state.released
            if released is None:
                continue
            total += released
            cosines.append(_cosines(directions, released))
        proven = run.epsilon.upper
    largest = np.max(cosines, axis=0)
    # For unused directions: as many rounds of independent cosines.
    null = np.random.default_rng(0).normal(size=(4000, len(cosines))).max(axis=1) / size**0.5
    return {
        "epsilon": proven,
        "final": gap(0.0, size**-0.5, *_law(_cosines(directions, total))),
        "all_rounds": gap(*_law(null), *_law(largest)),
    }


def shown(canaries: int, others: str) -> dict[str, Any]:
    """Return the result of this package's audit of the same run."""

    def build(people: Population) -> fl.Federation:
        return federation(build_job(combine("dp-fedavg", WORDS)), people)

    clients = build_job(combine("dp-fedavg", WORDS)).clients
    found = fl.audit_run(build, clients, canaries=canaries, others=others)
    return {
        "epsilon": found.charged.upper,
        "bound": found.shown.epsilon,
        "bound_if_gaussian": found.gaussian_epsilon,
    }


def gap(mean: float, spread: float, other_mean: float, other_spread: float) -> float:
    """Return epsilon at `DELTA` between two Gaussians, by quadrature, or 0 if delta is smaller."""
    low = min(mean - 12 * spread, other_mean - 12 * other_spread)
    high = max(mean + 12 * spread, other_mean + 12 * other_spread)
    x = np.linspace(low, high, 200_001)
    one = np.exp(-(((x - mean) / spread) ** 2) / 2) / spread
    two = np.exp(-(((x - other_mean) / other_spread) ** 2) / 2) / other_spread
    step = (x[1] - x[0]) / (2 * np.pi) ** 0.5

    def excess(epsilon: float) -> float:
        growth = np.exp(epsilon)
        sides = (one - growth * two, two - growth * one)
        return max(float(np.maximum(side, 0).sum()) * step for side in sides) - DELTA

    found = 0.0
    for step_size in 2.0 ** np.arange(5, -10, -1):
        if excess(found + step_size) > 0:
            found += float(step_size)
    return found


def _cosines(directions: torch.Tensor, vector: torch.Tensor) -> Array:
    found: torch.Tensor = directions.double() @ (vector.double() / norm(vector))
    return found.numpy()


def _law(values: Array) -> tuple[float, float]:
    return float(values.mean()), float(values.std(ddof=1))
