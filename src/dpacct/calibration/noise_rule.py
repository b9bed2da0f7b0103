"""The noise rules of DP-Fed-LS, theorems 1 and 2: the theorem's own optimum, and its true epsilon.

For a share lambda in (0, 1) of epsilon and alpha = 1 + log(1/delta) / ((1 - lambda) epsilon),

    T c q^2 alpha / nu^2 <= lambda epsilon      with c = 3.5, nu = z/2 (theorem 1, fixed size)
                                                or  c = 2, nu = z (theorem 2, Poisson)

gives (epsilon, delta)-DP by the classic conversion, if lemma 3 or 4 of `renyi.closed_form` holds at
alpha. The rule takes the lambda with the least noise. It has no answer where no lambda meets the
conditions. The publication proves the lemmas at integer alpha only, and uses others:
docs/derivations/closed-forms.md has the proof at every alpha.

The accountant `closed-form` uses the same lemmas with the improved conversion: it needs less noise.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dpacct import validate
from dpacct.accountant import DEFAULT_ACCOUNTANT, epsilon
from dpacct.budget import Interval
from dpacct.errors import Unsupported
from dpacct.numerics.search import minimize_unimodal
from dpacct.renyi.closed_form import LEMMA_3, LEMMA_4, order_limit
from dpacct.rounds import Adjacency, Full, Poisson, Round, Sampling, Schedule


@dataclass(frozen=True, slots=True)
class NoiseRule:
    """The noise that a theorem requires for a budget.

    Attributes:
        theorem: "theorem 1" (fixed-size cohorts, replace-one) or "theorem 2" (Poisson, add-remove).
        noise_multiplier: z, std of the noise on the sum / clip norm.
        order: alpha.
        share: lambda, the part of epsilon spent on the Renyi divergence.
        schedule: the rounds with this noise.
        delta: the delta of the budget.
    """

    theorem: str
    noise_multiplier: float
    order: float
    share: float
    schedule: Schedule
    delta: float

    def epsilon(self) -> Interval:
        """Return the achieved and the proven epsilon at this noise, by `tight`."""
        return epsilon(self.schedule, delta=self.delta, accountant=DEFAULT_ACCOUNTANT)


def noise_rule(epsilon: float, delta: float, rounds: int, sampling: Sampling) -> NoiseRule:
    """Return the least noise that theorem 1 or 2 of DP-Fed-LS gives, over all real lambda.

    Args:
        epsilon, delta: the budget.
        rounds: T, their number.
        sampling: `Uniform` (theorem 1, one client replaced) or `Poisson` (theorem 2, one client
            added or removed).
    Error:
        Proven: any lambda that meets the conditions gives a valid noise. The search ends within
        1e-9 of the least one, above it.
    Raises:
        InvalidParameter: an argument out of range.
        Unsupported: no lambda meets the conditions, which are named, or full participation.
    Source: Liang et al. 2023 (DP-Fed-LS, theorems 1 and 2), docs/derivations/closed-forms.md.
    """
    epsilon, delta = validate.target_epsilon(epsilon), validate.delta(delta)
    rounds = validate.rounds(rounds)
    if isinstance(sampling, Full) or sampling.sampling_rate == 1.0:
        raise Unsupported("theorems 1 and 2 are about sampled rounds; use the accountant gdp")
    # Replacing a client moves the sum by two clip norms.
    theorem, lemma, norms, adjacency = (
        ("theorem 2", LEMMA_4, 1.0, Adjacency.ADD_REMOVE)
        if isinstance(sampling, Poisson)
        else ("theorem 1", LEMMA_3, 2.0, Adjacency.REPLACE_ONE)
    )
    # alpha - 1 as lambda goes to 0. The search is for how much larger it is, the excess.
    rate, least = sampling.sampling_rate, -math.log(delta) / epsilon

    def at(excess: float) -> tuple[float, float, float]:
        """Return alpha, lambda and nu."""
        order, share = 1 + least + excess, excess / (least + excess)
        nu = rate * math.sqrt(rounds * lemma.coefficient * order / (share * epsilon))
        return order, share, nu

    def violations(excess: float) -> tuple[str, ...]:
        order, _, nu = at(excess)
        return lemma.violations(order, rate, nu)

    def shortfall(excess: float) -> float:
        order, _, nu = at(excess)
        return order - 1 - order_limit(order, rate, nu)

    def minimum(function: Callable[[float], float]) -> float:
        start = math.log(1 + least)
        ends = (math.log(1e-9) + start, math.log(1e9) + start)
        return math.exp(minimize_unimodal(lambda t: function(math.exp(t)), start, ends, 1e-9))

    # nu as a function of alpha falls, then rises. The conditions hold on an interval of alpha.
    best = bad = minimum(lambda excess: at(excess)[2])
    if violations(bad):
        best = minimum(shortfall)
        if violations(best):
            why = "; ".join(violations(best))
            raise Unsupported(
                f"{theorem} of DP-Fed-LS has no noise for epsilon {epsilon:g}: at its easiest "
                f"lambda, {why}. The accountant tight covers this budget"
            )
        while abs(bad - best) > 1e-12 * best:
            middle = (best + bad) / 2
            best, bad = (best, middle) if violations(middle) else (middle, bad)
    order, share, nu = at(best)
    # Rounded up: the formula is correct to a few units of the last digit.
    noise = nu * norms * (1 + 1e-14)
    schedule = rounds * Round(noise, sampling, adjacency)
    return NoiseRule(theorem, noise, order, share, schedule, delta)
