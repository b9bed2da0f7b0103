"""An example's gradient is the same bit by bit in groups of all sizes, on any number of threads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from dpacct import fl
from dpacct.fl.clients import ClientData
from dpacct.fl.trainers import example_chooser, per_example, recording
from dpacct.fl.trainers.example_chooser import alike
from dpacct.fl.trainers.groups import LANES
from dpacct.fl.trainers.per_example import ExampleTrainer, Part, Updates
from dpacct.fl.trainers.sizes import Sizes
from dpacct.fl.trainers.tasks import Broadcast
from tests.fl.problems import convolutional, cross_entropy, flat
from tests.fl.test_examples import CLASSES, Silent, data

CPU = torch.device("cpu")
SEVERAL = [32, 64, 96]
MANY = list(range(32, 289, 32))


class Of(nn.Module):
    """What a function makes of layers and inputs."""

    def __init__(self, function: Callable[..., Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.function = function
        self.layers = nn.ModuleList(layers)

    def forward(self, inputs: Tensor) -> Tensor:
        return self.function(inputs, *self.layers)


def activated(layer: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 13), layer, nn.Linear(13, CLASSES))


def on_images(*layers: nn.Module) -> nn.Module:
    model = nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(CLASSES))
    model(torch.zeros(2, 3, 11, 9))
    return model


def recurrent() -> nn.Module:
    lstm, last = nn.LSTM(6, 8, batch_first=True), nn.Linear(8, CLASSES)
    return Of(lambda x, one, two: two(one(x)[0][:, -1]), lstm, last)


def attentive() -> nn.Module:
    layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, activation="gelu", batch_first=True)
    return Of(lambda x, one, two: two(one(x).mean(1)), layer, nn.Linear(8, CLASSES))


def powers() -> nn.Module:
    def made(x: Tensor, one: Any, two: Any) -> Tensor:
        return two((torch.softmax(one(x), 1) + 0.1) ** 1.7 - torch.logsumexp(x, 1, keepdim=True))

    return Of(made, nn.Linear(6, 9), nn.Linear(9, CLASSES))


IMAGE = (3, 11, 9)
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    "silu": (lambda: activated(nn.SiLU()), (6,), 0),
    "softplus": (lambda: activated(nn.Softplus()), (6,), 0),
    "pooling": (
        lambda: on_images(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 13, 3)),
        IMAGE,
        0,
    ),
    "group norm": (convolutional, (1, 8, 8), 0),
    "lstm": (recurrent, (5, 6), 0),
    "embedding": (
        lambda: nn.Sequential(nn.Embedding(11, 6), nn.Flatten(), nn.SiLU(), nn.Linear(24, CLASSES)),
        (4,),
        11,
    ),
    "attention": (attentive, (5, 8), 0),
}
MORE: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int]] = {
    **{
        type(layer).__name__: (lambda layer=layer: activated(layer), (6,), 0)
        for layer in (nn.GELU(), nn.Mish(), nn.ELU(), nn.Tanh(), nn.Sigmoid(), nn.LogSigmoid())
    },
    "tanh of gelu": (lambda: activated(nn.GELU("tanh")), (6,), 0),
    "layer norm": (lambda: activated(nn.LayerNorm(13)), (6,), 0),
    "dropout": (lambda: activated(nn.Dropout(0.4)), (6,), 0),
    "powers": (powers, (6,), 0),
    "averages": (
        lambda: on_images(nn.Conv2d(3, 8, 3, padding=1), nn.SiLU(), nn.AvgPool2d(2)),
        IMAGE,
        0,
    ),
    "convolutions in groups": (
        lambda: on_images(
            nn.Conv2d(3, 6, 3, groups=3), nn.Softplus(), nn.Conv2d(6, 6, 3, groups=2)
        ),
        IMAGE,
        0,
    ),
    "transposed": (lambda: on_images(nn.ConvTranspose2d(3, 6, 3, 2), nn.ReLU()), IMAGE, 0),
    "dilated": (lambda: on_images(nn.Conv2d(3, 16, 3, 2, dilation=2), nn.ELU()), IMAGE, 0),
}


def examples(count: int, shape: tuple[int, ...], tokens: int) -> ClientData:
    generator = torch.Generator().manual_seed(3)
    inputs = torch.randn(count, *shape, generator=generator)
    if tokens:
        inputs = torch.randint(tokens, (count, *shape), generator=generator)
    return ClientData(inputs, torch.randint(CLASSES, (count,), generator=generator))


def trained(rows: ClientData, model: nn.Module, sizes: list[int]) -> tuple[Sizes, list[Tensor]]:
    """The sizes that a run chooses, and all updates in groups of each of some sizes."""
    run = fl.Federation(
        model,
        cross_entropy,
        fl.Examples(rows),
        clip_norm=1.0,
        noise_multiplier=1.0,
        sampling=fl.Poisson(0.3),
        rounds=1,
        preflight=False,
    )
    run.run()
    player: Any = run.player
    trainer, broadcast = player.choice.trainer, player.engine.broadcast(player.state)
    lot = trainer.read(fl.Examples(rows), range(len(rows)), range(len(rows)), CPU)
    found = [
        player.chooser.trainer_of(Sizes.one(size)).train(lot, broadcast) for size in reversed(sizes)
    ]
    return trainer.together.sizes, found


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        *((name, SEVERAL) for name in MODELS),
        *(pytest.param(name, MANY, marks=pytest.mark.slow) for name in MODELS | MORE),
    ],
)
def test_the_size_of_a_group_changes_no_bit(name: str, sizes: list[int]):
    make, shape, tokens = (MODELS | MORE)[name]
    torch.manual_seed(1)
    chosen, (like, *others) = trained(examples(max(sizes), shape, tokens), make(), sizes)
    assert chosen.least == LANES
    assert all(torch.equal(rows, like) for rows in others)
    assert bool(like.any(dim=1).all())


class Otherwise(ExampleTrainer):
    """Rounds otherwise in groups of a size: one number of one example."""

    def __init__(self, *args: Any, wrong: int, place: int) -> None:
        super().__init__(*args)
        self.wrong, self.place = wrong, place

    def train(self, tasks: Any, broadcast: Any) -> Tensor:
        rows = super().train(tasks, broadcast)
        if self.sizes.most == self.wrong and len(rows) > self.place:
            last = rows[self.place, -1]
            rows[self.place, -1] = torch.nextafter(last, last + 1)
        return rows


@pytest.mark.parametrize(
    ("wrong", "place", "least"),
    [(0, 0, 32), (32, 31, 64), (32, 0, 64), (64, 50, 96), (96, 40, 128), (128, 64, None)],
)
def test_sizes_in_which_one_bit_differs_are_not_in_use(wrong: int, place: int, least: int | None):
    run = fl.Federation(
        activated(nn.SiLU()),
        cross_entropy,
        fl.Examples(examples(90, (6,), 0)),
        clip_norm=1.0,
        noise_multiplier=1.0,
        sampling=fl.Poisson(0.3),
        rounds=1,
    )
    run.run()
    player: Any = run.player
    chooser, broadcast = player.chooser, player.engine.broadcast(player.state)

    def trainer_of(sizes: Sizes) -> ExampleTrainer:
        given = chooser._method, chooser.loss.batched(), chooser._layout, sizes
        return Otherwise(*given, wrong=wrong, place=place)

    def make(count: int, seed: int) -> ClientData:
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.rand(count, 6, generator=generator)
        return ClientData(inputs, torch.randint(CLASSES, (count,), generator=generator))

    found = alike(trainer_of, range(32, 129, 32), make, broadcast)
    assert found == (None if least is None else Sizes(least, 128, 32))


def vectors(zero: bool) -> nn.Module:  # noqa: FBT001 - one case and the other
    """A matrix by a vector for each example: examples are columns, of which numbers of eight bytes
    are added up otherwise in some sizes."""

    def made(x: Tensor, one: Any, two: Any) -> Tensor:
        return torch.stack([two.weight.mv(torch.tanh(one.weight.mv(row))) for row in x])

    model = Of(made, nn.Linear(3, 128, bias=False), nn.Linear(128, 64, bias=False)).double()
    if zero:
        model.layers[1].weight.data.zero_()
    return model


class Doubled(nn.Module):
    """Computes with numbers of eight bytes by itself, and gives others."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.double().exp().float()


