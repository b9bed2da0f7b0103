"""One round on a grid of losses: laws above each cell or range of positions, and laws below.

If a client is replaced, one side of a cell's law comes from the largest angles at b and w, and the
other side from the angles at a and w. Where a contribution becomes zero, crowd w and client a lie
on the unit circle. The neighboring data set sends nothing, so that a round has one angle:
P(loss > ...) grows with it, and the same with the data sets exchanged falls. A range of angles
takes one side from its largest and the other from its least one. Half a turn and no turn have
closed forms:

    opposed, w = -a:  P = (1-q) N(-1) + q N(1),  Q = (1-q) N(-1) + q N(0),
    alike,   w = a:   P = N(0),  Q = (1-q) N(0) + q N(1)   (the add pair of shift 1).

Strategies are one-dimensional pairs, whose laws bound the game from below. *remove*: crowd and
replacement at -C, the client at +C. *add*: the same in the other order. Both have closed forms.
With mu = 2/z and gamma = e^loss,

    remove:  H = q Delta_mu(k),      e^k = 1 + (gamma - 1)/q,              -H' = Phi(-mu/2 - k/mu),
    add:     H = q s Delta_mu(k),    s = 1 - (1-q)(gamma-1)/q,  e^k = gamma/s,
             -H' = (1-q) Phi(mu/2 - k/mu) + q Phi(-mu/2 - k/mu).

Each side of either pair becomes a law on a grid that is dominated by it: tangents at the middles of
the intervals of the grid. Derivation: docs/derivations/fixed-size-game.md.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Literal

import numpy as np

from dpacct.errors import NotConverged
from dpacct.numerics.rounding import UNIT, Array, Bounds
from dpacct.pairs.dominating import Direction, ReplacementPair
from dpacct.pairs.one_round import one_round_delta
from dpacct.tight.game.laws import (
    Kernel,
    Points,
    Side,
    dominated_kernel,
    dominated_side,
    dominating_kernel,
    dominating_side,
    grid_points,
    line_ends,
)
from dpacct.tight.game.theorem import (
    Cell,
    Lengths,
    Triangle,
    bounds,
    gaussian_profile,
    normal,
    not_too_flat,
    profile,
    profile_over,
)


def middles(points: Points, step: float) -> Array:
    """Return the middles of the intervals between points, as losses."""
    return np.asarray(0.5 * step * (points[:-1] + points[1:]), dtype=np.float64)


def touching_side(touching: tuple[Bounds, Bounds], points: Points, step: float) -> Side:
    """Return masses below the profile, from bounds of it and of its slope at the middles."""
    lines = line_ends(points, step, middles(points, step), *touching)
    return dominated_side(points, step, lines.lower, lines.upper)


def gaussian_pair(_: float, noise: float, losses: Array) -> tuple[Bounds, Bounds]:
    """Bound H and -H' for full participation, at any rate: H = Delta_mu(loss)."""
    mu = 2 / noise
    plain = gaussian_profile(losses, mu, np.zeros(losses.shape))
    profile = bounds(np.ones(losses.shape), plain, np.zeros(losses.shape))
    return profile, _spread(plain.far, _far_error(losses, mu, np.zeros(losses.shape)))


def remove_pair(rate: float, noise: float, losses: Array) -> tuple[Bounds, Bounds]:
    """Return bounds of H and of -H' for the remove pair."""
    mu = 2 / noise
    k = np.log1p(np.expm1(losses) / rate)
    plain = gaussian_profile(k, mu, 20 + 20 * losses)
    profile = bounds(np.full(losses.shape, rate), plain, np.zeros(losses.shape))
    return profile, _spread(plain.far, _far_error(k, mu, 20 + 20 * losses))


def add_pair(rate: float, noise: float, losses: Array) -> tuple[Bounds, Bounds]:
    """Bound H and -H' for the add pair, which has nothing beyond its largest loss."""
    # Where s is small all that is known is H <= q s, and H = 0 where it is negative.
    mu = 2 / noise
    missing = (1 - rate) / rate * np.expm1(losses)
    kept, spare = 1 - missing, 64 * UNIT * (1 + missing)
    inside = kept > 2.0**-20
    kept = np.where(inside, kept, 1.0)
    lost = 32 * (1 + missing) / kept
    k = losses - np.log(kept)
    plain = gaussian_profile(k, mu, lost + 20 * losses)
    profile = bounds(rate * kept, plain, lost)
    error = _far_error(k, mu, lost + 20 * losses)
    slope = (1 - rate) * plain.near + rate * plain.far
    steep = _spread(slope, plain.relative + error)
    most = np.where(inside, profile.upper, rate * np.maximum(1 - missing + spare, 0.0))
    return Bounds(profile.lower * inside, most), Bounds(steep.lower * inside, steep.upper)


