"""The grid engine against exact profiles, the contour, 50-digit oracles and brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import dpacct
from dpacct.budget import Interval
from dpacct.errors import NotConverged
from dpacct.pairs.dominating import Direction, SampledGaussianPair, SymmetrizedPair
from dpacct.pairs.gaussian import gaussian_delta, gaussian_epsilon
from dpacct.pairs.one_round import one_round_delta
from dpacct.tight.composition import Composition
from dpacct.tight.grid.engine import grid_delta, grid_epsilon, predicted_cells
from dpacct.tight.inversion import inversion_epsilon
from dpacct.tight.inverted_delta import inversion_delta
from tests.oracles import contour
from tests.oracles.sampled_gaussian import delta_add, delta_remove
from tests.oracles.symmetrized_composition import delta_bounds
from tests.strategies import log_uniform

Rounds = contour.Rounds

# (rounds as (rate, noise, count), delta)
SETTINGS: list[tuple[Rounds, float]] = [
    ([(0.1, 1.2860094, 300)], 1e-5),
    ([(0.1, 1.2860094, 300)], 1e-20),
    ([(0.5, 3.0, 30)], 1e-15),
    ([(0.9999, 5.0, 60)], 1e-6),
    ([(0.1, 1.5, 100), (0.05, 1.0, 20)], 0.05),
    ([(0.1, 1.5, 100), (0.3, 6.0, 30), (1.0, 8.0, 10), (1.0, 3.0, 1)], 1e-5),
    ([(0.2, 500.0, 1000)], 1e-12),
    ([(0.3, 0.2, 3)], 1e-5),
]
# Losses that are nearly atoms: tiny rates, little noise, few rounds.
ATOMS: list[tuple[Rounds, float]] = [
    ([(0.01, 1.0, 10)], 1e-5),
    ([(0.01, 0.5, 2)], 1e-4),
    ([(0.5, 0.2, 4)], 1e-9),
    ([(0.5, 0.1, 2)], 1e-3),
    ([(1e-3, 1.0, 100)], 1e-4),
    ([(0.02, 0.3, 3), (0.3, 0.15, 2)], 1e-6),
]


def compose(rounds: Rounds, direction: Direction) -> Composition:
    pairs = {SampledGaussianPair(q, s, direction): n for q, s, n in rounds}
    return Composition.of(pairs, direction)


def overlap(first: Interval, second: Interval) -> bool:
    """Whether two brackets may hold the same number."""
    return first.lower <= second.upper * (1 + 1e-13) and second.lower <= first.upper * (1 + 1e-13)


def narrow(bracket: Interval, width: float = 1.01e-6) -> bool:
    return bracket.upper - bracket.lower <= width * max(bracket.upper, 1e-5)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(("rounds", "delta"), SETTINGS)
def test_both_engines_give_the_same_epsilon(
    rounds: Rounds, delta: float, direction: Direction
) -> None:
    composition = compose(rounds, direction)
    bracket = grid_epsilon(composition, delta)
    assert 0 < bracket.lower < bracket.upper
    assert narrow(bracket)
    assert overlap(bracket, inversion_epsilon(composition, delta))


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(("rounds", "delta"), SETTINGS)
def test_both_engines_give_the_same_delta(
    rounds: Rounds, delta: float, direction: Direction
) -> None:
    composition = compose(rounds, direction)
    epsilon = inversion_epsilon(composition, delta).upper
    bracket = grid_delta(composition, epsilon)
    assert overlap(bracket, inversion_delta(composition, epsilon))
    assert bracket.upper - bracket.lower <= 1e-4 * bracket.upper


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(("rounds", "delta"), [SETTINGS[0], SETTINGS[2], SETTINGS[4]])
def test_epsilon_holds_the_truth(rounds: Rounds, delta: float, direction: Direction) -> None:
    bracket = grid_epsilon(compose(rounds, direction), delta)
    remove = direction is Direction.REMOVE
    above, below = contour.deltas([bracket.lower, bracket.upper], rounds, remove=remove)
    assert below <= delta <= above


@pytest.mark.sampled(4)
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(("rounds", "delta"), ATOMS)
def test_near_atoms_have_narrow_brackets(
    rounds: Rounds, delta: float, direction: Direction
) -> None:
    composition = compose(rounds, direction)
    bracket = grid_epsilon(composition, delta)
    assert 0 < bracket.lower < bracket.upper
    assert narrow(bracket)
    # delta(eps) decreases: what it is at both ends holds the delta that was asked for.
    assert grid_delta(composition, bracket.upper).lower <= delta
    assert grid_delta(composition, bracket.lower).upper >= delta
    # All rounds but one may be ignored.
    alone = [
        one_round_delta(bracket.upper, SampledGaussianPair(q, s, direction)) for q, s, _ in rounds
    ]
    assert max(part.lower for part in alone) <= delta


@pytest.mark.sampled(4)
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("epsilon", [0.0, 0.5, 2.0])
@pytest.mark.parametrize(("first", "second"), [((0.5, 1.0), (0.3, 0.7)), ((0.02, 0.6), (0.1, 0.4))])
def test_two_rounds_hold_the_integral(
    first: tuple[float, float], second: tuple[float, float], epsilon: float, direction: Direction
) -> None:
    truth = contour.two_rounds(epsilon, first, second, remove=direction is Direction.REMOVE)
    bracket = grid_delta(compose([(*first, 1), (*second, 1)], direction), epsilon)
    assert bracket.lower <= truth <= bracket.upper
    assert bracket.upper - bracket.lower <= 1e-5 * bracket.upper


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize("mu", [0.01, 0.7, 6.0])
@pytest.mark.parametrize("delta", [0.1, 1e-6, 2e-13, 1e-20])
def test_full_participation_is_the_gaussian(mu: float, delta: float, direction: Direction) -> None:
    composition = compose([(1.0, 1 / mu, 1)], direction)
    precision = composition.precision**0.5
    bracket = grid_epsilon(composition, delta)
    assert overlap(bracket, gaussian_epsilon(delta, precision))
    assert narrow(bracket)
    assert overlap(grid_delta(composition, 0.5 * mu), gaussian_delta(0.5 * mu, precision))


@pytest.mark.slow
@settings(max_examples=60)
@given(
    rate=st.one_of(log_uniform(1e-7, 1.0), log_uniform(1e-6, 0.5).map(lambda gap: 1 - gap)),
    noise=log_uniform(0.1, 1000.0),
    share=st.floats(0.0, 1.0),
    direction=st.sampled_from(Direction),
)
def test_one_round_is_exact(rate: float, noise: float, share: float, direction: Direction) -> None:
    assume(rate < 1)
    pair = SampledGaussianPair(rate, noise, direction)
    at_zero = one_round_delta(0.0, pair).lower
    delta = math.exp(share * math.log(1e-15) + (1 - share) * math.log(0.9 * at_zero))
    assume(1e-20 < delta < at_zero)
    try:
        bracket = grid_epsilon(Composition.of({pair: 1}, direction), delta)
    except NotConverged:
        assume(False)
    truth = delta_remove if direction is Direction.REMOVE else delta_add
    assert truth(bracket.upper, rate, noise) <= delta
    assert bracket.lower == 0 or truth(bracket.lower, rate, noise) >= delta


@pytest.mark.parametrize("rate", [0.05, 0.3])
@pytest.mark.parametrize("rounds", [2, 40])
def test_the_pair_of_uniform_sampling_by_brute_force(rate: float, rounds: int) -> None:
    pair = SymmetrizedPair(rate, 1.2)
    composition = Composition.of({pair: rounds}, Direction.REMOVE)
    for epsilon in (0.0, 0.5, 2.0):
        low, high = delta_bounds(epsilon, rate, 1.2, rounds, 2e-4, 14.0, 30.0)
        bracket = grid_delta(composition, epsilon)
        assert bracket.lower <= high * (1 + 1e-9)
        assert low <= bracket.upper * (1 + 1e-9)
        assert low * (1 - 1e-6) <= bracket.lower * (1 + 1e-4)
        assert bracket.upper <= high * (1 + 1e-4)


@pytest.mark.parametrize("rounds", [3, 200])
def test_the_pair_of_uniform_sampling_on_the_contour(rounds: int) -> None:
    composition = Composition.of({SymmetrizedPair(0.1, 1.2): rounds}, Direction.REMOVE)
    bracket = grid_epsilon(composition, 1e-5)
    assert narrow(bracket)
    assert overlap(bracket, inversion_epsilon(composition, 1e-5))


@pytest.mark.parametrize("direction", Direction)
def test_the_width_shrinks_with_the_square_of_the_step(direction: Direction) -> None:
    composition = compose([(0.1, 1.3, 50)], direction)
    steps = 2.0 ** -np.arange(8, 13)
    widths: list[float] = []
    for step in steps:
        bracket = grid_epsilon(composition, 1e-6, float(step))
        widths.append(bracket.upper - bracket.lower)
    order = np.polyfit(np.log(steps), np.log(widths), 1)[0]
    assert 1.9 < order < 2.2


def test_finer_grids_are_nested_around_the_truth() -> None:
    composition = compose([(0.1, 1.3, 50)], Direction.REMOVE)
    truth = inversion_epsilon(composition, 1e-6)
    for step in (2.0**-7, 2.0**-9, 2.0**-11):
        bracket = grid_epsilon(composition, 1e-6, step)
        assert bracket.lower <= truth.upper
        assert truth.lower <= bracket.upper


@pytest.mark.parametrize("direction", Direction)
def test_more_rounds_more_noise_and_less_delta_are_ordered(direction: Direction) -> None:
    def epsilon(rate: float, noise: float, rounds: int, delta: float) -> Interval:
        return grid_epsilon(compose([(rate, noise, rounds)], direction), delta)

    middle = epsilon(0.05, 1.0, 20, 1e-6)
    assert epsilon(0.05, 1.0, 22, 1e-6).lower > middle.upper
    assert epsilon(0.05, 1.05, 20, 1e-6).upper < middle.lower
    assert epsilon(0.052, 1.0, 20, 1e-6).lower > middle.upper
    assert epsilon(0.05, 1.0, 20, 1.2e-6).upper < middle.lower


def test_a_million_rounds() -> None:
    composition = compose([(2e-4, 1.5, 10**6)], Direction.REMOVE)
    bracket = grid_epsilon(composition, 1e-6)
    assert overlap(bracket, inversion_epsilon(composition, 1e-6))
    assert narrow(bracket, 1e-3)


def test_beyond_the_largest_loss_nothing_is_left() -> None:
    composition = compose([(0.1, 1.0, 3)], Direction.ADD)
    most = -3 * math.log(0.9)
    assert grid_delta(composition, most * (1 + 1e-9)) == Interval(0.0, 0.0)
    assert 0 < grid_epsilon(composition, 1e-19).upper <= most * (1 + 1e-9)


def test_enough_delta_costs_no_epsilon() -> None:
    for direction in Direction:
        assert grid_epsilon(compose([(1e-4, 1.0, 3)], direction), 0.01).upper == 0.0


def test_nothing_composed_costs_nothing() -> None:
    composition = Composition.of({}, Direction.ADD)
    assert grid_delta(composition, 0.0) == Interval(0.0, 0.0)
    assert grid_epsilon(composition, 1e-6) == Interval(0.0, 0.0)


def test_losses_of_millions_have_a_bracket_without_a_warning() -> None:
    """Ten rounds at z = 1e-3: all ten with the client come with probability 2^-10, above delta."""
    found = dpacct.epsilon(noise_multiplier=1e-3, rounds=10, sampling_rate=0.5, delta=1e-5)
    assert found.lower <= 10 * 0.5e6 <= found.upper


def test_a_grid_too_large_is_refused() -> None:
    with pytest.raises(NotConverged, match="cells"):
        grid_epsilon(compose([(0.1, 1.0, 300)], Direction.REMOVE), 1e-5, 1e-7)


@pytest.mark.parametrize(("rounds", "delta"), [SETTINGS[0], SETTINGS[3], ATOMS[0], ATOMS[4]])
def test_the_cost_is_predicted(rounds: Rounds, delta: float) -> None:
    composition = compose(rounds, Direction.REMOVE)
    cells = predicted_cells(composition, delta)
    tenfold = predicted_cells(
        compose([(q, s, 100 * n) for q, s, n in rounds], Direction.REMOVE), delta
    )
    assert 100 < cells < 2**21
    assert tenfold > cells


@pytest.mark.parametrize(("rate", "noise", "rounds"), [(0.1, 1.0, 30), (0.01, 0.8, 5)])
def test_a_discretized_peer_is_an_upper_neighbor(rate: float, noise: float, rounds: int) -> None:
    peer = pytest.importorskip("dp_accounting.pld.privacy_loss_distribution")
    single = peer.from_gaussian_mechanism(
        noise, sampling_prob=rate, value_discretization_interval=1e-4
    )
    theirs = single.self_compose(rounds).get_epsilon_for_delta(1e-6)
    ours = max(
        (grid_epsilon(compose([(rate, noise, rounds)], d), 1e-6) for d in Direction),
        key=lambda bracket: bracket.upper,
    )
    assert ours.lower <= theirs * (1 + 1e-9)
    assert theirs <= ours.upper * 1.001 + 1e-3
