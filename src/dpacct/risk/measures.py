"""What an attacker can do: advantage, true positive rate, belief, best guess.

The attacker knows everything but which of two neighboring data sets was used (was this client
there? which of these two clients was it?), sees every release, and has unlimited computation.
Every bound holds for all neighboring data sets and for all attacks, so also for weaker attackers.
It is a statement about the draw of cohorts and noise: over many trainings, not about one model.

Source: Dong, Roth, Su 2022 (arXiv:1905.02383); Kulynych et al. 2024 (arXiv:2407.02191) for
calibration to risk; docs/derivations/tradeoff.md.
"""

from __future__ import annotations

import math
from typing import Unpack

from dpacct import validate
from dpacct.accountant import find_accountant
from dpacct.budget import Interval
from dpacct.numerics.rounding import above, below
from dpacct.pairs.dominating import Direction
from dpacct.risk.attacks import Attacks
from dpacct.risk.tradeoff import RISK_ACCOUNTANT
from dpacct.rounds import Round, Schedule
from dpacct.schedules.build import Setting, build_schedule


def advantage(
    schedule: Schedule | Round | None = None,
    *,
    accountant: str = RISK_ACCOUNTANT,
    **parts: Unpack[Setting],
) -> Interval:
    """The largest TPR - FPR over all attacks; the total variation distance, delta(0).

    Args:
        schedule: a schedule, or else its parts as in `build_schedule`.
        accountant: which theory proves the upper side.
    Raises:
        InvalidParameter: an argument out of range. Unsupported: the accountant knows no bound.
    """
    return Attacks(build_schedule(schedule, **parts), find_accountant(accountant)).advantage()


def true_positive_rate(
    schedule: Schedule | Round | None = None,
    *,
    fpr: float,
    accountant: str = RISK_ACCOUNTANT,
    **parts: Unpack[Setting],
) -> Interval:
    """The largest TPR of all attacks with false positive rate ``fpr`` in [0, 1].

    Args and errors: as for `advantage`.
    """
    at = validate.probability("fpr", fpr)
    return Attacks(build_schedule(schedule, **parts), find_accountant(accountant)).tpr(at)


def posterior(
    schedule: Schedule | Round | None = None,
    *,
    prior: float,
    fpr: float,
    accountant: str = RISK_ACCOUNTANT,
    **parts: Unpack[Setting],
) -> Interval:
    """The probability that an accusation is right (precision, positive predictive value).

    Args:
        prior: the attacker's belief beforehand in what it accuses of, in (0, 1).
        fpr: the attack accuses wrongly with at least this probability, in (0, 1]. Rarer
            accusations can be surer: with Gaussian noise no bound below 1 holds for all of them.
    Other arguments and errors: as for `advantage`.
    """
    belief, at = prior_belief(prior), validate.positive_probability("fpr", fpr)
    plan = build_schedule(schedule, **parts)
    return precision(Attacks(plan, find_accountant(accountant)).tpr(at), at, belief)


def best_guess(
    schedule: Schedule | Round | None = None,
    *,
    prior: float,
    accountant: str = RISK_ACCOUNTANT,
    **parts: Unpack[Setting],
) -> Interval:
    """The largest probability of guessing right which data set was used.

    max(prior, 1 - prior) is reached without any release. At prior 1/2 it is (1 + advantage) / 2.

    Args:
        prior: the attacker's belief beforehand in one of the data sets, in (0, 1).
    Other arguments and errors: as for `advantage`.
    """
    belief = prior_belief(prior)
    plan = build_schedule(schedule, **parts)
    return guess(Attacks(plan, find_accountant(accountant)), belief)


def prior_belief(value: object) -> float:
    """A prior in (0, 1).

    Raises:
        InvalidParameter: it is outside.
    """
    return validate.positive_probability("prior", value, "a prior", below_one=True)


def precision(tpr: Interval, fpr: float, prior: float) -> Interval:
    """prior TPR / (prior TPR + (1 - prior) FPR), given the largest TPR at an FPR above 0.

    TPR / FPR falls as FPR grows (the largest TPR is a concave function of it), so the bound also
    holds for attacks with a larger FPR.
    """

    def at(rate: float) -> float:
        return prior * rate / (prior * rate + (1 - prior) * fpr)

    lower, upper = at(tpr.lower), at(tpr.upper)
    return Interval(below(lower, lower), min(1.0, above(upper, upper)))


def guess(attacks: Attacks, prior: float) -> Interval:
    """The best guess at a prior in (0, 1), over both data sets that the prior may be about.

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
