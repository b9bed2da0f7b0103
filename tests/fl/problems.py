"""Small federations for the tests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from dpacct import fl

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
    settings: dict[str, Any] = {
        "clip_norm": 1.0,
        "noise_multiplier": 1.0,
        "sampling": fl.Full(),
        "rounds": 3,
        "local": fl.SGD(lr=0.1, epochs=2, batch_size=4),
        "vectorize": False,
        # Tested for itself; many noises here are made for a test.
    }
    return fl.Federation(model, loss, clients, **(settings | options))


def flat(model: nn.Module) -> Tensor:
    return torch.cat([value.detach().flatten() for value in model.parameters()])
