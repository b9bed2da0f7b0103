"""Reject a round or a plan, and name the bound, the remaining budget, and a round that fits.

Rule 1: a rejection states the reading that `dpacct ledger show` prints first, which holds for every
rule of stopping. If another bound decides, it gives that bound and the reason.
Rule 2: if runs hold room for planned rounds, they are named, with the ways to free it.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeVar

from dpacct import validate
from dpacct.budget import Budget
from dpacct.display import chosen, line, trimmed, up
from dpacct.errors import BudgetExceeded
from dpacct.ledger.readings import Snapshot
from dpacct.ledger.record.events import noise_of, with_noise
from dpacct.ledger.record.plans import Plan, proven_epsilon
from dpacct.numerics.search import largest_between
from dpacct.renyi.odometer import Totals, add, count_fitting, subtract
from dpacct.rounds import Full, Poisson, Round, Sampling, Uniform
from dpacct.rounds import Release as ScheduleItem

Item = TypeVar("Item", bound=ScheduleItem)

_NAMED = 3
_LOG_TOLERANCE = 1e-3
_MIN_RATE = 1e-9


def above(value: float | None) -> str:
    """Return a proven bound for display, rounded up."""
    return "none (infinite)" if value is None else trimmed(up(value))


def _reading(now: Snapshot, upper: float) -> str:
    budget = f"{now.budget.epsilon:.7g} at delta {chosen(now.budget.delta)}"
    return f"the ledger reads epsilon {above(upper)} of {budget} now"


def _adaptive(now: Snapshot, before: float, after: float, what: str, held: str) -> str:
    """Return the adaptive bound before and after a round or plan, and its delta."""
    at = ""
    if now.state.plan_delta:
        left = now.budget.delta - now.state.plan_delta
        at = f" Both are at delta {left:.2g}: the earlier plans use the rest of the budget's delta."
    with_it = f"would be {above(after)} with this {what}"
    return f"The adaptive bound{held} is epsilon {above(before)} now and {with_it}.{at}"


def _ways_out(now: Snapshot, *, enough: bool) -> str:
    """Return the runs that hold room, and two ways out. ``enough``: they would help."""
    holders = [run for run in now.runs() if any(now.run_state(run).held)]
    if not holders:
        return ""
    named = [
        f"run {run} ({line(now.start(run).name)!r}, "
        f"{plan.rounds - now.run_state(run).cursor} rounds)"
        for run in holders
        if (plan := now.plan(run)) is not None
    ]
    if len(named) > _NAMED:
        named[_NAMED:] = [f"{len(named) - _NAMED} more"]
    file = shlex.quote(str(now.path))
    less = "" if enough else ", which would not be enough here"
    return (
        f" Room for rounds to come is held by {', '.join(named)}: "
        f"`dpacct ledger finish {file} --run {holders[0]}` frees it{less}, and "
        f"`dpacct train --resume --ledger {file}` goes on with it."
    )


def plan_refused(now: Snapshot, plan: Plan, cost: Totals) -> BudgetExceeded:
    """Return the error for a plan, with its Renyi total, that does not fit."""
    budget, ledger, mixture = now.budget, now.state, now.mixture
    start, reading = f"the plan of {plan.rounds} rounds does not fit", _reading(now, now.any_stop())
    held = any(ledger.held)
    if not ledger.started:
        alone = proven_epsilon(plan, budget.delta, budget.epsilon)
        return BudgetExceeded(
            f"{start}{' with the plans that were registered before' if held else ''}: alone "
            f"it needs epsilon {above(alone)} of {budget.epsilon:.7g} at delta "
            f"{chosen(budget.delta)}, and {reading}. dpacct.calibrate finds the noise with "
            f"which it fits.{_ways_out(now, enough=alone <= budget.epsilon)}"
        )
    before = mixture.epsilon(ledger.charged, ledger.delta)
    after = mixture.epsilon(add(ledger.charged, cost), ledger.delta)
    enough = mixture.epsilon(add(ledger.spent, cost), ledger.delta) <= budget.epsilon
    with_held = ", with the room held for other plans," if held else ""
    fewer, kinds = "", list(plan.schedule.distinct())
    if len(kinds) == 1:
        each = mixture.cost(kinds[0])
        most = count_fitting(mixture, ledger.charged, each, budget, ledger.delta)
        fewer = f" What fits: {most} such rounds." if most else " Not one such round fits."
    return BudgetExceeded(
        f"{start}: {reading}. A plan that is made after rounds have run may depend on them, "
        f"and is charged by the adaptive bound. "
        f"{_adaptive(now, before, after, 'plan', with_held)}{fewer}{_ways_out(now, enough=enough)}"
    )


def part_refused(now: Snapshot, part: str, item: ScheduleItem) -> BudgetExceeded:
    """Return the error for a release about a part of the data that does not fit."""
    return BudgetExceeded(
        f"the release {item!r} about {part} does not fit: with all releases about this part, the "
        f"adaptive bound would exceed epsilon {now.budget.epsilon:.7g} at delta "
        f"{chosen(now.budget.delta)}. The largest part of each partition counts."
    )


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a round does not fit.

    Attributes:
        round: the round that was asked for.
        budget: of the ledger.
        spent: epsilon before it, rounds that are held for plans included.
        needed: epsilon after it, infinite if no bound is left.
        more_noise: a round of the same sampling that fits, with little more noise than needed, or
            None.
        lower_rate: a round of the same noise with nearly the highest rate that fits, or None.
    """

    round: ScheduleItem
    budget: Budget
    spent: float
    needed: float
    more_noise: ScheduleItem | None
    lower_rate: Round | None


