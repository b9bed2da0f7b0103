"""dp-accounting beside our accountants, where it is right."""

from __future__ import annotations

import math
from functools import partial

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import dpacct
from dpacct.pairs.achieved import achieved_epsilon
from dpacct.rounds import Poisson, Round
from tests.oracles import gaussian
from tests.strategies import log_uniform

epsilon_of = partial(dpacct.epsilon, accountant="rdp")
calibrate = partial(dpacct.calibrate, accountant="rdp")
FEWER = settings(max_examples=max(5, settings.default.max_examples // 8))
deltas = log_uniform(1e-15, 0.3)


@FEWER
@given(
    noise=log_uniform(0.5, 20.0),
    rate=log_uniform(1e-3, 0.5),
    count=st.integers(1, 2000),
    delta=deltas,
)
def test_dp_accounting_is_not_below_ours(
    noise: float, rate: float, count: int, delta: float
) -> None:
    """Its Renyi accountant takes the best of a grid of orders, so it is never smaller."""
    library = pytest.importorskip("dp_accounting")
    accountants = pytest.importorskip("dp_accounting.rdp")
    event = library.PoissonSampledDpEvent(rate, library.GaussianDpEvent(noise))
    whole_orders = accountants.RdpAccountant(orders=range(2, 200))
    theirs = whole_orders.compose(event, count).get_epsilon(delta)
    # By way of the total variation it sees that some large deltas need no epsilon at all.
    assume(theirs > 0)
    ours = epsilon_of(noise_multiplier=noise, rounds=count, sampling_rate=rate, delta=delta).upper
    assert ours <= theirs * (1 + 1e-7) + 1e-9


@pytest.mark.parametrize(("noise", "count"), [(0.7, 1), (4.0, 300)])
def test_dp_accounting_agrees_about_full_participation(noise: float, count: int) -> None:
    library = pytest.importorskip("dp_accounting")
    theirs = library.get_epsilon_gaussian(noise / math.sqrt(count), 1e-5, 1e-12)
    found = dpacct.epsilon(noise_multiplier=noise, rounds=count, delta=1e-5, accountant="gdp")
    assert found.upper == pytest.approx(theirs, rel=1e-6)
    truth = float(gaussian.epsilon(1e-5, math.sqrt(count) / noise))
    assert found.lower <= truth <= found.upper


@pytest.mark.parametrize(
    ("noise", "rate", "rounds", "delta"),
    [
        pytest.param(1.0, 0.1, 300, 1e-5, marks=pytest.mark.slow),
        pytest.param(2.0, 0.01, 1000, 1e-6, marks=pytest.mark.slow),
        (0.8, 0.05, 3, 1e-3),
    ],
)
def test_the_tight_answer_of_dp_accounting_lies_between_achieved_and_proven(
    noise: float, rate: float, rounds: int, delta: float
) -> None:
    library = pytest.importorskip("dp_accounting")
    accountants = pytest.importorskip("dp_accounting.pld")
    event = library.PoissonSampledDpEvent(rate, library.GaussianDpEvent(noise))
    accountant = accountants.PLDAccountant(value_discretization_interval=1e-3)
    tight = accountant.compose(event, rounds).get_epsilon(delta)
    plan = rounds * Round(noise, Poisson(rate))
    assert achieved_epsilon(plan, delta) <= tight
    assert tight in epsilon_of(plan, delta=delta)


@pytest.mark.slow
@pytest.mark.parametrize(("epsilon", "rounds", "rate"), [(8.0, 300, 0.1), (1.0, 1000, 0.01)])
def test_dp_accounting_does_not_find_less_noise(epsilon: float, rounds: int, rate: float) -> None:
    library = pytest.importorskip("dp_accounting")
    accountants = pytest.importorskip("dp_accounting.rdp")

    def event(noise: float) -> object:
        sampled = library.PoissonSampledDpEvent(rate, library.GaussianDpEvent(noise))
        return library.SelfComposedDpEvent(sampled, rounds)

    theirs = library.calibrate_dp_mechanism(
        lambda: accountants.RdpAccountant(orders=range(2, 128)), event, epsilon, 1e-5, tol=1e-6
    )
    ours = calibrate(epsilon=epsilon, delta=1e-5, rounds=rounds, sampling_rate=rate)
    assert ours.noise_multiplier <= theirs <= ours.noise_multiplier * 1.02
