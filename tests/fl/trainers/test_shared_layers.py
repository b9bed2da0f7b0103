"""A layer by several names, and weights in several layers, train as one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from dpacct import fl
from tests.fl.hostile import CLASSES, FEATURES
from tests.fl.problems import federation, flat, make_clients


class Once(nn.Module):
    """One layer by one name, used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(FEATURES, FEATURES)
        self.register_buffer("scale", torch.tensor(0.7))
        self.last = nn.Linear(FEATURES, CLASSES)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(torch.tanh(self.first(torch.tanh(self.first(inputs)))) * self.scale)


class ByTwoNames(Once):
    """The same with two names for that layer, and for the buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.second = self.first
        self.register_buffer("size", self.scale)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(inputs)))) * self.size)


class TwoLayers(Once):
    """The same with two layers of the same weights."""

    def __init__(self) -> None:
        super().__init__()
        self.second = nn.Linear(FEATURES, FEATURES)
        self.second.weight, self.second.bias = self.first.weight, self.first.bias

    def forward(self, inputs: Tensor) -> Tensor:
        return self.last(torch.tanh(self.second(torch.tanh(self.first(inputs)))) * self.scale)


def trained(kind: type[Once], clients: Any = None, **options: Any) -> Tensor:
    model = kind()
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.linspace(-1, 1, value.numel()).view(value.shape))
    before = [id(value) for value in model.parameters()]
    people = clients or make_clients([6] * 5)
    with federation(model, people, seed=5, rounds=2, **options) as run:
        run.run()
    assert [id(value) for value in model.parameters()] == before
    return flat(model)


@pytest.mark.parametrize("kind", [ByTwoNames, TwoLayers])
@pytest.mark.parametrize("vectorize", [False, True])
@pytest.mark.parametrize("method", [fl.DPFedAvg(), fl.DPFedSAM(0.1)], ids=["avg", "sam"])
def test_clients_train_what_is_shared_as_one(
    kind: type[Once], method: fl.Method, *, vectorize: bool
) -> None:
    options = {"vectorize": vectorize, "method": method}
    assert torch.equal(trained(kind, **options), trained(Once, **options))


@pytest.mark.parametrize("kind", [ByTwoNames, TwoLayers])
def test_examples_train_what_is_shared_as_one(kind: type[Once]) -> None:
    whole = make_clients([40])[0]
    people = fl.Examples(TensorDataset(whole.inputs, whole.targets))
    options = {"local": fl.SGD(lr=0.1), "vectorize": True}
    assert torch.equal(trained(kind, people, **options), trained(Once, people, **options))
