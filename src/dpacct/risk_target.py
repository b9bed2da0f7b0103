"""Attack risks as goals of a calibration, and which goal the arguments of `calibrate` mean."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from dpacct import validate
from dpacct.accountant import Accountant
from dpacct.attacks import Attacks, gaussian_mu, normal_quantile
from dpacct.budget import Interval
from dpacct.errors import InvalidParameter
from dpacct.goals import EpsilonGoal, Goal, quick_judge
from dpacct.rounds import Schedule

# The delta at which epsilon is told beside a risk, where none is given.
REPORTED_DELTA = 1e-5


@dataclass(frozen=True, slots=True)
class AdvantageGoal:
    """The proven TPR - FPR of every attack may not exceed ``target``."""

    judge: Accountant
    target: float
    name: str = "advantage"

    def cost(self, schedule: Schedule) -> float:
        """See `Goal`."""
        return Attacks(schedule, self.judge).upper_advantage()

    def measure(self, schedule: Schedule) -> Interval:
        """See `Goal`."""
        return Attacks(schedule, self.judge).advantage()

    def log_noise(self, rate: float) -> float:
        """See `Goal`; a round that is sampled has at most ``rate`` times the advantage."""
        return -math.log(gaussian_mu(self.target / rate))

    def estimate(self, schedule: Schedule) -> float:  # noqa: ARG002 - the protocol asks for it
        """See `Goal`."""
        return math.nan

    def quick(self, schedule: Schedule) -> Goal | None:
        """See `Goal`."""
        judge = quick_judge(self.judge, schedule)
        return None if judge is None else replace(self, judge=judge)


@dataclass(frozen=True, slots=True)
class TruePositiveGoal:
    """The proven TPR of every attack with false positive rate ``fpr`` may not exceed ``target``."""

    judge: Accountant
    target: float
    fpr: float

    @property
    def name(self) -> str:
        """See `Goal`."""
        return f"TPR at FPR {self.fpr:g}"

    def cost(self, schedule: Schedule) -> float:
        """See `Goal`."""
        return Attacks(schedule, self.judge).upper_tpr(self.fpr)

    def measure(self, schedule: Schedule) -> Interval:
        """See `Goal`."""
        return Attacks(schedule, self.judge).tpr(self.fpr)

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
        judge = quick_judge(self.judge, schedule)
        return None if judge is None else replace(self, judge=judge)


def reported_delta(delta: float | None) -> float:
    """The delta at which epsilon is told beside a risk.

    Raises:
        InvalidParameter: it is outside (0, 1).
    """
    return REPORTED_DELTA if delta is None else validate.delta(delta)


def refuse_risk(
    solve: str, *, advantage: float | None, tpr: float | None, fpr: float | None
) -> None:
    """Refuse a limit of attack risk where epsilon or delta is solved for.

    Raises:
        InvalidParameter: there is one.
    """
    for name, value in {"advantage": advantage, "tpr": tpr, "fpr": fpr}.items():
        if value is not None:
            rule = f"a limit of attack risk leaves no {solve} to solve for"
            raise InvalidParameter(name, value, rule, "dpacct.risk tells the risk of a schedule.")


def find_goal(
    judge: Accountant,
    *,
    epsilon: float | None,
    delta: float | None,
    advantage: float | None = None,
    tpr: float | None = None,
    fpr: float | None = None,
) -> Goal:
    """The one goal that is meant.

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
        return AdvantageGoal(judge, value)
    if tpr is None:
        return EpsilonGoal(judge, validate.target_epsilon(epsilon), validate.delta(delta))
    at = validate.positive_probability("fpr", fpr, "a false positive rate", below_one=True)
    noun = "a target for the true positive rate"
    value = validate.positive_probability("tpr", tpr, noun, below_one=True)
    if value <= at:
        rule = f"accusing at random reaches {at:g} already, so a target lies in ({at:g}, 1)"
        raise InvalidParameter("tpr", tpr, rule)
    return TruePositiveGoal(judge, value, at)
