"""The runs behind the page on clients by nature: their settings, grids, and how one is played."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from dpacct import Budget, Poisson, fl
from dpacct.fl.data import Dataset, load_femnist, load_shakespeare
from dpacct.fl.models import CharacterLSTM, ConvNet, build_model, cross_entropy
from dpacct.fl.tensors import from_array
from evidence.records import Setting, trained

BETA = 0.3
METHODS: dict[str, tuple[str, Callable[[], fl.Method]]] = {
    "dp-fedavg": ("DP-FedAvg", fl.DPFedAvg),
    "dp-fed-ls": ("DP-Fed-LS", lambda: fl.DPFedLS(smoothing=1.0)),
    "dp-fedpgn-ls": ("DP-FedPGN-LS", lambda: fl.DPFedPGNLS(rho=0.2, beta=BETA, smoothing=0.01)),
    "dp-fedsam": ("DP-FedSAM", lambda: fl.DPFedSAM(rho=0.5)),
}
# Noise for the ceiling. Its effect does not matter, and neither would its epsilon.
ALMOST_NONE = 0.01
# The first windows of each role, and every fourth of the windows for testing.
WINDOWS, TESTED = 8, 4
# The recorded values of every tenth round.
HISTORY = ("round", "epsilon", "accuracy", "norm_median", "clipped")


@dataclass(frozen=True)
class Task:
    """A data set's clients, and the settings that all methods share."""

    title: str
    population: int
    model: str
    rounds: int
    sampling_rate: float
    lr: float
    epochs: int
    batch_size: int
    clip_norm: float
    epsilons: tuple[int, ...]
    methods: tuple[str, ...]
    runs: int

    @property
    def delta(self) -> float:
        """N^-1.1."""
        return self.population**-1.1


@dataclass(frozen=True)
class Population:
    """The clients of a data set, their test data, and data of people that are no clients."""

    data: Dataset
    clients: list[fl.ClientData]
    tests: dict[str, fl.ClientData]


TASKS = {
    "femnist": Task(
        title="FEMNIST, 105 writers",
        population=105,
        model="logistic",
        rounds=60,
        sampling_rate=0.3,
        lr=0.3,
        epochs=2,
        batch_size=20,
        clip_norm=1.0,
        epsilons=(4, 8, 16),
        methods=("dp-fedavg", "dp-fed-ls", "dp-fedpgn-ls", "dp-fedsam"),
        runs=3,
    ),
    "shakespeare": Task(
        title="Shakespeare, 1134 roles",
        population=1134,
        model="lstm-64",
        rounds=50,
        sampling_rate=0.1,
        lr=8.0,
        epochs=1,
        batch_size=4,
        clip_norm=4.0,
        epsilons=(2, 4, 8, 16),
        methods=("dp-fedavg", "dp-fed-ls", "dp-fedpgn-ls"),
        runs=2,
    ),
}

GRIDS: dict[str, list[dict[str, Any]]] = {
    "femnist": [
        *({"lr": lr, "clip_norm": norm} for lr in (0.1, 0.3, 1.0) for norm in (0.5, 1.0, 2.0)),
        {"model": "cnn-tiny", "lr": 0.3, "clip_norm": 1.0, "epochs": 1},
        {"model": "cnn-tiny", "lr": 0.3, "clip_norm": 5.0, "epochs": 1, "epsilon": None},
    ],
    "shakespeare": [
        {"lr": 4.0, "clip_norm": 1.0},
        {"lr": 8.0, "clip_norm": 2.0},
        {"lr": 4.0, "clip_norm": 2.0},
        {"lr": 8.0, "clip_norm": 1.0},
        {"lr": 8.0, "clip_norm": 4.0},
        {"lr": 16.0, "clip_norm": 4.0},
        {"method": "dp-fed-ls", "lr": 16.0, "clip_norm": 4.0},
        {"method": "dp-fed-ls", "lr": 16.0, "clip_norm": 8.0},
    ],
}


