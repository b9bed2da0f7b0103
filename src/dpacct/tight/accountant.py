"""The accountant `tight`: exact composition, both directions, proven and achieved pairs.

Each direction composes with itself, and the worse result counts. Where an engine does not reach,
or hardly, Renyi moments bound from above and `achieved` from below: a wide bracket, but a proven
one.

Rounds of fixed size in which one client is replaced have no pair that closes the bracket. There an
adaptive game is played as well (`dpacct.tight.game`), and the two brackets are intersected.

For a plan the least of all valid bounds is valid. `_least` has them all, for epsilon and for delta
alike, so that each is the other's inverse: by pairs, by Renyi moments, of full participation, of
the game, and of adding up. The latter adds the epsilons and deltas of releases with bounded losses
to the least bound of the rest (docs/derivations/adaptive.md).

Rule 1: the game requires a schedule that was fixed in advance, and clients without memory of
whether they took part. If either fails, use the accountant `pairs`, with one fixed pair for each
round.
Rule 2: fixed pairs answer alone if the game is not worth its time. `game_or_why` reports this.
Rule 3: the game is imported where one is played: a cold start about other rounds is half of it.
"""

from __future__ import annotations

import math
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache

from dpacct.budget import Interval
from dpacct.errors import NotConverged, Unsupported, WrongAccountant
from dpacct.numerics.rounding import UNIT, decimal, decimal_above
from dpacct.pairs.achieved import achieved_delta, achieved_epsilon, certain_delta
from dpacct.pairs.dominating import (
    Direction,
    GeneralPair,
    LossBound,
    PairsOf,
    SampledGaussianPair,
    achieved_pairs,
    basic_composition,
    infinite_mass,
    is_exact,
    loss_bound,
    proven_pairs,
    refuse_infinite_losses,
)
from dpacct.pairs.one_round import gaussian_delta, gaussian_epsilon
from dpacct.renyi.curve import RenyiAccountant
from dpacct.rounds import AccountantName, Adjacency, Full, Phase, Poisson, Round, Schedule, Uniform
from dpacct.tight.composition import Composition, is_same_both_ways
from dpacct.tight.contour import (
    epsilon_estimate,
    log_chernoff_factor,
    log_delta_estimate,
    tilt_at_delta,
    tilt_at_epsilon,
)
from dpacct.tight.engines import (
    NEXT_TO_NOTHING,
    chernoff_delta,
    closed_form_delta,
    composed_delta,
    composed_epsilon,
)
from dpacct.tight.game import is_played
from dpacct.tight.sizes import OfSizes, Sizes, crowds, population

_PLAYING = ("auto", "game")
GAME, _PAIR = "an adaptive game", "one fixed pair a round"
_FALLBACK = RenyiAccountant()
# Outside, quantities of the bound leave the range of doubles. The end is far above every loss.
_EPSILONS = (1e-100, 1e100)
# Below this ratio of the bounds quick ones are worth a look. From this delta on it is taken as one.
_WIDE, _CERTAIN = 1 - 1e-3, 1 - 1e-12
# One bound for all sizes of truncated cohorts is kept if it is within this factor of an estimate.
_ENOUGH = 1 + 5e-4
# Answers that are kept.
_REMEMBERED = 16


