"""What is charged: one round with all that it releases, and its form as JSON.

Rule 1: an event is charged as one Gaussian release, the joint one of all its releases. They are
all named, the main sum among them: what is not named would not be charged.
Rule 2: what is charged never has more noise than the round or the joint release says, and the
round never more than its main sum.
Rule 3: a round is covered by a planned one if it has the same scheme and adjacency, at least its
noise and at most its rate; then it costs at most as much, whatever else happens.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, cast

from dpacct import validate
from dpacct.errors import InvalidParameter, LedgerError
from dpacct.ledger.record.fields import items, members, refuse, whole, words
from dpacct.numerics.rounding import UNIT
from dpacct.rounds import Adjacency, Full, Phase, Poisson, Round, Sampling, Schedule, Uniform

MAX_DETAILS = 100_000
MAX_DEPTH = 50
# What the engine calls the sum that a round is about.
MAIN = "update"


@dataclass(frozen=True, slots=True)
class Release:
    """One noisy sum that a round releases.

    Args:
        name: what it is, e.g. ``update`` or ``quantile``.
        noise_multiplier: standard deviation of its noise / its own ``sensitivity``.
        sensitivity: the largest norm of one client's contribution to the sum (the clip norm); for
            the record only. Under replace-one the factor 2 is accounted for, not typed in.

    Raises:
        InvalidParameter: a name that is none, or a number out of range.
    """

    name: str
    noise_multiplier: float
    sensitivity: float | None = None

    def __post_init__(self) -> None:
        validate.line("name", self.name, "the name of a release")
        z = validate.noise_multiplier(self.noise_multiplier)
        object.__setattr__(self, "noise_multiplier", z)
        if self.sensitivity is not None:
            value = validate.above_zero("sensitivity", self.sensitivity, "a sensitivity")
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
    return joint_noise_of(Counter(validate.noise_multiplier(z) for z in noise_multipliers))


def joint_noise_of(counts: Mapping[float, int]) -> float:
    """`joint_noise_multiplier` of noise multipliers each of which occurs so many times."""
    if not counts:
        raise InvalidParameter("releases", None, "a joint noise multiplier needs a release")
    if sum(counts.values()) == 1:
        return next(iter(counts))
    exact = sum(count / Fraction(z) ** 2 for z, count in counts.items())
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
        main: the name of the main sum among the releases.

    Raises:
        InvalidParameter: details that are no JSON, two releases of one name, none of them the main
            sum, or less noise on it than the round claims.
    """

    round: Round
    releases: tuple[Release, ...] = ()
    details: Mapping[str, Any] = field(default_factory=dict[str, Any])
    main: str = MAIN

    def __post_init__(self) -> None:
        if not isinstance(self.round, Round):
            raise InvalidParameter("round", self.round, "an event holds a Round")
        given = tuple(validate.several("releases", self.releases, "releases"))
        releases = tuple(release for release in given if isinstance(release, Release))
        if releases != given:
            raise InvalidParameter("releases", self.releases, "releases are of type Release")
        object.__setattr__(self, "releases", releases)
        object.__setattr__(self, "details", checked_details(self.details))
        if releases:
            self._check_main({release.name: release for release in releases})

    def _check_main(self, named: dict[str, Release]) -> None:
        if len(named) < len(self.releases):
            raise InvalidParameter("releases", self.releases, "each release has its own name")
        names = ", ".join(named)
        if self.main not in named:
            rule = f"releases name all that a round releases, its main sum ({self.main!r}) too"
            raise InvalidParameter("releases", names, rule, "Say main=NAME if it has another name.")
        least = named[self.main].noise_multiplier
        if self.round.noise_multiplier > least:
            rule = f"a round has at most the noise of its main sum ({self.main!r}), {least!r}"
            raise InvalidParameter("noise_multiplier", self.round.noise_multiplier, rule)

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
        InvalidParameter: it is not JSON, holds NaN, infinity or half a surrogate pair, is nested
            more than `MAX_DEPTH` deep, or is longer than `MAX_DETAILS`.
    """
    if isinstance(details, Mapping) and not details:
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
    if len(text) > MAX_DETAILS:
        raise InvalidParameter("details", f"{text[:60]}...", rule)
    if _depth(copy) > MAX_DEPTH:
        raise InvalidParameter("details", f"{text[:60]}...", rule)
    return copy


def _depth(value: object) -> int:
    """How deep objects and lists are nested in each other; 0 for a plain value."""
    depth, level = 0, _parts([value])
    while level:
        depth += 1
        level = [part for held in level for part in _parts(held)]
    return depth


def _parts(held: object) -> list[object]:
    """The objects and lists right inside one."""
    found: Iterable[object] = ()
    if isinstance(held, dict):
        found = cast("dict[str, object]", held).values()
    elif isinstance(held, list):
        found = cast("list[object]", held)
    return [part for part in found if isinstance(part, dict | list)]


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


def in_adjacency(round_: Round, adjacency: str) -> Round:
    """A round as a ledger of this adjacency charges it.

    Where the number of clients is public, a client that is removed from a Poisson sample, or from a
    round in which everybody takes part, moves the sum as one whose contribution becomes zero: the
    same mechanism at the same cost. So an add-remove round may be charged as zero-out, and never
    the other way round: zero-out does not hide how many clients there are. With cohorts of fixed
    size a client that is removed makes way for another one, which zero-out does not cover.

    Raises:
        InvalidParameter: the round has another adjacency, and not in that sense.
    """
    if adjacency in ("", str(round_.adjacency)):
        return round_
    same = adjacency == Adjacency.ZERO_OUT and round_.adjacency is Adjacency.ADD_REMOVE
    if same and not isinstance(round_.sampling, Uniform):
        return Round(round_.noise_multiplier, round_.sampling, adjacency)
    rule = f"all rounds of a ledger share one adjacency, and this one has {adjacency}"
    raise InvalidParameter("adjacency", str(round_.adjacency), rule)


def schedule_in_adjacency(schedule: Schedule, adjacency: str) -> Schedule:
    """`in_adjacency` of all rounds of a schedule."""
    return Schedule(Phase(in_adjacency(round_, adjacency), count) for round_, count in schedule)


def round_to_json(round_: Round) -> dict[str, Any]:
    """The round in the words of a schedule file, with its adjacency."""
    return {
        "noise_multiplier": round_.noise_multiplier,
        "sampling": round_.sampling.name,
        "adjacency": str(round_.adjacency),
        **{name: getattr(round_.sampling, name) for name in _SAMPLING[round_.sampling.name]},
    }


_ROUND = ("noise_multiplier", "sampling", "adjacency")
_SAMPLING = {
    "poisson": ("sampling_rate",),
    "uniform": ("cohort_size", "num_clients"),
    "full": (),
}


def round_from_json(value: Any, also: tuple[str, ...] = ()) -> Round:
    """What `round_to_json` wrote.

    Args:
        value: the JSON value.
        also: keys that may stand beside it.
    Raises:
        LedgerError: it holds no round.
    """
    entry = members("a round", value, _ROUND, (*also, *_ANY_SAMPLING))
    name = words("sampling", entry["sampling"])
    if name not in _SAMPLING:
        refuse("sampling", name, "a scheme that is known")
    entry = members("a round", value, (*_ROUND, *_SAMPLING[name]), also)
    # Their ranges are for the constructors to check; whole numbers may be larger than elsewhere.
    for key in _SAMPLING["uniform"]:
        if type(entry.get(key, 0)) is not int:
            refuse(key, entry[key], "a whole number")
    try:
        sampling: Sampling
        match name:
            case "poisson":
                sampling = Poisson(entry["sampling_rate"])
            case "uniform":
                sampling = Uniform(entry["cohort_size"], entry["num_clients"])
            case _:
                sampling = Full()
        adjacency = words("adjacency", entry["adjacency"])
        return Round(entry["noise_multiplier"], sampling, adjacency)
    except InvalidParameter as error:
        raise LedgerError(f"a round cannot be read: {error}") from None


_ANY_SAMPLING = tuple(key for keys in _SAMPLING.values() for key in keys)


def schedule_to_json(schedule: Schedule) -> list[dict[str, Any]]:
    """One object per phase."""
    return [{"rounds": count} | round_to_json(round_) for round_, count in schedule]


def schedule_from_json(value: Any) -> Schedule:
    """What `schedule_to_json` wrote.

    Raises:
        LedgerError: it holds no schedule.
    """
    try:
        return Schedule(
            Phase(round_from_json(phase, ("rounds",)), whole("rounds", phase.get("rounds"), 1))
            for phase in items("a plan", value)
        )
    except InvalidParameter as error:
        raise LedgerError(f"a plan cannot be read: {error}") from None


def event_to_json(event: Event, charged: Round) -> dict[str, Any]:
    """The event with the round that is charged: the event's own, in the ledger's adjacency."""
    entry: dict[str, Any] = {"charged": round_to_json(charged)}
    if event.releases:
        entry["noise_multiplier"] = event.round.noise_multiplier
        entry["releases"] = [
            {"name": r.name, "noise_multiplier": r.noise_multiplier, "sensitivity": r.sensitivity}
            for r in event.releases
        ]
    if event.details:
        entry["details"] = dict(event.details)
    return entry
