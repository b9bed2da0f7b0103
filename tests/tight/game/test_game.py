from __future__ import annotations

import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpacct
from dpacct.budget import Interval
from dpacct.errors import NotConverged, Unsupported
from dpacct.pairs.dominating import Direction, achieved_pairs, proven_pairs
from dpacct.rounds import Full, Phase, Poisson, Round, Schedule, Uniform, first_rounds
from dpacct.tight.accountant import TightAccountant
from dpacct.tight.composition import Composition
from dpacct.tight.engines import composed_delta, composed_epsilon, inversion_delta
from dpacct.tight.game import plan
from dpacct.tight.game.bounds import (
    curve_delta,
    game_delta,
    game_epsilon,
    game_upper_epsilon,
    lower_delta,
    lower_epsilon,
    prefix_upper_epsilons,
    upper_epsilon,
)
from dpacct.tight.game.kernels import add_pair
from dpacct.tight.game.laws import Kernel
from dpacct.tight.game.plan import fewer_kinds, plan_at_delta, plan_at_epsilon, window_above
from dpacct.tight.game.rounds import moment_law
from dpacct.tight.game.theorem import Triangle, not_too_flat, profile
from tests.oracles.answers import known
from tests.oracles.fixed_size_game import fixed_size_last, line_then, one_pair_last, two_rounds
from tests.strategies import log_uniform
from tests.tight.game.covers import small_cover

SVHN = 2000**-1.1


def symmetrized(schedule: Schedule) -> Composition:
    return Composition.of_schedule(schedule, proven_pairs, Direction.REMOVE)


def remove(schedule: Schedule) -> Composition:
    return Composition.of_schedule(schedule, achieved_pairs, Direction.REMOVE)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("noise", "uniform", "rounds", "delta", "achieved", "proven", "fixed"),
    [
        (2.4, Uniform(100, 2000), 200, SVHN, 2.6421, 2.6613, 3.0583),
        (3.0, Uniform(10, 100), 300, 1e-5, 6.3074, 6.3762, 7.19),
    ],
)
def test_the_bracket_closes_to_one_percent(noise, uniform, rounds, delta, achieved, proven, fixed):
    """Figures of an independent prototype; its achieved ones are on a grid, so a little lower."""
    schedule = rounds * Round(noise, uniform)
    found = game_epsilon(schedule, delta)
    assert found.upper <= found.lower * 1.01
    assert found.lower == pytest.approx(achieved, rel=4e-4)
    assert found.lower < found.upper <= proven * 1.0012
    assert found.upper < 0.9 * fixed


