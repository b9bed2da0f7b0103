"""Gauss-Legendre quadrature on panels of a half-line, with a proven error.

For an integrand analytic and bounded by M in the Bernstein ellipse of a panel of half-width w
(foci at its ends, sum of the semi-axes rho w), the rule with n nodes is off by at most

    (64 / 15) w M rho^(-2 (n - 1)) / (1 - rho^-2).

Source: Trefethen, Approximation Theory and Approximation Practice (2013), theorem 19.3.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from dpacct.rounding import Array

NODES = 20
RHO = 4.0
# Semi-axes of the ellipse in units of the half-width.
REAL_AXIS = (RHO + 1 / RHO) / 2
IMAGINARY_AXIS = (RHO - 1 / RHO) / 2
# Times w M. 4^-38 is 1.3e-23.
ERROR_FACTOR = 64 / 15 * RHO ** (-2 * (NODES - 1)) / (1 - RHO**-2)
# Nodes and weights of the rule are correct to this, absolute; compared with mpmath in the tests.
RULE_ERROR = 2.0**-50


@lru_cache(maxsize=1)
def _rule() -> tuple[Array, Array]:
    """Nodes and weights on [-1, 1]."""
    return np.polynomial.legendre.leggauss(NODES)


def panel_nodes(edges: Array) -> tuple[Array, Array]:
    """Nodes and weights of the composite rule.

    Args:
        edges: increasing panel boundaries, shape (m + 1,).
    Returns:
        Nodes and weights, shape (m, NODES).
    """
    nodes, weights = _rule()
    half = np.diff(edges)[:, None] / 2
    return edges[:-1, None] + half * (1 + nodes), half * weights
