"""Groups that are recorded and replayed."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional
from torch.nn.modules.module import register_module_forward_hook
from torch.overrides import TorchFunctionMode

from dpacct import fl
from dpacct.errors import Unsupported
from dpacct.fl.clients import ClientData
from dpacct.fl.layout import copies
from dpacct.fl.trainers import recording
from dpacct.fl.trainers.dropout import OwnDropout
from dpacct.fl.trainers.outer import outer
from dpacct.fl.trainers.pooling import pooled
from dpacct.fl.trainers.recording import Group, recorded
from tests.fl.problems import convolutional, cross_entropy, flat, perceptron
from tests.fl.test_examples import CLASSES, FEATURES, Silent, data
from tests.fl.trainers.test_replay import Passing

WIDTH = 16


def steps_of(model: nn.Module):
    """As `ExampleTrainer` has them, of this model and the cross entropy."""

    def steps(anchor: Any, inputs: Tensor, targets: Tensor, seeds: Tensor) -> Any:
        def one(x: Tensor, y: Tensor, seed: Tensor) -> Any:
            def value(params: Any) -> Tensor:
                with OwnDropout(seed):
                    outputs = functional_call(model, params, (x.unsqueeze(0),))
                return -cross_entropy(outputs, y.unsqueeze(0))

            return grad(value)(anchor)

        return vmap(one)(inputs, targets, seeds)

    return steps


def group_of(model: nn.Module, shape: tuple[int, ...], seed: int = 0, tokens: int = 0) -> Group:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(WIDTH, *shape, generator=generator)
    if tokens:
        inputs = torch.randint(tokens, (WIDTH, *shape), generator=generator)
    targets = torch.randint(CLASSES, (WIDTH,), generator=generator)
    seeds = torch.randint(1 << 60, (WIDTH,), generator=generator)
    params = {n: p.detach() * (1 + seed) for n, p in model.named_parameters()}
    return Group(params, inputs, targets, seeds)


def pooling() -> nn.Module:
    torch.manual_seed(5)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(8, 16, 2),
        nn.MaxPool2d(3, 2, padding=1, ceil_mode=True),
        nn.Flatten(),
        nn.Dropout(0.5),
        nn.LazyLinear(CLASSES),
    )


class TiedTwice(nn.Module):
    """One layer that is used twice, and a frozen buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(FEATURES, FEATURES)
        self.register_buffer("scale", torch.tensor(0.3))

    def forward(self, inputs: Tensor) -> Tensor:
        centered = inputs - inputs.mean(0, keepdim=True) / 2
        found = self.layer(torch.tanh(self.layer(centered))) * self.scale
        return functional.layer_norm(found, (FEATURES,))[:, :CLASSES]


