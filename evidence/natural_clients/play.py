"""Clients as they are by nature: FEMNIST by writer and Shakespeare by speaking role.

``python -m evidence.natural_clients.play FOLDER [--part I/N] [--only STAGE]`` with
``femnist_writers.npz`` and ``shakespeare_roles.json`` in the folder. Client-level privacy,
zero-out a client, Poisson cohorts, delta = N^-1.1. The noise has the same proven epsilon for every
method of a row (no seed: each run is private, and no run repeats). On Shakespeare runs of one
number share starting weights, so methods are paired. On FEMNIST they share only weights of zero, so
an error is that of two samples.

The settings of a data set are the values of `TASKS` in natural_clients_runs.py. Rate and clip norm
of DP-FedAvg come from the grids there, on the test set of data that anybody may download. The other
methods use the same, DP-FedPGN-LS with beta times the clip norm, since it sends beta times the
update.
"""

from __future__ import annotations

import argparse
import math
import statistics
from pathlib import Path
from typing import Any

from dpacct.pictures import Curve, Drawing, Level, Panel, Picture
from evidence.natural_clients.runs import METHODS, TASKS, Task, comparison, play, tuning
from evidence.pages import add_into, home, markdown, put_tables
from evidence.records import Records, spread

PAGE, RUNS = "natural_clients/README.md", "natural_clients/runs.jsonl"
PICTURE = "natural_clients/picture.png"
# Where runs of one number have something in common: weights that are drawn.
PAIRED = ("shakespeare",)


def tables(records: Records) -> dict[str, str]:
    """Return the tables of the page, from the recorded runs alone."""
    found: dict[str, str] = {}
    for name, task in TASKS.items():
        found[f"{name} accuracy"] = _accuracy_table(records, name, task)
        found[f"{name} tuning"] = _tuning_table(records, name)
    found["femnist new writers"] = _new_writers_table(records)
    return found


def _accuracy_table(records: Records, name: str, task: Task) -> str:
    header = ["epsilon", "noise multiplier"]
    header += [f"{METHODS[method][0]}" for method in task.methods]
    header += [f"{METHODS[method][0]} - DP-FedAvg" for method in task.methods[1:]]
    rows: list[list[str]] = []
    for epsilon in (*task.epsilons, None):
        wanted = {"stage": "comparison", "data": name, "epsilon": epsilon}
        noise = records.values("noise_multiplier", **wanted)
        row = [str(epsilon) if epsilon else "almost no noise"]
        row += [f"{statistics.mean(noise):.3f}" if noise else "-"]
        row += [
            spread(records.values("accuracy", **wanted, method=method)) for method in task.methods
        ]
        for method in task.methods[1:]:
            ours, theirs = _by_run(records, wanted, method), _by_run(records, wanted)
            row.append(difference(ours, theirs, paired=name in PAIRED))
        rows.append(row)
    return markdown(header, rows)


def _by_run(
    records: Records, wanted: dict[str, Any], method: str = "dp-fedavg"
) -> dict[int, float]:
    chosen = [record for record in records if record.matches(**wanted, method=method)]
    return {record.setting["run"]: record.result["accuracy"] for record in chosen}


def difference(ours: dict[int, float], theirs: dict[int, float], *, paired: bool) -> str:
    """Return mean over the runs that both have, and its standard error where there are two or more.

    Args:
        paired: runs of one number share starting weights. Where they share nothing, errors of both
            means add up: the deviation of differences that happen to agree says less than nothing.
    """
    runs = sorted(ours.keys() & theirs.keys())
    if not runs:
        return "-"
    one, other = [ours[run] for run in runs], [theirs[run] for run in runs]
    gaps = [a - b for a, b in zip(one, other, strict=True)]
    mean = f"{statistics.mean(gaps):+.2f}"
    if len(gaps) == 1:
        return mean
    apart = statistics.variance(one) + statistics.variance(other)
    variance = statistics.variance(gaps) if paired else apart
    return f"{mean} ({(variance / len(gaps)) ** 0.5:.2f})"


