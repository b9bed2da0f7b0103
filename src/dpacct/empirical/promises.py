"""What a schedule promises at many epsilons at once, as guesses are tested against it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dpacct.accountant import find_accountant
from dpacct.numerics.rounding import Array
from dpacct.pairs.dominating import Direction
from dpacct.risk.attacks import PrivacyProfile
from dpacct.rounds import Schedule

# Where a promise is written down: from 0 to the epsilon at this delta.
_LEAST_DELTA = 1e-9


@dataclass(frozen=True, slots=True, eq=False)
class Promise:
    """(eps, delta) pairs that a run keeps all together, whichever data set comes first.

    Attributes:
        epsilons, deltas: float64 [k].
    """

    epsilons: Array
    deltas: Array

    @classmethod
    def of(cls, schedule: Schedule, accountant: str = "tight", points: int = 24) -> Promise:
        """The proven deltas of a schedule at evenly spaced epsilons.

        Args:
            schedule: what runs. accountant: that proves them.
            points: how many; fewer promise less, which no test against them gets wrong.
        Raises:
            Unsupported: the accountant knows no bound.
        """
        judge = find_accountant(accountant)
        largest = judge.epsilon(schedule, _LEAST_DELTA).upper
        epsilons = np.linspace(0.0, largest, points) if np.isfinite(largest) else np.zeros(1)
        profile = PrivacyProfile(schedule, judge)
        deltas = [max(profile.proven(way, eps).upper for way in Direction) for eps in epsilons]
        return cls(epsilons, np.minimum(deltas, 1.0))
