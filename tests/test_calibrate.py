"""Solving for what is missing: on the safe side, close to the optimum, without a hint."""

from __future__ import annotations

import math

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import dpacct
from dpacct.accountant import ACCOUNTANTS
from dpacct.budget import Interval
from dpacct.calibrate import SOLVE_FOR, calibrate
from dpacct.errors import InvalidParameter, NotConverged, Unsupported
from dpacct.rounds import Adjacency, Full, Poisson, Round, Sampling, Schedule, Uniform
from dpacct.schedules import geometric
from dpacct.validate import MAX_ROUNDS, NOISE_MULTIPLIER_RANGE
from tests.strategies import log_uniform

RENYI = ACCOUNTANTS["rdp"]
LEAST_NOISE, MOST_NOISE = NOISE_MULTIPLIER_RANGE
# Documented: noise and rate end within 1e-6 of the optimum.
STEP = 1e-6
EXAMPLES = settings.default.max_examples
FEWER = settings(max_examples=max(8, EXAMPLES // 4))
epsilons = log_uniform(1e-3, 1e4)
counts = log_uniform(1, 1e6).map(int)
rates = st.one_of(log_uniform(1e-5, 1.0), st.just(1.0))
deltas = log_uniform(1e-15, 1e-2)


def check_noise(
    plan: Schedule, found: Interval, target: float, delta: float, *, closeness: float = 1e-5
) -> None:
    """On target from below, and a little less noise would break it."""
    assert found == RENYI.epsilon(plan, delta)
    assert 0 <= found.lower <= found.upper <= target
    if min(r.noise_multiplier for r in plan.distinct()) <= LEAST_NOISE * (1 + STEP):
        return
    assert RENYI.upper_epsilon(plan.scale_noise(1 - STEP), delta) > target
    assert found.upper >= target * (1 - closeness)


# The noise.


def test_the_main_example() -> None:
    """The optimum over continuous orders is 1.359609; Opacus finds 1.35986 on its grid of orders."""
    found = calibrate(epsilon=8, delta=1e-5, rounds=300, sampling_rate=0.1)
    assert 1.3596 <= found.noise_multiplier <= 1.35962
    check_noise(found.schedule, found.epsilon, 8.0, 1e-5)
    assert found.solved_for == "noise"
    assert found.accountant == "rdp"
    assert found.delta == 1e-5
    assert found.target == 8.0
    assert found.noise_scale == 1.0
    assert found.rounds == 300
    assert found.sampling_rate == 0.1
    assert found.schedule == 300 * Round(found.noise_multiplier, Poisson(0.1))


@given(epsilon=epsilons, rounds=counts, rate=rates, delta=deltas)
def test_any_poisson_setting_meets_its_target(
    epsilon: float, rounds: int, rate: float, delta: float
) -> None:
    found = calibrate(epsilon=epsilon, delta=delta, rounds=rounds, sampling_rate=rate)
    check_noise(found.schedule, found.epsilon, epsilon, delta)


@FEWER
@given(
    epsilon=epsilons,
    rounds=counts,
    delta=deltas,
    scheme=st.sampled_from([Uniform(1, 20), Uniform(100, 2000), Uniform(3, 4), Uniform(1, 10**5)]),
    adjacency=st.sampled_from(Adjacency),
)
def test_any_setting_with_fixed_cohorts_meets_its_target(
    epsilon: float, rounds: int, delta: float, scheme: Uniform, adjacency: Adjacency
) -> None:
    found = calibrate(
        epsilon=epsilon, delta=delta, rounds=rounds, sampling=scheme, adjacency=adjacency
    )
    check_noise(found.schedule, found.epsilon, epsilon, delta)


@FEWER
@given(epsilon=epsilons, rounds=counts, delta=deltas, adjacency=st.sampled_from(Adjacency))
def test_any_setting_with_everybody_meets_its_target(
    epsilon: float, rounds: int, delta: float, adjacency: Adjacency
) -> None:
    """By the exact accountant, and with no more noise than by Renyi."""
    parts = {"epsilon": epsilon, "delta": delta, "rounds": rounds, "adjacency": adjacency}
    exact = calibrate(**parts, accountant="gdp")
    assert exact.epsilon.upper <= epsilon
    assert exact.epsilon.upper >= epsilon * (1 - 1e-5)
    renyi = calibrate(**parts)
    check_noise(renyi.schedule, renyi.epsilon, epsilon, delta)
    assert exact.noise_multiplier <= renyi.noise_multiplier * (1 + STEP)


@pytest.mark.parametrize(
    ("scheme", "rounds", "delta"),
    [(Poisson(3.2e-5), 2455, 0.32), (Poisson(1e-3), 1, 0.9e-3), (Full(), 1, 0.9)],
)
def test_large_deltas_meet_their_target(scheme: Sampling, rounds: int, delta: float) -> None:
    """Epsilon falls steeply where delta is close to what the client's absence explains."""
    for epsilon in (1e-3, 0.0106, 1.0, 1e4):
        found = calibrate(epsilon=epsilon, delta=delta, rounds=rounds, sampling=scheme)
        check_noise(found.schedule, found.epsilon, epsilon, delta, closeness=1e-3)


def test_more_noise_than_there_is() -> None:
    with pytest.raises(NotConverged, match="no noise multiplier up to 1e\\+10 gives epsilon 0.0001"):
        calibrate(epsilon=1e-4, delta=1e-9, rounds=10**12, noise_multiplier=None, accountant="gdp")


def test_the_least_noise_there_is() -> None:
    """A target that even the smallest noise meets ends at the smallest noise."""
    found = calibrate(epsilon=1e7, delta=1e-5, rounds=1, sampling_rate=0.1)
    assert found.noise_multiplier == pytest.approx(LEAST_NOISE, rel=1e-9)
    assert found.noise_multiplier >= LEAST_NOISE
    assert found.epsilon.upper <= 1e7


@pytest.mark.parametrize(
    ("target", "delta", "parts", "noise"),
    [
        # DP-FedPGN's table at 300 rounds: 1.6875, 1.3074, 1.1103, 0.9875 on a grid of orders.
        (4.0, 0.002, {"rounds": 300, "sampling_rate": 0.1}, 1.6875),
        (6.0, 0.002, {"rounds": 300, "sampling_rate": 0.1}, 1.3074),
        (8.0, 0.002, {"rounds": 300, "sampling_rate": 0.1}, 1.1103),
        (10.0, 0.002, {"rounds": 300, "sampling_rate": 0.1}, 0.9875),
    ],
)
def test_known_multipliers(
    target: float, delta: float, parts: dict[str, float], noise: float
) -> None:
    found = calibrate(epsilon=target, delta=delta, **parts).noise_multiplier
    assert noise - 3e-4 <= found <= noise + 5e-5


# A schedule whose noise is scaled.


@FEWER
@given(
    epsilon=log_uniform(0.01, 100.0),
    noises=st.lists(log_uniform(0.5, 5.0), min_size=1, max_size=4),
    rate=log_uniform(1e-3, 1.0),
    rounds=st.integers(1, 300),
)
def test_all_noise_is_scaled_by_one_factor(
    epsilon: float, noises: list[float], rate: float, rounds: int
) -> None:
    plan = sum((rounds * Round(z, Poisson(rate)) for z in noises), Schedule())
    found = calibrate(schedule=plan, epsilon=epsilon, delta=1e-6)
    check_noise(found.schedule, found.epsilon, epsilon, 1e-6)
    assert found.schedule == plan.scale_noise(found.noise_scale)
    for before, after in zip(plan, found.schedule, strict=True):
        scaled = before.round.noise_multiplier * found.noise_scale
        assert after.round.noise_multiplier == pytest.approx(scaled, rel=1e-15)
        assert after.rounds == before.rounds


def test_scaling_a_constant_schedule_is_solving_for_its_noise() -> None:
    direct = calibrate(epsilon=2, delta=1e-6, rounds=100, sampling_rate=0.02)
    scaled = calibrate(schedule=100 * Round(7.0, Poisson(0.02)), epsilon=2, delta=1e-6)
    assert scaled.noise_multiplier == pytest.approx(direct.noise_multiplier, rel=1e-6)
    assert scaled.noise_scale == pytest.approx(direct.noise_multiplier / 7, rel=1e-6)


def test_shapes_and_mixed_schemes_can_be_scaled() -> None:
    shape = geometric(30, 2.0, 0.8, Poisson(0.1))
    mixed = 50 * Round(1.0, Uniform(5, 100)) + 2 * Round(9.0, Full(), "replace-one")
    for plan in (shape, mixed):
        found = calibrate(schedule=plan, epsilon=3, delta=1e-5)
        check_noise(found.schedule, found.epsilon, 3.0, 1e-5)
        assert found.schedule.rounds == plan.rounds
        with pytest.raises(InvalidParameter, match="the rounds of this schedule differ"):
            _ = found.noise_multiplier


# Rounds.


@FEWER
@given(
    epsilon=log_uniform(0.05, 50.0),
    noise=log_uniform(0.5, 50.0),
    rate=log_uniform(1e-4, 1.0),
    delta=deltas,
)
def test_one_more_round_would_break_the_target(
    epsilon: float, noise: float, rate: float, delta: float
) -> None:
    parts = {"noise_multiplier": noise, "sampling_rate": rate}
    assume(dpacct.epsilon(**parts, rounds=1, delta=delta).upper <= epsilon)
    found = calibrate(epsilon=epsilon, delta=delta, solve="rounds", **parts)
    assert found.solved_for == "rounds"
    assert found.epsilon.upper <= epsilon
    assert found.epsilon == dpacct.epsilon(**parts, rounds=found.rounds, delta=delta)
    if found.rounds < MAX_ROUNDS:
        more = dpacct.epsilon(**parts, rounds=found.rounds + 1, delta=delta)
        assert more.upper > epsilon


@pytest.mark.parametrize(
    ("noise", "epsilon", "rounds"),
    # DP-FedPGN (z = 0.8) and DP-FedSAM (z = 0.95) at q = 0.1, delta = 1/500.
    [(0.8, 4, 20), (0.8, 6, 51), (0.8, 8, 92), (0.8, 10, 140)]
    + [(0.95, 4, 47), (0.95, 6, 105), (0.95, 8, 179), (0.95, 10, 263)],
)
def test_known_numbers_of_rounds(noise: float, epsilon: float, rounds: int) -> None:
    found = calibrate(
        epsilon=epsilon, delta=1 / 500, noise_multiplier=noise, sampling_rate=0.1, solve="rounds"
    )
    # Theirs were found on a grid of orders, which can only cost rounds.
    assert rounds <= found.rounds <= rounds + 1


def test_rounds_of_every_scheme() -> None:
    for scheme, accountant in (
        (Uniform(5, 100), "rdp"),
        (Full(), "gdp"),
        (Full(), "rdp"),
        (Poisson(1e-3), "closed-form"),
    ):
        parts = {"noise_multiplier": 9.0, "sampling": scheme, "accountant": accountant}
        found = calibrate(epsilon=3, delta=1e-5, solve="rounds", **parts)
        more = dpacct.epsilon(**parts, rounds=found.rounds + 1, delta=1e-5)
        assert found.epsilon.upper <= 3 < more.upper


def test_one_round_may_already_be_too_much() -> None:
    with pytest.raises(NotConverged, match="one round alone costs epsilon"):
        calibrate(epsilon=0.1, delta=1e-5, noise_multiplier=1.0, solve="rounds")


def test_rounds_that_never_run_out() -> None:
    parts = {"noise_multiplier": 1e10, "sampling_rate": 1e-9}
    found = calibrate(epsilon=10, delta=1e-5, solve="rounds", **parts)
    assert found.rounds == MAX_ROUNDS


# The rate, or the cohort.


@FEWER
@given(
    epsilon=log_uniform(0.05, 50.0),
    noise=log_uniform(0.5, 50.0),
    rounds=st.integers(1, 10**4),
    delta=deltas,
)
def test_a_higher_rate_would_break_the_target(
    epsilon: float, noise: float, rounds: int, delta: float
) -> None:
    parts = {"noise_multiplier": noise, "rounds": rounds}
    assume(dpacct.epsilon(**parts, sampling_rate=1e-11, delta=delta).upper < epsilon)
    found = calibrate(epsilon=epsilon, delta=delta, solve="sampling_rate", **parts)
    assert found.solved_for == "sampling_rate"
    assert found.epsilon.upper <= epsilon
    assert 0 < found.sampling_rate <= 1
    assert found.schedule.adjacency is Adjacency.ADD_REMOVE
    if found.sampling_rate < 1:
        wider = min(1.0, found.sampling_rate * (1 + STEP))
        assert dpacct.epsilon(**parts, sampling_rate=wider, delta=delta).upper > epsilon


@FEWER
@given(epsilon=log_uniform(0.3, 20.0), noise=log_uniform(1.0, 20.0), clients=st.integers(1, 10**6))
def test_a_larger_cohort_would_break_the_target(epsilon: float, noise: float, clients: int) -> None:
    parts = {"noise_multiplier": noise, "rounds": 50}
    least = dpacct.epsilon(**parts, sampling=Uniform(1, clients), delta=1e-5).upper
    assume(least <= epsilon)
    found = calibrate(
        epsilon=epsilon,
        delta=1e-5,
        sampling=Uniform(1, clients),
        solve="sampling_rate",
        **parts,
    )
    (phase,) = found.schedule
    scheme = phase.round.sampling
    assert isinstance(scheme, Uniform)
    assert scheme.num_clients == clients
    assert found.schedule.adjacency is Adjacency.REPLACE_ONE
    assert found.epsilon.upper <= epsilon
    if scheme.cohort_size < clients:
        wider = Uniform(scheme.cohort_size + 1, clients)
        assert dpacct.epsilon(**parts, sampling=wider, delta=1e-5).upper > epsilon


def test_everybody_may_take_part_where_that_is_affordable() -> None:
    found = calibrate(
        epsilon=8, delta=1e-5, noise_multiplier=100.0, rounds=10, solve="sampling_rate"
    )
    assert found.sampling_rate == 1.0


def test_rates_and_cohorts_that_do_not_exist() -> None:
    parts = {"epsilon": 1e-3, "delta": 1e-12, "noise_multiplier": 0.1, "solve": "sampling_rate"}
    with pytest.raises(NotConverged, match="no sampling rate down to"):
        calibrate(**parts, rounds=10**12)
    with pytest.raises(NotConverged, match="even"):
        calibrate(**parts, rounds=100, sampling=Uniform(1, 100))
    with pytest.raises(InvalidParameter, match="full participation has no rate") as caught:
        calibrate(**parts, rounds=100, sampling=Full())
    assert caught.value.name == "sampling"


def test_the_closed_form_finds_a_rate_though_it_is_silent_about_most() -> None:
    parts = {"noise_multiplier": 5.0, "rounds": 1000, "accountant": "closed-form"}
    found = calibrate(epsilon=2, delta=1e-5, solve="sampling_rate", **parts)
    assert found.epsilon.upper <= 2
    assert 1e-4 < found.sampling_rate < 0.2


# Epsilon and delta.


def test_epsilon_and_delta_are_those_of_the_accountant() -> None:
    plan = 300 * Round(1.0, Poisson(0.1))
    spent = calibrate(schedule=plan, delta=1e-5, solve="epsilon")
    assert spent.epsilon == dpacct.epsilon(plan, delta=1e-5)
    assert (spent.solved_for, spent.target, spent.delta) == ("epsilon", None, 1e-5)
    assert spent.schedule == plan
    by_parts = calibrate(
        noise_multiplier=1.0, rounds=300, sampling_rate=0.1, delta=1e-5, solve="epsilon"
    )
    assert by_parts == spent
    chance = calibrate(schedule=plan, epsilon=8, solve="delta")
    assert chance.delta == dpacct.delta(plan, epsilon=8).upper
    assert (chance.solved_for, chance.target, chance.epsilon.upper) == ("delta", None, 8)


# Arguments.

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
        ("solve", {**MEETS, "schedule": 3 * Round(1.0), "solve": "rounds"}),
        ("solve", {**MEETS, "schedule": 3 * Round(1.0), "solve": "sampling_rate"}),
        ("schedule", {**MEETS, "schedule": Schedule()}),
    ],
)
def test_bad_arguments_are_refused_by_name(name: str, arguments: dict[str, object]) -> None:
    with pytest.raises(InvalidParameter, match=f"^{name} is ") as caught:
        calibrate(**arguments)
    assert caught.value.name == name


def test_what_can_be_solved_for() -> None:
    assert SOLVE_FOR == ("noise", "rounds", "sampling_rate", "epsilon", "delta")


@pytest.mark.parametrize("solve", ["noise", "rounds"])
def test_an_accountant_that_knows_no_bound_says_so(solve: str) -> None:
    parts: dict[str, object] = {"rounds": 10} if solve == "noise" else {"noise_multiplier": 3.0}
    with pytest.raises(Unsupported, match="full participation"):
        calibrate(**MEETS, **parts, sampling_rate=0.1, accountant="gdp", solve=solve)
    with pytest.raises(Unsupported, match="no closed form"):
        calibrate(**MEETS, **parts, sampling_rate=0.9, accountant="closed-form", solve=solve)


# Third opinion.


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