class RoundRefused(BudgetExceeded):
    """The error for a round that does not fit. ``refusal`` holds the numbers."""

    def __init__(self, sentence: str, refusal: Refusal) -> None:
        self.refusal = refusal
        super().__init__(sentence)


def round_refused(now: Snapshot, run: int, round_: ScheduleItem) -> RoundRefused:
    """Return the error for a round of a run that does not fit."""
    ledger, budget, own = now.state, now.budget, now.run_state(run).held
    base = subtract(ledger.charged, own)

    def epsilon(totals: Totals, *more: ScheduleItem) -> float:
        return now.mixture.epsilon(add(totals, *map(now.mixture.cost, more)), ledger.delta)

    def fits(candidate: ScheduleItem) -> bool:
        return epsilon(base, candidate) <= budget.epsilon

    noise = _more_noise(round_, fits)
    rate = _lower_rate(round_, fits) if isinstance(round_, Round) else None
    refusal = Refusal(round_, budget, epsilon(base), epsilon(base, round_), noise, rate)
    ways: list[str] = []
    if noise is not None:
        ways.append(f"noise multiplier {noise_of(noise):.6g} at this rate")
    if rate is not None:
        ways.append(f"sampling rate {rate.sampling_rate:.4g} at this noise")
    found = f"What fits: {', or '.join(ways)}." if ways else "No noise and no rate makes it fit."
    upper = now.any_stop()
    why = f"{_reading(now, upper)}."
    if above(refusal.spent) == above(upper):
        why += f" With this round it would read {above(refusal.needed)}."
    else:
        held = ", with the room held for plans," if any(subtract(ledger.held, own)) else ""
        why += (
            f" A round outside the plans that were made first is judged by the adaptive bound, "
            f"which holds however the round was chosen. "
            f"{_adaptive(now, refusal.spent, refusal.needed, 'round', held)}"
        )
        if ledger.plan_delta:
            why += " Rounds with at least a plan's noise and at most its rate still run."
    ways_out = _ways_out(now, enough=epsilon(ledger.spent, round_) <= budget.epsilon)
    return RoundRefused(f"the round does not fit: {why} {found}{ways_out}", refusal)


def _more_noise(round_: ScheduleItem, fits: Callable[[ScheduleItem], bool]) -> ScheduleItem | None:
    """Return the round with the least noise that fits: six digits, rounded up."""
    most, least = validate.NOISE_MULTIPLIER_RANGE[1], getattr(round_, "noise_multiplier", None)
    if least is None:
        return None

    def at(log_noise: float) -> ScheduleItem:
        noise = min(math.exp(log_noise), most)
        digits = 5 - math.floor(math.log10(noise))
        noise = math.ceil(noise * 10.0**digits) / 10.0**digits
        noise = min(max(noise, least), most)
        return with_noise(round_, float(f"{noise:.6g}"))

    return _nearest(at, fits, math.log(least), math.log(most))


def _lower_rate(round_: Round, fits: Callable[[ScheduleItem], bool]) -> Round | None:
    """Return the round with the highest rate that fits: four digits, rounded down."""

    def at(sampling: Sampling) -> Round:
        return Round(round_.noise_multiplier, sampling, round_.adjacency)

    def poisson(log_rate: float) -> Round:
        exponent = math.floor(log_rate / math.log(10)) - 3
        kept = math.floor(math.exp(log_rate) / 10.0**exponent)
        return at(replace(plain, sampling_rate=float(f"{kept}e{exponent}")))

    match round_.sampling:
        case Full():
            return None
        case Poisson(rate) as plain:
            return _nearest(poisson, fits, math.log(rate), math.log(min(_MIN_RATE, rate / 2)))
        case Uniform(cohort, clients):
            few = largest_between(lambda size: fits(at(Uniform(size, clients))), 0, cohort)
            return at(Uniform(few, clients)) if few else None


def _nearest(
    at: Callable[[float], Item], fits: Callable[[ScheduleItem], bool], near: float, far: float
) -> Item | None:
    """Return the round nearest to ``near`` that fits, or None if not even the farthest fits."""
    if not fits(at(far)):
        return None
    while abs(far - near) > _LOG_TOLERANCE:
        middle = (near + far) / 2
        near, far = (near, middle) if fits(at(middle)) else (middle, far)
    return at(far)
