"""Rounds whose loss is nearly an atom, where neither few large losses nor small ones decide alone.

Against moments inverted in 60-digit arithmetic, which share no code with the package; two rounds
alone are in `test_two_rounds`.
"""

from __future__ import annotations

import math

import pytest
from mpmath import mpf

from dpacct import DiscreteGaussian, Laplace, Poisson, Round, delta, epsilon
from dpacct.tight.contour import Complement, lies_below
from dpacct.tight.engines import NEXT_TO_NOTHING, far_delta, inversion_delta
from tests.oracles import contour, loss_grid
from tests.oracles.answers import known
from tests.oracles.sampled_gaussian import log_moment
from tests.tight.compositions import ADD, REMOVE, compose
from tests.truth import check

SIXTY = [(0.05, 0.9, 60)]


def exact_delta(at: float, *, remove: bool) -> mpf:
    (found,) = known(contour.deltas, [at], SIXTY, remove=remove)
    return found


@pytest.mark.parametrize("direction", [REMOVE, ADD])
def test_left_of_zero_the_contour_holds_the_truth(direction):
    remove = direction is REMOVE
    at = 0.4
    exact = exact_delta(at, remove=remove)
    composition = compose(SIXTY, direction)
    for guess in (at, 0.5 * at, 2 * at):
        for log_delta in (-12.0, 0.0):
            found = Complement(composition, guess, log_delta).delta(at)
            check(found, exact, spare=1e-14)
    found = Complement(composition, at, math.log(float(exact))).delta(at)
    assert found.width <= 1e-9 * float(exact)


@pytest.mark.parametrize("direction", [REMOVE, ADD])
@pytest.mark.parametrize("tilt", [-1.0, -0.7, -0.25, 0.0])
def test_moments_left_of_zero_are_between_their_bounds(tilt, direction):
    order = 1 + tilt if direction is REMOVE else -tilt
    found = compose([*SIXTY, (1.0, 9.0, 4)], direction).log_moment(tilt)
    exact = 60 * log_moment(order, 0.05, 0.9) + mpf(4) / 81 * tilt * (1 + tilt) / 2
    assert float(found.lower) <= exact <= float(found.upper)
    assert float(found.upper - found.lower) < 1e-11


def test_the_slope_left_of_zero_is_that_of_log_delta():
    bounds = Complement(compose([(0.45, 6.0, 3000)]), 12.0, 0.0)
    assert lies_below(compose([(0.45, 6.0, 3000)]), 1.0)
    (low, _), (middle, slope), (high, _) = (bounds.delta_and_slope(e) for e in (11.99, 12.0, 12.01))
    assert slope == pytest.approx(math.log(high.upper / low.upper) / 0.02, rel=1e-3)
    assert low.lower > middle.upper > middle.lower > high.upper


@pytest.mark.parametrize(
    ("rate", "noise", "rounds", "at"),
    [(0.446, 6.53, 110_486, 247.0), (2.85e-6, 0.17, 5_934_512, 0.0339)],
)
def test_delta_below_most_losses_is_narrow(rate, noise, rounds, at):
    found = delta(rounds * Round(noise, Poisson(rate)), epsilon=at)
    assert found.lower > 0.5
    assert found.width <= 1e-7


def test_far_out_nothing_is_left():
    # One loss is at most 0.006 but for a probability of 1e-297: four of them make no 0.0399.
    four = compose([(1.23e-5, 5.95, 4)])
    assert 0.0 < far_delta(four, 0.0399) <= NEXT_TO_NOTHING
    assert inversion_delta(four, 0.0399).upper <= NEXT_TO_NOTHING
    # Where something is left, at least that is told.
    assert far_delta(compose([(1.86e-6, 3.17, 2)]), 0.02095) > 2.494e-198
    assert far_delta(compose(SIXTY), 0.4) >= exact_delta(0.4, remove=True)
    assert far_delta(four, 0.0) == 1.0
    assert far_delta(compose([(0.6, 5.0, 4)]), 1.0) == 1.0


