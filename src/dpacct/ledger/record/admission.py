"""Saying yes or no: whether a plan is admitted; of a round, what is left, and what would fit."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dpacct import validate
from dpacct.budget import Budget
from dpacct.errors import BudgetExceeded
from dpacct.ledger.record.charged import Charged, proven_epsilon
from dpacct.ledger.record.figures import above, told
from dpacct.ledger.record.plans import PlanRoom
from dpacct.ledger.record.standing import Standing
from dpacct.ledger.record.state import LedgerState
from dpacct.numerics.search import largest_between
from dpacct.renyi.odometer import Mixture, Totals, add, count_fitting
from dpacct.rounds import Full, Poisson, Round, Sampling, Schedule, Uniform


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
        plan: what was asked for.
        cost: its Renyi total.
        room: of all initial plans with this one; None once a round was reserved, when a plan may
            depend on what was released and is charged like rounds that are chosen one by one.
        standing: what the ledger reads, and who holds room; asked for in a refusal.

    Raises:
        BudgetExceeded: it does not fit.
    """
    rounds = plan.schedule.rounds
    if room is None:
        after = mixture.epsilon(add(ledger.charged, cost), ledger.delta)
        if after > budget.epsilon:
            now = standing()
            fewer = _fewer(mixture, budget, ledger, plan.schedule)
            freed = mixture.epsilon(add(ledger.spent, cost), ledger.delta)
            raise BudgetExceeded(
                f"the plan of {rounds} rounds does not fit: {now.reading}. "
                f"{_late(mixture, budget, ledger, after)}{fewer}"
                f"{now.ways(enough=freed <= budget.epsilon)}"
            )
    elif not room.fits:
        alone = proven_epsilon(plan, budget.delta, budget.epsilon)
        now = standing()
        others = " beside the plans that were registered before" if any(ledger.held) else ""
        raise BudgetExceeded(
            f"the plan of {rounds} rounds does not fit{others}: by itself it needs epsilon "
            f"{above(alone)} of {budget.epsilon:.7g} at delta {told(budget.delta)}, and "
            f"{now.reading}. dpacct.calibrate finds the noise with which it fits."
            f"{now.ways(enough=alone <= budget.epsilon)}"
        )


def _late(mixture: Mixture, budget: Budget, ledger: LedgerState, after: float) -> str:
    """By which bound a plan is judged that comes after rounds have run."""
    before = mixture.epsilon(ledger.charged, ledger.delta)
    held = ", what is held for other plans included" if any(ledger.held) else ""
    rest = ""
    if ledger.plan_delta > 0.0:
        rest = (
            f", at the {budget.delta - ledger.plan_delta:.2g} of delta that the first plans leave"
        )
    return (
        f"A plan that is made after rounds have run may depend on them, and is charged by the "
        f"adaptive bound: that is {above(before)}{held}, and would be {above(after)}{rest}."
    )


def _fewer(mixture: Mixture, budget: Budget, ledger: LedgerState, plan: Schedule) -> str:
    """How many of its rounds would fit, where they are all alike."""
    distinct = list(plan.distinct())
    if len(distinct) != 1:
        return ""
    cost = mixture.cost(distinct[0])
    most = count_fitting(mixture, ledger.charged, cost, budget, ledger.delta)
    return f" What fits: {most} such rounds." if most else " Not one such round fits."


_NOISE_TOLERANCE = 1e-3
_MIN_RATE = 1e-9


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a round does not fit.

    Attributes:
        round: what was asked for.
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
        """All of it in words."""
        found = f"the round does not fit: {self._why()}"
        ways: list[str] = []
        if self.more_noise is not None:
            ways.append(f"noise multiplier {self.more_noise.noise_multiplier:.6g} at this rate")
        if self.lower_rate is not None:
            ways.append(f"sampling rate {self.lower_rate.sampling_rate:.4g} at this noise")
        if ways:
            found += f" What fits: {', or '.join(ways)}."
        else:
            found += " No noise and no rate would make it fit."
        return found + self.standing.ways(enough=self.fits_alone)

    def _why(self) -> str:
        held = ", what is held for plans included" if self.held else ""
        needed, spent = above(self.needed), above(self.spent)
        if spent == above(self.standing.upper):
            budget = f"{self.budget.epsilon:.7g} at delta {told(self.budget.delta)}"
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


def refuse(
    mixture: Mixture,
    budget: Budget,
    state: LedgerState,
    charged: Totals,
    round_: Round,
    standing: Standing,
    *,
    held: bool,
) -> RoundRefused:
    """The error for a round that does not fit on top of what is charged.

    Args:
        mixture, budget, state: of the ledger.
        charged: totals without the round.
        round_: what was asked for.
        standing: what the ledger reads, and who holds room.
        held: whether plans are part of the totals.
    """
    delta = state.delta

    def fits(candidate: Round) -> bool:
        total = add(charged, mixture.cost(candidate))
        return mixture.epsilon(total, delta) <= budget.epsilon

    freed = mixture.epsilon(add(state.spent, mixture.cost(round_)), delta)
    return RoundRefused(
        Refusal(
            round_,
            budget,
            mixture.epsilon(charged, delta),
            mixture.epsilon(add(charged, mixture.cost(round_)), delta),
            held,
            state.plan_delta,
            _more_noise(round_, fits),
            _lower_rate(round_, fits),
            standing,
            freed <= budget.epsilon,
        )
    )


def _more_noise(round_: Round, fits: Callable[[Round], bool]) -> Round | None:
    def at(log_noise: float) -> Round:
        noise = min(math.exp(log_noise), validate.NOISE_MULTIPLIER_RANGE[1])
        # Six digits, rounded up: what a person reads and types fits as well.
        digits = 5 - math.floor(math.log10(noise))
        noise = math.ceil(noise * 10.0**digits) / 10.0**digits
        noise = min(max(noise, round_.noise_multiplier), validate.NOISE_MULTIPLIER_RANGE[1])
        return Round(float(f"{noise:.6g}"), round_.sampling, round_.adjacency)

    low = math.log(round_.noise_multiplier)
    high = math.log(validate.NOISE_MULTIPLIER_RANGE[1])
    if not fits(at(high)):
        return None
    while high - low > _NOISE_TOLERANCE:
        middle = (low + high) / 2
        low, high = (low, middle) if fits(at(middle)) else (middle, high)
    return at(high)


def _lower_rate(round_: Round, fits: Callable[[Round], bool]) -> Round | None:
    match round_.sampling:
        case Full():
            return None
        case Poisson(rate):

            def poisson(log_rate: float) -> Round:
                exponent = math.floor(log_rate / math.log(10)) - 3
                kept = math.floor(math.exp(log_rate) / 10.0**exponent)
                # Four digits, rounded down.
                return _with(round_, Poisson(float(f"{kept}e{exponent}")))

            low, high = math.log(min(_MIN_RATE, rate / 2)), math.log(rate)
            if not fits(poisson(low)):
                return None
            while high - low > _NOISE_TOLERANCE:
                middle = (low + high) / 2
                low, high = (middle, high) if fits(poisson(middle)) else (low, middle)
            return poisson(low)
        case Uniform(cohort, clients):
            few = largest_between(
                lambda size: fits(_with(round_, Uniform(size, clients))), 0, cohort
            )
            return _with(round_, Uniform(few, clients)) if few else None


def _with(round_: Round, sampling: Sampling) -> Round:
    return Round(round_.noise_multiplier, sampling, round_.adjacency)
