"""Fed-alpha-NormEC against FedAvg with smoothed normalization, over beta, with true epsilons.

``python -m evidence.normec_beta.play FOLDER [--only WHAT] [--part I/N]``. WHAT is one kind of runs,
or "page": write tables and pictures of the recorded runs. Published setting: 20 clients
with equal shuffled shares, one local step on a batch of 32, 300 rounds, alpha 0.01, no server
normalization, server rate = local rate = gamma, beta and gamma in {0.001, 0.01, 0.1}, delta 1e-5.
gamma is chosen for every beta (and here for every noise).

- ``cifar32``: ResNet-20 on CIFAR-10 as it is, 272474 weights, 50000 images, accuracy on the first
  5000 test images, in the few cells of `evidence.normec_beta.scale`. Elsewhere, instead:
- ``cifar``: CIFAR-10 averaged to 16 x 16 pixels, two 3 x 3 convolutions of 8 and 16 channels and a
  linear layer, 3962 weights, 50000 images, accuracy on the first 5000 test images.
- ``mnist``: logistic regression, 7850 weights, 50000 images, 10000 test images, 20 or 100 clients.

Pixels are standardized: mean 0 and standard deviation 1 over all training images.

Noises are those of `evidence.normec_beta.noise`.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import nn

from dpacct import Budget, fl
from dpacct.fl.data import Dataset, load
from dpacct.fl.data.partitions import iid
from dpacct.fl.models import ConvNet, LogisticRegression, cross_entropy, resnet20
from evidence.normec_beta.grid import (
    FEDAVG,
    GRIDS,
    NORMEC,
    UNIT,
    best_table,
    grid_settings,
    grid_table,
    partial_settings,
    partial_table,
    pixel_settings,
    pixel_table,
    repeated_settings,
)
from evidence.normec_beta.noise import DELTA, ROUNDS, multiplier, noise_tables
from evidence.normec_beta.picture import draw_methods, draw_noises, draw_scale
from evidence.normec_beta.scale import DATA, EVERY, lost, scale_settings, scale_table
from evidence.pages import add_into, home, put_tables
from evidence.records import Records, Setting, trained

PAGE, RUNS = "normec_beta/README.md", "normec_beta/runs.jsonl"
METHODS = {NORMEC: fl.FedAlphaNormEC, FEDAVG: fl.FedAvgSmoothed}
KINDS = {
    "grids": grid_settings,
    "partial": partial_settings,
    "repeated": repeated_settings,
    "pixels": pixel_settings,
    "scale": scale_settings,
}


@dataclass(frozen=True)
class Task:
    """Clients' images, held-out images, and the model for them."""

    images: torch.Tensor
    labels: torch.Tensor
    test: fl.ClientData
    model: Callable[[], nn.Module]

    def clients(self, count: int, run: int) -> list[fl.ClientData]:
        """Return equal shares, shuffled by the number of the run."""
        parts = iid(len(self.labels), count, seed=run)
        rows = [torch.tensor(part.tolist()) for part in parts]
        return [fl.ClientData(self.images[part], self.labels[part]) for part in rows]


@cache
def task(name: str, folder: str) -> Task:
    """Return the data of a setting."""
    digits = name in ("mnist", UNIT)
    data: Dataset = load("mnist", folder) if digits else load("cifar10", folder)
    images, labels = data.train.batch(slice(0, 50_000))
    seen, truth = data.test.batch(slice(0, 10_000 if digits else 5_000))
    if digits:
        if name == UNIT:
            low, high = images.min(), images.max()
            images, seen = ((values - low) / (high - low) for values in (images, seen))
        test = fl.ClientData(seen, truth)
        return Task(images, labels, test, lambda: LogisticRegression(784, 10))
    if name == DATA:
        return Task(images, labels, fl.ClientData(seen, truth), lambda: resnet20(3, 10))
    # A quarter of the work: the grids have hundreds of runs.
    half = nn.functional.avg_pool2d
    test = fl.ClientData(half(seen, 2), truth)
    build = lambda: ConvNet((3, 16, 16), 10, channels=(8, 16), kernel=3, hidden=())  # noqa: E731
    return Task(half(images, 2), labels, test, build)


