"""Models: sizes from their papers, shapes, and the same result vectorized over clients."""

from __future__ import annotations

import math
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the name that everybody uses
from torch import nn
from torch.func import functional_call, grad, vmap

from dpacct.errors import InvalidParameter, Unsupported
from dpacct.fl.data import Dataset, Examples, load_digits
from dpacct.fl.models import (
    MODELS,
    CharacterLSTM,
    ConvNet,
    build_model,
    load_parameters,
    save_parameters,
)
from dpacct.fl.models.networks import LSTMLayer


def images(shape: tuple[int, ...], classes: int) -> Dataset:
    examples = Examples(torch.rand(4, *shape), torch.arange(4) % classes)
    return Dataset("images", examples, examples, classes)


def text(length: int, *, every_position: bool = True) -> Dataset:
    codes = torch.randint(0, 97, (4, length + 1), generator=torch.Generator().manual_seed(0))
    targets = codes[:, 1:] if every_position else codes[:, -1]
    examples = Examples(codes[:, :-1].contiguous(), targets.contiguous())
    return Dataset("text", examples, examples, 97)


def size(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


CIFAR, MNIST = (3, 32, 32), (1, 28, 28)


# Convolutions 3 x 3 of 16, 32, 64 channels, three blocks each (He et al. count 0.27M), their norms,
# projections and the last layer.
RESNET20 = 27 * 16 + 9 * (16 * 16 * 6 + 16 * 32 + 32 * 32 * 5 + 32 * 64 + 64 * 64 * 5)
RESNET20 += 2 * (16 * 7 + 32 * 6 + 64 * 6) + 16 * 32 + 2 * 32 + 32 * 64 + 2 * 64 + 64 * 10 + 10


@pytest.mark.parametrize(
    ("name", "shape", "classes", "expected"),
    [
        ("logistic", MNIST, 10, 28 * 28 * 10 + 10),
        # 5 x 5 convolutions of 32 and 64, 7 x 7 x 64 to 512 to 10 (McMahan et al. 2017: 1,663,370).
        ("cnn", MNIST, 10, 1_663_370),
        # Two convolutions, dense 384 and 192, "about 3.4M".
        ("cnn-wide", CIFAR, 10, 3_431_754),
        # As with batch normalization, which has as many parameters (public implementations).
        ("resnet18", CIFAR, 10, 11_173_962),
        ("resnet10", CIFAR, 10, 4_903_242),
        ("resnet20", CIFAR, 10, RESNET20),
        # Two layers of 256, or one of 64, with a bias each, and an embedding of 8.
        ("lstm", None, 97, 97 * 8 + 1024 * (8 + 256 + 1) + 1024 * (256 + 256 + 1) + 257 * 97),
        ("lstm-small", None, 97, 97 * 8 + 256 * (8 + 64 + 1) + 65 * 97),
    ],
)
def test_sizes(name: str, shape: tuple[int, ...] | None, classes: int, expected: int) -> None:
    data = text(80) if shape is None else images(shape, classes)
    assert size(build_model(name, data)) == expected


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", [n for n in MODELS if not n.startswith(("vit", "roberta"))])
def test_no_state_besides_parameters_and_each_is_used(name: str) -> None:
    data = text(6) if "lstm" in name else images((1, 8, 8), 5)
    model = build_model(name, data)
    assert list(model.buffers()) == []
    together = model(data.train.inputs)
    assert together.shape == ((4, 97, 6) if "lstm" in name else (4, 5))
    # An example is judged by itself.
    alone = torch.cat([model(data.train.inputs[row : row + 1]) for row in range(4)])
    assert torch.allclose(together, alone, atol=1e-5)
    if name == "logistic":
        nn.init.normal_(model.linear.weight)
    F.cross_entropy(model(data.train.inputs), data.train.targets).backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.abs().sum() > 0


@pytest.mark.parametrize("name", ["logistic", "cnn-small", "resnet20", "lstm-small"])
def test_vectorized_over_clients_equals_one_by_one(name: str) -> None:
    data = text(6) if "lstm" in name else images((1, 8, 8), 5)
    model = build_model(name, data, seed=1)
    # Clients with different parameters, as after the first local step.
    generator = torch.Generator().manual_seed(0)
    parameters = {
        key: torch.stack([
            value.detach() + 0.01 * torch.randn(value.shape, generator=generator)
            for _ in range(2)
        ])
        for key, value in model.named_parameters()
    }  # fmt: skip
    inputs, targets = (
        data.train.inputs.unflatten(0, (2, 2)),
        data.train.targets.unflatten(0, (2, 2)),
    )

    def loss(values: dict[str, torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(functional_call(model, values, (x,)), y)

    together = vmap(grad(loss))(parameters, inputs, targets)
    for client in range(2):
        own = {key: value[client] for key, value in parameters.items()}
        alone = grad(loss)(own, inputs[client], targets[client])
        for key, gradient in alone.items():
            assert torch.allclose(together[key][client], gradient, atol=2e-5), key


def test_the_seed_decides_and_leaves_the_callers_generator_alone() -> None:
    data = images((1, 8, 8), 5)
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    one, same, other = (build_model("cnn", data, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(torch.rand(3), expected)
    first = [next(model.parameters()) for model in (one, same, other)]
    assert torch.equal(first[0], first[1])
    assert not torch.equal(first[0], first[2])


def test_logistic_regression_starts_without_a_preference() -> None:
    data = load_digits()
    model = build_model("logistic", data)
    inputs, targets = data.test.batch(slice(0, 50))
    assert F.cross_entropy(model(inputs), targets).item() == pytest.approx(math.log(10))


def test_our_lstm_is_that_of_pytorch() -> None:
    """The fused layers of PyTorch, given our weights, give our outputs and gradients."""
    torch.manual_seed(3)
    ours = nn.Sequential(LSTMLayer(5, 7), LSTMLayer(7, 7))
    theirs = nn.LSTM(5, 7, 2, batch_first=True)
    with torch.no_grad():
        for layer in (0, 1):
            getattr(theirs, f"weight_ih_l{layer}").copy_(ours[layer].from_inputs)
            getattr(theirs, f"weight_hh_l{layer}").copy_(ours[layer].from_state)
            getattr(theirs, f"bias_ih_l{layer}").copy_(ours[layer].bias)
            getattr(theirs, f"bias_hh_l{layer}").zero_()
    inputs = torch.randn(3, 11, 5)
    assert torch.allclose(ours(inputs), theirs(inputs)[0], atol=1e-6)
    ours(inputs).square().sum().backward()
    theirs(inputs)[0].square().sum().backward()
    grads: Any = ours[0].from_state.grad
    assert torch.allclose(grads, theirs.weight_hh_l0.grad, atol=1e-4)


def test_a_character_depends_on_what_is_before_it_only() -> None:
    model = CharacterLSTM(97)
    codes = torch.randint(0, 97, (1, 12))
    changed = codes.clone()
    changed[0, 8] = (changed[0, 8] + 1) % 97
    one, other = model(codes), model(changed)
    assert one.shape == (1, 97, 12)
    assert torch.equal(one[:, :, :8], other[:, :, :8])
    assert not torch.equal(one[:, :, 8:], other[:, :, 8:])
    # A model of the last position alone.
    data = text(9, every_position=False)
    last, full = (build_model("lstm", each) for each in (data, text(9)))
    assert last(data.train.inputs).shape == (4, 97)
    torch.testing.assert_close(last(data.train.inputs), full(data.train.inputs)[:, :, -1])


def test_a_convolution_network_by_hand() -> None:
    model = ConvNet((1, 4, 4), 2, channels=(1,), kernel=3, hidden=())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.convolutions[0].weight[0, 0, 1, 1] = 1.0
        model.dense[0].weight[1] = 1.0
    values = torch.arange(16.0).reshape(1, 1, 4, 4)
    # The identity, then the largest of each 2 x 2, then their sum: 5 + 7 + 13 + 15.
    assert model(values).tolist() == [[0.0, 40.0]]


def test_models_say_what_they_cannot_see() -> None:
    vectors, pictures = images((48,), 2), images(MNIST, 10)
    for name, data in (
        ("vgg", images(CIFAR, 10)), ("cnn", vectors), ("resnet18", vectors),
        ("cnn", images((1, 2, 2), 2)), ("cnn", text(8)), ("logistic", text(8)),
        ("lstm-small", pictures), ("lstm", pictures), ("vit-base", pictures),
        ("roberta-base", pictures), ("roberta-base", text(8)),
    ):  # fmt: skip
        with pytest.raises(InvalidParameter) as refused:
            build_model(name, data)
        assert (refused.value.name, refused.value.value) == ("model", name)


def test_parameters_come_back_from_disk(tmp_path: Path) -> None:
    data = images((1, 8, 8), 5)
    model, other = build_model("cnn-small", data), build_model("cnn-small", data, seed=1)
    file = tmp_path / "model.pt"
    save_parameters(other, file)
    save_parameters(model, file)
    other.load_state_dict(torch.load(file, weights_only=True))
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert torch.equal(one, two)
    assert [path.name for path in tmp_path.iterdir()] == ["model.pt"]


def test_a_model_starts_from_the_tensors_that_fit(tmp_path: Path) -> None:
    file = tmp_path / "model.pt"
    five, seven = images((1, 8, 8), 5), images((1, 8, 8), 7)
    old, new = build_model("cnn-small", five), build_model("cnn-small", seven, seed=1)
    save_parameters(old, file)
    left = load_parameters(new, file)
    held = old.state_dict()
    for name, value in new.state_dict().items():
        assert (name in left) is (held[name].shape != value.shape)
        assert name in left or torch.equal(value, held[name])
    assert 0 < len(left) < len(held)
    assert load_parameters(build_model("cnn-small", five, seed=2), file) == []


@pytest.mark.parametrize(
    "content", [b"", b"PK", {"a": 1}, [1], {1: "x"}, "nan", "sparse", "bytes", {"a": [2]}]
)
def test_a_file_that_is_no_start_is_refused(tmp_path: Path, content: object) -> None:
    file = tmp_path / "model.pt"
    model = build_model("cnn-small", images((1, 8, 8), 5))
    before = [value.clone() for value in model.parameters()]
    if content == "nan":
        content = {name: value + math.nan for name, value in model.state_dict().items()}
    if content == "sparse":
        content = {name: value.to_sparse() for name, value in model.state_dict().items()}
    if content == "bytes":
        content = {name: value.to(torch.uint8) for name, value in model.state_dict().items()}
    if isinstance(content, bytes):
        file.write_bytes(content)
    else:
        torch.save(content, file)
    with pytest.raises(InvalidParameter) as refused:
        load_parameters(model, file)
    assert refused.value.name == "init"
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_a_model_of_another_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("importlib.metadata.version", missing)
    with pytest.raises(Unsupported, match=r'transformers is not installed: .*"transformers>='):
        build_model("roberta-base", text(8, every_position=False))


@pytest.mark.slow
@pytest.mark.usefixtures("torchvision")
def test_the_vision_transformer_has_the_published_size() -> None:
    model = build_model("vit-base", images(CIFAR, 10))
    # Dosovitskiy et al. 2021: 86M.
    assert size(model) == 85_806_346
    assert not list(model.buffers())
