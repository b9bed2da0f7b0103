"""A model with what `make_private` of Opacus returns, and what the tests of the plug-in import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import dpacct
from dpacct import Poisson, Round

opacus = pytest.importorskip("opacus", reason="opacus is not installed")
torch = pytest.importorskip("torch")
plug_in = pytest.importorskip("dpacct.interop.opacus")

from opacus import schedulers  # noqa: E402 - needs opacus
from opacus.utils.batch_memory_manager import BatchMemoryManager  # noqa: E402 - likewise
from torch.utils.data import (  # noqa: E402 - needs torch
    BatchSampler,
    DataLoader,
    TensorDataset,
    WeightedRandomSampler,
)

__all__ = [
    "CHARGED", "DELTA", "MODES", "NOISE", "RATE", "ROUND", "BatchSampler", "DataLoader", "Job",
    "TensorDataset", "WeightedRandomSampler", "X", "Y", "epsilon", "job_of", "opacus", "plug_in",
    "schedulers", "torch",
]  # fmt: skip

DELTA = 1e-5
NOISE = 0.8662
RATE = 1 / 10
ROUND = Round(NOISE, Poisson(RATE), "zero-out")
X = torch.linspace(-1.0, 1.0, 200).reshape(40, 5)
Y = (X.sum(1) > 0).long()
MODES = pytest.mark.parametrize("mode", ["hooks", "ghost"])
CHARGED = pytest.mark.parametrize("charged", [False, True], ids=["accountant", "ledger"])


class Job:
    """A model with what `make_private` returns."""

    def __init__(
        self, *, mode: str = "hooks", workers: int = 0, loader: Any = None, module: Any = None,
        engine: Any = None, **settings: Any,
    ) -> None:  # fmt: skip
        self.module = torch.nn.Linear(5, 2) if module is None else module
        given = {"noise_multiplier": NOISE, "max_grad_norm": 1.0, "grad_sample_mode": mode}
        self.engine = engine or opacus.PrivacyEngine(accountant="dpacct")
        made = self.engine.make_private(
            module=self.module,
            optimizer=torch.optim.SGD(self.module.parameters(), lr=0.1),
            data_loader=loader or DataLoader(TensorDataset(X, Y), 4, num_workers=workers),
            **(given | settings),
        )
        self.model, self.optimizer, self.loader = made[0], made[1], made[-1]
        self.loss = made[2] if mode == "ghost" else torch.nn.CrossEntropyLoss()

    def attach(self, run: Any, **settings: Any) -> Any:
        self.loader = plug_in.attach_ledger(self.loader, self.optimizer, run, **settings)
        return self.loader

    def backward(self, batch: Any, **autocast: Any) -> None:
        x, y = batch
        with torch.autocast("cpu", torch.bfloat16, enabled=bool(autocast)):
            loss = self.loss(self.model(x), y)
        loss.backward()

    def step(self, batch: Any) -> None:
        self.optimizer.zero_grad()
        self.backward(batch)
        self.optimizer.step()

    def epoch(self, loader: Any = None, most: int = 1000) -> list[Any]:
        """Train on a pass, and return the inputs of its batches."""
        batches: list[Any] = []
        for batch in self.loader if loader is None else loader:
            self.step(batch)
            batches.append(batch[0])
            if len(batches) == most:
                break
        return batches

    def split(self, size: int) -> Any:
        return BatchMemoryManager(
            data_loader=self.loader, max_physical_batch_size=size, optimizer=self.optimizer
        )

    @property
    def weights(self) -> list[float]:
        return self.module.weight.flatten().tolist()

    def refuses(self, act: Callable[[], Any], error: type[Exception], words: str) -> None:
        """Check that an action raises, and leaves the model as it was."""
        before = self.weights
        with pytest.raises(error, match=words):
            act()
        assert self.weights == before


def job_of(run: Any, *, charged: bool, **settings: Any) -> Job:
    """A job, attached to the run if it is charged."""
    job = Job(**settings)
    if charged:
        job.attach(run)
    return job


def epsilon(*noises: float) -> float:
    """The proven epsilon of a batch of each noise multiplier."""
    plan = sum((Round(z, Poisson(RATE)) for z in noises[1:]), 1 * Round(noises[0], Poisson(RATE)))
    return dpacct.epsilon(plan, delta=DELTA).upper
