"""One round of fixed-size sampling is a triangle, and finitely many cells cover all triangles.

The crowd is at w, the client's contribution at a, or at b in the neighboring data set. All three
lie on a circle of radius one, with angles A, B, W <= pi/2 there (theorem 1, lemma 2), and

    P = (1-q) N(w) + q N(a),    Q = (1-q) N(w) + q N(b),    N(c) = N(c, z^2 I).

Take the coordinate s (standard normal under N(a)) along the side from w to b. Given s, there is one
Gaussian with shift D, the altitude over that side. With Delta_mu(k) = delta(eps = k) of a Gaussian,

    H_gamma(P || Q) = q E_s[Delta_mu(log S(s))],   mu = D / z,   gamma >= 1,
    S(s) = c1 e^{-f s - f^2/2} + c2 e^{g s - g^2/2},   c1 = (1-q)(gamma-1)/q,   c2 = gamma,

where f and g are the distances of w and b from the foot of the altitude, over z. The trapezoid rule
for s converges exponentially. H grows with B and W (lemma 3), so the largest angles of a cell
{A <= Amax, B <= Bmax, W <= Wmax} bound all of it.

In missing shares of a right angle, a + b + w = 1, a, b, w >= 0, a cell is {a >= a0, b >= b0,
w >= w0}: its lower corner, three exact fractions. Its size is one minus their sum, which measures
the distance of its triangles. One of three children holds any triangle of a cell: a coordinate is a
third of the size above the corner.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from typing import NamedTuple

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.rounding import UNIT, Array, Bounds
from dpacct.tight.game import LARGEST_SHIFT

# Absolute error from underflow where mu <= `LARGEST_SHIFT`.
UNDERFLOW = 1e-180


class GaussianProfile(NamedTuple):
    """Delta_mu(k) and its parts.

    Attributes:
        value: Delta_mu(k).
        near, far: Phi(mu/2 - k/mu) and Phi(-mu/2 - k/mu).
        relative: error of ``value``, and of ``near`` alone, in units of ``UNIT`` times ``near``.
    """

    value: Array
    near: Array
    far: Array
    relative: Array


def gaussian_profile(k: Array, mu: float, error: Array) -> GaussianProfile:
    """Return Delta_mu(k) for ``mu`` <= `LARGEST_SHIFT` within 24 roundings, k within ``error``.

    ``error`` counts in units of roundoff, absolute. It includes the computation of k from its last
    two parts by logaddexp or a sum.
    """
    near, far = mu / 2 - k / mu, -mu / 2 - k / mu
    above, below = normal(near), normal(far)
    value = above - np.exp(np.minimum(k, 700.0)) * below
    # phi(x) <= (1 + |x|) Phi(x) carries absolute errors of the arguments over.
    size_near, size_far, size_k = np.abs(near), np.abs(far), np.abs(k)
    relative = 52 * (1 + size_near) * (mu + size_k / mu) + 4 * size_near * (1 + size_near)
    relative += 4 * size_far * (1 + size_far) + 10 * size_k + error + 96
    return GaussianProfile(value, above, below, relative)


def normal(x: Array) -> Array:
    """Return the normal distribution function, within 16 + 4 x^2 units of roundoff (relative)."""
    scaled = (x * -math.sqrt(0.5)).ravel()
    values = np.fromiter(map(math.erfc, scaled.tolist()), np.float64, scaled.size)
    return 0.5 * values.reshape(x.shape)


def bounds(scale: Array, plain: GaussianProfile, error: Array) -> Bounds:
    """Bound ``scale`` times Delta_mu. ``error``: relative error of the scale, in roundoffs."""
    off = 1.01 * UNIT * plain.near * (plain.relative + error) + UNDERFLOW
    lower, upper = np.maximum(plain.value - off, 0.0), plain.value + off
    return Bounds(scale * lower * (1 - 4 * UNIT), scale * upper * (1 + 4 * UNIT))


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
    """Return bounds of H_gamma(P || Q) at gamma = e^loss.

    Args:
        rate, noise: q in (0, 1) and z.
        triangle: the angles. The upper bound also holds for all triangles with smaller angles.
        losses: shape (n,), each in [0, 600].
    Returns:
        The lower bound is that of a triangle whose missing shares are up to 2^-48 smaller.
    Error: inside the bounds, relative to P(P > gamma Q) about 1e-13.
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
    """Return the profile of any triangle of such lengths, within 24 roundings of the largest."""
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
    """Return the triangle, or one with larger angles and so no smaller profile for `profile`."""
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
    """Return K: on the line Im s = v the integrand is at most e^{K v^2/2} times larger."""
    return 1 + (max(abs(f), abs(g)) / mu) ** 2


