"""The jobs that the federated benchmarks share."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from dpacct import fl
from dpacct.fl.data import Examples, PartitionedClients, Scaling, load
from dpacct.fl.data.partitions import iid

# A folder with mnist.npz, or with the original idx files. Without it images are made up, of the
# same shape: they take the same time, and teach nothing.
DATA = os.environ.get("DPACCT_DATA", "")

cross_entropy = nn.functional.cross_entropy


@dataclass(frozen=True)
class Job:
    """Clients of 28 x 28 images with pixels in [0, 1], and held-out examples."""

    clients: list[fl.ClientData]
    test: fl.ClientData
    data: str


def mnist_job(
    clients: int, *, images: bool = False, train: int = 50_000, folder: str | Path | None = None
) -> Job:
    """Return the first training images of MNIST, shared evenly, as vectors or as [1, 28, 28]."""
    place = folder or DATA
    if place:
        data = load("mnist", place).first(train)
        parts = [
            replace(part, scaling=Scaling.divided_by(255.0)) for part in (data.train, data.test)
        ]
    else:
        generator = torch.Generator().manual_seed(0)
        parts = [
            Examples(
                torch.rand(count, 1, 28, 28, generator=generator),
                torch.randint(10, (count,), generator=generator),
            )
            for count in (train, 1000)
        ]
    population = PartitionedClients(parts[0], iid(train, clients))
    inputs, targets = parts[1].batch(slice(None))
    shape = (1, 28, 28) if images else (784,)
    # Made once, so that only training is timed.
    people = [fl.ClientData(c.tensor.reshape(-1, *shape), c.targets) for c in population]
    return Job(
        people,
        fl.ClientData(inputs.reshape(-1, *shape), targets),
        "MNIST" if place else "made-up images",
    )


def small_cnn() -> nn.Module:
    """Return 5 x 5 convolutions (16 and 32 channels) and two linear layers, 109,000 weights."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 5, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 49, 60),
        nn.ReLU(),
        nn.Linear(60, 10),
    )
