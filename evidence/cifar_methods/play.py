"""CIFAR-10 in Dirichlet partitions: every method at the same proven epsilon.

``python -m evidence.cifar_methods.play FOLDER [--only ROLE]
[--models MODELS]``. FOLDER holds CIFAR-10. MODELS gets the weights that `pictures` uses. 500
clients of 100 images each, Poisson cohorts at rate 0.1, 40 rounds, one local epoch in batches of
25, a network of 10986 weights, epsilon 8 at delta = 1/500, zero-out a client. Runs have a role:
"grid" (tuning, on a separate partition), "main" (partitions 0.1 and 0.6), "ablation" (parts of
DP-FedPGN), "sam" and "pgn" (as the authors' code runs them, partition 0.6), "time" (all methods in
turn in one process). "replaced" is a main run with the clip norm of DP-FedAvg, repeated with the
one of the grid below.

Two methods compute on all 500 clients in every round. So that they cost what the others do,
`fed-alpha-normec` takes one step on 10 images of each client, and `alpha-normec`, whose step is on
all images, has 6 rounds instead of 40.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from dpacct import Budget, fl
from dpacct.fl.data import Dataset, Examples, PartitionedClients, load
from dpacct.fl.data.partitions import dirichlet
from dpacct.fl.layout import State
from dpacct.fl.tensors import norm
from evidence.cifar_methods.settings import (
    GRID,
    PICTURED,
    ablation_runs,
    budget_runs,
    grid,
    main_runs,
    pgn_runs,
    sam_runs,
    tuned,
)
from evidence.cifar_methods.tables import all_tables
from evidence.pages import add_into, home, put_tables
from evidence.records import Records, Setting, trained

PAGE, RUNS = "cifar_methods/README.md", "cifar_methods/runs.jsonl"
CLIENTS, RATE, DELTA = 500, 0.1, 1 / 500
REPEATS = 3
TURNS, EVERY = 4, 5
EARLY, LATE = (4, 5, 6), (38, 39, 40)
ROLES = ("grid", "main", "budget", "ablation", "sam", "pgn", "time")
cross_entropy = nn.functional.cross_entropy


def network() -> nn.Module:
    """Return two strided convolutions with one pooling between them, and a dense layer."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 5, stride=2, padding=2),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 10),
    )


@cache
def cifar(folder: str) -> tuple[Dataset, Examples, fl.ClientData]:
    """Return the data set, its training images standardized once, and the test images."""
    data = load("cifar10", folder)
    inputs, targets = data.test.batch(slice(None))
    train = Examples(*data.train.batch(slice(None)))
    return data, train, fl.ClientData(inputs, targets)


def population(folder: str, concentration: float, seed: int) -> PartitionedClients:
    """Return 500 clients of 100 images each."""
    data, train, _ = cifar(folder)
    return PartitionedClients(train, dirichlet(data.labels(), CLIENTS, concentration, seed=seed))


def number(setting: Setting, name: str) -> float:
    """Return a number of a setting."""
    return float(setting[name] or 0)


def method_of(setting: Setting) -> fl.Method:
    """Return the method with the options of a setting, written "name=value, ..."."""
    pairs = [text.split("=") for text in str(setting["options"]).split(", ") if text]
    options = {name: True if value == "True" else float(value) for name, value in pairs}
    return fl.METHODS[str(setting["method"])](**options)


def local_training(setting: Setting) -> fl.SGD:
    """Return one epoch, or for a method with full participation, one step on 10 images."""
    rate = number(setting, "lr")
    if method_of(setting).everyone_computes:
        return fl.SGD(lr=rate, steps=1, batch_size=10)
    momentum = float(setting.get("local_momentum") or 0)
    return fl.SGD(lr=rate, epochs=1, batch_size=25, momentum=momentum)


def federation(
    folder: str, setting: Setting, model: nn.Module, method: fl.Method, **privacy: Any
) -> fl.Federation:
    """Return a private run of a setting: no seed, so cohorts and noise are fresh."""
    return fl.Federation(
        model,
        cross_entropy,
        population(folder, number(setting, "concentration"), int(number(setting, "run"))),
        method=method,
        clip_norm=None if method.bound else number(setting, "clip_norm"),
        sampling=fl.Poisson(RATE),
        rounds=int(number(setting, "rounds")),
        local=local_training(setting),
        server_lr=number(setting, "server_lr"),
        server=fl.Momentum(number(setting, "momentum")) if "momentum" in setting else None,
        vectorize=False,
        **privacy,
    )


def started(setting: Setting) -> nn.Module:
    """Return the network before training, alike in all methods with one run number."""
    torch.manual_seed(int(number(setting, "run")))  # pyright: ignore[reportUnknownMemberType]
    return network()


