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
Rule 3: the game, and sizes of truncated cohorts, are imported where a schedule has them: a cold
start about other rounds is half of it.
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
    is_exact,
    loss_bound,
    proven_pairs,
    refuse_infinite_losses,
)
from dpacct.pairs.one_round import gaussian_delta, gaussian_epsilon
from dpacct.renyi.curve import RenyiAccountant
from dpacct.rounds import AccountantName, Adjacency, Full, Phase, Poisson, Round, Schedule, Uniform
from dpacct.tight.engines import (
    WORTH_A_LOOK,
    AtDelta,
    AtEpsilon,
    Question,
    by_pairs,
    is_surely_below,
)
from dpacct.tight.game import is_played

_PLAYING = ("auto", "game")
GAME, _PAIR = "an adaptive game", "one fixed pair a round"
_FALLBACK = RenyiAccountant()


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
        upper, _ = self._least(AtDelta(delta), schedule)
        if math.isinf(upper):
            refuse_infinite_losses(schedule, delta)
        return upper

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
                epsilons = prefix_upper_epsilons(plan.phases[0].round, plan.rounds, delta)
                return float(epsilons[min(rounds, plan.rounds)])
        return self.upper_epsilon(plan, delta)

    def game_or_why(self, schedule: Schedule, delta: float) -> str:
        """Return the proof method of such a schedule in a few words, or "" without a game.

        It describes the result of `epsilon`, which is cached.
        """
        return self._least(AtDelta(delta), schedule, both=True)[1] if self.plays(schedule) else ""

    def epsilon(self, schedule: Schedule, delta: float) -> Interval:
        """See `Accountant`.

        Raises:
            InvalidParameter: infinite losses have a probability of at least delta.
        """
        bracket = self._answer(AtDelta(delta), schedule)
        if math.isinf(bracket.upper):
            refuse_infinite_losses(schedule, delta)
        return bracket

    def delta(self, schedule: Schedule, epsilon: float) -> Interval:
        """See `Accountant`."""
        # Outside, quantities of the bound leave the range of doubles, and the end is far above
        # every loss. Delta falls as epsilon grows, so bounds follow from both ends.
        least, most = 1e-100, 1e100
        if 0.0 < epsilon < least:
            return Interval.bracket(
                self.delta(schedule, least).lower, self.delta(schedule, 0.0).upper
            )
        if epsilon > most:
            return Interval(0.0, self.delta(schedule, most).upper)
        certain = certain_delta(schedule, epsilon)
        # From here on it is taken as one.
        if certain >= 1 - 1e-12:
            return Interval(certain, 1.0)
        return self._answer(AtEpsilon(epsilon), schedule)

    def _answer(self, question: Question, schedule: Schedule) -> Interval:
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
        self, question: Question, schedule: Schedule, *, both: bool = False
    ) -> tuple[float, str]:
        """Return the least of the proven bounds, and the proof method of a game in words.

        Args:
            question, schedule: what is asked, and of what.
            both: the achieved end is asked as well, for which a game is kept.
        """
        fixed = by_pairs(question, proven_pairs, schedule)
        fixed = _of_many_records(question, schedule, _over_sizes(question, schedule, fixed))
        upper, how = fixed.upper, ""
        if question.is_wide(fixed) or _has_sharper_moments(schedule):
            with suppress(Unsupported):
                upper = min(upper, _by(_FALLBACK, question, schedule))
        if schedule.adjacency is Adjacency.ZERO_OUT and _has_fixed_size(schedule):
            upper = min(upper, _by(_GAUSSIAN, question, with_everybody(schedule)))
        if self._plays(schedule) and upper > 0.0:
            played = _played(question, schedule, both=both)
            if isinstance(played, str):
                how = f"{_PAIR}: {played}"
            else:
                how = GAME if played.upper < upper else f"{_PAIR}: a game proves no less"
                upper = min(upper, played.upper)
        for rest, bound in _beside_bounded(schedule):
            # Exact pairs leave nothing to adding up but the last digits.
            if rest.rounds and not question.is_wide(fixed) and _exact(schedule):
                continue
            of_the_rest, added = _beside(question, bound)
            if of_the_rest is None or (rest.rounds and of_the_rest == AtDelta(0.0)):
                continue
            # A game of all releases mostly leaves nothing, either.
            if how and _sum(by_pairs(of_the_rest, achieved_pairs, rest).lower, added) >= upper:
                continue
            of_rest, how_rest = self._least(of_the_rest, rest) if rest.rounds else (0.0, "")
            if (total := _sum(of_rest, added)) < upper:
                upper, how = total, how_rest and f"{how_rest} beside epsilons that add up"
        return upper, how


def _beside(question: Question, bound: LossBound) -> tuple[Question | None, Fraction]:
    """Return the question about the rest beside bounded losses, and what these add to its answer.

    The question is None if nothing is left.
    """
    taken, added = bound.delta, bound.epsilon
    if isinstance(question, AtEpsilon):
        taken, added = added, taken
    left = decimal(question.value) - taken
    least = float(left)
    if Fraction(least) > left:
        least = math.nextafter(least, -math.inf)
    return None if left < 0 else replace(question, value=least), added


