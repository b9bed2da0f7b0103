"""What an attacker can at most find out, in people out of a thousand.

Rule 1: every figure is a proven bound, rounded up, and none says more than all of a thousand.
Rule 2: what the procedure allows is told beside what its promise alone allows, which is more.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

from dpacct.accountant import ACCOUNTANTS
from dpacct.budget import Interval
from dpacct.errors import NotConverged, Unsupported
from dpacct.risk.attacks import Attacks
from dpacct.risk.guarantee import AnyMechanism
from dpacct.risk.measures import guess, precision
from dpacct.rounds import Schedule

FPRS = (0.001, 0.01, 0.1)
# Half of those who are suspected, or one of a hundred of them, took part.
PRIORS = (0.5, 0.01)
EVEN = 0.5
# With more kinds of rounds attacks take seconds, and the promise has to do.
MOST_KINDS = 300
_KEPT = 64


@dataclass(frozen=True, slots=True)
class AtRate:
    """The best attack that accuses wrongly with probability ``fpr``.

    Attributes:
        fpr: how often somebody is accused who was not there.
        tpr: bound on how often somebody is who was.
        right: bound on how often an accusation is right, at each of `PRIORS`.
    """

    fpr: float
    tpr: float
    right: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Risks:
    """Bounds on all attacks.

    Attributes:
        guess: on being right about one person of whom nothing is known beforehand.
        rates: at `FPRS`.
    """

    guess: float
    rates: tuple[AtRate, ...]

    def to_json(self) -> dict[str, Any]:
        """As the JSON of a report has it."""
        return {
            "prior": EVEN,
            "best_guess": self.guess,
            "rates": [
                {
                    "fpr": row.fpr,
                    "tpr": row.tpr,
                    "posteriors": [
                        {"prior": prior, "posterior": right}
                        for prior, right in zip(PRIORS, row.right, strict=True)
                    ],
                }
                for row in self.rates
            ],
        }


def _at(fpr: float, tpr: float) -> AtRate:
    bound = Interval(0.0, tpr)
    return AtRate(fpr, tpr, tuple(precision(bound, fpr, prior).upper for prior in PRIORS))


def risks_of_promise(epsilon: float, delta: float) -> Risks:
    """What anything that keeps a promise allows, whatever it computes.

    Args:
        epsilon: proven, finite. delta: in (0, 1).
    """
    whoever = AnyMechanism(epsilon, delta)
    return Risks(whoever.guess(EVEN), tuple(_at(fpr, whoever.tpr(fpr)) for fpr in FPRS))


@lru_cache(maxsize=_KEPT)
def risks_of_rounds(schedule: Schedule, accountant: str) -> Risks | None:
    """What rounds allow, all of which were fixed in advance; None where that is not known here.

    Args:
        schedule: at least one round.
        accountant: the one that proves it.
    """
    if not 0 < len(schedule.distinct()) <= MOST_KINDS:
        return None
    try:
        attacks = Attacks(schedule, ACCOUNTANTS[accountant])
        rates = tuple(_at(fpr, attacks.upper_tpr(fpr)) for fpr in FPRS)
        return Risks(guess(attacks, EVEN).upper, rates)
    except (NotConverged, Unsupported):
        return None


def of_thousand(share: float) -> str:
    """A share that was computed as people out of a thousand, rounded up; below ten with a tenth."""
    return _people(1000 * Fraction(share))


def chosen_of_thousand(share: float) -> str:
    """A share that was chosen, as the decimal that it is."""
    return _people(1000 * Fraction(repr(share)))


def _people(people: Fraction) -> str:
    if people < 10:
        whole, tenth = divmod(math.ceil(10 * people), 10)
        return f"{whole}.{tenth}" if tenth else str(whole)
    return f"{min(1000, math.ceil(people)):,}"
