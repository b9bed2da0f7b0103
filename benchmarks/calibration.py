"""The noise for epsilon 8 by Renyi: what we and our peers find, and how long that takes."""

from __future__ import annotations

from collections.abc import Callable

import dpacct
from benchmarks.measure import median_seconds, table
from dpacct.budget import Budget
from dpacct.interop import DpAccountingRdp, OpacusRdp, installed_peers

ROUNDS, RATE = 300, 0.1
BUDGET = Budget(epsilon=8, delta=1e-5)
REPEATS = 7
GOAL = {DpAccountingRdp().name: "at least 20x", OpacusRdp().name: "-"}


def ours() -> float:
    """Our noise multiplier."""
    found = dpacct.calibrate(
        epsilon=BUDGET.epsilon,
        delta=BUDGET.delta,
        rounds=ROUNDS,
        sampling_rate=RATE,
        accountant="rdp",
    )
    return found.noise_multiplier


def main() -> None:
    """Measure and print."""
    calls: dict[str, Callable[[], float]] = {"dpacct rdp": ours}
    for peer in installed_peers():
        if isinstance(peer, DpAccountingRdp | OpacusRdp):
            calls[peer.name] = lambda peer=peer: peer.noise_multiplier(BUDGET, ROUNDS, RATE)
    seconds = median_seconds(calls, REPEATS)
    mine = seconds["dpacct rdp"]
    print(
        table(
            f"calibrate by Renyi: eps {BUDGET.epsilon:g}, delta {BUDGET.delta:g}, {ROUNDS} rounds, "
            f"q {RATE:g}, Poisson, add-remove (median of {REPEATS})",
            ["", "noise multiplier", "time", "theirs / ours", "goal"],
            [
                [
                    name,
                    f"{call():.6f}",
                    f"{1000 * seconds[name]:.1f} ms",
                    f"{seconds[name] / mine:.1f}x",
                    GOAL.get(name, ""),
                ]
                for name, call in calls.items()
            ],
        )
    )
    if len(calls) == 1:
        print("  pip install 'dpacct[interop]' brings dp-accounting and Opacus to compare with")