def _sum(of_rest: float, added: Fraction) -> float:
    """Return the answer for all, rounded up."""
    return of_rest if math.isinf(of_rest) else decimal_above(Fraction(of_rest) + added)


def _by(
    accountant: RenyiAccountant | GaussianAccountant, question: Question, schedule: Schedule
) -> float:
    """Return the proven answer of another accountant."""
    if isinstance(question, AtDelta):
        return accountant.upper_epsilon(schedule, question.value)
    return accountant.upper_delta(schedule, question.value)


def _beside_bounded(schedule: Schedule) -> list[tuple[Schedule, LossBound]]:
    """Return what remains beside all pure releases, and beside all with bounded losses."""
    bounds = {kind: loss_bound(kind) for kind in schedule.distinct()}
    pure = {kind for kind, bound in bounds.items() if bound is not None and not bound.delta}
    bounded = {kind for kind, bound in bounds.items() if bound is not None}
    ways: list[tuple[Schedule, LossBound]] = []
    for chosen in (pure, bounded) if pure < bounded else (pure,):
        total = basic_composition(schedule.only(lambda kind, some=chosen: kind in some))
        if chosen and total is not None:
            ways.append((schedule.only(lambda kind, some=chosen: kind not in some), total))
    return ways


def _exact(schedule: Schedule) -> bool:
    """Return True if explicit data sets reach the pairs of all releases."""
    return all(is_exact(kind) for kind in schedule.distinct())


def _populations(schedule: Schedule) -> set[int]:
    """Return the largest populations of truncated cohorts."""
    kinds = (kind.sampling for kind in schedule.only_rounds())
    cut = (kind for kind in kinds if isinstance(kind, Poisson) and kind.max_cohort is not None)
    return {kind.num_clients for kind in cut if kind.num_clients}


def _over_sizes(question: Question, schedule: Schedule, simple: Interval) -> Interval:
    """Return the largest answer over sizes if cohorts are truncated, else the ``simple`` one."""
    if len(_populations(schedule)) != 1 or not simple.upper > 0.0:
        return simple
    from dpacct.tight.sizes import over_sizes  # noqa: PLC0415 - see Rule 3

    return over_sizes(question, schedule, simple)


def _crowds(schedule: Schedule) -> list[PairsOf]:
    """Return achieved pairs of data sets in which others fill truncated cohorts."""
    if not (most := _populations(schedule)):
        return []
    from dpacct.tight.sizes import crowds  # noqa: PLC0415 - see Rule 3

    return [*crowds(schedule, min(most))]


def _of_many_records(question: Question, schedule: Schedule, fixed: Interval) -> Interval:
    """Return a closer answer, if there are users with several records and this one is wide."""
    sampled = [kind.sampling for kind in schedule.only_rounds()]
    several = any(isinstance(each, Poisson) and each.records > 1 for each in sampled)
    if not (several and question.is_wide(fixed)):
        return fixed
    from dpacct.tight.many_records import FiniteRecords  # noqa: PLC0415 - see Rule 3

    ends = [by_pairs(question, FiniteRecords(proven), schedule) for proven in (False, True)]
    return Interval.bracket(max(fixed.lower, ends[0].lower), min(fixed.upper, ends[1].upper))


def _achieved(question: Question, schedule: Schedule, upper: float) -> float:
    """Return the achieved end by pairs, and more where it is wide."""
    fixed = by_pairs(question, proven_pairs if _exact(schedule) else achieved_pairs, schedule)
    between = Interval(fixed.lower, max(fixed.lower, upper))
    lower = _of_many_records(question, schedule, between).lower
    if lower < WORTH_A_LOOK * upper:
        for crowd in _crowds(schedule):
            if not is_surely_below(question, crowd, schedule, lower):
                lower = max(lower, by_pairs(question, crowd, schedule).lower)
        simply = achieved_epsilon if isinstance(question, AtDelta) else achieved_delta
        lower = max(lower, simply(schedule, question.value))
        kinds = schedule.only_rounds()
        if schedule.adjacency is Adjacency.REPLACE_ONE and all(
            isinstance(kind.sampling, Poisson | Full) for kind in kinds
        ):
            # The replacement may send zero. Other releases may be left out.
            relation = Adjacency.ZERO_OUT
            gone = (Phase(replace(kind, adjacency=relation), n) for kind, n in kinds.items())
            lower = max(lower, by_pairs(question, achieved_pairs, Schedule(gone)).lower)
    return lower


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
def _played(question: Question, schedule: Schedule, *, both: bool) -> Interval | str:
    """Return the game's bracket, or its upper end above 0, or the reason why there is none."""
    from dpacct.tight.game import bounds  # noqa: PLC0415 - see Rule 3

    try:
        if isinstance(question, AtEpsilon):
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

    def upper_delta(self, schedule: Schedule, epsilon: float) -> float:
        """Return the upper end of `delta`."""
        return self.delta(schedule, epsilon).upper

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