class Recurrent(nn.Module):
    """Its kernel is chosen by whether gradients are on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(FEATURES, CLASSES, batch_first=True)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.layer(inputs)[0][:, -1]


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "perceptron": (lambda: perceptron(FEATURES, CLASSES), (FEATURES,), 0),
    "group norm": (convolutional, (1, 8, 8), 0),
    "pooling, dropout, in place": (pooling, (1, 8, 8), 0),
    "tied": (TiedTwice, (FEATURES,), 0),
    "recurrent": (Recurrent, (5, FEATURES), 0),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(9, 4), nn.Flatten(), nn.Linear(12, CLASSES)),
        (3,),
        9,
    ),
}


@pytest.mark.filterwarnings("ignore:There is a performance drop")
@pytest.mark.parametrize("name", MODELS)
def test_a_replay_gives_the_same_bits(name: str):
    make, shape, tokens = MODELS[name]
    model = make()
    model(group_of(nn.Identity(), shape, tokens=tokens).inputs)
    steps = steps_of(model)
    replay = recorded(steps, group_of(model, shape, 0, tokens), list(model.buffers()))
    assert replay is not None
    for seed in (1, 2):
        group = group_of(model, shape, seed, tokens)
        if not tokens:
            group.inputs[3] = math.nan
            group.inputs[5, 0] = math.inf
        before = copies(group.anchor)
        expected, found = steps(*group), replay(*group)
        for key, value in expected.items():
            assert torch.equal(found[key].nan_to_num(7.0), value.nan_to_num(7.0))
            assert torch.equal(found[key].isnan(), value.isnan())
            assert torch.equal(group.anchor[key], before[key])
            # Whoever is not finite is so alone.
            spoiled = found[key].flatten(1).isnan().any(dim=1)
            assert not bool(spoiled[[k for k in range(WIDTH) if k not in (3, 5)]].any())


OPTIONS = [
    ([2, 2], [1, 1]),
    ([3, 3], [2, 2], [1, 1]),
    ([2, 3], [2, 1], [0, 1], [2, 1]),
    ([3, 2], [2, 2], [1, 0], [1, 1], True),
]


@pytest.mark.parametrize(
    ("options", "channels", "dtype", "count"),
    list(itertools.product(OPTIONS, [1, 8, 17, 200], [torch.float32, torch.float64], [4, 15])),
)
def test_quick_pooling_gives_the_same_bits(options, channels, dtype, count):
    generator = torch.Generator().manual_seed(channels)
    # Few values: most maxima are found at several places.
    values = torch.randint(-2, 3, (count, channels, 9, 8), generator=generator).to(dtype)
    values[0, 0, 2, 3], values[1, -1, 4, 4] = math.nan, -math.inf
    for given in (values, values.mT, values[:, :, ::2]):
        expected = torch.ops.aten.max_pool2d_with_indices(given, *options)
        found = pooled(given, *options)
        assert torch.equal(found[0].nan_to_num(9.0), expected[0].nan_to_num(9.0))
        assert torch.equal(found[1], expected[1])
        assert [one.stride() for one in found] == [one.stride() for one in expected]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("shape", [(32, 5, 1, 13), (64, 32, 1, 70), (32, 1, 1, 4), (32, 3, 2, 8)])
def test_quick_outer_products_give_the_same_bits(shape: tuple[int, int, int, int], dtype: Any):
    count, height, depth, width = shape
    generator = torch.Generator().manual_seed(width)
    left = torch.randn(count, height, depth, generator=generator).to(dtype)
    right = torch.randn(count, depth, width, generator=generator).to(dtype)
    left[::3], right[1, 0, 0], right[2, 0, 1] = -0.0, math.nan, math.inf
    right[3] *= 1e-38
    left[4] *= 1e-10
    turned = [value.transpose(0, 1).contiguous().transpose(0, 1) for value in (left, right)]
    for one, two in ((left, right), (left.mT.contiguous().mT, right), turned):
        expected, found = torch.bmm(one, two), outer(one, two)
        assert torch.equal(found.nan_to_num(9.0), expected.nan_to_num(9.0))
        assert torch.equal(found.isnan(), expected.isnan())
        numbers = ~found.isnan()
        assert torch.equal(found.signbit()[numbers], expected.signbit()[numbers])
        assert (found.stride(), found.dtype) == (expected.stride(), dtype)


@pytest.mark.parametrize("count", [4, 15])
@pytest.mark.parametrize("channels", [9, 200])
def test_quick_pooling_to_one_place_lies_the_same(channels: int, count: int):
    """Where channels last are contiguous too, by strides that other kernels are chosen by."""
    values = torch.arange(count * channels * 4.0).sin().view(count, channels, 2, 2)
    expected = torch.ops.aten.max_pool2d_with_indices(values, [2, 2])
    found = pooled(values, [2, 2])
    assert all(map(torch.equal, found, expected))
    assert [one.stride() for one in found] == [one.stride() for one in expected]


@pytest.mark.parametrize("shape", [(33, 64), (2, 3), (300, 1)])
def test_quick_outer_products_of_one_pair_keep_their_zeros(shape: tuple[int, int]):
    """One product of matrices is done elsewhere than many."""
    left, right = -torch.zeros(1, shape[0], 1), torch.ones(1, 1, shape[1])
    assert torch.equal(outer(left, right).signbit(), torch.bmm(left, right).signbit())


@pytest.mark.parametrize(
    ("left", "right"),
    [((2, 3, 1), (2, 3, 4)), ((1, 3, 1), (5, 1, 4)), ((5, 3, 1), (1, 1, 4)), ((3, 1), (1, 3))],
)
def test_what_is_no_product_of_matrices_is_no_outer_product(
    left: tuple[int, ...], right: tuple[int, ...]
):
    """Numbers would be spread over those that are missing."""
    for product in (torch.bmm, outer):
        with pytest.raises(RuntimeError, match="batch"):
            product(torch.ones(left), torch.ones(right))


class Summed(Passing):
    """Under vmap, NumPy sums up, which torch does not see."""

    @staticmethod
    def vmap(info, in_dims, values):
        del info
        return values * (1 + float(values.detach().numpy().sum())), in_dims[0]


class Reading(nn.Linear):
    """A layer whose output depends on more than tensors."""

    def __init__(self, kind: str) -> None:
        super().__init__(FEATURES, CLASSES)
        self.kind = kind
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, inputs: Tensor) -> Tensor:  # noqa: C901 - a case for each kind
        weight: Any = self.weight
        match self.kind:
            case "branch":
                factor = 2.0 if bool(weight.sum() > 100) else 1.0
            case "equal":
                factor = 2.0 if torch.equal(weight, weight + 1) else 1.0
            case "list":
                factor = weight.tolist()[0][0]
            case "count":
                factor = float(len(torch.nonzero(weight > 0)))
            case "python":
                factor = random.random()  # noqa: S311 - no secret
            case "numpy":
                factor = np.random.rand()  # noqa: NPY002 - the global one
            case "torch":
                factor = torch.rand(())
            case "examples past torch":
                factor = Summed.apply(inputs).mean()
            case "fresh":
                factor = 1.0 + 0.1 * np.random.default_rng().random()
                return super().forward(inputs * factor)
            case "write":
                factor = self.seen.add_(1.0)
            case _:
                factor = 1.0
        return super().forward(inputs) * factor


KINDS = ["branch", "equal", "list", "count", "examples past torch"]
KINDS += ["python", "numpy", "torch", "fresh", "write"]


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_more_than_operations_is_not_recorded(kind: str):
    model = Reading(kind)
    before = random.getstate(), torch.get_rng_state()
    assert recorded(steps_of(model), group_of(model, (FEATURES,)), list(model.buffers())) is None
    assert random.getstate() == before[0]
    assert torch.equal(torch.get_rng_state(), before[1])


class Numbers(nn.Linear):
    """Makes tensors of numbers."""

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs) * torch.tensor([2.0]) + torch.as_tensor(0.5)


@pytest.mark.parametrize("model", [Reading("none"), Numbers(FEATURES, CLASSES)])
def test_what_is_operations_alone_is_recorded(model: nn.Module):
    steps, group = steps_of(model), group_of(model, (FEATURES,), 3)
    replay = recorded(steps, group_of(model, (FEATURES,)))
    assert replay is not None
    expected, found = steps(*group), replay(*group)
    assert all(torch.equal(found[name], value) for name, value in expected.items())


# The groups of one kind of a trial before the first round are more than these.
EARLY = 5


def noiseless(
    rows: ClientData,
    monkeypatch: pytest.MonkeyPatch,
    worth: int,
    rounds: int = 3,
    drop: float = 0.3,
):
    """A run without noise that is recorded from that group on, and its model."""
    monkeypatch.setattr(recording, "_WORTH", worth)
    model = nn.Sequential(perceptron(FEATURES, CLASSES), nn.Dropout(drop))
    run = fl.Federation(
        model,
        nn.CrossEntropyLoss(weight=torch.linspace(0.5, 1.0, CLASSES)),
        fl.Examples(rows),
        clip_norm=0.3,
        noise_multiplier=1.0,
        noise=Silent(),
        sampling=fl.Full(),
        rounds=rounds,
        chunk_size=32,
        seed=4,
        preflight=False,
    )
    return run, model


@pytest.mark.parametrize("worth", [EARLY, pytest.param(14, marks=pytest.mark.slow)])
def test_nobody_can_tell_when_a_recording_began(monkeypatch: pytest.MonkeyPatch, worth: int):
    rows = data()
    rows.inputs[7] = math.nan
    plain, expected = noiseless(rows, monkeypatch, 10**9)
    plain.run()
    player: Any = plain.player
    assert not player.choice.trainer.together._recorder.records
    replayed, model = noiseless(rows, monkeypatch, worth)
    replayed.run()
    player = replayed.player
    assert player.choice.trainer.together._recorder.records
    assert torch.equal(flat(model), flat(expected))


def test_replayed_sums_move_by_exactly_one_contribution(monkeypatch: pytest.MonkeyPatch):
    # Bit by bit: the others change their places when one of them is missing.
    rows, left_out = data(70), 33
    sums: list[Tensor] = []

    def add(self: Any, total: Tensor, limits: Any, std: float, source: Any) -> Tensor:
        del self, limits, std, source
        sums.append(total.clone())
        return total

    monkeypatch.setattr(Silent, "add", add)
    kept = [k for k in range(70) if k != left_out]
    alone = ClientData(torch.full_like(rows.inputs, math.nan), rows.targets)
    alone.inputs[left_out] = rows.inputs[left_out]
    found: list[Tensor] = []
    for part in (rows, ClientData(rows.inputs[kept], rows.targets[kept]), alone):
        run, _ = noiseless(part, monkeypatch, EARLY, rounds=1, drop=0.0)
        run.run()
        player: Any = run.player
        assert player.choice.trainer.together._recorder.records
        found.append(sums[-1])
    whole, rest, own = found
    assert torch.equal(whole - rest, own)
    assert 0 < float(own.norm()) <= 0.3


def trained(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any, Any]:
    """A trainer of groups with its recording, a lot of examples, and what they are told."""
    run, _ = noiseless(data(), monkeypatch, EARLY)
    next(iter(run))
    player: Any = run.player
    trainer = player.choice.trainer
    device = torch.device("cpu")
    lot = trainer.read(fl.Examples(data()), range(20), range(20), device)
    broadcast = player.engine.broadcast(player.state)
    trainer.together.group(lot, broadcast)
    assert trainer.together._recorder.records
    return trainer.together, lot, broadcast


def test_a_replay_calls_no_code_of_the_model(monkeypatch: pytest.MonkeyPatch):
    trainer, lot, broadcast = trained(monkeypatch)
    monkeypatch.setattr(trainer, "_plain_steps", None)
    [part] = trainer.group(lot, broadcast).parts
    assert (len(part.tensors), part.count) == (4, 20)
    # Another model is not replayed.
    monkeypatch.setattr(trainer._loss.model, "forward", None, raising=False)
    with pytest.raises(TypeError):
        trainer.group(lot, broadcast)


def test_a_recording_is_forgotten_when_the_model_changes(monkeypatch: pytest.MonkeyPatch):
    trainer, lot, broadcast = trained(monkeypatch)
    model = trainer._loss.model
    dropped = trainer.train(lot, broadcast)
    model.eval()
    whole = trainer.train(lot, broadcast)
    assert not torch.equal(dropped, whole)
    model.train()
    assert torch.equal(trainer.train(lot, broadcast), dropped)
    with torch.autocast("cpu", torch.bfloat16):
        assert not torch.equal(trainer.train(lot, broadcast), dropped)
    assert torch.equal(trainer.train(lot, broadcast), dropped)


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None):
        found = func(*args, **(kwargs or {}))
        return found * 2 if func is torch.tanh else found


@contextmanager
def hooked():
    def double(layer: nn.Module, _: Any, outputs: Any) -> Any:
        return outputs * 2 if isinstance(layer, nn.Tanh) else None

    handle = register_module_forward_hook(double)
    try:
        yield
    finally:
        handle.remove()


@contextmanager
def exchanged(owner: Any, name: str):
    plain = getattr(owner, name)
    setattr(owner, name, lambda *given: plain(*given) * 2)
    try:
        yield
    finally:
        setattr(owner, name, plain)


@pytest.mark.parametrize(
    "around",
    [
        Doubling,
        hooked,
        lambda: exchanged(torch, "tanh"),
        lambda: exchanged(functional, "linear"),
        lambda: exchanged(nn.Linear, "forward"),
    ],
    ids=["mode", "hook of all layers", "torch", "functional", "class of a layer"],
)
def test_a_recording_is_forgotten_when_torch_changes(around: Any, monkeypatch: pytest.MonkeyPatch):
    trainer, lot, broadcast = trained(monkeypatch)
    before = trainer.train(lot, broadcast)
    with around():
        changed = trainer.train(lot, broadcast)
        assert not trainer._recorder.records
        assert not torch.equal(changed, before)
    assert torch.equal(trainer.train(lot, broadcast), before)


def test_what_was_written_to_is_refused_as_without_a_recording(monkeypatch: pytest.MonkeyPatch):
    trainer, lot, broadcast = trained(monkeypatch)
    with torch.no_grad():
        next(trainer._loss.model.parameters()).add_(1.0)
    with pytest.raises(Unsupported, match="weight"):
        trainer.group(lot, broadcast)


def test_other_rates_and_kinds_are_other_groups(monkeypatch: pytest.MonkeyPatch):
    trainer, lot, broadcast = trained(monkeypatch)
    recorder = trainer._recorder
    watch = recorder.basis[0]
    basis, slower = trainer._basis(watch, 1.0), trainer._basis(watch, 0.5)
    filled = trainer._group_of(lot, broadcast)
    assert len(filled.seeds) == 32
    assert recorder.replay(basis, [filled]) is not None
    assert recorder.replay(slower, [filled]) is None
    assert recorder.replay(basis, [filled._replace(seeds=lot.seeds)]) is None
    assert recorder.replay(basis, [filled._replace(inputs=filled.inputs.double())]) is None
    wide = {name: value.double() for name, value in broadcast.anchor.items()}
    assert recorder.replay(basis, [filled._replace(anchor=wide)]) is None
