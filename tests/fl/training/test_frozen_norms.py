"""A batch norm in eval mode whose parameters are frozen is a fixed affine map, and stays one."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from dpacct import Poisson
from dpacct.errors import Unsupported
from dpacct.fl import SGD, ClientData, Examples
from tests.fl.problems import federation


def model_with_norm() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[1].running_mean.normal_()
    model[1].running_var.uniform_(0.5, 2)
    return model


def trained(model: nn.Module, *, examples, vectorize=False):
    torch.manual_seed(1)
    inputs, targets = torch.randn(30, 5), torch.randint(0, 2, (30,))
    people = Examples(inputs, targets)
    settings = {"rounds": 2, "noise_multiplier": 1e-3, "clip_norm": 10.0, "seed": 0}
    if not examples:
        people = [ClientData(inputs[i : i + 6], targets[i : i + 6]) for i in range(0, 30, 6)]
        settings["local"] = SGD(lr=0.5, steps=3, batch_size=4)
    with federation(
        model, people, sampling=Poisson(0.99), vectorize=vectorize, **settings
    ) as run:  # fmt: skip
        run.run()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("vectorize", [False, True])
@pytest.mark.parametrize("examples", [False, True])
def test_a_frozen_norm_trains_as_the_affine_map_that_it_is(examples, vectorize):
    model = model_with_norm()
    norm = model[1].eval().requires_grad_(requires_grad=False)
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    scale = norm.weight / (norm.running_var + norm.eps).sqrt()
    fixed = nn.Linear(4, 4)
    fixed.weight.data, fixed.bias.data = scale.diag(), norm.bias - norm.running_mean * scale
    fixed.requires_grad_(requires_grad=False)
    twin = nn.Sequential(deepcopy(model[0]), fixed, deepcopy(model[2]))
    for each in (model, twin):
        trained(each, examples=examples, vectorize=vectorize)
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())
    for own, other in ((model[0], twin[0]), (model[2], twin[2])):
        torch.testing.assert_close(own.weight, other.weight, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("examples", [False, True])
def test_a_live_norm_is_refused_with_the_way_to_freeze_it(examples):
    training, trained_parameters = model_with_norm(), model_with_norm()
    training[1].requires_grad_(requires_grad=False)
    trained_parameters[1].eval()
    for model in (training, trained_parameters):
        with pytest.raises(Unsupported, match=r"eval\(\)\.requires_grad_\(False\)"):
            trained(model, examples=examples)
    if examples:
        training[1] = nn.BatchNorm1d(4, track_running_stats=False)
        with pytest.raises(Unsupported, match="BatchNorm1d"):
            trained(training, examples=True)
