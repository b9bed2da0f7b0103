"""Small federations for the tests, noise that is watched, and runs that stop and go on."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpacct import fl
from dpacct.fl.local.sgd import plan_batches

cross_entropy = nn.functional.cross_entropy


def make_clients(sizes: Sequence[int], features: int = 6, classes: int = 3, seed: int = 0):
    generator = torch.Generator().manual_seed(seed)
    truth = torch.randn(features, classes, generator=generator)
    clients: list[fl.ClientData] = []
    for size in sizes:
        inputs = torch.randn(size, features, generator=generator)
        clients.append(fl.ClientData(inputs, (inputs @ truth).argmax(dim=1)))
    return clients


def linear(features: int = 6, classes: int = 3, seed: int = 1) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Linear(features, classes)


def perceptron(features: int = 6, classes: int = 3, seed: int = 2) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(features, 8), nn.Tanh(), nn.Linear(8, classes))


def convolutional(seed: int = 3) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.AvgPool2d(4),
        nn.Flatten(),
        nn.Linear(16, 3),
    )


def quadratic_clients(centers: Sequence[Sequence[float]]) -> list[fl.ClientData]:
    """Clients with loss 0.5 |x - c|^2: `Point` outputs x, the target is c."""
    return [fl.ClientData(torch.zeros(1, 1), torch.tensor([list(center)])) for center in centers]


class Point(nn.Module):
    """A model whose output is its only parameter."""

    def __init__(self, start: Sequence[float] = (0.0, 0.0)) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor(list(start)))

    def forward(self, inputs: Tensor) -> Tensor:
        return self.x.expand(len(inputs), -1)


def half_square(outputs: Tensor, targets: Tensor) -> Tensor:
    return 0.5 * (outputs - targets).square().sum(dim=1).mean()


def federation(model: nn.Module, clients: Any, loss: Any = cross_entropy, **options: Any):
    """A run with settings that no test has to repeat."""
    method = options.get("method")
    bounded = "bound" in options or getattr(method, "bound", None) is not None
    settings: dict[str, Any] = {
        "clip_norm": None if bounded else 1.0,
        "noise_multiplier": 1.0,
        "sampling": fl.Full(),
        "rounds": 3,
        "vectorize": False,
    }
    if not isinstance(clients, fl.Examples):
        settings["local"] = fl.SGD(lr=0.1, epochs=2, batch_size=4)
    return fl.Federation(model, loss, clients, **(settings | options))


def batches(data: fl.ClientData, local: fl.SGD, seed: int) -> list[tuple[Any, Tensor]]:
    """The batches that a federation trains a client with, for a loop of one's own."""
    plan = plan_batches(len(data), local, torch.Generator().manual_seed(seed))
    rows = [some[:count] for some, count in zip(plan.indices, plan.counts.tolist(), strict=True)]
    found = [data.map(lambda values: values[some]) for some in rows]  # noqa: B023 - called at once
    return [(batch.inputs, batch.targets) for batch in found]


def flat(model: nn.Module) -> Tensor:
    return torch.cat([value.detach().flatten() for value in model.parameters()])


class Recorded(fl.GaussianNoise):
    """Gaussian noise that keeps the sum and the standard deviation of each draw."""

    __slots__ = ("draws",)

    def __init__(self) -> None:
        object.__setattr__(self, "draws", [])

    def add(self, total: Tensor, limits: Any, std: float, source: Any) -> Tensor:
        self.draws.append((total.clone(), std))
        return super().add(total, limits, std, source)


class Silent(Recorded):
    """Charged as Gaussian noise, and none."""

    def add(self, total: Tensor, limits: Any, std: float, source: Any) -> Tensor:
        self.draws.append((total.clone(), std))
        return total


def play(run: Any, rounds: int) -> Any:
    """Train up to a round and leave the loop there; return the last report."""
    for report in run:
        if report.round == rounds:
            return report
    raise AssertionError(f"the run ended before round {rounds}")


def pause(run: Any, rounds: int) -> None:
    """Train up to a round, and close the run."""
    with run:
        play(run, rounds)


def goes_on(build: Callable[[Path | None], Any], path: Path, after: int = 2) -> tuple[Any, Any]:
    """Check that a seeded run ends with the same bits if it is stopped and resumed; return both."""
    with build(None) as whole:
        whole.run()
    pause(build(path), after)
    torch.manual_seed(99)
    again = build(path)
    with torch.no_grad():
        for value in again.model.parameters():
            value.add_(1.0)
    with again.resume():
        assert again.round == after
        again.run()
    assert torch.equal(flat(whole.model), flat(again.model))
    return whole, again


# The exit code of a process that `die` ended.
KILLED = -9


def forked(act: Callable[[], object]) -> int:
    """Act in a process of its own, which shares what is imported here; return its exit code."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    status = 1
    try:
        act()
        status = 0
    finally:
        os._exit(status)


def die() -> None:
    """End this process before it can close anything."""
    os.kill(os.getpid(), signal.SIGKILL)


def killer(owner: Any, name: str, calls: int, *, after: bool) -> Callable[[], None]:
    """Return a function that makes a process die before or after the n-th call of another."""

    def prepare() -> None:
        original, count = getattr(owner, name), [0]

        def dying(*arguments: Any, **keywords: Any) -> Any:
            count[0] += 1
            if count[0] == calls and not after:
                die()
            result = original(*arguments, **keywords)
            if count[0] == calls and after:
                die()
            return result

        setattr(owner, name, dying)

    return prepare