def replacement_line(rate: float, noise: float, losses: Array) -> tuple[Bounds, Bounds]:
    """Return a line below the profile of the replacement pair that nearly touches it at each loss.

    For any threshold t, P(x > t) - gamma Q(x > t) <= H(gamma), with P = (1-q) N(0) + q N(1) and
    Q = (1-q) N(0) + q N(-1). At t the ratio of the densities is about gamma.

    Returns:
        Bounds of the line's values at the losses, and of minus its slope. Both are 0 if only
        rounding errors are left.
    """
    odds = (1 - rate) / rate * math.exp(min(0.5 / noise**2, 700.0))
    at = noise**2 * (losses / 2 + np.arcsinh(np.minimum(odds * np.sinh(losses / 2), 1e300)))
    arguments = [(mean - at) / noise for mean in (0.0, 1.0, -1.0)]
    crowd, near, far = (normal(x) for x in arguments)
    gamma = np.exp(losses)
    first, second = (1 - rate) * crowd + rate * near, (1 - rate) * crowd + rate * far
    largest = (np.abs(at) + 1) / noise
    error = UNIT * 1.01 * (48 + 12 * largest + 12 * largest**2)
    value = first - gamma * second - error * (first + gamma * second) - 1e-180
    kept = value > 0.0
    low, high = second * (1 - error) * kept, second * (1 + error) * kept
    return Bounds(np.where(kept, value, 0.0), first), Bounds(low, high)


def _far_error(k: Array, mu: float, error: Array) -> Array:
    """Return relative error of Phi(x), x = -mu/2 - k/mu, in units of roundoff."""
    x = np.abs(mu / 2 + k / mu)
    return (1 + x) * (26 * (mu + np.abs(k) / mu) + (error + 10 * np.abs(k)) / mu + 4 * x) + 96


def _spread(value: Array, error: Array) -> Bounds:
    off = 1.01 * UNIT * value * error + 1e-180
    return Bounds(np.maximum(value - off, 0.0), value + off)


def remove_tails(rate: float, noise: float, losses: Array) -> Array:
    """Estimate P(loss > these) of the remove pair, the largest of all pairs, without proof."""
    mu = 2 / noise
    k = np.log1p(np.expm1(np.minimum(losses, 700.0)) / rate)
    return rate * normal(mu / 2 - k / mu)


# Neighboring grid points of one round's law lie up to this share of the loss apart.
_SPREAD, _FINE = 32, 128
# Points of a profile that are computed at once.
_ROWS = 16
_LEAST = 1e-300
MAX_REACH = 1 << 17


@dataclass(frozen=True, slots=True)
class Grid:
    """One kind of round on a grid of losses.

    Attributes:
        rate, noise: q in (0, 1), rounded up for laws above and down for laws below, and z.
        step: between neighboring losses, with few bits.
        reach: points that losses of either sign reach at least.
        negligible: the probability that a law above may lose to infinite losses.
    """

    rate: float
    noise: float
    step: float
    reach: int
    negligible: float

    @classmethod
    def of(cls, rate: float, noise: float, step: float, negligible: float) -> Grid:
        """Return the grid beyond which one round's loss lies with about the negligible probability.

        Both signs reach as far, so that a cell and its mirror image share their values.

        Raises:
            NotConverged: it has more than `MAX_REACH` points.
        """
        far = far_loss(rate, noise, step, negligible)
        return cls(rate, noise, step, counted(far, step), negligible)

    @classmethod
    def of_everybody(cls, noise: float, step: float, negligible: float) -> Grid:
        """Return the same for a Gaussian with a shift of two."""
        mu = 2 / noise
        far = mu * (mu / 2 + math.sqrt(max(0.0, -2 * math.log(negligible))))
        return cls(1.0, noise, step, counted(far, step), negligible)

    @property
    def points(self) -> Points:
        """The points of laws above, as from `grid_points`."""
        return _points(self.reach, _SPREAD)

    @property
    def fine(self) -> Points:
        """The points of laws below."""
        return _points(self.reach, _FINE)

    @property
    def losses(self) -> Array:
        """The losses at ``points``, exact because the step has few bits."""
        return np.asarray(self.step * self.points, dtype=np.float64)


