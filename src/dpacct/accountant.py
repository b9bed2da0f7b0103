"""Accountants, which turn a schedule into its privacy cost, and the functions built on them."""

from __future__ import annotations

from typing import Protocol

from dpacct import validate
from dpacct.budget import Interval, Spent
from dpacct.renyi.closed_form import ClosedFormAccountant
from dpacct.renyi.curve import RenyiAccountant
from dpacct.rounds import (
    NOT_GIVEN,
    AccountantName,
    Adjacency,
    AdjacencyName,
    Round,
    Sampling,
    Schedule,
    build_schedule,
)
from dpacct.tight.accountant import GaussianAccountant, TightAccountant


class Accountant(Protocol):
    """A theory that bounds the privacy cost of schedules. Every upper bound is proven."""

    @property
    def name(self) -> AccountantName:
        """The name on the command line."""
        ...

    def upper_epsilon(self, schedule: Schedule, delta: float) -> float:
        """Return the proven upper bound of epsilon at a valid delta."""
        ...

    def epsilon(self, schedule: Schedule, delta: float) -> Interval:
        """Return the achieved and proven epsilon at a valid delta."""
        ...

    def delta(self, schedule: Schedule, epsilon: float) -> Interval:
        """Return the achieved and proven delta at a valid epsilon."""
        ...


_ALL: tuple[Accountant, ...] = (
    TightAccountant(),
    RenyiAccountant(),
    ClosedFormAccountant(),
    GaussianAccountant(),
    TightAccountant("pairs", "pairs"),
)
ACCOUNTANTS: dict[str, Accountant] = {accountant.name: accountant for accountant in _ALL}
DEFAULT_ACCOUNTANT: AccountantName = "tight"


def find_accountant(name: str) -> Accountant:
    """Return the accountant called ``name``.

    Raises:
        InvalidParameter: no accountant has the name.
    """
    return ACCOUNTANTS[validate.one_of("accountant", name, "an accountant", ACCOUNTANTS)]


def epsilon(
    schedule: Schedule | Round | None = None,
    *,
    delta: float,
    noise_multiplier: float | None = None,
    rounds: int | None = None,
    sampling_rate: float = NOT_GIVEN,
    sampling: Sampling | None = None,
    adjacency: Adjacency | AdjacencyName | None = None,
    accountant: AccountantName = DEFAULT_ACCOUNTANT,
) -> Interval:
    """Return the epsilon that a schedule spends at a given delta.

    Args:
        schedule: a schedule, or else its parts as in `build_schedule`.
        delta: in (0, 1).
        accountant: "tight", "rdp", "closed-form", "gdp" (full participation only) or "pairs".
    Returns:
        Achieved lower and proven upper epsilon.
    Raises:
        InvalidParameter: an argument out of range. Unsupported: the accountant knows no bound.
    """
    plan = build_schedule(schedule, noise_multiplier, rounds, sampling_rate, sampling, adjacency)
    return find_accountant(accountant).epsilon(plan, validate.delta(delta))


def spend(
    schedule: Schedule,
    delta: float,
    accountant: AccountantName = DEFAULT_ACCOUNTANT,
) -> Spent:
    """Return `epsilon` together with the delta."""
    at = validate.delta(delta)
    return Spent.at(at, find_accountant(accountant).epsilon(schedule, at))


def delta(
    schedule: Schedule | Round | None = None,
    *,
    epsilon: float,
    noise_multiplier: float | None = None,
    rounds: int | None = None,
    sampling_rate: float = NOT_GIVEN,
    sampling: Sampling | None = None,
    adjacency: Adjacency | AdjacencyName | None = None,
    accountant: AccountantName = DEFAULT_ACCOUNTANT,
) -> Interval:
    """Return the delta that a schedule spends at a given epsilon >= 0. Arguments as for `epsilon`.

    Delta is the slack: the probability of an outcome may exceed e^epsilon times its probability
    under a neighbor by this much.

    Returns:
        Achieved lower and proven upper delta.
    Raises:
        InvalidParameter: an argument out of range. Unsupported: the accountant knows no bound.
    """
    plan = build_schedule(schedule, noise_multiplier, rounds, sampling_rate, sampling, adjacency)
    return find_accountant(accountant).delta(plan, validate.epsilon(epsilon))
