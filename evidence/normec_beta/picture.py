"""The pictures of the page on NormEC: accuracy over rounds, one panel for each beta."""

from __future__ import annotations

from importlib import import_module
from pathlib import Path
from typing import Any

from evidence.normec_beta.grid import BETAS, FEDAVG, NORMEC, TITLES, best_gamma, setting_of
from evidence.normec_beta.scale import CELLS, CLIENTS, DATA
from evidence.records import Records
from evidence.strokes import stroke

# Room for the legends.
TOPS = {"mnist": 135.0, "cifar": 72.0}
STROKES = {
    NORMEC: {"color": "#0072b2", "linestyle": "-"},
    FEDAVG: {"color": "#e69f00", "linestyle": "--"},
}
# FedAvg at a rate beyond the grid.
BEYOND = {"color": "#7f4f00", "linestyle": ":"}
# Rows of the first picture: data, clients, noise, title.
ROWS = (
    ("cifar", 20, "none", "CIFAR-10, 20 clients, no noise"),
    ("mnist", 20, "epsilon 8", "MNIST, 20 clients, epsilon 8"),
    ("mnist", 100, "epsilon 8", "MNIST, 100 clients, epsilon 8"),
)
# Rows of the second: data, title, and its noises. Then the stroke of each noise.
NOISE_ROWS = (
    ("mnist", "MNIST", ("none", "epsilon 8", "printed")),
    ("cifar", "CIFAR-10", ("none", "std on D", "printed")),
)
NOISES = {
    "none": ("no noise", {"color": "#000000", "linestyle": "-"}),
    "epsilon 8": ("epsilon 8", {"color": "#0072b2", "linestyle": "--"}),
    "std on D": ('"std on D", not private', {"color": "#999999", "linestyle": "-."}),
    "printed": ("printed, epsilon 2.1", {"color": "#d55e00", "linestyle": ":"}),
}


def curves(records: Records, wanted: dict[str, Any]) -> list[tuple[list[float], list[float]]]:
    """Return rounds and accuracies of every run of a cell."""
    return [
        (
            [row["round"] for row in record.result["history"]],
            [row["accuracy"] for row in record.result["history"]],
        )
        for record in records
        if record.matches(**wanted)
    ]


def draw_runs(axes: Any, runs: list[tuple[list[float], list[float]]], **style: Any) -> None:
    """Draw one line for each run, with one entry in the legend."""
    label = style.pop("label")
    for rounds, values in runs:
        axes.plot(rounds, values, linewidth=1.4, label=label, **style)
        label = None


def draw_methods(records: Records, path: Path) -> None:
    """Draw both methods at the best gamma of the grid, and FedAvg at a rate beyond it."""
    figure: Any = import_module("matplotlib.figure").Figure(
        figsize=(10, 8.4), layout="constrained", dpi=110
    )
    grid = figure.subplots(len(ROWS), len(BETAS), sharex=True, sharey="row")
    for line, (data, clients, noise, title) in zip(grid, ROWS, strict=True):
        for axes, beta in zip(line, BETAS, strict=True):
            for method, name in TITLES.items():
                gamma = best_gamma(records, data, clients, noise, method, beta)
                runs = curves(records, setting_of(data, clients, noise, method, beta, gamma))
                draw_runs(axes, runs, **STROKES[method], label=f"{name}, gamma {gamma:g}")
            if beta == max(BETAS):
                runs = curves(records, setting_of(data, clients, noise, FEDAVG, beta, 1.0))
                draw_runs(axes, runs, label="FedAvg, gamma 1", **BEYOND)
            finish(axes, f"{title}, beta {beta:g}", TOPS[data])
        line[0].set_ylabel("test accuracy [%]")
    for axes in grid[-1]:
        axes.set_xlabel("round")
    figure.savefig(path)


def draw_noises(records: Records, path: Path) -> None:
    """Draw NormEC with 20 clients under several noises."""
    figure: Any = import_module("matplotlib.figure").Figure(
        figsize=(10, 5.8), layout="constrained", dpi=110
    )
    grid = figure.subplots(len(NOISE_ROWS), len(BETAS), sharex=True, sharey="row")
    for line, (data, title, noises) in zip(grid, NOISE_ROWS, strict=True):
        for axes, beta in zip(line, BETAS, strict=True):
            for noise in noises:
                name, strokes = NOISES[noise]
                gamma = best_gamma(records, data, 20, noise, NORMEC, beta)
                runs = curves(records, setting_of(data, 20, noise, NORMEC, beta, gamma))
                draw_runs(axes, runs, **strokes, label=f"{name}, gamma {gamma:g}")
            finish(axes, f"NormEC, {title}, 20 clients, beta {beta:g}", TOPS[data])
        line[0].set_ylabel("test accuracy [%]")
    for axes in grid[-1]:
        axes.set_xlabel("round")
    figure.savefig(path)


def draw_scale(records: Records, path: Path) -> None:
    """Draw every run at the published scale, one line each."""
    figure: Any = import_module("matplotlib.figure").Figure(
        figsize=(7.5, 4.6), layout="constrained", dpi=110
    )
    axes = figure.subplots()
    for place, (noise, method, beta, gamma) in enumerate(CELLS):
        runs = curves(records, setting_of(DATA, CLIENTS, noise, method, beta, gamma))
        words = NOISES[noise][0]
        label = f"{TITLES[method]}, {words}, beta {beta:g}, gamma {gamma:g}"
        draw_runs(axes, runs, **stroke(place), markersize=4, label=label)
    axes.set_xlabel("round")
    axes.set_ylabel("test accuracy [%]")
    axes.set_xlim(0, 310)
    axes.set_ylim(0, 80)
    axes.axhline(70, color="0.4", linewidth=0.8)
    axes.annotate("published, about 70", (5, 71), fontsize=8)
    axes.grid(color="0.92")
    figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)
    figure.savefig(path)


def finish(axes: Any, title: str, top: float) -> None:
    """Set title, grid and legend of a panel, the legend above the highest line."""
    axes.set_title(title, fontsize=9)
    axes.grid(color="0.92")
    axes.set_ylim(0, top)
    axes.set_yticks(range(0, 101 if top > 100 else 61, 20))
    axes.legend(fontsize=7.5, frameon=False, loc="upper left")
