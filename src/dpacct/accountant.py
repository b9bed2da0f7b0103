"""Accountants: what a schedule costs. One protocol, and the functions `epsilon` and `delta`."""

from __future__ import annotations

from typing import Protocol

from dpacct import validate
from dpacct.budget import Interval, Spent
from dpacct.errors import InvalidParameter
from dpacct.renyi.closed_form import ClosedFormAccountant
from dpacct.renyi.curve import RenyiAccountant
from dpacct.rounds import Adjacency, Round, Sampling, Schedule
from dpacct.schedules.build import NOT_GIVEN, build_schedule
from dpacct.tight.accountant import GaussianAccountant, TightAccountant, with_gap


class Accountant(Protocol):
    """What turns a schedule into its privacy cost; every upper bound is proven."""

    @property
    def name(self) -> str:
        """How the command line calls it."""
        ...

    def upper_epsilon(self, schedule: Schedule, delta: float) -> float:
        """Proven upper bound of epsilon at a valid delta; what calibration solves for."""
        ...

    def epsilon(self, schedule: Schedule, delta: float) -> Interval:
        """Achieved and proven epsilon at a valid delta."""
        ...

    def delta(self, schedule: Schedule, epsilon: float) -> Interval:
        """Achieved and proven delta at a valid epsilon."""
        ...


_ALL: tuple[Accountant, ...] = (
    TightAccountant(),
    RenyiAccountant(),
    ClosedFormAccountant(),
    GaussianAccountant(),
    TightAccountant("pairs", "pairs"),
)
ACCOUNTANTS: dict[str, Accountant] = {accountant.name: accountant for accountant in _ALL}
DEFAULT_ACCOUNTANT = "tight"


def find_accountant(name: str, gap: float | None = None) -> Accountant:
    """The accountant called ``name``, which may be asked for a narrower bracket.

    Raises:
        InvalidParameter: there is none, or none that a gap means something to.
    """
    if not isinstance(name, str) or name not in ACCOUNTANTS:
        rule = f"an accountant is one of {', '.join(ACCOUNTANTS)}"
        raise InvalidParameter("accountant", name, rule)
    if gap is None:
        return ACCOUNTANTS[name]
    return with_gap(ACCOUNTANTS[name], validate.real("gap", gap, "a relative gap is a number"))


def epsilon(
    schedule: Schedule | Round | None = None,
    *,
    delta: float,
    noise_multiplier: float | None = None,
    rounds: int | None = None,
    sampling_rate: float = NOT_GIVEN,
    sampling: Sampling | None = None,
    adjacency: Adjacency | str | None = None,
    accountant: str = DEFAULT_ACCOUNTANT,
    gap: float | None = None,
) -> Interval:
    """The epsilon that a schedule spends at a given delta.

    Args:
        schedule: a schedule, or else its parts as in `build_schedule`.
        delta: in (0, 1).
        accountant: one of `ACCOUNTANTS`.
        gap: where `tight` plays a game, the relative width wanted, 0.001 to 0.5; by default what
            a cover that serves most settings leaves, about one percent.
    Returns:
        Achieved lower and proven upper epsilon.
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
    return find_accountant(accountant, gap).epsilon(plan, validate.delta(delta))


def spend(
    schedule: Schedule,
    delta: float,
    accountant: str = DEFAULT_ACCOUNTANT,
    gap: float | None = None,
) -> Spent:
    """What `epsilon` answers, with the delta at which it does: for whoever shows both."""
    at = validate.delta(delta)
    return Spent.at(at, find_accountant(accountant, gap).epsilon(schedule, at))


def delta(
    schedule: Schedule | Round | None = None,
    *,
    epsilon: float,
    noise_multiplier: float | None = None,
    rounds: int | None = None,
    sampling_rate: float = NOT_GIVEN,
    sampling: Sampling | None = None,
    adjacency: Adjacency | str | None = None,
    accountant: str = DEFAULT_ACCOUNTANT,
) -> Interval:
    """The delta that a schedule spends at a given epsilon >= 0; arguments as for `epsilon`.

    Returns:
        Achieved lower and proven upper delta.
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
    return find_accountant(accountant).delta(plan, validate.epsilon(epsilon))
