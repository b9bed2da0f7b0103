"""Widths of the brackets and time of a calibration over the whole range of Poisson sampling.

Usage: python -m benchmarks.poisson_range [SETTINGS] [SEED]. About two minutes for 200.

Rates, noise multipliers, rounds and deltas are drawn evenly on logarithmic axes. A setting counts
if it costs anything at all. delta is computed at the epsilon of that setting, and at one up to
three times as large or as small. Times are processor times. Then ten thousand different rounds are
calibrated.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from random import Random

import dpacct
from benchmarks.measure import processor_seconds, table
from dpacct import Poisson, Round, Schedule
from dpacct.rounds import Phase

RATES, NOISES, ROUNDS, DELTAS = (1e-7, 1.0), (0.05, 1000.0), (1.0, 1e7), (1e-20, 0.5)
WIDTHS, SECONDS = (1e-6, 1e-3), 1.0
SETTINGS, SEED = 200, 13
DISTINCT = 10_000
# A delta that is proven to be at most this is known well enough.
NOTHING = 1e-290
# No calibration to a larger epsilon than this.
LARGEST = 1e6


def main(count: int = SETTINGS, seed: int = SEED) -> None:
    """Measure and print."""
    random = Random(seed)  # noqa: S311 - settings need not be secret
    # Of its own, so that settings stay the same.
    factors = Random(seed + 1)  # noqa: S311
    widths, epsilons, calibrations = list[float](), list[float](), list[float]()
    delta_widths = list[float]()
    worst: list[tuple[float, list[str]]] = []
    while len(widths) < count:
        q, z, rounds, delta = (_drawn(random, e) for e in (RATES, NOISES, ROUNDS, DELTAS))
        many = max(1, round(rounds))
        plan = many * Round(z, Poisson(q))
        upper, seconds = processor_seconds(lambda p=plan, d=delta: _epsilon(p, d), 1)
        if upper <= 0.0:
            continue
        spent = dpacct.epsilon(plan, delta=delta)
        widths.append((spent.upper - spent.lower) / spent.upper)
        epsilons.append(seconds)
        for at in (upper, upper * 3 ** factors.uniform(-1.0, 1.0)):
            lost = dpacct.delta(plan, epsilon=at)
            known = lost.upper <= NOTHING
            delta_widths.append(0.0 if known else (lost.upper - lost.lower) / lost.upper)
        took = 0.0
        if upper < LARGEST:
            took = processor_seconds(lambda u=upper, d=delta, n=many, r=q: _noise(u, d, n, r), 1)[1]
        calibrations.append(took)
        cells = [f"{q:.3g}", f"{z:.3g}", f"{many}", f"{delta:.2g}", f"{upper:.6g}"]
        worst.append((took, [*cells, f"{widths[-1]:.2g}", f"{seconds:.2f}", f"{took:.2f}"]))
    rows = [
        [f"{name} wider than {limit:g}", f"{_share(found, limit):.1%}", f"{max(found):.2g}"]
        for name, found in (("epsilon", widths), ("delta", delta_widths))
        for limit in WIDTHS
    ]
    slow = _share(calibrations, SECONDS)
    rows.append([f"calibrations above {SECONDS:g} s", f"{slow:.1%}", f"{max(calibrations):.1f} s"])
    rows.append(["epsilon above 0.2 s", f"{_share(epsilons, 0.2):.1%}", f"{max(epsilons):.2f} s"])
    print(table(f"{count} settings, seed {seed}", ["", "share", "largest"], rows))
    header = ["q", "z", "rounds", "delta", "epsilon", "width", "epsilon [s]", "calibration [s]"]
    slowest = [cells for _, cells in sorted(worst, key=lambda row: row[0], reverse=True)[:8]]
    print(table("slowest calibrations", header, slowest))
    distinct()


def distinct(rounds: int = DISTINCT) -> None:
    """Calibrate the scale of the noise of rounds that all differ, and print the cost."""
    plan = Schedule(
        [
            Phase(Round(1.2 + 0.3 * math.sin(k / 1000), Poisson(0.02 * 4.0 ** (-k / rounds))), 1)
            for k in range(rounds)
        ]
    )
    factor, seconds = processor_seconds(
        lambda: dpacct.calibrate(schedule=plan, epsilon=8.0, delta=1e-5).noise_scale, 1
    )
    print(f"{rounds} distinct rounds: noise scale {factor:.7g} in {seconds:.1f} s")


def _drawn(random: Random, ends: tuple[float, float]) -> float:
    low, high = ends
    return low * (high / low) ** random.random()


def _epsilon(plan: dpacct.Schedule, delta: float) -> float:
    return dpacct.epsilon(plan, delta=delta).upper


def _noise(epsilon: float, delta: float, rounds: int, rate: float) -> float:
    found = dpacct.calibrate(epsilon=epsilon, delta=delta, rounds=rounds, sampling_rate=rate)
    return found.noise_multiplier


def _share(values: Sequence[float], limit: float) -> float:
    return sum(value > limit for value in values) / len(values)


if __name__ == "__main__":
    main(*(int(argument) for argument in sys.argv[1:3]))