@dataclass
class Norms:
    """Norms of all raw updates of a run, by round. They are private: for simulations alone."""

    seen: dict[int, list[float]]

    def watch(self, method: fl.Method) -> fl.Method:
        """Return the same method, with its updates recorded before they are bounded."""
        update = method.local_update

        def seen_update(delta: Tensor, client_state: State | None, context: fl.Context) -> Tensor:
            sent = update(delta, client_state, context)
            self.seen.setdefault(context.round, []).append(round(float(norm(sent)), 4))
            return sent

        # The dataclass is frozen, and its clients are trained one at a time, so this is enough.
        object.__setattr__(method, "local_update", seen_update)
        return method

    def of(self, rounds: tuple[int, ...]) -> list[float]:
        """Return the values of a few rounds together, ascending."""
        return sorted(length for each in rounds for length in self.seen.get(each, []))


def play(folder: str, setting: Setting, models: Path | None = None) -> dict[str, Any]:
    """Train a setting. For the methods in the pictures, keep norms and weights."""
    model = started(setting)
    test = cifar(folder)[2]
    pictured = setting["role"] == "main" and setting["method"] in PICTURED
    norms = Norms({})
    method = norms.watch(method_of(setting)) if pictured else method_of(setting)
    budget = Budget(number(setting, "epsilon"), DELTA)
    with federation(folder, setting, model, method, budget=budget) as run:

        def accuracy() -> float:
            if pictured and models is not None:
                torch.save(model.state_dict(), models / model_file(setting, run.round))
            return 100 * fl.evaluate(model, cross_entropy, test).accuracy

        result = trained(run, accuracy, every=EVERY)
    if pictured:
        result |= {"norms_early": norms.of(EARLY), "norms_late": norms.of(LATE)}
    return shortened(result)


def model_file(setting: Setting, round_number: int) -> str:
    """Return the file with the weights of a main run after some round."""
    return f"{setting['method']}-{setting['concentration']}-{setting['run']}-{round_number}.pt"


def shortened(result: dict[str, Any]) -> dict[str, Any]:
    """Round the history to four places, but no proven figure."""
    result["accuracy"] = round(result["accuracy"], 2)
    result["seconds_per_round"] = round(result["seconds_per_round"], 4)
    for row in result["history"]:
        row.update({name: round(row[name], 4) for name in row if name != "epsilon"})
    return result


def play_in_turn(folder: str, records: Records) -> dict[str, Any]:
    """Return processor seconds of each method for 50 or all 500 clients, one round each in turn."""
    rounds: dict[str, list[float]] = {method: [] for method in GRID}
    with torch.random.fork_rng(devices=[]):  # pyright: ignore[reportUnknownMemberType]
        setting = {"role": "time", "concentration": 0.6, "run": 0}
        settings = {m: {**setting, "method": m, **tuned(records, m), "rounds": TURNS} for m in GRID}
        runs = {
            m: federation(
                folder, each, started(each), method_of(each), noise_multiplier=1.0, delta=DELTA
            )
            for m, each in settings.items()
        }
        going: dict[str, Iterator[fl.RoundReport]] = {m: iter(run) for m, run in runs.items()}
        for turn in range(TURNS):
            for method, reports in going.items():
                began = time.process_time()
                seen = next(reports).diagnostics
                seconds = time.process_time() - began
                # The first round also chooses how to train.
                if turn and method_of(settings[method]).everyone_computes:
                    rounds[method].append(seconds)
                elif turn:
                    rounds[method].append(seconds * CLIENTS * RATE / max(seen.cohort_size, 1))
    return {method: round(statistics.median(all_of), 4) for method, all_of in rounds.items()}


def tables(records: Records) -> dict[str, str]:
    """Return the tables of the page."""
    return all_tables(records)


def main() -> None:
    """Run the missing settings, then write tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--only", choices=[*ROLES, "tables"])
    parser.add_argument("--models", type=Path)
    add_into(parser)
    given = parser.parse_args()
    torch.set_num_threads(1)
    folder = home(given.into, PAGE)
    records = Records(folder / RUNS)

    def wanted(role: str) -> bool:
        return given.only in (None, role)

    def trains(setting: Setting) -> dict[str, Any]:
        return play(given.folder, setting, given.models)

    if wanted("grid"):
        # DP-FedAvg comes first. The other methods begin with its result.
        records.need([s for s in grid(records) if s["method"] == "dp-fedavg"], trains)
        records.need(grid(records), trains)
    for run in range(REPEATS):
        if wanted("main"):
            records.need(main_runs(records, run), trains)
    if wanted("budget"):
        records.need(budget_runs(records), trains)
    for role, settings in (("ablation", ablation_runs), ("sam", sam_runs), ("pgn", pgn_runs)):
        if wanted(role):
            records.need([s for run in range(REPEATS) for s in settings(records, run)], trains)
    if wanted("time"):
        times = [{"role": "time", "repeat": repeat} for repeat in range(2)]
        records.need(times, lambda _: play_in_turn(given.folder, records))
    put_tables(folder / PAGE, tables(records))


if __name__ == "__main__":
    main()
