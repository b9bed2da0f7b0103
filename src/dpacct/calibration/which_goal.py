"""Which goal is meant: a budget, or a limit of attack risk, of which there is one."""

from __future__ import annotations

from dpacct import validate
from dpacct.accountant import Accountant
from dpacct.budget import DEFAULT_DELTA
from dpacct.calibration.goals import EpsilonGoal, Goal
from dpacct.errors import InvalidParameter


def reported_delta(delta: float | None) -> float:
    """The delta at which epsilon is told beside a risk.

    Raises:
        InvalidParameter: it is outside (0, 1).
    """
    return DEFAULT_DELTA if delta is None else validate.delta(delta)


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
    accountant: Accountant,
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
    if advantage is None and tpr is None:
        return EpsilonGoal(accountant, validate.target_epsilon(epsilon), validate.delta(delta))
    from dpacct.calibration.risk_goals import find_risk_goal  # noqa: PLC0415 - a budget needs none

    return find_risk_goal(accountant, advantage=advantage, tpr=tpr, fpr=fpr)
