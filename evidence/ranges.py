"""Widths and costs of bounds at random settings of the whole range.

``python -m evidence.ranges poisson|epochs [SETTINGS] [FOLDER] [SEED]`` writes range.csv to FOLDER,
draws range.png and prints quantiles. Settings are drawn evenly on logarithmic axes. Warnings are
errors. Times are processor times. Ctrl-C ends a scan with partial results. With 0 settings,
range.csv is read and drawn again.

- ``poisson``: rates, noises, rounds and deltas whose achieved epsilon lies between 1e-4 and 1e4.
  The calibration finds the noise for this epsilon.
- ``epochs``: random allocation. Epochs count once more as one: there a contour integral of the
  tests is the truth (NaN below 8 steps, where it does not apply).
"""

from __future__ import annotations

import csv
import math
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from random import Random

import dpacct
from dpacct import DpacctError, Epoch, Poisson, Round
from dpacct.pictures import Curve, Drawing, Level, Panel, Picture
from tests.oracles.allocation import epoch_delta

RATES, NOISES, ROUNDS = (1e-7, 1.0), (0.1, 1000.0), (1.0, 1e7)
DELTAS, EPSILONS = (1e-20, 0.5), (1e-4, 1e4)
EPOCH_NOISES, STEPS, EPOCHS, EPOCH_DELTAS = (0.7, 10.0), (2, 1000), (1, 100), (1e-8, 1e-3)
GOAL = 1e-3  # Widest bracket of epochs
QUANTILES = (0.5, 0.75, 0.9, 0.95, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class Scanned:
    """One setting of Poisson sampling. ``width`` is relative to the upper end."""

    rate: float
    noise: float
    rounds: int
    delta: float
    lower: float = math.nan
    upper: float = math.nan
    width: float = math.nan
    seconds: float = 0.0
    calibration_seconds: float = 0.0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class ScannedEpochs:
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

    @property
    def is_inside(self) -> bool:
        """The oracle's delta lies in the bracket: it subtracts e^eps from e^eps."""
        error = 1e-11 * math.exp(self.epsilon_of_one) + 1e-6 * self.delta_truth
        return self.delta_lower - error <= self.delta_truth <= self.delta_upper + error


def drawn(random: Random, ends: tuple[float, float]) -> float:
    """Return a number between two ends, evenly on a logarithmic axis."""
    return math.exp(random.uniform(math.log(ends[0]), math.log(ends[1])))


def scan_poisson(count: int, seed: int) -> Iterator[Scanned]:
    """Yield settings with an achieved epsilon in range, or with an error."""
    random = Random(seed)  # noqa: S311 - settings need not be secret
    kept = 0
    while kept < count:
        rate, noise, delta = (drawn(random, ends) for ends in (RATES, NOISES, DELTAS))
        rounds = max(1, round(drawn(random, ROUNDS)))
        start = time.process_time()
        try:
            spent = dpacct.epsilon(rounds * Round(noise, Poisson(rate)), delta=delta)
            middle = time.process_time()
            if not EPSILONS[0] <= spent.lower <= EPSILONS[1]:
                continue
            dpacct.calibrate(epsilon=spent.upper, delta=delta, rounds=rounds, sampling_rate=rate)
        except (DpacctError, ArithmeticError, ValueError, Warning) as error:
            problem = f"{type(error).__name__}: {error}"
            yield Scanned(rate, noise, rounds, delta, problem=problem)
        else:
            took = middle - start, time.process_time() - middle
            width = spent.width / spent.upper
            yield Scanned(rate, noise, rounds, delta, spent.lower, spent.upper, width, *took)
        kept += 1


def scan_epochs(count: int, seed: int) -> Iterator[ScannedEpochs]:
    """Yield settings of random allocation."""
    random = Random(seed)  # noqa: S311 - settings need not be secret
    for _ in range(count):
        noise, delta = drawn(random, EPOCH_NOISES), drawn(random, EPOCH_DELTAS)
        steps, epochs = round(drawn(random, STEPS)), round(drawn(random, EPOCHS))
        start = time.process_time()
        spent = dpacct.epsilon(epochs * Epoch(noise, steps), delta=delta)
        seconds = time.process_time() - start
        # Where one epoch has about this delta, but not less than the oracle can tell.
        level = dpacct.epsilon(1 * Epoch(noise, steps), delta=max(delta, 1e-7)).upper
        one = dpacct.delta(1 * Epoch(noise, steps), epsilon=level)
        truth = max(epoch_delta(level, noise, steps)) if steps >= 8 else math.nan
        width = (spent.upper - spent.lower) / spent.upper if spent.upper else 0.0
        yield ScannedEpochs(
            noise, steps, epochs, delta, spent.lower, spent.upper, width, seconds,
            level, one.lower, truth, one.upper,
        )  # fmt: skip


def points(
    rows: Sequence[dict[str, str]], x: str, y: str, noises: tuple[float, float]
) -> list[Curve]:
    """Return two curves of points: settings with other noise, then those with noise in a range."""
    inside = [noises[0] <= float(row["noise"]) <= noises[1] for row in rows]
    parts = [
        [row for row, kept in zip(rows, inside, strict=True) if kept is one]
        for one in (False, True)
    ]
    return [
        Curve("", [float(row[x]) for row in part], [float(row[y]) for row in part], points=True)
        for part in parts
    ]


def drawing(kind: str, rows: Sequence[dict[str, str]]) -> Drawing:
    """Draw the relative widths of the bounds, and of Poisson sampling the times of calibrations."""
    width = "width of the bounds: (upper - lower) / upper of epsilon"
    if kind == "epochs":
        wide = max(float(row["width"]) for row in rows)
        title = (
            f"Random allocation: in {len(rows)} settings the bounds are at most {wide:.1g} apart"
        )
        note = "Circles: noise multipliers below 2; squares: from 2. 1 to 100 epochs, add-remove."
        x, noises, axes = "steps", (2.0, math.inf), [("steps of an epoch", width, "width", GOAL)]
    else:
        sharp = sum(float(row["width"]) <= 1e-6 for row in rows)
        title = f"In {sharp} of {len(rows)} settings the bounds agree to 1e-6; the others "
        title += "have rates below 0.01"
        note = "Squares: noise multipliers from 0.3 to 3; circles: others. Poisson, add-remove."
        x, noises = "rate", (0.3, 3.0)
        seconds = "processor time of a calibration [s]", "calibration_seconds", 1.0
        axes = [("sampling rate", width, "width", 1e-6), ("sampling rate", *seconds)]
    panels = [
        Panel(
            across, up, points(rows, x, y, noises),
            levels=[Level(goal, "goal")], log_x=True, log_y=True,
        )
        for across, up, y, goal in axes
    ]  # fmt: skip
    return Drawing(Picture(title, panels, note))


def main(arguments: Sequence[str]) -> None:
    """Scan, print and write."""
    kind, count, folder, seed = [*arguments, *("poisson", "200", ".", "1")[len(arguments) :]]
    scan = {"poisson": scan_poisson, "epochs": scan_epochs}[kind]
    found: list[Scanned | ScannedEpochs] = []
    with warnings.catch_warnings(), suppress(KeyboardInterrupt):
        warnings.simplefilter("error")
        found.extend(scan(int(count), int(seed)))
    if found:
        with Path(folder, "range.csv").open("w", newline="", encoding="utf-8") as file:
            rows = csv.writer(file)
            rows.writerow(field.name for field in fields(found[0]))
            rows.writerows(astuple(setting) for setting in found)
    with Path(folder, "range.csv").open(newline="", encoding="utf-8") as file:
        read = list(csv.DictReader(file))
    drawing(kind, read).save(Path(folder, "range.png"), replace=True)
    for name in ("width", "seconds", "calibration_seconds"):
        values = sorted(float(row[name]) for row in read if name in row)
        cuts = [values[math.ceil(share * len(values)) - 1] for share in QUANTILES if values]
        print(name, *(f"{cut:.2g}" for cut in cuts))
    print(*sorted(read, key=lambda row: -float(row["width"]))[:5], sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
