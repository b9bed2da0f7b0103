"""Bounds by paths off the real line, where the growth off it exceeds all numbers."""

# pyright: reportPrivateUsage=false
from __future__ import annotations

import numpy as np
import pytest

from dpacct.pairs.dominating import Direction, ReplacementPair, SampledGaussianPair
from dpacct.pairs.panels import LossFunction
from dpacct.tight.panel_laws import _ANGLES, _LARGEST_ANGLE, PanelMasses, shifted_bounds


@pytest.mark.parametrize("tilt", [5.0, 1e3, 1e5])
@pytest.mark.parametrize("kind", ["remove", "add", "replace"])
@pytest.mark.parametrize("noise", [0.3, 3.0])
def test_where_the_growth_overflows_the_bound_is_the_trivial_one(
    tilt: float, kind: str, noise: float
) -> None:
    masses = np.array([0.0, 0.5, 0.5, 0.0])
    if kind == "replace":
        pair = LossFunction(ReplacementPair(0.3, noise))
    else:
        pair = LossFunction(SampledGaussianPair(0.3, noise, Direction(kind)))
    law = PanelMasses(pair, tilt, np.linspace(-4.0, 4.0, 5), masses, 0.0, 0.0)
    times = np.array([0.0, 1.0, 100.0])
    bounds = shifted_bounds(times, law)
    assert np.isfinite(bounds).all()
    assert (bounds <= 1.0).all()
    assert (np.diff(bounds) <= 0.0).all()
    assert bounds[0] == 1.0


@pytest.mark.sampled(12)
@pytest.mark.parametrize("kind", ["remove", "add", "replace"])
@pytest.mark.parametrize("at", [-4.0, -2.5, -0.5, 1.0])
@pytest.mark.parametrize("tilt", [0.5, 8.0, 60.0])
def test_no_factor_off_the_line_is_left_out(kind: str, at: float, tilt: float) -> None:
    """On a narrow panel the bound is that of one of the angles, and that of none is too small."""
    rate, noise = 0.3, 1.0
    if kind == "replace":
        pair = LossFunction(ReplacementPair(rate, noise))
    else:
        pair = LossFunction(SampledGaussianPair(rate, noise, Direction(kind)))
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
