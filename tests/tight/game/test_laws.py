from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from mpmath import mp, mpf

from dpacct.tight.game.kernels import (
    Grid,
    add_pair,
    cell_kernel,
    fixed_above,
    fixed_below,
    gaussian_pair,
    remove_pair,
)
from dpacct.tight.game.laws import (
    Kernel,
    dominated_side,
    dominating_side,
    grid_points,
    profile_below,
)
from dpacct.tight.game.theorem import Cell, Triangle, profile

SETTINGS = [(0.05, 2.4, 2.0**-7), (0.3, 0.8, 2.0**-5), (0.01, 6.0, 2.0**-10), (0.5, 1.0, 0.5)]


def own_profile(law: Kernel, step: float, losses: np.ndarray) -> np.ndarray:
    """E_Q[(R - gamma)_+] of a law at any gamma = e^loss, in exact sums."""
    places = step * (law.first + np.arange(len(law.masses)))
    return np.array(
        [
            math.fsum(law.masses * np.maximum(-np.expm1(loss - places), 0.0)) + law.infinite
            for loss in losses
        ]
    )


def mirrored(law: Kernel, step: float, losses: np.ndarray) -> np.ndarray:
    """E_Q[(1 - e^loss R)_+] of a law without mass at R = 0."""
    places = step * (law.first + np.arange(len(law.masses)))
    other = law.masses * np.exp(-places)
    return np.array(
        [math.fsum(other * np.maximum(-np.expm1(loss + places), 0.0)) for loss in losses]
    )


def between(step: float) -> np.ndarray:
    return step * np.array([0.0, 0.3, 0.5, 1.0, 1.7, 4.5, 8.0, 40.2])


@pytest.mark.sampled(6)
@pytest.mark.parametrize(("rate", "noise", "step"), SETTINGS)
@pytest.mark.parametrize("corner", [(0, 0, 0), (3, 1, 2), (8, 0, 1), (0, 5, 0)])
def test_a_cell_lies_above_its_triangles(rate, noise, step, corner):
    a, b, w = (Fraction(part, 9) for part in corner)
    grid = replace(Grid.of(rate, noise, step, 1e-12), negligible=1e-14)
    law = cell_kernel(grid, Cell(a, b, w))
    losses = between(step)
    inner = float((1 - a - b - w) / 3)
    own = Triangle(float(b) + inner, float(w) + inner)
    above = own_profile(law, step, losses)
    assert (above >= profile(rate, noise, own, losses).lower).all()
    splice = profile(rate, noise, Triangle(float(b), float(w)), losses).lower
    assert (above >= splice * (1 - 1e-11)).all()
    assert above[0] <= splice[0] * (1 + 20 * step / rate)
    below = profile(rate, noise, Triangle(float(a), float(w)), losses).lower
    exact = -np.expm1(-losses) + np.exp(-losses) * below
    assert (own_profile(law, step, -losses) >= exact * (1 - 1e-11)).all()
    # Masses of both hypotheses: what the lemma asks for.
    other = law.masses * np.exp(-step * (law.first + np.arange(len(law.masses))))
    first = math.fsum(law.masses) + law.infinite
    assert 1 <= first < 1 + 1e-9
    assert math.fsum(other) <= first


@pytest.mark.parametrize(("rate", "noise", "step"), SETTINGS)
def test_the_strategies_lie_below_their_pairs(rate, noise, step):
    losses = between(step)
    grid = Grid.of(rate, noise, step, 1e-12)
    laws = fixed_below(grid, "remove"), fixed_below(grid, "add")
    for law, pairs in zip(laws, ((remove_pair, add_pair), (add_pair, remove_pair)), strict=True):
        for own, pair in zip((own_profile, mirrored), pairs, strict=True):
            assert (own(law, step, losses) <= pair(rate, noise, losses)[0].upper).all()
        other = law.masses * np.exp(-step * (law.first + np.arange(len(law.masses))))
        assert math.fsum(law.masses) <= math.fsum(other) * (1 + 1e-15) <= 1 + 2e-15


@pytest.mark.parametrize("noise", [0.5, 3.0, 40.0])
def test_full_participation_is_enclosed(noise):
    step = 2.0**-8
    grid, losses = Grid.of_everybody(noise, step, 1e-12), between(step)
    exact = gaussian_pair(1.0, noise, losses)[0]
    assert (own_profile(fixed_above(grid, "everybody"), step, losses) >= exact.lower).all()
    assert (own_profile(fixed_below(grid, "everybody"), step, losses) <= exact.upper).all()


def test_points_lie_further_apart_further_out():
    points = grid_points(1000, 32)
    gaps = np.diff(points)
    assert points[0] == 0
    assert points[-1] >= 1000
    assert gaps[0] == 1
    assert (gaps <= np.maximum(1, points[:-1] // 32)).all()
    assert len(points) < 200


def test_masses_that_underflow_are_no_warning():
    """A side whose masses all vanish is below everything."""
    points, least = grid_points(4, 32), 5e-324
    left, right = np.array([7.0, 4.0, 4.0, 1.0]), np.array([4.0, 4.0, 1.0, 0.0])
    with np.errstate(divide="raise", invalid="raise"):
        side = dominated_side(points, 0.5, left * least, right * least)
    assert float(side.masses.sum()) < 1e-300


@pytest.mark.parametrize("seed", range(4))
def test_masses_as_stored_bound_the_values_in_exact_arithmetic(seed):
    """Above and below: without their factors some points are on the wrong side, by an ulp or so."""
    generator, step = np.random.default_rng(seed), 2.0**-6
    points = grid_points(120, 32)
    # A profile with a corner at each point.
    weights = generator.exponential(size=len(points))
    falls = 1 - np.exp(step * np.minimum(points[:, None] - points, 0.0))
    values = falls @ weights + weights[-1]
    side = dominating_side(points, step, values)
    with mp.workdps(40):
        ratios = [mp.exp(mpf(step) * int(point)) for point in points]
        lower = profile_below(side, step)
        for here, value in zip(range(len(points)), values, strict=True):
            exact = mpf(side.infinite) + sum(
                mpf(mass) * (1 - ratios[here] / ratios[j])
                for j, mass in enumerate(side.masses, start=1)
                if j > here
            )
            assert mpf(float(lower[here])) <= exact
            assert exact >= mpf(float(value))
