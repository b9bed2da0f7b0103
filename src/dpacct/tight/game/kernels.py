"""One round on a grid of losses: laws above each cell or range of positions, and laws below.

Where a client is replaced, a cell of triangles takes one side of its law from the largest angles at
b and w and the other from those at a and w. Where a contribution becomes zero, crowd w and client a
lie on the unit circle and nothing is sent in the neighboring data set, so that a round has one
angle: P(loss > ...) grows with it, and the same with the data sets exchanged falls. A range of
angles takes one side from its largest and the other from its least one. Half a turn and no turn
have closed forms:

    opposed, w = -a:  P = (1-q) N(-1) + q N(1),  Q = (1-q) N(-1) + q N(0),
    alike,   w = a:   P = N(0),  Q = (1-q) N(0) + q N(1)   (the add pair of shift 1).

Derivation: docs/derivations/fixed-size-game.md.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache

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
    dominating_kernel,
    dominating_side,
    grid_points,
)
from dpacct.tight.game.strategies import (
    add_pair,
    gaussian_pair,
    middles,
    remove_pair,
    remove_tails,
    replacement_line,
    touching_side,
    two_strategies,
)
from dpacct.tight.game.theorem import (
    Cell,
    Lengths,
    Triangle,
    normal,
    not_too_flat,
    profile,
    profile_over,
)

# Neighboring grid points of one round's law lie up to this share of the loss apart.
_SPREAD, _FINE = 32, 128
# So many points of a profile are computed at once.
_ROWS = 16
_LEAST = 1e-300
MAX_REACH = 1 << 17


@lru_cache(maxsize=4096)
def cell_side(
    rate: float, noise: float, triangle: Triangle, step: float, reach: int, negligible: float
) -> Side:
    """Masses above a triangle's profile, for losses of one sign."""
    values = known_values(rate, noise, triangle, step, reach, negligible)
    return dominating_side(points_to(reach), step, values)


@lru_cache(maxsize=4096)
def known_values(
    rate: float, noise: float, triangle: Triangle, step: float, reach: int, negligible: float
) -> Array:
    """`side_values` at `points_to`, not to be changed: covers are chosen and bounded by them."""
    losses = grid_losses(points_to(reach), step)
    found = side_values(rate, noise, triangle, losses, negligible)
    found.flags.writeable = False
    return found


def side_values(
    rate: float, noise: float, triangle: Triangle, losses: Array, negligible: float
) -> Array:
    """Upper bounds of a triangle's profile at losses that increase from 0, shape (n,), positive."""
    if triangle.b == 1.0 and triangle.w == 0.0:
        return np.maximum(add_pair(rate, noise, losses)[0].upper, _LEAST)
    triangle = not_too_flat(noise, triangle)

    def upper(part: Array) -> Array:
        return profile(rate, noise, triangle, part).upper

    return until_negligible(upper, losses, negligible)


def until_negligible(upper: Callable[[Array], Array], losses: Array, negligible: float) -> Array:
    """Upper bounds of a profile at losses that increase, computed as far as they matter."""
    values = np.empty(len(losses))
    for start in range(0, len(losses), _ROWS):
        rows = slice(start, start + _ROWS)
        values[rows] = upper(losses[rows])
        if values[rows][-1] <= negligible:
            # A profile falls: what bounds it here bounds it further out.
            values[start + _ROWS :] = values[rows][-1]
            break
    return values


def grid_losses(points: Points, step: float) -> Array:
    """Points as losses; exact, as the step has few bits."""
    return np.asarray(step * points, dtype=np.float64)


def points_to(reach: int) -> Points:
    """The points that laws above have up to there, as `grid_points`."""
    return _points(reach, _SPREAD)


def fine_points_to(reach: int) -> Points:
    """The points that laws below have."""
    return _points(reach, _FINE)


@lru_cache(maxsize=64)
def _points(reach: int, spread: int) -> Points:
    return grid_points(max(reach, 2), spread)


@lru_cache(maxsize=4096)
def cell_kernel(
    rate: float,
    noise: float,
    cell: Cell,
    step: float,
    reach: tuple[int, int],
    negligible: float,
) -> Kernel:
    """A law that dominates every triangle of a cell.

    The profile at gamma >= 1 grows with the angles at b and w, so that the largest ones bound it;
    below one, with b and a exchanged, those at a and w.

    Args:
        rate, noise: q in (0, 1), at least the true one, and z.
        cell: of the cover.
        step: of the grid, with few bits.
        reach: points that losses above and below zero reach at least.
        negligible: probability that may be lost to infinite losses.
    """

    def side(missing: Fraction, reach: int) -> Side:
        triangle = Triangle(float(missing), float(cell.w))
        return cell_side(rate, noise, triangle, step, reach, negligible)

    rising, falling = side(cell.b, reach[0]), side(cell.a, reach[1])
    return dominating_kernel(rising, falling, step)


