"""The picture of the comparison on MNIST: accuracy over real epsilon, one curve a smoothing."""

from __future__ import annotations

import statistics
from importlib import import_module
from pathlib import Path
from typing import Any

from evidence.mnist_smoothing.runs import (
    INPUTS,
    LABELS,
    PRINTED_EPSILONS,
    PUBLISHED,
    SAMPLINGS,
    THEOREM,
    TIGHT,
)
from evidence.records import Records

COLORS = {None: "0.6", 0: "black", 1: "#0072b2", 2: "#e69f00", 3: "#009e73"}
DASHES: dict[int | None, Any] = {None: (0, (4, 1, 1, 1, 1, 1)), 0: "-", 1: "--", 2: "-.", 3: ":"}
TICKS = (0.5, 1, 2, 3, 6, 9)

Point = tuple[float, float, float]


def points(
    records: Records, smoothing: int | None, sampling: str, inputs: str, key: str
) -> list[Point]:
    """Return proven epsilon, mean accuracy and deviation for each target, by rising epsilon."""
    wanted = {"smoothing": smoothing, "sampling": sampling, "inputs": inputs, "order": "OIHW"}
    found: dict[float, list[float]] = {}
    for record in records:
        if key in record.setting and record.matches(**wanted):
            found.setdefault(record.result["epsilon"], []).append(record.result["accuracy"])
    return sorted(
        (spent, statistics.mean(some), statistics.stdev(some) if len(some) > 1 else 0.0)
        for spent, some in found.items()
    )


def panel(axes: Any, records: Records, sampling: str, inputs: str) -> None:
    """Draw one sampler and one way to feed the pixels, published points and ours."""
    for place, (smoothing, label) in enumerate(LABELS.items()):
        # Side by side, so that the bars of one epsilon are distinct.
        shift = 1 + 0.03 * (place - 2)
        theorem = points(records, smoothing, sampling, inputs, THEOREM)
        tight = points(records, smoothing, sampling, inputs, TIGHT)
        line = sorted([*theorem, *tight])
        if not line:
            continue
        color = COLORS[smoothing]
        axes.plot(
            [shift * spent for spent, _, _ in line],
            [accuracy for _, accuracy, _ in line],
            color=color,
            linestyle=DASHES[smoothing],
            linewidth=1.4,
            label=label,
        )
        for some, face in ((theorem, color), (tight, "white")):
            axes.errorbar(
                [shift * spent for spent, _, _ in some],
                [accuracy for _, accuracy, _ in some],
                [deviation for _, _, deviation in some],
                linestyle="none",
                marker="o",
                markersize=5,
                color=color,
                markerfacecolor=face,
                elinewidth=0.9,
            )
        if inputs == "standardized" and smoothing is not None:
            axes.plot(
                # Digits are wider than dots.
                [(shift**2.5) * spent for spent, _, _ in theorem],
                [accuracy for accuracy, _ in PUBLISHED[sampling][smoothing]][: len(theorem)],
                marker=f"${smoothing}$",
                color=color,
                markersize=7,
                markeredgewidth=0.3,
                linestyle="none",
            )


def draw(path: Path, records: Records) -> None:
    """Draw four panels, with samplers in columns and inputs in rows."""
    # An extra that only the picture needs.
    figure: Any = import_module("matplotlib.figure").Figure(
        figsize=(11, 8.5), layout="constrained", dpi=100
    )
    grid = figure.subplots(2, 2, sharex=True, sharey="row")
    for row, inputs in zip(grid, INPUTS, strict=True):
        for axes, sampling in zip(row, SAMPLINGS, strict=True):
            panel(axes, records, sampling, inputs)
            axes.set_ylabel("test accuracy [%]")
            axes.set_title(f"{sampling} cohorts, {inputs} inputs", fontsize=11)
            axes.set_xscale("log")
            axes.set_xticks(TICKS, [f"{tick:g}" for tick in TICKS])
            axes.minorticks_off()
            axes.grid(color="0.92")
            spent = [x for x, _, _ in points(records, 0, sampling, "unit", THEOREM)]
            for printed, place in zip(PRINTED_EPSILONS, spent, strict=False):
                axes.axvline(place, color="0.75", linestyle=":", linewidth=0.9, zorder=0)
                axes.annotate(
                    str(printed),
                    (place, 0.01),
                    xycoords=("data", "axes fraction"),
                    ha="center",
                    fontsize=8,
                    color="0.4",
                )
    for axes in grid[-1]:
        axes.set_xlabel("proven epsilon (small figures: epsilon that the theorem states)")
    handles, labels = grid[0, 0].get_legend_handles_labels()
    for marker, face, label in (
        ("o", "0.3", "noise of the theorem"),
        ("o", "white", "tight noise"),
        ("$1$", "0.3", "published, theorem (a digit is the smoothing)"),
    ):
        handle = import_module("matplotlib.lines").Line2D(
            [], [], color="0.3", marker=marker, markerfacecolor=face, linestyle="none"
        )
        handles.append(handle)
        labels.append(label)
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path)
