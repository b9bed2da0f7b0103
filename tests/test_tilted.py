"""Characteristic functions of tilted losses against 50-digit values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mpmath import mp

from dpacct.dominating import Direction
from dpacct.errors import NotConverged
from dpacct.tilted import TiltedLosses
from tests.oracles import contour
from tests.strategies import log_uniform

# (rate, noise, tilt): common settings, rare rounds, nearly everybody, little and much noise.
CASES = [
    (0.1, 1.3, 5.0),
    (0.05, 0.5, 2.0),
    (1e-4, 0.7, 12.0),
    (0.5, 10.0, 30.0),
    (0.999, 2.0, 1.0),
    (1e-3, 50.0, 400.0),
    (0.3, 0.35, 0.05),
]
FREQUENCIES = [0.0, 1e-6, 0.01, 0.3, 1.7, 6.0, 20.0]


def losses(
    rounds: contour.Rounds, tilt: float, direction: Direction, frequency: float
) -> TiltedLosses:
    rates, noise, counts = (
        np.array(column, dtype=np.float64) for column in zip(*rounds, strict=True)
    )
    return TiltedLosses(rates, noise, counts, direction, tilt, frequency)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(("rate", "noise", "tilt"), CASES)
def test_characteristic_function_lies_within_its_error(
    rate: float, noise: float, tilt: float, direction: Direction
) -> None:
    rounds = [(rate, noise, 1)]
    times = np.array(FREQUENCIES)
    value, error = losses(rounds, tilt, direction, times[-1]).log_characteristic(times)
    truth = contour.characteristic(rounds, tilt, FREQUENCIES, remove=direction is Direction.REMOVE)
    for k, exact in enumerate(truth):
        with mp.workdps(30):
            off = abs(exact / mp.exp(mp.mpc(complex(value[k]))) - 1)
            assert off <= mp.expm1(mp.mpf(float(error[k])))
    # The guarantee is worth something where the function is not small.
    assert np.all(error[np.abs(np.exp(value)) > 0.01] < 1e-9)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(
    "rounds",
    [
        [(0.1, 1.3, 300)],
        [(1e-4, 2.0, 10**7)],
        [(0.1, 1.3, 20), (0.02, 0.8, 100), (0.9, 6.0, 5)],
    ],
)
def test_many_rounds_keep_their_digits(rounds: contour.Rounds, direction: Direction) -> None:
    frequencies = [1e-3, 0.2, 1.0, 2.5]
    tilt = 4.0
    times = np.array(frequencies)
    value, error = losses(rounds, tilt, direction, times[-1]).log_characteristic(times)
    truth = contour.characteristic(rounds, tilt, frequencies, remove=direction is Direction.REMOVE)
    for k, exact in enumerate(truth):
        with mp.workdps(30):
            off = abs(exact / mp.exp(mp.mpc(complex(value[k]))) - 1)
            assert off <= mp.expm1(mp.mpf(float(error[k])))
            assert off < 1e-7


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(("rate", "noise", "tilt"), CASES)
def test_decay_bounds_the_characteristic_function(
    rate: float, noise: float, tilt: float, direction: Direction
) -> None:
    rounds = [(rate, noise, 1)]
    frequencies = [0.05 * 2.0**k for k in range(0, 12, 2)]
    bound = losses(rounds, tilt, direction, 0.0).log_decay(np.array(frequencies))
    truth = contour.characteristic(rounds, tilt, frequencies, remove=direction is Direction.REMOVE)
    sizes = [float(mp.log(abs(exact))) for exact in truth]
    for k, size in enumerate(sizes):
        assert max(sizes[k:]) <= bound[k] * (1 - 1e-12)
        assert size <= bound[k]
    assert np.all(bound <= 0)
    assert np.all(np.diff(bound) <= 0)
    assert bound[-1] < 0


@pytest.mark.parametrize("direction", Direction)
def test_counts_multiply_the_decay(direction: Direction) -> None:
    times = np.geomspace(0.1, 50.0, 20)
    one = losses([(0.1, 1.0, 1)], 3.0, direction, 0.0).log_decay(times)
    other = losses([(0.3, 4.0, 1)], 3.0, direction, 0.0).log_decay(times)
    both = losses([(0.1, 1.0, 40), (0.3, 4.0, 7)], 3.0, direction, 0.0).log_decay(times)
    # The nodes, and with them the bounds, differ a little.
    assert both == pytest.approx(40 * one + 7 * other, rel=0.1)


@settings(max_examples=30)
@given(
    rate=st.one_of(log_uniform(1e-5, 0.9), log_uniform(1e-6, 0.5).map(lambda gap: 1 - gap)),
    noise=log_uniform(0.3, 50.0),
    tilt=log_uniform(1e-3, 200.0),
    direction=st.sampled_from(Direction),
)
def test_decay_bounds_the_computed_function(
    rate: float, noise: float, tilt: float, direction: Direction
) -> None:
    times = np.geomspace(0.01, 30.0, 40) * (noise / rate) ** 0.5
    rounds = [(rate, noise, 1)]
    bound = losses(rounds, tilt, direction, 0.0).log_decay(times)
    value, error = losses(rounds, tilt, direction, times[-1]).log_characteristic(times)
    known = np.isfinite(error)
    assert np.all(value.real[known] - error[known] <= bound[known])


def test_too_many_cells_are_refused() -> None:
    one = losses([(0.1, 0.3, 1)], 1.0, Direction.ADD, 3000.0)
    with pytest.raises(NotConverged):
        one.log_characteristic(np.linspace(0.0, 3000.0, 20_000))


def test_frequency_zero_is_certain() -> None:
    value, error = losses([(0.1, 1.0, 10**6)], 2.0, Direction.REMOVE, 1.0).log_characteristic(
        np.array([0.0])
    )
    assert value[0] == 0
    assert error[0] < 1e-5
    assert math.isfinite(error[0])
