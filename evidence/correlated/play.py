"""Cohorts that take turns, with correlated noise, beside cohorts that are sampled.

``python -m evidence.correlated.play FOLDER [--only STAGE]`` with ``femnist_writers.npz`` in the
folder. Client-level privacy, zero-out a writer, delta = N^-1.1, equal proven epsilon. Cohorts have
the same planned size. Each method and epsilon is tuned on the same grid, one run a setting, on the
test set of data that anybody may download. The comparison then makes three fresh runs.
"""

from __future__ import annotations

import argparse
import statistics
from functools import cache
from pathlib import Path
from typing import Any

from dpacct import Budget, Poisson, fl
from dpacct.correlated import Strategy, Workload, buffered_toeplitz, independent, optimized
from dpacct.fl.models import cross_entropy
from evidence.natural_clients.runs import model_of, population
from evidence.pages import add_into, home, markdown, put_tables
from evidence.records import Records, Setting, spread, trained
from evidence.strokes import stroke

PAGE, RUNS = "correlated/README.md", "correlated/runs.jsonl"
PICTURE = "correlated/picture.png"
ROUNDS, BUFFERS, CLIP_NORM, EVERY = 64, 3, 1.0, 8
# A client takes part 8 times, or 4 times.
GROUPS = (8, 16)
EPSILONS = (2, 8)
REPEATS = 3
METHODS = {
    "poisson": "sampled, independent noise (DP-FedAvg)",
    "independent": "in turn, independent noise",
    "banded": "in turn, banded (DP-FTRL)",
    "buffered": "in turn, 3 buffers (BLT)",
}
# Server learning rates without momentum, and with momentum 0.9.
GRID = ((0.3, 0.0), (0.6, 0.0), (1.2, 0.0), (0.05, 0.9), (0.1, 0.9), (0.2, 0.9))


@cache
def strategy_of(method: str, groups: int, momentum: float) -> Strategy:
    """Return the strategy of a method that takes turns, for its server's momentum if it can be."""
    if method == "independent":
        return independent(ROUNDS)
    if method == "banded":
        return optimized(ROUNDS, groups, groups, workload=Workload(momentum=momentum))
    return buffered_toeplitz(ROUNDS, BUFFERS, min_separation=groups)


def play(setting: Setting, folder: Path) -> dict[str, Any]:
    """Return one run with fresh noise."""
    wanted: dict[str, Any] = dict(setting)
    people = population("femnist", folder)
    model = model_of("logistic", people.data, wanted["run"])
    test, momentum, groups = people.tests["accuracy"], wanted["momentum"], wanted["groups"]
    in_turn = wanted["method"] != "poisson"
    strategy = strategy_of(wanted["method"], groups, momentum) if in_turn else None
    with fl.Federation(
        model,
        cross_entropy,
        people.clients,
        clip_norm=CLIP_NORM,
        sampling=fl.Cyclic(groups) if in_turn else Poisson(1 / groups),
        noise=None if strategy is None else fl.CorrelatedNoise(strategy),
        rounds=ROUNDS,
        local=fl.SGD(lr=0.3, epochs=2, batch_size=20),
        server_lr=wanted["server_lr"],
        server=fl.Momentum(momentum) if momentum else None,
        budget=Budget(wanted["epsilon"], len(people.clients) ** -1.1),
        vectorize=True,
    ) as run:
        found = trained(
            run,
            lambda: 100 * fl.evaluate(model, cross_entropy, test).accuracy,
            every=EVERY,
        )
        found["cohort_size"] = run.engine.plan.cohort_size
    keys = ("round", "accuracy", "clipped")
    found["history"] = [{k: float(f"{row[k]:.5g}") for k in keys} for row in found["history"]]
    return found


def setting_of(
    stage: str, groups: int, method: str, epsilon: int, place: int, run: int
) -> dict[str, Any]:
    """Return one run's setting, with rate and momentum at a place of the grid."""
    rate, momentum = GRID[place]
    return {
        "stage": stage,
        "groups": groups,
        "method": method,
        "epsilon": epsilon,
        "server_lr": rate,
        "momentum": momentum,
        "run": run,
    }


def tuning() -> list[Setting]:
    """Return the grid for each number of groups, method and epsilon."""
    return [
        setting_of("tuning", groups, method, epsilon, place, 0)
        for groups in GROUPS
        for place in range(len(GRID))
        for epsilon in EPSILONS
        for method in METHODS
    ]


