"""Rejecting a round or a plan: by which bound, what is left, and what would fit.

Rule 1: a rejection states the reading that `dpacct ledger show` prints first, which holds for every
rule of stopping. If another bound decides, it says which, and why.
Rule 2: if runs hold room for planned rounds, they are named, with the ways to free it.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from dpacct import validate
from dpacct.budget import Budget
from dpacct.display import chosen, line, trimmed, up
from dpacct.errors import BudgetExceeded
from dpacct.ledger.record.plans import Plan, proven_epsilon
from dpacct.ledger.record.state import LedgerState
from dpacct.numerics.search import largest_between
from dpacct.renyi.odometer import Mixture, Totals, add, count_fitting, subtract
from dpacct.rounds import Full, Poisson, Round, Sampling, Uniform

_NAMED = 3
_LOG_TOLERANCE = 1e-3
_MIN_RATE = 1e-9


def above(value: float | None) -> str:
    """Return a proven bound for display, rounded up."""
    return "none (infinite)" if value is None else trimmed(up(value))


class Standing(NamedTuple):
    """The state of a ledger that rejects a round or a plan.

    Attributes:
        path, budget, mixture, state: of the ledger.
        upper: proven epsilon of all runs, for every rule of stopping.
        holders: number, name and planned rounds to come of each run that holds room.
    """

    path: Path
    budget: Budget
    mixture: Mixture
    state: LedgerState
    upper: float
    holders: list[tuple[int, str, int]]

    @property
    def reading(self) -> str:
        """The reading of the ledger, in words."""
        return (
            f"the ledger reads epsilon {above(self.upper)} of {self.budget.epsilon:.7g} at delta "
            f"{chosen(self.budget.delta)} now"
        )

    def rest_of_delta(self, plans: str) -> str:
        """Return the delta of the adaptive bound, in words; empty if it is the whole budget's."""
        left = self.budget.delta - self.state.plan_delta
        return f", at the {left:.2g} of delta that {plans} leave" if self.state.plan_delta else ""

    def ways_out(self, *, enough: bool) -> str:
        """Return which runs hold room, and two ways out; empty if no run does.

        Args:
            enough: the round or plan would fit if nothing were held.
        """
        if not self.holders:
            return ""
        named = [f"run {n} ({line(name)!r}, {rounds} rounds)" for n, name, rounds in self.holders]
        if len(named) > _NAMED:
            named[_NAMED:] = [f"{len(named) - _NAMED} more"]
        file = shlex.quote(str(self.path))
        less = "" if enough else ", which would not be enough here"
        return (
            f" Room for rounds to come is held by {', '.join(named)}: "
            f"`dpacct ledger finish {file} --run {self.holders[0][0]}` frees it{less}, and "
            f"`dpacct train --resume --ledger {file}` goes on with it."
        )

    def epsilon(self, base: Totals, more: Totals | None = None) -> float:
        """Return the adaptive bound of totals, with more on top."""
        return self.mixture.epsilon(add(base, more) if more else base, self.state.delta)


