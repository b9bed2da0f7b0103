"""Epochs, users with several records and truncated cohorts beside their peers, as Markdown.

Usage: python -m benchmarks.epochs. Seconds are processor times of one thread, in process, imports
left out. PLD_accounting and dp-accounting answer where they are installed.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import dpacct
from benchmarks.measure import processor_seconds, table
from dpacct import Epoch, Poisson, Round, Schedule, ShuffledEpoch

# Steps, noise, epochs, delta, and the figures of the remove and the add direction.
ALLOCATION = [
    (100, 1.0, 1, 1e-5, "0.620940 / 0.421953"),
    (10, 2.0, 1, 1e-5, "0.622059 / 0.586421"),
    (1000, 1.0, 10, 1e-6, "0.540054 / 0.522172"),
    (10, 2.0, 30, 1e-5, "3.97590 / 3.93174"),
    (100, 0.8, 1, 1e-6, "1.874823 / 0.675150"),
]
# Printed by their authors or measured before: PLD_accounting 2.0, and opake from above.
PRINTED = {
    (100, 1.0, 1): "[.6085, .6357] in 3.2 s; opake .6233 in 71 s",
    (1000, 1.0, 10): "[.5307, .5509] in 155 s; opake .5791 in 55 s",
}


def ours(schedule: Schedule, delta: float) -> str:
    """Return our bracket and the seconds that it took."""
    found: list[Any] = []

    def answer() -> float:
        found.append(dpacct.epsilon(schedule, delta=delta))
        return found[-1].upper

    _, seconds = processor_seconds(answer, 1)
    bracket = found[0]
    width = (bracket.upper - bracket.lower) / bracket.upper
    return f"[{bracket.lower:.6g}, {bracket.upper:.6g}] {width:.1e} in {seconds:.2f} s"


def peer(noise: float, steps: int, epochs: int, delta: float) -> str:
    """Return the bracket of PLD_accounting and its seconds, or "" where it is not installed."""
    if find_spec("PLD_accounting") is None:
        return ""
    library: Any = import_module("PLD_accounting.random_allocation_api")
    found: list[tuple[float, float]] = []

    def answer() -> float:
        found.append(
            library.gaussian_allocation_epsilon_range(
                delta=delta, sigma=noise, num_steps=steps, num_epochs=epochs
            )
        )
        return 0.0

    _, seconds = processor_seconds(answer, 1)
    upper, lower = found[0]
    return f"[{lower:.4f}, {upper:.4f}] in {seconds:.1f} s"


def dp_accounting_seconds(records: int) -> str:
    """Return the upper bound of dp-accounting for a user with several records, and its seconds."""
    if find_spec("dp_accounting") is None:
        return ""
    pld: Any = import_module("dp_accounting.pld.privacy_loss_distribution")
    binomial: Any = import_module("scipy.stats").binom

    def answer() -> float:
        counts = list(range(records + 1))
        weights = [float(binomial.pmf(j, records, 0.01)) for j in counts]
        one = pld.from_mixture_gaussian_mechanism(
            standard_deviation=1.0, sensitivities=counts, sampling_probs=weights
        )
        return float(one.self_compose(1000).get_epsilon_for_delta(1e-5))

    value, seconds = processor_seconds(answer, 1)
    return f"{value:.6g} in {seconds:.1f} s"


def main(call: Callable[[float, int, int, float], str] = peer) -> None:
    """Print the tables."""
    rows = [
        [
            f"{steps} x {epochs}, z {noise:g}, {delta:g}",
            figures,
            ours(epochs * Epoch(noise, steps), delta),
            call(noise, steps, epochs, delta) or PRINTED.get((steps, noise, epochs), ""),
        ]
        for steps, noise, epochs, delta, figures in ALLOCATION
    ]
    header = ["steps x epochs", "remove / add", "dpacct", "PLD_accounting"]
    print(table("random allocation", header, rows))
    rows = [
        [
            str(k),
            ours(1000 * Round(1.0, Poisson(0.01, records=k)), 1e-5),
            dp_accounting_seconds(k) if k > 1 else "",
        ]
        for k in (1, 2, 4, 8)
    ]
    rows.append(["1000, q 1e-3, z 10", ours(1000 * Round(10.0, Poisson(1e-3, 1000)), 1e-5), ""])
    header = ["records", "dpacct", "dp-accounting"]
    print(table("users with several records, z 1, q .01, 1000 rounds, 1e-5", header, rows))
    printed = {550: "4.83575", 600: "1.83802", 650: "1.82824"}
    rows = [
        [
            str(most),
            ours(1000 * Round(1.0, Poisson(0.01, max_cohort=most, num_clients=50_000)), 1e-5),
            figure,
        ]
        for most, figure in printed.items()
    ]
    header = ["largest cohort", "dpacct", "dp-accounting, printed"]
    print(table("truncated cohorts of 50,000, z 1, q .01, 1000 rounds, 1e-5", header, rows))
    rows = [["20 epochs of 1000", ours(20 * ShuffledEpoch(0.8, 1000), 1e-5)]]
    print(table("shuffled batches, z .8, 1e-5", ["", "dpacct"], rows))


if __name__ == "__main__":
    main()
