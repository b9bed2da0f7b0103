"""Fixed-size sampling, one client replaced, by brute force: densities in the plane, no reduction.

Positions lie on the unit circle. Nothing is shared with src: the profile of a triangle is an
integral over the boundary of the likelihood-ratio set (sliced along the side from a to b), and the
game of two rounds is a sum over a lattice in the plane with every triangle of a mesh.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

import numpy as np
from mpmath import mp, mpf
from numpy.typing import NDArray

Array = NDArray[np.float64]
Point = tuple[float, float]


def triangle_profile(q: float, z: float, b: float, w: float, log_gamma: float) -> mpf:
    """H_gamma(P || Q) with angles (1-b) pi/2 at b and (1-w) pi/2 at w, both below pi/2 here.

    The set {c1 g_w + c2 g_b <= 1} is bounded by x where c2 g_b = 1 / (1 + e^l), and by y where
    c1 g_w = 1 / (1 + e^-l); a lies at 0, b at (d3, 0), w above.
    """
    with mp.workdps(17):
        rate, std = mpf(q), mpf(z)
        at_b, at_w = (1 - mpf(b)) * mp.pi / 2, (1 - mpf(w)) * mp.pi / 2
        at_a = mp.pi - at_b - at_w
        d1, d3 = 2 * mp.sin(at_b), 2 * mp.sin(at_w)
        gamma = mp.exp(mpf(log_gamma))
        c1, c2 = (1 - rate) * (gamma - 1) / rate, gamma
        across, up = d1 * mp.cos(at_a), d1 * mp.sin(at_a)

        def below(x: mpf, limit: mpf, center: tuple[mpf, mpf]) -> mpf:
            height = mp.ncdf((limit - center[1]) / std)
            return mp.npdf(x, center[0], std) * height

        def integrand(log_odds: mpf) -> mpf:
            x = std**2 / d3 * (-mp.log1p(mp.exp(log_odds)) - mp.log(c2)) + d3 / 2
            if c1 > 0:
                free = std**2 * (-mp.log1p(mp.exp(-log_odds)) - mp.log(c1))
                limit = (free + d1**2 / 2 - across * x) / up
            else:
                limit = mp.inf
            speed = std**2 / d3 / (1 + mp.exp(-log_odds))
            total = below(x, limit, (mpf(0), mpf(0))) - c2 * below(x, limit, (d3, mpf(0)))
            return speed * (total - c1 * below(x, limit, (across, up)))

        reach = 60 + 14 * d3 / std
        return rate * mp.quad(integrand, mp.linspace(-reach, reach, 25), maxdegree=5)


def triangles(mesh: int) -> Iterator[tuple[Point, Point, Point]]:
    """Positions of the crowd, the client and its replacement: inscribed, not obtuse."""
    for i in range(mesh + 1):
        for j in range(mesh - i, mesh + 1):
            at_a, at_b = math.pi / 2 * i / mesh, math.pi / 2 * j / mesh
            yield _on_circle(2 * at_b), _on_circle(0.0), _on_circle(-2 * (math.pi - at_a - at_b))


def two_rounds(
    q: float,
    z: float,
    epsilon: float,
    mesh: int,
    side: int = 161,
    last: Callable[[Array], Array] | None = None,
) -> float:
    """delta(eps) of two rounds, the best triangle of a mesh in the first at each past.

    The last round, if of the same kind, is worth the larger of remove and add: for one threshold
    nothing exceeds them.
    """
    return _best(triangles(mesh), q, z, epsilon, side, last or fixed_size_last(q, z))


def _best(
    places: Iterable[tuple[Point, Point, Point]],
    q: float,
    z: float,
    epsilon: float,
    side: int,
    worth: Callable[[Array], Array],
    *,
    swapped: bool = False,
) -> float:
    """The largest mean of what the last round is worth after a first round with these places."""
    best = 0.0
    for points in places:
        p, other, cell = _densities(q, z, *points, side)
        if swapped:
            p, other = other, p
        best = max(best, float((p * worth(np.log(p / other) - epsilon)).sum() * cell))
    return best


def line_then(z: float, rate: float, epsilon: float, last: Callable[[Array], Array]) -> float:
    """delta(eps) of a round with one pair, Gaussian or Poisson, and whatever comes after."""
    x, p, other = _replaced_on_a_line(z, rate)
    return float((p * last(np.log(p / other) - epsilon)).sum() * (x[1] - x[0]))


def one_pair_last(z: float, rate: float = 1.0) -> Callable[[Array], Array]:
    """What a last round with one pair is worth at each loss, where one client is replaced."""
    x, p, other = _replaced_on_a_line(z, rate)
    places = np.sinh(np.linspace(-9.0, 9.0, 801)) * (12.0 / math.sinh(9.0))
    worth = [float(np.maximum(p - math.exp(-y) * other, 0).sum()) for y in places]
    values = np.array(worth) * float(x[1] - x[0])
    return lambda left: np.interp(left, places, values)


def fixed_size_last(q: float, z: float) -> Callable[[Array], Array]:
    """The same for a round of fixed size."""
    return lambda left: _last_round(q, z, left)


def _replaced_on_a_line(z: float, rate: float) -> tuple[Array, Array, Array]:
    x = np.linspace(-1 - 9 * z, 1 + 9 * z, 4001)
    rest = (1 - rate) * _line(x, 0.0, z)
    return x, rest + rate * _line(x, 1.0, z), rest + rate * _line(x, -1.0, z)


def one_round(
    q: float, z: float, points: tuple[Point, Point, Point], phi: Callable[[Array, Array], Array]
) -> float:
    """The integral of phi(p, q) over the plane."""
    p, q_density, cell = _densities(q, z, *points, 181)
    return float(phi(p, q_density).sum() * cell)


def cohorts(
    vectors: list[Point], cohort: int, z: float, phi: Callable[[Array, Array], Array]
) -> float:
    """The divergence of two data sets: all vectors but the last, and all but the first."""
    from itertools import combinations

    reach = cohort + 8 * z
    line = np.linspace(-reach, reach, 181)
    x, y = np.meshgrid(line, line)
    found: list[Array] = []
    for data in (vectors[:-1], vectors[1:]):
        sums = [np.sum(chosen, axis=0) for chosen in combinations(np.array(data), cohort)]
        found.append(np.mean([_normal(x, y, (s[0], s[1]), z) for s in sums], axis=0))
    return float(phi(found[0], found[1]).sum() * (line[1] - line[0]) ** 2)


def _on_circle(angle: float) -> Point:
    return math.cos(angle), math.sin(angle)


def _normal(x: Array, y: Array, center: Point, z: float) -> Array:
    squares = (x - center[0]) ** 2 + (y - center[1]) ** 2
    return np.exp(-squares / (2 * z * z)) / (2 * math.pi * z * z)


def _densities(
    q: float, z: float, crowd: Point, client: Point, other: Point, side: int
) -> tuple[Array, Array, float]:
    line = np.linspace(-1 - 8 * z, 1 + 8 * z, side)
    x, y = np.meshgrid(line, line)
    rest = (1 - q) * _normal(x, y, crowd, z)
    p, q_density = rest + q * _normal(x, y, client, z), rest + q * _normal(x, y, other, z)
    return p, q_density, (line[1] - line[0]) ** 2


def _last_round(q: float, z: float, left: Array) -> Array:
    """w_1(y): 1 - e^-y + e^-y H_remove(e^y), or H_remove(e^-y), by the sign of y."""
    size = np.abs(left)
    odds = np.log1p(np.expm1(np.minimum(size, 600.0)) / q)
    mu = 2 / z
    erfc = np.vectorize(math.erfc)
    near, far = (0.5 * erfc(-(sign * mu / 2 - odds / mu) / math.sqrt(2)) for sign in (1, -1))
    profile = q * (near - np.exp(np.minimum(odds, 600.0)) * far)
    return np.where(left > 0, -np.expm1(-size) + np.exp(-size) * profile, profile)


def zero_out_two_rounds(
    q: float, z: float, epsilon: float, angles: int, side: int = 161, *, swapped: bool = False
) -> float:
    """delta(eps) of two rounds where a contribution becomes zero, any angle at each past."""
    # A chord lies above the value, so that places are dense where the curvature is.
    left = np.sinh(np.linspace(-9.0, 9.0, 1601)) * (6.0 / math.sinh(9.0))
    last = np.max([_last_value(q, z, left, w, swapped=swapped) for w in (1.0, 0.0, -1.0)], axis=0)
    crowds = (_on_circle(math.pi * k / angles) for k in range(angles + 1))
    places = ((crowd, (1.0, 0.0), (0.0, 0.0)) for crowd in crowds)
    return _best(
        places, q, z, epsilon, side, lambda here: np.interp(here, left, last), swapped=swapped
    )


def _last_value(q: float, z: float, left: Array, crowd: float, *, swapped: bool) -> Array:
    """E_P[(1 - e^(-y - L))_+] at each y, on a line, with the client at 1 or at 0."""
    x = np.linspace(-1 - 9 * z, 1 + 9 * z, 6001)
    rest = (1 - q) * _line(x, crowd, z)
    p, other = rest + q * _line(x, 1.0, z), rest + q * _line(x, 0.0, z)
    if swapped:
        p, other = other, p
    step = float(x[1] - x[0])
    return np.array([float(np.maximum(p - math.exp(-y) * other, 0).sum()) * step for y in left])


def _line(x: Array, center: float, z: float) -> Array:
    return np.exp(-((x - center) ** 2) / (2 * z * z)) / (z * math.sqrt(2 * math.pi))