def plan_refused(now: Standing, plan: Plan, cost: Totals) -> BudgetExceeded:
    """Return the error for a plan, with its Renyi total, that does not fit."""
    budget, ledger = now.budget, now.state
    start = f"the plan of {plan.rounds} rounds does not fit"
    held = any(ledger.held)
    if not ledger.started:
        alone = proven_epsilon(plan, budget.delta, budget.epsilon)
        return BudgetExceeded(
            f"{start}{' beside the plans that were registered before' if held else ''}: by itself "
            f"it needs epsilon {above(alone)} of {budget.epsilon:.7g} at delta "
            f"{chosen(budget.delta)}, and {now.reading}. dpacct.calibrate finds the noise with "
            f"which it fits.{now.ways_out(enough=alone <= budget.epsilon)}"
        )
    fewer, kinds = "", list(plan.schedule.distinct())
    if len(kinds) == 1:
        each = now.mixture.cost(kinds[0])
        most = count_fitting(now.mixture, ledger.charged, each, budget, ledger.delta)
        fewer = f" What fits: {most} such rounds." if most else " Not one such round fits."
    enough = now.epsilon(ledger.spent, cost) <= budget.epsilon
    return BudgetExceeded(
        f"{start}: {now.reading}. A plan that is made after rounds have run may depend on them, "
        f"and is charged by the adaptive bound: that is {above(now.epsilon(ledger.charged))}"
        f"{', what is held for other plans included' if held else ''}, and would be "
        f"{above(now.epsilon(ledger.charged, cost))}{now.rest_of_delta('the first plans')}."
        f"{fewer}{now.ways_out(enough=enough)}"
    )


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a round does not fit.

    Attributes:
        round: the round that was asked for.
        budget: of the ledger.
        spent: epsilon before it, rounds that are held for plans included.
        needed: epsilon after it; infinite if no bound is left.
        more_noise: a round of the same sampling that fits, with little more noise than needed; None
            if there is none.
        lower_rate: a round of the same noise with nearly the highest rate that fits; None likewise.
    """

    round: Round
    budget: Budget
    spent: float
    needed: float
    more_noise: Round | None
    lower_rate: Round | None


class RoundRefused(BudgetExceeded):
    """A round does not fit; ``refusal`` holds the numbers."""

    def __init__(self, sentence: str, refusal: Refusal) -> None:
        self.refusal = refusal
        super().__init__(sentence)


def round_refused(now: Standing, round_: Round, own: Totals) -> RoundRefused:
    """Return the error for a round that does not fit, of a run that holds ``own`` for its plan."""
    base = subtract(now.state.charged, own)

    def needs(candidate: Round) -> float:
        return now.epsilon(base, now.mixture.cost(candidate))

    def fits(candidate: Round) -> bool:
        return needs(candidate) <= now.budget.epsilon

    noise, rate = _more_noise(round_, fits), _lower_rate(round_, fits)
    refusal = Refusal(round_, now.budget, now.epsilon(base), needs(round_), noise, rate)
    ways: list[str] = []
    if noise is not None:
        ways.append(f"noise multiplier {noise.noise_multiplier:.6g} at this rate")
    if rate is not None:
        ways.append(f"sampling rate {rate.sampling_rate:.4g} at this noise")
    found = f"What fits: {', or '.join(ways)}." if ways else "No noise and no rate makes it fit."
    enough = now.epsilon(now.state.spent, now.mixture.cost(round_)) <= now.budget.epsilon
    held = any(subtract(now.state.held, own))
    return RoundRefused(
        f"the round does not fit: {_why(now, refusal, held=held)} {found}"
        f"{now.ways_out(enough=enough)}",
        refusal,
    )


def _why(now: Standing, refusal: Refusal, *, held: bool) -> str:
    needed, spent = above(refusal.needed), above(refusal.spent)
    if spent == above(now.upper):
        budget = f"{now.budget.epsilon:.7g} at delta {chosen(now.budget.delta)}"
        return f"epsilon would be {needed} of {budget}, and is {spent} now."
    rest, covered = now.rest_of_delta("those plans"), ""
    if rest:
        covered = " Rounds with at least a plan's noise and at most its rate still run."
    return (
        f"{now.reading}. A round outside the plans that were made first is judged by "
        f"the adaptive bound, which holds however the round was chosen: that is {spent}"
        f"{', what is held for plans included' if held else ''}, "
        f"and would be {needed}{rest}.{covered}"
    )


def _more_noise(round_: Round, fits: Callable[[Round], bool]) -> Round | None:
    """Return the round with the least noise that fits: six digits, rounded up."""
    most = validate.NOISE_MULTIPLIER_RANGE[1]

    def at(log_noise: float) -> Round:
        noise = min(math.exp(log_noise), most)
        digits = 5 - math.floor(math.log10(noise))
        noise = math.ceil(noise * 10.0**digits) / 10.0**digits
        noise = min(max(noise, round_.noise_multiplier), most)
        return Round(float(f"{noise:.6g}"), round_.sampling, round_.adjacency)

    return _nearest(at, fits, math.log(round_.noise_multiplier), math.log(most))


def _lower_rate(round_: Round, fits: Callable[[Round], bool]) -> Round | None:
    """Return the round with the highest rate that fits: four digits, rounded down."""

    def at(sampling: Sampling) -> Round:
        return Round(round_.noise_multiplier, sampling, round_.adjacency)

    def poisson(log_rate: float) -> Round:
        exponent = math.floor(log_rate / math.log(10)) - 3
        kept = math.floor(math.exp(log_rate) / 10.0**exponent)
        return at(Poisson(float(f"{kept}e{exponent}")))

    match round_.sampling:
        case Full():
            return None
        case Poisson(rate):
            return _nearest(poisson, fits, math.log(rate), math.log(min(_MIN_RATE, rate / 2)))
        case Uniform(cohort, clients):
            few = largest_between(lambda size: fits(at(Uniform(size, clients))), 0, cohort)
            return at(Uniform(few, clients)) if few else None


def _nearest(
    at: Callable[[float], Round], fits: Callable[[Round], bool], near: float, far: float
) -> Round | None:
    """Return the round nearest to ``near`` that fits; None if not even the farthest fits."""
    if not fits(at(far)):
        return None
    while abs(far - near) > _LOG_TOLERANCE:
        middle = (near + far) / 2
        near, far = (near, middle) if fits(at(middle)) else (middle, far)
    return at(far)