@pytest.mark.parametrize("zero", [False, True])
def test_a_last_layer_of_zeros_hides_no_size(zero: bool):  # noqa: FBT001 - as above
    torch.manual_seed(1)
    rows = examples(128, (3,), 0)
    rows = ClientData(rows.inputs.double(), rows.targets)
    # Chosen at the first parameters, compared at those behind a round.
    sizes = [32, 64, 96, 128]
    chosen, found = trained(rows, vectors(zero), sizes)
    used = [
        one
        for size, one in zip(reversed(sizes), found, strict=True)
        if chosen.least <= size <= chosen.most
    ]
    assert all(torch.equal(one, used[0]) for one in used)


@pytest.mark.parametrize(("make", "several"), [(nn.Identity, True), (Doubled, False)])
def test_where_numbers_have_eight_bytes_all_groups_have_one_size(
    make: Callable[[], nn.Module],
    several: bool,  # noqa: FBT001 - as above
):
    model = nn.Sequential(make(), activated(nn.SiLU()))
    chosen, _ = trained(examples(320, (6,), 0), model, [])
    assert (chosen.least < chosen.most) == several


class Later(Otherwise):
    """Does so as soon as the last layer's weights are not zero."""

    def train(self, tasks: Any, broadcast: Broadcast) -> Tensor:
        wrong, last = self.wrong, list(broadcast.anchor.values())[-2]
        self.wrong = wrong if bool(last.any()) else 0
        try:
            return super().train(tasks, broadcast)
        finally:
            self.wrong = wrong


