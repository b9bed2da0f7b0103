"""The keyword arguments that the public functions share, turned into a schedule."""

from __future__ import annotations

from typing import Any, TypedDict

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.rounds import Adjacency, Full, Phase, Poisson, Round, Sampling, Schedule


class _NotGiven:
    """The default of `sampling_rate`: None, which may come from a failed look-up, is refused."""

    def __repr__(self) -> str:
        return "<full participation>"


NOT_GIVEN: Any = _NotGiven()


class Setting(TypedDict, total=False):
    """A constant schedule by its parts, as accepted by `build_schedule`."""

    noise_multiplier: float | None
    rounds: int | None
    sampling_rate: float
    sampling: Sampling | None
    adjacency: Adjacency | str | None


def find_sampling(sampling_rate: float | None, sampling: Sampling | None) -> Sampling:
    """Return the scheme that a rate means (Poisson) or that is given; `Full` if neither is given.

    Raises:
        InvalidParameter: both are given, or the rate is out of range or None.
    """
    if sampling_rate is None:
        rule = "a sampling rate lies in (0, 1]"
        raise InvalidParameter("sampling_rate", None, rule, "Leave it out if all take part.")
    if sampling is None:
        return Full() if sampling_rate is NOT_GIVEN else Poisson(sampling_rate)
    if sampling_rate is not NOT_GIVEN:
        rule = f"sampling is given too ({sampling!r}) and has its own rate"
        raise InvalidParameter("sampling_rate", sampling_rate, rule, "Drop one of them.")
    return sampling


def as_schedule(schedule: Schedule | Round) -> Schedule:
    """A schedule as it is, or one round as a schedule.

    Raises:
        InvalidParameter: it is neither.
    """
    if isinstance(schedule, Schedule):
        return schedule
    if not isinstance(schedule, Round):
        rule = "a schedule is a Schedule or a Round"
        raise InvalidParameter("schedule", schedule, rule)
    return 1 * schedule


def first_rounds(schedule: Schedule, rounds: int) -> Schedule:
    """Return the first ``rounds`` rounds of a schedule."""
    phases: list[Phase] = []
    for round_, count in schedule:
        if rounds > 0:
            phases.append(Phase(round_, min(count, rounds)))
        rounds -= count
    return Schedule(phases)


def build_schedule(
    schedule: Schedule | Round | None = None,
    *,
    noise_multiplier: float | None = None,
    rounds: int | None = None,
    sampling_rate: float = NOT_GIVEN,
    sampling: Sampling | None = None,
    adjacency: Adjacency | str | None = None,
) -> Schedule:
    """A given schedule, or the constant one described by its parts.

    Args:
        schedule: a schedule (or one round); then no other argument may be given.
        noise_multiplier: std of the noise on the sum / clip norm.
        rounds: number of rounds.
        sampling_rate: Poisson sampling at this rate.
        sampling: any sampling scheme, instead of a rate; default full participation.
        adjacency: default that of the sampling scheme.
    Raises:
        InvalidParameter: a value out of range, or arguments that contradict each other.
    """
    parts: Setting = {
        "noise_multiplier": noise_multiplier,
        "rounds": rounds,
        "sampling_rate": sampling_rate,
        "sampling": sampling,
        "adjacency": adjacency,
    }
    if schedule is not None:
        for name, value in parts.items():
            if value is not None and value is not NOT_GIVEN:
                rule = "a schedule is given too and says it already"
                raise InvalidParameter(name, value, rule, "Drop one of them.")
        return as_schedule(schedule)
    if noise_multiplier is None:
        rule = "a noise multiplier is needed where no schedule is given"
        raise InvalidParameter("noise_multiplier", None, rule)
    round_ = Round(noise_multiplier, find_sampling(sampling_rate, sampling), adjacency)
    if rounds is None:
        rule = "the number of rounds is needed where no schedule is given"
        raise InvalidParameter("rounds", None, rule)
    return validate.rounds(rounds) * round_
