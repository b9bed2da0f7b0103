"""DP-SGD on single examples beside Opacus, on the network of Opacus' own MNIST example.

``DPACCT_DATA=folder python -m benchmarks.examples`` uses MNIST from the folder, else made-up images
of the same shape. Both train the same network on batches drawn by Poisson sampling, in turns.
"""

from __future__ import annotations

import statistics
import tempfile
import time
import warnings
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.federated_jobs import DATA, cross_entropy, mnist_job
from benchmarks.measure import table
from dpacct import Budget, fl

STEPS = 12
TURNS = 3
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


def ours(data: fl.ClientData, batch: int) -> Iterator[float]:
    """Seconds of each whole round: charge, draw, gradients, bound, sum, noise, commit, update."""
    with tempfile.TemporaryDirectory() as folder:
        run = fl.Federation(
            OpacusNet(),
            cross_entropy,
            fl.Examples(data),
            clip_norm=1.0,
            noise_multiplier=1.0,
            budget=Budget(8, 1e-5),
            sampling=fl.Poisson(batch / EXAMPLES),
            rounds=10_000,
            server_lr=0.1,
            ledger=Path(folder) / "run.ledger",
        )
        with run:
            for report in run:
                yield report.timing.total


def opacus(data: fl.ClientData, batch: int) -> Iterator[tuple[float, float]]:
    """Seconds of each step by itself, and with its loader; it keeps no ledger."""
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
        began = time.perf_counter()
        for inputs, targets in loader:
            started = time.perf_counter()
            optimizer.zero_grad()
            loss: Any = cross_entropy(model(inputs), targets)
            loss.backward()
            optimizer.step()
            ended = time.perf_counter()
            yield ended - started, ended - began
            began = time.perf_counter()


def main() -> None:
    """Print the medians of both, and the ratio."""
    data = images()
    rows: list[list[str]] = []
    for batch in (64, 256, 1024):
        mine, theirs = ours(data, batch), opacus(data, batch)
        # The first ones make what is made once.
        _ = next(mine), next(mine), next(theirs), next(theirs)
        own: list[float] = []
        bare: list[float] = []
        loaded: list[float] = []
        for _ in range(TURNS):
            own += [next(mine) for _ in range(STEPS)]
            for _ in range(STEPS):
                step, whole = next(theirs)
                bare.append(step)
                loaded.append(whole)
        us, them, all_ = (statistics.median(times) for times in (own, bare, loaded))
        rows.append(
            [
                str(batch),
                f"{us * 1e3:.1f} ms",
                f"{them * 1e3:.1f} ms",
                f"{us / them:.2f}",
                f"{all_ * 1e3:.1f} ms",
                f"{us / all_:.2f}",
            ]
        )
    where = "MNIST" if DATA else "made-up images"
    title = f"DP-SGD on {where}, {torch.get_num_threads()} threads; ours with ledger and sampling"
    header = ["batch", "ours", "Opacus, step", "ratio", "with its loader", "ratio"]
    print(table(title, header, rows))


if __name__ == "__main__":
    main()
