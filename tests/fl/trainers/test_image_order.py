"""Images given place by place: the same numbers, the same update, where that is faster."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from dpacct import fl
from dpacct.fl.trainers import chooser as choosing
from dpacct.fl.trainers.examples import Kind
from dpacct.fl.trainers.image_order import are_images, by_place
from dpacct.fl.trainers.way import taken, way_of
from tests.fl.problems import cross_entropy, flat

CLIENTS, SIDE, CLASSES = 4, 12, 3


def clients(channels: int = 2) -> list[fl.ClientData]:
    generator = torch.Generator().manual_seed(0)
    return [
        fl.ClientData(
            torch.randn(5 + n, channels, SIDE, SIDE, generator=generator),
            torch.randint(CLASSES, (5 + n,), generator=generator),
        )
        for n in range(CLIENTS)
    ]


class Network(nn.Module):
    """Convolutions, which flatten what they found as it lies, or in any order."""

    def __init__(self, *, viewed: bool = False, channels: int = 2) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 4, 3)
        self.last = nn.Linear(4 * 5 * 5, CLASSES)
        self.viewed = viewed
        self.seen: list[bool] = []

    def forward(self, inputs: Tensor) -> Tensor:
        found = torch.max_pool2d(torch.relu(self.first(inputs)), 2)
        return self.last(found.view(len(found), -1) if self.viewed else found.flatten(1))


def run_of(
    monkeypatch: pytest.MonkeyPatch,
    *,
    quick: bool,
    model: nn.Module | None = None,
    data: list[fl.ClientData] | None = None,
    **options: Any,
) -> fl.Federation:
    """A run after one round, in which the other order is said to be faster, or not to be."""
    monkeypatch.setattr(choosing, "faster", lambda *_: quick)
    torch.manual_seed(3)
    run = fl.Federation(
        model or Network(),
        cross_entropy,
        data or clients(),
        clip_norm=10.0,
        noise_multiplier=1e-3,
        delta=1e-5,
        sampling=fl.Full(),
        rounds=2,
        local=fl.SGD(lr=0.1, epochs=2, batch_size=3),
        seed=1,
        chunk_size=1,
        **options,
    )
    next(iter(run))
    return run


def lying(run: fl.Federation) -> bool:
    player: Any = run.player
    return player.choice.trainer.alone.by_place


@pytest.mark.parametrize("channels", [1, 2, 8])
def test_the_numbers_stay_and_their_order_in_memory_changes(channels: int):
    images = torch.randn(3, channels, 4, 5)
    found = by_place(images)
    assert torch.equal(found, images)
    assert found.stride() == (20 * channels, 1, 5 * channels, channels)
    assert found.data_ptr() != images.data_ptr()


@pytest.mark.parametrize("inputs", [torch.randn(3, 4), torch.randint(9, (2, 3, 4, 5))])
def test_what_is_no_image_stays_as_it_is(inputs: Tensor):
    assert by_place(inputs) is inputs
    assert not are_images(Kind.of(fl.ClientData(inputs, torch.zeros(len(inputs)))))


def test_both_orders_train_to_the_same_model(monkeypatch: pytest.MonkeyPatch):
    plain = run_of(monkeypatch, quick=False)
    other = run_of(monkeypatch, quick=True)
    assert not lying(plain)
    assert lying(other)
    assert other.training_path.endswith("; images place by place")
    assert torch.allclose(flat(plain.model), flat(other.model), rtol=1e-4, atol=1e-6)


def test_a_model_that_cannot_be_given_them_so_is_given_them_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
):
    model = Network(viewed=True)
    with pytest.raises(RuntimeError, match="view"):
        model(by_place(torch.randn(2, 2, SIDE, SIDE)))
    assert not lying(run_of(monkeypatch, quick=True, model=model))


class AsItLies(Network):
    """Reads the storage of its input, which has another order."""

    def forward(self, inputs: Tensor) -> Tensor:
        count, size = len(inputs), inputs[0].numel()
        inputs = inputs.as_strided((count, size), (size, 1)).view(inputs.shape)
        return super().forward(inputs)


def test_a_model_that_reads_them_as_they_lie_is_given_them_as_they_are(
    monkeypatch: pytest.MonkeyPatch,
):
    assert not lying(run_of(monkeypatch, quick=True, model=AsItLies()))


class SizeByPlace(Network):
    """Views its input in batches of a size that made-up clients do not have."""

    def forward(self, inputs: Tensor) -> Tensor:
        if len(inputs) == 1:
            inputs = inputs.view(1, -1).view(inputs.shape)
        return super().forward(inputs)


@pytest.mark.parametrize("vectorize", ["auto", False])
def test_a_client_whom_the_order_would_fail_trains_as_it_is(
    monkeypatch: pytest.MonkeyPatch, vectorize: Any
):
    data = clients()
    data[0] = fl.ClientData(data[0].inputs[:1], data[0].targets[:1])
    run = run_of(monkeypatch, quick=True, model=SizeByPlace(), data=data, vectorize=vectorize)
    assert lying(run) == (vectorize == "auto")
    report = run.run()
    assert report is not None
    assert not report.diagnostics.dropped_updates


def test_one_by_one_as_asked_is_not_timed(monkeypatch: pytest.MonkeyPatch):
    # Two runs that are asked to train so have the same bits.
    assert not lying(run_of(monkeypatch, quick=True, vectorize=False))


def test_vectors_are_not_timed(monkeypatch: pytest.MonkeyPatch):
    model = nn.Linear(7, CLASSES)
    data = [fl.ClientData(torch.randn(4, 7), torch.zeros(4, dtype=torch.int64)) for _ in range(2)]
    assert not lying(run_of(monkeypatch, quick=True, model=model, data=data))


def test_other_processes_are_told(monkeypatch: pytest.MonkeyPatch):
    run = run_of(monkeypatch, quick=True)
    player: Any = run.player
    way = way_of(player.choice)
    chooser, layout = player.chooser, player.engine.layout
    chooser.alone.by_place = False
    assert taken(way, chooser, layout).trainer.alone.by_place
