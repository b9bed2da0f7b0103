"""Cumulants of tilted losses, and bounds by paths off the real line."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dpacct.pairs.dominating import Direction, DominatingPair, SampledGaussianPair, SymmetrizedPair
from dpacct.pairs.panels import LossFunction
from dpacct.tight.composition import Composition
from dpacct.tight.panel_laws import _ANGLES, _LARGEST_ANGLE, PanelMasses, shifted_bounds
from tests.strategies import log_uniform
from tests.tight.compositions import ADD, REMOVE, REPLACE, pair_of


@pytest.mark.parametrize("tilt", [5.0, 1e3, 1e5])
@pytest.mark.parametrize("kind", [REMOVE, ADD, REPLACE])
@pytest.mark.parametrize("noise", [0.3, 3.0])
def test_where_the_growth_overflows_the_bound_is_the_trivial_one(tilt, kind, noise):
    masses = np.array([0.0, 0.5, 0.5, 0.0])
    pair = LossFunction(pair_of(0.3, noise, kind))
    law = PanelMasses(pair, tilt, np.linspace(-4.0, 4.0, 5), masses, 0.0, 0.0)
    times = np.array([0.0, 1.0, 100.0])
    bounds = shifted_bounds(times, law)
    assert np.isfinite(bounds).all()
    assert (bounds <= 1.0).all()
    assert (np.diff(bounds) <= 0.0).all()
    assert bounds[0] == 1.0


@pytest.mark.sampled(12)
@pytest.mark.parametrize("kind", [REMOVE, ADD, REPLACE])
@pytest.mark.parametrize("at", [-4.0, -2.5, -0.5, 1.0])
@pytest.mark.parametrize("tilt", [0.5, 8.0, 60.0])
def test_no_factor_off_the_line_is_left_out(kind, at, tilt):
    """On a narrow panel the bound is that of one of the angles, and that of none is too small."""
    rate, noise = 0.3, 1.0
    pair = LossFunction(pair_of(rate, noise, kind))
    edges = np.array([at, at + 1e-6])
    times = np.array([3.0, 30.0, 300.0])
    bounds = shifted_bounds(times, PanelMasses(pair, tilt, edges, np.array([1.0]), 0.0, 0.0))

    def log_terms(u: complex, t: float) -> float:
        here = np.log(1 - rate + rate * np.exp(u))
        there = np.log(1 - rate + rate * np.exp(-u - 1 / noise**2))
        loss = {"remove": here, "add": -here, "replace": here - there}[kind]
        base = {"remove": 0.0, "add": here, "replace": there}[kind]
        gaussian = -((noise * u + 0.5 / noise) ** 2) / 2
        return float(np.real(gaussian + base + (1 + tilt + 1j * t) * loss))

    for t, bound in zip(times.tolist(), bounds.tolist(), strict=True):
        # In the add direction the path turns the other way.
        turned = -1j if kind == "add" else 1j
        growths = [
            log_terms(at + turned * min(unit / noise, _LARGEST_ANGLE), t) - log_terms(at, t)
            for unit in _ANGLES
        ]
        assert np.log(bound) >= min(0.0, *growths) - 1e-5


REMOVE, ADD = Direction.REMOVE, Direction.ADD


def check(composition: Composition, tilt: float, rounds: float, accuracy: float) -> None:
    """K by its bounds, K' and K'' by central differences; ``accuracy`` is that of one round."""
    found = composition.cumulants(tilt)
    step = 1e-3 * tilt
    values: list[float] = []
    for at in (tilt - step, tilt, tilt + step):
        bounds = composition.log_moment(at)
        values.append(float(bounds.lower + bounds.upper) / 2)
    low, value, high = values
    off = accuracy * rounds
    assert found.log_moment == pytest.approx(value, rel=1e-7, abs=off)
    assert found.mean == pytest.approx((high - low) / (2 * step), rel=1e-4, abs=off)
    doubt = 1e-12 * max(map(abs, values)) / step**2
    bend = (high - 2 * value + low) / step**2
    assert found.variance == pytest.approx(bend, rel=1e-3, abs=doubt + off)


MIXED: dict[DominatingPair, int] = {
    SampledGaussianPair(0.1, 1.3, REMOVE): 100,
    SampledGaussianPair(0.9, 4.0, REMOVE): 7,
    SampledGaussianPair(1.0, 20.0, REMOVE): 3,
}
CASES: list[tuple[dict[DominatingPair, int], Direction, float]] = [
    (MIXED, REMOVE, 3.0),
    (MIXED, REMOVE, 0.1),
    ({SampledGaussianPair(0.1, 1.3, ADD): 100}, ADD, 3.0),
    ({SampledGaussianPair(1e-3, 0.5, ADD): 10**6}, ADD, 40.0),
    ({SampledGaussianPair(1e-4, 3.0, REMOVE): 10**6}, REMOVE, 60.0),
    ({SymmetrizedPair(0.05, 1.2): 200}, REMOVE, 2.0),
    ({SymmetrizedPair(0.5, 10.0): 30, SampledGaussianPair(0.1, 2.0, ADD): 5}, ADD, 5.0),
    ({SampledGaussianPair(1.0, 3.0, REMOVE): 8}, REMOVE, 1.0),
]


@pytest.mark.parametrize("case", range(len(CASES)))
def test_cumulants_are_the_derivatives_of_the_log_moment(case):
    pairs, direction, tilt = CASES[case]
    symmetrized = any(isinstance(pair, SymmetrizedPair) for pair in pairs)
    accuracy = 1e-6 if symmetrized else 1e-8
    check(Composition.of(pairs, direction), tilt, sum(pairs.values()), accuracy)


@given(
    rate=log_uniform(1e-4, 0.999),
    noise=log_uniform(0.5, 100.0),
    tilt=log_uniform(0.1, 30.0),
    direction=st.sampled_from(Direction),
)
def test_cumulants_anywhere(rate, noise, tilt, direction):
    composition = Composition.of({SampledGaussianPair(rate, noise, direction): 50}, direction)
    check(composition, tilt, 50, 1e-8)
