"""Goals of a calibration, and the searches that end on the safe side of a goal.

A cost (epsilon, or the success of attacks) falls as the noise grows and rises with rounds and rate.
The searches see it as its *excess*, log(cost / target), which is at most 0 exactly where the target
is met. They have three steps:

1. A formula and the accountant's quick estimate show where the target is about met.
2. Secants, or else a bracket, close in on that place by the proven cost itself.
3. The end whose proven cost meets the target is returned, never the other one.

An accountant that plays a game is slow. There the same accountant without the game searches. Its
cost is at least as large, and a few games correct its result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import TYPE_CHECKING

from dpacct import validate
from dpacct.accountant import Accountant
from dpacct.budget import Interval
from dpacct.errors import InvalidParameter, NotConverged, Unsupported
from dpacct.items import all_in_words
from dpacct.numerics.search import bracket_root, corrected_largest, corrected_root, largest, settle
from dpacct.pairs.achieved import loss_variance
from dpacct.pairs.dominating import Direction
from dpacct.rounds import Poisson, Round, Sampling, Schedule
from dpacct.tight.accountant import TightAccountant
from dpacct.tight.composition import merged
from dpacct.tight.engines import estimate_epsilon

if TYPE_CHECKING:
    from dpacct.risk.attacks import Attacks

NOTHING = Schedule()
# Of the logarithm of the unknown.
_TOLERANCE = 2e-7
_SMALLEST_RATE = 1e-12
# The least distance over which the slope of an estimate is taken.
_LEAST_REACH = 1e-3


@dataclass(frozen=True, slots=True)
class EpsilonGoal:
    """The proven epsilon at ``delta`` may not exceed ``target`` > 0.

    ``fixed`` runs before each schedule that is tried, and counts.
    """

    accountant: Accountant
    target: float
    delta: float
    fixed: Schedule = NOTHING
    name = "epsilon"

    def cost(self, schedule: Schedule) -> float:
        """Return the proven epsilon. It falls as the noise grows."""
        return self.accountant.upper_epsilon(self.fixed + schedule, self.delta)

    def measure(self, schedule: Schedule) -> Interval:
        """Return the achieved and the proven epsilon."""
        return self.accountant.epsilon(self.fixed + schedule, self.delta)

    def log_noise(self, rate: float) -> float:
        """Return about the log of the noise multiplier at which one round is on target.

        That of an unsampled round at the epsilon that sampling amplifies to the target:
        epsilon = rho + 2 sqrt(rho log(1 / delta)) with rho = 1 / (2 z^2) (zCDP), solved for z.
        """
        cost = -math.log(self.delta)
        log_odds = self.target + math.log(-math.expm1(-self.target)) - math.log(rate)
        epsilon = log_odds if log_odds > 30.0 else math.log1p(math.exp(log_odds))
        # The least targets underflow in products.
        log_epsilon = math.log(max(epsilon, self.target))
        return math.log((math.sqrt(cost + epsilon) + math.sqrt(cost)) / math.sqrt(2)) - log_epsilon

    def estimate(self, schedule: Schedule) -> float:
        """Return about the epsilon, by a saddle point."""
        return estimate_epsilon(self.fixed + schedule, self.delta)


@dataclass(frozen=True, slots=True)
class RiskGoal:
    """The proven success of attacks, TPR at ``fpr`` or advantage, may not exceed ``target`` > 0."""

    accountant: Accountant
    target: float
    fpr: float | None = None
    fixed: Schedule = NOTHING

    @property
    def name(self) -> str:
        """The quantity in a sentence."""
        return "advantage" if self.fpr is None else f"TPR at FPR {self.fpr:g}"

    def cost(self, schedule: Schedule) -> float:
        """Return the proven bound of the success. It falls as the noise grows."""
        attacks = self._attacks(schedule)
        return attacks.upper_advantage() if self.fpr is None else attacks.upper_tpr(self.fpr)

    def measure(self, schedule: Schedule) -> Interval:
        """Return the achieved and the proven success."""
        attacks = self._attacks(schedule)
        return attacks.advantage() if self.fpr is None else attacks.tpr(self.fpr)

    def log_noise(self, rate: float) -> float:
        """Return log(1 / mu) of a Gaussian. Sampling scales the gain over chance by ``rate``."""
        from dpacct.risk.attacks import gaussian_mu, normal_quantile  # noqa: PLC0415 - as below

        if self.fpr is None:
            return -math.log(gaussian_mu(self.target / rate))
        alone = min(self.fpr + (self.target - self.fpr) / rate, 1 - 1e-9)
        mu = normal_quantile(alone) - normal_quantile(self.fpr)
        return -math.log(max(mu, 1e-9))

    def estimate(self, schedule: Schedule) -> float:  # noqa: ARG002 - as of epsilon
        """Return NaN: there is no quick way."""
        return math.nan

    def _attacks(self, schedule: Schedule) -> Attacks:
        # A cold start with a budget does not pay for this import.
        from dpacct.risk.attacks import Attacks  # noqa: PLC0415

        return Attacks(self.fixed + schedule, self.accountant)


Goal = EpsilonGoal | RiskGoal


def excess(goal: Goal, schedule: Schedule) -> float:
    """Return log(cost / target), which is positive exactly where the target is missed."""
    cost = goal.cost(schedule)
    if cost <= goal.target:
        # A cost exactly on target is met for any rounding of the logarithms. A cost that drops
        # to nothing at once would lead secants astray: far below, it counts as a tenth, or as the
        # least positive double.
        least = max(0.1 * goal.target, 5e-324)
        return min(0.0, math.log(max(cost, least)) - math.log(goal.target))
    return max(math.log(cost) - math.log(goal.target), 1e-300)


def _without_game(goal: Goal, schedule: Schedule) -> Goal | None:
    """Return the same goal by fixed pairs alone, or None if no game is played at any noise."""
    if not isinstance(goal.accountant, TightAccountant):
        return None
    # Whether a game is played may depend on the noise.
    loud = 1 / min((r.noise_multiplier for r in schedule.only_rounds()), default=1.0)
    tried = (goal.fixed + schedule, goal.fixed + schedule.scale_noise(max(loud, 1.0)))
    if not any(map(goal.accountant.plays, tried)):
        return None
    return replace(goal, accountant=goal.accountant.of_pairs)


def find_goal(
    accountant: Accountant,
    *,
    epsilon: float | None,
    delta: float | None,
    advantage: float | None = None,
    tpr: float | None = None,
    fpr: float | None = None,
    fixed: Schedule = NOTHING,
) -> Goal:
    """Return the one goal that is given: a budget, an advantage, or a TPR at an FPR.

    Raises:
        InvalidParameter: no goal or several, a value out of range, a TPR that guessing reaches.
        NotConverged: the fixed part alone misses the goal.
    """
    goal = _find_goal(accountant, epsilon, delta, advantage, tpr, fpr)
    if fixed.rounds and (alone := goal.cost(fixed)) > goal.target:
        raise NotConverged(
            f"the fixed part alone costs {goal.name} {alone:.6g}, more than {goal.target:g}"
        )
    return replace(goal, fixed=fixed)


def _find_goal(
    accountant: Accountant, epsilon: float | None, delta: float | None, advantage: float | None,
    tpr: float | None, fpr: float | None,
) -> Goal:  # fmt: skip
    targets = {"epsilon": epsilon, "advantage": advantage, "tpr": tpr}
    given = [name for name, value in targets.items() if value is not None]
    if len(given) > 1:
        rule = f"{given[0]} is given too, and a calibration has one target"
        raise InvalidParameter(given[1], targets[given[1]], rule, "Drop one of them.")
    if tpr is None and fpr is not None:
        raise InvalidParameter("fpr", fpr, "it needs tpr, the true positive rate allowed there")
    if advantage is not None:
        noun = "a target for the advantage"
        value = validate.positive_probability("advantage", advantage, noun, below_one=True)
        return RiskGoal(accountant, value)
    if tpr is None:
        return EpsilonGoal(accountant, validate.target_epsilon(epsilon), validate.delta(delta))
    at = validate.positive_probability("fpr", fpr, "a false positive rate", below_one=True)
    noun = "a target for the true positive rate"
    value = validate.positive_probability("tpr", tpr, noun, below_one=True)
    if value <= at:
        rule = f"accusing at random reaches {at:g} already, so a target lies in ({at:g}, 1)"
        raise InvalidParameter("tpr", tpr, rule)
    return RiskGoal(accountant, value, at)


@dataclass(frozen=True, slots=True)
class _Line:
    """Schedules by a number t: the logarithm of their noise, or minus that of a rate or a number.

    Attributes:
        goal: its cost falls as t grows.
        sketch_at: schedules with about that cost, of which estimates are quick.
        ends: the least and the largest t.
    """

    goal: Goal
    sketch_at: Callable[[float], Schedule]
    ends: tuple[float, float]

    def estimated(self, guess: float) -> float:
        """Return where the quick estimate is on target, or the guess without one (step 1)."""

        def estimate(t: float) -> float:
            cost = self.goal.estimate(self.sketch_at(t))
            return math.inf if math.isnan(cost) else math.log(cost / self.goal.target)

        start = min(max(guess, self.ends[0]), self.ends[1])
        # If losses are too large for an estimate, there may be one for a little more noise.
        tries = (start + 0.25 * k for k in range(16))
        known = next((t for t in tries if t <= self.ends[1] and math.isfinite(estimate(t))), None)
        if known is None:
            return start
        # Only about where the search begins.
        root = bracket_root(estimate, known, self.ends, 3e-5)[1]
        return root if math.isfinite(estimate(root)) else known

    def around_root(self, excess_at: Callable[[float], float], guess: float) -> tuple[float, float]:
        """Return a point that misses the target and one that meets it, close together (step 2).

        Both are the same if secants settled on a point that meets it, or if none in range does.
        """
        missed, slope = excess_at(guess), math.nan
        # About minus the derivative of log cost at the root: the cost falls as e^-t, or faster.
        reach = math.copysign(max(abs(missed) / 2, _LEAST_REACH), missed)
        if abs(missed) < 1.0 and self.ends[0] <= guess + reach <= self.ends[1]:
            here, there = (self.goal.estimate(self.sketch_at(t)) for t in (guess, guess + reach))
            slope = math.log(here / there) / reach
        settled = settle(excess_at, guess, slope, self.ends, 2 * _TOLERANCE)
        if settled is not None:
            return settled, settled
        # Such a step reaches the other side of the root.
        step = min(max(2 * abs(missed), 2 * _TOLERANCE), 0.5)
        return bracket_root(excess_at, guess, self.ends, _TOLERANCE, step)


def noise_factor(goal: Goal, unit: Schedule) -> float:
    """Return the smallest factor on the noise of a schedule that meets the target.

    Raises:
        InvalidParameter: no release has noise. NotConverged: no noise in range meets the target.
    """
    if all(kind.noise_range is None for kind in unit.distinct()):
        rule = "none of its releases has noise to scale"
        raise InvalidParameter("schedule", all_in_words(unit), rule)
    quick = _without_game(goal, unit)
    if quick is None:
        return math.exp(_log_noise_factor(goal, unit))
    least, most = _log_factors(unit)

    def excess_of(any_goal: Goal, log_factor: float) -> float:
        return excess(any_goal, unit.scale_noise(math.exp(log_factor)))

    quick_excess = cache(partial(excess_of, quick))

    def solve_quick(level: float, start: float) -> float:
        step = max(abs(quick_excess(start) - level), 2 * _TOLERANCE)
        ends = (max(least, start - 5.0), min(most, start + 5.0))
        return bracket_root(lambda t: quick_excess(t) - level, start, ends, _TOLERANCE, step)[1]

    first = _log_noise_factor(quick, unit)
    return math.exp(corrected_root(partial(excess_of, goal), solve_quick, quick_excess, first))


def _log_factors(unit: Schedule) -> tuple[float, float]:
    """Return the logarithms of the factors between which all noise of a schedule is in range."""
    ranges = [kind.noise_range for kind in unit.distinct()]
    ends = [(low / level, high / level) for level, low, high in filter(None, ranges)]
    least, most = max(low for low, _ in ends), min(high for _, high in ends)
    return math.log(least) + 1e-12, math.log(most) - 1e-12


def without_noise(schedule: Schedule) -> Schedule:
    """Return the releases that have no noise to scale."""
    return schedule.only(lambda kind: kind.noise_range is None)


def _log_noise_factor(goal: Goal, unit: Schedule) -> float:
    """Return the logarithm of `noise_factor` by the goal's own accountant alone."""
    ends, sketch = _log_factors(unit), merged(unit)
    line = _Line(goal, lambda t: sketch.scale_noise(math.exp(t)), ends)

    @cache
    def excess_at(log_factor: float) -> float:
        try:
            return excess(goal, unit.scale_noise(math.exp(log_factor)))
        except Unsupported:
            # Closed forms hold only from some noise on: less noise counts as too little.
            if log_factor >= ends[1] - 1.0:
                raise
            return math.inf

    if sketch is unit:
        guess = line.estimated(_about_log_factor(goal, unit))
    else:
        # The proven cost of a few kinds of rounds is quick, and hardly differs.
        guess = min(max(_log_noise_factor(goal, sketch), ends[0]), ends[1])
    bad, good = line.around_root(excess_at, guess)
    if math.isinf(excess_at(bad)):
        # No bound holds for a little less noise, but one may hold for still less.
        below = (bad - 0.05 * k for k in range(1, 80))
        island = next((t for t in below if t > ends[0] and excess_at(t) <= 0), None)
        if island is not None:
            good = bracket_root(excess_at, island, (ends[0], island), _TOLERANCE)[1]
    if excess_at(good) > 0:
        high = validate.NOISE_MULTIPLIER_RANGE[1]
        least = goal.cost(unit.scale_noise(math.exp(good)))
        still = without_noise(unit)
        why = f"; {still!r} has no noise to scale" if still.rounds else ""
        raise NotConverged(
            f"no noise multiplier up to {high:g} gives {goal.name} {goal.target:g} "
            f"({high:g} gives {least:.4g}){why}; fewer rounds or a lower rate would"
        )
    return good