@settings(max_examples=1, deadline=None)
@given(
    cohort=st.integers(5, 500),
    noise=log_uniform(0.7, 8.0),
    rounds=st.integers(1, 5),
    budget=log_uniform(0.2, 4.0),
)
def test_the_chain_of_bounds(cohort, noise, rounds, budget):
    """Remove alone <= two strategies <= all cells <= one cell, at any epsilon."""
    schedule = rounds * Round(noise, Uniform(cohort, 1000))
    epsilon = budget * math.sqrt(rounds) * cohort / 1000
    try:
        found = game_delta(schedule, epsilon)
    except NotConverged:
        return
    fixed = inversion_delta(symmetrized(schedule), epsilon)
    plain = inversion_delta(remove(schedule), epsilon)
    assert plain.lower * (1 - 0.02) - 1e-16 <= found.lower <= found.upper
    assert found.lower <= fixed.upper
    assert found.upper <= fixed.upper * 1.05 + 1e-12
    assert found.upper >= plain.lower


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("rate", "noise"), [(0.05, 2.4), (0.3, 0.9)])
def test_one_round_has_the_profile_of_the_fixed_pair(rate, noise):
    schedule = 1 * Round(noise, Uniform(round(1000 * rate), 1000))
    for budget in (0.0, 3 * rate):
        exact = composed_delta(symmetrized(schedule), budget)
        found = game_delta(schedule, budget)
        assert found.lower <= exact.upper
        assert exact.lower <= found.upper <= exact.upper * 1.01 + 1e-12
        assert found.lower >= exact.lower * 0.99 - 1e-12


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("rate", "noise", "budget"), [(0.05, 2.4, 0.0), (0.25, 1.0, 0.3)])
def test_two_rounds_of_every_triangle(rate, noise, budget):
    """Brute force in the plane; it exceeds two strategies, and is within the cells."""
    schedule = 2 * Round(noise, Uniform(round(100 * rate), 100))
    brute = known(two_rounds, rate, noise, budget, 6, 321)
    found = game_delta(schedule, budget)
    assert found.lower <= brute * (1 + 1e-5)
    assert brute * (1 - 1e-5) <= found.upper <= brute * 1.03
    if budget == 0.0:
        # Two strategies are not all that there is, however fine the grid.
        assert brute == pytest.approx(0.025854, abs=1e-5)
        assert found.lower < 0.02578


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rate", [1.0, 0.3])
def test_two_rounds_of_different_kinds_in_their_order(rate):
    """Brute force: a round of fixed size before, and after, one of everybody or of Poisson."""
    q, z, other, budget = 0.1, 1.2, 4.0, 0.2
    fixed_size = Round(z, Uniform(10, 100))
    one_pair = Round(other, Full() if rate == 1.0 else Poisson(rate), "replace-one")
    first = game_delta(1 * fixed_size + 1 * one_pair, budget)
    last = game_delta(1 * one_pair + 1 * fixed_size, budget)
    brute_first = two_rounds(q, z, budget, 6, 241, one_pair_last(other, rate))
    brute_last = line_then(other, rate, budget, fixed_size_last(q, z))
    for found, brute in ((first, brute_first), (last, brute_last)):
        assert found.lower <= brute * (1 + 1e-4)
        assert brute * (1 - 1e-4) <= found.upper <= brute * 1.03


def test_the_gap_of_the_grid_is_of_second_order():
    schedule, epsilon = 50 * Round(2.0, Uniform(10, 100)), 1.5
    errors: list[float] = []
    reference = lower_delta(schedule, plan_at_epsilon(schedule, epsilon), epsilon)
    for factor in (16.0, 4.0):
        plan = plan_at_epsilon(schedule, epsilon, 1e-3 * factor)
        errors.append(1 - lower_delta(schedule, plan, epsilon) / reference)
    # A share four times as large doubles the step; the reference has a step four times smaller.
    assert 3.0 < errors[0] / errors[1] < 8.0


@pytest.mark.sampled(1)
@pytest.mark.parametrize("noise", [0.8, 1.0])
def test_two_strategies_achieve_what_one_does_where_rates_are_small(noise):
    """The least loss of a round is a few steps, and much of its probability lies next to it."""
    schedule = 50 * Round(noise, Uniform(5, 1000))
    alone = TightAccountant(engine="pairs").epsilon(schedule, 1e-5)
    found = lower_epsilon(schedule, plan_at_delta(schedule, 1e-5), 1e-5)
    assert alone.lower <= found <= alone.upper


@pytest.mark.slow
def test_epsilon_and_delta_agree():
    schedule = 50 * Round(1.5, Uniform(10, 100))
    spent = game_epsilon(schedule, 1e-4)
    assert game_delta(schedule, spent.upper).upper == pytest.approx(1e-4, rel=0.02)
    assert game_delta(schedule, spent.lower).lower == pytest.approx(1e-4, rel=0.02)
    # What is proven for one cannot contradict what is achieved for the other.
    assert game_delta(schedule, spent.upper).lower <= 1e-4
    assert game_delta(schedule, spent.lower).upper >= 1e-4


