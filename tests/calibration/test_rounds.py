"""Solving for the rounds, the rate or the cohort: one more would break the target."""

from __future__ import annotations

import math
from functools import partial

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import dpacct
from dpacct.calibration.calibrate import SOLVE_FOR
from dpacct.errors import InvalidParameter, NotConverged, Unsupported
from dpacct.rounds import Adjacency, Full, Poisson, Round, Schedule, Uniform
from dpacct.validate import MAX_ROUNDS
from tests.strategies import FEWER, log_uniform

# Accountants given by name below win over these.
calibrate = partial(dpacct.calibrate, accountant="rdp")
epsilon_of = partial(dpacct.epsilon, accountant="rdp")
# Documented: the rate ends within 1e-6 of the optimum.
STEP = 1e-6
deltas = log_uniform(1e-15, 1e-2)

# Rounds.


@pytest.mark.slow
@FEWER
@given(
    epsilon=log_uniform(0.05, 50.0),
    noise=log_uniform(0.5, 50.0),
    rate=log_uniform(1e-4, 1.0),
    delta=deltas,
)
def test_one_more_round_would_break_the_target(epsilon, noise, rate, delta):
    parts = {"noise_multiplier": noise, "sampling_rate": rate}
    assume(epsilon_of(**parts, rounds=1, delta=delta).upper <= epsilon)
    found = calibrate(epsilon=epsilon, delta=delta, solve="rounds", **parts)
    assert found.solved_for == "rounds"
    assert found.epsilon.upper <= epsilon
    assert found.epsilon == epsilon_of(**parts, rounds=found.rounds, delta=delta)
    if found.rounds < MAX_ROUNDS:
        more = epsilon_of(**parts, rounds=found.rounds + 1, delta=delta)
        assert more.upper > epsilon


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("noise", "epsilon", "rounds"),
    # DP-FedPGN (z = 0.8) and DP-FedSAM (z = 0.95) at q = 0.1, delta = 1/500.
    [
        *((0.8, epsilon, rounds) for epsilon, rounds in ((4, 20), (6, 51), (8, 92), (10, 140))),
        *((0.95, epsilon, rounds) for epsilon, rounds in ((4, 47), (6, 105), (8, 179), (10, 263))),
    ],
)
def test_known_numbers_of_rounds(noise, epsilon, rounds):
    found = calibrate(
        epsilon=epsilon, delta=1 / 500, noise_multiplier=noise, sampling_rate=0.1, solve="rounds"
    )
    # Theirs were found on a grid of orders, which can only cost rounds.
    assert rounds <= found.rounds <= rounds + 1


def test_rounds_of_every_scheme():
    for scheme, accountant in (
        (Uniform(5, 100), "rdp"),
        (Full(), "gdp"),
        (Full(), "rdp"),
        (Poisson(1e-3), "closed-form"),
    ):
        parts = {"noise_multiplier": 9.0, "sampling": scheme, "accountant": accountant}
        found = calibrate(epsilon=3, delta=1e-5, solve="rounds", **parts)
        more = epsilon_of(**parts, rounds=found.rounds + 1, delta=1e-5)
        assert found.epsilon.upper <= 3 < more.upper


def test_one_round_may_already_be_too_much():
    with pytest.raises(NotConverged, match="one round alone costs epsilon") as refused:
        calibrate(epsilon=0.1, delta=1e-5, noise_multiplier=1.0, solve="rounds")
    assert "; more noise would lower it" in str(refused.value)


def test_rounds_that_never_run_out():
    parts = {"noise_multiplier": 1e10, "sampling_rate": 1e-9}
    found = calibrate(epsilon=10, delta=1e-5, solve="rounds", **parts)
    assert found.rounds == MAX_ROUNDS


# The rate, or the cohort.


@pytest.mark.slow
@FEWER
@given(
    epsilon=log_uniform(0.05, 50.0),
    noise=log_uniform(0.5, 50.0),
    rounds=st.integers(1, 10**4),
    delta=deltas,
)
def test_a_higher_rate_would_break_the_target(epsilon, noise, rounds, delta):
    parts = {"noise_multiplier": noise, "rounds": rounds}
    assume(epsilon_of(**parts, sampling_rate=1e-11, delta=delta).upper < epsilon)
    found = calibrate(epsilon=epsilon, delta=delta, solve="sampling_rate", **parts)
    assert found.solved_for == "sampling_rate"
    assert found.epsilon.upper <= epsilon
    assert 0 < found.sampling_rate <= 1
    assert found.schedule.adjacency is Adjacency.ADD_REMOVE
    if found.sampling_rate < 1:
        wider = min(1.0, found.sampling_rate * (1 + STEP))
        assert epsilon_of(**parts, sampling_rate=wider, delta=delta).upper > epsilon


@pytest.mark.slow
@FEWER
@given(epsilon=log_uniform(0.3, 20.0), noise=log_uniform(1.0, 20.0), clients=st.integers(1, 10**6))
def test_a_larger_cohort_would_break_the_target(epsilon, noise, clients):
    parts = {"noise_multiplier": noise, "rounds": 50}
    least = epsilon_of(**parts, sampling=Uniform(1, clients), delta=1e-5).upper
    assume(least <= epsilon)
    found = calibrate(
        epsilon=epsilon, delta=1e-5, sampling=Uniform(1, clients), solve="sampling_rate", **parts
    )
    (phase,) = found.schedule
    scheme = phase.round.sampling
    assert isinstance(scheme, Uniform)
    assert scheme.num_clients == clients
    assert found.schedule.adjacency is Adjacency.REPLACE_ONE
    assert found.epsilon.upper <= epsilon
    if scheme.cohort_size < clients:
        wider = Uniform(scheme.cohort_size + 1, clients)
        assert epsilon_of(**parts, sampling=wider, delta=1e-5).upper > epsilon


