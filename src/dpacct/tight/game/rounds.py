"""Conditions on the rounds of a game, and the laws of each kind of round in it.

Rule 1: neighbors differ in one client, which is replaced or whose contribution becomes zero.
Rule 2: a round is of fixed size, Poisson, or of full participation. Contributions may depend on
    earlier releases and on fresh randomness, not on whether a client took part before. Other
    releases have coins of their own, and their pairs (`beside`).
Rule 3: rates are rounded up for the upper bound, and down for the lower one.
Rule 4: above, other releases come before all rounds, whenever they run. That costs no less.
Rule 5: below, they keep their places in the plan.
Rule 6: exponential mechanisms are stages in which the adversary has a choice, of the place t of the
    losses t and t - epsilon. They keep their places above, too.

Derivation: docs/derivations/fixed-size-game.md, section 13.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpacct.errors import NotConverged, Unsupported
from dpacct.mechanisms.laplace import ExponentialMechanism
from dpacct.numerics.rounding import FUNCTION_ERROR, UNIT, Array, Bounds
from dpacct.pairs.atoms import AtomicPair
from dpacct.pairs.dominating import (
    AdditivePair,
    Direction,
    DominatingPair,
    PairsOf,
    SampledGaussianPair,
    achieved_pairs,
    proven_pairs,
)
from dpacct.rounds import Adjacency, Phase, Release, Round, Schedule, Uniform
from dpacct.tight.game import (
    LARGEST_SHIFT,
    has_choice,
    has_one_pair,
    is_game,
    takes_everybody,
)
from dpacct.tight.game.kernels import (
    MANY_TURNS,
    FixedPair,
    Grid,
    TurnGuide,
    Turns,
    cell_kernel,
    counted,
    far_loss,
    fixed_above,
    fixed_below,
    guided_turns,
    middles,
    touching_side,
    zero_out_above,
    zero_out_below,
)
from dpacct.tight.game.laws import (
    Kernel,
    Points,
    Side,
    dominated_kernel,
    dominating_kernel,
    dominating_side,
    grid_points,
)
from dpacct.tight.game.positions import Thinned, thinned_laws
from dpacct.tight.game.theorem import Cover
from dpacct.tight.profiles import finite_pairs

# Neighboring points of a law lie up to this share of the loss apart.
_SPREAD, _LEAST = 128, 1e-300
# Ranges of the place t of an exponential mechanism, and places in [0, 1] that are achieved.
RANGES, _PLACES = 128, 20


def beside(schedule: Schedule) -> list[tuple[Schedule, int]]:
    """Return the releases of Rule 4, by kinds. Promises whose rhos add up are one."""
    alone = [(Schedule([Phase(kind, 1)]), n) for kind, n in _kinds(schedule) if not _adds(kind)]
    together = Schedule(Phase(kind, n) for kind, n in _kinds(schedule) if _adds(kind))
    return [*alone, (together, 1)] if together.parts else alone


def _kinds(schedule: Schedule) -> list[tuple[Release, int]]:
    kinds = schedule.distinct().items()
    return [(kind, n) for kind, n in kinds if not (isinstance(kind, Round) or has_choice(kind))]


def _adds(kind: Release) -> bool:
    return any(isinstance(pair, AdditivePair) for pair in proven_pairs(kind, Direction.REMOVE))


def _finite(releases: Schedule, pairs: PairsOf) -> dict[Direction, tuple[AtomicPair, AtomicPair]]:
    try:
        return finite_pairs(releases, pairs)
    except Unsupported as reason:
        raise NotConverged(str(reason)) from reason


def _other(direction: Direction) -> Direction:
    return Direction.ADD if direction is Direction.REMOVE else Direction.REMOVE


@lru_cache(maxsize=256)
def law_above(releases: Schedule, step: float, negligible: float, direction: Direction) -> Kernel:
    """Return a law that dominates releases together, in one direction.

    Raises:
        NotConverged: it has too many points, or losses beyond 600 matter.
    """
    pairs = _finite(releases, proven_pairs)

    def side(way: Direction) -> Side:
        points = _points(pairs[way][0], step)
        values = _until(negligible, pairs[way][0], step * points)
        return dominating_side(points[: len(values)], step, np.maximum(values, _LEAST))

    return dominating_kernel(side(direction), side(_other(direction)), step)


@lru_cache(maxsize=256)
def law_below(releases: Schedule, step: float, direction: Direction) -> Kernel:
    """Return a law below releases together, in one direction. Raises: as above."""
    if not all(achieved_pairs(kind, direction) for kind in releases.distinct()):
        return Kernel(0, np.ones(1), 0.0)
    pairs = _finite(releases, achieved_pairs)
    return _law_between(pairs[direction][1], pairs[_other(direction)][1], step)


def _law_between(rising: AtomicPair, falling: AtomicPair, step: float) -> Kernel:
    """Return a law below a pair, which is given in both directions."""

    def side(pair: AtomicPair) -> Side:
        points = _points(pair, step)
        return touching_side(_touching(pair, middles(points, step)), points, step)

    return dominated_kernel(side(rising), side(falling), step)


@lru_cache(maxsize=64)
def choices_above(kind: ExponentialMechanism, step: float) -> tuple[Kernel, ...]:
    """Return laws, one for each range of t, that dominate it."""
    epsilon, width = kind.epsilon, kind.epsilon / RANGES
    points = grid_points(max(2, counted(epsilon, step)), _SPREAD)
    losses = np.asarray(step * points, dtype=np.float64)

    def side(least: float, most: float) -> Side:
        # (1 - e^(t - epsilon)) (1 - e^(l - t)) is largest in the middle.
        t = np.clip((losses + epsilon) / 2, least, most)
        value = np.expm1(t - epsilon) * np.expm1(np.minimum(losses - t, 0.0))
        value = value / -math.expm1(-epsilon) * (1 + 64 * FUNCTION_ERROR)
        return dominating_side(points, step, np.maximum(value, _LEAST))

    ranges = [(k * width, (k + 1) * width) for k in range(RANGES)]
    # With the data sets exchanged, t is epsilon - t.
    return tuple(
        dominating_kernel(side(*one), side(*other), step)
        for one, other in zip(ranges, ranges[::-1], strict=True)
    )


@lru_cache(maxsize=64)
def choices_below(kind: ExponentialMechanism, step: float) -> tuple[Kernel, ...]:
    """Return laws below the pairs at some t."""
    return tuple(
        _law_between(pair, pair.swapped(), step)
        for pair in (kind.pair_at(k / _PLACES) for k in range(1, _PLACES))
    )


def _points(pair: AtomicPair, step: float) -> Points:
    return grid_points(max(2, counted(max(pair.largest_loss, 0.0), step)), _SPREAD)


def _until(negligible: float, pair: AtomicPair, losses: NDArray[Any]) -> Array:
    """Return upper bounds of delta at losses, up to the first one, past the third, that is less."""
    values = np.empty(len(losses))
    for number, loss in enumerate(losses.tolist()):
        values[number] = pair.delta(loss).upper
        if number > 1 and values[number] <= negligible:
            return values[: number + 1]
    return values


def _touching(pair: AtomicPair, losses: Array) -> tuple[Bounds, Bounds]:
    """Return bounds of H and of -H' at losses: Q(L > loss), and any slope at an atom."""
    deltas = [pair.delta(loss) for loss in losses.tolist()]
    profile = Bounds(np.array([f.lower for f in deltas]), np.array([f.upper for f in deltas]))
    loss_error, mass_error = pair.errors
    order = np.argsort(-pair.losses)
    falling = pair.losses[order]
    under_q = np.append(0.0, np.cumsum(pair.masses[order] * np.exp(-falling)))
    off = 4 * UNIT * float(np.abs(falling).max()) + UNIT * (len(falling) + 8)
    off += mass_error + loss_error + FUNCTION_ERROR
    near = loss_error + 4 * UNIT * losses
    less = under_q[np.searchsorted(-falling, -(losses + near), "left")] * (1 - off)
    more = under_q[np.searchsorted(-falling, -(losses - near), "right")] * (1 + off)
    return profile, Bounds(less, more)


