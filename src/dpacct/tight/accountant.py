"""The accountant `tight`: exact composition, both directions, proven and achieved pairs.

Each direction composes with itself, and the worse result counts. Where an engine does not reach,
or hardly, Renyi moments bound from above and `achieved` from below: a wide bracket, but a proven
one.

Rounds of fixed size in which one client is replaced have no pair that closes the bracket. There the
engine "game" plays an adaptive game as well (`dpacct.tight.game`), and what both prove is
intersected. It must be asked for: it assumes that no client remembers whether it took part.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from dpacct.budget import Interval
from dpacct.errors import NotConverged
from dpacct.pairs.achieved import achieved_delta, achieved_epsilon, certain_delta
from dpacct.pairs.dominating import Direction, achieved_pair, proven_pair
from dpacct.renyi.accountant import RenyiAccountant
from dpacct.rounds import Schedule
from dpacct.tight.composition import Composition, PairOf
from dpacct.tight.engines import Engine, Solver, find_engine
from dpacct.tight.game.game import game_delta, game_epsilon, game_upper_epsilon
from dpacct.tight.game.rounds import is_played
from dpacct.tight.inversion import chernoff_delta

# Whether a bound, found for one direction, surely covers the other one, too.
Covers = Callable[[Composition, float], bool]

_FALLBACK = RenyiAccountant()
# Below this ratio of the bounds quick ones are worth a look. From this delta on it is taken as one.
_WIDE, _CERTAIN = 1 - 1e-3, 1 - 1e-12


@dataclass(frozen=True, slots=True)
class TightAccountant:
    """Exact composition by one of `engines.ENGINES`.

    Args:
        engine: "auto", "contour", "grid", or "game": "auto", and the game where it applies, for
            runs in which no client remembers whether it took part before.
        gap: where a game is played, the relative width of epsilon wanted; see `game_epsilon`.
    """

    name: str = "tight"
    engine: str = "auto"
    gap: float | None = None

    def _plays(self, schedule: Schedule) -> bool:
        return self.engine == "game" and is_played(schedule)

    @property
    def _of_pairs(self) -> Engine:
        return find_engine("auto" if self.engine == "game" else self.engine)

    def upper_epsilon(self, schedule: Schedule, delta: float) -> float:
        """See `Accountant`."""
        upper = self._upper_epsilon(self._epsilon(proven_pair, schedule, delta), schedule, delta)
        if self._plays(schedule):
            with suppress(NotConverged):
                upper = min(upper, game_upper_epsilon(schedule, delta))
        return upper

    def epsilon(self, schedule: Schedule, delta: float) -> Interval:
        """See `Accountant`."""
        proven = self._epsilon(proven_pair, schedule, delta)
        upper = self._upper_epsilon(proven, schedule, delta)
        if _achieves_what_is_proven(schedule):
            lower = proven.lower
        else:
            lower = self._epsilon(achieved_pair, schedule, delta).lower
        if lower < _WIDE * upper:
            lower = max(lower, achieved_epsilon(schedule, delta))
        if self._plays(schedule):
            with suppress(NotConverged):
                played = game_epsilon(schedule, delta, self.gap)
                lower, upper = max(lower, played.lower), min(upper, played.upper)
        return Interval.bracket(lower, upper)

    def delta(self, schedule: Schedule, epsilon: float) -> Interval:
        """See `Accountant`."""
        certain = certain_delta(schedule, epsilon)
        if certain >= _CERTAIN:
            return Interval(certain, 1.0)
        proven = self._delta(proven_pair, schedule, epsilon)
        upper = proven.upper
        if upper >= 1.0 or proven.lower < _WIDE * upper:
            upper = min(upper, _FALLBACK.upper_delta(schedule, epsilon))
        if _achieves_what_is_proven(schedule):
            lower = proven.lower
        else:
            lower = self._delta(achieved_pair, schedule, epsilon).lower
        if lower < _WIDE * upper:
            lower = max(lower, achieved_delta(schedule, epsilon))
        if self._plays(schedule):
            with suppress(NotConverged):
                played = game_delta(schedule, epsilon)
                lower, upper = max(lower, played.lower), min(upper, played.upper)
        return Interval.bracket(lower, upper)

    @staticmethod
    def _upper_epsilon(proven: Interval, schedule: Schedule, delta: float) -> float:
        """The proven bound, or that of Renyi moments where the engine's is wide and larger."""
        if proven.lower >= _WIDE * proven.upper:
            return proven.upper
        return min(proven.upper, _FALLBACK.upper_epsilon(schedule, delta))

    def _epsilon(self, pair_of: PairOf, schedule: Schedule, delta: float) -> Interval:
        solve = self._of_pairs.epsilon

        def covers(other: Composition, upper: float) -> bool:
            return other.largest_loss <= upper or chernoff_delta(other, upper) <= delta

        return _worse_direction(pair_of, schedule, solve, delta, covers, _largest_loss)

    def _delta(self, pair_of: PairOf, schedule: Schedule, epsilon: float) -> Interval:
        solve = self._of_pairs.delta

        def covers(other: Composition, upper: float) -> bool:
            return chernoff_delta(other, epsilon) <= upper

        return _worse_direction(pair_of, schedule, solve, epsilon, covers, _certainty)


def _worse_direction(
    pair_of: PairOf,
    schedule: Schedule,
    solve: Solver,
    at: float,
    covers: Covers,
    most: Callable[[Composition], float],
) -> Interval:
    """The larger of both directions' answers; up to ``most`` where the engine has none."""
    if not schedule.rounds:
        return Interval(0.0, 0.0)
    remove = Composition.of_schedule(schedule, pair_of, Direction.REMOVE)
    found = _solve(solve, remove, at, most(remove))
    if not remove.rates.size:
        # Gaussians without sampling and pairs of C_q are the same in both directions.
        return found
    add = Composition.of_schedule(schedule, pair_of, Direction.ADD)
    if found.upper < most(remove) and _covered(covers, add, found.upper):
        return found
    other = _solve(solve, add, at, most(add))
    return Interval(max(found.lower, other.lower), max(found.upper, other.upper))


def _covered(covers: Covers, other: Composition, upper: float) -> bool:
    try:
        return covers(other, upper)
    except NotConverged:
        return False


def _solve(solve: Solver, composition: Composition, at: float, most: float) -> Interval:
    try:
        return solve(composition, at)
    except NotConverged:
        return Interval(0.0, most)


def _largest_loss(composition: Composition) -> float:
    return composition.largest_loss


def _certainty(_: Composition) -> float:
    return 1.0


def _achieves_what_is_proven(schedule: Schedule) -> bool:
    return all(
        proven_pair(round_, direction) == achieved_pair(round_, direction)
        for round_ in schedule.distinct()
        for direction in Direction
    )
