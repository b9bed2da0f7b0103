"""The noise rules of DP-Fed-LS (theorems 1 and 2) as printed, for reproduction only.

For a share lambda in (0, 1) of epsilon and alpha = 1 + log(1/delta) / ((1 - lambda) epsilon),

    T c q^2 alpha / nu^2 <= lambda epsilon      with c = 3.5, nu = z/2 (theorem 1, fixed size)
                                                or  c = 2, nu = z (theorem 2, Poisson)

gives (epsilon, delta)-DP by the classic conversion, where lemma 3 or 4 holds at alpha. As printed,
alpha is fractional, for which the lemmas are not proven. The proven figure with the same lemmas,
for noise or for the number of rounds, is `calibrate(..., accountant="closed-form")`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from dpacct import validate
from dpacct.errors import Unsupported
from dpacct.numerics.search import minimize_unimodal
from dpacct.renyi.closed_form import LEMMA_3, LEMMA_4, ClosedForm, order_limit
from dpacct.rounds import Full, Poisson, Sampling


@dataclass(frozen=True, slots=True)
class NoiseRule:
    """The noise that a noise rule requires.

    Attributes:
        noise_multiplier: z, std of the noise on the sum / clip norm.
        order: alpha.
        share: lambda, the part of epsilon spent on the Renyi divergence.
        lemma: the closed form behind it.
    """

    noise_multiplier: float
    order: float
    share: float
    lemma: str


def _lemma(sampling: Sampling) -> tuple[ClosedForm, float]:
    """Return the closed form, and z / nu: 2 where a client is replaced, 1 where it is removed."""
    if isinstance(sampling, Full):
        raise Unsupported("theorems 1 and 2 are about sampled rounds; use the accountant gdp")
    return (LEMMA_4, 1.0) if isinstance(sampling, Poisson) else (LEMMA_3, 2.0)


def _rule_at(
    order: float, epsilon: float, delta: float, rounds: int, sampling: Sampling
) -> NoiseRule:
    lemma, per_shift = _lemma(sampling)
    share = 1 + math.log(delta) / ((order - 1) * epsilon)
    q = sampling.sampling_rate
    nu = q * math.sqrt(rounds * lemma.coefficient * order / (share * epsilon))
    return NoiseRule(per_shift * nu, order, share, lemma.name)


def _violations(rule: NoiseRule, sampling: Sampling) -> tuple[str, ...]:
    lemma, per_shift = _lemma(sampling)
    nu = rule.noise_multiplier / per_shift
    return lemma.violations(rule.order, sampling.sampling_rate, nu)


def printed_noise(
    epsilon: float, delta: float, rounds: int, sampling: Sampling
) -> NoiseRule | tuple[str, ...]:
    """Return noise by theorem 1 or 2 as printed, lambda over a continuum, for reproduction only.

    Returns:
        The smallest noise that meets the conditions, or the conditions violated at the order that
        comes closest. NOT a guarantee: its order is fractional, where the lemma is unproven.
    Raises:
        InvalidParameter: an argument out of range. Unsupported: full participation.
    """
    epsilon, delta = validate.target_epsilon(epsilon), validate.delta(delta)
    rounds = validate.rounds(rounds)
    least = 1 - math.log(delta) / epsilon

    def rule(excess: float) -> NoiseRule:
        return _rule_at(least + excess, epsilon, delta, rounds, sampling)

    def holds(excess: float) -> bool:
        return not _violations(rule(excess), sampling)

    # z as a function of the order falls, then rises. The conditions hold on an interval of orders.
    def minimum(function: Callable[[float], float]) -> float:
        ends = (math.log(1e-9 * least), math.log(1e9 * least))
        return math.exp(
            minimize_unimodal(lambda t: function(math.exp(t)), math.log(least), ends, 1e-9)
        )

    lowest = minimum(lambda excess: rule(excess).noise_multiplier)
    if holds(lowest):
        return rule(lowest)

    def shortfall(excess: float) -> float:
        asked = rule(excess)
        nu = asked.noise_multiplier / _lemma(sampling)[1]
        return asked.order - 1 - order_limit(asked.order, sampling.sampling_rate, nu)

    easiest = minimum(shortfall)
    if not holds(easiest):
        return _violations(rule(easiest), sampling)
    good, bad = easiest, lowest
    while abs(bad - good) > 1e-12 * good:
        middle = (good + bad) / 2
        good, bad = (middle, bad) if holds(middle) else (good, middle)
    return rule(good)
