"""Width of the bracket and time of a calibration over the whole range of Poisson sampling.

Usage: python -m benchmarks.poisson_range [SETTINGS] [SEED]

Rates, noise multipliers, rounds and deltas are drawn evenly on logarithmic axes; a setting counts
where it costs anything at all. Times are those of the processor.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from random import Random

import dpacct
from benchmarks.measure import processor_seconds, table
from dpacct import Poisson, Round

RATES, NOISES, ROUNDS, DELTAS = (1e-7, 1.0), (0.05, 1000.0), (1.0, 1e7), (1e-20, 0.5)
WIDTHS, SECONDS = (1e-6, 1e-3), 1.0
SETTINGS, SEED = 200, 13
# No calibration to a larger epsilon than this.
LARGEST = 1e6


def main(count: int = SETTINGS, seed: int = SEED) -> None:
    """Measure and print."""
    random = Random(seed)  # noqa: S311 - settings need not be secret
    widths, epsilons, calibrations = list[float](), list[float](), list[float]()
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
        took = 0.0
        if upper < LARGEST:
            took = processor_seconds(lambda u=upper, d=delta, n=many, r=q: _noise(u, d, n, r), 1)[1]
        calibrations.append(took)
        cells = [f"{q:.3g}", f"{z:.3g}", f"{many}", f"{delta:.2g}", f"{upper:.6g}"]
        worst.append((took, [*cells, f"{widths[-1]:.2g}", f"{seconds:.2f}", f"{took:.2f}"]))
    rows = [
        [f"wider than {limit:g}", f"{_share(widths, limit):.1%}", f"{max(widths):.2g}"]
        for limit in WIDTHS
    ]
    slow = _share(calibrations, SECONDS)
    rows.append([f"calibrations above {SECONDS:g} s", f"{slow:.1%}", f"{max(calibrations):.1f} s"])
    rows.append(["epsilon above 0.2 s", f"{_share(epsilons, 0.2):.1%}", f"{max(epsilons):.2f} s"])
    print(table(f"{count} settings, seed {seed}", ["", "share", "largest"], rows))
    header = ["q", "z", "rounds", "delta", "epsilon", "width", "epsilon [s]", "calibration [s]"]
    slowest = [cells for _, cells in sorted(worst, key=lambda row: row[0], reverse=True)[:8]]
    print(table("slowest calibrations", header, slowest))


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
