"""Averages of released parameters, against those of a list of all iterates."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dpacct import fl
from dpacct.errors import InvalidParameter
from dpacct.fl.models import save_parameters
from tests.fl.problems import federation, flat, goes_on, make_clients, perceptron

AVERAGES = [fl.Average(decay=0.0), fl.Average(decay=0.7)]


def expected(average: fl.Average, iterates: list[torch.Tensor]) -> np.ndarray:
    rows = np.stack([row.double().numpy() for row in iterates])
    return np.average(rows, axis=0, weights=average.decay ** np.arange(len(rows))[::-1])


def run(model, **settings):
    given = {"rounds": 5, "seed": 3, "noise_multiplier": 0.5} | settings
    return federation(model, make_clients([5, 7, 6]), **given)


@pytest.mark.parametrize("average", AVERAGES, ids=repr)
def test_the_average_is_that_of_the_released_iterates(average):
    model, plain, iterates = perceptron(), perceptron(), []
    with run(model, average=average) as going:
        assert torch.equal(flat(going.averaged()), flat(model))
        for _ in going:
            iterates.append(flat(model))
            found = flat(going.averaged()).numpy()
            np.testing.assert_allclose(found, expected(average, iterates), rtol=1e-5, atol=1e-6)
        upper = going.planned_epsilon.upper
    # Training goes on from the iterates, and the charge is the same.
    with run(plain) as other:
        other.run()
        assert torch.equal(flat(plain), flat(model))
        assert other.planned_epsilon.upper == upper


def test_a_parameter_may_be_called_count():
    class Counting(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.count = perceptron(), torch.nn.Parameter(torch.ones(3))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.layer(inputs) + self.count.mean()

    model = Counting()
    with run(model, average=fl.Average(decay=0.7)) as going:
        next(iter(going))
        assert torch.equal(flat(going.averaged()), flat(model))


def test_an_average_goes_on_from_a_checkpoint(tmp_path):
    path, average = tmp_path / "run.pt", fl.Average(decay=0.7)

    def build(path, **options):
        settings = {"server": fl.Momentum(0.5), "method": fl.DPFedPGN(), "checkpoint": path}
        return run(perceptron(), **settings, **options)

    whole, going = goes_on(lambda path: build(path, average=average), path)
    assert torch.equal(flat(whole.averaged()), flat(going.averaged()))
    save_parameters(going.averaged(), tmp_path / "average.pt")
    saved = torch.load(tmp_path / "average.pt", weights_only=True)
    assert torch.equal(torch.cat([v.flatten() for v in saved.values()]), flat(going.averaged()))
    with pytest.raises(InvalidParameter, match="another setting"):
        build(path).resume()


def test_mistakes():
    with pytest.raises(InvalidParameter):
        fl.Average(decay=1.0)
    with pytest.raises(InvalidParameter, match="average"):
        run(perceptron(), average=0.9)
    with pytest.raises(InvalidParameter, match="average"):
        run(perceptron()).averaged()
