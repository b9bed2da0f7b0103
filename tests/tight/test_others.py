"""How far all losses but a large one may add up to below zero, where that is known exactly."""

from __future__ import annotations

import math

import pytest

from dpacct.pairs.dominating import Direction, DominatingPair, SampledGaussianPair
from dpacct.tight.composition import Composition
from dpacct.tight.few_large import Others

RATE, ROUNDS, FULL_NOISE = 0.3, 5, 2.0
# With so little noise every loss under Q is that of who does not take part, but for 1e-22.
LEAST = -ROUNDS * math.log1p(-RATE)


def _others(*, full: bool, epsilon: float = 3.0) -> Others:
    pairs: dict[DominatingPair, int] = {SampledGaussianPair(RATE, 0.05, Direction.REMOVE): ROUNDS}
    if full:
        pairs[SampledGaussianPair(1.0, FULL_NOISE, Direction.REMOVE)] = 1
    return Others(Composition.of(pairs, Direction.REMOVE), epsilon, -10.0)


@pytest.mark.parametrize("share", [-0.1, 0.0, 0.3, 0.6, 0.9, 0.999])
def test_what_usually_happens_is_not_ruled_out(share: float) -> None:
    assert _others(full=False).share_below(share * LEAST) >= 1 - 1e-9


def test_no_sum_is_below_all_least_losses() -> None:
    assert _others(full=False).share_below(1.001 * LEAST) == 0.0


@pytest.mark.parametrize("epsilon", [0.3, 3.0, 300.0])
@pytest.mark.parametrize("room", [0.5, 1.0, 1.7, 2.0, 2.5, 4.0, 6.0])
def test_rounds_of_full_participation_may_go_further(room: float, epsilon: float) -> None:
    precision = FULL_NOISE**-2
    exact = math.erfc((room - LEAST - precision / 2) / math.sqrt(2 * precision)) / 2
    found = _others(full=True, epsilon=epsilon).share_below(room)
    assert found >= exact * (1 - 1e-9) > 0.0


def test_what_hardly_ever_happens_is_next_to_nothing() -> None:
    assert _others(full=True).share_below(6.0) <= 1e-8
    assert _others(full=True).rest() <= 8.0
    assert _others(full=False, epsilon=100.0).rest() >= LEAST