def test_everybody_may_take_part_where_that_is_affordable():
    found = calibrate(
        epsilon=8, delta=1e-5, noise_multiplier=100.0, rounds=10, solve="sampling_rate"
    )
    assert found.sampling_rate == 1.0


def test_rates_and_cohorts_that_do_not_exist():
    parts = {"epsilon": 1e-3, "delta": 1e-12, "noise_multiplier": 0.1, "solve": "sampling_rate"}
    with pytest.raises(NotConverged, match="no sampling rate down to"):
        calibrate(**parts, rounds=10**12)
    with pytest.raises(NotConverged, match="even"):
        calibrate(**parts, rounds=100, sampling=Uniform(1, 100))
    with pytest.raises(InvalidParameter, match="full participation has no rate") as caught:
        calibrate(**parts, rounds=100, sampling=Full())
    assert caught.value.name == "sampling"


def test_the_closed_form_finds_a_rate_though_it_is_silent_about_most():
    parts = {"noise_multiplier": 5.0, "rounds": 1000, "accountant": "closed-form"}
    found = calibrate(epsilon=2, delta=1e-5, solve="sampling_rate", **parts)
    assert found.epsilon.upper <= 2
    assert 1e-4 < found.sampling_rate < 0.2


MEETS = {"epsilon": 8, "delta": 1e-5}
CONSTANT = {"noise_multiplier": 1.0, "rounds": 300, "sampling_rate": 0.1}


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("solve", {**MEETS, "rounds": 3, "solve": "order"}),
        ("accountant", {**MEETS, "rounds": 3, "accountant": "best"}),
        # What is solved for is given too.
        ("noise_multiplier", {**MEETS, **CONSTANT}),
        ("rounds", {**MEETS, **CONSTANT, "solve": "rounds"}),
        ("sampling_rate", {**MEETS, **CONSTANT, "solve": "sampling_rate"}),
        ("epsilon", {**MEETS, **CONSTANT, "solve": "epsilon"}),
        ("delta", {**MEETS, **CONSTANT, "solve": "delta"}),
        # Something is missing.
        ("epsilon", {"delta": 1e-5, "rounds": 3}),
        ("delta", {"epsilon": 8, "rounds": 3}),
        ("noise_multiplier", {**MEETS, "solve": "rounds"}),
        ("noise_multiplier", {**MEETS, "rounds": 3, "solve": "sampling_rate"}),
        ("rounds", {**MEETS, "noise_multiplier": 1.0, "solve": "sampling_rate"}),
        ("delta", {**CONSTANT, "solve": "epsilon"}),
        ("epsilon", {**CONSTANT, "solve": "delta"}),
        ("noise_multiplier", {"delta": 1e-5, "rounds": 3, "solve": "epsilon"}),
        # Out of range.
        ("epsilon", {"epsilon": 0, "delta": 1e-5, "rounds": 3}),
        ("epsilon", {"epsilon": math.inf, "delta": 1e-5, "rounds": 3}),
        ("delta", {"epsilon": 8, "delta": 1.0, "rounds": 3}),
        ("rounds", {**MEETS, "rounds": 2.5}),
        ("rounds", {**MEETS, "rounds": 0}),
        ("sampling_rate", {**MEETS, "rounds": 3, "sampling_rate": 10}),
        ("adjacency", {**MEETS, "rounds": 3, "adjacency": "both"}),
        # Contradictions.
        ("sampling_rate", {**MEETS, "rounds": 3, "sampling_rate": 0.1, "sampling": Full()}),
        ("rounds", {**MEETS, "schedule": 3 * Round(1.0), "rounds": 3}),
        ("noise_multiplier", {**MEETS, "schedule": 3 * Round(1.0), "noise_multiplier": 1.0}),
        ("sampling", {**MEETS, "schedule": 3 * Round(1.0), "sampling": Full()}),
        ("solve", {**MEETS, "schedule": 3 * Round(1.0), "solve": "sampling_rate"}),
        ("schedule", {**MEETS, "schedule": Schedule()}),
    ],
)
def test_bad_arguments_are_refused_by_name(name, arguments):
    with pytest.raises(InvalidParameter, match=f"^{name} is ") as caught:
        calibrate(**arguments)
    assert caught.value.name == name


def test_what_can_be_solved_for():
    assert SOLVE_FOR == ("noise", "rounds", "sampling_rate", "epsilon", "delta")


@pytest.mark.parametrize("solve", ["noise", "rounds"])
def test_an_accountant_that_knows_no_bound_says_so(solve):
    parts: dict[str, object] = {"rounds": 10} if solve == "noise" else {"noise_multiplier": 3.0}
    with pytest.raises(Unsupported, match="full participation"):
        calibrate(**MEETS, **parts, sampling_rate=0.1, accountant="gdp", solve=solve)
    with pytest.raises(Unsupported, match="no closed form"):
        calibrate(**MEETS, **parts, sampling_rate=0.9, accountant="closed-form", solve=solve)
