"""Rounds of clients by the engine, compared with vmap by hand, and what the first round costs.

``python -m benchmarks.clients``. Turns alternate in one process on one thread, and the results are
medians of processor time. By hand, `vmap(grad)` steps a whole cohort whose data lie in one tensor.
Clients that differ in size are padded to the longest one, with weights of zero. Nothing is charged
or checked, and sums are not exact. The engine runs without its ledger.
"""

from __future__ import annotations

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from benchmarks.measure import table
from dpacct import fl
from dpacct.fl.tensors import forked_generators, norm, numbers

TURNS, WARM, BATCH, RATE = 12, 3, 10, 0.1


def people(sizes: list[int], width: int) -> list[fl.ClientData]:
    """Return clients with this many examples each, vectors of this width with ten labels."""
    return [fl.ClientData(torch.rand(n, width), torch.randint(10, (n,))) for n in sizes]


def jobs() -> Iterator[tuple[str, nn.Module, list[fl.ClientData], int]]:
    """Yield name, model, clients and epochs of each job."""
    ragged: list[int] = numbers(torch.randint(20, 401, (100,)))
    perceptron = nn.Sequential(nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))
    yield "100 equal clients, logistic", nn.Linear(784, 10), people([50] * 100, 784), 5
    yield "1,000 equal clients, logistic", nn.Linear(784, 10), people([50] * 1000, 784), 5
    yield "100 of 20 to 400 examples, logistic", nn.Linear(784, 10), people(ragged, 784), 1
    yield "100 of 20 to 400 examples, MLP", perceptron, people(ragged, 784), 1
    yield "3,400 of 10 examples, logistic", nn.Linear(20, 10), people([10] * 3400, 20), 1


def federation(model: nn.Module, clients: list[fl.ClientData], epochs: int = 1) -> fl.Federation:
    """Return a run in which all clients take part."""
    local = fl.SGD(lr=RATE, epochs=epochs, batch_size=BATCH)
    return fl.Federation(
        model,
        functional.cross_entropy,
        clients,
        clip_norm=1.0,
        noise_multiplier=1.0,
        sampling=fl.Full(),
        rounds=1000,
        local=local,
        delta=1e-5,
    )


def ours(model: nn.Module, clients: list[fl.ClientData], epochs: int) -> Iterator[object]:
    """Yield rounds of the engine without the ledger."""
    with federation(model, clients, epochs) as run:
        next(iter(run))
        engine, state, choice = cast("Any", (run.engine, run.state, run.choice))
        while True:
            with forked_generators():
                found = engine.collect(state, engine.draw(), choice.trainer, choice.plan.chunk)
            state = engine.apply(state, engine.release(state, found))
            yield state


def by_hand(model: nn.Module, clients: list[fl.ClientData], epochs: int) -> Callable[[], None]:
    """Return a round as it is written for a notebook."""
    params = {name: value.detach().clone() for name, value in model.named_parameters()}
    sizes = torch.tensor([len(client) for client in clients])
    longest, count = int(sizes.max()), len(clients)
    equal = bool((sizes == longest).all())
    inputs = torch.zeros(count, longest, clients[0].tensor.shape[1])
    targets = torch.zeros(count, longest, dtype=torch.int64)
    for place, client in enumerate(clients):
        inputs[place, : len(client)], targets[place, : len(client)] = client.tensor, client.targets

    def loss(own: dict[str, Tensor], x: Tensor, y: Tensor, mask: Tensor) -> Tensor:
        outputs = functional_call(model, own, (x,))
        if equal:
            return functional.cross_entropy(outputs, y)
        losses = functional.cross_entropy(outputs, y, reduction="none")
        return (losses * mask).sum() / mask.sum().clamp(min=1)

    slopes: Any = vmap(grad(loss))

    def step() -> None:
        own = {name: value.expand(count, *value.shape).clone() for name, value in params.items()}
        everyone = torch.arange(count).unsqueeze(1)
        for _ in range(epochs):
            keys = torch.rand(count, longest)
            order = keys.masked_fill(torch.arange(longest) >= sizes.unsqueeze(1), 2.0).argsort(1)
            for first in range(0, longest, BATCH):
                rows = order[:, first : first + BATCH]
                mask = (rows < sizes.unsqueeze(1)).float()
                found = slopes(own, inputs[everyone, rows], targets[everyone, rows], mask)
                for name, value in own.items():
                    value.sub_(found[name], alpha=RATE)
        moves = torch.cat([(own[name] - params[name]).flatten(1) for name in params], dim=1)
        moves.mul_((1 / norm(moves, dim=1).unsqueeze(1)).clamp(max=1.0))
        mean = (moves.sum(dim=0) + torch.randn(moves.shape[1])) / count
        parts = cast("Any", mean).split([value.numel() for value in params.values()])
        for value, part in zip(params.values(), parts, strict=True):
            value.add_(part.view_as(value))

    return step


class Patches(nn.Module):
    """A vision transformer on images [n, 3, size, size], cut into patches."""

    def __init__(self, width: int, depth: int, patch: int, size: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, patch)
        self.places = nn.Parameter(torch.zeros(1, (size // patch) ** 2, width))
        layer = nn.TransformerEncoderLayer(
            width, width // 64, 4 * width, 0.0, batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        """Return class scores [n, 10]."""
        parts = self.patches(images).flatten(2).mT + self.places
        return self.head(self.body(parts).mean(dim=1))


def first_round(model: nn.Module, size: int, clients: int) -> tuple[float, float]:
    """Return seconds before the first charge, and of a round of clients with a batch each."""
    data = [
        fl.ClientData(torch.rand(BATCH, 3, size, size), torch.randint(10, (BATCH,)))
        for _ in range(clients)
    ]
    times: list[float] = []
    with federation(model, data) as run:
        rounds = iter(run)
        for _ in range(3):
            began = time.process_time()
            next(rounds)
            times.append(time.process_time() - began)
    return times[0] - min(times), min(times)


def main() -> None:
    """Print medians of rounds that take turns, and rehearsals."""
    torch.set_num_threads(1)
    cast("Any", torch).manual_seed(0)
    rows: list[list[str]] = []
    for name, model, clients, epochs in jobs():
        rounds = ours(model, clients, epochs)
        calls = {"engine": lambda r=rounds: next(r), "hand": by_hand(model, clients, epochs)}
        spent: dict[str, list[float]] = {way: [] for way in calls}
        for _ in range(TURNS):
            for way, call in calls.items():
                began = time.process_time()
                call()
                spent[way].append(time.process_time() - began)
        engine, hand = (statistics.median(spent[way][WARM:]) for way in calls)
        rows.append([name, f"{1e3 * engine:.0f}", f"{1e3 * hand:.0f}", f"{engine / hand:.2f}"])
        print(rows[-1], file=sys.stderr, flush=True)
    print(table("A round, processor ms", ["", "engine", "by hand", "ratio"], rows))
    rows = []
    for name, shape, size, clients in (
        ("transformer of 10.7 M weights, 2 clients", (384, 6, 8, 32), 32, 2),
        ("ViT-Base, 86 M weights, 1 client", (768, 12, 16, 224), 224, 1),
    ):
        before, spent_round = first_round(Patches(*shape), size, clients)
        rows.append([name, f"{before:.1f}", f"{spent_round:.1f}", f"{before / spent_round:.1f}"])
    header = ["a batch of ten each", "before the first charge", "a round", "in rounds"]
    print(table("The rehearsal, processor seconds", header, rows))


if __name__ == "__main__":
    main()
