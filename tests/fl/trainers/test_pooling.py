"""Max pooling in another layout: the same values, and the same gradients of single examples."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from dpacct.fl.trainers import pooling
from dpacct.fl.trainers.pooling import ChannelsLastPooling

OPTIONS = [
    {"kernel_size": 2, "stride": 1},
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": (3, 2), "stride": (2, 1), "padding": (1, 0), "ceil_mode": True},
    {"kernel_size": 3, "stride": 1, "dilation": 2, "padding": 1},
    {"kernel_size": [3, 3], "stride": [2, 2]},
    {"kernel_size": 2, "stride": 2},
    {"kernel_size": 2},
    {"kernel_size": (2, 3), "stride": (2, 1)},
]


class Network(nn.Module):
    """A convolution, pooling of the given form, another convolution, pooling again."""

    def __init__(self, options: dict, channels: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 4, 3)
        self.second = nn.Conv2d(4, 3, 2)
        self.options = options

    def forward(self, inputs: Tensor) -> Tensor:
        kernel, others = self.options["kernel_size"], dict(self.options)
        del others["kernel_size"]
        found = functional.max_pool2d(functional.relu(self.first(inputs)), kernel, **others)
        return functional.max_pool2d(self.second(found), 2, 1).flatten(1).sum(dim=1)


def images(count: int, channels: int, *, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    found = torch.randn(count, channels, 12, 11, generator=generator, dtype=torch.float64)
    # Many equal ones: of several maxima the first one gets the gradient.
    return (2 * found).round() / 2


@pytest.mark.parametrize("channels", [1, 3])
@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_gradients_are_those_of_each_example_alone(options, channels):
    torch.manual_seed(1)
    network = Network(options, channels).double()
    inputs = images(5, channels)
    params = {name: value.detach() for name, value in network.named_parameters()}

    def one(x: Tensor) -> dict[str, Tensor]:
        def loss(own: dict[str, Tensor]) -> Tensor:
            with ChannelsLastPooling():
                return functional_call(network, own, (x.unsqueeze(0),)).sum()

        return grad(loss)(params)

    found = vmap(one)(inputs)
    for place, x in enumerate(inputs):
        network.zero_grad()
        network(x.unsqueeze(0)).sum().backward()
        for name, value in network.named_parameters():
            assert value.grad is not None
            torch.testing.assert_close(found[name][place], value.grad, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("special", [0.0, torch.nan, torch.inf])
def test_values_and_their_layout_are_those_of_torch(options, special):
    inputs = images(4, 3).float()
    inputs[1, :, ::4, ::3] = special
    options = dict(options)
    kernel = options.pop("kernel_size")
    expected = functional.max_pool2d(inputs, kernel, **options)
    with ChannelsLastPooling():
        found = functional.max_pool2d(inputs, kernel, **options)
    assert torch.equal(found.nan_to_num(7), expected.nan_to_num(7))
    assert torch.equal(found.isnan(), expected.isnan())
    assert found.is_contiguous()


def test_indices_and_single_images_go_their_own_way():
    inputs = images(4, 3)
    with ChannelsLastPooling():
        values, places = functional.max_pool2d(inputs, 2, 1, return_indices=True)
        alone = functional.max_pool2d(inputs[0], 2, 1)
        named = functional.max_pool2d(input=inputs, kernel_size=2, stride=1)
        old = torch.max_pool2d(inputs, [2, 2], [1, 1])
    expected, where = functional.max_pool2d(inputs, 2, 1, return_indices=True)
    assert torch.equal(values, expected)
    assert torch.equal(places, where)
    assert torch.equal(alone, expected[0])
    assert torch.equal(named, expected)
    assert torch.equal(old, expected)


class Layouts(TorchFunctionMode):
    """Notes whether what is pooled has its channels beside each other."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[bool] = []

    def __torch_function__(self, func, types, args=(), kwargs=None):
        if func in pooling._POOLS:
            self.seen.append(args[0].is_contiguous(memory_format=torch.channels_last))
        return func(*args, **(kwargs or {}))


def test_only_overlapping_windows_are_laid_out_anew():
    inputs = images(4, 3)
    with Layouts() as layouts, ChannelsLastPooling():
        functional.max_pool2d(inputs, 3, 2)
        functional.max_pool2d(inputs, 2, 2)
        functional.max_pool2d(inputs, 2)
    assert layouts.seen == [True, False, False]
