"""What is charged: one round with all that it releases, and its form as JSON.

Rule 1: an event is charged as one Gaussian release, the joint one of all its releases.
Rule 2: what is charged never has more noise than the round or the joint release says.
Rule 3: a round is covered by a planned one if it has the same scheme and adjacency, at least its
noise and at most its rate; then it costs at most as much, whatever else happens.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from dpacct import validate
from dpacct.errors import InvalidParameter, LedgerError
from dpacct.rounding import UNIT
from dpacct.rounds import Full, Phase, Poisson, Round, Sampling, Schedule, Uniform

MAX_DETAILS = 100_000


@dataclass(frozen=True, slots=True)
class Release:
    """One noisy sum that a round releases.

    Args:
        name: what it is, e.g. ``update`` or ``quantile``.
        noise_multiplier: standard deviation of its noise / its own ``sensitivity``.
        sensitivity: the largest norm of one client's contribution to the sum (the clip norm); for
            the record only. Under replace-one the factor 2 is accounted for, not typed in.

    Raises:
        InvalidParameter: an empty name, or a number out of range.
    """

    name: str
    noise_multiplier: float
    sensitivity: float | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name:
            raise InvalidParameter("name", self.name, "a release has a name")
        z = validate.noise_multiplier(self.noise_multiplier)
        object.__setattr__(self, "noise_multiplier", z)
        if self.sensitivity is not None:
            rule = "a sensitivity is a finite number above 0"
            value = validate.real("sensitivity", self.sensitivity, rule)
            if value <= 0.0:
                raise InvalidParameter("sensitivity", value, rule)
            object.__setattr__(self, "sensitivity", value)


def joint_noise_multiplier(noise_multipliers: Iterable[float]) -> float:
    """The noise multiplier of one Gaussian release that costs as much as several on one cohort.

    Args:
        noise_multipliers: z_i, at least one.
    Returns:
        (sum of z_i^-2)^(-1/2), at most the exact value and at most 2^-47 relative below it; a
        single z_i as it is.
    Raises:
        InvalidParameter: none is given, one is out of range, or so is the result.
    Source: docs/derivations/adaptive.md, "Several releases in one round".
    """
    values = [validate.noise_multiplier(z) for z in noise_multipliers]
    if not values:
        raise InvalidParameter("releases", None, "a joint noise multiplier needs a release")
    if len(values) == 1:
        return values[0]
    exact = sum(1 / Fraction(z) ** 2 for z in values)
    value = 1 / math.sqrt(float(exact)) * (1 - 8 * UNIT)
    while 1 / Fraction(value) ** 2 < exact:
        value = math.nextafter(value, 0.0)
    return validate.noise_multiplier(value)


@dataclass(frozen=True, slots=True)
class Event:
    """A round as it runs.

    Args:
        round: sampling, adjacency and noise; with several releases its noise may be that of the
            main one or the joint one.
        releases: everything that the round releases, the main sum included; empty if that is the
            round's only one.
        details: anything worth keeping, as JSON: clip norm, learning rate, model version.

    Raises:
        InvalidParameter: a value that is no JSON, or two releases of one name.
    """

    round: Round
    releases: tuple[Release, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __post_init__(self) -> None:
        if not isinstance(self.round, Round):
            raise InvalidParameter("round", self.round, "an event holds a Round")
        releases = tuple(self.releases)
        if not all(isinstance(release, Release) for release in releases):
            raise InvalidParameter("releases", self.releases, "releases are of type Release")
        if len({release.name for release in releases}) < len(releases):
            raise InvalidParameter("releases", self.releases, "each release has its own name")
        object.__setattr__(self, "releases", releases)
        object.__setattr__(self, "details", checked_details(self.details))

    @property
    def charged(self) -> Round:
        """The round that is charged; what a plan for this event consists of."""
        if not self.releases:
            return self.round
        joint = joint_noise_multiplier(release.noise_multiplier for release in self.releases)
        noise = min(joint, self.round.noise_multiplier)
        return Round(noise, self.round.sampling, self.round.adjacency)


def checked_details(details: Mapping[str, Any]) -> dict[str, Any]:
    """A copy of what goes into the ledger as it is.

    Raises:
        InvalidParameter: it is not JSON, holds NaN or infinity, or is longer than `MAX_DETAILS`.
    """
    rule = f"details are a JSON object of at most {MAX_DETAILS} characters, without NaN"
    try:
        text = json.dumps(dict(details), allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        raise InvalidParameter("details", details, rule) from None
    if len(text) > MAX_DETAILS:
        raise InvalidParameter("details", f"{text[:60]}...", rule)
    return json.loads(text)


def covers(planned: Round, actual: Round) -> bool:
    """Whether the actual round is dominated by the planned one (Rule 3)."""
    same = planned.adjacency is actual.adjacency
    if not same or actual.noise_multiplier < planned.noise_multiplier:
        return False
    match planned.sampling, actual.sampling:
        case (Poisson(planned_rate), Poisson(rate)):
            return rate <= planned_rate
        case (Uniform(planned_cohort, clients), Uniform(cohort, actual_clients)):
            return actual_clients == clients and cohort <= planned_cohort
        case (Full(), Full()):
            return True
        case _:
            return False


def round_to_json(round_: Round) -> dict[str, Any]:
    """The round in the words of a schedule file, with its adjacency."""
    entry: dict[str, Any] = {
        "noise_multiplier": round_.noise_multiplier,
        "sampling": round_.sampling.name,
        "adjacency": str(round_.adjacency),
    }
    match round_.sampling:
        case Poisson(sampling_rate=rate):
            entry["sampling_rate"] = rate
        case Uniform(cohort_size=cohort, num_clients=clients):
            entry |= {"cohort_size": cohort, "num_clients": clients}
        case Full():
            pass
    return entry


def round_from_json(entry: dict[str, Any]) -> Round:
    """What `round_to_json` wrote.

    Raises:
        LedgerError: the entry holds no round.
    """
    try:
        sampling: Sampling
        match entry["sampling"]:
            case "poisson":
                sampling = Poisson(entry["sampling_rate"])
            case "uniform":
                sampling = Uniform(entry["cohort_size"], entry["num_clients"])
            case "full":
                sampling = Full()
            case other:
                raise LedgerError(f"a round of the ledger has the unknown sampling {other!r}")
        return Round(entry["noise_multiplier"], sampling, entry["adjacency"])
    except (KeyError, TypeError, InvalidParameter) as error:
        raise LedgerError(f"a round of the ledger cannot be read: {error}") from None


def schedule_to_json(schedule: Schedule) -> list[dict[str, Any]]:
    """One object per phase."""
    return [{"rounds": count} | round_to_json(round_) for round_, count in schedule]


def schedule_from_json(phases: list[dict[str, Any]]) -> Schedule:
    """What `schedule_to_json` wrote.

    Raises:
        LedgerError: it holds no schedule.
    """
    try:
        return Schedule(Phase(round_from_json(phase), phase["rounds"]) for phase in phases)
    except (KeyError, TypeError, InvalidParameter) as error:
        raise LedgerError(f"a plan of the ledger cannot be read: {error}") from None


def event_to_json(event: Event) -> dict[str, Any]:
    """The event with the round that is charged."""
    entry: dict[str, Any] = {"charged": round_to_json(event.charged)}
    if event.releases:
        entry["noise_multiplier"] = event.round.noise_multiplier
        entry["releases"] = [
            {"name": r.name, "noise_multiplier": r.noise_multiplier, "sensitivity": r.sensitivity}
            for r in event.releases
        ]
    if event.details:
        entry["details"] = dict(event.details)
    return entry