def _about_log_factor(goal: Goal, unit: Schedule) -> float:
    """Return about the logarithm of the factor, by a formula."""
    kinds = {kind: n for kind, n in unit.distinct().items() if kind.noise_range is not None}
    # Many rounds: one Gaussian with the variance divided by q^2.
    spread = sum(count * loss_variance(kind, Direction.REMOVE) for kind, count in kinds.items())
    many = 0.5 * math.log(max(spread, 1e-300)) + goal.log_noise(1.0)
    rounds = [kind for kind in kinds if isinstance(kind, Round)]
    if not rounds:
        return many
    # Few rounds: one of them alone.
    rate = max(round_.sampling_rate for round_ in rounds)
    return max(many, goal.log_noise(rate) - math.log(max(r.noise_multiplier for r in rounds)))


def largest_number(
    goal: Goal, plan_of: Callable[[int], Schedule], most: int, least_of_all: str
) -> int:
    """Return the largest n up to ``most`` for which the schedule meets the goal.

    Raises:
        NotConverged: n = 1, in words ``least_of_all``, misses the goal.
    """
    alone = goal.cost(plan_of(1))
    if alone > goal.target:
        target = f"{goal.name} {alone:.6g}, more than {goal.target:g}"
        raise NotConverged(f"{least_of_all} costs {target}; more noise would lower it")
    quick = _without_game(goal, plan_of(2))
    if quick is not None:
        return corrected_largest(
            lambda n: excess(goal, plan_of(n)), lambda n: excess(quick, plan_of(n)), most
        )

    def at(log_inverse: float) -> Schedule:
        return plan_of(min(max(1, round(math.exp(-log_inverse))), most))

    guess = -_Line(goal, at, (-math.log(most), 0.0)).estimated(-2.0)
    return largest(lambda n: excess(goal, plan_of(n)), most, guess)


def largest_rate(goal: Goal, at_scheme: Callable[[Sampling], Schedule]) -> Schedule:
    """Return the schedule with the largest Poisson rate that meets the target.

    Raises:
        NotConverged: no rate down to 1e-12 does.
    """

    def at_rate(log_inverse: float) -> Schedule:
        return at_scheme(Poisson(math.exp(-log_inverse)))

    @cache
    def excess_at(log_inverse: float) -> float:
        return excess(goal, at_rate(log_inverse))

    if excess_at(0.0) <= 0:
        return at_rate(0.0)
    line = _Line(goal, at_rate, (0.0, -math.log(_SMALLEST_RATE)))
    good = line.around_root(excess_at, line.estimated(2.0))[1]
    if excess_at(good) > 0:
        raise NotConverged(
            f"no sampling rate down to {_SMALLEST_RATE:g} gives {goal.name} {goal.target:g}"
        )
    return at_rate(good)
