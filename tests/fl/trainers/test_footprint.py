"""How much memory a step takes, also where what is kept for a backward pass cannot be seen."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad

from dpacct import fl
from dpacct.fl.local.batches import Batch
from dpacct.fl.trainers.footprint import client_bytes
from tests.fl.problems import cross_entropy, federation, make_clients, perceptron

[WHOLE] = make_clients([40])
BATCH = Batch(WHOLE.inputs, WHOLE.targets, None)


class Sloped(nn.Module):
    """Looks at a gradient inside its forward."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 3)

    def forward(self, inputs: Tensor) -> Tensor:
        slope = grad(lambda x: self.layer(x).tanh().sum())(inputs)
        return self.layer(inputs) + slope.square().mean(dim=1, keepdim=True)


@pytest.mark.parametrize("vectorize", [True, False, "auto"])
@pytest.mark.parametrize("people", [fl.Examples(WHOLE), make_clients([5, 8, 3])], ids=len)
def test_a_model_with_a_gradient_inside_trains(people, vectorize):
    report = federation(Sloped(), people, vectorize=vectorize, local=fl.SGD(lr=0.1)).run()
    assert not report.diagnostics.dropped_updates


def test_what_is_made_is_no_less_than_what_is_kept():
    model = perceptron()

    def kept():
        cross_entropy(model(BATCH.inputs), BATCH.targets).backward()
        return {}

    def made():
        grad(torch.sin)(torch.zeros(()))
        return kept()

    assert 0 < client_bytes(kept, {}, BATCH)[0] <= client_bytes(made, {}, BATCH)[0]
