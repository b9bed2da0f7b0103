from __future__ import annotations

import math

import numpy as np
import pytest

import dpacct
from dpacct.pairs.dominating import Direction, achieved_pairs, proven_pairs
from dpacct.rounds import Full, Poisson, Round, Uniform
from dpacct.tight.accountant import TightAccountant
from dpacct.tight.composition import Composition
from dpacct.tight.engines import inversion_epsilon
from dpacct.tight.game.bounds import game_delta, game_epsilon
from dpacct.tight.game.kernels import (
    Grid,
    TurnGuide,
    absence_profile,
    contribution_profile,
    guided_turns,
    opposed_back_line,
    zero_out_above,
    zero_out_below,
)
from dpacct.tight.game.play import Frame, repeated_below
from tests.oracles.answers import known
from tests.oracles.fixed_size_game import cohorts, one_round, zero_out_two_rounds
from tests.tight.game.test_laws import own_profile

REMOVE = Direction.REMOVE
LOSSES = np.array([0.0, 0.01, 0.05, 0.2])


def place(turn: float) -> tuple[float, float]:
    return math.cos(math.pi * turn), math.sin(math.pi * turn)


@pytest.mark.parametrize(("rate", "noise"), [(0.05, 2.4), (0.3, 0.8)])
@pytest.mark.parametrize("turn", [0.25, 0.8, 1.0])
def test_the_profiles_are_those_of_densities_in_the_plane(rate, noise, turn):
    points = place(turn), (1.0, 0.0), (0.0, 0.0)
    gone = contribution_profile(rate, noise, turn, LOSSES)
    back = absence_profile(rate, noise, min(turn, 0.95), LOSSES)
    line = opposed_back_line(rate, noise, LOSSES)[0]
    for k, loss in enumerate(LOSSES):
        first = one_round(
            rate, noise, points, lambda p, q, y=loss: np.maximum(p - np.exp(y) * q, 0)
        )
        other = one_round(
            rate, noise, points, lambda p, q, y=loss: np.maximum(q - np.exp(y) * p, 0)
        )
        assert first == pytest.approx(gone.upper[k], rel=3e-3, abs=1e-8)
        assert gone.lower[k] <= gone.upper[k]
        assert line.lower[k] <= other * (1 + 3e-3) + 1e-8
        assert other <= back.upper[k] * (1 + 3e-3) + 1e-8
        if turn < 0.95:
            assert other == pytest.approx(back.upper[k], rel=3e-3, abs=1e-6)


def test_more_turn_is_worse_one_way_and_better_the_other():
    turns = np.linspace(0.05, 0.95, 10)
    gone = [contribution_profile(0.1, 1.5, float(t), LOSSES) for t in turns]
    back = [absence_profile(0.1, 1.5, float(t), LOSSES) for t in turns]
    for k in range(9):
        assert (gone[k].lower <= gone[k + 1].upper).all()
        assert (back[k + 1].lower <= back[k].upper).all()
    assert (gone[-1].lower <= contribution_profile(0.1, 1.5, 1.0, LOSSES).upper).all()


@pytest.mark.parametrize("cohort", [1, 2])
def test_no_data_sets_exceed_the_worst_angle(cohort):
    generator, clients, noise = np.random.default_rng(cohort), 4, 1.1
    rate = cohort / clients

    def phi(p: np.ndarray, q: np.ndarray) -> np.ndarray:
        return np.maximum(p - 1.05 * q, 0) + 0.7 * np.maximum(q - 1.1 * p, 0)

    most = max(
        one_round(rate, noise, (place(k / 16), (1.0, 0.0), (0.0, 0.0)), phi) for k in range(17)
    )
    for _ in range(6):
        raw = generator.normal(size=(clients, 2))
        vectors = raw / np.maximum(1.0, np.linalg.norm(raw, axis=1, keepdims=True))
        points = [(float(x), float(y)) for x, y in vectors]
        assert cohorts([*points, (0.0, 0.0)], cohort, noise, phi) <= most * (1 + 1e-5)


@pytest.mark.parametrize("direction", list(Direction))
def test_laws_above_and_below(direction):
    rate, noise, step = 0.1, 1.5, 2.0**-7
    grid = Grid.of(rate, noise, step, 1e-12)
    above, below = zero_out_above(grid, direction), zero_out_below(grid, direction)
    best = np.max([own_profile(law, step, LOSSES) for law in above], axis=0)
    profile = contribution_profile if direction is Direction.REMOVE else absence_profile
    worst = profile(rate, noise, float(direction is Direction.REMOVE), LOSSES)
    assert (best >= worst.lower).all()
    for law in below:
        assert (own_profile(law, step, LOSSES) <= worst.upper).all()
        other = law.masses * np.exp(-step * (law.first + np.arange(len(law.masses))))
        assert math.fsum(law.masses) <= math.fsum(other) * (1 + 1e-15) <= 1 + 2e-15
    for law in above:
        other = law.masses * np.exp(-step * (law.first + np.arange(len(law.masses))))
        first = math.fsum(law.masses) + law.infinite
        assert 1 <= first < 1 + 1e-9
        assert math.fsum(other) <= first


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("noise", "uniform", "rounds", "delta"),
    [(2.4, Uniform(100, 2000), 200, 2000**-1.1), (1.4, Uniform(20, 100), 50, 1e-4)],
)
def test_the_bracket_closes(noise, uniform, rounds, delta):
    schedule = rounds * Round(noise, uniform, "zero-out")
    found = TightAccountant().epsilon(schedule, delta)
    fixed = TightAccountant(engine="pairs").epsilon(schedule, delta)
    assert found.upper <= found.lower * 1.01
    assert found.lower > 1.2 * fixed.lower
    assert found.upper < 0.6 * fixed.upper
    replaced = TightAccountant(engine="pairs").epsilon(rounds * Round(noise, uniform), delta)
    assert found.upper < replaced.lower


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rounds", [1500, pytest.param(6000, marks=pytest.mark.slow)])
def test_the_bracket_of_thousands_of_rounds_closes(rounds):
    schedule = rounds * Round(2.0, Uniform(1, 100), "zero-out")
    found = TightAccountant().epsilon(schedule, 1e-6)
    assert found.upper <= found.lower * 1.004


