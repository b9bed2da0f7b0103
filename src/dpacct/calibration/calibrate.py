"""Solve for the noise, the rounds, the rate, epsilon or delta of a schedule, on the safe side.

The proven epsilon falls with the noise and rises with rounds and rate. The solver brackets the
target by itself and returns the end of the bracket at which the *upper* bound meets it.
"""

from __future__ import annotations

from collections.abc import Callable

from dpacct import validate
from dpacct.accountant import DEFAULT_ACCOUNTANT, find_accountant
from dpacct.budget import Interval
from dpacct.calibration.answer import Calibration
from dpacct.calibration.goals import EpsilonGoal, Goal, excess
from dpacct.calibration.solve import largest_number, largest_rate, noise_factor
from dpacct.calibration.which_goal import find_goal, refuse_risk, reported_delta
from dpacct.errors import InvalidParameter, NotConverged
from dpacct.rounds import Adjacency, Poisson, Round, Sampling, Schedule, Uniform
from dpacct.schedules.build import NOT_GIVEN, Setting, build_schedule, find_sampling

SOLVE_FOR = ("noise", "rounds", "sampling_rate", "epsilon", "delta")


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
    chosen = find_accountant(accountant, gap)
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
        refuse_risk(solve, advantage=advantage, tpr=tpr, fpr=fpr)
    if solve == "epsilon":
        plan, at = build_schedule(schedule, **parts), validate.delta(delta)
        return Calibration(solve, plan, accountant, at, chosen.epsilon(plan, at), None)
    if solve == "delta":
        plan, budget = build_schedule(schedule, **parts), validate.epsilon(epsilon)
        spent = chosen.delta(plan, budget).upper
        return Calibration(solve, plan, accountant, spent, Interval(0.0, budget), None)

    goal = find_goal(chosen, epsilon=epsilon, delta=delta, advantage=advantage, tpr=tpr, fpr=fpr)
    at = goal.delta if isinstance(goal, EpsilonGoal) else reported_delta(delta)
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
    spent = chosen.epsilon(plan, at)
    return Calibration(solve, plan, accountant, at, spent, goal.target, factor, goal.name, reached)


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
    if excess(goal, 1 * round_) > 0:
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

    if excess(goal, at_cohort(1)) > 0:
        raise NotConverged(
            f"even one of {num_clients} clients a round costs {goal.name} above {goal.target:g}"
        )
    return at_cohort(largest_number(goal, at_cohort, num_clients))
