"""The runs behind the page on long training: two claims, their settings, and how one is played."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

from dpacct import Uniform, fl
from dpacct.fl.data import Dataset, load
from dpacct.fl.data.dataset import Examples, PartitionedClients
from dpacct.fl.data.partitions import Partition, dirichlet, iid
from dpacct.fl.models import ConvNet, cross_entropy
from dpacct.fl.postprocess import smooth
from evidence.records import Setting, trained

# Rounds between two evaluations, negligible noise, and the recorded values of an evaluation.
EVERY = 10
ALMOST_NONE = 0.01
HISTORY = ("round", "accuracy", "norm_median", "clipped", "signal_to_noise")


@dataclass(frozen=True)
class FedAvgLS(fl.Method):
    """DP-FedAvg with a smoothed noisy mean: DP-Fed-LS without its projection."""

    smoothing: float = 1.0
    name = "fedavg-ls"

    def post(self, noised: fl.Noised, server_state: Mapping[str, Any]) -> fl.Noised:
        """Return the mean smoothed tensor by tensor."""
        del server_state
        return noised.map_tensors(lambda tensor: smooth(tensor, self.smoothing))


@dataclass(frozen=True)
class Claim:
    """A claim, and the setting that all its methods share.

    Attributes:
        population, cohort: numbers of clients, in all and in a round, without replacement.
        images: of Fashion-MNIST, dealt out evenly.
        concentration: of a Dirichlet partition. None ignores labels.
        methods: by their label, the baseline first.
    """

    title: str
    population: int
    cohort: int
    images: int
    concentration: float | None
    noise_multiplier: float
    clip_norm: float
    delta: float
    rounds: int
    local: fl.SGD
    methods: Mapping[str, Callable[[], fl.Method]]
    runs: int = 3


CLAIMS: Mapping[str, Claim] = {
    "smoothing": Claim(
        title="DP-Fed-LS: smoothing pays late",
        population=2000,
        cohort=100,
        images=60_000,
        concentration=None,
        noise_multiplier=2.4,
        clip_norm=0.3,
        delta=2000**-1.1,
        rounds=200,
        local=fl.SGD(lr=0.1, epochs=5, batch_size=64, lr_decay=0.99, weight_decay=4e-5),
        methods={
            "projected": lambda: fl.DPFedLS(smoothing=0.0),
            "projected, smoothed": lambda: fl.DPFedLS(smoothing=1.0),
            "clipped once": fl.DPFedAvg,
            "clipped once, smoothed": FedAvgLS,
        },
    ),
    "sam": Claim(
        title="DP-FedSAM: many local steps",
        population=500,
        cohort=50,
        images=25_000,
        concentration=0.6,
        noise_multiplier=0.95,
        clip_norm=0.2,
        delta=1 / 500,
        rounds=30,
        local=fl.SGD(
            lr=0.1, steps=60, batch_size=25, momentum=0.5, lr_decay=0.998, weight_decay=5e-4
        ),
        methods={
            "rho 0": fl.DPFedAvg,
            "rho 0.1": lambda: fl.DPFedSAM(rho=0.1),
            "rho 0.5": lambda: fl.DPFedSAM(rho=0.5),
            # The optimizer of the authors' code.
            "adaptive, rho 0.5": lambda: fl.DPFedSAM(rho=0.5, adaptive=True),
        },
    ),
}


@lru_cache(maxsize=1)
def _data(folder: Path) -> Dataset:
    return load("fashion-mnist", folder)


def _halved(images: torch.Tensor) -> torch.Tensor:
    """Return [n, 1, 16, 16] of [n, 1, 28, 28] with a frame of background: a third of the work."""
    framed = functional.pad(images, (2, 2, 2, 2), value=float(images.min()))
    return functional.avg_pool2d(framed, 2)


def partition(claim: Claim, labels: torch.Tensor, run: int) -> Partition:
    """Return the clients' shares of the first images. The seed is the number of the run."""
    if claim.concentration is None:
        return iid(len(labels), claim.population, seed=run)
    return dirichlet(labels.numpy(), claim.population, claim.concentration, seed=run)


