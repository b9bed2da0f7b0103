"""delta(eps) and eps(delta) of one composition by whichever exact method suits it.

* A single sampled round has a closed form, and Gaussians without sampling compose to one.
* Everything else goes to the contour; where that is too coarse or fails, to the grid, and what
  both prove is intersected.

An engine can also be asked for by its name.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from dpacct.budget import Interval
from dpacct.errors import InvalidParameter, NotConverged
from dpacct.numerics.rounding import UNIT
from dpacct.numerics.search import bracket_root
from dpacct.pairs.dominating import (
    AchievedPair,
    Direction,
    SampledGaussianPair,
    SymmetrizedPair,
)
from dpacct.pairs.gaussian import gaussian_delta, gaussian_epsilon
from dpacct.pairs.one_round import one_round_delta
from dpacct.tight.composition import Composition
from dpacct.tight.inversion import inversion_epsilon
from dpacct.tight.inverted_delta import inversion_delta
from dpacct.tight.moment_bounds import NEXT_TO_NOTHING, chernoff_delta, pinsker_delta

Solver = Callable[[Composition, float], Interval]

# Relative width at which the contour's answer is taken: below, the grid hardly ever does better.
_NARROW = 1e-3
_TOLERANCE = 1e-11
# The share of delta that rounds have to matter for.
_NEGLIGIBLE = 1e-13
# Of so many kinds of rounds some bound delta from below.
_SOME_KINDS = 50


@dataclass(frozen=True, slots=True)
class Engine:
    """A way to find delta(eps) and eps(delta) of one direction, both with proven bounds.

    Both raise `NotConverged` where the method does not reach.
    """

    name: str
    delta: Solver
    epsilon: Solver


def find_engine(name: str) -> Engine:
    """The engine called ``name``: "auto", "contour" or "grid".

    Raises:
        InvalidParameter: there is none.
    """
    if name not in ENGINES:
        raise InvalidParameter("engine", name, f"an engine is one of {', '.join(ENGINES)}")
    return ENGINES[name]


def _auto_delta(composition: Composition, epsilon: float) -> Interval:
    # Any one round bounds delta from below.
    least = max((one_round_delta(epsilon, p).lower for p in _some_pairs(composition)), default=0.0)
    rest, lost = composition.without_least(_NEGLIGIBLE * least)
    try:
        found = _delta_of_rest(rest, epsilon)
    except NotConverged:
        # The moments bound delta all the same, unless they say nothing either.
        upper = pinsker_delta(composition)
        with suppress(NotConverged):
            upper = min(upper, chernoff_delta(composition, epsilon))
        if upper >= 1.0:
            raise
        return Interval.bracket(least, upper)
    upper = min(1.0, (found.upper + lost) * (1 + 2 * UNIT)) if lost else found.upper
    if upper > NEXT_TO_NOTHING and found.lower < _NARROW * upper:
        # Next to nothing a contour knows less than the total variation.
        with suppress(NotConverged):
            upper = min(upper, pinsker_delta(composition))
    return Interval.bracket(found.lower, upper)


def _delta_of_rest(composition: Composition, epsilon: float) -> Interval:
    alone = _alone(composition)
    if alone is not None:
        return _tail_bounded(one_round_delta(epsilon, alone), composition, epsilon)
    if _unsampled(composition):
        low, high = _precision_bounds(composition)
        lower = gaussian_delta(epsilon, math.sqrt(low)).lower
        found = Interval(lower, gaussian_delta(epsilon, math.sqrt(high)).upper)
        return _tail_bounded(found, composition, epsilon)
    return _either(inversion_delta, grid_delta, composition, epsilon)


def _auto_epsilon(composition: Composition, delta: float) -> Interval:
    if _costs_nothing(composition, delta):
        return Interval(0.0, 0.0)
    rest, lost = composition.without_least(_NEGLIGIBLE * delta)
    found = _epsilon_of_rest(rest, delta)
    if not lost:
        return found
    left = math.nextafter(delta - lost, 0.0)
    return Interval(found.lower, max(found.upper, _epsilon_of_rest(rest, left).upper))


def _epsilon_of_rest(composition: Composition, delta: float) -> Interval:
    alone = _alone(composition)
    if alone is not None:
        return _alone_epsilon(alone, delta)
    if _unsampled(composition):
        low, high = _precision_bounds(composition)
        lower = gaussian_epsilon(delta, math.sqrt(low)).lower
        return Interval(lower, gaussian_epsilon(delta, math.sqrt(high)).upper)
    return _either(inversion_epsilon, grid_epsilon, composition, delta)


def _either(contour: Solver, grid: Solver, composition: Composition, at: float) -> Interval:
    """The contour's answer; if that is wide or missing, what it and the grid's have in common."""
    try:
        first = contour(composition, at)
    except NotConverged:
        return grid(composition, at)
    if first.width <= _NARROW * first.upper or first.upper <= NEXT_TO_NOTHING:
        return first
    try:
        second = grid(composition, at)
    except NotConverged:
        return first
    lower, upper = max(first.lower, second.lower), min(first.upper, second.upper)
    return Interval.bracket(lower, upper)


def _tail_bounded(found: Interval, composition: Composition, epsilon: float) -> Interval:
    """Closed forms stop at about 1e-290; below that the moments say more."""
    if found.lower > 0.0 or found.upper == 0.0:
        return found
    return Interval(0.0, min(found.upper, chernoff_delta(composition, epsilon)))


def _alone(composition: Composition) -> AchievedPair | None:
    """The pair of a composition of a single sampled round, if that is what it is."""
    if composition.precision or composition.sampled_rounds != 1.0:
        return None
    return _pairs(composition)[0][0]


def _some_pairs(composition: Composition) -> list[AchievedPair]:
    pairs = _pairs(composition) if composition.kinds <= _SOME_KINDS else []
    return [pair for pair, _ in pairs]


def _pairs(composition: Composition) -> list[tuple[AchievedPair, float]]:
    """The pairs of all sampled rounds, with multiplicities, as one alone is for eps >= 0."""
    # For eps >= 0 the profile of C_q is that of the remove pair.
    symmetrized = [(_as_remove(pair), float(n)) for pair, n in composition.symmetrized]
    return composition.sampled_pairs() + symmetrized


def _as_remove(pair: SymmetrizedPair) -> SampledGaussianPair:
    return SampledGaussianPair(pair.sampling_rate, pair.noise_std, Direction.REMOVE)


def _unsampled(composition: Composition) -> bool:
    return composition.sampled_rounds == 0.0


def _precision_bounds(composition: Composition) -> tuple[float, float]:
    slack = UNIT * (2 * composition.kinds + 8)
    return composition.precision * (1 - slack), composition.precision * (1 + slack)


def _costs_nothing(composition: Composition, delta: float) -> bool:
    """Whether delta(0), at most the sum of those of the rounds, is surely at most ``delta``."""
    total = gaussian_delta(0.0, math.sqrt(_precision_bounds(composition)[1])).upper
    slack = 1 + UNIT * (2 * composition.kinds + 16)
    for pair, count in _pairs(composition):
        total += count * one_round_delta(0.0, pair).upper
        if total * slack > delta:
            return False
    return total * slack <= delta


def _alone_epsilon(pair: AchievedPair, delta: float) -> Interval:
    """eps(delta) of one round: the root of a closed form, bracketed."""

    def above(epsilon: float) -> float:
        return (one_round_delta(epsilon, pair).upper - delta) / delta

    def below(epsilon: float) -> float:
        return (one_round_delta(epsilon, pair).lower - delta) / delta

    upper = _largest_root(above)
    return Interval.bracket(_smallest_root(below), upper)


def _log_search(function: Callable[[float], float]) -> tuple[float, float]:
    low, high = bracket_root(lambda t: function(math.exp(t)), -2.0, (-40.0, 30.0), _TOLERANCE)
    return math.exp(low), math.exp(high)


def _largest_root(function: Callable[[float], float]) -> float:
    if function(0.0) <= 0:
        return 0.0
    root = _log_search(function)[1]
    return root if function(root) <= 0 else math.inf


def _smallest_root(function: Callable[[float], float]) -> float:
    if function(0.0) <= 0:
        return 0.0
    root = _log_search(function)[0]
    return root if function(root) > 0 else 0.0


def grid_delta(composition: Composition, epsilon: float) -> Interval:
    """That of `grid.engine`, imported where a contour does not reach, which is seldom."""
    from dpacct.tight.grid import engine  # noqa: PLC0415 - a cold start counts

    return engine.grid_delta(composition, epsilon)


def grid_epsilon(composition: Composition, delta: float) -> Interval:
    """As `grid_delta`."""
    from dpacct.tight.grid import engine  # noqa: PLC0415 - as above

    return engine.grid_epsilon(composition, delta)


ENGINES: dict[str, Engine] = {
    engine.name: engine
    for engine in (
        Engine("auto", _auto_delta, _auto_epsilon),
        Engine("contour", inversion_delta, inversion_epsilon),
        Engine("grid", grid_delta, grid_epsilon),
    )
}
