"""Gauss-Legendre on panels: exact where it must be, and within its bound where it cannot be."""

from __future__ import annotations

import math
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mpmath import mp, mpf

from dpacct.numerics.quadrature import (
    ERROR_FACTOR,
    IMAGINARY_AXIS,
    NODES,
    REAL_AXIS,
    RHO,
    RULE_ERROR,
    panel_nodes,
)
from dpacct.numerics.rounding import UNIT
from tests.strategies import FEWER

edge_lists = st.lists(st.floats(0.01, 3.0), min_size=1, max_size=6).map(
    lambda widths: np.cumsum([-1.0, *widths])
)


@lru_cache(maxsize=1)
def exact_rule() -> list[tuple[mpf, mpf]]:
    """Nodes and weights on [-1, 1] to 50 digits."""
    with mp.workdps(60):
        rule: list[tuple[mpf, mpf]] = []
        for k in range(NODES):
            x = mp.cos(mp.pi * (k + mpf(3) / 4) / (NODES + mpf(1) / 2))
            for _ in range(12):
                value, before = mp.legendre(NODES, x), mp.legendre(NODES - 1, x)
                slope = NODES * (before - x * value) / (1 - x * x)
                x -= value / slope
            rule.append((x, 2 / ((1 - x * x) * slope**2)))
        return sorted(rule)


def test_nodes_and_weights_are_within_the_assumed_error():
    nodes, weights = panel_nodes(np.array([-1.0, 1.0]))
    for x, w, (exact_x, exact_w) in zip(nodes[0], weights[0], exact_rule(), strict=True):
        assert abs(mpf(float(x)) - exact_x) <= RULE_ERROR
        assert abs(mpf(float(w)) - exact_w) <= RULE_ERROR


@given(edges=edge_lists)
def test_panels_cover_the_interval_in_order(edges):
    nodes, weights = panel_nodes(edges)
    assert nodes.shape == weights.shape == (len(edges) - 1, NODES)
    assert np.all(np.diff(nodes.ravel()) > 0)
    assert np.all(nodes > edges[:-1, None])
    assert np.all(nodes < edges[1:, None])
    assert np.all(weights > 0)
    assert np.sum(weights, axis=1) == pytest.approx(np.diff(edges), rel=1e-14)


@given(edges=edge_lists, degree=st.integers(0, 2 * NODES - 1))
def test_polynomials_are_integrated_exactly(edges, degree):
    nodes, weights = panel_nodes(edges)
    size = max(abs(edges[0]), abs(edges[-1]))
    found = float(np.sum(weights * (nodes / size) ** degree))
    ends = [mpf(float(e)) for e in (edges[0], edges[-1])]
    with mp.workdps(50):
        scale = mpf(float(size))
        exact = (ends[1] ** (degree + 1) - ends[0] ** (degree + 1)) / ((degree + 1) * scale**degree)
        # The rule's own error, and a few roundings of each power.
        allowed = (RULE_ERROR + 4 * UNIT) * (degree + 4) * (edges[-1] - edges[0])
        assert abs(found - exact) <= allowed


def test_the_semi_axes_are_those_of_the_ellipse():
    assert pytest.approx(RHO) == REAL_AXIS + IMAGINARY_AXIS
    assert pytest.approx(1.0) == REAL_AXIS**2 - IMAGINARY_AXIS**2  # foci at the ends


@FEWER
@given(direction=st.floats(0, 2 * math.pi), outside=st.floats(1e-3, 1.0), half=st.floats(0.1, 5.0))
def test_the_error_bound_holds_for_a_pole_outside_the_ellipse(direction, outside, half):
    """1 / (x - c): exact integral by logarithms, |f| <= 1 / distance inside the ellipse."""
    with mp.workdps(60):
        radius = RHO * (1 + outside)
        point = radius * mp.expj(direction)
        pole = mpf(half) * (point + 1 / point) / 2
        exact = mp.log(half - pole) - mp.log(-half - pole)
        # The segment does not cross the branch cut of log unless it passes the negative axis.
        exact = mp.re(exact) + 1j * mp.arg((half - pole) / (-half - pole))
        found = half * mp.fsum(w / (half * x - pole) for x, w in exact_rule())
        samples = [RHO * mp.expj(2 * mp.pi * k / 400) for k in range(400)]
        distance = min(abs(half * (s + 1 / s) / 2 - pole) for s in samples) * mpf("0.97")
        assert abs(found - exact) <= ERROR_FACTOR * half / distance


def test_the_error_falls_as_the_bound_says():
    """Half the panel, and the error of e^{20 x} falls by rho^(2 n), here about 2^40."""
    with mp.workdps(60):

        def error(half: mpf) -> mpf:
            found = half * mp.fsum(w * mp.exp(20 * half * x) for x, w in exact_rule())
            return abs(found - mp.sinh(20 * half) / 10)

        halves = [mpf(2) ** -k for k in range(3)]
        errors = [error(h) for h in halves]
        for coarse, fine in pairwise(errors):
            assert 2 * NODES - 6 <= mp.log(coarse / fine, 2) <= 2 * NODES + 12
        for half, found in zip(halves, errors, strict=True):
            largest = mp.exp(20 * half * REAL_AXIS)
            assert found <= ERROR_FACTOR * half * largest