@lru_cache(maxsize=256)
def strategy_kernels(
    rate: float, noise: float, step: float, reach: tuple[int, int]
) -> tuple[Kernel, Kernel]:
    """Laws dominated by the remove pair and by the add pair."""
    return two_strategies(rate, noise, step, _points(reach[0], _FINE), _points(reach[1], _FINE))


@lru_cache(maxsize=64)
def sampled_above(
    rate: float, noise: float, step: float, reach: tuple[int, int], direction: Direction
) -> Kernel:
    """A law above the remove pair or the add pair."""
    pairs = (remove_pair, add_pair) if direction is Direction.REMOVE else (add_pair, remove_pair)
    sides = [
        dominating_side(
            points,
            step,
            np.maximum(pair(rate, noise, grid_losses(points, step))[0].upper, _LEAST),
        )
        for pair, points in zip(pairs, map(points_to, reach), strict=True)
    ]
    return dominating_kernel(sides[0], sides[1], step)


def far_loss(rate: float, noise: float, least: float, probability: float) -> float:
    """About the loss of one round beyond which there is this probability; at least ``least``."""
    losses = np.geomspace(least, 600.0, 400)
    small = remove_tails(rate, noise, losses) <= probability
    return float(losses[min(int(np.argmax(small)), len(losses) - 1)])


def reach_of(rate: float, noise: float, step: float, negligible: float) -> tuple[int, int]:
    """Points beyond which one round's loss lies with about this probability.

    Raises:
        NotConverged: more than `MAX_REACH`.
    """
    far = far_loss(rate, noise, step, negligible)
    # The same on both sides, so that a cell and its mirror image share what they need.
    points = max(4, _counted(far, step))
    return points, points


def _counted(loss: float, step: float) -> int:
    if loss > MAX_REACH * step:
        raise NotConverged(f"the loss of one round needs more than {MAX_REACH} points of the grid")
    return math.ceil(loss / step)


def gaussian_reach(noise: float, step: float, negligible: float) -> tuple[int, int]:
    """The same where everybody takes part."""
    mu = 2 / noise
    far = mu * (mu / 2 + math.sqrt(max(0.0, -2 * math.log(negligible))))
    points = max(4, _counted(far, step))
    return points, points


@lru_cache(maxsize=64)
def gaussian_above(noise: float, step: float, reach: tuple[int, int]) -> Kernel:
    """A law that dominates a round in which everybody takes part and one client is replaced."""
    points = _points(reach[0], _FINE)
    side = dominating_side(points, step, gaussian_pair(noise, grid_losses(points, step))[0].upper)
    return dominating_kernel(side, side, step)


@lru_cache(maxsize=64)
def poisson_above(rate: float, noise: float, step: float, reach: tuple[int, int]) -> Kernel:
    """A law that dominates a round of Poisson sampling in which one client is replaced."""
    points = _points(reach[0], _FINE)
    pair = ReplacementPair(rate, noise)
    upper = [one_round_delta(float(loss), pair).upper for loss in grid_losses(points, step)]
    side = dominating_side(points, step, np.maximum(upper, 1e-300))
    return dominating_kernel(side, side, step)


@lru_cache(maxsize=64)
def poisson_below(rate: float, noise: float, step: float, reach: tuple[int, int]) -> Kernel:
    """A law dominated by such a round."""
    points = _points(reach[0], _FINE)
    side = touching_side(replacement_line(rate, noise, middles(points, step)), points, step)
    return dominated_kernel(side, side, step)


@lru_cache(maxsize=64)
def gaussian_below(noise: float, step: float, reach: tuple[int, int]) -> Kernel:
    """A law dominated by such a round."""
    points = _points(reach[0], _FINE)
    side = touching_side(gaussian_pair(noise, middles(points, step)), points, step)
    return dominated_kernel(side, side, step)


_LARGER = 1 + 2.0**-47


@dataclass(frozen=True, slots=True)
class Turns:
    """Ranges of the angle between crowd and client: 0 = t_0 < t_1 < ... < t_n = 1, over pi."""

    ends: tuple[float, ...]

    @classmethod
    def equal(cls, ranges: int) -> Turns:
        """So many ranges of the same width."""
        return cls(tuple(k / ranges for k in range(ranges + 1)))

    def __len__(self) -> int:
        return len(self.ends) - 1


@dataclass(frozen=True, slots=True)
class TurnGuide:
    """How ranges of the angle are chosen: tilts, and by what share one may gain more at each."""

    tilts: tuple[float, ...]
    tolerances: tuple[float, ...]


MANY_TURNS = Turns.equal(42)