def far_loss(rate: float, noise: float, least: float, probability: float) -> float:
    """Estimate the loss >= ``least`` that one round exceeds with this probability."""
    losses = np.geomspace(least, 600.0, 400)
    small = remove_tails(rate, noise, losses) <= probability
    return float(losses[min(int(np.argmax(small)), len(losses) - 1)])


def counted(loss: float, step: float) -> int:
    """Return how many points of the grid reach a loss, at least four."""
    if loss > MAX_REACH * step:
        raise NotConverged(f"the loss of one round needs more than {MAX_REACH} points of the grid")
    return max(4, math.ceil(loss / step))


@lru_cache(maxsize=64)
def _points(reach: int, spread: int) -> Points:
    return grid_points(max(reach, 2), spread)


@lru_cache(maxsize=4096)
def known_values(grid: Grid, triangle: Triangle) -> Array:
    """Return `side_values`, not to be changed: covers are chosen and bounded by them."""
    values = side_values(grid, triangle)
    values.flags.writeable = False
    return values


def side_values(grid: Grid, triangle: Triangle) -> Array:
    """Return upper bounds of a triangle's profile at the grid's losses, shape (n,), positive."""
    rate, noise = grid.rate, grid.noise
    if triangle.b == 1.0 and triangle.w == 0.0:
        return np.maximum(add_pair(rate, noise, grid.losses)[0].upper, _LEAST)
    triangle = not_too_flat(noise, triangle)
    return _until_negligible(lambda part: profile(rate, noise, triangle, part).upper, grid)


def _until_negligible(upper: Callable[[Array], Array], grid: Grid) -> Array:
    """Return upper bounds of a profile at the grid's losses, computed as far as they matter."""
    losses = grid.losses
    values = np.empty(len(losses))
    for start in range(0, len(losses), _ROWS):
        rows = slice(start, start + _ROWS)
        values[rows] = upper(losses[rows])
        if values[rows][-1] <= grid.negligible:
            # A profile falls, so its bound here holds further out.
            values[start + _ROWS :] = values[rows][-1]
            break
    return values


@lru_cache(maxsize=4096)
def _cell_side(grid: Grid, triangle: Triangle) -> Side:
    return dominating_side(grid.points, grid.step, known_values(grid, triangle))


@lru_cache(maxsize=4096)
def cell_kernel(grid: Grid, cell: Cell) -> Kernel:
    """Return a law that dominates every triangle of a cell (lemma 3).

    The profile at gamma >= 1 grows with the angles at b and w, so that the largest angles bound it.
    Below one, b and a are exchanged: the largest angles at a and w bound it.
    """
    w = float(cell.w)
    rising, falling = (_cell_side(grid, Triangle(float(missing), w)) for missing in cell[1::-1])
    return dominating_kernel(rising, falling, grid.step)


def _above(grid: Grid, points: Points, rising: Array, falling: Array) -> Kernel:
    """Return a law above the profiles with these upper values for losses of either sign."""
    sides = [
        dominating_side(points, grid.step, np.maximum(values, _LEAST))
        for values in (rising, falling)
    ]
    return dominating_kernel(sides[0], sides[1], grid.step)


# Bounds of H and of -H' at the middles of a grid's intervals.
_Touching = tuple[Bounds, Bounds]


def _below(grid: Grid, rising: _Touching, falling: _Touching) -> Kernel:
    """Return a law below the profiles that these tangents touch."""
    sides = [touching_side(pair, grid.fine, grid.step) for pair in (rising, falling)]
    return dominated_kernel(sides[0], sides[1], grid.step)


# Fixed pairs, by the profiles of losses of either sign: a strategy of the game, a round of full
# participation, and a round of Poisson sampling in which one client is replaced.
FixedPair = Literal["remove", "add", "everybody", "replaced"]
_PROFILES = {
    "remove": (remove_pair, add_pair),
    "add": (add_pair, remove_pair),
    "everybody": (gaussian_pair, gaussian_pair),
    "replaced": (replacement_line, replacement_line),
}


@lru_cache(maxsize=256)
def fixed_below(grid: Grid, pair: FixedPair) -> Kernel:
    """Return a law that a fixed pair dominates."""
    at = middles(grid.fine, grid.step)
    rising, falling = (profile(grid.rate, grid.noise, at) for profile in _PROFILES[pair])
    return _below(grid, rising, falling)


