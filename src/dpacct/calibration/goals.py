"""What a calibration aims at: a cost that falls with the noise, and the value it may reach.

The solver of `calibrate` knows goals only through `Goal`: an epsilon, or the risk of an attack.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace

from dpacct import validate
from dpacct.accountant import Accountant
from dpacct.budget import Interval
from dpacct.errors import InvalidParameter
from dpacct.rounds import Schedule
from dpacct.tight.accountant import TightAccountant
from dpacct.tight.engines import estimate_epsilon

# A cost below this share of the target counts as this share.
_FAR_BELOW = 0.1
# The least positive double.
_LEAST = 5e-324


@dataclass(frozen=True, slots=True)
class Goal(ABC):
    """A quantity that may not exceed ``target``, as an accountant proves it.

    Attributes:
        accountant: what proves it.
        target: the largest value allowed, above 0.
    """

    accountant: Accountant
    target: float

    @property
    @abstractmethod
    def name(self) -> str:
        """What the quantity is called in a sentence: ``epsilon``."""

    @abstractmethod
    def cost(self, schedule: Schedule) -> float:
        """Return the proven upper bound for a schedule; it falls as the noise grows.

        Raises:
            Unsupported: no bound is known for such rounds.
        """

    @abstractmethod
    def measure(self, schedule: Schedule) -> Interval:
        """Return the achieved and the proven value of the quantity."""

    @abstractmethod
    def log_noise(self, rate: float) -> float:
        """Return log of the noise multiplier at which one round at this rate is about on target."""

    def estimate(self, schedule: Schedule) -> float:  # noqa: ARG002 - overridden
        """Return about the cost, quickly; NaN where there is no quick way."""
        return math.nan

    def quick(self, schedule: Schedule) -> Goal | None:
        """Return the same goal by a quicker accountant, whose cost is at least as large.

        None where this accountant is quick for such rounds, whatever their noise.
        """
        if not isinstance(self.accountant, TightAccountant):
            return None
        # Whether a game is played may depend on the noise.
        loud = 1 / min((r.noise_multiplier for r in schedule.distinct()), default=1.0)
        louder = schedule.scale_noise(max(loud, 1.0))
        if not (self.accountant.plays(schedule) or self.accountant.plays(louder)):
            return None
        return replace(self, accountant=self.accountant.of_pairs)

    def excess(self, schedule: Schedule) -> float:
        """Return log of (cost / target): positive exactly where the goal is missed."""
        cost = self.cost(schedule)
        if cost <= self.target:
            # Exactly on target must count as met, whatever the logarithms round to. A cost that
            # drops to nothing at once would lead secants astray.
            least = max(_FAR_BELOW * self.target, _LEAST)
            return min(0.0, math.log(max(cost, least)) - math.log(self.target))
        return max(math.log(cost) - math.log(self.target), 1e-300)


@dataclass(frozen=True, slots=True)
class EpsilonGoal(Goal):
    """The proven epsilon at ``delta`` may not exceed ``target``."""

    delta: float

    @property
    def name(self) -> str:
        """See `Goal`."""
        return "epsilon"

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


# A budget needs none of `risk.attacks`: it is imported where a risk is meant.
@dataclass(frozen=True, slots=True)
class AdvantageGoal(Goal):
    """The proven TPR - FPR of every attack may not exceed ``target``."""

    @property
    def name(self) -> str:
        """See `Goal`."""
        return "advantage"

    def cost(self, schedule: Schedule) -> float:
        """See `Goal`."""
        from dpacct.risk.attacks import Attacks  # noqa: PLC0415

        return Attacks(schedule, self.accountant).upper_advantage()

    def measure(self, schedule: Schedule) -> Interval:
        """See `Goal`."""
        from dpacct.risk.attacks import Attacks  # noqa: PLC0415

        return Attacks(schedule, self.accountant).advantage()

    def log_noise(self, rate: float) -> float:
        """See `Goal`; a round that is sampled has at most ``rate`` times the advantage."""
        from dpacct.risk.attacks import gaussian_mu  # noqa: PLC0415

        return -math.log(gaussian_mu(self.target / rate))


@dataclass(frozen=True, slots=True)
class TruePositiveGoal(Goal):
    """The proven TPR of every attack with false positive rate ``fpr`` may not exceed ``target``."""

    fpr: float

    @property
    def name(self) -> str:
        """See `Goal`."""
        return f"TPR at FPR {self.fpr:g}"

    def cost(self, schedule: Schedule) -> float:
        """See `Goal`."""
        from dpacct.risk.attacks import Attacks  # noqa: PLC0415

        return Attacks(schedule, self.accountant).upper_tpr(self.fpr)

    def measure(self, schedule: Schedule) -> Interval:
        """See `Goal`."""
        from dpacct.risk.attacks import Attacks  # noqa: PLC0415

        return Attacks(schedule, self.accountant).tpr(self.fpr)

    def log_noise(self, rate: float) -> float:
        """See `Goal`; one sampled round has at most ``rate`` times the gain over the FPR."""
        from dpacct.risk.attacks import normal_quantile  # noqa: PLC0415

        alone = min(self.fpr + (self.target - self.fpr) / rate, 1 - 1e-9)
        mu = normal_quantile(alone) - normal_quantile(self.fpr)
        return -math.log(max(mu, 1e-9))


def find_goal(
    accountant: Accountant,
    *,
    epsilon: float | None,
    delta: float | None,
    advantage: float | None = None,
    tpr: float | None = None,
    fpr: float | None = None,
) -> Goal:
    """Return the one goal that is meant: a budget, an advantage, or a TPR at an FPR.

    Raises:
        InvalidParameter: none is, or several are; a value out of range; a TPR that guessing has.
    """
    targets = {"epsilon": epsilon, "advantage": advantage, "tpr": tpr}
    given = [name for name, value in targets.items() if value is not None]
    if len(given) > 1:
        rule = f"{given[0]} is given too, and a calibration has one target"
        raise InvalidParameter(given[1], targets[given[1]], rule, "Drop one of them.")
    if tpr is None and fpr is not None:
        raise InvalidParameter("fpr", fpr, "it belongs to a target for tpr, and there is none")
    if advantage is not None:
        noun = "a target for the advantage"
        value = validate.positive_probability("advantage", advantage, noun, below_one=True)
        return AdvantageGoal(accountant, value)
    if tpr is None:
        return EpsilonGoal(accountant, validate.target_epsilon(epsilon), validate.delta(delta))
    at = validate.positive_probability("fpr", fpr, "a false positive rate", below_one=True)
    noun = "a target for the true positive rate"
    value = validate.positive_probability("tpr", tpr, noun, below_one=True)
    if value <= at:
        rule = f"accusing at random reaches {at:g} already, so a target lies in ({at:g}, 1)"
        raise InvalidParameter("tpr", tpr, rule)
    return TruePositiveGoal(accountant, value, at)