@cache
def population(name: str, folder: Path) -> Population:
    """Return writers with all their images, or roles with their first windows."""
    # Other images and later text of the clients themselves, as LEAF splits these data.
    if name == "femnist":
        data = load_femnist(folder, test_writers="training")
    else:
        data = load_shakespeare(folder, test_roles="training")
    owners = np.asarray(data.owners)
    most = None if name == "femnist" else WINDOWS
    rows = [from_array(np.flatnonzero(owners == owner)[:most]) for owner in np.unique(owners)]
    clients = [fl.ClientData(*data.train.batch(own)) for own in rows]
    step = 1 if name == "femnist" else TESTED
    tests = {"accuracy": fl.ClientData(*data.test.batch(slice(None, None, step)))}
    if name == "femnist":
        others = load_femnist(folder, test_writers="new").test
        tests["accuracy_new"] = fl.ClientData(*others.batch(slice(None)))
    return Population(data, clients, tests)


def model_of(name: str, data: Dataset, seed: int) -> nn.Module:
    """Return one of the library's models, or a smaller one of the same kind."""
    torch.manual_seed(seed)  # pyright: ignore[reportUnknownMemberType]
    if name == "cnn-tiny":
        return ConvNet((1, 28, 28), data.num_classes, channels=(8, 16, 32), kernel=3, hidden=())
    if name == "lstm-64":
        return CharacterLSTM(data.num_classes, num_units=64, num_layers=1)
    return build_model(name, data, seed=seed)


def play(setting: Setting, folder: Path) -> dict[str, Any]:
    """Return one run with fresh noise and cohorts."""
    wanted: dict[str, Any] = dict(setting)
    people = population(wanted["data"], folder)
    model = model_of(wanted["model"], people.data, wanted["run"])
    target, delta = wanted["epsilon"], len(people.clients) ** -1.1
    private = target is not None
    scores = {name: _accuracy(model, test) for name, test in people.tests.items()}
    with fl.Federation(
        model,
        cross_entropy,
        people.clients,
        method=METHODS[wanted["method"]][1](),
        clip_norm=wanted["clip_norm"],
        sampling=Poisson(wanted["sampling_rate"]),
        rounds=wanted["rounds"],
        local=fl.SGD(lr=wanted["lr"], epochs=wanted["epochs"], batch_size=wanted["batch_size"]),
        budget=Budget(target, delta) if private else None,
        noise_multiplier=None if private else ALMOST_NONE,
        delta=None if private else delta,
        vectorize=wanted["model"] == "logistic",
    ) as run:
        result = trained(run, scores.pop("accuracy"), every=10)
    result |= {name: score() for name, score in scores.items()}
    return _rounded(result)


def _accuracy(model: nn.Module, test: fl.ClientData) -> Callable[[], float]:
    return lambda: 100 * fl.evaluate(model, cross_entropy, test).accuracy


def _rounded(result: dict[str, Any]) -> dict[str, Any]:
    """Round to five digits to keep the file of runs small, except for epsilons at the end."""
    history = [{key: float(f"{row[key]:.5g}") for key in HISTORY} for row in result["history"]]
    return result | {"history": history}


def settings_of(name: str, task: Task, **changes: Any) -> dict[str, Any]:
    """Return the settings of one run. `changes` set method, epsilon and run, or a grid's values."""
    setting: dict[str, Any] = {
        "stage": "comparison",
        "data": name,
        "method": "dp-fedavg",
        "model": task.model,
        "epsilon": None,
        "run": 0,
        "rounds": task.rounds,
        "sampling_rate": task.sampling_rate,
        "lr": task.lr,
        "epochs": task.epochs,
        "batch_size": task.batch_size,
        "clip_norm": task.clip_norm,
    }
    setting |= changes
    if setting["method"] == "dp-fedpgn-ls":
        setting["clip_norm"] = round(BETA * setting["clip_norm"], 6)
    return setting


def tuning() -> list[Setting]:
    """Return DP-FedAvg at epsilon 8 with a grid of rates and clip norms, and two variants."""
    return [
        settings_of(name, TASKS[name], **{"stage": "tuning", "epsilon": 8, **changes})
        for name, grid in GRIDS.items()
        for changes in grid
    ]


def comparison() -> list[Setting]:
    """Return all methods at equal epsilon, run by run, and without noise once."""
    return [
        settings_of(name, task, method=method, epsilon=epsilon, run=run)
        for run in range(max(task.runs for task in TASKS.values()))
        for name, task in TASKS.items()
        for epsilon in (*task.epsilons, None)
        for method in task.methods
        if run < (1 if epsilon is None else task.runs)
    ]