@lru_cache(maxsize=1)
def people(name: str, run: int, folder: Path) -> PartitionedClients:
    """Return the clients of a run."""
    claim = CLAIMS[name]
    images, labels = _data(folder).train.batch(slice(0, claim.images))
    examples = Examples(_halved(images), labels)
    return PartitionedClients(examples, partition(claim, labels, run))


def network(run: int) -> ConvNet:
    """Return the network that all train, with the starting weights of a run."""
    torch.manual_seed(run)  # pyright: ignore[reportUnknownMemberType]
    return ConvNet((1, 16, 16), 10, channels=(8, 16), kernel=3, hidden=(64,))


def play(setting: Setting, folder: Path) -> dict[str, Any]:
    """Run with fresh noise and cohorts. Run r has the partition and starting weights r."""
    if "quantity" in setting:
        return what_is_left(int(setting["run"] or 0), folder)
    ceiling = "ceiling" in setting
    name = str(setting["ceiling" if ceiling else "claim"])
    claim, run_number = CLAIMS[name], int(setting["run"] or 0)
    model = network(run_number)
    seen, truth = _data(folder).test.batch(slice(None))
    test = fl.ClientData(_halved(seen), truth)
    with fl.Federation(
        model,
        cross_entropy,
        people(name, run_number, folder),
        method=claim.methods[str(setting["method"])](),
        clip_norm=claim.clip_norm,
        sampling=Uniform(claim.cohort, claim.population),
        noise_multiplier=ALMOST_NONE if ceiling else claim.noise_multiplier,
        delta=claim.delta,
        rounds=claim.rounds,
        local=claim.local,
        # Side by side is no faster for batches of this size.
        vectorize=False,
    ) as run:
        result = trained(
            run, lambda: 100 * fl.evaluate(model, cross_entropy, test).accuracy, every=EVERY
        )
    history = [{key: float(f"{row[key]:.5g}") for key in HISTORY} for row in result["history"]]
    return result | {"history": history}


def settings(name: str) -> list[Setting]:
    """Return all runs of a claim, seed by seed, so that methods stay paired wherever it ends."""
    claim = CLAIMS[name]
    return [
        {"claim": name, "method": method, "run": run}
        for run in range(claim.runs)
        for method in claim.methods
    ]


def others() -> list[Setting]:
    """Return runs with almost no noise, and the effect of smoothing on a gradient."""
    ceilings: list[Setting] = [
        {"ceiling": "smoothing", "method": method, "run": 0}
        for method in ("projected", "projected, smoothed")
    ]
    left: list[Setting] = [{"quantity": "left", "run": run} for run in range(3)]
    return [*ceilings, *left]


def what_is_left(run: int, folder: Path) -> dict[str, Any]:
    """Return the share that smoothing 1 leaves of a short step's decrease of the loss.

    For the gradient G of 5000 training images it is <G, A^-1 G> / |G|^2, at the starting weights of
    a run, and after 400 steps on batches of 64 of these images without noise or bound.
    """
    images, labels = _data(folder).train.batch(slice(0, 5000))
    images, model = _halved(images), network(run)
    order = torch.Generator().manual_seed(run)
    step = torch.optim.SGD(model.parameters(), lr=0.1)
    found: dict[str, Any] = {}
    for moment, steps in (("start", 0), ("trained", 400)):
        for _ in range(steps):
            batch = torch.randint(len(labels), (64,), generator=order)
            step.zero_grad()
            loss = cross_entropy(model(images[batch]), labels[batch])
            loss.backward()  # pyright: ignore[reportUnknownMemberType]
            step.step()  # pyright: ignore[reportUnknownMemberType]
        gradients = torch.autograd.grad(
            cross_entropy(model(images), labels), list(model.parameters())
        )
        kept = sum(float((one * smooth(one, 1.0)).sum()) for one in gradients)
        found[moment] = round(kept / sum(float(one.square().sum()) for one in gradients), 4)
    return found