@pytest.mark.parametrize(
    ("noise", "uniform", "rounds", "delta", "share"),
    [
        (3.0, Uniform(20, 100), 60, 1e-5, 1e-4),
        # One round may take the loss most of the way, or a large delta let it end anywhere.
        (0.52, Uniform(405, 1000), 2, 1e-6, 1e-5),
        (0.919, Uniform(475, 1000), 3, 0.3, 1e-5),
        (2.212, Uniform(671, 1000), 30, 0.6, 1e-5),
    ],
)
def test_windows_cost_next_to_nothing(noise, uniform, rounds, delta, share, monkeypatch):
    schedule = rounds * Round(noise, uniform)
    usual = plan_at_delta(schedule, delta)
    window = window_above(schedule, usual, small_cover())
    assert rounds < 60 or 0 < window < usual.upper.size

    def ends() -> tuple[float, float]:
        upper = upper_epsilon(schedule, usual, small_cover(), delta)
        return lower_epsilon(schedule, usual, delta), upper

    kept = ends()
    monkeypatch.setattr(plan, "_DEVIATIONS", 0.0)
    assert window_above(schedule, usual, small_cover()) == 0
    full = ends()
    assert full[0] * (1 - share) <= kept[0] <= full[0] * (1 + 1e-6)
    assert full[1] * (1 - 1e-6) <= kept[1] <= full[1] * (1 + share)


def test_a_plan_of_many_kinds_is_made_from_the_laws_of_a_few(monkeypatch):
    asked: set[Round] = set()

    def counted(round_: Round, step: float, negligible: float, *, upper: bool) -> Kernel:
        asked.add(round_)
        return moment_law(round_, step, negligible, upper=upper)

    monkeypatch.setattr(plan, "moment_law", counted)
    schedule = Schedule(Phase(Round(2 + k / 100, Uniform(10, 100)), 1) for k in range(60))
    found = plan_at_delta(schedule, 1e-5)
    assert 0 < len(asked) <= 24
    monkeypatch.setattr(plan, "_MOST_LAWS", 100)
    assert 0.5 <= plan_at_delta(schedule, 1e-5).upper.step / found.upper.step <= 2.0


@pytest.mark.parametrize("deviation", [0.01, 0.5])
def test_windows_that_miss_epsilon_give_way_to_all_losses(deviation):
    schedule = 20 * Round(3.0, Uniform(20, 100))
    usual = plan_at_delta(schedule, 1e-5)
    narrow = replace(usual, deviation=deviation)
    ends = [
        (lower_epsilon(schedule, one, 1e-5), upper_epsilon(schedule, one, small_cover(), 1e-5))
        for one in (usual, narrow)
    ]
    # Where the crossing is tried depends on the pass: lower ends differ in the last digits.
    assert ends[1][0] <= ends[0][0] * (1 + 1e-6) < ends[0][1] <= ends[1][1] * (1 + 1e-6)


def test_one_strategy_alone_is_played_where_switching_would_take_long(monkeypatch):
    schedule = 20 * Round(2.4, Uniform(20, 100))
    switching = game_epsilon(schedule, 1e-3)
    monkeypatch.setattr(plan, "_CHEAP", 0.0)
    alone = game_epsilon(schedule, 1e-3)
    assert 0.99 * switching.lower < alone.lower < switching.lower
    assert alone.lower <= alone.upper <= alone.lower * 1.02


def test_a_proven_end_stands_where_the_grid_below_would_be_too_large():
    """Losses of one round reach far beyond the steps of the finer grid."""
    schedule, delta = 100 * Round(1.0, Uniform(1, 1000)), 1e-5
    with pytest.raises(NotConverged, match="points of the grid"):
        plan_at_delta(schedule, delta)
    proven = game_upper_epsilon(schedule, delta)
    assert game_epsilon(schedule, delta) == Interval(0.0, proven)
    assert game_delta(schedule, proven).upper <= delta * (1 + 1e-6)
    found, fixed = (
        TightAccountant(engine=one).epsilon(schedule, delta) for one in ("auto", "pairs")
    )
    assert found.upper == proven < fixed.upper
    assert found.lower >= fixed.lower > 0.0


