"""Solve for the noise, the rounds, the rate, epsilon or delta of a schedule, on the safe side.

The proven cost falls with the noise and rises with rounds and rate. A quick estimate says where to
look; the search brackets the target by the cost itself and returns the end that meets it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from dpacct import validate
from dpacct.accountant import DEFAULT_ACCOUNTANT, find_accountant
from dpacct.budget import DEFAULT_DELTA, Interval, Spent
from dpacct.calibration.goals import EpsilonGoal, Goal, find_goal
from dpacct.display import chosen, html_table, up
from dpacct.errors import InvalidParameter, NotConverged, Unsupported
from dpacct.numerics.search import bracket_root, corrected_largest, corrected_root, largest, settle
from dpacct.rounds import Adjacency, Poisson, Round, Sampling, Schedule, Uniform
from dpacct.schedules.build import NOT_GIVEN, Setting, build_schedule, find_sampling
from dpacct.tight.composition import merged

SOLVE_FOR = ("noise", "rounds", "sampling_rate", "epsilon", "delta")
# Of the logarithm of what is solved for.
_TOLERANCE = 2e-7
_GUESS_TOLERANCE = 3e-5
_SMALLEST_RATE = 1e-12
# The least distance over which the slope of an estimate is taken.
_LEAST_REACH = 1e-3
# How far an estimate is looked for.
_STRIDE, _STRIDES = 0.25, 16


@dataclass(frozen=True, slots=True)
class Calibration:
    """A schedule that meets a budget, and what it costs.

    Attributes:
        solved_for: "noise", "rounds", "sampling_rate", "epsilon" or "delta".
        schedule: the schedule found (or given).
        accountant: name of the accountant.
        delta: the delta at which ``epsilon`` holds.
        epsilon: achieved and proven epsilon of the schedule.
        target: the largest value allowed for the goal, None where epsilon or delta was solved for.
        noise_scale: factor applied to a given schedule's noise, else 1.
        goal: what the target is about: "epsilon", "advantage" or e.g. "TPR at FPR 0.01".
        risk: achieved and proven value of the goal where that is an attack risk, else None.
    """

    solved_for: str
    schedule: Schedule
    accountant: str
    delta: float
    epsilon: Interval
    target: float | None
    noise_scale: float = 1.0
    goal: str = "epsilon"
    risk: Interval | None = None

    @property
    def spent(self) -> Spent:
        """``epsilon`` with the ``delta`` at which it holds."""
        return Spent.at(self.delta, self.epsilon)

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of all rounds.

        Raises:
            InvalidParameter: the rounds differ.
        """
        return self._only_round("noise_multiplier").noise_multiplier

    @property
    def sampling_rate(self) -> float:
        """The sampling rate of all rounds.

        Raises:
            InvalidParameter: the rounds differ.
        """
        return self._only_round("sampling_rate").sampling_rate

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return self.schedule.rounds

    def _repr_html_(self) -> str:
        """For a notebook."""
        kinds = self.schedule.distinct()
        rows = [("accountant", self.accountant, str(self.schedule.adjacency))]
        if self.risk is not None:
            rows = [(self.goal, up(self.risk.upper), "of any attack, proven"), *rows]
        rows = [
            ("epsilon", up(self.epsilon.upper), f"proven, at delta {chosen(self.delta, 3)}"),
            *rows,
        ]
        if len(kinds) == 1:
            (only,) = kinds
            who = f"{self.rounds} rounds, {only.sampling!r}"
            noise = ("noise multiplier", up(only.noise_multiplier, 7), "noise std / clip norm")
            return html_table([noise, *rows, ("mechanism", who, "")])
        scale = ("noise scale", up(self.noise_scale, 7), "x the noise of every round")
        several = f"{self.rounds} rounds of {len(kinds)} kinds"
        return html_table([scale, *rows, ("mechanism", several, "")])

    def _only_round(self, name: str) -> Round:
        distinct = list(self.schedule.distinct())
        if len(distinct) != 1:
            rule = "the rounds of this schedule differ; read them from its phases"
            raise InvalidParameter(name, f"{len(distinct)} values", rule)
        return distinct[0]


