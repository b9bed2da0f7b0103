from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpacct.errors import NotConverged
from dpacct.tight.game.theorem import Triangle, default_cover, profile
from tests.oracles.answers import known
from tests.oracles.fixed_size_game import cohorts, one_round, triangle_profile, triangles
from tests.strategies import log_uniform

LOSSES = np.array([0.0, 0.01, 0.1, 0.4])
RATES, NOISES = log_uniform(0.003, 0.6), log_uniform(0.6, 10.0)


@st.composite
def shares(draw: st.DrawFn) -> tuple[float, float, float]:
    """Missing shares of the angles at a, b and w: they sum to one."""
    low, high = sorted((draw(st.floats(0.0, 1.0)), draw(st.floats(0.0, 1.0))))
    return low, high - low, 1.0 - high


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("rate", "noise", "b", "w"),
    [(0.05, 2.4, 0.2, 0.3), (0.3, 0.8, 0.45, 0.1), (0.01, 6.0, 0.15, 0.6), (0.2, 1.4, 0.05, 0.05)],
)
def test_the_profile_is_that_of_densities_in_the_plane(rate, noise, b, w):
    found = profile(rate, noise, Triangle(b, w), LOSSES)
    for k in (0, 1):
        exact = known(triangle_profile, rate, noise, b, w, float(LOSSES[k]))
        assert float(exact) == pytest.approx(found.upper[k], rel=1e-10, abs=0.0)
        assert found.lower[k] <= found.upper[k] < found.lower[k] * (1 + 1e-9)


@given(rate=RATES, noise=NOISES, angles=shares(), factor=st.floats(0.0, 1.0), which=st.booleans())
def test_larger_angles_have_larger_profiles(rate, noise, angles, factor, *, which):
    _, b, w = angles
    if max(b, w) > 0.97:
        return
    larger = Triangle(b * factor, w) if which else Triangle(b, w * factor)
    here, there = (profile(rate, noise, t, LOSSES) for t in (Triangle(b, w), larger))
    assert (here.lower <= there.upper).all()


@given(rate=RATES, noise=NOISES, angles=shares())
def test_every_triangle_is_below_the_splice_of_its_cell(rate, noise, angles):
    a, b, w = angles
    if max(angles) > 0.97:
        return
    cells = [c for c in default_cover() if a >= c.a and b >= c.b and w >= c.w]
    # Sums of shares are rounded, so that a triangle may lie between the cells by that much.
    for cell in cells:
        splice = [Triangle(float(cell.b), float(cell.w)), Triangle(float(cell.a), float(cell.w))]
        for own, bound in zip((Triangle(b, w), Triangle(a, w)), splice, strict=True):
            inside = profile(rate, noise, own, LOSSES).lower
            assert (inside <= profile(rate, noise, bound, LOSSES).upper).all()


def _kinds(gamma: float) -> list[object]:
    def both(p: np.ndarray, q: np.ndarray) -> np.ndarray:
        return np.maximum(p - gamma * q, 0) + np.maximum(q - gamma * p, 0)

    def power(p: np.ndarray, q: np.ndarray) -> np.ndarray:
        q = np.maximum(q, 1e-300)
        return q * (p / q) ** 2.5

    return [both, power]


@pytest.mark.parametrize("cohort", [1, 2])
def test_no_data_sets_exceed_the_worst_triangle(cohort):
    """Contributions anywhere in the disc, any convex divergence, not hockey sticks alone."""
    generator, clients, noise = np.random.default_rng(cohort), 4, 1.1
    for phi in _kinds(1.05):
        most = max(one_round(cohort / clients, noise, t, phi) for t in triangles(8))
        for _ in range(5):
            raw = generator.normal(size=(clients + 1, 2))
            vectors = raw / np.maximum(1.0, np.linalg.norm(raw, axis=1, keepdims=True))
            points = [(float(x), float(y)) for x, y in vectors]
            assert cohorts(points, cohort, noise, phi) <= most * (1 + 1e-6)


def test_a_right_triangle_beats_both_strategies_for_some_divergence():
    both = _kinds(math.exp(0.02))[0]
    remove = one_round(0.05, 2.4, ((-1.0, 0.0), (1.0, 0.0), (-1.0, 0.0)), both)
    right = one_round(0.05, 2.4, ((0.0, 1.0), (1.0, 0.0), (-1.0, 0.0)), both)
    assert remove == pytest.approx(0.01607, abs=1e-5)
    assert right == pytest.approx(0.01709, abs=1e-5)


def test_too_little_noise_is_refused():
    with pytest.raises(NotConverged, match="noise multiplier"):
        profile(0.1, 0.2, Triangle(0.0, 0.0), LOSSES)
