"""Tables and picture of `natural_clients`, from its runs."""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

from dpacct.pictures import Curve, Drawing, Level, Panel, Picture
from dpacct.reproduce import Records, spread
from evidence.pages import markdown

# Where runs of one number have something in common: weights that are drawn.
METHODS = {
    "dp-fedavg": "DP-FedAvg", "dp-fed-ls": "DP-Fed-LS", "dp-fedpgn-ls": "DP-FedPGN-LS",
    "dp-fedsam": "DP-FedSAM",
}  # fmt: skip


class Task(NamedTuple):
    """A data set, with its epsilons and methods."""

    title: str
    epsilons: tuple[int, ...]
    methods: tuple[str, ...]


TASKS = {
    "femnist": Task("FEMNIST, 105 writers", (4, 8, 16), tuple(METHODS)),
    "shakespeare": Task("Shakespeare, 1134 roles", (2, 4, 8, 16), tuple(METHODS)[:3]),
}
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
    header += [f"{METHODS[method]}" for method in task.methods]
    header += [f"{METHODS[method]} - DP-FedAvg" for method in task.methods[1:]]
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
                    METHODS[told["method"]],
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
    return markdown(["epsilon", *(METHODS[method] for method in task.methods)], rows)


def draw(records: Records) -> Drawing:
    """Draw accuracy over epsilon: a panel for each data set, a line for each method."""
    panels: list[Panel] = []
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
            curves.append(Curve(METHODS[method], [*map(float, runs)], means, worst))
        ceiling = statistics.mean(accuracies("dp-fedavg", None))
        level = Level(ceiling, "DP-FedAvg, almost no noise")
        label = f"{task.title}: test accuracy [%]"
        axes: Any = {"levels": (level,), "log_x": True, "from_zero": False}
        panels.append(Panel("epsilon spent, proven", label, tuple(curves), **axes))
    title = "At no epsilon does a method beat DP-FedAvg by more than 1.9 points"
    note = "Lines are means over runs. Bands reach down to the worst run. Zero-out a client."
    return Drawing(Picture(title, tuple(panels), note))


PICTURES = {"picture.png": draw}