def calibrate(
    *,
    epsilon: float | None = None,
    delta: float | None = None,
    schedule: Schedule | None = None,
    noise_multiplier: float | None = None,
    rounds: int | None = None,
    sampling_rate: float = NOT_GIVEN,
    sampling: Sampling | None = None,
    adjacency: Adjacency | str | None = None,
    accountant: str = DEFAULT_ACCOUNTANT,
    solve: str = "noise",
    advantage: float | None = None,
    tpr: float | None = None,
    fpr: float | None = None,
    gap: float | None = None,
) -> Calibration:
    """Find what is missing so that a schedule meets a budget, or a limit of attack risk.

    Args:
        epsilon: the target; not with solve="epsilon"; where delta is solved for, the epsilon at
            which it is asked.
        delta: in (0, 1); not with solve="delta". Beside a limit of risk it only says where
            epsilon is told, and is 1e-5 by default.
        schedule: a schedule whose noise is scaled by one factor; instead of the parts below.
        noise_multiplier, rounds, sampling_rate, sampling, adjacency: the parts of a constant
            schedule, all but the one solved for. For solve="sampling_rate", ``sampling`` may be a
            `Uniform` scheme: its cohort is solved for, among its clients; default Poisson.
        accountant: name of the accountant whose upper bound must meet the target.
        solve: "noise", "rounds", "sampling_rate", "epsilon" or "delta".
        advantage: instead of epsilon, the largest TPR - FPR that an attack may reach, in (0, 1).
        tpr, fpr: instead of epsilon, the largest true positive rate that an attack with this false
            positive rate may reach, 0 < fpr < tpr < 1.
        gap: as for `epsilon`; each of a few evaluations then takes that long.
    Returns:
        The calibration. Noise and rate are within 1e-6 (relative) of the accountant's optimum, or
            about 3e-4 where it plays a game, on the safe side; rounds and cohort size are the
            largest possible.
    Raises:
        InvalidParameter: an argument is missing, contradicts another or is out of range.
        NotConverged: no value in range meets the target.
        Unsupported: the accountant knows no bound for such rounds.
    """
    if not isinstance(solve, str) or solve not in SOLVE_FOR:
        raise InvalidParameter("solve", solve, f"solve is one of {', '.join(SOLVE_FOR)}")
    engine = find_accountant(accountant, gap)
    unknown = "noise_multiplier" if solve == "noise" else solve
    given = {
        "noise_multiplier": noise_multiplier,
        "rounds": rounds,
        "sampling_rate": sampling_rate,
        "epsilon": epsilon,
        "delta": delta,
    }
    if given[unknown] is not None and given[unknown] is not NOT_GIVEN:
        hint = "Drop it, or solve for something else."
        raise InvalidParameter(unknown, given[unknown], "it is what is solved for", hint)
    parts: Setting = {
        "noise_multiplier": noise_multiplier,
        "rounds": rounds,
        "sampling_rate": sampling_rate,
        "sampling": sampling,
        "adjacency": adjacency,
    }
    if solve in ("epsilon", "delta"):
        _refuse_risk(solve, {"advantage": advantage, "tpr": tpr, "fpr": fpr})
    if solve == "epsilon":
        plan, at = build_schedule(schedule, **parts), validate.delta(delta)
        return Calibration(solve, plan, accountant, at, engine.epsilon(plan, at), None)
    if solve == "delta":
        plan, budget = build_schedule(schedule, **parts), validate.epsilon(epsilon)
        spent = engine.delta(plan, budget).upper
        return Calibration(solve, plan, accountant, spent, Interval(0.0, budget), None)

    goal = find_goal(engine, epsilon=epsilon, delta=delta, advantage=advantage, tpr=tpr, fpr=fpr)
    at = DEFAULT_DELTA if delta is None else validate.delta(delta)
    factor = 1.0
    if solve == "noise":
        plan, factor = _solve_noise(goal, schedule, parts)
    elif schedule is not None:
        rule = "a schedule fixes rounds and rate; only its noise can be solved for"
        raise InvalidParameter("solve", solve, rule)
    elif solve == "rounds":
        scheme = find_sampling(sampling_rate, sampling)
        round_ = Round(validate.noise_multiplier(noise_multiplier), scheme, adjacency)
        plan = _solve_rounds(goal, round_) * round_
    else:
        plan = _solve_sampling(goal, parts)
    reached = goal.measure(plan)
    if isinstance(goal, EpsilonGoal):
        return Calibration(solve, plan, accountant, at, reached, goal.target, factor)
    spent = engine.epsilon(plan, at)
    return Calibration(solve, plan, accountant, at, spent, goal.target, factor, goal.name, reached)


def _refuse_risk(solve: str, limits: dict[str, float | None]) -> None:
    for name, value in limits.items():
        if value is not None:
            rule = f"a limit of attack risk leaves no {solve} to solve for"
            raise InvalidParameter(name, value, rule, "dpacct.risk tells the risk of a schedule.")


def _solve_noise(goal: Goal, schedule: Schedule | None, parts: Setting) -> tuple[Schedule, float]:
    """The schedule with the least noise that meets the target, and the factor on a given one."""
    if schedule is None:
        parts["noise_multiplier"] = 1.0
        unit = build_schedule(**parts)
    else:
        unit = build_schedule(schedule, **parts)
    if not unit.rounds:
        rule = "a schedule with at least one round is needed to solve for noise"
        raise InvalidParameter("schedule", "empty", rule)
    factor = noise_factor(goal, unit)
    return unit.scale_noise(factor), 1.0 if schedule is None else factor