def best(records: Records, groups: int, method: str, epsilon: int) -> int | None:
    """Return the place of the grid with the best accuracy, None before it is played."""
    scores: dict[int, float] = {}
    for place in range(len(GRID)):
        for value in records.values(
            "accuracy", **setting_of("tuning", groups, method, epsilon, place, 0)
        ):
            scores[place] = value
    return max(scores, key=lambda place: scores[place]) if len(scores) == len(GRID) else None


def comparison(records: Records) -> list[Setting]:
    """Return fresh runs of each method at each epsilon, with its best setting."""
    found: list[Setting] = []
    for groups in GROUPS:
        for run in range(1, REPEATS + 1):
            for epsilon in EPSILONS:
                for method in METHODS:
                    place = best(records, groups, method, epsilon)
                    if place is not None:
                        found.append(setting_of("comparison", groups, method, epsilon, place, run))
    return found


def tables(records: Records) -> dict[str, str]:
    """Return the tables of the page, from the recorded runs alone."""
    compared: list[list[str]] = []
    for groups in GROUPS:
        for epsilon in EPSILONS:
            for method, title in METHODS.items():
                wanted: dict[str, Any] = {"groups": groups, "method": method, "epsilon": epsilon}
                own = [r for r in records if r.matches(stage="comparison", **wanted)]
                if not own:
                    continue
                told, result = own[0].setting, own[0].result
                row = [str(ROUNDS // groups), str(epsilon), title]
                row += [f"{result['noise_multiplier']:.3f}"]
                row += [f"{told['server_lr']:g}", f"{told['momentum']:g}"]
                compared.append([*row, spread([r.result["accuracy"] for r in own])])
    tuned = [
        [
            str(record.setting["groups"]),
            METHODS[record.setting["method"]],
            str(record.setting["epsilon"]),
            f"{record.setting['server_lr']:g}",
            f"{record.setting['momentum']:g}",
            f"{record.result['noise_multiplier']:.3f}",
            f"{record.result['accuracy']:.2f}",
        ]
        for record in records
        if record.matches(stage="tuning")
    ]
    rates = ["server rate", "momentum"]
    header = ["participations", "epsilon", "cohorts and noise", "noise multiplier", *rates]
    tuning_header = ["groups", "cohorts and noise", "epsilon", *rates, "noise multiplier"]
    return {
        "accuracy": markdown([*header, "accuracy"], compared),
        "tuning": markdown([*tuning_header, "accuracy"], tuned),
    }


def draw(records: Records, file: Path) -> None:
    """Draw mean accuracy over the rounds, one panel for each number of groups and epsilon."""
    from matplotlib import pyplot as plt  # noqa: PLC0415 - tables need no pictures

    count = len(GROUPS) * len(EPSILONS)
    figure, panels = plt.subplots(1, count, figsize=(3.4 * count, 4.2), sharey=True)
    for number, panel in enumerate(panels):
        groups, epsilon = GROUPS[number // len(EPSILONS)], EPSILONS[number % len(EPSILONS)]
        for place, (method, title) in enumerate(METHODS.items()):
            wanted: dict[str, Any] = {"groups": groups, "method": method, "epsilon": epsilon}
            own = [r for r in records if r.matches(stage="comparison", **wanted)]
            histories = [record.result["history"] for record in own]
            if not histories:
                continue
            rounds = [point["round"] for point in histories[0]]
            values = [[point["accuracy"] for point in history] for history in histories]
            columns, strokes = list(zip(*values, strict=True)), stroke(place)
            panel.plot(rounds, [statistics.mean(own) for own in columns], **strokes, label=title)
            low, high = [min(own) for own in columns], [max(own) for own in columns]
            panel.fill_between(rounds, low, high, color=strokes["color"], alpha=0.1)
        panel.set(xlabel="round", title=f"{ROUNDS // groups} participations, epsilon {epsilon}")
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("test accuracy in percent")
    panels[-1].legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(file, dpi=110)  # pyright: ignore[reportUnknownMemberType]
    plt.close(figure)


def main() -> None:
    """Run the missing settings, then write the tables and the picture."""
    reading = argparse.ArgumentParser(description=__doc__)
    reading.add_argument("folder", type=Path)
    reading.add_argument("--only", choices=("tuning", "comparison"))
    add_into(reading)
    told = reading.parse_args()
    folder = home(told.into, PAGE)
    records = Records(folder / RUNS)
    if told.only != "comparison":
        records.need(tuning(), lambda setting: play(setting, told.folder))
    if told.only != "tuning":
        records.need(comparison(records), lambda setting: play(setting, told.folder))
    put_tables(folder / PAGE, tables(records))
    draw(records, folder / PICTURE)


if __name__ == "__main__":
    main()
