"""DP-SGD on single examples beside Opacus, on the network of Opacus' own MNIST example.

``DPACCT_DATA=folder python -m benchmarks.examples`` uses MNIST from the folder, else made-up images
of the same shape. Both train the same network on batches drawn by Poisson sampling, in turns of a
few steps.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.federated_jobs import DATA, cross_entropy, mnist_job
from benchmarks.measure import table
from dpacct import Budget, fl

# A run records what it computes after some groups, one size of them after the other; the first
# turns make what is made once.
TURNS, WARM = 8, 3
# Steps of a turn, and how many of these are not counted: torch's threads of whoever came before go
# on asking for work for a while, on the processor that the next one needs.
STEPS, UNCOUNTED = 8, 2
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
        """Class scores [n, 10] of images [n, 1, 28, 28]."""
        found = functional.max_pool2d(functional.relu(self.conv1(inputs)), 2, 1)
        found = functional.max_pool2d(functional.relu(self.conv2(found)), 2, 1)
        return self.fc2(functional.relu(self.fc1(found.flatten(1))))


def images() -> fl.ClientData:
    """Training images [n, 1, 28, 28] and their labels."""
    [everything] = mnist_job(1, images=True, train=EXAMPLES).clients
    return everything


def ours(data: fl.ClientData, batch: int, folder: str | None) -> Iterator[object]:
    """Whole rounds: charge, draw, gradients, bound, sum, noise, commit, update.

    Args:
        data: to train on. batch: examples expected in a round.
        folder: of the ledger; None for a passing one, which is not flushed to the disk.
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
    """Whole steps: its loader, hooks, clip, noise, update. It keeps no ledger."""
    warnings.simplefilter("ignore")
    engine: Any = import_module("opacus").PrivacyEngine()
    model: Any = OpacusNet()
    loader: Any = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(data.inputs, data.targets), batch_size=batch
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


def main() -> None:
    """Print medians of steps that take turns, and the ratio."""
    data = images()
    rows: list[list[str]] = []
    with tempfile.TemporaryDirectory() as folder:
        for batch in (64, 256, 1024):
            calls = {
                "ours": ours(data, batch, None),
                "on disk": ours(data, batch, folder),
                "Opacus": opacus(data, batch),
            }
            wall: dict[str, list[float]] = {name: [] for name in calls}
            busy: dict[str, list[float]] = {name: [] for name in calls}
            for turn, (name, steps), step in product(
                range(TURNS + WARM), calls.items(), range(STEPS)
            ):
                started, spent = time.perf_counter(), time.process_time()
                next(steps)
                if turn >= WARM and step >= UNCOUNTED:
                    wall[name].append(time.perf_counter() - started)
                    busy[name].append(time.process_time() - spent)
            times = {name: statistics.median(found) for name, found in wall.items()}
            work = {name: statistics.median(found) for name, found in busy.items()}
            ratios = [work["ours"] / work["Opacus"]]
            ratios += [times[name] / times["Opacus"] for name in ("ours", "on disk")]
            shown = [work["ours"], work["Opacus"], times["ours"], times["on disk"], times["Opacus"]]
            rows.append([str(batch), *(f"{1e3 * value:.1f}" for value in shown)])
            rows[-1] += [f"{ratio:.2f}" for ratio in ratios]
    where = "MNIST" if DATA else "made-up images"
    title = f"DP-SGD on {where}, {torch.get_num_threads()} threads, ms a step"
    header = ["batch", "processor: ours", "Opacus", "wall: ours", "ledger on disk", "Opacus"]
    header += ["ratio by processor", "by wall", "on disk"]
    print(table(title, header, rows))


if __name__ == "__main__":
    main()
