"""Grid laws of one round: above and below the exact profile, with its mass and mean."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf

from dpacct.errors import NotConverged
from dpacct.numerics.rounding import Array
from dpacct.pairs.dominating import Direction, SymmetrizedPair
from dpacct.pairs.gaussian import gaussian_delta
from dpacct.tight.grid.cells import _RULES, Spacing, integrate
from dpacct.tight.grid.law import GridLaw, gaussian_law, sampled_law, symmetrized_law
from dpacct.tight.grid.masses import make_convex
from dpacct.tight.grid.pieces import SampledPiece
from tests.oracles.sampled_gaussian import delta_add, delta_remove
from tests.strategies import log_uniform

# rate, noise, tilt, step: smooth losses, near-atoms at 0 and at the ends, and coarse grids.
ROUNDS = [
    (0.1, 1.3, 4.0, 2.0**-9),
    (0.5, 3.0, 9.0, 2.0**-11),
    (0.9999, 5.0, 9.0, 2.0**-9),
    (1e-2, 1.0, 20.0, 2.0**-8),
    (1e-4, 1.0, 10.0, 2.0**-7),
    (1e-7, 2.0, 10.0, 2.0**-9),
    (0.5, 0.2, 2.0, 2.0**-4),
    (0.3, 0.05, 0.4, 2.0**-1),
    (0.01, 500.0, 3e5, 2.0**-22),
    (0.2, 500.0, 2e4, 2.0**-19),
]


def law_of(rate: float, noise: float, direction: Direction, tilt: float, step: float) -> GridLaw:
    return sampled_law(rate, noise, direction, tilt, step, accuracy=45.0, tolerance=1e-12)


def losses(law: GridLaw, step: float) -> Array:
    return law.offset + step * (law.masses.first + np.arange(len(law.masses.upper)))


def profile(law: GridLaw, masses: Array, tilt: float, step: float, epsilon: float) -> float:
    """delta(eps) of a grid law."""
    loss = losses(law, step)
    kept = loss > epsilon
    weight = np.exp(law.log_scale - tilt * loss[kept]) * -np.expm1(epsilon - loss[kept])
    return float(masses[kept] @ weight)


def exact(epsilon: float, rate: float, noise: float, direction: Direction) -> float:
    remove = direction is Direction.REMOVE
    return float((delta_remove if remove else delta_add)(epsilon, rate, noise))


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(("rate", "noise", "tilt", "step"), ROUNDS)
def test_the_profile_lies_between_both_laws(
    rate: float, noise: float, tilt: float, step: float, direction: Direction
) -> None:
    law = law_of(rate, noise, direction, tilt, step)
    masses = law.masses
    biggest = math.exp(law.log_scale) * float(masses.upper.sum())
    loss = losses(law, step)
    heavy = loss[np.cumsum(masses.upper) < (1 - 1e-6) * masses.upper.sum()]
    top = max(float(heavy[-1]), 3 * step)
    for epsilon in [0.0, step / 3, step / 2, *np.linspace(0.01 * top, top, 23).tolist()]:
        truth = exact(epsilon, rate, noise, direction)
        upper = profile(law, masses.upper, tilt, step, epsilon)
        lower = profile(law, masses.lower, tilt, step, epsilon)
        left_out = biggest * math.exp(-tilt * epsilon)
        assert truth <= upper * (1 + 1e-10) + left_out * law.beyond
        assert lower - left_out * masses.excess <= truth * (1 + 1e-10) + 1e-300


@pytest.mark.sampled(3)
@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(("rate", "noise", "tilt", "step"), ROUNDS[:5])
def test_the_upper_profile_is_exact_at_grid_points(
    rate: float, noise: float, tilt: float, step: float, direction: Direction
) -> None:
    law = law_of(rate, noise, direction, tilt, step)
    for epsilon in losses(law, step):
        truth = exact(float(epsilon), rate, noise, direction) if epsilon > 0 else 0.0
        if truth * math.exp(tilt * epsilon - law.log_scale) > 1e-9:
            upper = profile(law, law.masses.upper, tilt, step, float(epsilon))
            assert upper == pytest.approx(truth, rel=2e-8)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(("rate", "noise", "step"), [(q, s, h) for q, s, _, h in ROUNDS])
def test_both_laws_keep_the_mass_under_p_and_q(
    rate: float, noise: float, step: float, direction: Direction
) -> None:
    # A small tilt, so that nearly all of the mass under P is kept.
    law = law_of(rate, noise, direction, 1e-3, step)
    loss = losses(law, step)
    scale = np.exp(law.log_scale - 1e-3 * loss)
    upper, lower = law.masses.upper * scale, law.masses.lower * scale
    assert float(upper.sum()) == pytest.approx(1.0, abs=1e-9)
    excess = law.masses.excess * float(scale[0])
    # The lower one may have moved mass under Q to a smaller ratio.
    assert 1 - 1e-2 * step <= float(lower.sum()) <= 1 + 1e-9 + excess
    assert float(lower @ np.exp(-loss)) <= 1 + 1e-9 + excess * math.exp(-float(loss[0]))
    if direction is Direction.REMOVE:
        # Under the tilt the add direction leaves out losses far below zero, much of Q.
        assert float(upper @ np.exp(-loss)) == pytest.approx(1.0, abs=1e-9)
        assert float(lower @ np.exp(-loss)) == pytest.approx(1.0, abs=1e-9)


@pytest.mark.parametrize("direction", Direction)
@pytest.mark.parametrize(("rate", "noise", "tilt"), [(0.1, 1.3, 4.0), (0.5, 0.6, 2.0)])
def test_the_gap_shrinks_with_the_square_of_the_step(
    rate: float, noise: float, tilt: float, direction: Direction
) -> None:
    steps = 2.0 ** -np.arange(6, 11)
    gaps: list[float] = []
    for step in steps:
        masses = law_of(rate, noise, direction, tilt, float(step)).masses
        gaps.append(math.log(float(masses.upper.sum()) / float(masses.lower.sum())))
    order = np.polyfit(np.log(steps), np.log(gaps), 1)[0]
    assert 1.8 < order < 2.3


@pytest.mark.parametrize("step", [2.0**-5, 2.0**-8])
@pytest.mark.parametrize(("rate", "noise"), [(0.1, 1.3), (1e-4, 0.7), (0.6, 4.0)])
def test_the_symmetrized_law_is_symmetric(rate: float, noise: float, step: float) -> None:
    tilt = 3.0
    law = symmetrized_law(SymmetrizedPair(rate, noise), tilt, step, 45.0, 1e-12)
    for masses in (law.masses.upper, law.masses.lower):
        by_index = dict(zip(range(law.masses.first, 10**9), masses.tolist(), strict=False))
        for k, mass in by_index.items():
            mirrored = by_index.get(-k, 0.0)
            if k > 0 and min(mass, mirrored) > 1e-12:
                # Under P the loss -l has e^-l times the mass of l.
                ratio = mirrored / mass * math.exp((2 * tilt + 1) * k * step)
                assert ratio == pytest.approx(1.0, rel=1e-6)


def test_the_symmetrized_law_has_the_profile_of_the_remove_pair() -> None:
    rate, noise, tilt, step = 0.1, 1.3, 4.0, 2.0**-9
    law = symmetrized_law(SymmetrizedPair(rate, noise), tilt, step, 45.0, 1e-12)
    for epsilon in (0.0, 0.1, 1.0, 2.5):
        truth = exact(epsilon, rate, noise, Direction.REMOVE)
        lower, upper = (
            profile(law, side, tilt, step, epsilon) for side in (law.masses.lower, law.masses.upper)
        )
        assert lower <= truth <= upper
        assert upper - lower < 1e-4 * truth


@pytest.mark.parametrize("mu", [1e-3, 0.3, 1.0, 8.0])
def test_the_gaussian_law_holds_the_exact_profile(mu: float) -> None:
    tilt, step = 3.0 / mu, mu * 2.0**-8
    law = gaussian_law(mu**2, 1, tilt, step, 45.0, 1e-12)
    for epsilon in np.linspace(0.0, mu**2 / 2 + 4 * mu, 9).tolist():
        truth = gaussian_delta(epsilon, mu)
        lower, upper = (
            profile(law, side, tilt, step, epsilon) for side in (law.masses.lower, law.masses.upper)
        )
        assert lower <= truth.upper * (1 + 1e-11)
        assert truth.lower <= upper * (1 + 1e-11)
        assert upper - lower <= 1e-3 * upper


def test_a_step_too_large_for_the_tilt_is_refused() -> None:
    with pytest.raises(NotConverged, match="too large for the tilt"):
        law_of(0.1, 1.0, Direction.REMOVE, 10.0, 0.25)


def test_too_many_cells_are_refused() -> None:
    with pytest.raises(NotConverged, match="cells"):
        law_of(0.5, 0.3, Direction.REMOVE, 2.0, 2.0**-18)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("mirrored", [False, True])
@pytest.mark.parametrize(("rate", "noise", "order"), [(0.1, 1.0, 5.0), (1e-3, 1.0, 9.0)])
def test_cells_are_as_accurate_as_they_say(
    rate: float, noise: float, order: float, *, mirrored: bool
) -> None:
    """Each kind of cell against 30-digit integrals of the same density."""
    step, start, tilt = 2.0**-9, 2.0**-11, 4.0
    piece = SampledPiece(order, rate, noise, 45.0)
    cells = integrate(piece, Spacing(step, start, tilt, mirrored), 1e-12)
    count = len(cells.error)
    with mp.workdps(30):
        h, c, a = mpf(step), mpf(tilt), mpf(order)
        log_odds = mp.log((1 - mpf(rate)) / mpf(rate))

        def density(d: mpf) -> mpf:
            u = log_odds + mp.log(mp.expm1(d))
            v = mpf(noise) * u + 1 / (2 * mpf(noise))
            return mp.exp(a * d - v * v / 2 - mpf(piece.peak)) / -mp.expm1(-d)

        for k in (1, 2, 5, 20, 77, 300):
            # Its place counted from the left end in d.
            place = count - 1 - k if mirrored else k
            d0 = mpf(start) + h * (k + (-(cells.first + count) if mirrored else cells.first))

            def right(d: mpf, d0: mpf = d0) -> mpf:
                y = d0 + h - d if mirrored else d - d0
                share = (1 - mp.exp(-y)) / (1 - mp.exp(-h)) * mp.exp(c * (h - y))
                return density(d) * share

            def left(d: mpf, d0: mpf = d0) -> mpf:
                y = d0 + h - d if mirrored else d - d0
                share = (mp.exp(-y) - mp.exp(-h)) / (1 - mp.exp(-h)) * mp.exp(-c * y)
                return density(d) * share

            halves = [(d0, d0 + h / 2), (d0 + h / 2, d0 + h)]
            if mirrored:
                halves.reverse()
            for side, function in ((cells.right, right), (cells.left, left)):
                for half, ends in enumerate(halves):
                    truth = mp.quad(function, [ends[0], sum(ends) / 2, ends[1]])
                    assert abs(mpf(float(side[place, half])) - truth) <= cells.error[place]
            mass = float((cells.right + cells.left)[place].sum())
            assert cells.error[place] <= 1e-9 * mass


def test_the_rules_are_those_of_gauss_and_legendre() -> None:
    for order, (nodes, weights) in _RULES.items():
        with mp.workdps(40):
            for node, weight in zip(nodes, weights, strict=True):
                root = mp.findroot(lambda t, n=order: mp.legendre(n, t), mpf(node))
                slope = order * mp.legendre(order - 1, root) / (1 - root**2)
                assert abs(root - mpf(node)) <= mpf(2) ** -54
                assert abs(2 / ((1 - root**2) * slope**2) - mpf(weight)) <= mpf(2) ** -54


@given(
    masses=st.lists(st.floats(-1.0, 3.0), min_size=3, max_size=30),
    growth=log_uniform(1e-3, 1.0),
    share=st.floats(0.1, 0.9),
)
def test_moving_negative_masses_outward_lowers_every_profile(
    masses: list[float], growth: float, share: float
) -> None:
    step = growth * share
    signed = np.array(masses)
    index = np.arange(len(signed))
    ratio = np.exp(step * index)
    # Tilted masses carry e^{growth k} relative to those under Q.
    before = signed * np.exp(-growth * index)
    moved = signed.copy()
    excess = make_convex(moved, growth, step)
    after = moved * np.exp(-growth * index)
    assert np.all(moved >= 0)
    for edge in [0.0, *(ratio - 0.3 * step).tolist()]:
        value = np.maximum(ratio - edge, 0.0)
        allowed = excess * float(np.max(value * np.exp(-growth * index)))
        size = float(np.abs(before) @ value)
        assert after @ value <= before @ value + allowed + 1e-12 * size