@dataclass(frozen=True, slots=True)
class TightAccountant:
    """Exact composition of pairs, and the adaptive game where it applies.

    Args:
        engine: "auto" or "game" uses fixed pairs, and the game if it applies. "pairs" uses fixed
            pairs alone.
    """

    name: AccountantName = "tight"
    engine: str = "auto"

    def plays(self, schedule: Schedule) -> bool:
        """Return True if a game is played, of the schedule or beside releases that add up."""
        parts = (schedule, *(rest for rest, _ in _beside_bounded(schedule)))
        return self.engine in _PLAYING and any(map(is_played, parts))

    @property
    def of_pairs(self) -> TightAccountant:
        """The same accountant without the game."""
        return replace(self, engine="pairs") if self.engine in _PLAYING else self

    def upper_epsilon(self, schedule: Schedule, delta: float) -> float:
        """See `Accountant`."""
        refuse_infinite_losses(schedule, delta)
        return self._least(_Question(delta, of_epsilon=True), schedule)[0]

    def upper_epsilon_of_first(self, plan: Schedule, rounds: int, delta: float) -> float:
        """Return proven eps(delta) of the first rounds of a plan, from games of the whole plan.

        If the rounds are equal, one pass answers for any number of them. Otherwise the first rounds
        cost no more than the whole plan. Infinite if no game is played.
        """
        if not self.plays(plan):
            return math.inf
        from dpacct.tight.game.bounds import prefix_upper_epsilons  # noqa: PLC0415 - see Rule 3

        with suppress(NotConverged):
            if len(plan.distinct()) == 1 and is_played(plan):
                found = prefix_upper_epsilons(plan.phases[0].round, plan.rounds, delta)
                return float(found[min(rounds, plan.rounds)])
        return self.upper_epsilon(plan, delta)

    def game_or_why(self, schedule: Schedule, delta: float) -> str:
        """Return the proof method of such a schedule in a few words, or "" without a game.

        It describes the result of `epsilon`, which is cached.
        """
        question = _Question(delta, of_epsilon=True)
        return self._least(question, schedule, both=True)[1] if self.plays(schedule) else ""

    def epsilon(self, schedule: Schedule, delta: float) -> Interval:
        """See `Accountant`.

        Raises:
            InvalidParameter: infinite losses have a probability of at least delta.
        """
        refuse_infinite_losses(schedule, delta)
        return self._answer(_Question(delta, of_epsilon=True), schedule)

    def delta(self, schedule: Schedule, epsilon: float) -> Interval:
        """See `Accountant`."""
        # Delta falls as epsilon grows, so an epsilon outside has bounds from its ends.
        if 0.0 < epsilon < _EPSILONS[0]:
            lower = self.delta(schedule, _EPSILONS[0]).lower
            return Interval.bracket(lower, self.delta(schedule, 0.0).upper)
        if epsilon > _EPSILONS[1]:
            return Interval(0.0, self.delta(schedule, _EPSILONS[1]).upper)
        certain = certain_delta(schedule, epsilon)
        if certain >= _CERTAIN:
            return Interval(certain, 1.0)
        return self._answer(_Question(epsilon, of_epsilon=False), schedule)

    def _answer(self, question: _Question, schedule: Schedule) -> Interval:
        """Return the achieved and the proven answer."""
        upper, _ = self._least(question, schedule, both=True)
        lower = _achieved(question, schedule, upper)
        if self._plays(schedule) and upper > 0.0:
            played = _played(question, schedule, both=True)
            lower = max(lower, played.lower if isinstance(played, Interval) else 0.0)
        return Interval.bracket(lower, upper)

    def _plays(self, schedule: Schedule) -> bool:
        return self.engine in _PLAYING and is_played(schedule)

    def _least(
        self, question: _Question, schedule: Schedule, *, both: bool = False
    ) -> tuple[float, str]:
        """Return the least of the proven bounds, and the proof method of a game in words.

        Args:
            question, schedule: what is asked, and of what.
            both: the achieved end is asked as well, for which a game is kept.
        """
        by_pairs = _over_sizes(question, schedule)
        upper, how = by_pairs.upper, ""
        if question.is_wide(by_pairs) or _has_sharper_moments(schedule):
            with suppress(Unsupported):
                upper = min(upper, question.by(_FALLBACK, schedule))
        if schedule.adjacency is Adjacency.ZERO_OUT and _has_fixed_size(schedule):
            upper = min(upper, question.by(_GAUSSIAN, with_everybody(schedule)))
        if self._plays(schedule) and upper > 0.0:
            played = _played(question, schedule, both=both)
            if isinstance(played, str):
                how = f"{_PAIR}: {played}"
            else:
                how = GAME if played.upper < upper else f"{_PAIR}: a game proves no less"
                upper = min(upper, played.upper)
        for rest, bound in _beside_bounded(schedule):
            left = question.beside(bound, rest)
            # Exact pairs leave nothing to adding up but the last digits.
            if left is None or (
                rest.rounds and not question.is_wide(by_pairs) and _exact(schedule)
            ):
                continue
            # A game of all releases mostly leaves nothing, either.
            if how and question.added(_by_pairs(left, achieved_pairs, rest).lower, bound) >= upper:
                continue
            of_rest, how_rest = self._least(left, rest) if rest.rounds else (0.0, "")
            added = question.added(of_rest, bound)
            if added < upper:
                upper, how = added, how_rest and f"{how_rest} beside epsilons that add up"
        return upper, how


