"""The solver: the factor, whole number or rate at which a goal is just met, on the safe side.

The proven cost falls with the noise and rises with rounds and rate. A quick estimate says where to
look; the search brackets the target by the cost itself and returns the end that meets it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

from dpacct import validate
from dpacct.calibration.goals import Goal, excess
from dpacct.errors import NotConverged, Unsupported
from dpacct.numerics.search import bracket_root, corrected_largest, corrected_root, largest, settle
from dpacct.rounds import Poisson, Sampling, Schedule
from dpacct.tight.composition import merged

# Of the logarithm of what is solved for.
_TOLERANCE = 2e-7
_GUESS_TOLERANCE = 3e-5
_SMALLEST_RATE = 1e-12
# The least distance over which the slope of an estimate is taken.
_LEAST_REACH = 1e-3
# How far an estimate is looked for.
_STRIDE, _STRIDES = 0.25, 16


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
        return excess(quick, unit.scale_noise(math.exp(log_factor)))

    def solve_quick(level: float, start: float) -> float:
        step = max(abs(excess_at(start) - level), 2 * _TOLERANCE)
        ends = (max(least, start - 5.0), min(most, start + 5.0))
        return bracket_root(lambda t: excess_at(t) - level, start, ends, _TOLERANCE, step)[1]

    # The factor that was found, or an ulp or so more: its logarithm is rounded.
    first = min(math.log(_noise_factor(quick, unit)) + 1e-15, most)
    return math.exp(
        corrected_root(
            lambda t: excess(goal, unit.scale_noise(math.exp(t))), solve_quick, excess_at, first
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
            return excess(goal, unit.scale_noise(math.exp(log_factor)))
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
            lambda n: excess(goal, plan_of(n)), lambda n: excess(quick, plan_of(n)), most
        )

    def at(log_inverse: float) -> Schedule:
        return plan_of(min(max(1, round(math.exp(-log_inverse))), most))

    guess = -_refine(goal, at, -2.0, (-math.log(most), 0.0))
    return largest(lambda n: excess(goal, plan_of(n)), most, guess)


def largest_rate(goal: Goal, at_scheme: Callable[[Sampling], Schedule]) -> Schedule:
    """The schedule with the largest Poisson rate that meets the target."""

    def at_rate(log_inverse: float) -> Schedule:
        return at_scheme(Poisson(math.exp(-log_inverse)))

    @cache
    def excess_at(log_inverse: float) -> float:
        return excess(goal, at_rate(log_inverse))

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
