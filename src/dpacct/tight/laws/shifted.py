"""Bounds of characteristic functions whose integrand is analytic: the path is moved off the line.

With u = (2x - 1) / (2 sigma^2) and r = 1 - q + q e^u the integrand of phi is, up to a constant,
e^{-(sigma u + 1 / (2 sigma))^2 / 2} r^{a + it}. On u + i theta the first factor grows by
e^{sigma^2 theta^2 / 2}, |r| does not grow, and |r^{it}| = e^{-t arg r}: a bound that falls
exponentially, where most of the mass has a large enough argument.

Derivation: docs/derivations/inversion.md.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from dpacct.numerics.rounding import Array
from dpacct.pairs.panels import LossFunction

# Angles, times sigma, and the largest one.
_ANGLES, _LARGEST = (0.15, 0.3, 0.6, 1.2, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0), 1.5

# Angles, in units of about the best one.
_UNITS = (0.7, 1.0, 1.6)


class PanelMasses(NamedTuple):
    """A tilted law on panels in u, relative to its whole mass; all of it rounded up.

    Attributes:
        pair, tilt: of the round, and c > -1.
        edges: of the panels, shape (m + 1,).
        masses: of the panels, shape (m,).
        tail: mass left of the first panel.
        end: density in u at the last edge, where the law ends sharply.
    """

    pair: LossFunction
    tilt: float
    edges: Array
    masses: Array
    tail: float
    end: float


def shifted_bounds(times: Array, law: PanelMasses) -> Array:
    """Bounds of |phi(t')| for every t' >= t >= 0; of the shape of ``times``, at most 1."""
    pair, tilt, noise = law.pair, law.tilt, law.pair.noise
    p, opposite = pair.probabilities(law.edges)
    best = np.ones_like(times)
    for unit in _ANGLES:
        angle = min(unit / noise, _LARGEST)
        growth = math.exp((noise * angle) ** 2 / 2)
        # arg r grows with u: on each panel it is at least that of the left edge.
        turn = np.arctan2(p[:-1] * math.sin(angle), 1 - p[:-1] + p[:-1] * math.cos(angle))
        if pair.replaced:
            # So does -arg r(-x) with -u, and r(-x)^-c may grow: |r(-x)| is at least its real part,
            # and that at least 1 - q.
            there = opposite[1:]
            turn += np.arctan2(there * math.sin(angle), 1 - there + there * math.cos(angle))
            swollen = _swelling(-tilt, opposite, angle)
            before = 1.0
            if tilt > 0:
                with np.errstate(over="ignore", divide="ignore"):
                    swollen = np.minimum(swollen, (1 - opposite) ** -tilt * (1 + 1e-9))
                    versed = 2 * math.sin(angle / 2) ** 2
                    before = (1 - opposite[0] * versed) ** -tilt * (1 + 1e-9)
            swollen = np.concatenate([[before], swollen[:-1], swollen[-1:]])
        else:
            swollen = _swelling(-tilt if pair.added else 1 + tilt, p, angle)
        if not np.isfinite(swollen).all():
            # Further off the line it grows even more.
            break
        # What the last factors round is less than this.
        swept = law.masses * swollen[1 : len(p)]
        waves = np.exp(-np.multiply.outer(times, turn * (1 - 1e-9))) @ swept
        rest = law.tail * swollen[0] + angle * law.end * swollen[-1]
        best = np.minimum(best, growth * (1 + 1e-9) * (waves + rest))
        if angle == _LARGEST:
            break
    return best


def log_shifted(times: Array, order: float, noise: Array, share: Array) -> Array:
    """Bounds of log |phi(t')| for every t' >= t >= 0, of several laws on the whole line.

    Args:
        times: t, shape (n,).
        order: a, as for `PanelMasses`.
        noise: of the rounds, shape (m,).
        share: the mean of p = q e^u / r under each tilted law, rounded down; shape (m,).
    Returns:
        Array (m, n), at most 0.
    """
    variance, mean = noise[:, None] ** 2, share[:, None]
    usual = times * mean / variance
    usual = usual / (1 + times * usual)
    best = np.zeros(usual.shape)
    for unit in _UNITS:
        angle = np.minimum(unit * usual, _LARGEST)
        # arg r is at least p sin(angle), and |r|^a grows by at most e^(-2 a tan^2(angle / 2) p).
        turn = times * np.sin(angle) + 2 * min(order, 0.0) * np.tan(angle / 2) ** 2 * (1 + 1e-9)
        # e^{-turn p} lies below its chord over [0, 1].
        gain = mean * -np.expm1(-np.maximum(turn, 0.0)) * (1 - 1e-9)
        growth = variance * angle**2 * (0.5 + 1e-9)
        best = np.minimum(best, growth + np.log1p(-gain))
    return best


def _swelling(order: float, p: Array, angle: float) -> Array:
    """By how much |r^a| may grow off the line, left of each edge.

    |r|^2 falls by the factor 1 - 4 p (1 - p) sin^2(angle / 2), which matters where a < 0.
    """
    if order >= 0:
        return np.ones_like(p)
    most = np.where(p < 0.5, 4 * p * (1 - p), 1.0)
    log_growth = order / 2 * np.log1p(-most * math.sin(angle / 2) ** 2)
    with np.errstate(over="ignore"):
        return np.exp(log_growth * (1 + 1e-9))
