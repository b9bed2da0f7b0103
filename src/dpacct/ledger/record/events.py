"""Events: one round with all its releases, as it is charged, and its form as JSON.

Rule 1: an event is charged as one Gaussian release, the joint one of all its releases. All of them
are named, the main sum included: a release without a name would not be charged.
Rule 2: the charge never has more noise than the round or the joint release, and the round never
more than its main sum.
Rule 3: a planned round covers a round of the same scheme and adjacency with at least its noise and
at most its rate. Such a round never costs more than the planned one. A release beside the rounds
covers itself, with at least its noise.
Rule 4: a ledger has one adjacency, and a round is charged under it or rejected.
Rule 5: a release is written in the words of files (`dpacct.items`), with its adjacency.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, cast

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.items import phase_entry, read_alone
from dpacct.numerics.rounding import UNIT
from dpacct.rounds import Adjacency, Phase, Poisson, Release, Round, Schedule, Uniform
from dpacct.tight.profiles import ReleaseOfSchedule
from dpacct.validate import LEAST_NOISE

MAX_DETAILS = 100_000
MAX_DEPTH = 50
# The name of the main sum in federated rounds.
MAIN = "update"


@dataclass(frozen=True, slots=True)
class NoisySum:
    """One noisy sum that a round releases.

    Args:
        name: e.g. ``update`` or ``quantile``.
        noise_multiplier: standard deviation of its noise / its own ``sensitivity``. 0: none. Such
            a sum belongs to a run that is not private.
        sensitivity: the largest norm of one client's contribution to the sum (the clip norm), for
            the record only. Under replace-one the accountant adds the factor 2.

    Raises:
        InvalidParameter: the name is not one printable line, or a number is out of range.
    """

    name: str
    noise_multiplier: float
    sensitivity: float | None = None

    def __post_init__(self) -> None:
        validate.line("name", self.name, "the name of a release")
        z = validate.noise_or_none(self.noise_multiplier)
        object.__setattr__(self, "noise_multiplier", z)
        if self.sensitivity is not None:
            value = validate.above_zero("sensitivity", self.sensitivity, "a sensitivity")
            object.__setattr__(self, "sensitivity", value)


def joint_noise_multiplier(noise_multipliers: Iterable[float]) -> float:
    """Return the noise multiplier of one Gaussian release that costs as much as several together.

    Args:
        noise_multipliers: z_i of releases on one cohort, at least one.
    Returns:
        (sum of z_i^-2)^(-1/2), at most the exact value and at most 2^-47 relative below it. A
        single z_i is returned unchanged.
    Raises:
        InvalidParameter: none is given, one is out of range, or so is the result.
    Source: docs/derivations/adaptive.md, "Several releases in one round".
    """
    return joint_noise_of(Counter(validate.noise_multiplier(z) for z in noise_multipliers))


def joint_noise_of(counts: Mapping[float, int]) -> float:
    """Return `joint_noise_multiplier` of noise multipliers with the number of times each occurs."""
    if not counts:
        raise InvalidParameter("releases", None, "a joint noise multiplier needs a release")
    if sum(counts.values()) == 1:
        return next(iter(counts))
    # z^-2 = sum z_i^-2, exactly. The float is moved down until it is on the safe side.
    exact = sum(count / Fraction(z) ** 2 for z, count in counts.items())
    value = 1 / math.sqrt(float(exact)) * (1 - 8 * UNIT)
    while 1 / Fraction(value) ** 2 < exact:
        value = math.nextafter(value, 0.0)
    return validate.noise_multiplier(value)


def charged_noise(releases: Iterable[NoisySum]) -> float:
    """Return the noise multiplier by which releases of one cohort are charged together.

    Beside a sum without noise it is the least that there is, for the record: no charge covers it.
    """
    levels = [release.noise_multiplier for release in releases]
    return joint_noise_multiplier(levels) if all(levels) else LEAST_NOISE


@dataclass(frozen=True, slots=True)
class Event:
    """A round, or another item of a schedule, as it runs.

    Args:
        round: sampling, adjacency and noise. With several releases its noise may be that of the
            main one or the joint one.
        releases: all releases of the round with its main sum, or empty if it has no other.
        details: public facts, as JSON: clip norm, learning rate, model version.
        main: the name of the main sum among the releases.

    Raises:
        InvalidParameter: the details are not JSON, or two releases have one name. Also if the main
            sum is missing, or has less noise than the round claims.
    """

    round: Release
    releases: tuple[NoisySum, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])
    main: str = MAIN

    def __post_init__(self) -> None:
        if not isinstance(self.round, Release):
            raise InvalidParameter("round", self.round, "an event holds a Round or another release")
        given = tuple(validate.several("releases", self.releases, "releases"))
        releases = tuple(release for release in given if isinstance(release, NoisySum))
        if releases != given:
            raise InvalidParameter("releases", self.releases, "releases are of type Release")
        object.__setattr__(self, "releases", releases)
        object.__setattr__(self, "details", checked_details(self.details))
        named = {release.name: release for release in releases}
        if len(named) < len(releases):
            raise InvalidParameter("releases", releases, "each release has its own name")
        if named and self.main not in named:
            rule = f"releases name all that a round releases, its main sum ({self.main!r}) too"
            hint = "Pass main=NAME if it has another name."
            raise InvalidParameter("releases", ", ".join(named), rule, hint)
        least = max(named[self.main].noise_multiplier, LEAST_NOISE) if named else 0.0
        if named and self.noise_multiplier > least:
            rule = f"a round has at most the noise of its main sum ({self.main!r}), {least!r}"
            raise InvalidParameter("noise_multiplier", self.noise_multiplier, rule)

    @property
    def noise_multiplier(self) -> float:
        """The noise multiplier of the round.

        Raises:
            InvalidParameter: its mechanism has none.
        """
        return noise_of(self.round)

    @property
    def is_bare(self) -> bool:
        """True if a sum has no noise, which no charge covers."""
        return not all(release.noise_multiplier for release in self.releases)

    @property
    def charged(self) -> Release:
        """The charged round. A plan for this event consists of such rounds."""
        if not self.releases:
            return self.round
        joint = charged_noise(self.releases)
        return with_noise(self.round, min(joint, self.noise_multiplier))


def noise_of(item: Release) -> float:
    """Return the noise multiplier of a round or of a mechanism that has one."""
    found: float | None = getattr(item, "noise_multiplier", None)
    if found is None:
        rule = "several sums of one round have Gaussian noise"
        raise InvalidParameter("round", item, rule, "Charge this release by itself.")
    return found


def with_noise(item: Release, noise_multiplier: float) -> Release:
    """Return the same item with another noise multiplier."""
    return replace(cast("Any", item), noise_multiplier=noise_multiplier)


def checked_details(details: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a copy of details for an entry. None becomes an empty object.

    Details that are not JSON, or hold half a surrogate pair, are rejected too.
    """
    if details is None or (isinstance(details, Mapping) and not details):
        return {}
    rule = (
        f"details are a JSON object of at most {MAX_DETAILS} characters, nested at most "
        f"{MAX_DEPTH} deep, without NaN"
    )
    try:
        text = json.dumps(dict(details), allow_nan=False)
        copy = json.loads(text)
        json.dumps(copy, ensure_ascii=False).encode()
    except (TypeError, ValueError, RecursionError):
        raise InvalidParameter("details", type(details).__name__, rule) from None
    # Level by level: recursion has a limit.
    depth, level = 0, [copy]
    while level := [part for part in level if type(part) in (dict, list)]:
        depth += 1
        level = [x for part in level for x in (part.values() if hasattr(part, "values") else part)]
    if len(text) > MAX_DETAILS or depth > MAX_DEPTH:
        raise InvalidParameter("details", f"{text[:60]}...", rule)
    return copy


