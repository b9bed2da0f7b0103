"""Noise for epsilon 8, by Renyi and by exact composition, and schedules of many distinct rounds."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import dpacct
from benchmarks.measure import processor_seconds, table
from dpacct import Poisson, Round, Schedule
from dpacct.budget import Budget
from dpacct.interop import DpAccountingPld, DpAccountingRdp, OpacusPrv, OpacusRdp, installed_peers
from dpacct.packages import install_command
from dpacct.rounds import AccountantName, Phase
from dpacct.schedules.shapes import linear

ROUNDS, RATE = 300, 0.1
BUDGET = Budget(epsilon=8, delta=1e-5)
REPEATS = 7
GOAL = {DpAccountingRdp().name: "at least 20x", OpacusRdp().name: "-"}
MANY = 10_000
HEADER = ["", "answer", "processor time", "theirs / ours", "goal"]


def ours(accountant: AccountantName) -> float:
    """Return our noise multiplier."""
    found = dpacct.calibrate(
        epsilon=BUDGET.epsilon,
        delta=BUDGET.delta,
        rounds=ROUNDS,
        sampling_rate=RATE,
        accountant=accountant,
    )
    return found.noise_multiplier


def main() -> None:
    """Measure and print."""
    by_renyi()
    print()
    exactly()
    print()
    distinct_rounds()
    if not installed_peers():
        print(f"  {install_command('interop')} brings dp-accounting and Opacus to compare with")


def by_renyi() -> None:
    """Run one calibration by each Renyi accountant."""
    noise, mine = processor_seconds(lambda: ours("rdp"), REPEATS)
    rows = [["dpacct rdp", f"{noise:.6f}", f"{1000 * mine:.1f} ms", "1x", ""]]
    for peer in installed_peers():
        if isinstance(peer, DpAccountingRdp | OpacusRdp):

            def call(peer: DpAccountingRdp | OpacusRdp = peer) -> float:
                return peer.noise_multiplier(BUDGET, ROUNDS, RATE)

            found, theirs = processor_seconds(call, REPEATS)
            cells = [f"{found:.6f}", f"{1000 * theirs:.1f} ms", f"{theirs / mine:.1f}x"]
            rows.append([peer.name, *cells, GOAL[peer.name]])
    print(
        table(
            f"calibrate by Renyi: eps {BUDGET.epsilon:g}, delta {BUDGET.delta:g}, {ROUNDS} rounds, "
            f"q {RATE:g}, Poisson, add-remove (the best of several)",
            HEADER,
            rows,
        )
    )


def exactly() -> None:
    """Run one calibration by each accountant that composes distributions of losses."""
    noise, mine = processor_seconds(lambda: ours("tight"), REPEATS)
    rows = [["dpacct tight", f"{noise:.6f}", f"{1000 * mine:.1f} ms", "1x", "at most 1.28601"]]
    peers: list[tuple[str, str, Callable[[], float], str]] = [
        (DpAccountingPld().name, "dp_accounting", dp_accounting_noise, "at least 200x"),
        (OpacusPrv().name, "opacus", opacus_noise, "-"),
    ]
    for name, package, call, goal in peers:
        if find_spec(package) is not None:
            found, theirs = processor_seconds(call, 3)
            cells = [f"{found:.6f}", f"{1000 * theirs:.1f} ms", f"{theirs / mine:.0f}x"]
            rows.append([name, *cells, goal])
    print(
        table(
            f"calibrate by exact composition: eps {BUDGET.epsilon:g}, delta {BUDGET.delta:g}, "
            f"{ROUNDS} rounds, q {RATE:g}, Poisson, add-remove (the best of several)",
            HEADER,
            rows,
        )
    )


def dp_accounting_noise() -> float:
    """Return the noise that dp-accounting's own calibration finds with its loss distributions."""
    library, pld = import_module("dp_accounting"), import_module("dp_accounting.pld")

    def event(noise: float) -> Any:
        sampled = library.PoissonSampledDpEvent(RATE, library.GaussianDpEvent(noise))
        return library.SelfComposedDpEvent(sampled, ROUNDS)

    return float(
        library.calibrate_dp_mechanism(pld.PLDAccountant, event, BUDGET.epsilon, BUDGET.delta)
    )


def opacus_noise() -> float:
    """Return the noise that Opacus' own calibration finds with its random variables."""
    found = import_module("opacus.accountants.utils").get_noise_multiplier(
        target_epsilon=BUDGET.epsilon,
        target_delta=BUDGET.delta,
        sample_rate=RATE,
        steps=ROUNDS,
        accountant="prv",
    )
    return float(found)


def distinct_rounds() -> None:
    """Calibrate schedules in which all rounds differ."""
    plan = linear(ROUNDS, 1.0, 1.6, Poisson(RATE))
    spent, mine = processor_seconds(lambda: _epsilon(plan), REPEATS)
    rows = [[f"dpacct, epsilon of {ROUNDS}", f"{spent:.6f}", f"{1000 * mine:.1f} ms", "1x", ""]]
    if find_spec("dp_accounting") is not None:
        # Minutes: once is enough.
        peer = DpAccountingPld()
        found, theirs = processor_seconds(lambda: peer.epsilon(plan, BUDGET.delta), 1)
        cells = [f"{found:.6f}", f"{theirs:.1f} s", f"{theirs / mine:.0f}x", "at least 300x"]
        rows.append([f"{peer.name}, the same", *cells])
    many = _many_rounds()
    ours_alone: list[tuple[str, Callable[[], float], str]] = [
        (f"dpacct, noise scale of {ROUNDS}", lambda: _scale(plan), "below 1 s"),
        (f"dpacct, epsilon of {MANY}", lambda: _epsilon(many), "below 5 s"),
        (f"dpacct, noise scale of {MANY}", lambda: _scale(many), "below 5 s"),
    ]
    for name, call, goal in ours_alone:
        found, seconds = processor_seconds(call, 3)
        rows.append([name, f"{found:.6f}", f"{seconds:.2f} s", "-", goal])
    print(
        table(
            f"distinct rounds, Poisson, delta {BUDGET.delta:g}: {ROUNDS} with noise 1.0 to 1.6 at "
            f"q {RATE:g}; {MANY} in which noise and rate vary",
            HEADER,
            rows,
        )
    )


def _epsilon(plan: Schedule) -> float:
    return dpacct.epsilon(plan, delta=BUDGET.delta).upper


def _scale(plan: Schedule) -> float:
    return dpacct.calibrate(schedule=plan, epsilon=BUDGET.epsilon, delta=BUDGET.delta).noise_scale


def _many_rounds() -> Schedule:
    """Return noise swings between 0.9 and 1.5 while the rate falls from 0.02 to 0.005."""
    return Schedule(
        [
            Phase(Round(1.2 + 0.3 * math.sin(k / 1000), Poisson(0.02 * 4.0 ** (-k / MANY))), 1)
            for k in range(MANY)
        ]
    )