# Rate, noise, rounds, delta, and epsilon by a method that splits large and small losses, which
# the package no longer has. Its width was below 1e-7. Then the width allowed here.
EPSILONS = [
    (0.00111, 1.7, 488, 5.2e-16, 0.132690009, 1e-5),
    (7.59e-6, 0.0596, 29, 1e-11, 337.20693, 1e-5),
    (5.853583507055876e-05, 0.28, 2, 3.8e-19, 24.79203256, 1e-5),
    (5.638e-7, 0.33847, 233_150, 0.00287, 0.0071915227, 2e-3),
    (0.00404, 0.2443, 355, 3.5e-18, 128.5762585, 1e-5),
    (0.000105, 0.05606, 52_679, 2.6e-20, 5838.27, 1e-5),
    (1.78e-6, 0.139, 13_246, 1.1e-14, 121.7045382, 1e-5),
    (4.05e-7, 91.2, 15_800, 1.2e-20, 4.06728416439e-6, 1e-9),
    (7.21e-7, 349.0, 5, 1.2e-16, 2.37931362312e-8, 1e-9),
    # A first contour is as wide as is promised, and no other one is tried.
    (0.0284, 420.0, 2, 2.1e-16, 0.000638943785563, 1e-6),
    (4.35e-7, 157.0, 1924, 2e-13, 5.25270910949e-7, 1e-9),
    # With so small a delta and rate the bracket is wide.
    (8.163e-7, 1.025, 409_171, 7.4e-17, 0.00470507891, 1.0),
    (1.22e-6, 1.24, 100_860, 6.2e-20, 0.0029787657118, 0.1),
    (1.08e-7, 0.584, 1_192_296, 8.9e-18, 0.3757071, 1.0),
    (2.14e-5, 0.879, 1108, 5e-18, 0.275881018, 1.0),
    (2e-7, 0.75, 7, 6e-19, 0.004760368, 1.0),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("rate", "noise", "rounds", "most", "truth", "width"), EPSILONS)
def test_epsilon_holds_what_another_method_found(rate, noise, rounds, most, truth, width):
    found = epsilon(rounds * Round(noise, Poisson(rate)), delta=most)
    assert found.lower <= truth * (1 + 1e-7)
    assert found.upper >= truth * (1 - 1e-7)
    assert 0.0 < found.upper <= 2 * truth if width < 1.0 else found.upper <= 10 * truth
    assert found.width <= width * found.upper


# In the first plan rounding hides all but a contour nearer to the saddle point. In the second one,
# moments are known only up to a tilt, which the search for the saddle point must not leave. In
# the third one delta falls in steps, and its slopes lead far away.
NARROW = [
    (19 * Round(0.8392, Poisson(0.001712177525)), 1.0544793825e-170),
    (71 * Round(3.5416, Poisson(1.294e-7)) + 2 * Laplace(3.0), 1.2268e-23),
    (144_415 * Round(0.463, Poisson(1.1508e-6)) + 5 * DiscreteGaussian(0.6, 1), 2.5354e-8),
]


@pytest.mark.parametrize(("plan", "most"), NARROW)
def test_a_search_goes_where_the_bracket_is_narrow(plan, most):
    found = epsilon(plan, delta=most)
    assert found.width <= 1e-6 * found.upper


# As `EPSILONS`, for delta: rate, noise, rounds, epsilon, delta.
DELTAS = [
    (5.82e-6, 1.37, 32_402, 0.009285, 3.4922668e-24),
    (5.37e-5, 3.38, 792, 0.05656, 2.4321946e-125),
    (1.06e-5, 0.0563, 136, 1562.0, 3.9152333e-37),
    (5.93e-4, 0.15, 6377, 0.0605, 0.970982833),
]


@pytest.mark.parametrize(("rate", "noise", "rounds", "at", "truth"), DELTAS)
def test_delta_holds_what_another_method_found(rate, noise, rounds, at, truth):
    found = delta(rounds * Round(noise, Poisson(rate)), epsilon=at)
    assert found.lower <= truth * (1 + 1e-7)
    assert found.upper >= truth * (1 - 1e-7)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_delta_is_at_most_the_sum_of_the_rounds_at_zero(adjacency):
    """With so little noise the sum is the truth: hardly any loss is less than certain."""
    found = delta(16 * Round(0.1, Poisson(1e-6), adjacency), epsilon=0.0)
    kind = "replace" if adjacency == "replace-one" else "remove"
    lower, _ = known(loss_grid.deltas, kind, 1e-6, 0.1, 16, 0.0, 0.02, 300.0)
    assert lower <= found.upper <= 16e-6 * (1 + 1e-9)
