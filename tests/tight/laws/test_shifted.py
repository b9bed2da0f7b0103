"""Bounds by paths off the real line, where the growth off it exceeds all numbers."""

from __future__ import annotations

import numpy as np
import pytest

from dpacct.pairs.dominating import Direction, ReplacementPair, SampledGaussianPair
from dpacct.pairs.panels import LossFunction
from dpacct.tight.laws import PanelMasses, shifted_bounds


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
