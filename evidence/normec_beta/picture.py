"""The pictures of the page on NormEC: accuracy over rounds, one panel for each beta."""

from __future__ import annotations

import statistics
from importlib import import_module
from pathlib import Path
from typing import Any

from dpacct.pictures import Curve, Drawing, Level, Panel, Picture
from evidence.normec_beta.grid import BETAS, NORMEC, TITLES, best_gamma, setting_of
from evidence.normec_beta.scale import CELLS, CLIENTS, DATA
from evidence.records import Records

# Test accuracy of guessing among ten classes, and the one that the paper prints at its scale.
CHANCE, PUBLISHED = 10.0, 70.0
# Room for the legends.
TOPS = {"mnist": 135.0, "cifar": 72.0}
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
    """Draw the last accuracy over beta, at the best gamma, in a panel for each setting."""
    panels: list[Panel] = []
    for data, clients, noise, title in ROWS:
        lines: list[Curve] = []
        for method, name in TITLES.items():
            ends: list[list[float]] = []
            for beta in BETAS:
                gamma = best_gamma(records, data, clients, noise, method, beta)
                runs = curves(records, setting_of(data, clients, noise, method, beta, gamma))
                ends.append([values[-1] for _, values in runs])
            means, worst = [statistics.mean(some) for some in ends], [min(some) for some in ends]
            lines.append(Curve(name, BETAS, means, worst))
        panels.append(Panel("beta", f"{title}: test accuracy [%]", tuple(lines), log_x=True))
    title = "A larger beta helps NormEC without noise, and hurts it at epsilon 8"
    note = (
        "Accuracy after 300 rounds, at the best gamma of the grid for each beta. Lines are means "
        "over runs. Bands reach down to the worst run."
    )
    Drawing(Picture(title, tuple(panels), note)).save(path, replace=True)


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
    """Draw the runs at the published scale: one band a cell that leaves chance, the rest gray."""
    named: list[Curve] = []
    others: list[Curve] = []
    ends: list[float] = []
    for noise, method, beta, gamma in CELLS:
        runs = curves(records, setting_of(DATA, CLIENTS, noise, method, beta, gamma))
        for rounds, values in runs:
            ends.append(values[-1])
            others.append(Curve("", rounds, values, plain=True))
        last = sum(values[-1] for _, values in runs) / len(runs)
        if last > 2 * CHANCE:
            del others[-len(runs) :]
            low, high = (
                [f(pair) for pair in zip(*(values for _, values in runs), strict=True)]
                for f in (min, max)
            )
            words = f"{TITLES[method]}, {NOISES[noise][0]}, beta {beta:g}: {last:.0f} %"
            named.append(Curve(words, runs[0][0], high, low))
    panel = Panel(
        "round",
        "test accuracy [%]",
        (*others, *named),
        levels=(Level(PUBLISHED, f"published: about {PUBLISHED:g} %"),),
    )
    title = (
        f"At the published scale, no run comes near {PUBLISHED:g} %: the best ends at "
        f"{max(ends):.1f} %"
    )
    note = (
        f"ResNet-20 on CIFAR-10, {CLIENTS} clients. A band reaches from the worse run of a cell to "
        "the better one, the figure is their mean. Gray: runs of all other cells, which stay at "
        "chance."
    )
    Drawing(Picture(title, (panel,), note)).save(path, replace=True)


def finish(axes: Any, title: str, top: float) -> None:
    """Set title, grid and legend of a panel, the legend above the highest line."""
    axes.set_title(title, fontsize=9)
    axes.grid(color="0.92")
    axes.set_ylim(0, top)
    axes.set_yticks(range(0, 101 if top > 100 else 61, 20))
    axes.legend(fontsize=7.5, frameon=False, loc="upper left")
