"""Replacing a client under Poisson sampling: one round, tilted, composed, accounted."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from mpmath import mp, mpc, mpf

import dpacct
from dpacct.budget import Budget
from dpacct.errors import NotConverged
from dpacct.pairs.dominating import (
    Direction,
    DominatingPair,
    ReplacementPair,
    SampledGaussianPair,
)
from dpacct.pairs.one_round import one_round_delta
from dpacct.renyi.odometer import Odometer
from dpacct.rounds import Full, Poisson, Round, Uniform
from dpacct.tight.composition import Composition
from dpacct.tight.contour import Contour, log_delta_estimate, tilt_at_epsilon
from dpacct.tight.engines import composed_delta
from dpacct.tight.laws import TiltedLosses, TiltedNodes, decay_table
from tests.oracles import replacement
from tests.strategies import log_uniform, sampling_rates

# (rate, noise, tilt): common settings, rare rounds, nearly everybody, little and much noise.
SLOW = pytest.mark.slow
CASES = [(0.1, 1.3, 5.0), (1e-3, 0.7, 9.0), (0.5, 8.0, 20.0), (0.98, 2.0, 1.0), (0.3, 0.4, 0.1)]


def replaced(rate: float, noise: float) -> Round:
    return Round(noise, Poisson(rate), "replace-one")


@given(
    epsilon=st.one_of(st.just(0.0), log_uniform(1e-9, 60.0)),
    q=sampling_rates(1e-9),
    s=log_uniform(0.03, 1e3),
)
def test_one_round_is_inside_its_bounds(epsilon: float, q: float, s: float) -> None:
    found = one_round_delta(epsilon, ReplacementPair(q, s))
    with mp.workdps(70):
        truth = replacement.one_round(mpf(epsilon), q, s)
        noise = mpf(10) ** -40
        assert mpf(found.lower) - noise <= truth <= mpf(found.upper) + noise
        if truth > 1e-20:
            assert found.upper - found.lower <= 1e-7 * truth


@given(epsilon=log_uniform(1e-300, 1e300), q=log_uniform(1e-150, 1.0), s=log_uniform(1e-3, 1e10))
@example(epsilon=1.0, q=0.36787944117144233, s=0.0024787521766663585)
@example(epsilon=1e-300, q=0.1, s=1e-3)
def test_one_round_has_bounds_everywhere(epsilon: float, q: float, s: float) -> None:
    pairs = [
        ReplacementPair(q, s),
        *(SampledGaussianPair(q, s, direction) for direction in Direction),
    ]
    for found in (one_round_delta(epsilon, pair) for pair in pairs):
        assert 0 <= found.lower <= found.upper <= q


def losses(rate: float, noise: float, count: int, tilt: float, frequency: float) -> TiltedLosses:
    rates, noises, counts = np.array([rate]), np.array([noise]), np.array([float(count)])
    nodes = TiltedNodes(rates, noises, None, tilt, 44.0 + math.log(count), frequency, 1_000_000)
    return TiltedLosses(nodes, noises, counts)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(("rate", "noise", "tilt"), CASES)
def test_characteristic_functions_lie_within_their_error(
    rate: float, noise: float, tilt: float
) -> None:
    for step, number in ((1e-6, 3), (0.25, 61)):
        law = losses(rate, noise, 1, tilt, step * number)
        value, error = law.log_characteristic(step, number)
        chosen = [0, 1, number // 3, number - 1]
        truth = replacement.characteristic(rate, noise, tilt, [step * k for k in chosen])
        for k, exact in zip(chosen, truth, strict=True):
            with mp.workdps(30):
                off = abs(exact / mp.exp(mpc(complex(value[k]))) - 1)
                assert off <= mp.expm1(mpf(float(error[k])))
        assert np.all(error * np.abs(np.exp(value)) < 1e-10)


@pytest.mark.parametrize(("rate", "noise", "tilt"), CASES)
def test_decay_bounds_characteristic_functions(rate: float, noise: float, tilt: float) -> None:
    frequencies = decay_table(0.05, 48)[::8].tolist()
    bound = losses(rate, noise, 1, tilt, 0.0).log_decay(0.05, 48)[::8]
    truth = replacement.characteristic(rate, noise, tilt, frequencies)
    sizes = [float(mp.log(abs(exact))) for exact in truth]
    assert all(max(sizes[k:]) <= bound[k] for k in range(len(sizes)))
    assert np.all(bound <= 0)
    assert bound[-1] < 0


TWO = [((0.1, 1.3), (0.1, 1.3), 1.0), ((0.4, 2.0), (0.05, 0.8), 0.3), ((0.9, 1.0), (0.3, 3.0), 4.0)]


@functools.cache
def two_rounds(case: int, epsilon: float) -> mpf:
    first, second, _ = TWO[case]
    return replacement.two_rounds(epsilon, first, second)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("case", range(len(TWO)))
@pytest.mark.parametrize("factor", [0.1, 1.0, 2.0])
@pytest.mark.parametrize("width", [0.0, 1e-4])
def test_a_contour_of_two_rounds_encloses_their_delta(
    case: int, factor: float, width: float
) -> None:
    """However badly the line is chosen."""
    first, second, epsilon = TWO[case]
    pairs = {ReplacementPair(*first): 1}
    pairs[ReplacementPair(*second)] = pairs.get(ReplacementPair(*second), 0) + 1
    composition = Composition.of(dict(pairs), Direction.REMOVE)
    tilt, at = tilt_at_epsilon(composition, epsilon)
    log_delta = min(0.0, log_delta_estimate(tilt, at, epsilon))
    try:
        line = Contour(composition, tilt * factor, epsilon, log_delta, width)
    except NotConverged:
        assert not width
        return
    bracket = line.delta(epsilon)
    assert bracket.lower <= two_rounds(case, epsilon) <= bracket.upper


@pytest.mark.parametrize(
    ("rate", "noise", "rounds", "delta"),
    [(0.5, 11.6, 300, 1e-5), (0.01, 1.0, 196, 1e-5), (0.9, 3.0, 50, 1e-5)],
)
def test_grids_of_another_accountant_enclose_the_answer(
    rate: float, noise: float, rounds: int, delta: float
) -> None:
    loss = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    relation = pytest.importorskip("dp_accounting").NeighboringRelation.REPLACE_ONE
    one = loss.from_gaussian_mechanism(
        noise,
        sampling_prob=rate,
        value_discretization_interval=1e-3,
        neighboring_relation=relation,
    )
    above = one.self_compose(rounds).get_epsilon_for_delta(delta)
    found = dpacct.epsilon(rounds * replaced(rate, noise), delta=delta)
    assert found.upper - found.lower <= 1e-7 * found.upper
    assert found.lower <= above
    assert found.upper == pytest.approx(above, rel=2e-4)


@settings(max_examples=8)
@given(
    q=log_uniform(0.01, 0.99),
    noise=log_uniform(0.5, 20.0),
    rounds=st.integers(1, 300),
    delta=log_uniform(1e-9, 1e-2),
)
def test_between_leaving_a_client_out_and_everybody_moving_by_two(
    q: float, noise: float, rounds: int, delta: float
) -> None:
    found = dpacct.epsilon(rounds * replaced(q, noise), delta=delta)
    out = dpacct.epsilon(rounds * Round(noise, Poisson(q)), delta=delta)
    everybody = dpacct.epsilon(rounds * Round(noise, Full(), "replace-one"), delta=delta)
    renyi = dpacct.epsilon(rounds * replaced(q, noise), delta=delta, accountant="rdp")
    assert out.lower <= found.upper <= renyi.upper * (1 + 1e-9)
    assert found.lower <= everybody.upper
    assert found.upper - found.lower <= 1e-5 * found.upper


def test_schemes_of_one_schedule_mix() -> None:
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


def test_adaptive_rounds_are_charged_by_the_same_pair() -> None:
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


RARE = [((2e-5, 1.0), (2e-5, 1.0), 3e-4), ((2e-5, 1.0), (5e-5, 1.5), 4e-4)]


@pytest.mark.parametrize(("first", "second", "at"), [RARE[0], pytest.param(*RARE[1], marks=SLOW)])
def test_two_rare_rounds_hold_the_truth(
    first: tuple[float, float], second: tuple[float, float], at: float
) -> None:
    exact = replacement.two_rounds(at, first, second, 60)
    pairs: dict[DominatingPair, int] = {ReplacementPair(*first): 1}
    pairs[ReplacementPair(*second)] = pairs.get(ReplacementPair(*second), 0) + 1
    plan = Composition.of(pairs, Direction.REMOVE)
    found = composed_delta(plan, at)
    assert found.lower <= exact * (1 + mpf(10) ** -12)
    assert exact * (1 - mpf(10) ** -12) <= found.upper


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
def test_epsilon_is_monotone_and_narrow(line: slice) -> None:
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
def test_calibrations_find_what_fits() -> None:
    """They answered one round, and a rate of 1.46e-9."""
    calibrate = functools.partial(
        dpacct.calibrate, delta=1e-6, noise_multiplier=1.0, adjacency="replace-one"
    )
    found = calibrate(epsilon=0.004, sampling_rate=2e-5, solve="rounds")
    assert 1000 < found.rounds < 1100
    found = calibrate(epsilon=0.006, rounds=1000, solve="sampling_rate")
    assert 2.9e-5 < found.schedule.phases[0].round.sampling_rate < 3.1e-5
