"""Random settings of Poisson sampling, some hostile, against a grid that shares no code."""

from __future__ import annotations

import math

import numpy as np
import pytest

import dpacct
from dpacct.rounds import Poisson, Round
from tests.oracles import loss_grid
from tests.oracles.answers import known

# (rate, noise, rounds, delta) of replaced clients that were wide, or told two stories.
HOSTILE = [
    (2e-5, 1.0, 1000, 1e-6),
    (1.397e-5, 0.60737, 154, 1e-6),
    (1e-5, 0.3, 100, 1e-6),
    (4.5e-5, 1.23, 2, 1e-5),
    (1.485e-6, 0.3797, 16, 7.3e-7),
]


def drawn(number: int) -> list[tuple[float, float, int, float]]:
    generator = np.random.default_rng(2026)
    found: list[tuple[float, float, int, float]] = []
    for _ in range(number):
        rate = math.exp(generator.uniform(math.log(1e-6), math.log(0.9)))
        noise = math.exp(generator.uniform(math.log(0.25), math.log(8.0)))
        rounds = round(math.exp(generator.uniform(0.0, math.log(1500.0))))
        # Not so large that nothing is spent.
        most = min(0.5 * rate * rounds, 0.1)
        found.append((rate, noise, rounds, most * 10 ** generator.uniform(-6.0, -0.5)))
    return [case for case in found if case[3] > 1e-12]


CASES = [*HOSTILE, *drawn(32)]
# Largest relative widths of epsilon and of delta; where only few rounds in many participate,
# losses are nearly atoms, and the contour is wide.
WIDTHS = (1e-6, 1e-5)
WIDER = {
    ("add-remove", 1): (5e-6, 2e-5),
    ("add-remove", 3): (6e-5, 6e-5),
    ("add-remove", 4): (2e-2, 6e-3),
    ("add-remove", 9): (8e-6, 4e-5),
    ("add-remove", 11): (6e-6, 2e-5),
    ("add-remove", 12): (1e-4, 3e-4),
    ("add-remove", 36): (3e-6, 1e-5),
    ("replace-one", 1): (2e-6, 1e-5),
    ("replace-one", 3): (1e-5, 2e-4),
    # Nothing bounds delta(eps) here but delta(0).
    ("replace-one", 4): (2e-2, 33.0),
    ("replace-one", 9): (2e-6, 1e-5),
}


@pytest.mark.sampled(5)
@pytest.mark.parametrize("case", range(len(CASES)))
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_a_grid_agrees(case, adjacency):
    rate, noise, rounds, delta = CASES[case]
    plan = rounds * Round(noise, Poisson(rate), adjacency)
    found = dpacct.epsilon(plan, delta=delta)
    width, width_of_delta = WIDER.get((adjacency, case), WIDTHS)
    assert found.width <= width * found.upper
    if found.upper > 0.0:
        # Of the size of epsilon, and the same whatever its last digits are.
        size = float(f"{found.upper:.1e}")
        grid = (rate, noise, rounds, delta, size / (10 * max(rounds, 100)), 2.0 * size)
        kinds = ["replace"] if adjacency == "replace-one" else ["remove", "add"]
        bounds = [known(loss_grid.epsilons, kind, *grid) for kind in kinds]
        low, high = (max(side) for side in zip(*bounds, strict=True))
        assert low * (1 - 1e-6) <= found.upper
        assert found.lower <= high * (1 + 1e-6)
        back = dpacct.delta(plan, epsilon=found.upper)
        assert back.lower * (1 - 1e-9) <= delta
        assert delta <= back.upper * (1 + width_of_delta)
        assert back.width <= width_of_delta * delta
