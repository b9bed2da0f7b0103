"""Characteristic functions of tilted losses against 50-digit values."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from mpmath import mp, mpc, mpf

from dpacct.errors import NotConverged
from dpacct.numerics import fourier as exponential_sums
from dpacct.numerics.rounding import FUNCTION_ERROR
from dpacct.pairs.dominating import Direction
from dpacct.tight.laws import TiltedLosses, TiltedNodes, decay_table
from tests.oracles import contour, replacement
from tests.oracles.answers import known
from tests.strategies import log_uniform
from tests.tight.compositions import ADD, REMOVE, REPLACE, Kind, check_waves

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
REPLACED = [(0.1, 1.3, 5.0), (1e-3, 0.7, 9.0), (0.5, 8.0, 20.0), (0.98, 2.0, 1.0), (0.3, 0.4, 0.1)]
ANY_CASE = [
    *((kind, *case) for kind in (REMOVE, ADD) for case in CASES),
    *((REPLACE, *case) for case in REPLACED),
]
# (step, number, chosen): on few and on many frequencies, tiny and large ones.
TIMES = [(1e-6, 3), (0.25, 81), (0.01, 171)]


def losses(rounds: contour.Rounds, tilt: float, kind: Kind, frequency: float) -> TiltedLosses:
    direction = kind if isinstance(kind, Direction) else None
    rates, noise, counts = (
        np.array(column, dtype=np.float64) for column in zip(*rounds, strict=True)
    )
    accuracy = 44.0 + math.log(float(counts.sum()))
    nodes = TiltedNodes(rates, noise, direction, tilt, accuracy, frequency, 1_000_000)
    return TiltedLosses(nodes, noise, counts)


def truth(
    rounds: contour.Rounds, tilt: float, kind: Kind, step: float, chosen: list[int]
) -> dict[int, mpc]:
    """Return phi at the frequencies k step."""
    times = [step * k for k in chosen]
    if kind == REPLACE:
        ((rate, noise, _),) = rounds
        found = known(replacement.characteristic, rate, noise, tilt, times)
    else:
        found = known(contour.characteristic, rounds, tilt, times, remove=kind is REMOVE)
    return dict(zip(chosen, found, strict=True))


@pytest.mark.sampled(9)
@pytest.mark.parametrize(("kind", "rate", "noise", "tilt"), ANY_CASE)
def test_characteristic_function_lies_within_its_error(kind, rate, noise, tilt):
    rounds = [(rate, noise, 1)]
    for step, number in TIMES:
        law = losses(rounds, tilt, kind, step * number)
        value, error = law.log_characteristic(step, number)
        assert value.shape == error.shape == (number,)
        chosen = sorted({0, 1, number // 3, number - 1})
        check_waves(value, error, truth(rounds, tilt, kind, step, chosen))
        # The error is relative; the absolute one is small even where the function is.
        assert np.all(error * np.abs(np.exp(value)) < 1e-10)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(
    "rounds",
    [
        [(0.1, 1.3, 300)],
        [(1e-4, 2.0, 10**7)],
        [(0.1, 1.3, 20), (0.02, 0.8, 100), (0.9, 6.0, 5)],
    ],
)
def test_many_rounds_keep_their_digits(rounds, direction):
    tilt, step, number = 4.0, 1e-3, 2501
    law = losses(rounds, tilt, direction, step * number)
    value, error = law.log_characteristic(step, number)
    chosen = [1, 200, 1000, 2500]
    check_waves(value, error, truth(rounds, tilt, direction, step, chosen))
    assert np.all(error[chosen] < 1e-7)


@pytest.mark.sampled(11)
@pytest.mark.parametrize(("kind", "rate", "noise", "tilt"), ANY_CASE)
def test_decay_bounds_the_characteristic_function(kind, rate, noise, tilt):
    rounds = [(rate, noise, 1)]
    # The table's frequencies grow by 2^(1/4): every eighth is four times the one before.
    frequencies = decay_table(0.05, 48)[::8].tolist()
    bound = losses(rounds, tilt, kind, 0.0).log_decay(0.05, 48)[::8]
    if kind == REPLACE:
        exact = known(replacement.characteristic, rate, noise, tilt, frequencies)
    else:
        exact = known(contour.characteristic, rounds, tilt, frequencies, remove=kind is REMOVE)
    sizes = [float(mp.log(abs(wave))) for wave in exact]
    for k, size in enumerate(sizes):
        assert max(sizes[k:]) <= bound[k] * (1 - 1e-12)
        assert size <= bound[k]
    assert np.all(bound <= 0)
    assert np.all(np.diff(bound) <= 0)
    assert bound[-1] < 0


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(
    ("rate", "noise", "tilt"),
    [CASES[0], pytest.param(*CASES[2], marks=pytest.mark.slow), (0.02, 4.0, 3.0)],
)
def test_a_path_off_the_line_bounds_the_characteristic_function(rate, noise, tilt, direction):
    rounds, remove = [(rate, noise, 1)], direction is Direction.REMOVE
    nodes = TiltedNodes(np.array([rate]), np.array([noise]), direction, tilt, 44.0, 0.0, 1_000_000)
    law = TiltedLosses(nodes, np.array([noise]), np.ones(1))
    share = law._mean_share()
    with mp.workdps(30):
        variance = mpf(noise) ** 2
        order = 1 + tilt if remove else -tilt

        def density(x: mpf) -> mpf:
            r = 1 - mpf(rate) + rate * mp.exp((2 * x - 1) / (2 * variance))
            return mp.exp(-(x**2) / (2 * variance)) * r**order

        def probability(x: mpf) -> mpf:
            odds = mpf(rate) / (1 - mpf(rate)) * mp.exp((2 * x - 1) / (2 * variance))
            return odds / (1 + odds)

        low, high = min(order, 0.0) - 14 * noise, max(order, 0.0) + 14 * noise
        places = np.linspace(low, high, 40).tolist()
        mean = mp.quad(lambda x: density(x) * probability(x), places) / mp.quad(density, places)
        assert mean * (1 - mpf(10) ** -7) - mpf(10) ** -15 <= share[0] <= mean
    # About where many such rounds matter, and far beyond.
    times = np.geomspace(0.1, 10.0, 4) * noise / float(share[0]) / 30
    bound = nodes.log_shifted(times, share)[0]
    waves = contour.characteristic(rounds, tilt, times.tolist(), remove=remove)
    for exact, most in zip(waves, bound, strict=True):
        assert float(mp.log(abs(exact))) <= most <= 0
    assert np.all(np.diff(bound) <= 0)
    # Next to zero little is lost.
    assert bound[0] < -0.3 * (times[0] * share[0] / noise) ** 2


@pytest.mark.parametrize("direction", Direction)
def test_counts_multiply_the_decay(direction):
    one = losses([(0.1, 1.0, 1)], 3.0, direction, 0.0).log_decay(0.1, 36)
    other = losses([(0.3, 4.0, 1)], 3.0, direction, 0.0).log_decay(0.1, 36)
    both = losses([(0.1, 1.0, 40), (0.3, 4.0, 7)], 3.0, direction, 0.0).log_decay(0.1, 36)
    # The nodes, and with them the bounds, differ a little.
    assert both == pytest.approx(40 * one + 7 * other, rel=0.1)


@given(
    rate=st.one_of(log_uniform(1e-5, 0.9), log_uniform(1e-6, 0.5).map(lambda gap: 1 - gap)),
    noise=log_uniform(0.3, 50.0),
    tilt=log_uniform(1e-3, 200.0),
    direction=st.sampled_from(Direction),
)
def test_decay_bounds_the_computed_function(rate, noise, tilt, direction):
    first, number = 0.01 * (noise / rate) ** 0.5, 45
    rounds = [(rate, noise, 1)]
    bound = losses(rounds, tilt, direction, 0.0).log_decay(first, number)
    table = decay_table(first, number)
    most = 400
    step = float(table[-1]) / most
    law = losses(rounds, tilt, direction, step * most)
    try:
        value, error = law.log_characteristic(step, most + 1)
    except NotConverged:
        assume(False)
    assert np.all(np.isfinite(error))
    times = step * np.arange(most + 1)
    # The bound at a frequency of the table is one for all frequencies beyond.
    least = np.searchsorted(table, times, side="right") - 1
    known = least >= 0
    assert np.all(value.real[known] - error[known] <= bound[least[known]])


@pytest.mark.parametrize("direction", Direction)
def test_many_frequencies_and_nodes_take_the_other_route(direction):
    """Both routes hold the truth where both can be taken."""
    rounds = [(0.1, 0.5, 3)]
    step, number = 0.05, 8000
    law = losses(rounds, 1.0, direction, step * number)
    assert number * 2000 > exponential_sums._TABLE_CELLS
    value, error = law.log_characteristic(step, number)
    check_waves(value, error, truth(rounds, 1.0, direction, step, [1, 20, 500]))


def test_too_many_frequencies_are_refused():
    number = exponential_sums.MAX_FREQUENCIES + 1
    one = losses([(0.1, 1.0, 1)], 1.0, Direction.ADD, 0.01 * number)
    with pytest.raises(NotConverged):
        one.log_characteristic(0.01, number)


def test_frequency_zero_is_certain():
    law = losses([(0.1, 1.0, 10**6)], 2.0, Direction.REMOVE, 1.0)
    value, error = law.log_characteristic(1.0, 2)
    assert value[0] == 0
    assert error[0] < 1e-5


def test_arcs_are_as_accurate_as_assumed():
    """Logarithms of complex numbers rest on arctan2 and hypot."""
    random = np.random.default_rng(20240302)
    y = random.normal(0, 1, 2000) * 10.0 ** random.integers(-12, 3, 2000)
    x = random.normal(0, 1, 2000) * 10.0 ** random.integers(-12, 3, 2000)
    with mp.workdps(40):
        for name in ("atan2", "hypot"):
            found = {"atan2": np.arctan2, "hypot": np.hypot}[name](y, x)
            for a, b, value in zip(y, x, found, strict=True):
                exact = getattr(mp, name)(mpf(float(a)), mpf(float(b)))
                assert abs(mpf(float(value)) / exact - 1) <= FUNCTION_ERROR
