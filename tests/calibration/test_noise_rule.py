"""The noise rules of DP-Fed-LS as printed: figures of the paper, and a scan over lambda."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import dpacct
from dpacct.calibration.noise_rule import noise_rule
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.renyi.closed_form import LEMMA_3, LEMMA_4
from dpacct.rounds import Full, Poisson, Round, Sampling, Uniform
from tests.strategies import log_uniform

UNIFORM, POISSON = Uniform(50, 1000), Poisson(0.05)
ROUNDS = 30


def delta_of(sampling: Sampling) -> float:
    """The paper's N^-1.1, with 1000 clients for fixed cohorts and 500 for Poisson."""
    return (1000 if sampling is UNIFORM else 500) ** -1.1


# Theorem 1 and 2 evaluated over a fine grid of lambda for MNIST: q = 0.05, T = 30.
TABLE = [
    (UNIFORM, 6, 2.6934, 0.0565, 2.342),
    (UNIFORM, 7, 2.2122, 0.0663, 2.163),
    (UNIFORM, 8, 1.9404, 0.0705, 2.022),
    (UNIFORM, 9, 1.7524, 0.0726, 1.910),
    (POISSON, 6, 1.1359, 0.0424, 2.190),
    (POISSON, 7, 0.9717, 0.0459, 2.024),
    (POISSON, 8, 0.8655, 0.0475, 1.897),
    (POISSON, 9, 0.7885, 0.0482, 1.798),
]


@pytest.mark.parametrize(("sampling", "epsilon", "noise", "share", "order"), TABLE)
def test_the_settings_of_the_paper_are_reproduced(sampling, epsilon, noise, share, order):
    rule = noise_rule(epsilon, delta_of(sampling), ROUNDS, sampling)
    assert rule.noise_multiplier == pytest.approx(noise, abs=6e-5)
    assert rule.share == pytest.approx(share, abs=6e-5)
    assert rule.order == pytest.approx(order, abs=6e-4)
    assert rule.theorem == ("theorem 1" if sampling is UNIFORM else "theorem 2")


@pytest.mark.parametrize(
    ("sampling", "epsilon"),
    [(UNIFORM, e) for e in (1, 2, 3, 4, 5)] + [(POISSON, e) for e in (1, 2, 3, 4)],
)
def test_small_epsilons_are_infeasible(sampling, epsilon):
    """No lambda meets the condition on the order: 5 of 1000 fixed, 4 of 500 Poisson, and below."""
    with pytest.raises(Unsupported, match=r"order - 1 is .* and must be at most"):
        noise_rule(epsilon, delta_of(sampling), ROUNDS, sampling)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("sampling", "epsilon", "noise", "share", "order"), TABLE)
def test_what_the_rule_asks_for_is_far_more_than_needed(sampling, epsilon, noise, share, order):
    rule = noise_rule(epsilon, delta_of(sampling), ROUNDS, sampling)
    plan = ROUNDS * Round(rule.noise_multiplier, sampling)
    spent = dpacct.epsilon(plan, delta=delta_of(sampling), accountant="rdp").upper
    assert spent < epsilon / 2
    assert rule.epsilon().upper <= spent
    assert rule.schedule == plan
    # The printed columns belong together.
    assert order == pytest.approx(
        1 - math.log(delta_of(sampling)) / ((1 - share) * epsilon), abs=1e-3
    )
    assert noise == pytest.approx(rule.noise_multiplier, abs=6e-5)


def theorem(
    share: float, epsilon: float, delta: float, rounds: int, sampling: Sampling
) -> tuple[float, bool]:
    """z at a lambda by the printed formula, and whether the printed conditions hold."""
    fixed = isinstance(sampling, Uniform)
    q, cost = sampling.sampling_rate, -math.log(delta)
    constant = 14 if fixed else 2
    inside = constant * rounds / share * (cost / (1 - share) + epsilon)
    z = q / epsilon * math.sqrt(inside)
    variance = z * z / 4 if fixed else z * z
    order = cost / ((1 - share) * epsilon) + 1
    limit = 2 * variance / 3 * math.log(1 / (q * order * (1 + variance)))
    return z, variance >= (2 / 3 if fixed else 5 / 9) and order - 1 <= limit


schemes = st.one_of(
    log_uniform(1e-4, 0.3).map(Poisson),
    st.integers(1, 100).map(lambda cohort: Uniform(cohort, 1000)),
)


@given(
    epsilon=log_uniform(0.5, 60.0),
    delta=log_uniform(1e-9, 1e-2),
    rounds=st.integers(1, 2000),
    sampling=schemes,
)
def test_the_smallest_noise_over_lambda_is_found(epsilon, delta, rounds, sampling):
    shares = [1 / (1 + math.exp(-t / 100)) for t in range(-1400, 1401)]
    results = [theorem(share, epsilon, delta, rounds, sampling) for share in shares]
    feasible = [z for z, holds in results if holds]
    try:
        found = noise_rule(epsilon, delta, rounds, sampling)
    except Unsupported:
        assert not feasible
        return
    if feasible:
        assert found.noise_multiplier <= min(feasible) * (1 + 1e-9)
    z, _ = theorem(found.share, epsilon, delta, rounds, sampling)
    assert found.noise_multiplier == pytest.approx(z, rel=1e-9)
    lemma, per_shift = (LEMMA_3, 2) if isinstance(sampling, Uniform) else (LEMMA_4, 1)
    nu = found.noise_multiplier / per_shift * (1 + 1e-12)
    assert lemma.violations(found.order * (1 - 1e-12), sampling.sampling_rate, nu) == ()


@given(
    epsilon=log_uniform(0.5, 60.0),
    delta=log_uniform(1e-9, 1e-2),
    rounds=st.integers(1, 2000),
    rate=log_uniform(1e-4, 0.3),
)
def test_the_poisson_rule_keeps_its_promise(epsilon, delta, rounds, rate):
    try:
        rule = noise_rule(epsilon, delta, rounds, Poisson(rate))
    except Unsupported:
        assume(False)
        return
    assert dpacct.epsilon(rule.schedule, delta=delta, accountant="rdp").upper <= epsilon
    # The accountant uses the same lemma and the improved conversion.
    closed = dpacct.epsilon(rule.schedule, delta=delta, accountant="closed-form").upper
    assert closed <= epsilon * (1 + 1e-6)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sampling", [UNIFORM, POISSON])
@pytest.mark.parametrize("epsilon", [8, 20, 60])
def test_the_true_epsilon_is_never_above_the_stated_one(sampling, epsilon):
    """At 20 and 60 the orders are below 2, where the published proofs say nothing."""
    rule = noise_rule(epsilon, delta_of(sampling), ROUNDS, sampling)
    spent = rule.epsilon()
    assert 0 < spent.lower <= spent.upper <= epsilon
    assert dpacct.epsilon(rule.schedule, delta=rule.delta).upper == spent.upper


def test_full_participation_has_no_rule():
    with pytest.raises(Unsupported, match="sampled rounds"):
        noise_rule(8, 1e-5, 30, Full())


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("epsilon", (0, 1e-5, 30)),
        ("epsilon", (math.inf, 1e-5, 30)),
        ("delta", (1, 0.0, 30)),
        ("delta", (1, 1.5, 30)),
        ("rounds", (1, 1e-5, 2.5)),
        ("rounds", (1, 1e-5, 0)),
    ],
)
def test_bad_input_is_refused_by_name(name, arguments):
    with pytest.raises(InvalidParameter) as caught:
        noise_rule(*arguments, POISSON)
    assert caught.value.name == name