def play(setting: Setting, folder: str) -> dict[str, Any]:
    """Return one training run, with fresh noise and cohorts."""
    job = task(str(setting["data"]), folder)
    clients, rate = int(setting["clients"] or 0), float(setting["sampling_rate"] or 0)
    beta, gamma, run = (float(setting[name] or 0) for name in ("beta", "gamma", "run"))
    noise = multiplier(str(setting["noise"]), sampling_rate=rate, beta=beta, clients=clients)
    torch.manual_seed(int(run))  # pyright: ignore[reportUnknownMemberType]
    model = job.model()
    norms: list[float] = []

    def accuracy() -> float:
        norms.append(length(model))
        seen = fl.evaluate(model, cross_entropy, job.test, batch_size=250)
        return 100 * seen.accuracy

    published = setting["data"] == DATA
    with fl.Federation(
        model,
        cross_entropy,
        job.clients(clients, int(run)),
        method=METHODS[str(setting["method"])](alpha=0.01, beta=beta),
        sampling=fl.Full() if rate == 1 else fl.Poisson(rate),
        noise_multiplier=noise,
        budget=Budget(8.0, DELTA) if noise is None else None,
        delta=DELTA if noise is not None else None,
        rounds=ROUNDS,
        local=fl.SGD(lr=gamma, steps=1, batch_size=32),
        server_lr=gamma,
        # Side by side is no faster where a client has many images and takes few of them.
        vectorize="auto" if clients > 100 else False,
    ) as federation:
        result = trained(
            federation,
            accuracy,
            every=EVERY if published else 10,
            lost=lambda history: published and lost(history, norms),
        )
    history = [
        {
            "round": row["round"],
            "accuracy": round(row["accuracy"], 2),
            "signal_to_noise": float(f"{row['signal_to_noise']:.3g}"),
            **({"norm": float(f"{size:.4g}")} if published else {}),
        }
        for row, size in zip(result["history"], norms, strict=True)
    ]
    final = {name: value for name, value in result.items() if name != "history"}
    final |= {"accuracy": round(result["accuracy"], 2), "norm": float(f"{norms[-1]:.4g}")}
    final["seconds_per_round"] = round(result["seconds_per_round"], 4)
    return {**final, "history": history}


def length(model: nn.Module) -> float:
    """Return Euclidean length of all weights together."""
    return math.sqrt(sum(float(p.detach().square().sum()) for p in model.parameters()))


def tables(records: Records) -> dict[str, str]:
    """Return the page's tables."""
    grids = {
        f"{data} {clients} {noise}": grid_table(records, data, clients, noise)
        for data, clients, noise, _ in GRIDS
    }
    found = {"best": best_table(records), "partial": partial_table(records)}
    found["pixels"] = pixel_table(records)
    return {**noise_tables(), **found, "scale": scale_table(records), **grids}


def main() -> None:
    """Run the missing settings, and write the page's tables and pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--part", default="0/1", help="I/N: every N-th setting from the I-th")
    parser.add_argument("--only", choices=(*KINDS, "page"), help="one step, not all of them")
    add_into(parser)
    given = parser.parse_args()
    index, parts = (int(word) for word in given.part.split("/"))
    folder = home(given.into, PAGE)
    records = Records(folder / RUNS, (index, parts))
    for kind, wanted in KINDS.items():
        if given.only in (None, kind):
            records.need(wanted(records), lambda one: play(one, given.folder))
    if given.only not in (None, "page"):
        return
    put_tables(folder / PAGE, tables(records))
    draw_methods(records, folder / "normec_beta/picture.png")
    draw_noises(records, folder / "normec_beta/noise.png")
    draw_scale(records, folder / "normec_beta/scale.png")


if __name__ == "__main__":
    main()
