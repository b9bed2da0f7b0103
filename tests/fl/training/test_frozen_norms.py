"""A batch norm in eval mode whose parameters are frozen is a fixed affine map, and stays one."""

import pytest
import torch
from torch import nn

from dpacct import Poisson
from dpacct.errors import Unsupported
from dpacct.fl import SGD, ClientData, Examples, Federation


def model_with_norm() -> nn.Sequential:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
    model[1].running_mean.normal_()
    model[1].running_var.uniform_(0.5, 2)
    return model


def population(*, examples):
    inputs, targets = torch.randn(30, 5), torch.randint(0, 2, (30,))
    if examples:
        return Examples(inputs, targets)
    return [ClientData(inputs[i : i + 6], targets[i : i + 6]) for i in range(0, 30, 6)]


def trained(model: nn.Module, *, examples, vectorize):
    local = None if examples else SGD(lr=0.5, steps=3, batch_size=4)
    options = {"rounds": 2, "noise_multiplier": 1e-3, "clip_norm": 10.0, "seed": 0}
    loss = nn.functional.cross_entropy
    sampling = Poisson(0.99)
    with Federation(
        model,
        loss,
        population(examples=examples),
        local=local,
        sampling=sampling,
        vectorize=vectorize,
        **options,
    ) as run:
        run.run()
    return model


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
    twin = nn.Sequential(
        nn.Linear(5, 4), fixed.requires_grad_(requires_grad=False), nn.Linear(4, 2)
    )
    twin[0].load_state_dict(model[0].state_dict())
    twin[2].load_state_dict(model[2].state_dict())

    torch.manual_seed(1)
    trained(model, examples=examples, vectorize=vectorize)
    torch.manual_seed(1)
    trained(twin, examples=examples, vectorize=vectorize)

    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())
    for own, other in zip((model[0], model[2]), (twin[0], twin[2]), strict=True):
        torch.testing.assert_close(own.weight, other.weight, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("examples", [False, True])
@pytest.mark.parametrize("half", ["training mode", "trained parameters"])
def test_a_live_norm_is_refused_with_the_way_to_freeze_it(half, examples):
    model = model_with_norm()
    if half == "training mode":
        model[1].requires_grad_(requires_grad=False)
    else:
        model[1].eval()
    with pytest.raises(Unsupported, match=r"eval\(\)\.requires_grad_\(False\)"):
        trained(model, examples=examples, vectorize=False)
