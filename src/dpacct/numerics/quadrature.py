"""Gauss-Legendre quadrature on panels of a half-line, with a proven error.

For an integrand analytic and bounded by M in the Bernstein ellipse of a panel of half-width w
(foci at its ends, sum of the semi-axes rho w), the rule with n nodes is off by at most

    (64 / 15) w M rho^(-2 (n - 1)) / (1 - rho^-2).

Source: Trefethen, Approximation Theory and Approximation Practice (2013), theorem 19.3.
"""

from __future__ import annotations

import numpy as np

from dpacct.numerics.rounding import Array

NODES = 20
RHO = 4.0
# Semi-axes of the ellipse in units of the half-width.
REAL_AXIS = (RHO + 1 / RHO) / 2
IMAGINARY_AXIS = (RHO - 1 / RHO) / 2
# Times w M. 4^-38 is 1.3e-23.
ERROR_FACTOR = 64 / 15 * RHO ** (-2 * (NODES - 1)) / (1 - RHO**-2)
# Nodes and weights below are correctly rounded, and 1 + node is rounded once more.
RULE_ERROR = 2.0**-52
_POSITIVE_NODES = np.array([
    0.07652652113349734, 0.22778585114164507, 0.37370608871541955, 0.5108670019508271,
    0.636053680726515, 0.7463319064601508, 0.8391169718222188, 0.912234428251326,
    0.9639719272779138, 0.9931285991850949,
])  # fmt: skip
_POSITIVE_WEIGHTS = np.array([
    0.15275338713072584, 0.14917298647260374, 0.14209610931838204, 0.13168863844917664,
    0.11819453196151841, 0.10193011981724044, 0.08327674157670475, 0.06267204833410907,
    0.04060142980038694, 0.017614007139152118,
])  # fmt: skip
_RULE_NODES = np.concatenate([-_POSITIVE_NODES[::-1], _POSITIVE_NODES])
_RULE_WEIGHTS = np.concatenate([_POSITIVE_WEIGHTS[::-1], _POSITIVE_WEIGHTS])


def panel_nodes(edges: Array) -> tuple[Array, Array]:
    """Return nodes and weights of the composite rule, shape (m, NODES), for m + 1 panel edges."""
    half = np.diff(edges)[:, None] / 2
    return edges[:-1, None] + half * (1 + _RULE_NODES), half * _RULE_WEIGHTS
