"""Saying no to a round or a plan: by which bound, what is left, and what would fit.

Rule 1: a refusal states the reading that `dpacct ledger show` prints first, which holds whatever
decided how many rounds ran. If another bound decides, it says which, and why.
Rule 2: room that a run holds is named with the run, and with the ways to free it.
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
from dpacct.ledger.record.entries import LedgerState
from dpacct.ledger.record.plans import Charged, PlanRoom, proven_epsilon
from dpacct.numerics.search import largest_between
from dpacct.renyi.odometer import Mixture, Totals, add, count_fitting
from dpacct.rounds import Full, Poisson, Round, Sampling, Uniform

_NAMED = 3
_LOG_TOLERANCE = 1e-3
_MIN_RATE = 1e-9


def above(value: float | None) -> str:
    """Return a proven bound for display, rounded up."""
    return "none (infinite)" if value is None else trimmed(up(value))


class Holder(NamedTuple):
    """A run that is not finished, and holds room for rounds to come."""

    run: int
    name: str
    rounds: int


@dataclass(frozen=True, slots=True)
class Standing:
    """The state of a ledger that refuses something.

    Attributes:
        path, budget: of the ledger.
        upper: proven epsilon of all runs, whatever decided how many rounds ran.
        holders: runs that hold room.
    """

    path: Path
    budget: Budget
    upper: float
    holders: tuple[Holder, ...]

    @property
    def reading(self) -> str:
        """The reading of the ledger, in words."""
        return (
            f"the ledger reads epsilon {above(self.upper)} of {self.budget.epsilon:.7g} at delta "
            f"{chosen(self.budget.delta)} now"
        )

    def ways(self, *, enough: bool) -> str:
        """Return who holds room, and both ways out; empty if no run does.

        Args:
            enough: what was refused would fit if nothing were held.
        """
        if not self.holders:
            return ""
        named = [
            f"run {h.run} ({line(h.name)!r}, {h.rounds} rounds)" for h in self.holders[:_NAMED]
        ]
        if len(self.holders) > _NAMED:
            named.append(f"{len(self.holders) - _NAMED} more")
        file = shlex.quote(str(self.path))
        less = "" if enough else ", which would not be enough here"
        return (
            f" Room for rounds to come is held by {', '.join(named)}: "
            f"`dpacct ledger finish {file} --run {self.holders[0].run}` frees it{less}, and "
            f"`dpacct train --resume --ledger {file}` goes on with it."
        )


def admit_plan(
    mixture: Mixture,
    budget: Budget,
    ledger: LedgerState,
    plan: Charged,
    cost: Totals,
    room: PlanRoom | None,
    standing: Callable[[], Standing],
) -> None:
    """Refuse a plan that does not fit.

    Args:
        mixture, budget, ledger: as they are without it.
        plan: the plan that was asked for.
        cost: its Renyi total.
        room: of all initial plans with this one; None once a round was reserved, when a plan may
            depend on what was released and is charged like rounds that are chosen one by one.
        standing: called for a refusal only.
    """
    delta = ledger.delta
    after = math.inf if room else mixture.epsilon(add(ledger.charged, cost), delta)
    if room.fits if room else after <= budget.epsilon:
        return
    now = standing()
    start = f"the plan of {plan.schedule.rounds} rounds does not fit"
    held = any(ledger.held)
    if room is not None:
        alone = proven_epsilon(plan, budget.delta, budget.epsilon)
        raise BudgetExceeded(
            f"{start}{' beside the plans that were registered before' if held else ''}: by itself "
            f"it needs epsilon {above(alone)} of {budget.epsilon:.7g} at delta "
            f"{chosen(budget.delta)}, and {now.reading}. dpacct.calibrate finds the noise with "
            f"which it fits.{now.ways(enough=alone <= budget.epsilon)}"
        )
    before = above(mixture.epsilon(ledger.charged, delta))
    freed = mixture.epsilon(add(ledger.spent, cost), delta)
    rest = fewer = ""
    if ledger.plan_delta > 0.0:
        left = budget.delta - ledger.plan_delta
        rest = f", at the {left:.2g} of delta that the first plans leave"
    kinds = list(plan.schedule.distinct())
    if len(kinds) == 1:
        most = count_fitting(mixture, ledger.charged, mixture.cost(kinds[0]), budget, delta)
        fewer = f" What fits: {most} such rounds." if most else " Not one such round fits."
    raise BudgetExceeded(
        f"{start}: {now.reading}. A plan that is made after rounds have run may depend on them, "
        f"and is charged by the adaptive bound: that is {before}"
        f"{', what is held for other plans included' if held else ''}, and would be "
        f"{above(after)}{rest}.{fewer}{now.ways(enough=freed <= budget.epsilon)}"
    )


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a round does not fit.

    Attributes:
        round: the round that was asked for.
        budget: of the ledger.
        spent: epsilon before it, rounds that are held for plans included.
        needed: epsilon after it; infinite where no bound is left.
        held: whether part of ``spent`` is held for plans.
        plan_delta: what of the budget's delta is set aside for the initial plans.
        more_noise: a round of the same sampling that fits, with little more noise than needed; None
            if there is none.
        lower_rate: one of the same noise with nearly the highest rate that fits; None likewise.
        standing: what the ledger reads, and who holds room.
        fits_alone: it would fit if nothing were held.
    """

    round: Round
    budget: Budget
    spent: float
    needed: float
    held: bool
    plan_delta: float
    more_noise: Round | None
    lower_rate: Round | None
    standing: Standing
    fits_alone: bool

    def sentence(self) -> str:
        """Return all of it in words."""
        ways: list[str] = []
        if self.more_noise is not None:
            ways.append(f"noise multiplier {self.more_noise.noise_multiplier:.6g} at this rate")
        if self.lower_rate is not None:
            ways.append(f"sampling rate {self.lower_rate.sampling_rate:.4g} at this noise")
        found = f"What fits: {', or '.join(ways)}." if ways else ""
        found = found or "No noise and no rate would make it fit."
        why, ways_out = self._why(), self.standing.ways(enough=self.fits_alone)
        return f"the round does not fit: {why} {found}{ways_out}"

    def _why(self) -> str:
        held = ", what is held for plans included" if self.held else ""
        needed, spent = above(self.needed), above(self.spent)
        if spent == above(self.standing.upper):
            budget = f"{self.budget.epsilon:.7g} at delta {chosen(self.budget.delta)}"
            return f"epsilon would be {needed} of {budget}, and is {spent} now."
        rest, covered = "", ""
        if self.plan_delta > 0.0:
            left = self.budget.delta - self.plan_delta
            rest = f", at the {left:.2g} of delta that those plans leave"
            covered = " Rounds with at least a plan's noise and at most its rate still run."
        return (
            f"{self.standing.reading}. A round outside the plans that were made first is judged by "
            f"the adaptive bound, which holds however the round was chosen: that is {spent}{held}, "
            f"and would be {needed}{rest}.{covered}"
        )