@lru_cache(maxsize=256)
def fixed_above(grid: Grid, pair: FixedPair) -> Kernel:
    """Return a law that dominates a fixed pair."""
    points = grid.points if pair in ("remove", "add") else grid.fine
    losses = np.asarray(grid.step * points, dtype=np.float64)
    if pair == "replaced":
        # The line lies below. This profile has an upper end.
        alone = ReplacementPair(grid.rate, grid.noise)
        upper = np.array([one_round_delta(loss, alone).upper for loss in losses.tolist()])
        return _above(grid, points, upper, upper)
    rising, falling = (
        profile(grid.rate, grid.noise, losses)[0].upper for profile in _PROFILES[pair]
    )
    return _above(grid, points, rising, falling)


_LARGER = 1 + 2.0**-47


@dataclass(frozen=True, slots=True)
class Turns:
    """Ranges of the angle between crowd and client: 0 = t_0 < t_1 < ... < t_n = 1, over pi."""

    ends: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class TurnGuide:
    """Rule for ranges of the angle: tilts, and the extra gain allowed at each of them."""

    tilts: tuple[float, ...]
    tolerances: tuple[float, ...]


_MANY = 42
MANY_TURNS = Turns(tuple(k / _MANY for k in range(_MANY + 1)))
# The narrowest range of an angle, as one part in this number.
_NARROWEST = 64


def zero_out_above(
    grid: Grid, direction: Direction, turns: Turns = MANY_TURNS
) -> tuple[Kernel, ...]:
    """Return laws, one for each range of the angle, that dominate it for z >= 2/7."""
    return tuple(range_kernel(grid, direction, ends) for ends in pairwise(turns.ends))


@lru_cache(maxsize=1024)
def range_kernel(grid: Grid, direction: Direction, ends: tuple[float, float]) -> Kernel:
    """Return a law that dominates every angle between two ``ends``: one side from either end."""
    rate, noise = grid.rate, grid.noise
    gone = _until_negligible(
        lambda part: contribution_profile(rate, noise, ends[1], part).upper, grid
    )
    back = _until_negligible(lambda part: absence_profile(rate, noise, ends[0], part).upper, grid)
    sides = (gone, back) if direction is Direction.REMOVE else (back, gone)
    return _above(grid, grid.points, *sides)


@lru_cache(maxsize=64)
def guided_turns(grid: Grid, direction: Direction, guide: TurnGuide) -> Turns:
    """Return ranges of the angle, halved until none gains much more than the best single angle.

    The gain of a round is log M(t) of its law, at tilts t about that of the answer. The choice
    needs no proof, since any ranges hold all angles.
    """
    tilts, tolerances = np.array(guide.tilts), np.array(guide.tolerances)

    def gained(ends: tuple[float, float]) -> Array:
        law = range_kernel(grid, direction, ends)
        places = law.first + np.arange(len(law.masses))
        return np.log(np.exp(grid.step * np.outer(tilts, places)) @ law.masses)

    narrow = 1 / _NARROWEST
    best = np.max([gained((0.0, narrow)), gained((1 - narrow, 1.0))], axis=0)

    def excess(ends: tuple[float, float]) -> float:
        return float(np.max((gained(ends) / best - 1) / tolerances))

    waiting = [(-excess((0.0, 1.0)), (0.0, 1.0))]
    while -waiting[0][0] > 1.0:
        start, end = waiting[0][1]
        if end - start <= narrow:
            break
        heapq.heappop(waiting)
        middle = 0.5 * (start + end)
        for ends in ((start, middle), (middle, end)):
            heapq.heappush(waiting, (-excess(ends), ends))
    return Turns((0.0, *sorted(ends[1] for _, ends in waiting)))


@lru_cache(maxsize=256)
def zero_out_below(grid: Grid, direction: Direction) -> tuple[Kernel, ...]:
    """Return laws below three positions of the crowd: opposed to the client, at zero, and alike."""
    rate, noise, at = grid.rate, grid.noise, middles(grid.fine, grid.step)
    remove, add = remove_pair(rate, 2 * noise, at), add_pair(rate, 2 * noise, at)
    opposed = opposed_pair(rate, noise, at), opposed_back_line(rate, noise, at)
    order = slice(None, None, 1 if direction is Direction.REMOVE else -1)
    return tuple(_below(grid, *sides[order]) for sides in (opposed, (remove, add), (add, remove)))


def contribution_profile(rate: float, noise: float, turn: float, losses: Array) -> Bounds:
    """Return bounds of H_gamma(P || Q), gamma = e^loss, where P has the contribution.

    Args:
        rate, noise: q in (0, 1) and z >= 2/7.
        turn: angle between crowd and client, over pi, above 0. The upper bound also holds for
            smaller angles.
        losses: shape (n,), each in [0, 600].
    """
    if turn == 1.0:
        return opposed_pair(rate, noise, losses)[0]
    angle = min(turn * _LARGER, 1.0) * math.pi
    along = math.cos(angle)
    return profile_over(
        rate, Lengths((1 - along) / noise, along / noise, math.sin(angle) / noise), losses
    )


