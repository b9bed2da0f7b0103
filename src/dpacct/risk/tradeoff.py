"""The trade-off function of a schedule: how often an attack succeeds, given how often it errs.

FPR is the probability of accusing wrongly, TPR that of accusing rightly; f(FPR) = 1 - max TPR is
the trade-off function of f-DP. How it is bounded is in `attacks`.

Source: Dong, Roth, Su 2022 (arXiv:1905.02383), propositions 2.4 and 2.12;
docs/derivations/tradeoff.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from dpacct import validate
from dpacct.accountant import find_accountant
from dpacct.budget import Interval
from dpacct.risk.attacks import Attacks
from dpacct.rounds import Adjacency, Round, Sampling, Schedule
from dpacct.schedules.build import NOT_GIVEN, build_schedule
from dpacct.tight.accountant import TightAccountant

RISK_ACCOUNTANT = TightAccountant().name


@dataclass(frozen=True, slots=True)
class TradeoffCurve:
    """The best TPR at each FPR.

    Attributes:
        fpr: false positive rates, increasing.
        tpr: achieved and proven true positive rate at each of them.
        adjacency: which two data sets the attacker tells apart.
    """

    fpr: tuple[float, ...]
    tpr: tuple[Interval, ...]
    adjacency: Adjacency

    @property
    def fnr(self) -> tuple[Interval, ...]:
        """f(FPR): the least false negative rate; here ``lower`` is proven, ``upper`` achieved."""
        return tuple(Interval(1 - tpr.upper, 1 - tpr.lower) for tpr in self.tpr)


def tradeoff(
    schedule: Schedule | Round | None = None,
    *,
    fpr: Iterable[float] | None = None,
    noise_multiplier: float | None = None,
    rounds: int | None = None,
    sampling_rate: float = NOT_GIVEN,
    sampling: Sampling | None = None,
    adjacency: Adjacency | str | None = None,
    accountant: str = RISK_ACCOUNTANT,
) -> TradeoffCurve:
    """The trade-off function of a schedule.

    Args:
        schedule: a schedule, or else its parts as in `build_schedule`.
        fpr: false positive rates in [0, 1]; default 0, 1 and 39 between 1e-5 and 1 - 1e-5.
        accountant: which theory proves the upper side.
    Returns:
        The curve at the rates in increasing order. An attacker may accuse either data set; at
        each rate the more successful one is reported.
    Error:
        Inside the intervals; relative width about 1e-7 where `tight` composes exactly.
    Raises:
        InvalidParameter: an argument out of range. Unsupported: the accountant knows no bound.
    """
    plan = build_schedule(
        schedule,
        noise_multiplier=noise_multiplier,
        rounds=rounds,
        sampling_rate=sampling_rate,
        sampling=sampling,
        adjacency=adjacency,
    )
    rates = default_rates()
    if fpr is not None:
        given = validate.several("fpr", fpr, "false positive rates")
        rates = [validate.probability("fpr", rate) for rate in given]
    attacks = Attacks(plan, find_accountant(accountant))
    ordered = tuple(sorted(set(rates)))
    return TradeoffCurve(ordered, tuple(attacks.tpr(a) for a in ordered), plan.adjacency)


def default_rates() -> list[float]:
    """0, 1, and rates between whose log-odds are evenly spaced."""
    top = math.log(1e5)
    inner = [1 / (1 + math.exp(top * (1 - k / 19.5))) for k in range(40)]
    return [0.0, *inner, 1.0]
