"""Replacing a client under Poisson sampling: one round, tilted, composed, accounted."""

from __future__ import annotations

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpacct
from dpacct.budget import Budget
from dpacct.renyi.odometer import Odometer
from dpacct.rounds import Full, Poisson, Round, Uniform
from tests.strategies import log_uniform

# (rate, noise, tilt): common settings, rare rounds, nearly everybody, little and much noise.
SLOW = pytest.mark.slow


def replaced(rate: float, noise: float) -> Round:
    return Round(noise, Poisson(rate), "replace-one")


@settings(max_examples=8)
@given(
    q=log_uniform(0.01, 0.99),
    noise=log_uniform(0.5, 20.0),
    rounds=st.integers(1, 300),
    delta=log_uniform(1e-9, 1e-2),
)
def test_between_leaving_a_client_out_and_everybody_moving_by_two(q, noise, rounds, delta):
    found = dpacct.epsilon(rounds * replaced(q, noise), delta=delta)
    out = dpacct.epsilon(rounds * Round(noise, Poisson(q)), delta=delta)
    everybody = dpacct.epsilon(rounds * Round(noise, Full(), "replace-one"), delta=delta)
    renyi = dpacct.epsilon(rounds * replaced(q, noise), delta=delta, accountant="rdp")
    assert out.lower <= found.upper <= renyi.upper * (1 + 1e-9)
    assert found.lower <= everybody.upper
    assert found.upper - found.lower <= 1e-5 * found.upper


def test_schemes_of_one_schedule_mix():
    parts = [
        100 * replaced(0.1, 3.0),
        20 * Round(4.0, Uniform(5, 100)),
        2 * Round(20.0, Full(), "replace-one"),
    ]
    whole = parts[0] + parts[1] + parts[2]
    found = dpacct.epsilon(whole, delta=1e-5)
    assert found.upper - found.lower < 0.2 * found.upper
    for part in parts[::2]:
        assert dpacct.epsilon(part, delta=1e-5).lower <= found.lower * (1 + 1e-9)
    assert found.upper <= dpacct.epsilon(whole, delta=1e-5, accountant="rdp").upper


def test_adaptive_rounds_are_charged_by_the_same_pair():
    """A pair with twice the shift let 28 of these rounds in."""
    round_, budget = replaced(0.01, 1.0), Budget(2, 1e-5)
    admitted = Odometer(budget, typical=round_).remaining(round_)
    assert admitted > 300
    planned = dpacct.calibrate(
        epsilon=2,
        delta=1e-5,
        noise_multiplier=1.0,
        sampling_rate=0.01,
        adjacency="replace-one",
        solve="rounds",
    )
    assert admitted <= planned.rounds <= 2 * admitted


LINES = [
    *((1000, 1.0, q) for q in np.geomspace(1e-6, 0.1, 7).tolist()),
    *((154, 0.60737, q) for q in np.geomspace(1e-6, 0.1, 7).tolist()),
    *((n, 1.0, 2e-5) for n in (2, 30, 1000, 100_000)),
    *((1000, z, 2e-5) for z in np.geomspace(10.0, 0.2, 7).tolist()),
]


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "line",
    [
        slice(0, 7),
        slice(14, 18),
        *(pytest.param(slice(*at), marks=SLOW) for at in ((7, 14), (18, 25))),
    ],
)
def test_epsilon_is_monotone_and_narrow(line):
    """In rate, rounds, and noise; and no less than where the other client sends zero."""
    before = 0.0
    for rounds, noise, rate in LINES[line]:
        found = dpacct.epsilon(rounds * replaced(rate, noise), delta=1e-6)
        out = dpacct.epsilon(rounds * Round(noise, Poisson(rate)), delta=1e-6)
        few = rounds * rate < 1e-3  # expected participations
        assert found.width <= (0.02 if few else 2e-6) * found.upper
        assert out.lower <= found.lower * (1 + 1e-6)
        assert found.upper >= before * (1 - 1e-6)
        before = found.upper


@pytest.mark.slow
def test_calibrations_find_what_fits():
    """They answered one round, and a rate of 1.46e-9."""
    calibrate = functools.partial(
        dpacct.calibrate, delta=1e-6, noise_multiplier=1.0, adjacency="replace-one"
    )
    found = calibrate(epsilon=0.004, sampling_rate=2e-5, solve="rounds")
    assert 1000 < found.rounds < 1100
    found = calibrate(epsilon=0.006, rounds=1000, solve="sampling_rate")
    assert 2.9e-5 < found.schedule.phases[0].round.sampling_rate < 3.1e-5
