"""Random allocation: published figures, contour integrals, samples, and each term of the proof."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import dpacct
from dpacct import Adjacency, Epoch, Interval, InvalidParameter, Poisson, Round, Schedule
from dpacct.epochs.ratios import RatioPair
from dpacct.pairs.dominating import Direction, achieved_pairs, proven_pairs
from dpacct.tight.composition import Composition
from dpacct.tight.engines import composed_delta, composed_epsilon
from evidence.ranges import GOAL, scan_epochs
from tests.oracles import allocation
from tests.oracles.answers import known
from tests.truth import check

# Steps, noise, epochs, delta, remove, add: convex-order grids with Richardson extrapolation.
FIGURES = [
    (100, 1.0, 1, 1e-5, 0.620940, 0.421953),
    (10, 2.0, 1, 1e-5, 0.622059, 0.586421),
    (1000, 1.0, 10, 1e-6, 0.540054, 0.522172),
    (10, 2.0, 30, 1e-5, 3.97590, 3.93174),
    (100, 0.8, 1, 1e-6, 1.874823, 0.675150),
]


DIRECTIONS = (Direction.REMOVE, Direction.ADD)


def _bounds(schedule: Schedule, direction: Direction, ask: Callable, at: float) -> Interval:
    """Return the achieved lower and the proven upper answer of one direction."""
    lower, upper = (
        ask(Composition.of_schedule(schedule, pairs, direction), at)
        for pairs in (achieved_pairs, proven_pairs)
    )
    return Interval.bracket(lower.lower, upper.upper)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("steps", "noise", "epochs", "delta", "remove", "add"), FIGURES)
def test_figures_lie_between_the_bounds_of_each_direction(steps, noise, epochs, delta, remove, add):
    schedule = epochs * Epoch(noise, steps)
    for direction, figure in zip(DIRECTIONS, (remove, add), strict=True):
        found = _bounds(schedule, direction, composed_epsilon, delta)
        check(found, figure, noise=5.1 * 10.0 ** (-6 if figure < 3 else -5) / 10)
        assert found.upper <= found.lower * (1 + 1e-3)
    whole = dpacct.epsilon(schedule, delta=delta)
    assert whole.lower <= max(remove, add) + 5e-6 <= whole.upper + 1e-5
    assert whole.upper <= whole.lower * (1 + 3e-4)


@settings(max_examples=5)
@given(noise=st.floats(0.7, 4.0), steps=st.integers(8, 400), gain=st.floats(0.02, 1.0))
def test_one_epoch_agrees_with_a_contour_integral(noise, steps, gain):
    epoch = Epoch(noise, steps)
    epsilon = gain * dpacct.epsilon(1 * epoch, delta=1e-6).upper
    truths = allocation.epoch_delta(epsilon, noise, steps)
    assume(not any(map(math.isnan, truths)))
    for direction, truth in zip(DIRECTIONS, truths, strict=True):
        found = _bounds(1 * epoch, direction, composed_delta, epsilon)
        # The oracle subtracts numbers of about e^eps.
        check(found, truth, spare=1e-8, noise=1e-12 * math.exp(epsilon))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("noise", [0.7, 1.5, 5.0])
def test_an_epoch_of_two_steps_agrees_with_an_integral_over_the_other_step(noise):
    for epsilon in (0.3 / noise, 1.5 / noise**2, 4 / noise):
        truths = known(allocation.two_steps_delta, epsilon, noise)
        for direction, truth in zip(DIRECTIONS, truths, strict=True):
            found = _bounds(1 * Epoch(noise, 2), direction, composed_delta, epsilon)
            check(found, truth, spare=1e-6, noise=1e-13)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("noise", "steps", "epochs"), [(1.0, 20, 5), (0.7, 6, 3), (3.0, 20, 20)])
def test_several_epochs_agree_with_samples(noise, steps, epochs):
    schedule = epochs * Epoch(noise, steps)
    # About where delta is 0.05, and the same whatever the last digits are.
    epsilon = float(f"{dpacct.epsilon(schedule, delta=0.05).upper:.3g}")
    sampled = known(allocation.sampled_delta, epsilon, noise, steps, epochs, 40_000, seed=7)
    for direction, (mean, error) in zip(DIRECTIONS, sampled, strict=True):
        found = _bounds(schedule, direction, composed_delta, epsilon)
        check(found, mean, noise=5 * error)
        assert found.upper <= 1.01 * found.lower


def test_zero_out_and_add_remove_cost_the_same_and_replace_one_is_refused():
    zero_out, add_remove = Epoch(1.0, 50), Epoch(1.0, 50, adjacency="add-remove")
    assert zero_out.adjacency is Adjacency.ZERO_OUT
    assert dpacct.epsilon(2 * zero_out, delta=1e-5) == dpacct.epsilon(2 * add_remove, delta=1e-5)
    with pytest.raises(InvalidParameter, match="zero-out or add-remove"):
        Epoch(1.0, 50, adjacency="replace-one")


def test_passes_over_one_allocation_are_an_epoch_with_less_noise():
    kept = dpacct.epsilon(1 * Epoch(4.0, 30, passes=4), delta=1e-5)
    afresh = dpacct.epsilon(1 * Epoch(2.0, 30), delta=1e-5)
    assert kept.upper == pytest.approx(afresh.upper, rel=1e-9)
    assert kept.lower == pytest.approx(afresh.lower, rel=1e-9)
    # Drawing afresh costs less.
    assert dpacct.epsilon(4 * Epoch(4.0, 30), delta=1e-5).upper < kept.lower


def test_an_epoch_of_one_step_is_a_round_of_full_participation():
    full = dpacct.epsilon(3 * Round(1.5, adjacency="zero-out"), delta=1e-5)
    assert dpacct.epsilon(3 * Epoch(1.5, 1), delta=1e-5).upper == pytest.approx(full.upper)


def test_allocation_costs_less_than_poisson_here_and_never_more_than_one_participation():
    schedule = 10 * Epoch(1.0, 1000)
    poisson = dpacct.epsilon(10_000 * Round(1.0, Poisson(1e-3), "zero-out"), delta=1e-6)
    assert dpacct.epsilon(schedule, delta=1e-6).upper < poisson.lower
    once = dpacct.epsilon(10 * Round(1.0, adjacency="zero-out"), delta=1e-6)
    assert dpacct.epsilon(schedule, delta=1e-6).upper < once.upper


@pytest.mark.parametrize(("noise", "steps"), [(0.01, 100), (1e6, 10)])
def test_outside_the_range_of_laws_simple_bounds_hold(noise, steps):
    epoch = Epoch(noise, steps)
    assert not epoch.is_narrow
    bracket = dpacct.epsilon(2 * epoch, delta=1e-6)
    once = dpacct.epsilon(2 * Round(noise, adjacency="zero-out"), delta=1e-6)
    one_step = dpacct.epsilon(2 * Round(noise, Poisson(1 / steps), "zero-out"), delta=1e-6)
    assert bracket.upper == pytest.approx(once.upper)
    assert bracket.lower == pytest.approx(one_step.lower)


def test_epochs_add_up_with_rounds_and_other_releases():
    both = 100 * Round(1.0, Poisson(0.01), "zero-out") + 5 * Epoch(1.0, 40)
    bracket = dpacct.epsilon(both, delta=1e-5)
    assert bracket.upper <= 1.001 * bracket.lower
    alone = dpacct.epsilon(5 * Epoch(1.0, 40), delta=1e-5)
    assert alone.upper < bracket.lower
    mixed = dpacct.epsilon(3 * Epoch(1.0, 40) + 2 * Epoch(1.0, 36), delta=1e-5)
    assert alone.lower < mixed.upper
    assert mixed.upper <= 1.001 * mixed.lower


@pytest.mark.parametrize("relation", ["zero-out", "add-remove"])
def test_epochs_that_hardly_differ_cost_what_equal_ones_do(relation):
    equal = 3 * Epoch(0.9, 50, adjacency=relation)
    noises = (0.9, 0.9 * (1 + 1e-7), 0.9 * (1 - 1e-7))
    plan = functools.reduce(operator.add, (1 * Epoch(z, 50, adjacency=relation) for z in noises))
    for delta in (1e-3, 1e-9):
        alike, mixed = (dpacct.epsilon(each, delta=delta) for each in (equal, plan))
        assert mixed.lower <= alike.upper * (1 + 1e-6)
        assert alike.lower <= mixed.upper * (1 + 1e-6)
        assert mixed.upper < mixed.lower * 1.001


@given(
    st.lists(
        st.tuples(st.floats(0.4, 8.0), st.integers(2, 300), st.integers(1, 4)),
        min_size=2,
        max_size=4,
    ),
    st.floats(1e-9, 1e-3),
)
@settings(max_examples=max(2, settings.default.max_examples // 5))
def test_a_mixture_of_epochs_agrees_with_contours(parts, delta):
    plan = functools.reduce(operator.add, (n * Epoch(z, steps) for z, steps, n in parts))
    found = dpacct.epsilon(plan, delta=delta)
    # A round that hardly matters takes the schedule to a contour.
    beside = dpacct.epsilon(plan + 1 * Round(3e4, adjacency="zero-out"), delta=delta)
    assert found.lower <= beside.upper
    assert beside.lower <= found.upper * (1 + 1e-3)
    assert found.upper < found.lower * 1.003
    again = dpacct.delta(plan, epsilon=found.upper)
    assert again.lower <= delta * (1 + 1e-9)
    assert again.upper >= delta * (1 - 1e-2)


def test_noise_for_a_budget():
    found = dpacct.calibrate(schedule=5 * Epoch(1.0, 50), epsilon=2.0, delta=1e-6)
    assert 0.999 * 2.0 < found.epsilon.lower <= found.epsilon.upper <= 2.0
    assert list(found.schedule.distinct()) == [Epoch(found.noise_scale, 50)]


def test_means_of_upper_and_lower_laws():
    for direction in DIRECTIONS:
        for pairs in (proven_pairs, achieved_pairs):
            (pair,) = pairs(Epoch(1.0, 64), direction)
            assert isinstance(pair, RatioPair)
            law = pair.law
            assert law.p.sum() == pytest.approx(1.0, abs=1e-9)
            assert law.q.sum() == pytest.approx(1.0, abs=1e-9)
            if pairs is proven_pairs:
                assert np.allclose(law.p, law.q * np.exp(law.losses))


def test_a_delta_below_what_rounding_charges_has_the_bound_of_one_participation():
    schedule = 10 * Epoch(1.0, 100)
    tiny = dpacct.epsilon(schedule, delta=1e-30)
    once = dpacct.epsilon(10 * Round(1.0, adjacency="zero-out"), delta=1e-30)
    assert dpacct.epsilon(schedule, delta=1e-15).upper < tiny.upper <= 1.2 * once.upper
    assert 0.0 < tiny.lower <= tiny.upper


@pytest.mark.slow
def test_random_settings_are_narrow_and_hold_the_truth():
    for setting in scan_epochs(25, seed=11):
        assert setting.width <= GOAL
        assert setting.lower <= setting.upper
        assert math.isnan(setting.delta_truth) or setting.is_inside
