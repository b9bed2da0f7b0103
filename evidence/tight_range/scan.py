"""Widths and costs of the brackets at random settings of the whole range.

Usage: python -m evidence.tight_range.scan [SETTINGS] [FOLDER] [SEED]

Writes range.csv and (with the extra `plot`) range.png to FOLDER, and prints quantiles and the
worst settings. Ctrl-C ends the scan early with partial results. Rates, noise multipliers, rounds
and deltas are drawn evenly on logarithmic axes. A setting counts if its achieved epsilon is
between 1e-4 and 1e4. Warnings are errors. Times are processor times, so that other programs do not
count.
"""

from __future__ import annotations

import csv
import math
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, fields
from importlib import import_module
from pathlib import Path
from random import Random
from typing import Any

import dpacct
from benchmarks.measure import peak_memory, table
from dpacct import DpacctError, Poisson, Round
from dpacct.packages import install_command

RATES, NOISES, ROUNDS = (1e-7, 1.0), (0.1, 1000.0), (1.0, 1e7)
DELTAS, EPSILONS = (1e-20, 0.5), (1e-4, 1e4)
WIDTH_GOAL, SECONDS_GOAL = 1e-6, 1.0
QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99)
WORST = 8


@dataclass(frozen=True, slots=True)
class Scanned:
    """One setting: its bracket of epsilon, and processor seconds of epsilon and calibration.

    ``width`` is relative to the upper end. The calibration finds the noise for this epsilon.
    """

    rate: float
    noise: float
    rounds: int
    delta: float
    lower: float
    upper: float
    width: float
    seconds: float
    calibration_seconds: float
    problem: str


def drawn(random: Random, ends: tuple[float, float]) -> float:
    """Return a number between two ends, evenly on a logarithmic axis."""
    return math.exp(random.uniform(math.log(ends[0]), math.log(ends[1])))


def scan(count: int, seed: int) -> Iterator[Scanned]:
    """Yield settings with an achieved epsilon in range, or with an error."""
    random = Random(seed)  # noqa: S311 - settings need not be secret
    kept = 0
    while kept < count:
        rate, noise, delta = (drawn(random, ends) for ends in (RATES, NOISES, DELTAS))
        rounds = max(1, round(drawn(random, ROUNDS)))
        found = look_at(rate, noise, rounds, delta)
        if found.problem or EPSILONS[0] <= found.lower <= EPSILONS[1]:
            kept += 1
            yield found


def look_at(rate: float, noise: float, rounds: int, delta: float) -> Scanned:
    """Return one setting."""
    plan = rounds * Round(noise, Poisson(rate))
    start = time.process_time()
    try:
        spent = dpacct.epsilon(plan, delta=delta)
        seconds = time.process_time() - start
    except (DpacctError, ArithmeticError, ValueError, Warning) as error:
        return _failed(rate, noise, rounds, delta, error)
    width = spent.width / spent.upper if spent.upper else 0.0
    calibration = 0.0
    if EPSILONS[0] <= spent.lower <= EPSILONS[1]:
        try:
            start = time.process_time()
            dpacct.calibrate(epsilon=spent.upper, delta=delta, rounds=rounds, sampling_rate=rate)
            calibration = time.process_time() - start
        except (DpacctError, ArithmeticError, ValueError, Warning) as error:
            return _failed(rate, noise, rounds, delta, error)
    return Scanned(
        rate, noise, rounds, delta, spent.lower, spent.upper, width, seconds, calibration, ""
    )


def _failed(rate: float, noise: float, rounds: int, delta: float, error: Exception) -> Scanned:
    problem = f"{type(error).__name__}: {error}"
    return Scanned(rate, noise, rounds, delta, math.nan, math.nan, math.nan, 0.0, 0.0, problem)