def _solve_rounds(goal: Goal, round_: Round) -> int:
    """The largest number of equal rounds that meets the target."""
    if goal.excess(1 * round_) > 0:
        alone = goal.cost(1 * round_)
        raise NotConverged(
            f"one round alone costs {goal.name} {alone:.6g}, more than {goal.target:g}"
        )
    return largest_number(goal, lambda rounds: rounds * round_, validate.MAX_ROUNDS)


def _solve_sampling(goal: Goal, parts: Setting) -> Schedule:
    """The schedule with the largest rate, or the largest cohort of a `Uniform` scheme."""
    noise = validate.noise_multiplier(parts.get("noise_multiplier"))
    rounds = validate.rounds(parts.get("rounds"))
    sampling, adjacency = parts.get("sampling"), parts.get("adjacency")

    def at_scheme(scheme: Sampling) -> Schedule:
        return rounds * Round(noise, scheme, adjacency)

    if isinstance(sampling, Uniform):
        return _solve_cohort(goal, at_scheme, sampling.num_clients)
    if sampling is None or isinstance(sampling, Poisson):
        return largest_rate(goal, at_scheme)
    raise InvalidParameter("sampling", sampling, "full participation has no rate to solve for")


def _solve_cohort(
    goal: Goal, at_scheme: Callable[[Sampling], Schedule], num_clients: int
) -> Schedule:
    """The schedule with the largest cohort that meets the target."""

    def at_cohort(cohort: int) -> Schedule:
        return at_scheme(Uniform(cohort, num_clients))

    if goal.excess(at_cohort(1)) > 0:
        raise NotConverged(
            f"even one of {num_clients} clients a round costs {goal.name} above {goal.target:g}"
        )
    return at_cohort(largest_number(goal, at_cohort, num_clients))


def noise_factor(goal: Goal, unit: Schedule) -> float:
    """The smallest factor on the noise of a schedule that meets the target.

    By a quicker goal that is corrected where there is one.
    """
    quick = goal.quick(unit)
    if quick is None:
        return _noise_factor(goal, unit)

    least, most = _ends(unit)

    @cache
    def excess_at(log_factor: float) -> float:
        return quick.excess(unit.scale_noise(math.exp(log_factor)))

    def solve_quick(level: float, start: float) -> float:
        step = max(abs(excess_at(start) - level), 2 * _TOLERANCE)
        ends = (max(least, start - 5.0), min(most, start + 5.0))
        return bracket_root(lambda t: excess_at(t) - level, start, ends, _TOLERANCE, step)[1]

    # The factor that was found, or an ulp or so more: its logarithm is rounded.
    first = min(math.log(_noise_factor(quick, unit)) + 1e-15, most)
    return math.exp(
        corrected_root(
            lambda t: goal.excess(unit.scale_noise(math.exp(t))), solve_quick, excess_at, first
        )
    )


def _ends(unit: Schedule) -> tuple[float, float]:
    """Logarithms of the factors between which all noise of a schedule is in range."""
    noises = [round_.noise_multiplier for round_ in unit.distinct()]
    low, high = validate.NOISE_MULTIPLIER_RANGE
    return math.log(low / min(noises)) + 1e-12, math.log(high / max(noises)) - 1e-12


def _noise_factor(goal: Goal, unit: Schedule) -> float:
    """The smallest factor on the noise of a schedule that meets the target."""
    ends, high = _ends(unit), validate.NOISE_MULTIPLIER_RANGE[1]

    @cache
    def excess_at(log_factor: float) -> float:
        try:
            return goal.excess(unit.scale_noise(math.exp(log_factor)))
        except Unsupported:
            # Closed forms hold only from some noise on: treat less noise as too little.
            if log_factor >= ends[1] - 1.0:
                raise
            return math.inf

    rate = max(round_.sampling_rate for round_ in unit.distinct())
    spread = sum(
        count * (round_.sampling_rate / round_.noise_multiplier) ** 2
        for round_, count in unit.distinct().items()
    )
    guess = max(
        # Many rounds: one Gaussian with the variance divided by q^2.
        0.5 * math.log(max(spread, 1e-300)) + goal.log_noise(1.0),
        # Few rounds: one of them alone.
        goal.log_noise(rate) - math.log(max(r.noise_multiplier for r in unit.distinct())),
    )
    sketch = merged(unit)

    def sketched(log_factor: float) -> Schedule:
        return sketch.scale_noise(math.exp(log_factor))

    if sketch is unit:
        guess = _refine(goal, sketched, guess, ends)
    else:
        # The cost itself of a few kinds of rounds is quick, and hardly off.
        guess = min(max(math.log(_noise_factor(goal, sketch)), ends[0]), ends[1])
    slope = _slope(goal, sketched, guess, excess_at(guess), ends)
    settled = settle(excess_at, guess, slope, ends, 2 * _TOLERANCE)
    if settled is not None:
        return math.exp(settled)
    # epsilon falls about as 1 / noise: the step reaches the other side of the root.
    step = min(max(2 * abs(excess_at(guess)), 2 * _TOLERANCE), 0.5)
    bad, good = bracket_root(excess_at, guess, ends, _TOLERANCE, step)
    if math.isinf(excess_at(bad)):
        # No bound holds for a little less noise, but one may for still less.
        below = (bad - 0.05 * k for k in range(1, 80))
        island = next((t for t in below if t > ends[0] and excess_at(t) <= 0), None)
        if island is not None:
            good = bracket_root(excess_at, island, (ends[0], island), _TOLERANCE)[1]
    if excess_at(good) > 0:
        least = goal.cost(unit.scale_noise(math.exp(good)))
        raise NotConverged(
            f"no noise multiplier up to {high:g} gives {goal.name} {goal.target:g} "
            f"({high:g} gives {least:.4g}); fewer rounds or a lower rate would"
        )
    return math.exp(good)


