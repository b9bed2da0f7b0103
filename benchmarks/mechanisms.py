"""Mixed schedules: our brackets and seconds beside the upper bounds of dp-accounting.

Usage: python -m benchmarks.mechanisms. Times are processor times of one call, after imports.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from typing import Any

import dpacct
from benchmarks.measure import processor_seconds, table
from dpacct import (
    ApproximateDP,
    DiscreteGaussian,
    DiscreteLaplace,
    ExponentialMechanism,
    Laplace,
    Poisson,
    RandomizedResponse,
    Round,
    Schedule,
    ZeroConcentratedDP,
)

common: Any = import_module("dp_accounting.pld.common")
privacy_loss_distribution: Any = import_module("dp_accounting.pld.privacy_loss_distribution")
PLD = privacy_loss_distribution.PrivacyLossDistribution
# The peer's default.
INTERVAL = 1e-4

SGD = 1000 * Round(1.0, Poisson(0.01))
COUNTS = 20 * Laplace(epsilon=0.1)


def _sgd() -> PLD:
    return privacy_loss_distribution.from_gaussian_mechanism(
        1.0, sampling_prob=0.01, value_discretization_interval=INTERVAL
    ).self_compose(1000)


def _laplace(noise: float, count: int) -> PLD:
    return privacy_loss_distribution.from_laplace_mechanism(
        noise, value_discretization_interval=INTERVAL
    ).self_compose(count)


def _response(epsilon: float, count: int) -> PLD:
    # The chance that the answer is drawn at random among two.
    noise = 2 / (1 + math.exp(epsilon))
    return privacy_loss_distribution.from_randomized_response(
        noise, 2, value_discretization_interval=INTERVAL
    ).self_compose(count)


def _promise(epsilon: float, delta: float) -> PLD:
    return privacy_loss_distribution.from_privacy_parameters(
        common.DifferentialPrivacyParameters(epsilon, delta),
        value_discretization_interval=INTERVAL,
    )


def _discrete_gaussian(scale: float, count: int) -> PLD:
    return privacy_loss_distribution.from_discrete_gaussian_mechanism(
        scale, value_discretization_interval=INTERVAL
    ).self_compose(count)


def _discrete_laplace(scale: float, shift: int, count: int) -> PLD:
    return privacy_loss_distribution.from_discrete_laplace_mechanism(
        1 / scale, sensitivity=shift, value_discretization_interval=INTERVAL
    ).self_compose(count)


def _project() -> PLD:
    parts = (_laplace(10.0, 20), _response(0.5, 1), _promise(0.2, 1e-7))
    whole = _sgd()
    for part in parts:
        whole = whole.compose(part)
    return whole


# Name, schedule, delta, and the peer's distribution, None where it has no such mechanism.
SETTINGS: tuple[tuple[str, Schedule, float, Callable[[], PLD] | None], ...] = (
    ("20 Laplace(.1)", COUNTS, 1e-5, lambda: _laplace(10.0, 20)),
    ("1000 Poisson(.01) z 1 + 20 Laplace(.1)", SGD + COUNTS, 1e-5,
     lambda: _sgd().compose(_laplace(10.0, 20))),
    ("... + RR(.5) + (.2, 1e-7)",
     SGD + COUNTS + RandomizedResponse(0.5) + ApproximateDP(0.2, 1e-7), 1e-5, _project),
    ("20 RR(.5)", 20 * RandomizedResponse(0.5), 1e-5, lambda: _response(0.5, 20)),
    ("10^4 Laplace(.01)", 10_000 * Laplace(epsilon=0.01), 1e-12, lambda: _laplace(100.0, 10_000)),
    ("3 Laplace(50)", 3 * Laplace(epsilon=50.0), 1e-6, lambda: _laplace(0.02, 3)),
    ("100 discrete Gaussian(10)", 100 * DiscreteGaussian(10.0), 1e-6,
     lambda: _discrete_gaussian(10.0, 100)),
    ("20 discrete Laplace(2), shift 3", 20 * DiscreteLaplace(2.0, shift=3), 1e-6,
     lambda: _discrete_laplace(2.0, 3, 20)),
    ("20 exponential(.5)", 20 * ExponentialMechanism(0.5), 1e-5, None),
    ("zCDP .81", 1 * ZeroConcentratedDP(0.81), 1e-10, None),
)  # fmt: skip


def main() -> None:
    """Measure and print."""
    dpacct.epsilon(SGD + COUNTS + ZeroConcentratedDP(0.1), delta=1e-3)
    rows: list[list[str]] = []
    for name, plan, delta, peer in SETTINGS:

        def ours(plan: Schedule = plan, delta: float = delta) -> float:
            return dpacct.epsilon(plan, delta=delta).upper

        _, seconds = processor_seconds(ours, 1)
        found = dpacct.epsilon(plan, delta=delta)
        cells = [f"{delta:g}", f"{found.lower:.7f}", f"{found.upper:.7f}", f"{seconds:.3f}"]
        if peer is None:
            cells += ["-", "-"]
        else:

            def theirs(peer: Callable[[], PLD] = peer, delta: float = delta) -> float:
                return peer().get_epsilon_for_delta(delta)

            answer, took = processor_seconds(theirs, 1)
            cells += [f"{answer:.7f}", f"{took:.2f}"]
        rows.append([name, *cells])
    header = ["schedule", "delta", "lower", "upper", "s", "dp-accounting", "s"]
    print(table("epsilon of mixed schedules", header, rows))


if __name__ == "__main__":
    main()