# How all positions in a round are bounded: one law for each of some cells, or fewer for them.
# Where a contribution becomes zero there is one angle: its ranges, or a guide to choose them.
Positions = Cover | Thinned | TurnGuide | Turns
# A stage of a game: a round, or other releases of one kind.
Played = Round | Schedule | ExponentialMechanism


def check_schedule(schedule: Schedule) -> None:
    """Refuse schedules that the game is not about.

    Raises:
        Unsupported: the schedule breaks Rule 1 or 2. The message names an alternative.
    """
    for round_ in schedule.only_rounds():
        if not (is_game(round_) or has_one_pair(round_)):
            raise Unsupported(
                f"the game is about rounds, of fixed size, Poisson or of everybody, in which one "
                f"client is replaced or sends zero; {round_!r} is another one: use the accountant "
                f"'tight'"
            )
        if LARGEST_SHIFT * round_.noise_multiplier < 2.0:
            raise Unsupported(
                f"the game needs a noise multiplier of at least {2 / LARGEST_SHIFT:.3f}, and "
                f"{round_!r} has less: use the accountant 'tight'"
            )


def directions(schedule: Schedule) -> tuple[Direction, ...]:
    """Return the orders of the two neighbors to look at: one where they may change places.

    Raises:
        Unsupported: see `check_schedule`.
    """
    check_schedule(schedule)
    if schedule.adjacency is Adjacency.ZERO_OUT or not all(
        proven_pairs(kind, Direction.REMOVE) == proven_pairs(kind, Direction.ADD)
        for kind in schedule.distinct()
        if not isinstance(kind, Round)
    ):
        return Direction.REMOVE, Direction.ADD
    return (Direction.REMOVE,)


