"""What an audit trains on: a small model, clients, and neighbors of each client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from dpacct.errors import InvalidParameter
from dpacct.fl.clients import ClientData

_FEATURES = 24
_CLASSES = 8


@dataclass(frozen=True, slots=True, eq=False)
class Problem:
    """A model, its loss, and a population."""

    model: nn.Module
    loss: Callable[[Tensor, Tensor], Tensor]
    clients: Sequence[ClientData]

    def extremes(self, client: ClientData) -> list[ClientData]:
        """Replacements of a client that push the model elsewhere."""
        return [
            ClientData(client.inputs[:0], client.targets[:0]),
            ClientData(_scaled(client.inputs, -10), client.targets),
            ClientData(_scaled(client.inputs, 100), client.targets.flip(0)),
            *([self.clients[0], self.clients[-1]]),
        ]

    def strangers(self) -> list[ClientData]:
        """A population of as many clients that has nothing in common with this one."""
        clients = list(self.clients)
        return [
            ClientData(_scaled(data.inputs, -3), data.targets) for data in clients[1:] + clients[:1]
        ]


def default_problem(
    model: nn.Module | None,
    loss: Callable[[Tensor, Tensor], Tensor] | None,
    clients: Sequence[ClientData] | None,
) -> Problem:
    """The problem that was given, or a classifier on made-up clients of different sizes.

    Raises:
        InvalidParameter: only part of it was given, or there are fewer than three clients.
    """
    given = [part is not None for part in (model, loss, clients)]
    if model is not None and loss is not None and clients is not None:
        if len(clients) < 3:
            raise InvalidParameter("clients", len(clients), "an audit needs at least three")
        return Problem(model, loss, clients)
    if any(given):
        rule = "an audit is given all of model, loss and clients, or none of them"
        raise InvalidParameter("model", type(model).__name__, rule)
    generator = torch.Generator().manual_seed(7)
    network = nn.Sequential(nn.Linear(_FEATURES, 48), nn.Tanh(), nn.Linear(48, _CLASSES))
    with torch.no_grad():
        for value in network.parameters():
            value.copy_(0.2 * torch.randn(value.shape, generator=generator))
    people = [
        ClientData(
            torch.randn(size, _FEATURES, generator=generator),
            torch.randint(_CLASSES, (size,), generator=generator),
        )
        for size in (8, 5, 12, 1, 7)
    ]
    return Problem(network, nn.functional.cross_entropy, people)


def _scaled(values: Tensor, factor: float) -> Tensor:
    return values * factor if values.is_floating_point() else values.flip(0)