@dataclass(frozen=True, slots=True)
class _Question:
    """At which epsilon delta has fallen to ``value``, or how large delta is at that epsilon."""

    value: float
    of_epsilon: bool

    def exactly(self, composition: Composition) -> Interval:
        """Return the answer of one direction by an engine, or else what needs none."""
        try:
            solve = composed_epsilon if self.of_epsilon else composed_delta
            return solve(composition, self.value)
        except NotConverged:
            return Interval(0.0, self.most(composition))

    def most(self, composition: Composition) -> float:
        """Return a bound that needs no engine."""
        return composition.largest_loss if self.of_epsilon else 1.0

    def is_below(self, composition: Composition, upper: float) -> bool:
        """Return True if a quick bound shows that a direction has at most ``upper``."""
        epsilon, delta = (upper, self.value) if self.of_epsilon else (self.value, upper)
        exactly = closed_form_delta(composition)
        found = exactly(epsilon).upper if exactly else chernoff_delta(composition, epsilon)
        return found <= delta

    def is_surely_below(self, schedule: Schedule, pairs: PairsOf, upper: float) -> bool:
        """Return True if quick bounds show that both directions have at most ``upper`` > 0."""
        with suppress(NotConverged):
            both = (Composition.of_schedule(schedule, pairs, d) for d in Direction)
            return upper > 0.0 and all(self.is_below(each, upper) for each in both)
        return False

    def saddle(self, composition: Composition) -> tuple[float, float, float]:
        """Return a tilt, epsilon, and log of the gap of Chernoff's inequality there, about."""
        if self.of_epsilon:
            tilt, at = tilt_at_delta(composition, math.log(self.value))
            epsilon = max(epsilon_estimate(tilt, at, math.log(self.value)), 0.0)
        else:
            tilt, at = tilt_at_epsilon(composition, self.value)
            epsilon = self.value
        chernoff = at.log_moment - tilt * epsilon + log_chernoff_factor(tilt)
        return tilt, epsilon, chernoff - log_delta_estimate(tilt, at, epsilon)

    def is_wide(self, found: Interval) -> bool:
        """Return True if other bounds may be much narrower."""
        wide = found.lower < _WIDE * found.upper
        if self.of_epsilon:
            return wide
        return found.upper >= 1.0 or (wide and found.upper > NEXT_TO_NOTHING)

    def by(self, accountant: RenyiAccountant | GaussianAccountant, schedule: Schedule) -> float:
        """Return the proven answer of another accountant."""
        if isinstance(accountant, RenyiAccountant):
            solve = accountant.upper_epsilon if self.of_epsilon else accountant.upper_delta
            return solve(schedule, self.value)
        solve = accountant.epsilon if self.of_epsilon else accountant.delta
        return solve(schedule, self.value).upper

    def beside(self, bound: LossBound, rest: Schedule) -> _Question | None:
        """Return the question about the rest beside bounded losses, or None if none is left."""
        left = decimal(self.value) - (bound.delta if self.of_epsilon else bound.epsilon)
        least = float(left)
        if Fraction(least) > left:
            least = math.nextafter(least, -math.inf)
        if left < 0 or (self.of_epsilon and rest.rounds and infinite_mass(rest) >= least):
            return None
        return replace(self, value=least)

    def added(self, of_rest: float, bound: LossBound) -> float:
        """Return the answer for all from that for the rest, rounded up."""
        if math.isinf(of_rest):
            return math.inf
        more = bound.epsilon if self.of_epsilon else bound.delta
        return decimal_above(Fraction(of_rest) + more)