def write_csv(path: Path, settings: Sequence[Scanned]) -> None:
    """Write one line per setting."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(field.name for field in fields(Scanned))
        writer.writerows(astuple(setting) for setting in settings)


def draw(path: Path, settings: Sequence[Scanned]) -> None:
    """Draw width and time over the expected participations q T, colored by the noise."""
    # An extra that only the picture needs.
    figure: Any = import_module("matplotlib.figure").Figure(
        figsize=(11, 8), layout="constrained", dpi=110
    )
    axes = figure.subplots(2, 2, sharex="col")
    expected = [setting.rate * setting.rounds for setting in settings]
    views: list[tuple[str, list[float]]] = [
        ("expected participations q T", expected),
        ("noise multiplier z", [setting.noise for setting in settings]),
    ]
    wide = sum(setting.width > WIDTH_GOAL for setting in settings)
    slow = sum(setting.calibration_seconds > SECONDS_GOAL for setting in settings)
    heights: list[tuple[str, list[float], float, str]] = [
        (
            "(upper - lower) / upper of epsilon",
            [max(setting.width, 1e-16) for setting in settings],
            WIDTH_GOAL,
            f"{wide} of {len(settings)} brackets are wider than 1e-6",
        ),
        (
            "processor time of a calibration [s]",
            [max(setting.calibration_seconds, 1e-3) for setting in settings],
            SECONDS_GOAL,
            f"{slow} of {len(settings)} calibrations take longer than 1 s",
        ),
    ]
    rates = [math.log10(setting.rate) for setting in settings]
    points = None
    for line, (label, values, goal, title) in enumerate(heights):
        for column, (axis, places) in enumerate(views):
            area = axes[line][column]
            points = area.scatter(places, values, c=rates, s=14, cmap="viridis", alpha=0.8)
            area.axhline(goal, color="0.3", linewidth=1, linestyle="--")
            area.set(xscale="log", yscale="log")
            area.grid(visible=True, alpha=0.25)
            if line:
                area.set_xlabel(axis)
        axes[line][0].set_ylabel(label)
        axes[line][0].set_title(title, loc="left", fontsize=11)
        axes[line][1].annotate(
            "goal", (1, goal), xycoords=("axes fraction", "data"), ha="right", va="bottom"
        )
    if points is not None:
        bar = figure.colorbar(points, ax=axes, shrink=0.6)
        bar.set_label("log10 of the sampling rate q")
    figure.savefig(path)


def quantiles(settings: Sequence[Scanned]) -> str:
    """Return a table of width and seconds."""
    measured: list[tuple[str, Callable[[Scanned], float]]] = [
        ("width", lambda setting: setting.width),
        ("epsilon [s]", lambda setting: setting.seconds),
        ("calibration [s]", lambda setting: setting.calibration_seconds),
    ]
    rows: list[list[str]] = []
    for name, value in measured:
        values = sorted(map(value, settings))
        cuts = [values[math.ceil(share * len(values)) - 1] for share in QUANTILES]
        cells = [statistics.fmean(values), *cuts, values[-1]]
        rows.append([name, *(f"{cell:.2g}" for cell in cells)])
    header = ["", "mean", *(f"{100 * share:g} %" for share in QUANTILES), "largest"]
    return table(f"{len(settings)} settings", header, rows)


def worst(settings: Sequence[Scanned], title: str, value: Callable[[Scanned], float]) -> str:
    """Return the settings with the largest value."""
    first = sorted(settings, key=value, reverse=True)[:WORST]
    rows = [
        [
            f"{s.rate:.4g}",
            f"{s.noise:.4g}",
            f"{s.rounds}",
            f"{s.delta:.2g}",
            f"[{s.lower:.7g}, {s.upper:.7g}]",
            f"{s.width:.2g}",
            f"{s.seconds:.2f}",
            f"{s.calibration_seconds:.2f}",
        ]
        for s in first
    ]
    header = ["q", "z", "rounds", "delta", "epsilon", "width", "epsilon [s]", "calibration [s]"]
    return table(title, header, rows)


def main(arguments: Sequence[str]) -> None:
    """Scan, print and write."""
    count = int(arguments[0]) if arguments else 300
    folder = Path(arguments[1]) if len(arguments) > 1 else Path()
    seed = int(arguments[2]) if len(arguments) > 2 else 1
    folder.mkdir(parents=True, exist_ok=True)
    found: list[Scanned] = []
    with warnings.catch_warnings(), suppress(KeyboardInterrupt):
        warnings.simplefilter("error")
        for setting in scan(count, seed):
            found.append(setting)
            write_csv(folder / "range.csv", found)
    good = [setting for setting in found if not setting.problem]
    failed = [setting for setting in found if setting.problem]
    print(quantiles(good))
    wide = sum(setting.width > WIDTH_GOAL for setting in good)
    slow = sum(setting.calibration_seconds > SECONDS_GOAL for setting in good)
    print(f"  {wide} wider than {WIDTH_GOAL:g}, {slow} calibrations above {SECONDS_GOAL:g} s")
    print(f"  at most {peak_memory():.0f} MiB of memory")
    print(f"  {len(failed)} failed", *(f"    {setting}" for setting in failed), sep="\n")
    print(worst(good, "widest", lambda setting: setting.width))
    print(worst(good, "slowest calibrations", lambda setting: setting.calibration_seconds))
    print(worst(good, "slowest epsilons", lambda setting: setting.seconds))
    try:
        draw(folder / "range.png", good)
    except ImportError:
        print(f"  {install_command('plot')} draws the picture")


if __name__ == "__main__":
    main(sys.argv[1:])