def test_flat_triangles_are_made_less_flat():
    """Larger angles bound smaller ones, so that no cell is too thin for its quadrature."""
    flat = Triangle(1 - 1e-9, 0.0)
    near = not_too_flat(11.3, flat)
    losses = np.array([0.0, 0.01])
    with pytest.raises(NotConverged, match="too flat"):
        profile(0.1, 11.3, flat, losses)
    assert flat.b - 0.01 < near.b < flat.b
    assert near.w == 0.0
    exact = add_pair(0.1, 11.3, losses)[0].lower
    assert (profile(0.1, 11.3, near, losses).upper >= exact).all()
    assert not_too_flat(11.3, Triangle(0.3, 0.2)) == Triangle(0.3, 0.2)


GAUSSIAN = 3 * Round(20.0, Full(), "replace-one")


@pytest.mark.parametrize(
    ("schedule", "delta", "near"),
    [
        (GAUSSIAN, 1e-3, 1.003),
        (30 * Round(2.0, Poisson(0.1), "replace-one"), 1e-4, 1.002),
        (20 * Round(3.0, Poisson(0.5), "replace-one"), 1e-4, 1.002),
    ],
)
def test_rounds_with_one_pair_enclose_what_the_contour_knows(schedule, delta, near):
    exact = composed_epsilon(remove(schedule), delta)
    found = game_epsilon(schedule, delta)
    assert found.lower <= exact.lower <= exact.upper <= found.upper
    assert found.upper <= found.lower * near


@pytest.mark.parametrize(
    ("alone", "beside", "delta"),
    [
        (GAUSSIAN, 20 * Round(2.4, Uniform(5, 100)) + 10 * Round(2.0, Uniform(10, 100)), 1e-3),
        (10 * Round(2.0, Poisson(0.1), "replace-one"), 20 * Round(2.4, Uniform(5, 100)), 1e-4),
    ],
)
def test_rounds_with_one_pair_stand_between_the_strategies(alone, beside, delta):
    found = game_epsilon(beside + alone, delta)
    assert composed_epsilon(remove(alone), delta).upper < found.lower
    assert found.lower < found.upper <= found.lower * 1.012
    assert found.upper < composed_epsilon(symmetrized(beside + alone), delta).lower


@pytest.mark.parametrize(
    ("adjacency", "most", "epsilons"),
    [
        ("zero-out", 8, [1.0]),
        pytest.param("replace-one", 30, [0.0, 0.7, 4.0], marks=pytest.mark.slow),
    ],
)
def test_a_pass_answers_for_every_prefix_and_every_epsilon(adjacency, most, epsilons):
    round_, delta = Round(2.0, Uniform(10, 100), adjacency), 1e-4
    found = prefix_upper_epsilons(round_, most, delta)
    assert len(found) == most + 1
    assert found[0] == 0.0
    for rounds in (5, most):
        alone = game_epsilon(rounds * round_, delta)
        assert alone.lower <= found[rounds] <= alone.upper * 1.005
    for epsilon in epsilons:
        alone = game_delta(most * round_, epsilon)
        assert alone.lower <= curve_delta(most * round_, epsilon) <= alone.upper * 1.02


def test_the_first_rounds_of_a_repeated_part_are_not_all_of_its_first_kind():
    plan = 5 * (Round(10.0, Uniform(100, 2000)) + Round(1.0, Uniform(100, 2000)))
    first = TightAccountant().upper_epsilon_of_first(plan, 9, 1e-5)
    assert first >= dpacct.epsilon(first_rounds(plan, 9), delta=1e-5).lower


