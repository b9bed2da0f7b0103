"""The figures of `pictures`, drawn from recorded runs."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

from evidence.records import Record, Records
from evidence.strokes import stroke

LOOKED_AT = ("dp-fedavg", "dp-fedsam", "dp-fedpgn", "dp-fedpgn-ls")
STROKES = {name: stroke(place) for place, name in enumerate(LOOKED_AT)}
WHEN = {"norms_early": "rounds 4 to 6", "norms_late": "rounds 38 to 40"}


def draw(
    folder: Path,
    trained: Records,
    records: Records,
    *,
    methods: Sequence[str],
    lengths: Sequence[float],
    plane: Sequence[float],
) -> None:
    """Write every picture next to its page below ``folder``."""
    runs = [record for record in trained if record.matches(role="main")]
    looked = [record for record in records if record.matches(round=40)]
    draw_accuracy(folder, runs)
    draw_norms(folder, runs, methods)
    draw_lines(folder, looked, methods, lengths)
    draw_planes(folder, looked, methods, plane)


def _saved(figure: Any, file: Path, *, below: float = 0.0) -> None:
    """Write a picture of 128 colors, which takes a third of the space."""
    figure.tight_layout(rect=(0, below, 1, 1))
    drawn = BytesIO()
    figure.savefig(drawn, dpi=110)
    picture: Any = Image.open(drawn).convert("RGB")
    picture.quantize(128).save(file, optimize=True)


def draw_accuracy(folder: Path, runs: Sequence[Record]) -> None:
    """Draw accuracy of all methods over rounds and over the epsilon spent until then."""
    figure: Any = Figure(figsize=(11, 8.5))
    axes = figure.subplots(2, 2)
    names = list(dict.fromkeys(str(run.setting["method"]) for run in runs))
    for row, concentration in zip(axes, (0.6, 0.1), strict=True):
        for place, name in enumerate(names, start=len(STROKES)):
            own = [r for r in runs if r.matches(method=name, concentration=concentration)]
            if not own:
                continue
            histories = [run.result["history"] for run in own]
            accuracy = [
                statistics.mean(step["accuracy"] for step in steps)
                for steps in zip(*histories, strict=True)
            ]
            style: Any = {
                **STROKES.get(name, stroke(place)),
                "label": name,
                "linewidth": 2.2 if name in STROKES else 1.0,
                "markersize": 6 if name in STROKES else 4,
            }
            for axis, key in zip(row, ("round", "epsilon"), strict=True):
                axis.plot([step[key] for step in histories[0]], accuracy, **style)
        for axis, key in zip(row, ("round", "proven epsilon spent"), strict=True):
            axis.set_xlabel(key)
            axis.set_ylabel("test accuracy, %")
            axis.set_title(f"Dirichlet {concentration}")
            axis.grid(visible=True, alpha=0.3)
    drawn = axes[0][0].get_legend_handles_labels()
    figure.legend(*drawn, fontsize=9, ncols=5, loc="lower center")
    _saved(figure, folder / "pictures/accuracy.png", below=0.09)


def draw_norms(folder: Path, runs: Sequence[Record], methods: Sequence[str]) -> None:
    """Draw the lengths of the raw updates in units of the clip norm, early and late."""
    figure: Any = Figure(figsize=(11, 6.5))
    axes = figure.subplots(2, 2, sharex=True)
    for row, (when, words) in zip(axes, WHEN.items(), strict=True):
        for axis, concentration in zip(row, (0.6, 0.1), strict=True):
            for name in methods:
                own = [r for r in runs if r.matches(method=name, concentration=concentration)]
                ratios = [
                    norm / run.setting["clip_norm"] for run in own for norm in run.result[when]
                ]
                bins = [0.1 * edge for edge in range(41)]
                axis.hist(
                    ratios,
                    bins,
                    density=True,
                    histtype="step",
                    linewidth=1.8,
                    color=STROKES[name]["color"],
                    linestyle=STROKES[name]["linestyle"],
                    label=name,
                )
            axis.axvline(1, color="gray", linestyle=":")
            axis.set_title(f"Dirichlet {concentration}, {words}", fontsize=10)
            axis.set_ylabel("density")
    for axis in axes[1]:
        axis.set_xlabel("norm of the raw update / clip norm (dotted: beyond it, clipped)")
    axes[0][0].legend(fontsize=9)
    _saved(figure, folder / "pictures/norms.png")


def draw_lines(
    folder: Path, looked: Sequence[Record], methods: Sequence[str], lengths: Sequence[float]
) -> None:
    """Draw loss over the distance along random directions: mean and standard deviation."""
    figure: Any = Figure(figsize=(11, 4.4))
    for axis, concentration in zip(figure.subplots(1, 2), (0.6, 0.1), strict=True):
        for name in methods:
            own = [r for r in looked if r.matches(method=name, concentration=concentration)]
            lines = [line for record in own for line in record.result["lines"]]
            if not lines:
                continue
            middle = [statistics.mean(values) for values in zip(*lines, strict=True)]
            apart = [statistics.stdev(values) for values in zip(*lines, strict=True)]
            axis.plot(lengths, middle, **STROKES[name], label=name)
            low, high = (
                [m + sign * s for m, s in zip(middle, apart, strict=True)] for sign in (-1, 1)
            )
            axis.fill_between(lengths, low, high, color=STROKES[name]["color"], alpha=0.1)
        axis.set_xlabel("distance, in lengths of the filters")
        axis.set_ylabel("training loss")
        axis.set_title(f"Dirichlet {concentration}")
        axis.grid(visible=True, alpha=0.3)
        axis.legend(fontsize=9)
    _saved(figure, folder / "pictures/lines.png")


def draw_planes(
    folder: Path, looked: Sequence[Record], methods: Sequence[str], plane: Sequence[float]
) -> None:
    """Draw the loss in the plane of two random directions: surfaces above, contours below."""
    own = {str(r.setting["method"]): r.result["plane"] for r in looked if "plane" in r.result}
    if not own:
        return
    figure: Any = Figure(figsize=(13, 6.6))
    across, up = np.meshgrid(plane, plane)
    highest = max(max(max(row) for row in losses) for losses in own.values())
    levels = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2]
    shown = [name for name in methods if name in own]
    for place, name in enumerate(shown):
        losses = np.array(own[name])
        surface = figure.add_subplot(2, len(shown), place + 1, projection="3d")
        surface.plot_surface(across, up, losses, cmap="viridis", vmin=1.5, vmax=highest)
        surface.set_zlim(1.5, highest)
        surface.set_xlabel("along the first", fontsize=8, labelpad=0)
        surface.set_ylabel("along the second", fontsize=8, labelpad=0)
        surface.set_xticks((-1, 0, 1))
        surface.set_yticks((-1, 0, 1))
        surface.set_zlabel("training loss", fontsize=8)
        surface.set_title(name)
        surface.tick_params(labelsize=7)
        flat = figure.add_subplot(2, len(shown), len(shown) + place + 1)
        middle = len(plane) // 2
        rise = losses - losses[middle, middle]
        drawn = flat.contour(across, up, rise, levels=levels, cmap="viridis", norm="log")
        flat.clabel(drawn, fontsize=8, fmt="%g")
        flat.plot(0, 0, "k+")
        flat.set_aspect("equal")
        flat.set_xlabel("along the first direction", fontsize=8)
        flat.set_ylabel("along the second", fontsize=8)
    _saved(figure, folder / "pictures/planes.png")