def _spacing(f: float, g: float, mu: float) -> tuple[float, float]:
    """Return half-width of the strip in which the integrand is bounded, and the step."""
    rate = _growth_rate(f, g, mu)
    # |arg S| stays below one radian on either side of its middle.
    strip = min(math.sqrt(2 * _DIGITS / rate), 2 / max(f + g, 1e-9))
    return strip, 2 * math.pi * strip / (_DIGITS + rate * strip * strip / 2)


def _trapezoid_error(
    f: float, g: float, mu: float, strip: float, step: float, crowd: Array, losses: Array
) -> Array:
    """Return 2M / (e^{2 pi v/step} - 1), M = 2 e^{K v^2/2} E_s[Phi(near at k - c)], c = log sec."""
    turned = -math.log(math.cos(min((f + g) * strip / 2, 1.0)))

    def tail(start: Array, slope: float) -> Array:
        # S is at least either of its terms, and E_s[Phi(x - y s)] = Phi(x / sqrt(1 + y^2)).
        x = mu / 2 + (turned - start + slope * slope / 2) / mu
        return normal(np.minimum(x, 40.0) / math.sqrt(1 + (slope / mu) ** 2))

    with np.errstate(invalid="ignore"):
        likely = np.minimum(tail(np.where(losses > 0, crowd, -1e3), f), tail(losses, g))
    exponent = _growth_rate(f, g, mu) * strip * strip / 2 - 2 * math.pi * strip / step
    return 4.1 * math.exp(exponent) * likely * 1.01


class Cell(NamedTuple):
    """The lower corner of a cell, in missing shares of a right angle."""

    a: Fraction
    b: Fraction
    w: Fraction

    @classmethod
    def whole(cls) -> Cell:
        """Return all triangles."""
        return cls(Fraction(0), Fraction(0), Fraction(0))

    @property
    def size(self) -> Fraction:
        """One minus the sum, zero for a single triangle."""
        return 1 - self.a - self.b - self.w

    def children(self) -> tuple[Cell, Cell, Cell]:
        """Return three cells that together hold all triangles of this one."""
        third = self.size / 3
        a, b, w = self
        return Cell(a + third, b, w), Cell(a, b + third, w), Cell(a, b, w + third)


Cover = tuple[Cell, ...]
Corner = tuple[int, int, int]


def covers(cells: Iterable[Cell]) -> bool:
    """Return True if every triangle lies in one of the cells, by exact arithmetic."""
    corners, one = in_whole_numbers(cells)
    return _hold_all(corners, one)


def in_whole_numbers(cells: Iterable[Cell]) -> tuple[list[Corner], int]:
    """Return corners as multiples of one unit, and the number of units in one, both exact."""
    given = list(cells)
    one = math.lcm(*(part.denominator for cell in given for part in cell))
    return [corner_of(cell, one) for cell in given], one


