"""Measures of attack risk: the trade-off curve, advantage, posterior, best guess and AUC.

FPR is the probability of a false accusation, TPR that of a true one. f(FPR) = 1 - max TPR is the
trade-off function of f-DP, which `attacks` bounds. `AnyMechanism` bounds the same from a guarantee
alone: all attacks on an (eps, delta)-DP mechanism satisfy, in both directions,

    TPR <= e^eps FPR + delta,        TPR <= 1 - e^-eps (1 - FPR - delta),

and randomized response that reveals everything with probability delta reaches both.

*Area.* Every bound TPR <= e^eps FPR + b is a line above the curve of every attack on [0, 1]. So the
least of some of them bounds the TPR at each FPR, and the area below any lines, each taken in some
part of [0, 1], is at least that of the curve. The choice of lines only affects sharpness. Accusing
of absence instead of presence mirrors the curve and leaves its area.

Source: Dong, Roth, Su 2022 (arXiv:1905.02383), propositions 2.4 and 2.12,
docs/derivations/tradeoff.md.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Unpack

from dpacct import validate
from dpacct.accountant import find_accountant
from dpacct.budget import Interval
from dpacct.numerics.rounding import Numbers, above, below
from dpacct.pairs.dominating import Direction
from dpacct.risk.attacks import LEAST_EPSILON, Attacks, gaussian_mu
from dpacct.rounds import (
    NOT_GIVEN,
    AccountantName,
    Adjacency,
    AdjacencyName,
    Round,
    RoundParts,
    Sampling,
    Schedule,
    build_schedule,
)
from dpacct.tight.accountant import TightAccountant


@dataclass(frozen=True, slots=True)
class AnyMechanism:
    """Any mechanism that is (epsilon, delta)-DP under a symmetric adjacency.

    Every value is exact up to rounding, which goes up: a mechanism reaches it, and none exceeds it.

    Raises:
        InvalidParameter: epsilon below 0, or delta outside (0, 1).
    """

    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "epsilon", validate.epsilon(self.epsilon))
        object.__setattr__(self, "delta", validate.delta(self.delta))

    def advantage(self) -> float:
        """Return the largest TPR - FPR: (e^eps - 1 + 2 delta) / (e^eps + 1)."""
        # tanh(eps / 2) + 2 delta / (e^eps + 1), in which nothing overflows.
        small = math.exp(-self.epsilon)
        gap = math.tanh(self.epsilon / 2) + 2 * self.delta * small / (1 + small)
        return min(1.0, above(gap, 1.0, gap))

    def tpr(self, fpr: float) -> float:
        """Return the largest TPR of all attacks with this FPR in [0, 1].

        Raises:
            InvalidParameter: it is outside.
        """
        rate = validate.probability("fpr", fpr)
        # If e^eps overflows, the first bound says something at an FPR of 0 only.
        grown = rate * math.exp(self.epsilon) if self.epsilon < 700.0 else math.inf if rate else 0.0
        first = grown + self.delta
        second = 1 - math.exp(-self.epsilon) * (1 - rate - self.delta)
        return min(1.0, above(first, first), above(second, 1.0, second))

    def auc(self) -> float:
        """Return the largest AUC: 1 - (1 - delta)^2 / (1 + e^eps), the area below all TPRs."""
        small = math.exp(-self.epsilon)
        rest = (1 - self.delta) ** 2 * small / (1 + small)
        return min(1.0, above(1 - rest, 1.0, rest))

    def guess(self, prior: float) -> float:
        """Return the largest probability of guessing right which of two data sets was used.

        Args:
            prior: the attacker's belief beforehand in one of them, in (0, 1).
        Raises:
            InvalidParameter: it is outside.
        """
        belief = prior_belief(prior)
        rare = min(belief, 1 - belief)
        # The corners of the region of attacks: accuse only if everything is revealed, or err as
        # often either way.
        best = max(1 - rare + rare * self.delta, (1 + self.advantage()) / 2)
        return min(1.0, above(best, 1.0))


RISK_ACCOUNTANT: AccountantName = TightAccountant().name


@dataclass(frozen=True, slots=True)
class TradeoffCurve:
    """The best TPR at each FPR.

    Attributes:
        fpr: false positive rates, increasing.
        tpr: achieved and proven true positive rate at each of them.
        adjacency: the relation of the two data sets that the attacker tells apart.
    """

    fpr: tuple[float, ...]
    tpr: tuple[Interval, ...]
    adjacency: Adjacency

    @property
    def fnr(self) -> tuple[Interval, ...]:
        """f(FPR): the least false negative rate. Here ``lower`` is proven, ``upper`` achieved."""
        return tuple(Interval(1 - tpr.upper, 1 - tpr.lower) for tpr in self.tpr)


def tradeoff(
    schedule: Schedule | Round | None = None,
    *,
    fpr: Numbers | None = None,
    noise_multiplier: float | None = None,
    rounds: int | None = None,
    sampling_rate: float = NOT_GIVEN,
    sampling: Sampling | None = None,
    adjacency: Adjacency | AdjacencyName | None = None,
    accountant: AccountantName = RISK_ACCOUNTANT,
) -> TradeoffCurve:
    """Return the trade-off function of a schedule.

    Args:
        schedule: a schedule, or else its parts as in `build_schedule`.
        fpr: false positive rates in [0, 1]. Default: 0, 1 and 39 between 1e-5 and 1 - 1e-5.
        accountant: the accountant that proves the upper side.
    Returns:
        The curve at the rates in increasing order. An attacker may accuse either data set, and
        the curve has the more successful attack at each rate.
    Error:
        Inside the intervals, relative width about 1e-7 where `tight` composes exactly. With noise
        below 0.5, next to the largest loss of a round, up to 1e-5.
    Raises:
        InvalidParameter: an argument out of range. Unsupported: the accountant knows no bound.
    """
    plan = build_schedule(schedule, noise_multiplier, rounds, sampling_rate, sampling, adjacency)
    rates = default_rates()
    if fpr is not None:
        given = validate.several("fpr", fpr, "false positive rates")
        rates = [validate.probability("fpr", rate) for rate in given]
    attacks = Attacks(plan, find_accountant(accountant))
    ordered = tuple(sorted(set(rates)))
    return TradeoffCurve(ordered, tuple(attacks.tpr(a) for a in ordered), plan.adjacency)


def default_rates() -> list[float]:
    """Return 0, 1, and rates between them with evenly spaced log-odds."""
    top = math.log(1e5)
    inner = [1 / (1 + math.exp(top * (1 - k / 19.5))) for k in range(40)]
    return [0.0, *inner, 1.0]


def advantage(
    schedule: Schedule | Round | None = None,
    *,
    accountant: AccountantName = RISK_ACCOUNTANT,
    **parts: Unpack[RoundParts],
) -> Interval:
    """Return the largest TPR - FPR over all attacks: the total variation distance, delta(0).

    Args:
        schedule: a schedule, or else its parts as in `build_schedule`.
        accountant: the accountant that proves the upper side.
    Raises:
        InvalidParameter: an argument out of range. Unsupported: the accountant knows no bound.
    """
    return Attacks(build_schedule(schedule, **parts), find_accountant(accountant)).advantage()


def true_positive_rate(
    schedule: Schedule | Round | None = None,
    *,
    fpr: float,
    accountant: AccountantName = RISK_ACCOUNTANT,
    **parts: Unpack[RoundParts],
) -> Interval:
    """Return the largest TPR of all attacks with false positive rate ``fpr`` in [0, 1].

    Args and errors: as for `advantage`.
    """
    at = validate.probability("fpr", fpr)
    return Attacks(build_schedule(schedule, **parts), find_accountant(accountant)).tpr(at)


def posterior(
    schedule: Schedule | Round | None = None,
    *,
    prior: float,
    fpr: float,
    accountant: AccountantName = RISK_ACCOUNTANT,
    **parts: Unpack[RoundParts],
) -> Interval:
    """Return the probability that an accusation is right (precision, positive predictive value).

    Args:
        prior: the attacker's belief in its accusation beforehand, in (0, 1).
        fpr: the least probability of a false accusation, in (0, 1]. Rarer accusations can be
            surer: with Gaussian noise no bound below 1 holds for all of them.
    Other arguments and errors: as for `advantage`.
    """
    belief, at = prior_belief(prior), validate.positive_probability("fpr", fpr)
    plan = build_schedule(schedule, **parts)
    return precision(Attacks(plan, find_accountant(accountant)).tpr(at), at, belief)


def best_guess(
    schedule: Schedule | Round | None = None,
    *,
    prior: float,
    accountant: AccountantName = RISK_ACCOUNTANT,
    **parts: Unpack[RoundParts],
) -> Interval:
    """Return the largest probability of guessing right which data set was used.

    max(prior, 1 - prior) is reached without any release. At prior 1/2 it is (1 + advantage) / 2.

    Args:
        prior: the attacker's belief beforehand in one of the data sets, in (0, 1).
    Other arguments and errors: as for `advantage`.
    """
    belief = prior_belief(prior)
    plan = build_schedule(schedule, **parts)
    return guess(Attacks(plan, find_accountant(accountant)), belief)


def prior_belief(value: object) -> float:
    """Return a prior in (0, 1).

    Raises:
        InvalidParameter: it is outside.
    """
    return validate.positive_probability("prior", value, "a prior", below_one=True)


def precision(tpr: Interval, fpr: float, prior: float) -> Interval:
    """Return prior TPR / (prior TPR + (1 - prior) FPR), given the largest TPR at an FPR above 0.

    TPR / FPR falls as FPR grows (the largest TPR is a concave function of it), so the bound also
    holds for attacks with a larger FPR.
    """

    def at(rate: float) -> float:
        return prior * rate / (prior * rate + (1 - prior) * fpr)

    lower, upper = at(tpr.lower), at(tpr.upper)
    return Interval(below(lower, lower), min(1.0, above(upper, upper)))


def guess(attacks: Attacks, prior: float) -> Interval:
    """Return the best guess at a prior in (0, 1), over both data sets that the prior may be about.

    The largest of prior TPR + (1 - prior)(1 - FPR) is max(p, 1 - p) + min(p, 1 - p) delta(eps)
    with eps = |log((1 - p) / p)|.
    """
    rare = min(prior, 1 - prior)
    # Rounded both ways: delta falls as eps grows.
    log_odds = math.log1p(-rare) - math.log(rare)
    near, far = max(0.0, below(log_odds, log_odds, 1.0)), above(log_odds, log_odds, 1.0)
    profile = attacks.profile
    lower = 1 - rare + rare * max(profile.achieved(d, far).lower for d in Direction)
    upper = 1 - rare + rare * max(profile.proven(d, near).upper for d in Direction)
    return Interval.bracket(max(1 - rare, below(lower, 1.0)), min(1.0, above(upper, 1.0)))


# Lines touch the curve of a Gaussian with the same advantage at this number of thresholds, this far
# out.
_LINES, _REACH = 32, 4.0


def largest_auc(
    schedule: Schedule | Round | None = None,
    *,
    accountant: AccountantName = RISK_ACCOUNTANT,
    **parts: Unpack[RoundParts],
) -> float:
    """Return a proven bound of the AUC of every attack, P(member's score > another's).

    Args:
        schedule: a schedule, or else its parts as in `build_schedule`.
        accountant: the accountant that proves it.
    Returns:
        At least 1/2. With full participation the distance to one half exceeds that of
        Phi(mu / sqrt 2) by at most a factor 1.003.
    Raises:
        InvalidParameter: an argument out of range. Unsupported: the accountant knows no bound.
    """
    return accusations(Attacks(build_schedule(schedule, **parts), find_accountant(accountant))).auc


@dataclass(frozen=True, slots=True)
class Accusations:
    """Bounds of all attacks that accuse members of participation.

    Attributes:
        lines: slope and value at FPR 0 of each line, slopes falling. The last one is constant 1.
        advantage: bound of TPR - FPR.
    """

    lines: tuple[tuple[float, float], ...]
    advantage: float

    @property
    def auc(self) -> float:
        """Bound of the AUC: the area below the lines on [0, 1], at least 1/2."""
        total, terms, start = 0.0, 0.0, 0.0
        for number, (slope, value) in enumerate(self.lines):
            end = 1.0
            if number + 1 < len(self.lines):
                following, higher = self.lines[number + 1]
                # Of two lines of one slope the second serves.
                meet = (higher - value) / (slope - following) if slope > following else start
                end = min(1.0, max(start, meet))
            part = (end - start) * (value + slope * (start + end) / 2)
            total += part
            terms += abs(part)
            start = end
        return min(1.0, max(0.5, above(total, terms, *(1.0,) * 4)))

    def tpr(self, fpr: float) -> float:
        """Return a bound of the TPR at an FPR in [0, 1], a few percent above `Attacks.upper_tpr`.

        Raises:
            InvalidParameter: it is outside.
        """
        rate = validate.probability("fpr", fpr)
        at_rate = ((slope * rate + value, value) for slope, value in self.lines)
        least = min(above(line, line, value) for line, value in at_rate)
        most = above(rate + self.advantage, rate, self.advantage)
        return min(1.0, max(rate, min(least, most)))


def accusations(attacks: Attacks) -> Accusations:
    """Return bounds of all attacks on a schedule. Each line costs one delta(eps)."""
    advantage = attacks.upper_advantage()
    mu = gaussian_mu(advantage)
    accusation = attacks.proven(Direction.REMOVE)
    span = mu + 2 * _REACH
    lines: list[tuple[float, float]] = []
    for place in range(_LINES + 1):
        threshold = mu + _REACH - span * place / _LINES
        epsilon = max(mu * threshold - mu * mu / 2, LEAST_EPSILON)
        lines.append((math.exp(epsilon), accusation.bound(0.0, epsilon).upper))
    return Accusations((*lines, (0.0, 1.0)), advantage)