def stages_of(schedule: Schedule) -> dict[Played, int]:
    """Return the kinds of stages of a game, with their numbers: other releases come first."""
    found: dict[Played, int] = {}
    for kind, count in (*beside(schedule), *in_order(schedule)):
        found[kind] = found.get(kind, 0) + count
    return found


def in_order(schedule: Schedule, *, everything: bool = False) -> list[tuple[Played, int]]:
    """Return the phases in which the adversary may have a choice, or all, in their order."""
    return [
        (kind if isinstance(kind, Round) or has_choice(kind) else 1 * kind, n)
        for kind, n in schedule.phases
        if everything or isinstance(kind, Round) or has_choice(kind)
    ]


def laws_above(
    round_: Played,
    positions: Positions,
    step: float,
    negligible: float,
    direction: Direction = Direction.REMOVE,
) -> list[Kernel]:
    """Return laws of which one, or a mixture, dominates any positions in this round.

    Raises:
        NotConverged: there are no such laws of the kind asked for.
    """
    if isinstance(round_, Schedule):
        return [law_above(round_, step, negligible, direction)]
    if isinstance(round_, ExponentialMechanism):
        return list(choices_above(round_, step))
    if not is_game(round_):
        return [fixed_above(*_fixed_pair(round_, step, negligible, direction, upper=True))]
    grid = Grid.of(rate_bounds(round_)[1], round_.noise_multiplier, step, negligible)
    if round_.adjacency is Adjacency.ZERO_OUT:
        turns = positions if isinstance(positions, Turns) else MANY_TURNS
        if isinstance(positions, TurnGuide):
            turns = guided_turns(grid, direction, positions)
        return list(zero_out_above(grid, direction, turns))
    if isinstance(positions, TurnGuide | Turns):
        raise TypeError("angles say nothing about a replaced client")
    if isinstance(positions, Thinned):
        laws = thinned_laws(grid, positions.cover).values()
    else:
        laws = (cell_kernel(grid, cell) for cell in positions)
    return list(laws)


def laws_below(
    round_: Played, step: float, negligible: float, direction: Direction = Direction.REMOVE
) -> list[Kernel]:
    """Return laws below some positions in this round."""
    if isinstance(round_, Schedule):
        return [law_below(round_, step, direction)]
    if isinstance(round_, ExponentialMechanism):
        return list(choices_below(round_, step))
    if not is_game(round_):
        return [fixed_below(*_fixed_pair(round_, step, negligible, direction, upper=False))]
    grid = Grid.of(rate_bounds(round_)[0], round_.noise_multiplier, step, negligible)
    if round_.adjacency is Adjacency.ZERO_OUT:
        return list(zero_out_below(grid, direction))
    return [fixed_below(grid, "remove"), fixed_below(grid, "add")]


