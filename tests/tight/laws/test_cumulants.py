"""Cumulants of tilted losses against derivatives of the proven log-moment."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dpacct.pairs.dominating import Direction, DominatingPair, SampledGaussianPair, SymmetrizedPair
from dpacct.tight.composition import Composition
from tests.strategies import log_uniform

REMOVE, ADD = Direction.REMOVE, Direction.ADD


def check(composition: Composition, tilt: float, rounds: float, accuracy: float) -> None:
    """K by its bounds, K' and K'' by central differences; ``accuracy`` is that of one round."""
    found = composition.cumulants(tilt)
    step = 1e-3 * tilt
    values: list[float] = []
    for at in (tilt - step, tilt, tilt + step):
        bounds = composition.log_moment(at)
        values.append(float(bounds.lower + bounds.upper) / 2)
    low, value, high = values
    off = accuracy * rounds
    assert found.log_moment == pytest.approx(value, rel=1e-7, abs=off)
    assert found.mean == pytest.approx((high - low) / (2 * step), rel=1e-4, abs=off)
    doubt = 1e-12 * max(map(abs, values)) / step**2
    bend = (high - 2 * value + low) / step**2
    assert found.variance == pytest.approx(bend, rel=1e-3, abs=doubt + off)


MIXED: dict[DominatingPair, int] = {
    SampledGaussianPair(0.1, 1.3, REMOVE): 100,
    SampledGaussianPair(0.9, 4.0, REMOVE): 7,
    SampledGaussianPair(1.0, 20.0, REMOVE): 3,
}
CASES: list[tuple[dict[DominatingPair, int], Direction, float]] = [
    (MIXED, REMOVE, 3.0),
    (MIXED, REMOVE, 0.1),
    ({SampledGaussianPair(0.1, 1.3, ADD): 100}, ADD, 3.0),
    ({SampledGaussianPair(1e-3, 0.5, ADD): 10**6}, ADD, 40.0),
    ({SampledGaussianPair(1e-4, 3.0, REMOVE): 10**6}, REMOVE, 60.0),
    ({SymmetrizedPair(0.05, 1.2): 200}, REMOVE, 2.0),
    ({SymmetrizedPair(0.5, 10.0): 30, SampledGaussianPair(0.1, 2.0, ADD): 5}, ADD, 5.0),
    ({SampledGaussianPair(1.0, 3.0, REMOVE): 8}, REMOVE, 1.0),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_cumulants_are_the_derivatives_of_the_log_moment(case: int) -> None:
    pairs, direction, tilt = CASES[case]
    symmetrized = any(isinstance(pair, SymmetrizedPair) for pair in pairs)
    accuracy = 1e-6 if symmetrized else 1e-8
    check(Composition.of(pairs, direction), tilt, sum(pairs.values()), accuracy)


@settings(max_examples=25)
@given(
    rate=log_uniform(1e-4, 0.999),
    noise=log_uniform(0.5, 100.0),
    tilt=log_uniform(0.1, 30.0),
    direction=st.sampled_from(Direction),
)
def test_cumulants_anywhere(rate: float, noise: float, tilt: float, direction: Direction) -> None:
    composition = Composition.of({SampledGaussianPair(rate, noise, direction): 50}, direction)
    check(composition, tilt, 50, 1e-8)