def corner_of(cell: Cell, one: int) -> Corner:
    """Return a corner in units of 1 / ``one``, where ``one`` is a multiple of all denominators."""
    a, b, w = (part.numerator * (one // part.denominator) for part in cell)
    return a, b, w


def are_held(corner: Corner, others: Iterable[Corner], one: int) -> bool:
    """Return True if every triangle of a cell lies in one of the other cells."""
    a, b, w = corner
    size = one - a - b - w
    # Relative to its corner, the parts of a cell within other cells are cells again.
    parts = [(max(o[0] - a, 0), max(o[1] - b, 0), max(o[2] - w, 0)) for o in others]
    return _hold_all([part for part in parts if sum(part) <= size], size)


def _hold_all(corners: list[Corner], one: int) -> bool:
    """Return True if cells hold all shares a + b + w = one.

    At one value of a, the cell (a0, b0, w0) with a0 <= a holds b from b0 to 1 - a - w0. As a grows,
    all these right ends and the last b, 1 - a, fall alike. So it is enough to check the largest a
    of each stretch on which no cell begins.
    """
    if one <= 0:
        return bool(corners) or one < 0
    known = sorted((b, w, a) for a, b, w in corners)
    ends = sorted({a for _, _, a in known} | {one})
    starts = [0, *ends[:-1]] if ends[0] > 0 else ends[:-1]
    for start, end in zip(starts, ends[-len(starts) :], strict=True):
        reached = -1
        for b, w, a in known:
            if a > start:
                continue
            if b > max(reached, 0):
                break
            reached = max(reached, one - end - w)
        if reached < one - end:
            return False
    return True


def without_spare(cells: Cover) -> Cover:
    """Return the cover without cells that the others make superfluous."""
    corners, one = in_whole_numbers(cells)
    kept = dict(zip(cells, corners, strict=True))
    for cell in sorted(cells, key=lambda cell: -cell.size):
        corner = kept.pop(cell)
        if not are_held(corner, kept.values(), one):
            kept[cell] = corner
    return tuple(cell for cell in cells if cell in kept)


@cache
def default_cover() -> Cover:
    """Return the cells that serve most settings. `covers` holds for them."""
    return tuple(Cell(*(Fraction(part, _PARTS) for part in corner)) for corner in _DEFAULT)


_PARTS = 3**12
# Found by splitting, on a dozen settings at once, the cells that added most.
_DEFAULT = (
    (0, 0, 295245), (0, 118098, 177147), (0, 255879, 118098), (0, 295245, 78732),
    (0, 373977, 52488), (0, 426465, 0), (52488, 373977, 0), (78732, 177147, 118098),
    (78732, 295245, 52488), (78732, 347733, 0), (118098, 0, 255879), (118098, 78732, 177147),
    (118098, 229635, 78732), (118098, 255879, 52488), (131220, 295245, 0), (170586, 255879, 0),
    (177147, 118098, 131220), (177147, 170586, 78732), (196830, 0, 177147), (196830, 177147, 52488),
    (196830, 229635, 0), (229635, 78732, 118098), (229635, 118098, 78732), (249318, 177147, 0),
    (255879, 0, 170586), (255879, 52488, 118098), (255879, 153090, 52488), (255879, 170586, 34992),
    (295245, 78732, 87480), (295245, 113724, 52488), (308367, 0, 153090), (308367, 34992, 118098),
    (308367, 118098, 34992), (308367, 153090, 0), (330237, 52488, 78732), (330237, 78732, 52488),
    (343359, 0, 118098), (343359, 118098, 0), (347733, 0, 113724), (347733, 34992, 78732),
    (347733, 78732, 34992), (347733, 113724, 0), (373977, 52488, 58320), (373977, 75816, 34992),
    (382725, 0, 102060), (382725, 23328, 78732), (382725, 78732, 23328), (382725, 102060, 0),
    (397305, 34992, 52488), (397305, 52488, 34992), (406053, 0, 78732), (406053, 78732, 0),
    (408969, 0, 75816), (408969, 23328, 52488), (408969, 52488, 23328), (408969, 75816, 0),
    (426465, 23328, 34992), (426465, 34992, 23328), (432297, 0, 52488), (432297, 52488, 0),
    (449793, 0, 50544), (449793, 15552, 34992), (449793, 34992, 0), (461457, 15552, 23328),
    (461457, 23328, 15552), (465345, 0, 34992), (477009, 0, 33696), (477009, 10368, 23328),
    (477009, 23328, 0), (484785, 10368, 15552), (484785, 15552, 0), (487377, 0, 23328),
    (495153, 0, 15552), (500337, 6912, 10368), (500337, 10368, 0), (507249, 0, 10368),
    (510705, 0, 6912), (510705, 6912, 0), (517617, 0, 4608), (517617, 4608, 0), (522225, 0, 3072),
    (522225, 3072, 0), (525297, 0, 2048), (525297, 2048, 0), (527345, 0, 0),
)  # fmt: skip