def covers(planned: Release, actual: Release) -> bool:
    """Return whether the planned round covers the actual one (Rule 3)."""
    least: float | None = getattr(planned, "noise_multiplier", None)
    noise: float | None = getattr(actual, "noise_multiplier", None)
    if type(planned) is not type(actual) or least is None or noise is None or noise < least:
        return planned == actual
    if not (isinstance(planned, Round) and isinstance(actual, Round)):
        return with_noise(actual, least) == planned
    match planned.sampling, actual.sampling:
        case (Poisson(planned_rate) as planned_kind, Poisson(rate) as kind):
            same_kind = replace(kind, sampling_rate=planned_rate) == planned_kind
            covered = same_kind and rate <= planned_rate
        case (Uniform(planned_cohort, clients), Uniform(cohort, actual_clients)):
            covered = actual_clients == clients and cohort <= planned_cohort
        case sampling, actual_sampling:
            covered = sampling == actual_sampling
    return covered and planned.adjacency is actual.adjacency


def in_adjacency(round_: Release, adjacency: str) -> Release:
    """Return a round as a ledger of this adjacency charges it (Rule 4). Empty takes any.

    Take a public number of clients, and a Poisson sample or a round of full participation. Removing
    a client moves the sum exactly as zeroing its contribution does: one mechanism at one cost. So
    an add-remove round may be charged as zero-out. The reverse is not allowed, since
    zero-out does not hide how many clients there are. With cohorts of fixed size a removed client
    makes way for another client, which zero-out does not cover. The pairs of an epoch are the same
    under both relations.

    Raises:
        InvalidParameter: the round has another adjacency.
    """
    if adjacency in ("", str(round_.adjacency)):
        return round_
    weaker = adjacency == Adjacency.ZERO_OUT and round_.adjacency is Adjacency.ADD_REMOVE
    # A promise holds for the neighbors that it names.
    weaker = weaker and not hasattr(round_, "source")
    if weaker and isinstance(round_, ReleaseOfSchedule):
        return round_.of(schedule_in_adjacency(round_.schedule, adjacency))
    if weaker and not isinstance(getattr(round_, "sampling", None), Uniform):
        return replace(cast("Any", round_), adjacency=Adjacency.ZERO_OUT)
    rule = f"all rounds of a ledger share one adjacency, and this one has {adjacency}"
    raise InvalidParameter("adjacency", str(round_.adjacency), rule)


def schedule_in_adjacency(schedule: Schedule, adjacency: str) -> Schedule:
    """Return `in_adjacency` of all rounds of a schedule."""
    if adjacency in ("", str(schedule.adjacency)):
        return schedule
    return schedule.map(lambda round_: in_adjacency(round_, adjacency))


def schedule_to_json(schedule: Schedule) -> list[dict[str, Any]]:
    """Return one object per phase, each with its adjacency."""
    return [phase_entry(phase, alone=True) for phase in schedule]


def schedule_from_json(value: list[dict[str, Any]]) -> Schedule:
    """Return the schedule that `schedule_to_json` wrote."""
    return Schedule(Phase(read_alone(entry, ("rounds",)), entry["rounds"]) for entry in value)
