"""Linear layers side by side: the same function to every transform, without slow products."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad, hessian, jacfwd, vmap
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

from dpacct import fl
from dpacct.fl.local.losses import LocalLoss
from dpacct.fl.trainers.cohort_loss import CohortLoss
from dpacct.fl.trainers.linear_layers import WeightMajorLinear
from tests.fl.problems import cross_entropy
from tests.fl.trainers import test_company as company

CLIENTS, ROWS, INPUTS, OUTPUTS = 3, 4, 1025, 8


def value(rows, weight):
    return functional.linear(rows, weight, weight[:, 0]).sigmoid().square().sum()


def factors():
    draw = torch.Generator().manual_seed(0)
    rows = torch.randn(CLIENTS, ROWS, INPUTS, generator=draw, dtype=torch.float64)
    return rows, torch.randn(CLIENTS, OUTPUTS, INPUTS, generator=draw, dtype=torch.float64) / 30


def moved(function, argument):
    """Along one direction, forward mode."""

    def along(rows, weight):
        def line(length):
            pair = [rows, weight]
            pair[argument] = pair[argument] * (1 + length)
            return function(*pair)

        return jacfwd(line)(rows.new_zeros(()))

    return along


def curved(function, argument):
    """The gradient of the squared gradient."""

    def along(rows, weight):
        return grad(lambda *pair: grad(function, argument)(*pair).square().sum(), 1)(rows, weight)

    return along


def bent(function):
    """Forward over reverse, in few coordinates."""

    def along(rows, weight):
        def few(scales):
            return function(rows * scales[0], weight * scales[1:].unsqueeze(1))

        return hessian(few)(rows.new_ones(1 + OUTPUTS))

    return along


TRANSFORMS = {
    "value": lambda f: f,
    "slope of rows": lambda f: grad(f, 0),
    "slope of weights": lambda f: grad(f, 1),
    "forward, rows": lambda f: moved(f, 0),
    "forward, weights": lambda f: moved(f, 1),
    "twice, rows": lambda f: curved(f, 0),
    "twice, weights": lambda f: curved(f, 1),
    "forward over reverse": bent,
}


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
@pytest.mark.parametrize("in_dims", [(0, 0), (0, None), (None, 0), (1, 2)])
@pytest.mark.parametrize(
    "name",
    [
        # Forward mode loads a lot of torch.
        pytest.param(name, marks=pytest.mark.slow if name.startswith("forward") else ())
        for name in TRANSFORMS
    ],
)
def test_every_transform_sees_a_linear_layer(name, in_dims):
    given = [
        whole[0] if place is None else whole.movedim(0, place)
        for whole, place in zip(factors(), in_dims, strict=True)
    ]
    batched = vmap(TRANSFORMS[name](value), in_dims=in_dims)
    expected = batched(*given)
    with WeightMajorLinear():
        found = batched(*given)
    torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-12)


def test_so_does_vmap_within_vmap():
    rows, weight = factors()
    nested = vmap(vmap(grad(value, (0, 1)), in_dims=(None, 0)), in_dims=(0, None))
    expected = nested(rows, weight)
    with WeightMajorLinear():
        torch.testing.assert_close(nested(rows, weight), expected, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("inputs", [INPUTS, 9000])
def test_weights_that_are_a_vector_are_left_to_torch(inputs):
    rows, weight = torch.randn(CLIENTS, ROWS, inputs), torch.randn(CLIENTS, inputs)
    batched = vmap(functional.linear)
    expected = batched(rows, weight)
    with WeightMajorLinear():
        assert torch.equal(batched(rows, weight), expected)


def test_nothing_is_kept_for_a_slope_that_nobody_asks_for():
    rows, weight = factors()
    kept: list[torch.Size] = []

    def keep(value):
        kept.append(value.shape)
        return value

    hooks = torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value)
    with hooks, WeightMajorLinear():
        vmap(functional.linear)(rows, weight.requires_grad_())
    assert kept == [rows.shape]


class Firsts(TorchDispatchMode):
    """Remembers the first factors of batched products."""

    def __init__(self):
        super().__init__()
        self.found: list[Tensor] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.bmm.default:
            self.found.append(args[0])
        return func(*args, **(kwargs or {}))


def cohort(precision="float32"):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(5, INPUTS), nn.Tanh(), nn.Linear(INPUTS, OUTPUTS))
    names = tuple(name for name, _ in model.named_parameters())
    objective = LocalLoss(model, cross_entropy, names, precision, functional=True)
    params = {
        name: value.detach() + 0.01 * torch.randn(CLIENTS, *value.shape)
        for name, value in model.named_parameters()
    }
    inputs = torch.randn(CLIENTS, ROWS, 5)
    return objective, params, inputs, torch.randint(OUTPUTS, (CLIENTS, ROWS))


def test_no_product_turns_the_weights_around():
    objective, params, inputs, targets = cohort()
    with Firsts() as firsts:
        found = CohortLoss(objective).gradients(params, inputs, targets, None)
    assert len(firsts.found) >= 5
    assert not [one for one in firsts.found if one.shape == (CLIENTS, INPUTS, OUTPUTS)]
    assert all(found[name].is_contiguous() for name in params)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_gradients_are_those_of_each_client(precision, dtype):
    objective, params, inputs, targets = cohort(precision)
    params = {name: value.to(dtype) for name, value in params.items()}
    inputs = inputs.to(dtype)
    found = CohortLoss(objective).gradients(params, inputs, targets, None)
    rough = precision == "bfloat16" and dtype == torch.float32
    for place in range(CLIENTS):
        own = {name: value[place].clone().requires_grad_() for name, value in params.items()}
        outputs = objective.outputs(own, inputs[place])
        loss = cross_entropy(outputs.to(dtype), targets[place])
        expected = torch.autograd.grad(loss, list(own.values()))
        for name, gradient in zip(own, expected, strict=True):
            assert found[name].dtype == dtype
            gap = (found[name][place] - gradient).norm()
            assert gap < (3e-2 if rough else 1e-5) * gradient.norm()


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_update_does_not_show_who_else_trained(precision):
    local = fl.SGD(lr=1.0, epochs=2, batch_size=5, momentum=0.9, precision=precision)
    company.assert_alone(*company.setting(company.wide, local))