@pytest.mark.parametrize(("wrong", "least"), [(0, 32), (32, 64), (96, 128), (128, None)])
def test_sizes_are_compared_at_other_parameters_too(wrong: int, least: int | None):
    model = activated(nn.SiLU())
    for value in list(model.parameters())[-2:]:
        nn.init.zeros_(value)
    run = fl.Federation(
        model,
        cross_entropy,
        fl.Examples(examples(90, (6,), 0)),
        clip_norm=1.0,
        noise_multiplier=1.0,
        sampling=fl.Poisson(0.3),
        rounds=1,
    )
    player: Any = run.player
    chooser, broadcast = player.chooser, player.engine.broadcast(player.state)
    given = chooser._method, chooser.loss.batched(), chooser._layout

    def make(count: int, seed: int) -> ClientData:
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.rand(count, 6, generator=generator)
        return ClientData(inputs, torch.randint(CLASSES, (count,), generator=generator))

    def trainer_of(sizes: Sizes) -> ExampleTrainer:
        # The last bits of a bias of the last layer: its gradient is not zero at first either.
        return Later(*given, sizes, wrong=wrong, place=31)

    found = alike(trainer_of, range(32, 129, 32), make, broadcast)
    assert found == (None if least is None else Sizes(least, 128, 32))


def summed(
    rows: ClientData, monkeypatch: pytest.MonkeyPatch, threads: int = 1, rounds: int = 1
) -> tuple[Tensor, Tensor, Any]:
    """The noiseless sum of the last round, the model behind it, and the trainer."""
    sums: list[Tensor] = []

    def add(self: Any, total: Tensor, limits: Any, std: float, source: Any) -> Tensor:
        del self, limits, std, source
        sums.append(total.clone())
        return total

    monkeypatch.setattr(Silent, "add", add)
    torch.manual_seed(2)
    model = activated(nn.SiLU())
    run = fl.Federation(
        model,
        cross_entropy,
        fl.Examples(rows),
        clip_norm=0.3,
        noise_multiplier=1.0,
        noise=Silent(),
        sampling=fl.Full(),
        rounds=rounds,
        seed=4,
        preflight=False,
    )
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        run.run()
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)
    player: Any = run.player
    return sums[-1], flat(model), player.choice.trainer.together


