"""Widths and costs of the brackets of random allocation, over its whole range.

Usage: python -m evidence.epochs_range.scan [SETTINGS] [FOLDER] [SEED]

Writes range.csv and (with the extra `plot`) range.png to FOLDER. Noise in [0.7, 10], steps in
[2, 1000], epochs in [1, 100] and delta in [1e-8, 1e-3] are drawn evenly on logarithmic axes. Epochs
count once more as one: there a contour integral of the tests is the truth. Warnings are errors.
Times are processor times.
"""

from __future__ import annotations

import csv
import math
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import dpacct
from dpacct import Epoch
from dpacct.packages import install_command
from tests.oracles.allocation import epoch_delta

NOISES, STEPS, EPOCHS, DELTAS = (0.7, 10.0), (2, 1000), (1, 100), (1e-8, 1e-3)
GOAL, SECONDS_GOAL = 1e-3, 1.0


@dataclass(frozen=True, slots=True)
class Scanned:
    """One setting: epsilon of its epochs, and delta of one epoch with the oracle's (or NaN)."""

    noise: float
    steps: int
    epochs: int
    delta: float
    lower: float
    upper: float
    width: float
    seconds: float
    epsilon_of_one: float
    delta_lower: float
    delta_truth: float
    delta_upper: float


def drawn(random: Random, ends: tuple[float, float]) -> float:
    """Return a number between two ends, evenly on a logarithmic axis."""
    return math.exp(random.uniform(math.log(ends[0]), math.log(ends[1])))


def scan(count: int, seed: int) -> Iterator[Scanned]:
    """Yield settings."""
    random = Random(seed)  # noqa: S311 - settings need not be secret
    for _ in range(count):
        noise, delta = drawn(random, NOISES), drawn(random, DELTAS)
        steps, epochs = round(drawn(random, STEPS)), round(drawn(random, EPOCHS))
        start = time.process_time()
        spent = dpacct.epsilon(epochs * Epoch(noise, steps), delta=delta)
        seconds = time.process_time() - start
        # Where one epoch has about this delta, but not less than the oracle can tell.
        level = dpacct.epsilon(1 * Epoch(noise, steps), delta=max(delta, 1e-7)).upper
        one = dpacct.delta(1 * Epoch(noise, steps), epsilon=level)
        truth = max(epoch_delta(level, noise, steps)) if steps >= 8 else math.nan
        width = (spent.upper - spent.lower) / spent.upper if spent.upper else 0.0
        yield Scanned(
            noise, steps, epochs, delta, spent.lower, spent.upper, width, seconds,
            level, one.lower, truth, one.upper,
        )  # fmt: skip


def is_inside(setting: Scanned) -> bool:
    """Return True if the oracle's delta lies in the bracket: it subtracts e^eps from e^eps."""
    error = 1e-11 * math.exp(setting.epsilon_of_one) + 1e-6 * setting.delta_truth
    low, high = setting.delta_lower - error, setting.delta_upper + error
    return low <= setting.delta_truth <= high


def draw(path: Path, settings: Sequence[Scanned]) -> None:
    """Draw width over the steps and over the epochs, colored by the noise."""
    # An extra that only the picture needs.
    figure: Any = import_module("matplotlib.figure").Figure(
        figsize=(10, 4), layout="constrained", dpi=90
    )
    areas = figure.subplots(1, 2, sharey=True)
    noises = [math.log10(setting.noise) for setting in settings]
    widths = [max(setting.width, 1e-8) for setting in settings]
    views = [("steps of an epoch", [s.steps for s in settings])]
    views.append(("epochs", [s.epochs for s in settings]))
    points = None
    for area, (label, places) in zip(areas, views, strict=True):
        points = area.scatter(places, widths, c=noises, s=14, cmap="viridis", alpha=0.8)
        area.axhline(GOAL, color="0.3", linewidth=1, linestyle="--")
        area.set(xscale="log", yscale="log", xlabel=label)
        area.grid(visible=True, alpha=0.25)
    areas[0].set_ylabel("(upper - lower) / upper of epsilon")
    areas[0].set_title(f"{len(settings)} settings of random allocation", loc="left", fontsize=11)
    figure.colorbar(points, ax=areas, shrink=0.8).set_label("log10 of the noise multiplier")
    figure.savefig(path)


def main(arguments: Sequence[str]) -> None:
    """Scan, print and write."""
    count = int(arguments[0]) if arguments else 200
    folder = Path(arguments[1]) if len(arguments) > 1 else Path()
    seed = int(arguments[2]) if len(arguments) > 2 else 1
    folder.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = list(scan(count, seed))
    with (folder / "range.csv").open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(field.name for field in fields(Scanned))
        writer.writerows(astuple(setting) for setting in found)
    known = [s for s in found if not math.isnan(s.delta_truth)]
    outside = [s for s in known if not is_inside(s)]
    widths = sorted(s.width for s in found)
    seconds = sorted(s.seconds for s in found)
    for name, values in (("width", widths), ("seconds", seconds)):
        cuts = [values[math.ceil(share * len(values)) - 1] for share in (0.5, 0.9, 0.99, 1.0)]
        print(name, *(f"{cut:.2g}" for cut in cuts))
    print(f"{len(known)} settings with an oracle, {len(outside)} outside of their bracket")
    wide = sum(w > GOAL for w in widths)
    slow = sum(s > SECONDS_GOAL for s in seconds)
    print(f"{wide} wider than {GOAL:g}, {slow} slower than {SECONDS_GOAL:g} s")
    for setting in sorted(found, key=lambda s: -s.width)[:5]:
        print(setting)
    print(*outside, sep="\n")
    try:
        draw(folder / "range.png", found)
    except ImportError:
        print(f"{install_command('plot')} draws the picture")


if __name__ == "__main__":
    main(sys.argv[1:])
