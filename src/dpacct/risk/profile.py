"""delta(eps) of a schedule in one direction, at many epsilons: what trade-off functions need.

An `Accountant` answers for the worse of both directions. A test of "was the client there?" is
about both directions at once, each with its own delta(eps), so this looks at them separately,
with the engine of the accountant `tight` on the pairs of `dominating`. Where the engine does not
reach, and for the upper side of all other accountants, what the accountant says of the worse
direction bounds both.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import cache
from typing import Protocol

from dpacct.accountant import Accountant
from dpacct.budget import Interval
from dpacct.errors import NotConverged
from dpacct.pairs.achieved import AllRounds, affinity_delta
from dpacct.pairs.dominating import (
    Direction,
    PairOf,
    SampledGaussianPair,
    SymmetrizedPair,
    achieved_pair,
    pairs_of,
    proven_pair,
)
from dpacct.pairs.one_round import one_round_delta
from dpacct.rounds import Schedule
from dpacct.tight.accountant import TightAccountant
from dpacct.tight.composition import Composition
from dpacct.tight.contour import Contour, log_delta_estimate, tilt_at_epsilon
from dpacct.tight.engines import composed_delta
from dpacct.tight.game.bounds import curve_delta

# Relative width at which a contour is worth keeping; at which it also answers elsewhere, and how
# much wider than where it was made for.
_MADE, _SHARP, _WIDER = 1e-7, 1e-9, 2.0


class TwoSided(Protocol):
    """Bounds of delta(eps), eps >= 0, in each direction."""

    def __call__(self, direction: Direction, epsilon: float) -> Interval:
        """Lower and upper bound of delta(eps)."""
        ...


class PrivacyProfile:
    """delta(eps) of a schedule in both directions, from the proven and from an achieved pair.

    Args:
        schedule: what runs.
        accountant: the accountant that proves the upper side.
    """

    def __init__(self, schedule: Schedule, accountant: Accountant) -> None:
        tight = isinstance(accountant, TightAccountant)

        @cache
        def worse(epsilon: float) -> float:
            return accountant.delta(schedule, epsilon).upper

        self._worse = None if tight else worse
        self._schedule, self._plays = schedule, tight and accountant.plays(schedule)
        self._proven = _Side(schedule, proven_pair, worse)
        #: Whether the pair that is proven to be the worst is also the one achieved.
        self.exact = tight and all(
            proven_pair(round_, direction) == achieved_pair(round_, direction)
            for round_ in schedule.distinct()
            for direction in Direction
        )
        self._achieved = self._proven
        if not self.exact:
            self._achieved = _Side(schedule, achieved_pair, worse)

    def proven(self, direction: Direction, epsilon: float) -> Interval:
        """An interval whose upper end bounds delta(eps) for all neighboring data sets.

        Its lower end bounds the dominating pair, or is 0 where the accountant has none.
        """
        if self._worse is not None:
            return Interval(0.0, self._worse(epsilon))
        found = self._proven.delta(direction, epsilon)
        if self._plays:
            upper = min(found.upper, curve_delta(self._schedule, epsilon))
            return Interval(min(found.lower, upper), upper)
        return found

    def achieved(self, direction: Direction, epsilon: float) -> Interval:
        """Bounds of delta(eps) of one explicit pair of data sets, the same at all epsilons."""
        return self._achieved.delta(direction, epsilon)


class _Side:
    """delta(eps) of one choice of pairs; each epsilon is computed once.

    Args:
        schedule: what runs.
        pair_of: the choice.
        worse: an upper bound for both directions, where the engine does not reach.
    """

    def __init__(
        self,
        schedule: Schedule,
        pair_of: PairOf,
        worse: Callable[[float], float],
    ) -> None:
        self._pairs = {d: pairs_of(schedule.distinct(), pair_of, d) for d in Direction}
        self._solvers = {d: _Solvers(Composition.of(p, d)) for d, p in self._pairs.items()}
        self._worse = worse
        self._seen: dict[tuple[Direction, float], Interval] = {}
        # Then both directions are the same: asked once, answered for both.
        self._symmetric = all(
            not isinstance(pair, SampledGaussianPair) or pair.sampling_rate == 1.0
            for pair in self._pairs[Direction.REMOVE]
        )

    def delta(self, direction: Direction, epsilon: float) -> Interval:
        """Bounds of delta at one epsilon >= 0."""
        asked = Direction.REMOVE if self._symmetric else direction
        if (asked, epsilon) not in self._seen:
            self._seen[asked, epsilon] = self._compute(asked, epsilon)
        return self._seen[asked, epsilon]

    def _compute(self, direction: Direction, epsilon: float) -> Interval:
        if not self._pairs[direction]:
            return Interval(0.0, 0.0)
        try:
            return self._solvers[direction].delta(epsilon)
        except NotConverged:
            # One round alone is contained in all of them.
            pairs = self._pairs[direction]
            known = {p: n for p, n in pairs.items() if not isinstance(p, SymmetrizedPair)}
            lower = max((one_round_delta(epsilon, pair).lower for pair in known), default=0.0)
            if len(known) == len(pairs):
                lower = max(lower, affinity_delta(AllRounds(known, direction), epsilon))
            return Interval.bracket(lower, self._worse(epsilon))


class _Solvers:
    """One composition at many epsilons: a contour serves all at which it is sharp.

    Args:
        composition: what is composed.
    """

    def __init__(self, composition: Composition) -> None:
        self._composition = composition
        self._contours: dict[float, tuple[Contour, float]] = {}
        # A single round has a closed form, and Gaussians without sampling compose to one.
        self._makes_contours = composition.sampled_rounds > 1.0

    def delta(self, epsilon: float) -> Interval:
        """Bounds of delta at one epsilon >= 0.

        Raises:
            NotConverged: neither a contour nor the engine reaches.
        """
        if self._contours:
            near = min(self._contours, key=lambda made: abs(made - epsilon))
            contour, width = self._contours[near]
            answer = contour.delta(epsilon)
            if answer.width <= max(_SHARP, _WIDER * width) * answer.upper:
                return answer
        if self._makes_contours and epsilon < self._composition.largest_loss:
            with suppress(NotConverged):
                contour = self._contour(epsilon)
                answer = contour.delta(epsilon)
                if answer.width <= _MADE * answer.upper:
                    self._contours[epsilon] = contour, answer.width / answer.upper
                    return answer
            # Nearly an atom, at this epsilon and so at others.
            self._makes_contours = False
        return composed_delta(self._composition, epsilon)

    def _contour(self, epsilon: float) -> Contour:
        tilt, at = tilt_at_epsilon(self._composition, epsilon)
        log_delta = min(0.0, log_delta_estimate(tilt, at, epsilon))
        return Contour(self._composition, tilt, epsilon, log_delta, 0.0, at.variance)
