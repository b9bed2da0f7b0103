"""The best attacker's success, in people out of a thousand.

Rule: every figure is a proven bound, rounded up, and at most a thousand.
"""

from __future__ import annotations

import math
from fractions import Fraction
from functools import lru_cache

from dpacct.accountant import ACCOUNTANTS
from dpacct.budget import Interval
from dpacct.errors import NotConverged, Unsupported
from dpacct.outputs import AtRate, Posterior, Risks
from dpacct.risk.attacks import Attacks
from dpacct.risk.measures import AnyMechanism, guess, precision
from dpacct.rounds import Schedule

FPRS = (0.001, 0.01, 0.1)
# The shares of suspects who are members.
PRIORS = (0.5, 0.01)
EVEN = 0.5
# More kinds of rounds take seconds. The bound by epsilon and delta alone is used then.
MOST_KINDS = 300


def _at(fpr: float, tpr: float) -> AtRate:
    bound = Interval(0.0, tpr)
    rights = (Posterior(prior, precision(bound, fpr, prior).upper) for prior in PRIORS)
    return AtRate(fpr, tpr, tuple(rights))


def risks_of_promise(epsilon: float, delta: float) -> Risks:
    """Return bounds that hold for every mechanism with this epsilon and delta.

    Args:
        epsilon: proven and finite. delta: in (0, 1).
    """
    mechanism = AnyMechanism(epsilon, delta)
    rates = tuple(_at(fpr, mechanism.tpr(fpr)) for fpr in FPRS)
    return Risks(EVEN, mechanism.guess(EVEN), rates)


@lru_cache(maxsize=64)
def risks_of_rounds(schedule: Schedule, accountant: str) -> Risks | None:
    """Return bounds for rounds that were fixed in advance, or None if there are none.

    Args:
        schedule: at least one round.
        accountant: that proves the bounds.
    """
    if not 0 < len(schedule.distinct()) <= MOST_KINDS:
        return None
    try:
        attacks = Attacks(schedule, ACCOUNTANTS[accountant])
        rates = tuple(_at(fpr, attacks.upper_tpr(fpr)) for fpr in FPRS)
        return Risks(EVEN, guess(attacks, EVEN).upper, rates)
    except (NotConverged, Unsupported):
        return None


def of_thousand(share: float) -> str:
    """Return a computed share as people out of a thousand, rounded up. Below ten with a tenth."""
    return _people(1000 * Fraction(share))


def chosen_of_thousand(share: float) -> str:
    """Return a chosen share, such as a rate, as the decimal that it is."""
    return _people(1000 * Fraction(repr(share)))


def _people(people: Fraction) -> str:
    if people < 10:
        whole, tenth = divmod(math.ceil(10 * people), 10)
        return f"{whole}.{tenth}" if tenth else str(whole)
    return f"{min(1000, math.ceil(people)):,}"
