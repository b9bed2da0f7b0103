"""Solve for the noise, the rounds, the rate, epsilon or delta of a schedule, on the safe side.

`calibrate` reads the arguments and finds the missing one. `goals` has the targets and searches.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal, get_args

from dpacct import validate
from dpacct.accountant import DEFAULT_ACCOUNTANT, find_accountant
from dpacct.budget import DEFAULT_DELTA, Interval, Spent
from dpacct.calibration.goals import (
    NOTHING,
    EpsilonGoal,
    Goal,
    find_goal,
    largest_number,
    largest_rate,
    noise_factor,
    without_noise,
)
from dpacct.display import chosen, html_table, up
from dpacct.errors import InvalidParameter
from dpacct.items import all_in_words
from dpacct.rounds import (
    NOT_GIVEN,
    AccountantName,
    Adjacency,
    AdjacencyName,
    Poisson,
    Release,
    Round,
    RoundParts,
    Sampling,
    Schedule,
    Uniform,
    as_schedule,
    build_schedule,
)

Unknown = Literal["noise", "rounds", "sampling_rate", "epsilon", "delta"]
SOLVE_FOR: tuple[Unknown, ...] = get_args(Unknown)


@dataclass(frozen=True, slots=True)
class Calibration:
    """A schedule that meets a budget, and its cost.

    Attributes:
        solved_for: "noise", "rounds", "sampling_rate", "epsilon" or "delta".
        schedule: the schedule found (or given).
        accountant: name of the accountant.
        delta: the delta at which ``epsilon`` holds.
        epsilon: achieved and proven epsilon of the schedule.
        target: the largest value allowed for the goal, None if epsilon or delta was solved for.
        noise_scale: factor applied to a given schedule's noise, else 1.
        fixed, rest: the part of the schedule that was fixed, and the part that was found, which
            follows it.
        goal: the quantity of the target: "epsilon", "advantage" or e.g. "TPR at FPR 0.01".
        risk: achieved and proven value of the goal if that is an attack risk, else None.
    """

    solved_for: str
    schedule: Schedule
    accountant: AccountantName
    delta: float
    epsilon: Interval
    target: float | None
    noise_scale: float = 1.0
    goal: str = "epsilon"
    risk: Interval | None = None
    fixed: Schedule = NOTHING
    rest: Schedule = NOTHING

    @property
    def spent(self) -> Spent:
        """``epsilon`` with the ``delta`` at which it holds."""
        return Spent.at(self.delta, self.epsilon)

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of all rounds that are not fixed.

        Raises:
            InvalidParameter: the rounds differ.
        """
        return self._only_round("noise_multiplier").noise_multiplier

    @property
    def not_scaled(self) -> str:
        """A sentence on the releases whose noise was not scaled, since they have none, or ""."""
        still = without_noise(self.rest)
        if self.solved_for != "noise" or not still.rounds:
            return ""
        return f"Without noise to scale, and as costly as before: {still!r}."

    @property
    def sampling_rate(self) -> float:
        """The sampling rate of all rounds that are not fixed.

        Raises:
            InvalidParameter: the rounds differ.
        """
        return self._only_round("sampling_rate").sampling_rate

    @property
    def rounds(self) -> int:
        """The number of rounds that are not fixed."""
        return self.rest.rounds

    def _repr_html_(self) -> str:
        """Return the table that a notebook shows."""
        kinds = list(self.rest.distinct())
        only = kinds[0] if len(kinds) == 1 else None
        if isinstance(only, Round):
            noise = ("noise multiplier", up(only.noise_multiplier, 7), "noise std / clip norm")
        else:
            noise = ("noise scale", up(self.noise_scale, 7), "x the noise of every round")
        rows = [
            noise,
            ("epsilon", up(self.epsilon.upper), f"proven, at delta {chosen(self.delta, 3)}"),
        ]
        if self.risk is not None:
            rows.append((self.goal, up(self.risk.upper), "of any attack, proven"))
        rows.append(("accountant", self.accountant, str(self.schedule.adjacency)))
        return html_table([*rows, ("mechanism", all_in_words(self.rest), self.not_scaled)])

    def _only_round(self, name: str) -> Round:
        distinct = list(self.rest.distinct())
        if len(distinct) != 1 or not isinstance(distinct[0], Round):
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
    adjacency: Adjacency | AdjacencyName | None = None,
    accountant: AccountantName = DEFAULT_ACCOUNTANT,
    solve: Unknown = "noise",
    advantage: float | None = None,
    tpr: float | None = None,
    fpr: float | None = None,
    fixed: Schedule | Release | None = None,
) -> Calibration:
    """Find the missing part of a schedule that meets a budget, or a limit of attack risk.

    Args:
        epsilon: the target. With solve="delta", the epsilon at which delta is computed.
        delta: in (0, 1). With `advantage` or `tpr`, only sets the delta at which epsilon is
            reported. Defaults to 1e-5.
        schedule: a schedule to scale the noise of by one factor. Replaces the parts below. With
            solve="rounds" it is one step, which is repeated as a whole.
        noise_multiplier, rounds, sampling_rate, sampling, adjacency: the parts of a constant
            schedule, all but the one solved for. For solve="sampling_rate", ``sampling`` may be a
            `Uniform` scheme: its cohort is solved for, among its clients. Default: Poisson.
        accountant: name of the accountant whose upper bound must meet the target.
        solve: "noise", "rounds", "sampling_rate", "epsilon" or "delta".
        advantage: instead of epsilon, the largest TPR - FPR that an attack may reach, in (0, 1).
        tpr, fpr: instead of epsilon, the largest true positive rate that an attack with this false
            positive rate may reach, 0 < fpr < tpr < 1.
        fixed: a schedule that runs before, as it is: what is spent, or decided. It counts, and only
            the rest is solved for.
    Returns:
        The calibration. Noise and rate are within 1e-6 (relative) of the accountant's optimum, or
            about 3e-4 where it plays a game, on the safe side. Rounds and cohort size are the
            largest possible.
    Raises:
        InvalidParameter: an argument is missing, contradicts another or is out of range.
        NotConverged: no value in range meets the target, or the fixed part alone misses it.
        Unsupported: the accountant knows no bound for such rounds.
    """
    before = NOTHING if fixed is None else as_schedule(fixed)
    validate.one_of("solve", solve, "solve", SOLVE_FOR)
    engine = find_accountant(accountant)
    parts: RoundParts = {
        "noise_multiplier": noise_multiplier,
        "rounds": rounds,
        "sampling_rate": sampling_rate,
        "sampling": sampling,
        "adjacency": adjacency,
    }
    unknown = "noise_multiplier" if solve == "noise" else solve
    given = {**parts, "epsilon": epsilon, "delta": delta}[unknown]
    if given is not None and given is not NOT_GIVEN:
        hint = "Drop it, or solve for something else."
        raise InvalidParameter(unknown, given, "it is the value to solve for", hint)
    limits = {"advantage": advantage, "tpr": tpr, "fpr": fpr}
    if solve in ("epsilon", "delta"):
        for name, limit in limits.items():
            if limit is not None:
                rule = f"a limit of attack risk leaves no {solve} to solve for"
                hint = "dpacct.risk has the risk of a schedule."
                raise InvalidParameter(name, limit, rule, hint)
        rest = build_schedule(schedule, **parts)
        plan = before + rest
        if solve == "epsilon":
            at = validate.delta(delta)
            spent = engine.epsilon(plan, at)
            return Calibration(solve, plan, accountant, at, spent, None, fixed=before, rest=rest)
        budget = validate.epsilon(epsilon)
        spent = engine.delta(plan, budget).upper
        at = Interval(0.0, budget)
        return Calibration(solve, plan, accountant, spent, at, None, fixed=before, rest=rest)

    goal = find_goal(engine, epsilon=epsilon, delta=delta, fixed=before, **limits)
    at = DEFAULT_DELTA if delta is None else validate.delta(delta)
    rest, factor = _solve(solve, goal, schedule, parts)
    reached, plan = goal.measure(rest), before + rest
    by_epsilon = isinstance(goal, EpsilonGoal)
    return Calibration(
        solve,
        plan,
        accountant,
        at,
        reached if by_epsilon else engine.epsilon(plan, at),
        goal.target,
        factor,
        goal.name,
        None if by_epsilon else reached,
        fixed=before,
        rest=rest,
    )