def zero_out_above(
    rate: float,
    noise: float,
    step: float,
    reach: int,
    negligible: float,
    direction: Direction,
    turns: Turns = MANY_TURNS,
) -> tuple[Kernel, ...]:
    """Laws, one for each range of the angle, that dominate what it may be.

    Args:
        rate, noise: q in (0, 1), at least the true one, and z >= 2/7.
        step, reach, negligible: as for `kernels.cell_kernel`.
        direction: remove if P has the contribution.
        turns: the ranges.
    """
    return tuple(
        range_kernel(rate, noise, step, reach, negligible, direction, ends)
        for ends in zip(turns.ends, turns.ends[1:], strict=False)
    )


@lru_cache(maxsize=1024)
def range_kernel(
    rate: float,
    noise: float,
    step: float,
    reach: int,
    negligible: float,
    direction: Direction,
    ends: tuple[float, float],
) -> Kernel:
    """A law that dominates every angle between two ``ends``: one side from either of them."""
    points = points_to(reach)
    losses = grid_losses(points, step)

    def client_gone(part: Array) -> Array:
        return contribution_profile(rate, noise, ends[1], part).upper

    def client_back(part: Array) -> Array:
        return absence_profile(rate, noise, ends[0], part).upper

    gone, back = (
        dominating_side(
            points, step, np.maximum(until_negligible(upper, losses, negligible), _LEAST)
        )
        for upper in (client_gone, client_back)
    )
    rising, falling = (gone, back) if direction is Direction.REMOVE else (back, gone)
    return dominating_kernel(rising, falling, step)


@lru_cache(maxsize=64)
def guided_turns(
    rate: float,
    noise: float,
    step: float,
    reach: int,
    negligible: float,
    direction: Direction,
    guide: TurnGuide,
) -> Turns:
    """Ranges of the angle, halved until none gains much more than the best single angle does.

    What a round gains is log M(t) of its law, at tilts t about that of the answer. Nothing here is
    proven, nor has to be: whatever the ranges are, they hold all angles.
    """
    tilts, tolerances = np.array(guide.tilts), np.array(guide.tolerances)

    def gained(ends: tuple[float, float]) -> Array:
        law = range_kernel(rate, noise, step, reach, negligible, direction, ends)
        places = law.first + np.arange(len(law.masses))
        return np.log(np.exp(step * np.outer(tilts, places)) @ law.masses)

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


# The narrowest range of an angle is one part in so many.
_NARROWEST = 64


@lru_cache(maxsize=256)
def zero_out_below(
    rate: float, noise: float, step: float, reach: int, direction: Direction
) -> tuple[Kernel, ...]:
    """Laws below three positions of the crowd: opposed to the client, at zero, and alike."""
    points = fine_points_to(reach)
    at = middles(points, step)
    single = 2 * noise
    sides = (
        (opposed_pair(rate, noise, at), opposed_back_line(rate, noise, at)),
        (remove_pair(rate, single, at), add_pair(rate, single, at)),
        (add_pair(rate, single, at), remove_pair(rate, single, at)),
    )

    def law(gone: tuple[Bounds, Bounds], back: tuple[Bounds, Bounds]) -> Kernel:
        first, second = (gone, back) if direction is Direction.REMOVE else (back, gone)
        rising, falling = (touching_side(pair, points, step) for pair in (first, second))
        return dominated_kernel(rising, falling, step)

    return tuple(law(gone, back) for gone, back in sides)


def contribution_profile(rate: float, noise: float, turn: float, losses: Array) -> Bounds:
    """Bounds of H_gamma(P || Q), gamma = e^loss, where P has the contribution.

    Args:
        rate, noise: q in (0, 1) and z >= 2/7.
        turn: angle between crowd and client, over pi; above 0. The upper bound holds for all less.
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
    """Bounds of H_gamma(Q || P), the same with the data sets exchanged; largest for no turn.

    Args:
        rate, noise, losses: as above.
        turn: below 1. The upper bound holds for all more.
    """
    half = 0.5 * turn / _LARGER * math.pi
    across = math.sin(half) / noise
    return profile_over(rate, Lengths(across, across, math.cos(half) / noise), losses)


def opposed_pair(rate: float, noise: float, losses: Array) -> tuple[Bounds, Bounds]:
    """Bounds of H and of -H' for the opposed pair, from events {x > t}.

    Any t bounds from below. The best one solves c1 e^(-2t/z^2) + gamma e^((1-2t)/(2z^2)) = 1; what
    a threshold near it lacks is of second order in its error.
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
    """A line below H of the opposed pair with the data sets exchanged, from events {s < x < t}.

    Returns:
        Bounds of its values at the losses and of minus its slope; both 0 where nothing is left.
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
