"""CIFAR-10: the CNN job of pfl-research's benchmark, and rounds of ResNet-18.

``python -m benchmarks.federated_cifar [--device cuda] [--rounds 1500] [--resnet] FOLDER``. 1000
clients with 50 images each, cohorts of 50, batch 10, one local epoch. Without a folder images are
made up.
"""

from __future__ import annotations

import argparse
import time

import torch
from torch import nn

from benchmarks.federated_jobs import cross_entropy
from dpacct import Budget, fl
from dpacct.fl.data import Examples, PartitionedClients, load
from dpacct.fl.data.partitions import iid
from dpacct.fl.models import ConvNet, resnet18

CLIENTS, COHORT, IMAGES = 1000, 50, 50_000


def cifar(folder: str) -> tuple[Examples, fl.ClientData]:
    """Return training images, and test images as the model takes them."""
    if folder:
        data = load("cifar10", folder)
        inputs, targets = data.test.batch(slice(None))
        return data.train, fl.ClientData(inputs, targets)
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(IMAGES, 3, 32, 32, generator=generator)
    labels = torch.randint(10, (IMAGES,), generator=generator)
    return Examples(images, labels), fl.ClientData(images[:1000], labels[:1000])


def main() -> None:
    """Train, and print seconds, accuracy and epsilon on the way."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", nargs="?", default="")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--rounds", type=int, default=1500)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--epsilon", type=float, default=8.0)
    parser.add_argument("--clip-norm", type=float, default=0.4)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--resnet", action="store_true")
    parser.add_argument("--precision", default="float32")
    given = parser.parse_args()
    train, test = cifar(given.folder)
    # All images lie on the device. A client is a view of it.
    people = PartitionedClients(train, iid(IMAGES, CLIENTS), given.device)
    model: nn.Module = (
        resnet18(3, 10)
        if given.resnet
        else ConvNet((3, 32, 32), 10, channels=(32, 64), kernel=3, hidden=(128,))
    )
    size = sum(value.numel() for value in model.parameters())
    began = time.perf_counter()
    run = fl.Federation(
        model,
        cross_entropy,
        people,
        clip_norm=given.clip_norm,
        sampling=fl.Poisson(COHORT / CLIENTS),
        budget=Budget(given.epsilon, CLIENTS**-1.1),
        rounds=given.rounds,
        local=fl.SGD(lr=given.lr, epochs=1, batch_size=10, precision=given.precision),
        device=given.device,
    )
    print(f"{size} weights, noise multiplier {run.noise_multiplier:.4f}", flush=True)
    with run:
        for report in run:
            if report.round == 1:
                print(run.training_path, flush=True)
            if report.round % given.every == 0:
                accuracy = fl.evaluate(model, cross_entropy, test).accuracy
                print(
                    f"round {report.round}: {time.perf_counter() - began:.1f} s, "
                    f"accuracy {accuracy:.4f}, "
                    f"epsilon {report.epsilon.upper:.4f}",
                    flush=True,
                )
    if given.device.startswith("cuda"):
        print(f"{torch.cuda.max_memory_allocated() / 2**20:.0f} MiB on the device at most")


if __name__ == "__main__":
    main()
