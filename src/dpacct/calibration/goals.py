"""What a calibration aims at: a cost that falls with the noise, and the value it may reach.

The solver of `calibrate` knows goals only through `Goal`: an epsilon, or the risk of an attack.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Protocol

from dpacct.accountant import Accountant
from dpacct.budget import Interval
from dpacct.rounds import Schedule
from dpacct.tight.accountant import TightAccountant
from dpacct.tight.engines import estimate_epsilon

# A cost below this share of the target counts as this share.
_FAR_BELOW = 0.1
# The least positive double.
_LEAST = 5e-324


class Goal(Protocol):
    """A quantity that may not exceed ``target``."""

    @property
    def name(self) -> str:
        """What the quantity is called in a sentence: ``epsilon``."""
        ...

    @property
    def target(self) -> float:
        """The largest value allowed, above 0."""
        ...

    def cost(self, schedule: Schedule) -> float:
        """The proven upper bound of the quantity for a schedule; falls as its noise grows.

        Raises:
            Unsupported: no bound is known for such rounds.
        """
        ...

    def measure(self, schedule: Schedule) -> Interval:
        """Achieved and proven value of the quantity."""
        ...

    def log_noise(self, rate: float) -> float:
        """log of the noise multiplier at which one round at this rate is about on target."""
        ...

    def estimate(self, schedule: Schedule) -> float:
        """About the cost, quickly; NaN where there is no quick way."""
        ...

    def quick(self, schedule: Schedule) -> Goal | None:
        """The same goal by a quicker accountant, whose cost is at least as large.

        None where this one is quick for such rounds, whatever their noise.
        """
        ...


@dataclass(frozen=True, slots=True)
class EpsilonGoal:
    """The proven epsilon at ``delta`` may not exceed ``target``."""

    accountant: Accountant
    target: float
    delta: float
    name: str = "epsilon"

    def cost(self, schedule: Schedule) -> float:
        """See `Goal`."""
        return self.accountant.upper_epsilon(schedule, self.delta)

    def measure(self, schedule: Schedule) -> Interval:
        """See `Goal`."""
        return self.accountant.epsilon(schedule, self.delta)

    def log_noise(self, rate: float) -> float:
        """See `Goal`; one unsampled round at the epsilon that sampling amplifies to the target.

        epsilon = rho + 2 sqrt(rho log(1 / delta)) with rho = 1 / (2 z^2) (zCDP), solved for z.
        """
        cost = -math.log(self.delta)
        log_odds = self.target + math.log(-math.expm1(-self.target)) - math.log(rate)
        epsilon = log_odds if log_odds > 30.0 else math.log1p(math.exp(log_odds))
        # The least targets underflow in products.
        log_epsilon = math.log(max(epsilon, self.target))
        return math.log((math.sqrt(cost + epsilon) + math.sqrt(cost)) / math.sqrt(2)) - log_epsilon

    def estimate(self, schedule: Schedule) -> float:
        """See `Goal`."""
        return estimate_epsilon(schedule, self.delta, self.target)

    def quick(self, schedule: Schedule) -> Goal | None:
        """See `Goal`."""
        accountant = quick_accountant(self.accountant, schedule)
        return None if accountant is None else replace(self, accountant=accountant)


def quick_accountant(accountant: Accountant, schedule: Schedule) -> Accountant | None:
    """An accountant that is quicker than this one on such rounds and never smaller; or None."""
    if not isinstance(accountant, TightAccountant):
        return None
    # Whether a game is played may depend on the noise.
    loud = 1 / min((r.noise_multiplier for r in schedule.distinct()), default=1.0)
    plays = accountant.plays(schedule) or accountant.plays(schedule.scale_noise(max(loud, 1.0)))
    return accountant.of_pairs if plays else None


def excess(goal: Goal, schedule: Schedule) -> float:
    """log of (cost / target): positive exactly where the goal is missed."""
    cost = goal.cost(schedule)
    if cost <= goal.target:
        # Exactly on target must count as met, whatever the logarithms round to. A cost that drops
        # to nothing at once would lead secants astray.
        least = max(_FAR_BELOW * goal.target, _LEAST)
        return min(0.0, math.log(max(cost, least)) - math.log(goal.target))
    return max(math.log(cost) - math.log(goal.target), 1e-300)