def _beside_bounded(schedule: Schedule) -> list[tuple[Schedule, LossBound]]:
    """Return what remains beside all pure releases, and beside all with bounded losses."""
    bounds = {kind: loss_bound(kind) for kind in schedule.distinct()}
    pure = {kind for kind, bound in bounds.items() if bound is not None and not bound.delta}
    bounded = {kind for kind, bound in bounds.items() if bound is not None}
    found: list[tuple[Schedule, LossBound]] = []
    for chosen in (pure, bounded) if pure < bounded else (pure,):
        total = basic_composition(schedule.only(lambda kind, some=chosen: kind in some))
        if chosen and total is not None:
            found.append((schedule.only(lambda kind, some=chosen: kind not in some), total))
    return found


def _exact(schedule: Schedule) -> bool:
    """Return True if explicit data sets reach the pairs of all releases."""
    return all(is_exact(kind) for kind in schedule.distinct())


def _achieved(question: _Question, schedule: Schedule, upper: float) -> float:
    """Return the achieved end by pairs, and more where it is wide."""
    pairs = proven_pairs if _exact(schedule) else achieved_pairs
    lower = _by_pairs(question, pairs, schedule).lower
    if lower < _WIDE * upper:
        for crowd in crowds(schedule):
            if not question.is_surely_below(schedule, crowd, lower):
                lower = max(lower, _by_pairs(question, crowd, schedule).lower)
        simply = achieved_epsilon if question.of_epsilon else achieved_delta
        lower = max(lower, simply(schedule, question.value))
        kinds = schedule.only_rounds()
        if schedule.adjacency is Adjacency.REPLACE_ONE and all(
            isinstance(kind.sampling, Poisson | Full) for kind in kinds
        ):
            # The replacement may send zero. Other releases may be left out.
            relation = Adjacency.ZERO_OUT
            gone = (Phase(replace(kind, adjacency=relation), n) for kind, n in kinds.items())
            lower = max(lower, _by_pairs(question, achieved_pairs, Schedule(gone)).lower)
    return lower


# A search asks for the proven end, and a report on its result for both.
@lru_cache(maxsize=_REMEMBERED)
def _by_pairs(question: _Question, pairs: PairsOf, schedule: Schedule) -> Interval:
    """Return the larger answer of both directions."""
    if not schedule.rounds:
        return Interval(0.0, 0.0)
    remove, add = (Composition.of_schedule(schedule, pairs, d) for d in Direction)
    found = question.exactly(remove)
    if is_same_both_ways(remove, add):
        return found
    with suppress(NotConverged):
        # Then the bound of one direction surely covers the other one.
        if found.upper < question.most(remove) and question.is_below(add, found.upper):
            return found
    other = question.exactly(add)
    return Interval(max(found.lower, other.lower), max(found.upper, other.upper))


def _over_sizes(question: _Question, schedule: Schedule) -> Interval:
    """Return the answer by proven pairs, the largest one over sizes if cohorts are truncated."""
    simple = _by_pairs(question, proven_pairs, schedule)
    most, worst = population(schedule), Interval(0.0, 0.0)
    if most is None or not simple.upper > 0.0:
        return simple
    sizes = Sizes(schedule, most)
    typical = OfSizes(sizes.typical, sizes.typical)
    with suppress(NotConverged):
        saddle = question.saddle(Composition.of_schedule(schedule, typical, Direction.REMOVE))
        if question.of_epsilon and simple.upper <= saddle[1] * _ENOUGH:
            return simple
        for block in sizes.cover(*saddle):
            if not question.is_surely_below(schedule, OfSizes(*block), worst.upper):
                found = _by_pairs(question, OfSizes(*block), schedule)
                worst = max(worst, found, key=lambda each: each.upper)
            if worst.upper >= simple.upper:
                break
        return min(simple, worst, key=lambda each: each.upper)
    return simple


