"""The recorded settings of each page in the words of `dpacct train`, and one played again.

The networks and the reduced data of these pages have names here, which `dpacct train` lacks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from dpacct.calibration.noise_rule import noise_rule
from dpacct.fl.data import DATASETS, Dataset, load
from dpacct.fl.data.dataset import Examples
from dpacct.fl.models import MODELS, CharacterLSTM, ConvNet
from dpacct.fl.tensors import from_array
from dpacct.rounds import Poisson, Uniform
from dpacct_cli.commands.reproduce import play
from dpacct_cli.train.defaults import DEFAULTS

Words = dict[str, Any]
ALMOST_NONE = 0.01
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


def _cifar_methods(own: Mapping[str, Any]) -> Words:
    texts = [text.split("=") for text in own["options"].split(", ") if text]
    everyone = own["method"] in ("fed-alpha-normec", "alpha-normec")
    by_norm = everyone or own["method"] == "fedavg-smoothed"
    words: Words = {
        "data": "cifar10", "model": "strided", "clients": 500, "q": 0.1, "delta": 1 / 500,
        "partition": f"dirichlet:{own['concentration']}", "rounds": own["rounds"],
        "eps": own["epsilon"], "local_lr": own["lr"], "server_lr": own["server_lr"],
        "method": own["method"], "vectorize": "no",
        "method_options": {k: True if v == "True" else float(v) for k, v in texts},
    }  # fmt: skip
    words |= {} if by_norm else {"clip_norm": own["clip_norm"]}
    words |= (
        {"local_steps": 1, "batch_size": 10} if everyone else {"local_epochs": 1, "batch_size": 25}
    )
    if "momentum" in own:
        words |= {"server": "momentum", "server_options": {"beta": own["momentum"]}}
    return words | ({"momentum": own["local_momentum"]} if "local_momentum" in own else {})


def _natural_clients(own: Mapping[str, Any]) -> Words:
    options = {
        "dp-fed-ls": {"smoothing": 1.0}, "dp-fedsam": {"rho": 0.5},
        "dp-fedpgn-ls": {"rho": 0.2, "beta": 0.3, "smoothing": 0.01},
    }  # fmt: skip
    femnist = own["data"] == "femnist"
    delta = (105 if femnist else 1134) ** -1.1
    return {
        "data": "femnist" if femnist else "shakespeare-8", "model": own["model"],
        "method": own["method"], "method_options": options.get(own["method"], {}),
        "q": own["sampling_rate"], "rounds": own["rounds"], "delta": delta,
        "local_lr": own["lr"], "local_epochs": own["epochs"], "batch_size": own["batch_size"],
        "clip_norm": own["clip_norm"], "partition": "natural",
        "data_options": {"test_writers": "training"} if femnist else {},
    } | ({"eps": own["epsilon"]} if own["epsilon"] else {"noise": ALMOST_NONE})  # fmt: skip


def _correlated(own: Mapping[str, Any]) -> Words:
    words: Words = {
        "data": "femnist", "data_options": {"test_writers": "training"}, "partition": "natural",
        "model": "logistic", "method": "dp-fedavg", "rounds": 64, "clip_norm": 1.0,
        "local_lr": 0.3, "local_epochs": 2, "batch_size": 20, "server_lr": own["server_lr"],
        "eps": own["epsilon"], "delta": 105**-1.1,
    }  # fmt: skip
    if own["momentum"]:
        words |= {"server": "momentum", "server_options": {"beta": own["momentum"]}}
    if own["method"] == "poisson":
        return words | {"q": 1 / own["groups"]}
    strategy = {"independent": "independent", "banded": "optimized", "buffered": "buffered"}
    turns = {"correlated": strategy[own["method"]], "separation": own["groups"]}
    return words | turns | ({"bands": own["groups"]} if own["method"] == "banded" else {})


_LONGER: dict[str, Words] = {
    "smoothing": {
        "clients": 2000, "cohort": 100, "partition": "iid", "noise": 2.4, "clip_norm": 0.3,
        "delta": 2000**-1.1, "rounds": 200, "local_epochs": 5, "batch_size": 64, "lr_decay": 0.99,
        "weight_decay": 4e-5,
    },
    "sam": {
        "clients": 500, "cohort": 50, "partition": "dirichlet:0.6", "noise": 0.95,
        "clip_norm": 0.2, "delta": 1 / 500, "rounds": 30, "local_steps": 60, "batch_size": 25,
        "momentum": 0.5, "lr_decay": 0.998, "weight_decay": 5e-4,
        "data_options": {"num_train": 25_000},
    },
}  # fmt: skip
_METHODS: dict[str, tuple[str, Words]] = {
    "projected": ("dp-fed-ls", {"smoothing": 0.0}), "rho 0": ("dp-fedavg", {}),
    "projected, smoothed": ("dp-fed-ls", {"smoothing": 1.0}), "clipped once": ("dp-fedavg", {}),
    "rho 0.1": ("dp-fedsam", {"rho": 0.1}), "rho 0.5": ("dp-fedsam", {"rho": 0.5}),
    "adaptive, rho 0.5": ("dp-fedsam", {"rho": 0.5, "adaptive": True}),
}  # fmt: skip


def _longer_training(own: Mapping[str, Any]) -> Words:
    claim = own.get("claim") or own["ceiling"]
    method, options = _METHODS[own["method"]]
    return _LONGER[claim] | {
        "data": "fashion-mnist-16", "model": "cnn-18346", "sampling": "uniform", "local_lr": 0.1,
        "method": method, "method_options": options, "vectorize": "no",
    } | ({"noise": ALMOST_NONE} if "ceiling" in own else {})  # fmt: skip


def _mnist_smoothing(own: Mapping[str, Any]) -> Words:
    uniform, smoothing = own["sampling"] == "uniform", own.get("smoothing", 0)
    delta = (1000 if uniform else 500) ** -1.1
    words: Words = {
        "data": "mnist-unit" if own["inputs"] == "unit" else "mnist", "partition": "iid",
        "data_options": {"num_train": 50_000}, "delta": delta, "rounds": 30, "clip_norm": 0.4,
        "model": "logistic" if own["inputs"] == "unit" else "linear", "local_lr": 0.1,
        "local_epochs": 5, "batch_size": 10, "lr_decay": 0.99, "weight_decay": 4e-5,
        "server_lr": own.get("server_lr", 1.0), "method": "dp-fedavg",
    }  # fmt: skip
    if smoothing is not None:
        options = {"smoothing": smoothing, "order": own.get("order", "OIHW")}
        words |= {"method": "dp-fed-ls", "method_options": options}
    sampling = Uniform(50, 1000) if uniform else Poisson(0.05)
    words |= (
        {"clients": 1000, "cohort": 50, "sampling": "uniform"}
        if uniform
        else {"clients": 500, "q": 0.05}
    )
    if "epsilon" in own:
        return words | {"eps": own["epsilon"]}
    return words | {
        "noise": noise_rule(own["printed_epsilon"], delta, 30, sampling).noise_multiplier
    }


# With S = sqrt(T ln(1/delta)) / epsilon at T = 300, delta = 1e-5 and epsilon = 8, the theory of
# NormEC gives each participant a standard deviation of p S on its contribution D. The sum gets as
# much at once: a standard deviation per client of s becomes z = s sqrt(p N).
_SCALE = math.sqrt(300 * math.log(1e5)) / 8


def _multiplier(noise: str, rate: float, beta: float, clients: int) -> float | None:
    """Return the noise on the sum of a reading, or None if a budget decides."""
    if noise in ("epsilon 8", "none"):
        return None if noise != "none" else 1e-3 if rate == 1 else ALMOST_NONE
    # In the small CNN, "louder" is as long a vector of noise as ResNet-20 gets.
    louder = math.sqrt(272_474 / 3962) if noise.endswith(", louder") else 1.0
    deviation = rate * _SCALE * (1.0 if noise == "printed" else beta) * louder
    return deviation * math.sqrt(rate * clients)


def _normec_beta(own: Mapping[str, Any]) -> Words:
    rate, beta = own["sampling_rate"], own["beta"]
    noise = _multiplier(own["noise"], rate, beta, own["clients"])
    data, model = {
        "mnist": ("mnist", "logistic"), "mnist, pixels 0 to 1": ("mnist-unit", "logistic"),
        "cifar": ("cifar10-16", "cnn-3962"), "cifar32": ("cifar10-5000", "resnet20"),
    }[own["data"]]  # fmt: skip
    return {
        "data": data, "model": model, "data_options": {"num_train": 50_000}, "partition": "iid",
        "clients": own["clients"], "method": own["method"], "rounds": 300, "delta": 1e-5,
        "method_options": {"alpha": 0.01, "beta": beta}, "local_lr": own["gamma"],
        "server_lr": own["gamma"], "local_steps": 1, "batch_size": 32,
        **({"sampling": "full"} if rate == 1 else {"q": rate}),
        **({"eps": 8.0} if noise is None else {"noise": noise}),
    }  # fmt: skip


PAGES: dict[str, Callable[[Mapping[str, Any]], Words] | None] = {
    "cifar_methods": _cifar_methods, "natural_clients": _natural_clients,
    "correlated": _correlated, "longer_training": _longer_training,
    "mnist_smoothing": _mnist_smoothing, "normec_beta": _normec_beta,
    "pictures": None, "membership": None, "audits": None,
}  # fmt: skip


def words_of(page: str, setting: Mapping[str, Any]) -> Words | None:
    """Return the options of `dpacct train` of a recorded run, None of what was only computed."""
    translate = PAGES[page]
    computed = "quantity" in setting or setting.get("role") == "time"
    # A method that only the page had: DP-FedAvg with a smoothed mean.
    if translate is None or computed or setting.get("method") == "clipped once, smoothed":
        return None
    return {"public_seed": setting["run"], **translate(setting)}


def played(page: str, setting: Mapping[str, Any], folder: Path, data: str | None) -> dict[str, Any]:
    """Return a run of a recorded setting, with fresh cohorts and noise.

    Raises:
        SystemExit: the setting is no training.
    """
    words = words_of(page, setting)
    if words is None:
        raise SystemExit(f"{page}: {dict(setting)} is no run that dpacct train plays")
    with more_names():
        return play(words, folder, data_dir=data)