def test_masses_of_many_rounds_lie_below_those_of_each_in_turn():
    """Against the exact convolution in extended precision, errors of transforms included."""
    frame = Frame(2.0**-6, -400, 800, 1.5)
    law = zero_out_below(Grid.of(0.1, 1.5, frame.step, 1e-9), REMOVE)[0]
    found = repeated_below(law, 13, frame)
    exact = np.array([1.0], dtype=np.longdouble)
    for _ in range(13):
        exact = np.convolve(exact, law.masses.astype(np.longdouble))
    start = found.first - 13 * law.first
    part = exact[start : start + len(found.masses)]
    assert (found.masses <= part).all()
    assert found.masses.sum() >= 0.999999 * float(exact.sum())


def test_ranges_of_the_angle_hold_all_angles():
    guide = TurnGuide((0.3, 3.0), (1e-3, 1e-3))
    turns = guided_turns(Grid(0.1, 1.5, 2.0**-6, 200, 1e-9), REMOVE, guide)
    assert turns.ends[0] == 0.0
    assert turns.ends[-1] == 1.0
    assert (np.diff(turns.ends) > 0).all()
    assert 3 < len(turns.ends) < 17


@pytest.mark.sampled(1)
@pytest.mark.parametrize(("rate", "noise", "budget"), [(0.05, 2.4, 0.0), (0.25, 1.0, 0.2)])
def test_two_rounds_of_every_angle(rate, noise, budget):
    """Brute force in the plane, both orders of the data sets."""
    schedule = 2 * Round(noise, Uniform(round(100 * rate), 100), "zero-out")
    brute = max(
        known(zero_out_two_rounds, rate, noise, budget, 8, 241, swapped=swapped)
        for swapped in (False, True)
    )
    found = game_delta(schedule, budget)
    assert found.lower <= brute * (1 + 2e-4)
    assert brute * (1 - 2e-4) <= found.upper <= brute * 1.01


@pytest.mark.sampled(1)
@pytest.mark.parametrize("epsilon", [0.1, 0.0, 0.5])
def test_one_round_has_the_worse_of_two_closed_forms(epsilon):
    at = np.array([epsilon])
    exact = max(
        contribution_profile(0.1, 1.0, 1.0, at).upper[0],
        absence_profile(0.1, 1.0, 0.0, at).upper[0],
    )
    found = game_delta(1 * Round(1.0, Uniform(1, 10), "zero-out"), epsilon)
    assert found.lower <= exact <= found.upper
    assert found.upper <= exact * 1.02
    assert found.lower >= exact * 0.98


def test_one_round_costs_less_than_full_participation_and_than_two_rounds():
    one = 1 * Round(1.726, Uniform(31, 100), "zero-out")
    found = dpacct.epsilon(one, delta=1.4e-7)
    full = dpacct.epsilon(1 * Round(1.726, Full(), "zero-out"), delta=1.4e-7)
    assert found.upper <= full.upper
    assert found.upper <= found.lower * 1.01
    assert found.upper <= dpacct.epsilon(2 * one, delta=1.4e-7).lower


@pytest.mark.sampled(1)
@pytest.mark.parametrize("rounds", [1, 3])
def test_nearly_everybody_costs_no_more_than_everybody(rounds):
    part, full = (
        rounds * Round(0.8, sampling, "zero-out") for sampling in (Uniform(999, 1000), Full())
    )
    # Their roundings differ.
    little = 1 + 1e-12
    most = dpacct.epsilon(full, delta=1e-5).upper * little
    assert dpacct.epsilon(part, delta=1e-5).upper <= most
    assert dpacct.delta(part, epsilon=4.0).upper <= dpacct.delta(full, epsilon=4.0).upper * little


def test_poisson_and_full_rounds_stand_between():
    poisson = 10 * Round(2.0, Poisson(0.1), "zero-out")
    remove, add = (
        Composition.of_schedule(poisson, achieved_pairs, direction) for direction in Direction
    )
    alone = game_epsilon(poisson, 1e-4)
    truth = max(inversion_epsilon(remove, 1e-4).lower, inversion_epsilon(add, 1e-4).lower)
    assert alone.lower <= truth <= alone.upper <= alone.lower * 1.003
    mixed = 15 * Round(2.4, Uniform(5, 100), "zero-out") + poisson
    mixed += Round(20.0, Full(), "zero-out")
    found = game_epsilon(mixed, 1e-4)
    assert alone.upper < found.lower <= found.upper <= found.lower * 1.01
    fixed = Composition.of_schedule(mixed, proven_pairs, Direction.REMOVE)
    assert found.upper < inversion_epsilon(fixed, 1e-4).upper


@pytest.mark.slow
def test_a_calibration_needs_less_noise_than_for_a_replaced_client():
    schedule = 20 * Round(1.0, Uniform(10, 100), "zero-out")
    found = dpacct.calibrate(schedule=schedule, epsilon=2.0, delta=1e-4)
    replaced = dpacct.calibrate(schedule=20 * Round(1.0, Uniform(10, 100)), epsilon=2.0, delta=1e-4)
    assert found.epsilon.upper <= 2.0
    assert found.noise_scale < 0.8 * replaced.noise_scale