def _tuning_table(records: Records, name: str) -> str:
    rows: list[list[str]] = []
    for record in records:
        if record.matches(stage="tuning", data=name):
            told, result = record.setting, record.result
            last = result["history"][-1]
            rows.append(
                [
                    METHODS[told["method"]][0],
                    told["model"],
                    str(told["epsilon"] or "almost no noise"),
                    *(f"{told[key]:g}" for key in ("lr", "clip_norm", "epochs", "batch_size")),
                    f"{last['norm_median']:.2f}",
                    f"{result['accuracy']:.2f}",
                ]
            )
    header = ["method", "model", "epsilon", "rate", "clip norm", "epochs", "batch size"]
    return markdown([*header, "median norm", "accuracy"], rows)


def _new_writers_table(records: Records) -> str:
    task = TASKS["femnist"]
    rows: list[list[str]] = []
    for epsilon in (*task.epsilons, None):
        wanted = {"stage": "comparison", "data": "femnist", "epsilon": epsilon}
        row = [str(epsilon) if epsilon else "almost no noise"]
        row += [
            spread(records.values("accuracy_new", **wanted, method=method))
            for method in task.methods
        ]
        rows.append(row)
    return markdown(["epsilon", *(METHODS[method][0] for method in task.methods)], rows)


def draw(records: Records, file: Path) -> None:
    """Draw accuracy over epsilon: a panel for each data set, a line for each method."""
    panels: list[Panel] = []
    ahead: list[float] = []
    for name, task in TASKS.items():
        wanted = {"stage": "comparison", "data": name}

        def accuracies(method: str, epsilon: int | None, wanted: Any = wanted) -> list[float]:
            return records.values("accuracy", **wanted, method=method, epsilon=epsilon)

        curves: list[Curve] = []
        for method in task.methods:
            runs = {epsilon: accuracies(method, epsilon) for epsilon in task.epsilons}
            runs = {epsilon: values for epsilon, values in runs.items() if values}
            means = [*map(statistics.mean, runs.values())]
            worst = [*map(min, runs.values())]
            curves.append(Curve(METHODS[method][0], [*map(float, runs)], means, worst))
        ceiling = statistics.mean(accuracies("dp-fedavg", None))
        panels.append(
            Panel(
                "epsilon spent, proven",
                f"{task.title}: test accuracy [%]",
                tuple(curves),
                levels=(Level(ceiling, "DP-FedAvg, almost no noise"),),
                log_x=True,
                from_zero=False,
            )
        )
        plain, *others = (curve.y for curve in curves)
        ahead += [max(each) - base for base, *each in zip(plain, *others, strict=True)]
    most = math.ceil(10 * max(ahead)) / 10
    title = f"At no epsilon does a method beat DP-FedAvg by more than {most:g} points"
    note = "Lines are means over runs. Bands reach down to the worst run. Zero-out a client."
    Drawing(Picture(title, tuple(panels), note)).save(file, replace=True)


def main() -> None:
    """Run the missing settings, then write the tables and the picture."""
    reading = argparse.ArgumentParser(description=__doc__)
    reading.add_argument("folder", type=Path)
    reading.add_argument("--part", default="1/1", help="I/N: every N-th run, from the I-th on")
    reading.add_argument("--only", choices=("tuning", "comparison"))
    add_into(reading)
    told = reading.parse_args()
    index, count = (int(word) for word in told.part.split("/"))
    folder = home(told.into, PAGE)
    records = Records(folder / RUNS, (index - 1, count))
    if told.only != "comparison":
        records.need(tuning(), lambda setting: play(setting, told.folder))
    if told.only != "tuning":
        records.need(comparison(), lambda setting: play(setting, told.folder))
    put_tables(folder / PAGE, tables(records))
    draw(records, folder / PICTURE)


if __name__ == "__main__":
    main()