def _has_sharper_moments(schedule: Schedule) -> bool:
    """Return True if moments may say more of some release than its pair."""
    kinds = [kind for kind in schedule.distinct() if not isinstance(kind, Round)]
    pairs = [pair for kind in kinds for pair in proven_pairs(kind, Direction.ADD)]
    return any(isinstance(pair, GeneralPair) and pair.from_moments for pair in pairs)


def _has_fixed_size(schedule: Schedule) -> bool:
    """Return True if all are rounds, some with a cohort of fixed size. Other pairs are exact."""
    kinds = schedule.only_rounds()
    if any(isinstance(k.sampling, Poisson) and not k.sampling.is_plain for k in kinds):
        return False
    return len(kinds) == len(schedule.distinct()) and any(
        isinstance(kind.sampling, Uniform) for kind in kinds
    )


def with_everybody(schedule: Schedule) -> Schedule:
    """Return the same rounds with full participation. Under zero-out they cost no less.

    Proof: the sample has one law in both data sets, so it may be published. Given the sample, a
    round is the Gaussian of full participation, or the same in both data sets (joint convexity).
    """
    return Schedule(
        Phase(replace(kind, sampling=Full()) if isinstance(kind, Round) else kind, n)
        for kind, n in schedule.distinct().items()
    )


@lru_cache(maxsize=32)
def _played(question: _Question, schedule: Schedule, *, both: bool) -> Interval | str:
    """Return the game's bracket, or its upper end above 0, or the reason why there is none."""
    from dpacct.tight.game import bounds  # noqa: PLC0415 - see Rule 3

    try:
        if not question.of_epsilon:
            return bounds.game_delta(schedule, question.value)
        if both:
            return bounds.game_epsilon(schedule, question.value)
        return Interval(0.0, bounds.game_upper_epsilon(schedule, question.value))
    except NotConverged as reason:
        return str(reason)


@dataclass(frozen=True, slots=True)
class GaussianAccountant:
    """Exact composition of Gaussians: full participation only."""

    name: AccountantName = "gdp"

    def upper_epsilon(self, schedule: Schedule, delta: float) -> float:
        """See `Accountant`."""
        return self.epsilon(schedule, delta).upper

    def epsilon(self, schedule: Schedule, delta: float) -> Interval:
        """See `Accountant`.

        Raises:
            Unsupported: some round is sampled.
        """
        mu = total_mu(schedule)
        return Interval(
            gaussian_epsilon(delta, mu.lower).lower, gaussian_epsilon(delta, mu.upper).upper
        )

    def delta(self, schedule: Schedule, epsilon: float) -> Interval:
        """See `Accountant`."""
        mu = total_mu(schedule)
        return Interval(
            gaussian_delta(epsilon, mu.lower).lower, gaussian_delta(epsilon, mu.upper).upper
        )


_GAUSSIAN = GaussianAccountant()


def total_mu(schedule: Schedule) -> Interval:
    """Return mu of the Gaussian to which a schedule of full participation composes.

    Raises:
        Unsupported: some round is sampled.
    Source: Dong, Roth, Su 2022 (arXiv:1905.02383), corollary 2.
    """
    total = 0.0
    for kind, count in schedule.distinct().items():
        for pair, times in proven_pairs(kind, Direction.REMOVE).items():
            if not isinstance(pair, SampledGaussianPair) or pair.sampling_rate < 1.0:
                rule = f"it is for full participation only, not for {kind!r}"
                raise WrongAccountant("accountant", "gdp", rule, "Use tight, which covers it.")
            total += count * times / pair.noise_std**2
    mu, slack = math.sqrt(total), UNIT * (len(schedule.distinct()) + 8)
    return Interval(mu * (1 - slack), mu * (1 + slack))
