"""The training jobs of `device`, at full size and small enough for any machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from benchmarks.federated_jobs import cross_entropy
from benchmarks.pfl_research import PflJob, written
from dpacct import fl
from dpacct.fl.data import Examples, PartitionedClients
from dpacct.fl.data.partitions import iid
from dpacct.fl.local.sgd import Precision
from dpacct.fl.models import ConvNet, resnet18

CLIP_NORM, NOISE, RATE = 0.4, 1.0, 0.1


@dataclass(frozen=True)
class Job:
    """Federated training on made-up images of CIFAR-10's shape.

    Attributes:
        name: in the table. model: builds the network.
        clients: in all. cohort: expected, of Poisson sampling. images: of each client.
        rounds: planned. batch: examples in a step, one epoch.
        precision: of the forward and backward pass. secure: discrete noise.
        goal: seconds for all rounds that this package aims at, None without a goal.
        peer: the network's name in `pfl_research`, empty if it has none.
        together: clients train side by side whatever their speed. False: what is faster is taken.
    """

    name: str
    model: Callable[[], nn.Module]
    clients: int
    cohort: int
    images: int
    rounds: int
    precision: Precision = "float32"
    secure: bool = False
    batch: int = 10
    goal: float | None = None
    peer: str = ""
    together: bool = False

    def small(self) -> Job:
        """Return the smallest job that shows the same kind of work."""
        few = 4 if self.name.startswith("ResNet") else 20
        size = {"clients": 2 * few, "cohort": few // 2, "images": 10, "rounds": 3}
        # On a CPU one by one may be faster, and side by side is what a device would run.
        return replace(self, **size, goal=None, together=True)

    def federation(self, device: torch.device, train: Examples) -> fl.Federation:
        """Return the run. All images lie on the device, and clients are gathered from them."""
        inputs, targets = train.batch(slice(self.clients * self.images))
        held = Examples(inputs, targets)
        return fl.Federation(
            self.model(),
            cross_entropy,
            PartitionedClients(held, iid(len(held), self.clients), device),
            clip_norm=CLIP_NORM,
            sampling=fl.Poisson(self.cohort / self.clients),
            noise_multiplier=NOISE,
            delta=self.clients**-1.1,
            rounds=self.rounds,
            secure_noise=self.secure,
            local=fl.SGD(lr=RATE, epochs=1, batch_size=self.batch, precision=self.precision),
            device=device,
            vectorize=True if self.together else "auto",
        )

    def in_pfl(self, device: torch.device, train: Examples) -> Path:
        """Return a file with the same job for pfl-research, with equal cohorts."""
        inputs, targets = train.batch(slice(self.clients * self.images))
        firsts = range(0, len(inputs), self.images)
        rows = [slice(first, first + self.images) for first in firsts]
        parts = [(inputs[part], targets[part]) for part in rows]
        settings = (1, self.batch, RATE, CLIP_NORM, NOISE)
        return written(PflJob(self.peer, self.cohort, *settings, device=device.type), parts)

    def operations(self) -> float:
        """Return floating-point operations of a round: forward and backward passes of examples."""
        model = self.model()
        inputs, targets = torch.randn(2, 3, 32, 32), torch.zeros(2, dtype=torch.int64)
        counter = FlopCounterMode(display=False)
        with counter:
            torch.autograd.backward(cross_entropy(model(inputs), targets))
        return counter.get_total_flops() / 2 * self.images * self.cohort


def cnn() -> nn.Module:
    """Return the network of pfl-research's benchmark on CIFAR-10: two convolutions, two layers."""
    return ConvNet((3, 32, 32), 10, channels=(32, 64), kernel=3, hidden=(128,))


def resnet() -> nn.Module:
    """Return ResNet-18 with group norm, 11.2 million weights."""
    return resnet18(3, 10)


JOBS = (
    Job("CNN, pfl-research's CIFAR-10", cnn, 1000, 50, 50, 1500, goal=30.0, peer="cnn"),
    Job("CNN, secure noise", cnn, 1000, 50, 50, 100, secure=True),
    Job("ResNet-18, bfloat16", resnet, 500, 50, 100, 300, precision="bfloat16", goal=600.0),
    Job("ResNet-18, float32", resnet, 500, 50, 100, 300),
)


def images(jobs: tuple[Job, ...]) -> Examples:
    """Return as many synthetic images as the largest job needs."""
    count = max(job.clients * job.images for job in jobs)
    generator = torch.Generator().manual_seed(0)
    return Examples(
        torch.randn(count, 3, 32, 32, generator=generator),
        torch.randint(10, (count,), generator=generator),
    )
