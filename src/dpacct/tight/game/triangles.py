"""Privacy profile of one round of fixed-size sampling, for three positions on a circle.

The crowd is at w, the client's contribution at a, or at b in the neighboring data set; all three
lie on a circle of radius one, with angles A, B, W <= pi/2 there, and

    P = (1-q) N(w) + q N(a),    Q = (1-q) N(w) + q N(b),    N(c) = N(c, z^2 I).

Given the coordinate s (standard normal under N(a)) along the side from w to b, what is left is one
Gaussian with shift D, the altitude over that side. With Delta_mu(k) = delta(eps = k) of a Gaussian,

    H_gamma(P || Q) = q E_s[Delta_mu(log S(s))],   mu = D / z,   gamma >= 1,
    S(s) = c1 e^{-f s - f^2/2} + c2 e^{g s - g^2/2},   c1 = (1-q)(gamma-1)/q,   c2 = gamma,

where f and g are the distances of w and b from the foot of the altitude, over z. The trapezoid rule
for s converges exponentially. Derivation, error bound: docs/derivations/fixed-size-game.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.rounding import UNIT, Array, Bounds
from dpacct.tight.game.gaussian_profile import (
    LARGEST_SHIFT,
    UNDERFLOW,
    gaussian_profile,
    normal,
)

# e^-_DIGITS is about the relative error of the trapezoid rule.
_DIGITS = 38.0
_REACH = 9.5
_BEYOND = 2.2e-21
_MAX_NODES = 20_000
_SMALLER = 1 - 2.0**-48


@dataclass(frozen=True, slots=True)
class Triangle:
    """Angles at b and at w, as shares of a right angle that are missing: B = (1-b) pi/2.

    0 <= b, w < 1 and b + w <= 1. Any triangle with less angle at b or w has a smaller profile.
    """

    b: float
    w: float


def profile(rate: float, noise: float, triangle: Triangle, losses: Array) -> Bounds:
    """Bounds of H_gamma(P || Q) at gamma = e^loss.

    Args:
        rate, noise: q in (0, 1) and z.
        triangle: the angles; the upper bound holds for all triangles with smaller ones.
        losses: shape (n,), each in [0, 600].
    Returns:
        The lower bound is that of a triangle whose missing shares are up to 2^-48 smaller.
    Error: inside the bounds; relative to P(P > gamma Q) about 1e-13.
    Raises:
        NotConverged: too little noise, or a triangle too flat.
    Source: docs/derivations/fixed-size-game.md.
    """
    if LARGEST_SHIFT * noise < 2.0:
        raise NotConverged(f"the game needs a noise multiplier of {2 / LARGEST_SHIFT:.3g} or more")
    return profile_over(rate, _lengths(noise, triangle), losses)


class Lengths(NamedTuple):
    """Distances over z from the foot of the altitude at a to w and to b, and the altitude.

    One of f and g is negative where the foot lies outside of the side.
    """

    f: float
    g: float
    mu: float


def profile_over(rate: float, lengths: Lengths, losses: Array) -> Bounds:
    """The same for any triangle of such lengths, each known within 24 roundings of the largest."""
    f, g, mu = lengths
    strip, step = _spacing(f, g, mu)
    half = math.ceil(_REACH / step)
    if 2 * half >= _MAX_NODES:
        raise NotConverged("the triangle is too flat for its quadrature")
    s = step * np.arange(-half, half + 1.0)
    density = step / math.sqrt(2 * math.pi) * np.exp(-s * s / 2)

    odds = math.log1p(-rate) - math.log(rate)
    with np.errstate(divide="ignore"):
        growth = np.log(np.expm1(losses))
    k = np.logaddexp(
        (growth + odds)[:, None] - (f * s + f * f / 2), losses[:, None] + (g * s - g * g / 2)
    )
    with np.errstate(invalid="ignore"):
        known = np.where(losses > 0, np.abs(growth), 0.0) + abs(odds) + losses
    longest = max(abs(f), abs(g))
    error = 10 * known[:, None] + 24 * (longest * np.abs(s) + longest**2)
    plain = gaussian_profile(k, mu, error)
    relative = plain.relative + 8 * s * s + 2 * len(s)
    rounding = 1.01 * UNIT * ((plain.near * relative) @ density)
    value = plain.value @ density
    error = rounding + _trapezoid_error(f, g, mu, strip, step, growth + odds, losses) + UNDERFLOW
    lower = rate * (value - error) * (1 - 8 * UNIT)
    upper = rate * (value + error + _BEYOND) * (1 + 8 * UNIT)
    return Bounds(np.maximum(lower, 0.0), upper)


def not_too_flat(noise: float, triangle: Triangle) -> Triangle:
    """The triangle, or one with larger angles that `profile` can do; its profile is no smaller."""
    b, w = triangle.b, triangle.w
    while 2 * math.ceil(_REACH / _spacing(*_lengths(noise, Triangle(b, w)))[1]) >= _MAX_NODES:
        # Twice the smaller angle takes half the nodes.
        b, w = (2 * b - 1, w) if b > w else (b, 2 * w - 1)
    return Triangle(b, w)


def _lengths(noise: float, triangle: Triangle) -> Lengths:
    # Slightly larger angles, so that the roundings here stay on the safe side.
    b, w = triangle.b * _SMALLER * math.pi / 2, triangle.w * _SMALLER * math.pi / 2
    sin_b, cos_b, sin_w, cos_w = math.cos(b), math.sin(b), math.cos(w), math.sin(w)
    return Lengths(2 * sin_b * cos_w / noise, 2 * sin_w * cos_b / noise, 2 * sin_b * sin_w / noise)


def _growth_rate(f: float, g: float, mu: float) -> float:
    """K: on the line Im s = v the integrand is at most e^{K v^2/2} times larger."""
    return 1 + (max(abs(f), abs(g)) / mu) ** 2


def _spacing(f: float, g: float, mu: float) -> tuple[float, float]:
    """Half-width of the strip in which the integrand is bounded, and the step."""
    rate = _growth_rate(f, g, mu)
    # |arg S| stays below one radian on either side of its middle.
    strip = min(math.sqrt(2 * _DIGITS / rate), 2 / max(f + g, 1e-9))
    return strip, 2 * math.pi * strip / (_DIGITS + rate * strip * strip / 2)


def _trapezoid_error(
    f: float, g: float, mu: float, strip: float, step: float, crowd: Array, losses: Array
) -> Array:
    """2 M / (e^{2 pi v / step} - 1), M = 2 e^{K v^2/2} E_s[Phi(near at k - c)], c = log sec."""
    turned = -math.log(math.cos(min((f + g) * strip / 2, 1.0)))

    def tail(start: Array, slope: float) -> Array:
        # S is at least one of its two terms; E_s[Phi(x - y s)] = Phi(x / sqrt(1 + y^2)).
        x = mu / 2 + (turned - start + slope * slope / 2) / mu
        return normal(np.minimum(x, 40.0) / math.sqrt(1 + (slope / mu) ** 2))

    with np.errstate(invalid="ignore"):
        likely = np.minimum(tail(np.where(losses > 0, crowd, -1e3), f), tail(losses, g))
    exponent = _growth_rate(f, g, mu) * strip * strip / 2 - 2 * math.pi * strip / step
    return 4.1 * math.exp(exponent) * likely * 1.01
