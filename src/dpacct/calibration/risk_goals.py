"""Calibration to a limit of attack risk: the goals `AdvantageGoal` and `TruePositiveGoal`."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dpacct import validate
from dpacct.accountant import Accountant
from dpacct.budget import Interval
from dpacct.calibration.goals import Goal, quick_accountant
from dpacct.errors import InvalidParameter
from dpacct.risk.attacks import Attacks, gaussian_mu, normal_quantile
from dpacct.rounds import Schedule


@dataclass(frozen=True, slots=True)
class AdvantageGoal:
    """The proven TPR - FPR of every attack may not exceed ``target``."""

    accountant: Accountant
    target: float
    name: str = "advantage"

    def cost(self, schedule: Schedule) -> float:
        """See `Goal`."""
        return Attacks(schedule, self.accountant).upper_advantage()

    def measure(self, schedule: Schedule) -> Interval:
        """See `Goal`."""
        return Attacks(schedule, self.accountant).advantage()

    def log_noise(self, rate: float) -> float:
        """See `Goal`; a round that is sampled has at most ``rate`` times the advantage."""
        return -math.log(gaussian_mu(self.target / rate))

    def estimate(self, schedule: Schedule) -> float:  # noqa: ARG002 - the protocol asks for it
        """See `Goal`."""
        return math.nan

    def quick(self, schedule: Schedule) -> Goal | None:
        """See `Goal`."""
        accountant = quick_accountant(self.accountant, schedule)
        return None if accountant is None else replace(self, accountant=accountant)


@dataclass(frozen=True, slots=True)
class TruePositiveGoal:
    """The proven TPR of every attack with false positive rate ``fpr`` may not exceed ``target``."""

    accountant: Accountant
    target: float
    fpr: float

    @property
    def name(self) -> str:
        """See `Goal`."""
        return f"TPR at FPR {self.fpr:g}"

    def cost(self, schedule: Schedule) -> float:
        """See `Goal`."""
        return Attacks(schedule, self.accountant).upper_tpr(self.fpr)

    def measure(self, schedule: Schedule) -> Interval:
        """See `Goal`."""
        return Attacks(schedule, self.accountant).tpr(self.fpr)

    def log_noise(self, rate: float) -> float:
        """See `Goal`; one sampled round has at most ``rate`` times the gain over the FPR."""
        alone = min(self.fpr + (self.target - self.fpr) / rate, 1 - 1e-9)
        mu = normal_quantile(alone) - normal_quantile(self.fpr)
        return -math.log(max(mu, 1e-9))

    def estimate(self, schedule: Schedule) -> float:  # noqa: ARG002 - the protocol asks for it
        """See `Goal`."""
        return math.nan

    def quick(self, schedule: Schedule) -> Goal | None:
        """See `Goal`."""
        accountant = quick_accountant(self.accountant, schedule)
        return None if accountant is None else replace(self, accountant=accountant)


def find_risk_goal(
    accountant: Accountant, *, advantage: float | None, tpr: float | None, fpr: float | None
) -> Goal:
    """The goal for an advantage, or for a TPR at an FPR.

    Raises:
        InvalidParameter: a value out of range; a TPR that guessing has.
    """
    if advantage is not None:
        noun = "a target for the advantage"
        value = validate.positive_probability("advantage", advantage, noun, below_one=True)
        return AdvantageGoal(accountant, value)
    at = validate.positive_probability("fpr", fpr, "a false positive rate", below_one=True)
    noun = "a target for the true positive rate"
    value = validate.positive_probability("tpr", tpr, noun, below_one=True)
    if value <= at:
        rule = f"accusing at random reaches {at:g} already, so a target lies in ({at:g}, 1)"
        raise InvalidParameter("tpr", tpr, rule)
    return TruePositiveGoal(accountant, value, at)
