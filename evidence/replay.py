"""A recorded run of a page, played again.

A record holds its options of `dpacct train` under ``made``, as ``words``. The networks and the
reduced data of these pages have names here, which `dpacct train` lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpacct.fl.data import DATASETS, Dataset, load
from dpacct.fl.data.dataset import Examples
from dpacct.fl.models import MODELS, CharacterLSTM, ConvNet
from dpacct.fl.tensors import from_array
from dpacct.reproduce import Record
from dpacct_cli.commands.reproduce import play
from dpacct_cli.train.defaults import DEFAULTS

Words = dict[str, Any]
# Data: a known data set, its first test examples, and what becomes of its images.
_HALF = nn.AvgPool2d(2)
_REDUCED: dict[str, tuple[str, int, Callable[[Tensor], Tensor]]] = {
    "cifar10-16": ("cifar10", 5000, _HALF),
    "cifar10-5000": ("cifar10", 5000, lambda images: images),
    "mnist-unit": ("mnist", 10_000, lambda images: images * 0.3081 + 0.1307),
    # A frame of background makes 28 pixels 32.
    "fashion-mnist-16": (
        "fashion-mnist",
        10_000,
        lambda images: _HALF(nn.functional.pad(images, (2, 2, 2, 2), value=float(images.min()))),
    ),
}


@cache
def _reduced(name: str, folder: str | None = None) -> Dataset:
    known, tested, change = _REDUCED[name]
    data = load(known, folder)
    sides = data.train.batch(slice(None)), data.test.batch(slice(tested))
    train, test = (Examples(change(inputs), targets) for inputs, targets in sides)
    return replace(data, name=name, train=train, test=test)


def _first_windows(folder: str | None = None) -> Dataset:
    """Return the first 8 windows of each role, and every fourth window for testing."""
    data = load("shakespeare", folder, test_roles="training")
    owners = np.asarray(data.owners)
    rows = np.concatenate([np.flatnonzero(owners == owner)[:8] for owner in np.unique(owners)])
    tested = torch.arange(0, len(data.test), 4)
    return replace(
        data, train=data.train.select(from_array(rows)), owners=owners[rows],
        test=data.test.select(tested), test_owners=None,
    )  # fmt: skip


def _strided(data: Dataset) -> nn.Module:
    """Return two strided convolutions with one pooling between them, and a dense layer."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2, padding=2), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(),
        nn.Linear(512, data.num_classes),
    )  # fmt: skip


def _linear(data: Dataset) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(784, data.num_classes))


def _lstm(data: Dataset) -> nn.Module:
    return CharacterLSTM(data.num_classes, num_units=64, num_layers=1)


def _convolutions(*channels: int, hidden: tuple[int, ...] = ()) -> Callable[[Dataset], nn.Module]:
    def build(data: Dataset) -> nn.Module:
        shape: Any = data.input_shape
        return ConvNet(shape, data.num_classes, channels=channels, kernel=3, hidden=hidden)

    return build


_DATASETS: Words = {
    "shakespeare-8": _first_windows,
    **{name: partial(_reduced, name) for name in _REDUCED},
}
_MODELS: Words = {
    "strided": _strided, "cnn-3962": _convolutions(8, 16), "cnn-tiny": _convolutions(8, 16, 32),
    "cnn-18346": _convolutions(8, 16, hidden=(64,)),
    "linear": _linear, "lstm-64": _lstm,
}  # fmt: skip


@contextmanager
def more_names() -> Generator[None]:
    """Add the data and models of these pages to those of `dpacct train`, for a while."""
    tables: list[tuple[Any, Words]] = [
        (DATASETS, _DATASETS), (MODELS, _MODELS), (DEFAULTS, {name: {} for name in _DATASETS}),
    ]  # fmt: skip
    for known, more in tables:
        known.update(more)
    try:
        yield
    finally:
        for known, more in tables:
            for name in more:
                del known[name]


PAGES = (
    "cifar_methods", "natural_clients", "correlated", "longer_training", "mnist_smoothing",
    "normec_beta", "pictures", "membership", "audits",
)  # fmt: skip


def words_of(record: Record) -> Words | None:
    """Return the options of `dpacct train` of a recorded run, None of what was only computed."""
    return record.made.get("words")


def played(words: Words, folder: Path, data: str | None) -> dict[str, Any]:
    """Return a run of recorded options, with fresh cohorts and noise."""
    with more_names():
        return play(words, folder, data_dir=data)