def only(rows: ClientData, place: int) -> ClientData:
    """The same examples, all but one not finite."""
    alone = ClientData(torch.full_like(rows.inputs, torch.nan), rows.targets)
    alone.inputs[place] = rows.inputs[place]
    return alone


@pytest.mark.parametrize(("threads", "planted"), [(1, None), (2, None), (1, 2.0**-20)])
def test_one_more_who_makes_the_group_longer_moves_the_sum_by_its_own_contribution(
    monkeypatch: pytest.MonkeyPatch, threads: int, planted: float | None
):
    """65 examples are in another size than 64, in which a fault that is planted shows."""
    rows, left_out = data(65), 20
    kept = [k for k in range(65) if k != left_out]
    others = ClientData(rows.inputs[kept], rows.targets[kept])
    monkeypatch.setattr(recording, "_WORTH", 2)
    monkeypatch.setattr(recording, "_LONG", 0.0)
    if planted is not None:
        filled = per_example._filled

        def slightly(values: Tensor, size: int) -> Tensor:
            given = filled(values, size)
            return given * (1 + planted) if size == 96 and given.is_floating_point() else given

        monkeypatch.setattr(per_example, "_filled", slightly)
        monkeypatch.setattr(example_chooser, "alike", lambda *_: Sizes(LANES, 3 * LANES, LANES))
    (whole, _, trainer), (rest, *_), (own, *_) = (
        summed(part, monkeypatch, threads) for part in (rows, others, only(rows, left_out))
    )
    assert trainer.sizes == Sizes(LANES, 3 * LANES, LANES)
    assert torch.equal(whole - rest, own) == (planted is None)
    assert 0 < float(own.norm()) <= 0.3


def test_threads_change_no_bit_of_a_replay(monkeypatch: pytest.MonkeyPatch):
    rows, many, whole = data(270), list[int](), recording.at_once

    def counted(jobs: Any) -> Any:
        many.append(len(jobs))
        return whole(jobs)

    monkeypatch.setattr(recording, "at_once", counted)
    monkeypatch.setattr(recording, "_WORTH", 2)
    monkeypatch.setattr(recording, "_LONG", 0.0)
    found: list[Tensor] = []
    for threads in (1, 2, 3, 5):
        many.clear()
        found.append(summed(rows, monkeypatch, threads, rounds=6)[1])
        assert max(many) == threads
    assert all(torch.equal(other, found[0]) for other in found[1:])


def test_short_operations_are_not_split(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(recording, "_WORTH", 2)
    monkeypatch.setattr(recording, "_LONG", float("inf"))
    _, _, trainer = summed(data(270), monkeypatch, 2, rounds=6)
    assert sorted(trainer._recorder.recordings)[-3:] == [128, 160, 288]
    assert trainer._lengths(270, 2) == [270]


@pytest.mark.parametrize("few", [1, 5, 7, 100])
def test_updates_are_written_in_order_wherever_parts_end(few: int):
    whole = torch.arange(24.0).view(12, 2)
    # Behind each part there is one more, of nobody.
    parts = [
        Part(
            [torch.cat([whole[start:stop, k], torch.full((1,), -1.0)]) for k in (0, 1)],
            stop - start,
        )
        for start, stop in ((0, 5), (5, 10), (10, 12))
    ]
    found = [torch.empty(min(few, 12 - start), 2) for start in range(0, 12, few)]
    for number, rows in enumerate(found):
        Updates(parts, torch.float32).write(few * number, rows)
    assert torch.equal(torch.cat(found), whole)


class Halved(nn.Module):
    """Computes with numbers of two bytes by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = activated(nn.GELU("tanh"))

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return functional.softplus(self.inner(inputs)).float()


@pytest.mark.parametrize(("make", "lanes"), [(Halved, 64), (lambda: Halved().inner, 32)])
def test_numbers_of_two_bytes_have_twice_the_lanes(make: Callable[[], nn.Module], lanes: int):
    sizes, (like, *others) = trained(examples(192, (6,), 0), make(), [lanes, 2 * lanes, 192])
    assert (sizes.least, sizes.step) == (lanes, lanes)
    assert all(torch.equal(rows, like) for rows in others)