def test_many_kinds_of_rounds_are_bounded_by_fewer(monkeypatch):
    monkeypatch.setattr(plan, "_MOST_KINDS", 60)
    monkeypatch.setattr(plan, "_FEW_KINDS", 60)
    rounds = [1 * Round(2 + 0.01 * k, Uniform(5 + k % 2, 100)) for k in range(80)]
    schedule = Schedule([phase for one in rounds for phase in one.phases])
    fewer = fewer_kinds.__wrapped__(schedule)
    assert fewer.rounds == 80
    assert len(fewer.distinct()) <= 60
    for (first, _), (second, _) in zip(schedule, _unrolled(fewer), strict=True):
        assert first.sampling_rate <= second.sampling_rate
        assert 0.95 * first.noise_multiplier < second.noise_multiplier <= first.noise_multiplier
    assert fewer_kinds(rounds[0]) == rounds[0]


def test_laws_that_take_too_much_memory_are_refused_in_words(monkeypatch):
    monkeypatch.setattr(plan, "_MOST_KEPT", 1e3)
    words = "of 3 rounds would need more memory than is taken at a time$"
    with pytest.raises(NotConverged, match=words):
        game_delta(3 * Round(1.5, Uniform(50, 1000)), 1.0)


def _unrolled(schedule: Schedule) -> list[Phase]:
    return [Phase(round_, 1) for round_, count in schedule for _ in range(count)]


@pytest.mark.slow
def test_more_noise_fewer_clients_fewer_rounds_cost_less():
    def upper(noise: float, cohort: int, rounds: int) -> float:
        return game_epsilon(rounds * Round(noise, Uniform(cohort, 100)), 1e-4).upper

    here = upper(2.0, 10, 30)
    assert upper(2.2, 10, 30) < here
    assert upper(2.0, 9, 30) < here
    assert upper(2.0, 10, 27) < here


def test_what_the_game_is_not_about_is_refused_in_words():
    with pytest.raises(Unsupported, match="use the accountant"):
        game_epsilon(10 * Round(1.0, Poisson(0.1)), 1e-5)
    with pytest.raises(Unsupported, match="noise multiplier of at least"):
        game_epsilon(10 * Round(0.1, Uniform(1, 10)), 1e-5)
    with pytest.raises(NotConverged, match="delta"):
        game_epsilon(10 * Round(1.0, Uniform(1, 10)), 1e-30)
    with pytest.raises(NotConverged, match=r"the game .*would need"):
        game_epsilon(200_000 * Round(4.0, Uniform(1, 10)), 1e-5)
    assert game_epsilon(Schedule(), 1e-5).upper == 0.0
    assert game_epsilon(1 * Round(5.0, Uniform(1, 100)), 0.5).upper == 0.0


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("missing", "adjacency"), [(1, "replace-one"), (30, "zero-out"), (3, "add-remove")]
)
def test_rates_that_round_up_to_one(missing, adjacency):
    """Cohorts of all but a few of 1e17 clients cost what everybody costs, or a little less."""
    almost = Round(1.5, Uniform(10**17 - missing, 10**17), adjacency)
    near = dpacct.epsilon(5 * almost, delta=1e-3)
    everybody = dpacct.epsilon(5 * Round(1.5, Full(), "replace-one"), delta=1e-3)
    assert near.upper <= everybody.upper * (1 + 1e-6)
    assert near.lower > 0.3 * everybody.lower
    if adjacency == "replace-one":
        assert near.upper == pytest.approx(everybody.upper, rel=1e-6)
    mixed = 2 * almost + 2 * Round(2.0, Uniform(1, 10), adjacency)
    assert dpacct.epsilon(mixed, delta=1e-3).upper > 0


def test_an_epsilon_beyond_all_losses_is_answered_without_a_warning():
    schedule = 40 * Round(2.7, Uniform(704, 1000)) + Round(5.4, Full(), "replace-one")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert dpacct.delta(schedule, epsilon=1e7).upper < 1e-300