def _solve(
    solve: str, goal: Goal, schedule: Schedule | None, parts: RoundParts
) -> tuple[Schedule, float]:
    """Return the schedule that meets the goal, and the factor on the noise of a given one."""
    if solve == "noise":
        if schedule is None:
            parts = {**parts, "noise_multiplier": 1.0}
        unit = _at_least_one_round(build_schedule(schedule, **parts))
        factor = noise_factor(goal, unit)
        return unit.scale_noise(factor), 1.0 if schedule is None else factor
    if solve == "rounds":
        if schedule is None:
            parts = {**parts, "rounds": 1}
        step = _at_least_one_round(build_schedule(schedule, **parts))
        what = "one round alone" if step.rounds == 1 else "one step alone"
        most = validate.MAX_ROUNDS // step.rounds
        return largest_number(goal, lambda n: n * step, most, what) * step, 1.0
    if schedule is not None:
        rule = "a schedule fixes the rate; its noise and its repetitions can be solved for"
        raise InvalidParameter("solve", solve, rule)
    return _solve_rate(goal, parts), 1.0


def _at_least_one_round(schedule: Schedule) -> Schedule:
    if not schedule.rounds:
        rule = "a schedule with at least one round is needed to solve for noise or rounds"
        raise InvalidParameter("schedule", "empty", rule)
    return schedule


def _solve_rate(goal: Goal, parts: RoundParts) -> Schedule:
    """Return the rounds with the largest rate or cohort that meets the goal."""
    noise = validate.noise_multiplier(parts.get("noise_multiplier"))
    sampling, adjacency = parts.get("sampling"), parts.get("adjacency")
    rounds = validate.rounds(parts.get("rounds"))

    def at_scheme(scheme: Sampling) -> Schedule:
        return rounds * Round(noise, scheme, adjacency)

    if isinstance(sampling, Uniform):
        clients = sampling.num_clients
        alone = f"even one of {clients} clients a round"
        cohort = largest_number(goal, lambda n: at_scheme(Uniform(n, clients)), clients, alone)
        return at_scheme(Uniform(cohort, clients))
    if sampling is None or isinstance(sampling, Poisson):
        kind = sampling or Poisson(1.0)

        def at_rate(scheme: Sampling) -> Schedule:
            # Cohorts that are cut or counted have no rate of 1.
            most = math.nextafter(1.0, 0.0) if kind.num_clients else 1.0
            return at_scheme(replace(kind, sampling_rate=min(scheme.sampling_rate, most)))

        return largest_rate(goal, at_rate)
    raise InvalidParameter("sampling", sampling, "full participation has no rate to solve for")
