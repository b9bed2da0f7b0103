"""Other releases as stages of the game. The oracle enumerates losses and places in the plane."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import dpacct
from dpacct import (
    ApproximateDP,
    Epoch,
    ExponentialMechanism,
    Laplace,
    PureDP,
    RandomizedResponse,
    Round,
    Schedule,
    Uniform,
    ZeroConcentratedDP,
)
from dpacct.pairs.dominating import Direction, Mechanism, achieved_pairs
from dpacct.tight.accountant import TightAccountant
from dpacct.tight.game import rounds as beside
from dpacct.tight.game.bounds import game_delta, game_epsilon
from dpacct.tight.profiles import finite_pairs
from tests.oracles.fixed_size_game import fixed_size_last, two_rounds
from tests.strategies import log_uniform
from tests.tight.game.test_laws import between, mirrored, own_profile

SMALL, LARGE = (Laplace(epsilon=loss, adjacency="replace-one") for loss in (0.1, 0.5))
PLAYED = 200 * Round(2.4, Uniform(100, 2000))


def laplace(epsilon: float, points: int = 20001) -> tuple[np.ndarray, np.ndarray]:
    """Losses of Laplace noise, and their masses: atoms at both ends, and a density in between."""
    x = np.linspace(0.0, 1.0, points)
    width = np.full(points, 1 / (points - 1))
    width[[0, -1]] /= 2
    losses = np.concatenate([[epsilon, -epsilon], epsilon * (1 - 2 * x)])
    inner = width * epsilon / 2 * np.exp(-epsilon * x)
    return losses, np.concatenate([[0.5, 0.5 * math.exp(-epsilon)], inner])


def laplace_last(epsilon: float) -> Callable[[np.ndarray], np.ndarray]:
    """What Laplace noise is worth at each loss, if nothing follows."""
    losses, masses = laplace(epsilon, 2001)
    places = np.sinh(np.linspace(-9.0, 9.0, 801)) * (8.0 / math.sinh(9.0))
    worth = [
        float(np.maximum(masses - math.exp(-y) * masses * np.exp(-losses), 0).sum()) for y in places
    ]
    return lambda left: np.interp(left, places, worth)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("q", "z", "loss", "budget"), [(0.5, 2.0, 0.7, 0.3), (0.3, 0.8, 1.0, 0.0), (0.1, 1.2, 0.5, 0.2)]
)
def test_a_release_before_and_after_a_round(q: float, z: float, loss: float, budget: float) -> None:
    """It costs more where it comes first, and is charged for that in any place."""
    losses, masses = laplace(loss)
    first = float(masses @ fixed_size_last(q, z)(losses - budget))
    after = two_rounds(q, z, budget, 6, 181, laplace_last(loss))
    assert after < 0.96 * first
    one = 1 * Laplace(epsilon=loss, adjacency="replace-one")
    other = 1 * Round(z, Uniform(round(100 * q), 100))
    for plan, brute in ((one + other, first), (other + one, after)):
        found = game_delta(plan, budget)
        assert 0.96 * brute < found.lower <= brute * (1 + 1e-4)
        assert first * (1 - 1e-4) <= found.upper <= 1.005 * first


Pair = list[tuple[float, float]]


def worst(
    games: list[list[Pair]], left: list[Pair], k: float, p: float = 1.0, q: float = 1.0
) -> float:
    """The largest delta of rounds in their order and others at any time, as results choose."""
    if not games and not left:
        return max(p - k * q, 0.0)
    nexts = [(pair, games[1:], left) for pair in games[0]] if games else []
    nexts += [(pair, games, left[:i] + left[i + 1 :]) for i, pair in enumerate(left)]
    return max(sum(worst(*then, k, p * a, q * b) for a, b in pair) for pair, *then in nexts)


def test_no_order_costs_more_than_other_releases_first() -> None:
    random = np.random.default_rng(5)

    def some(most: int) -> list[Pair]:
        sizes = random.integers(2, 4, int(random.integers(1, most + 1)))
        drawn = (random.dirichlet(np.full(size, 0.7), 2) for size in sizes)
        return [list(zip(*pair.tolist(), strict=True)) for pair in drawn]

    for _ in range(40):
        games, others, k = [some(3), some(3)], some(2), math.exp(random.exponential(0.4))
        first = 0.0
        for outcome in itertools.product(*others):
            p, q = (math.prod(part) for part in zip(*outcome, strict=True))
            first += worst(games, [], k, p, q)
        assert worst(games, others, k) <= first * (1 + 1e-12)


def answered(loss: float, epsilon: float) -> float:
    """The profile of randomized response."""
    return max(0.0, math.exp(epsilon) - math.exp(loss)) / (1 + math.exp(epsilon))


LAWS: list[tuple[Mechanism, Callable[[float], float]]] = [
    (
        Laplace(epsilon=0.3, adjacency="replace-one"),
        lambda loss: max(0.0, -math.expm1((loss - 0.3) / 2)),
    ),
    (RandomizedResponse(0.4), lambda loss: answered(loss, 0.4)),
    (ApproximateDP(0.4, 1e-3), lambda loss: 1e-3 + (1 - 1e-3) * answered(loss, 0.4)),
]


@pytest.mark.parametrize(("release", "exact"), LAWS)
@pytest.mark.parametrize("step", [2.0**-4, 2.0**-7])
def test_laws_lie_on_either_side_of_a_profile(release, exact, step) -> None:
    losses = between(step)
    profile = np.array([exact(loss) for loss in losses])
    above = beside.law_above(1 * release, step, 1e-12, Direction.REMOVE)
    assert (own_profile(above, step, losses) >= profile * (1 - 1e-12)).all()
    assert own_profile(above, step, losses) == pytest.approx(profile, abs=1.1 * step**2 + 1e-11)
    # Masses of Q without a loss are those of an infinite loss in the other direction.
    assert (mirrored(above, step, losses) + above.infinite >= profile * (1 - 1e-12)).all()
    below = beside.law_below(1 * release, step, Direction.REMOVE)
    assert (own_profile(below, step, losses) <= profile * (1 + 1e-12)).all()
    assert (mirrored(below, step, losses) <= profile * (1 + 1e-12)).all()
    if not isinstance(release, ApproximateDP):
        assert own_profile(below, step, losses) == pytest.approx(profile, abs=0.4 * step)


def test_both_directions_count_if_a_release_has_two() -> None:
    epoch = Epoch(1.0, 4, adjacency="zero-out")
    profiles = {
        way: own_profile(beside.law_above(1 * epoch, 2.0**-5, 1e-12, way), 2.0**-5, np.array([1.0]))
        for way in Direction
    }
    remove, add = (float(profiles[way][0]) for way in Direction)
    assert abs(remove - add) > 0.1 * remove
    # A law has one side from either direction.
    law, step = beside.law_above(1 * epoch, 2.0**-5, 1e-12, Direction.REMOVE), 2.0**-5
    back = finite_pairs(1 * epoch, achieved_pairs)[Direction.ADD][1]
    losses = step * np.array([1.0, 8.0, 32.0])
    least = np.array([back.delta(loss).lower for loss in losses])
    assert (mirrored(law, step, losses) >= least).all()
    assert mirrored(law, step, losses) == pytest.approx(least, rel=0.05, abs=1e-4)
    plan = 2 * Round(2.0, Uniform(10, 100), "zero-out") + epoch
    found = game_epsilon(plan, 1e-4)
    assert dpacct.epsilon(1 * epoch, delta=1e-4).lower <= found.lower <= found.upper


def test_promises_of_zcdp_add_their_rhos() -> None:
    one, other = (ZeroConcentratedDP(rho, adjacency="replace-one") for rho in (0.02, 0.03))
    together = dpacct.epsilon(PLAYED + 2 * one + 2 * other, delta=1e-5).upper
    alone = dpacct.epsilon(
        PLAYED + 1 * ZeroConcentratedDP(0.1, adjacency="replace-one"), delta=1e-5
    )
    assert together == pytest.approx(alone.upper, rel=1e-3)


@pytest.mark.parametrize(
    ("releases", "most"),
    [
        # Adding up proves 3.905, 4.905 and 3.823.
        (5 * SMALL, 3.53),
        (5 * SMALL + 2 * LARGE, 4.3),
        (1 * ApproximateDP(0.5, 1e-6, "replace-one"), 3.8229),
    ],
)
def test_a_stage_costs_less_than_adding_up(releases: Schedule, most: float) -> None:
    plan = PLAYED + releases
    found = dpacct.epsilon(plan, delta=1e-5)
    assert dpacct.epsilon(PLAYED, delta=1e-5).lower <= found.lower < found.upper <= most
    assert dpacct.delta(plan, epsilon=found.upper).upper <= 1e-5 * (1 + 1e-9)
    assert TightAccountant().of_pairs.epsilon(plan, 1e-5).lower <= found.lower


@settings(max_examples=max(2, settings.default.max_examples // 10))
@given(
    loss=log_uniform(0.01, 3.0),
    count=st.integers(1, 6),
    noise=log_uniform(0.8, 5.0),
    rounds=st.integers(1, 40),
    relation=st.sampled_from(["replace-one", "zero-out"]),
)
def test_between_the_parts_and_their_sum(loss, count, noise, rounds, relation) -> None:
    played = rounds * Round(noise, Uniform(5, 100), relation)
    others = count * Laplace(epsilon=loss, adjacency=relation)
    both, alone = (dpacct.epsilon(plan, delta=1e-5) for plan in (played + others, played))
    assert max(alone.lower, dpacct.epsilon(others, delta=1e-5).lower) <= both.upper
    assert both.lower <= both.upper <= alone.upper + count * loss * (1 + 1e-9)
    assert (
        both.lower >= 0.97 * dpacct.epsilon(others + played, delta=1e-5, accountant="pairs").lower
    )


def two_losses(t: float, epsilon: float) -> tuple[float, float]:
    """The probability of t, else t - epsilon, where the candidates with it have their score up."""
    top = math.expm1(t - epsilon) / math.expm1(-epsilon)
    return top, 1 - top


def chosen_again(count: int, each: float, epsilon: float) -> float:
    """delta of exponential mechanisms, each with the best t of a mesh at each past."""
    places = np.linspace(0.0, each, 801)[1:-1]
    losses = np.linspace(-count * each - epsilon - 0.01, count * each + 0.01, 4001)
    left = np.maximum(0.0, -np.expm1(-np.maximum(losses, 0.0)))
    for _ in range(count):
        ways = [(t, *two_losses(t, each)) for t in places[::4]]
        moved = [
            np.interp(losses + t, losses, left) * up
            + np.interp(losses + t - each, losses, left) * down
            for t, up, down in ways
        ]
        left = np.max(moved, axis=0)
    return float(np.interp(-epsilon, losses, left))


@pytest.mark.parametrize(
    ("count", "each", "epsilon"), [(2, 1.0, 0.2), (3, 0.5, 0.3), (6, 0.2, 0.1)]
)
def test_scores_that_react_choose_again(count: int, each: float, epsilon: float) -> None:
    truth = chosen_again(count, each, epsilon)
    found = dpacct.delta(count * ExponentialMechanism(each), epsilon=epsilon)
    assert found.lower <= truth * (1 + 1e-3)
    assert truth * (1 - 1e-3) <= found.upper <= 1.01 * truth
    assert found.lower >= 0.97 * truth
    if count == 2:
        assert truth == pytest.approx(0.2365, abs=1e-4)


@pytest.mark.parametrize("each", [0.1, 2.0])
def test_a_range_of_places_lies_above_all_of_them(each: float) -> None:
    kind, step = ExponentialMechanism(each), 2.0**-9
    losses = np.linspace(0.0, each, 41)
    above, below = beside.choices_above(kind, step), beside.choices_below(kind, step)
    for share in (0.0, 0.003, 0.31, 0.4999, 0.77, 1.0):
        law = above[min(int(share * beside.RANGES), beside.RANGES - 1)]
        for t, profile in ((share * each, own_profile), ((1 - share) * each, mirrored)):
            exact = two_losses(t, each)[0] * np.maximum(-np.expm1(losses - t), 0.0)
            assert (profile(law, step, losses) >= exact * (1 - 1e-12)).all()
            assert profile(law, step, losses) == pytest.approx(exact, abs=0.02 * each)
    for number, law in enumerate(below, 1):
        t = number * each / (len(below) + 1)
        for place, profile in ((t, own_profile), (each - t, mirrored)):
            exact = two_losses(place, each)[0] * np.maximum(-np.expm1(losses - place), 0.0)
            assert (profile(law, step, losses) <= exact * (1 + 1e-12)).all()


def test_exponential_mechanisms_beside_rounds_and_others() -> None:
    one, other = (ExponentialMechanism(e, "replace-one") for e in (0.1, 0.3))
    plan = 5 * one + 20 * Round(2.0, Uniform(10, 100)) + 2 * SMALL + 3 * other
    found = dpacct.epsilon(plan, delta=1e-5)
    fixed = TightAccountant().of_pairs.epsilon(plan, 1e-5)
    assert fixed.lower <= found.lower * 1.01
    assert found.lower <= found.upper < fixed.upper
    assert dpacct.delta(plan, epsilon=found.upper).upper <= 1e-5 * (1 + 1e-9)


@pytest.mark.parametrize(
    "plan",
    [
        2 * ExponentialMechanism(600.0),
        3 * ExponentialMechanism(1e-10),
        3 * ExponentialMechanism(0.5) + 2 * ZeroConcentratedDP(100.0),
        20_000 * ExponentialMechanism(0.01),
        20 * Round(2.4, Uniform(100, 2000)) + 2 * ZeroConcentratedDP(100.0, "replace-one"),
        20 * Round(2.4, Uniform(100, 2000)) + 5 * PureDP(500.0, "replace-one"),
    ],
)
def test_what_no_grid_holds_has_the_bound_of_fixed_pairs(plan: Schedule) -> None:
    found, fixed = dpacct.epsilon(plan, delta=1e-6), TightAccountant().of_pairs.epsilon(plan, 1e-6)
    assert fixed.lower <= found.lower <= found.upper <= fixed.upper


@pytest.mark.parametrize("epsilon", [0.754, 1.2])
def test_a_delta_below_the_mass_of_infinite_losses_has_the_bound_of_pairs(epsilon):
    other = ApproximateDP(0.1089, 1e-3, "replace-one")
    together = 1 * Round(3.7393, Uniform(1, 4)) + 1 * other
    spent = dpacct.delta(together, epsilon=epsilon)
    assert spent.lower <= spent.upper
    assert spent.upper >= 1e-3
    alone = dpacct.delta(1 * Round(3.7393, Uniform(1, 4)), epsilon=epsilon - 0.1089)
    assert spent.upper <= (1e-3 + alone.upper) * (1 + 1e-6)
