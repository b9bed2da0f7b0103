"""DP-SGD on single examples compared with Opacus, on the network of Opacus' own MNIST example.

``DPACCT_DATA=folder python -m benchmarks.examples`` uses MNIST from the folder, else made-up images
of the same shape. Both train the same network on batches drawn by Poisson sampling, in turns of a
few steps and in processes of their own: in one process, torch's threads go on asking for work after
the other one's step, on the processor that the next one needs.
"""

from __future__ import annotations

import multiprocessing
import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from importlib import import_module
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.federated_jobs import DATA, cross_entropy, mnist_job
from benchmarks.measure import table
from dpacct import Budget, fl

# The first turns load modules and data.
TURNS, WARM = 8, 3
# Steps of a turn, and how many of these are not counted: they fill the caches.
STEPS, UNCOUNTED = 8, 2
NAMES = ("ours", "on disk", "Opacus")
EXAMPLES = 50_000


class OpacusNet(nn.Module):
    """The network of Opacus' MNIST example, 26,010 weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 8, 2, padding=3)
        self.conv2 = nn.Conv2d(16, 32, 4, 2)
        self.fc1 = nn.Linear(32 * 4 * 4, 32)
        self.fc2 = nn.Linear(32, 10)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return class scores [n, 10] of images [n, 1, 28, 28]."""
        found = functional.max_pool2d(functional.relu(self.conv1(inputs)), 2, 1)
        found = functional.max_pool2d(functional.relu(self.conv2(found)), 2, 1)
        return self.fc2(functional.relu(self.fc1(found.flatten(1))))


def images() -> fl.ClientData:
    """Return training images [n, 1, 28, 28] and their labels."""
    [everything] = mnist_job(1, images=True, train=EXAMPLES).clients
    return everything


def ours(data: fl.ClientData, batch: int, folder: str | None) -> Iterator[object]:
    """Yield whole rounds: charge, draw, gradients, bound, sum, noise, commit, update.

    Args:
        data: to train on. batch: examples expected in a round.
        folder: of the ledger, None for a temporary one, which is not flushed to the disk.
    """
    run = fl.Federation(
        OpacusNet(),
        cross_entropy,
        fl.Examples(data),
        clip_norm=1.0,
        noise_multiplier=1.0,
        budget=Budget(8, 1e-5),
        sampling=fl.Poisson(batch / len(data)),
        rounds=10_000,
        server_lr=0.1,
        ledger=None if folder is None else Path(folder) / f"{batch}.ledger",
    )
    with run:
        yield from run


def opacus(data: fl.ClientData, batch: int) -> Iterator[object]:
    """Yield whole steps: its loader, hooks, clip, noise, update. It keeps no ledger."""
    warnings.simplefilter("ignore")
    engine: Any = import_module("opacus").PrivacyEngine()
    model: Any = OpacusNet()
    loader: Any = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(data.tensor, data.targets), batch_size=batch
    )
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    model, optimizer, loader = engine.make_private(
        module=model,
        optimizer=optimizer,
        data_loader=loader,
        noise_multiplier=1.0,
        max_grad_norm=1.0,
    )
    model.train()
    while True:
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss: Any = cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            yield None


def trainer(name: str, batch: int, folder: str, turns: Connection) -> None:
    """One of them, in a process of its own: for each turn asked for, seconds of its steps.

    Args:
        name: which one. batch: examples expected in a step. folder: for a ledger.
        turns: requests steps, and receives wall and processor times of the steps that count.
    """
    data = images()
    steps = {
        "ours": lambda: ours(data, batch, None),
        "on disk": lambda: ours(data, batch, folder),
        "Opacus": lambda: opacus(data, batch),
    }[name]()
    while turns.recv():
        found: list[tuple[float, float]] = []
        for _ in range(STEPS):
            started, spent = time.perf_counter(), time.process_time()
            next(steps)
            found.append((time.perf_counter() - started, time.process_time() - spent))
        turns.send(found[UNCOUNTED:])


def medians(batch: int, folder: str) -> dict[str, tuple[float, float]]:
    """Return seconds of a step of each trainer, by the clock and of processors, in turns."""
    context = multiprocessing.get_context("spawn")
    ends: dict[str, Connection] = {}
    for name in NAMES:
        ends[name], other = context.Pipe()
        context.Process(target=trainer, args=(name, batch, folder, other), daemon=True).start()
    times: dict[str, list[tuple[float, float]]] = {name: [] for name in NAMES}
    for turn, name in product(range(TURNS + WARM), NAMES):
        ends[name].send(True)  # noqa: FBT003 - another turn
        found = ends[name].recv()
        times[name] += found if turn >= WARM else []
    for end in ends.values():
        end.send(False)  # noqa: FBT003 - no more
    columns = {name: tuple(zip(*found, strict=True)) for name, found in times.items()}
    return {name: (statistics.median(w), statistics.median(b)) for name, (w, b) in columns.items()}


def main() -> None:
    """Print medians of steps that take turns, and the ratio."""
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for batch in (64, 256, 1024):
            found = medians(batch, folder)
            (wall, busy), (disk, _), (peer, work) = (found[name] for name in NAMES)
            shown = [busy, work, wall, disk, peer]
            ratios = [busy / work, wall / peer, disk / peer]
            rows.append([str(batch), *(f"{1e3 * value:.1f}" for value in shown)])
            rows[-1] += [f"{ratio:.2f}" for ratio in ratios]
    where = "MNIST" if DATA else "made-up images"
    title = f"DP-SGD on {where}, {torch.get_num_threads()} threads, ms a step"
    header = ["batch", "processor: ours", "Opacus", "wall: ours", "ledger on disk", "Opacus"]
    header += ["ratio by processor", "by wall", "on disk"]
    print(table(title, header, rows))


if __name__ == "__main__":
    main()