class RoundRefused(BudgetExceeded):
    """A round does not fit; ``refusal`` says why and what would."""

    def __init__(self, refusal: Refusal) -> None:
        self.refusal = refusal
        super().__init__(refusal.sentence())


def refuse_round(
    mixture: Mixture,
    state: LedgerState,
    base: Totals,
    round_: Round,
    standing: Standing,
    *,
    held: bool,
) -> RoundRefused:
    """Return the error for a round that does not fit on top of what is charged.

    Args:
        mixture, state: of the ledger.
        base: what is charged without the round and its run's plan.
        round_: the round that was asked for.
        standing: what the ledger reads, and who holds room.
        held: whether plans are part of ``base``.
    """
    budget, delta = standing.budget, state.delta

    def epsilon(totals: Totals, *rounds: Round) -> float:
        return mixture.epsilon(add(totals, *map(mixture.cost, rounds)), delta)

    def fits(candidate: Round) -> bool:
        return epsilon(base, candidate) <= budget.epsilon

    return RoundRefused(
        Refusal(
            round_,
            budget,
            epsilon(base),
            epsilon(base, round_),
            held,
            state.plan_delta,
            _more_noise(round_, fits),
            _lower_rate(round_, fits),
            standing,
            epsilon(state.spent, round_) <= budget.epsilon,
        )
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
    """Return the round nearest to one that does not fit; None if not even the farthest fits."""
    if not fits(at(far)):
        return None
    while abs(far - near) > _LOG_TOLERANCE:
        middle = (near + far) / 2
        near, far = (near, middle) if fits(at(middle)) else (middle, far)
    return at(far)