def largest_number(goal: Goal, plan_of: Callable[[int], Schedule], most: int) -> int:
    """The largest n up to ``most`` whose schedule meets the goal; that of one does."""
    quick = goal.quick(plan_of(2))
    if quick is not None:
        return corrected_largest(
            lambda n: goal.excess(plan_of(n)), lambda n: quick.excess(plan_of(n)), most
        )

    def at(log_inverse: float) -> Schedule:
        return plan_of(min(max(1, round(math.exp(-log_inverse))), most))

    guess = -_refine(goal, at, -2.0, (-math.log(most), 0.0))
    return largest(lambda n: goal.excess(plan_of(n)), most, guess)


def largest_rate(goal: Goal, at_scheme: Callable[[Sampling], Schedule]) -> Schedule:
    """The schedule with the largest Poisson rate that meets the target."""

    def at_rate(log_inverse: float) -> Schedule:
        return at_scheme(Poisson(math.exp(-log_inverse)))

    @cache
    def excess_at(log_inverse: float) -> float:
        return goal.excess(at_rate(log_inverse))

    if excess_at(0.0) <= 0:
        return at_scheme(Poisson(1.0))
    ends = (0.0, -math.log(_SMALLEST_RATE))
    guess = _refine(goal, at_rate, 2.0, ends)
    slope = _slope(goal, at_rate, guess, excess_at(guess), ends)
    settled = settle(excess_at, guess, slope, ends, 2 * _TOLERANCE)
    if settled is not None:
        return at_scheme(Poisson(math.exp(-settled)))
    step = min(max(2 * abs(excess_at(guess)), 2 * _TOLERANCE), 0.5)
    _, good = bracket_root(excess_at, guess, ends, _TOLERANCE, step)
    if excess_at(good) > 0:
        raise NotConverged(
            f"no sampling rate down to {_SMALLEST_RATE:g} gives {goal.name} {goal.target:g}"
        )
    return at_scheme(Poisson(math.exp(-good)))


def _slope(
    goal: Goal,
    schedule_at: Callable[[float], Schedule],
    guess: float,
    missed: float,
    ends: tuple[float, float],
) -> float:
    """About minus the derivative of log cost between the guess and the root; NaN if unknown."""
    # The cost falls about as e^-t, or faster.
    reach = math.copysign(max(abs(missed) / 2, _LEAST_REACH), missed)
    if not (abs(missed) < 1.0 and ends[0] <= guess + reach <= ends[1]):
        return math.nan
    here, there = (goal.estimate(schedule_at(t)) for t in (guess, guess + reach))
    return math.log(here / there) / reach


def _refine(
    goal: Goal, schedule_at: Callable[[float], Schedule], guess: float, ends: tuple[float, float]
) -> float:
    """Where the goal's quick estimate is on target; ``guess`` where it has none."""

    def estimate(t: float) -> float:
        cost = goal.estimate(schedule_at(t))
        # Nothing is known where losses are too large.
        return math.inf if math.isnan(cost) else math.log(cost / goal.target)

    start = min(max(guess, ends[0]), ends[1])
    # Where losses are too large for an estimate, there may be one for a little more noise.
    tries = (start + _STRIDE * k for k in range(_STRIDES))
    known = next((t for t in tries if t <= ends[1] and math.isfinite(estimate(t))), None)
    if known is None:
        return start
    refined = bracket_root(estimate, known, ends, _GUESS_TOLERANCE)[1]
    return refined if math.isfinite(estimate(refined)) else known