def absence_profile(rate: float, noise: float, turn: float, losses: Array) -> Bounds:
    """Bound H_gamma(Q || P), with the data sets exchanged. It is largest for no turn.

    Args:
        rate, noise, losses: as above.
        turn: below 1. The upper bound holds for all more.
    """
    half = 0.5 * turn / _LARGER * math.pi
    across = math.sin(half) / noise
    return profile_over(rate, Lengths(across, across, math.cos(half) / noise), losses)


def opposed_pair(rate: float, noise: float, losses: Array) -> tuple[Bounds, Bounds]:
    """Return bounds of H and of -H' for the opposed pair, from events {x > t}.

    Any t bounds from below. The best t solves c1 e^(-2t/z^2) + gamma e^((1-2t)/(2z^2)) = 1. A
    threshold near it loses an amount of second order in its error.
    """
    square = noise * noise
    with np.errstate(divide="ignore"):
        crowd = math.log1p(-rate) - math.log(rate) + np.log(np.expm1(losses))
    zero = losses + 0.5 / square
    root = 0.5 * np.logaddexp(2 * zero, math.log(4.0) + crowd)
    at = square * (np.logaddexp(zero, root) - math.log(2.0))
    off = np.abs(np.logaddexp(crowd - 2 * at / square, zero - at / square))
    off += 1e-12 * (1 + losses + at / square + abs(math.log1p(-rate) - math.log(rate)))
    near, middle, far = (normal((mean - at) / noise) for mean in (1.0, 0.0, -1.0))
    gamma, odds = np.exp(losses), (1 - rate) / rate * np.expm1(losses)
    largest = (np.abs(at) + 1) / noise
    error = UNIT * 1.01 * (64 + 16 * largest + 16 * largest**2)
    value = near - gamma * middle - odds * far
    spread = error * (near + gamma * middle + odds * far) + 1e-180
    lower = rate * np.maximum(value - spread, 0.0) * (1 - 8 * UNIT)
    upper = rate * np.maximum(value + spread + noise * off**2, 0.0) * (1 + 8 * UNIT)
    second = (1 - rate) * far + rate * middle
    kept = lower > 0.0
    low, high = second * (1 - error) * kept, second * (1 + error) * kept
    return Bounds(lower, upper), Bounds(low, high)


def opposed_back_line(rate: float, noise: float, losses: Array) -> tuple[Bounds, Bounds]:
    """Return a line below H of the opposed pair, data sets exchanged, from events {s < x < t}.

    Returns:
        Bounds of its values at the losses and of minus its slope. Both are 0 if nothing is left.
    """
    square = noise * noise
    with np.errstate(divide="ignore"):
        crowd = math.log1p(-rate) - math.log(rate) + np.log(np.expm1(losses))
    inner = 1 - np.exp(np.minimum(losses + crowd - 1 / square + math.log(4.0), 1.0))
    root = np.sqrt(np.maximum(inner, 0.0))
    start = square * (crowd - 0.5 / square + math.log(2.0) - np.log1p(root))
    start = np.maximum(start, -40 * noise - 1)
    end = square * (np.log1p(root) - math.log(2.0) - losses + 0.5 / square)

    def inside(mean: float) -> tuple[Array, Array]:
        above, below = normal((end - mean) / noise), normal((start - mean) / noise)
        return np.maximum(above - below, 0.0), above + below

    (near, near_size), (middle, size), (far, far_size) = (inside(m) for m in (1.0, 0.0, -1.0))
    gamma, odds = np.exp(losses), (1 - rate) / rate * np.expm1(losses)
    largest = (np.maximum(np.abs(start), np.abs(end)) + 1) / noise
    error = UNIT * 1.01 * (64 + 16 * largest + 16 * largest**2)
    value = middle - odds * far - gamma * near
    value -= error * (size + odds * far_size + gamma * near_size) + 1e-180
    kept = (inner > 0.0) & (end > start) & (value > 0.0)
    second = (1 - rate) * far + rate * near
    off = error * ((1 - rate) * far_size + rate * near_size)
    lower = np.where(kept, rate * value * (1 - 8 * UNIT), 0.0)
    return (
        Bounds(lower, lower),
        Bounds(np.maximum(second - off, 0.0) * kept, (second + off) * kept),
    )