def _fixed_pair(
    round_: Round, step: float, negligible: float, direction: Direction, *, upper: bool
) -> tuple[Grid, FixedPair]:
    """Return the grid and the pair of a round without a choice, its rate rounded to one side."""
    replaced, noise = round_.adjacency is Adjacency.REPLACE_ONE, round_.noise_multiplier
    # Grids of strategies are for a shift of two. A client that sends zero moves the sum by one.
    doubled = noise if replaced else 2 * noise
    if takes_everybody(round_):
        return Grid.of_everybody(doubled, step, negligible), "everybody"
    grid = Grid.of(rate_bounds(round_)[upper], noise, step, negligible)
    if replaced:
        return grid, "replaced"
    return replace(grid, noise=doubled), "remove" if direction is Direction.REMOVE else "add"


def simple_pairs(round_: Release, direction: Direction) -> Mapping[DominatingPair, int]:
    """Return a pair about as bad as the adversary's best choice in this round, for plans."""
    if not isinstance(round_, Round):
        return proven_pairs(round_, direction)
    if not is_game(round_):
        return achieved_pairs(round_, direction)
    return {SampledGaussianPair(rate_bounds(round_)[0], _simple_std(round_), direction): 1}


def least_frame(schedule: Schedule, probability: float) -> float:
    """Return the reach of a frame for the tails that `simple_pairs` leaves out, for plans."""
    return max(
        (
            far_loss(rate_bounds(round_)[1], round_.noise_multiplier, 1e-6, probability)
            for round_ in schedule.only_rounds()
            if is_game(round_) and round_.adjacency is Adjacency.ZERO_OUT
        ),
        default=0.0,
    )


def heavy_pairs(round_: Release, direction: Direction) -> Mapping[DominatingPair, int]:
    """Return a pair whose tails no position in this round exceeds by much, for plans."""
    if not is_game(round_):
        return simple_pairs(round_, direction)
    return {SampledGaussianPair(rate_bounds(round_)[0], round_.noise_multiplier / 2, direction): 1}


def _simple_std(round_: Round) -> float:
    noise = round_.noise_multiplier
    if round_.adjacency is Adjacency.REPLACE_ONE:
        return noise / 2
    # A sampled Gaussian with as large a second moment as that of opposed positions.
    # Less 1, so that nothing cancels where there is much noise.
    first, second, both = (math.expm1(shift / noise**2) for shift in (1.0, 4.0, 2.0))
    return 1 / math.sqrt(math.log1p(second - 2 * both + first))


def moment_law(round_: Played, step: float, negligible: float, *, upper: bool) -> Kernel:
    """Return the law above, or below, one round of a simple strategy, for plans."""
    if isinstance(round_, Schedule):
        way = Direction.REMOVE
        return law_above(round_, step, negligible, way) if upper else law_below(round_, step, way)
    if isinstance(round_, ExponentialMechanism):
        laws = choices_above(round_, step) if upper else choices_below(round_, step)
        return laws[len(laws) * 3 // 5]
    if is_game(round_):
        grid = Grid.of(rate_bounds(round_)[1], 2 * _simple_std(round_), step, negligible)
        pair: FixedPair = "remove"
    else:
        grid, pair = _fixed_pair(round_, step, negligible, Direction.REMOVE, upper=upper)
    return fixed_above(grid, pair) if upper else fixed_below(grid, pair)


def moment_on_grid(law: Kernel, tilt: float, step: float) -> float:
    """Return log M(tilt) of a law."""
    places = law.first + np.arange(len(law.masses))
    some = law.masses > 0.0
    return float(np.logaddexp.reduce(tilt * step * places[some] + np.log(law.masses[some])))


def rate_bounds(round_: Round) -> tuple[float, float]:
    """Return the sampling rate, rounded down and up."""
    sampling = round_.sampling
    if isinstance(sampling, Uniform):
        return sampling.rate_bounds
    return round_.sampling_rate, round_.sampling_rate
