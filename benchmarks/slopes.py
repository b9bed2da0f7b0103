"""How processor time grows with the size of a question, one axis after the other.

``python -m benchmarks.slopes``. Each line is one axis: the time at each value, and between
neighbors the slope of log time against log value. A slope far above 1 is a cliff.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from functools import reduce
from operator import add

import numpy as np

import dpacct
from benchmarks.measure import processor_seconds, table
from dpacct import Epoch, Poisson, Round, Schedule, Uniform
from dpacct.rounds import Phase

# Times below this are those of any call.
LEAST = 0.01
DELTA = 1e-5


def noises(count: int) -> list[float]:
    """Return so many different noise multipliers."""
    return np.linspace(1.0, 2.0, count).tolist()


def of_kinds(count: int) -> Schedule:
    """Return one Poisson round of each of so many noises."""
    return Schedule(Phase(Round(z, Poisson(0.01)), 1) for z in noises(count))


def of_epochs(count: int) -> Schedule:
    """Return one epoch of each of so many noises."""
    return reduce(add, (1 * Epoch(z, 100) for z in noises(count)))


AXES: dict[str, tuple[Sequence[float], Callable[[float], dpacct.Interval]]] = {
    "Poisson(.1), rounds": (
        (1e2, 1e3, 1e4, 1e5, 1e6, 1e7),
        lambda n: dpacct.epsilon(int(n) * Round(2.0, Poisson(0.1)), delta=DELTA),
    ),
    "Poisson(.01), different noises": (
        (1, 10, 100, 1e3, 1e4, 1e5),
        lambda n: dpacct.epsilon(of_kinds(int(n)), delta=DELTA),
    ),
    "1,000 rounds, 1 / rate": (
        (1e1, 1e2, 1e3, 1e4, 1e5, 1e6),
        lambda n: dpacct.epsilon(1000 * Round(1.0, Poisson(1 / n)), delta=DELTA),
    ),
    "Poisson(.1), 1 / delta": (
        (1e3, 1e6, 1e9, 1e12, 1e15),
        lambda n: dpacct.epsilon(300 * Round(1.3, Poisson(0.1)), delta=1 / n),
    ),
    "10 epochs, steps": (
        (1e1, 1e2, 1e3, 1e4, 1e5),
        lambda n: dpacct.epsilon(10 * Epoch(1.0, int(n)), delta=DELTA),
    ),
    "epochs of 100 steps, all equal": (
        (1, 10, 100, 1e3, 1e4),
        lambda n: dpacct.epsilon(int(n) * Epoch(2.0, 100), delta=DELTA),
    ),
    "epochs of 100 steps, all different": (
        (1, 3, 10, 30),
        lambda n: dpacct.epsilon(of_epochs(int(n)), delta=DELTA),
    ),
    "20 of 1,000 clients, rounds": (
        (1, 10, 100, 1e3, 1e4),
        lambda n: dpacct.epsilon(int(n) * Round(4.0, Uniform(20, 1000)), delta=DELTA),
    ),
    "100 rounds of 20 clients, clients": (
        (40, 100, 1e3, 1e4, 1e5),
        lambda n: dpacct.epsilon(100 * Round(2.0, Uniform(20, int(n))), delta=DELTA),
    ),
    "1 of so many clients, 300 rounds": (
        (10, 100, 1e3, 1e4),
        lambda n: dpacct.epsilon(300 * Round(1.0, Uniform(1, int(n))), delta=DELTA),
    ),
}


def main() -> None:
    """Print times, and slopes between neighbors."""
    rows: list[list[str]] = []
    for name, (values, ask) in AXES.items():
        times: list[float] = []
        for value in values:
            _, spent = processor_seconds(lambda v=value, a=ask: a(v).upper, 1)
            times.append(max(spent, LEAST))
            print(f"{name} {value:g}: {spent:.2f} s", file=sys.stderr, flush=True)
        sizes = zip(values[1:], values, times[1:], times, strict=False)
        slopes = [math.log(t / s) / math.log(b / a) for b, a, t, s in sizes]
        shown = " ".join(f"{v:g}:{t:.2f}" for v, t in zip(values, times, strict=True))
        rows.append([name, shown, f"{max(slopes):.2f}"])
    print(table("processor seconds by size", ["", "size:seconds", "steepest"], rows))


if __name__ == "__main__":
    main()
