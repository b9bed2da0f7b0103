"""The events of the accountant: sampling schemes, rounds, schedules, and `build_schedule`.

A value that exists is valid:

Rule 1: a round is one release of (sum of clipped contributions) + N(0, (z C)^2 I).
Rule 2: the participants are drawn afresh and in secret in each round.
Rule 3: all releases of one schedule protect the same unit, so they share one adjacency.
Rule 4: a schedule is run-length encoded. Equal releases next to each other are one phase, and a
schedule that is repeated is one part.

A `Release` is anything that a schedule holds: a `Round`, or a mechanism beside the rounds
(`dpacct.pairs.dominating.Mechanism`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, fields
from decimal import Decimal
from enum import StrEnum
from fractions import Fraction
from typing import Any, Literal, NamedTuple, Self, TypedDict, cast

from dpacct import validate
from dpacct.display import Drawn, drawn
from dpacct.errors import InvalidParameter

MAX_PHASES = 10**6
MAX_CLIENTS = 10**30


class Adjacency(StrEnum):
    """How neighboring data sets differ. The privacy unit is one client."""

    ADD_REMOVE = "add-remove"
    REPLACE_ONE = "replace-one"
    ZERO_OUT = "zero-out"

    @classmethod
    def parse(cls, value: Adjacency | str) -> Adjacency:
        """Return the adjacency called ``value``.

        Raises:
            InvalidParameter: no adjacency has that name.
        """
        return cls(validate.one_of("adjacency", value, "an adjacency", cls))


# The names, for editors. At run time `Adjacency.parse` and `find_accountant` check them.
AdjacencyName = Literal["add-remove", "replace-one", "zero-out"]
AccountantName = Literal["tight", "rdp", "closed-form", "gdp", "pairs"]


def _check_cohort(scheme: Poisson | Uniform, name: str, noun: str) -> None:
    """Check the population of a scheme, and the size of its cohorts, called ``name``."""
    clients = validate.count("num_clients", scheme.num_clients, "the population", MAX_CLIENTS)
    cohort = validate.count(name, getattr(scheme, name), noun, MAX_CLIENTS)
    if cohort > clients:
        rule = f"a cohort has at most as many members as there are clients ({clients})"
        raise InvalidParameter(name, cohort, rule)
    object.__setattr__(scheme, "num_clients", clients)
    object.__setattr__(scheme, name, cohort)


# What has noise of a fixed size, if the size of the cohort becomes known.
REVEALS_SIZE = ("sum", "client", "mean")


@dataclass(frozen=True, slots=True)
class Poisson:
    """Each client joins a round independently with probability ``sampling_rate`` in (0, 1].

    Args:
        sampling_rate: the probability.
        records: the number of records that one user has at most. Each joins independently and is
            clipped alone. The user is the unit of privacy.
        max_cohort: of a round with more than so many, a random part of this size is kept.
        num_clients: with ``max_cohort``, the size of the population, at most. With
            ``reveals_size``, exactly, and it is public. Under add-remove, then, the bound is for
            data sets of which the larger one has at least so many clients.
        reveals_size: the number of clients that were drawn becomes known, as the noise has a fixed
            size on the "sum", which is divided by that number, of each "client", which adds its
            own, or on the "mean" over that number. The noise multiplier is that of a cohort of the
            expected size. A drawn client that fails counts, and sends zero.
    Raises:
        InvalidParameter: a value out of range, or two kinds together, or a population alone.
    """

    sampling_rate: float
    records: int = 1
    max_cohort: int | None = None
    num_clients: int | None = None
    reveals_size: str | None = None

    def __post_init__(self) -> None:
        noun = "the number of records of a user"
        records = validate.count("records", self.records, noun, 10**4)
        object.__setattr__(self, "sampling_rate", validate.sampling_rate(self.sampling_rate))
        object.__setattr__(self, "records", records)
        if self.max_cohort is None and self.num_clients is None and self.reveals_size is None:
            return
        name = "max_cohort"
        if self.reveals_size is None:
            _check_cohort(self, name, "a largest cohort")
        else:
            name = "reveals_size"
            validate.one_of(name, self.reveals_size, "what has the fixed noise", REVEALS_SIZE)
            clients = validate.count("num_clients", self.num_clients, "the population", 10**9)
            object.__setattr__(self, "num_clients", clients)
            if self.max_cohort is not None:
                rule = "no bound is known for a largest cohort of a size that is revealed"
                raise InvalidParameter("max_cohort", self.max_cohort, rule, f"Leave out {name}.")
        if records > 1:
            rule = "of users with several records, cohorts are neither cut nor counted"
            raise InvalidParameter("records", records, rule, f"Leave {name} out.")
        if self.sampling_rate == 1.0:
            rule = f"with {name}, the sampling rate is below 1"
            raise InvalidParameter("sampling_rate", 1.0, rule, "Uniform draws a fixed cohort.")

    @property
    def is_plain(self) -> bool:
        """True if a user has one record, and cohorts have no largest and no known size."""
        return self.records == 1 and self.max_cohort is None and self.reveals_size is None

    @property
    def default_adjacency(self) -> Adjacency:
        """Add-remove, or zero-out if the size of the cohort is revealed."""
        return Adjacency.ZERO_OUT if self.reveals_size else Adjacency.ADD_REMOVE

    def __repr__(self) -> str:
        return f"Poisson({', '.join(f'{key}={value!r}' for key, value in arguments(self).items())})"

    name = "poisson"


@dataclass(frozen=True, slots=True)
class Uniform:
    """Exactly ``cohort_size`` of ``num_clients`` clients, drawn without replacement."""

    cohort_size: int
    num_clients: int

    def __post_init__(self) -> None:
        _check_cohort(self, "cohort_size", "the cohort size")

    name = "uniform"
    default_adjacency = Adjacency.REPLACE_ONE

    @classmethod
    def at_rate(cls, sampling_rate: float) -> Uniform:
        """Return the smallest cohort with a ratio: 0.05 is 1 of 20."""
        decimal = Decimal(repr(validate.sampling_rate(sampling_rate)))
        cohort, clients = decimal.as_integer_ratio()
        if clients > MAX_CLIENTS:
            # Rounded up: a rate that is too high costs too much, never too little.
            return cls(-(-cohort * MAX_CLIENTS // clients), MAX_CLIENTS)
        return cls(cohort, clients)

    @property
    def sampling_rate(self) -> float:
        """cohort_size / num_clients, rounded to nearest."""
        return self.cohort_size / self.num_clients

    @property
    def rate_bounds(self) -> tuple[float, float]:
        """Neighboring doubles, or one double twice, around cohort_size / num_clients."""
        rate = self.sampling_rate
        excess = Fraction(rate) - Fraction(self.cohort_size, self.num_clients)
        if excess < 0:
            return rate, math.nextafter(rate, 2.0)
        return (math.nextafter(rate, 0.0), rate) if excess > 0 else (rate, rate)


@dataclass(frozen=True, slots=True)
class Full:
    """Every client takes part in every round."""

    name = "full"
    default_adjacency = Adjacency.ADD_REMOVE

    @property
    def sampling_rate(self) -> float:
        """Every client takes part."""
        return 1.0


# Files and ledgers keep a scheme as its name and its arguments, as they are called here.
Sampling = Poisson | Uniform | Full


def arguments(scheme: Sampling) -> dict[str, float | str]:
    """Return the arguments of a scheme that are not left to their defaults, by name."""
    values = {field.name: (getattr(scheme, field.name), field.default) for field in fields(scheme)}
    return {name: value for name, (value, default) in values.items() if value != default}


class Release:
    """Anything that a schedule holds. Subclasses are frozen dataclasses, and hashable.

    Attributes:
        adjacency: the neighboring relation under which its cost is stated.
    """

    __slots__ = ()
    adjacency: Adjacency

    @property
    def noise_range(self) -> tuple[float, float, float] | None:
        """The number that `scale_noise` multiplies, and its ends. None if there is no noise.

        By default that is ``noise_multiplier``, for releases with such an attribute.
        """
        level: float | None = getattr(self, "noise_multiplier", None)
        return None if level is None else (level, *validate.NOISE_MULTIPLIER_RANGE)

    def scale_noise(self, factor: float) -> Self:
        """Return the same release with ``factor`` times its noise, or itself if it has none."""
        del factor
        return self

    def __mul__(self, times: int) -> Schedule:
        return Schedule([Phase(self, times)])

    __rmul__ = __mul__

    def __add__(self, other: Release | Schedule) -> Schedule:
        return Schedule([Phase(self, 1)]) + other


@dataclass(frozen=True, init=False, repr=False, slots=True)
class Round(Release):
    """One noisy release of a sum.

    Args:
        noise_multiplier: standard deviation of the noise on the sum / clip norm.
        sampling: the sampling scheme. By default every client takes part.
        adjacency: the neighboring relation. Default: that of the sampling scheme.
    Raises:
        InvalidParameter: a value out of range.
    """

    noise_multiplier: float
    sampling: Sampling
    adjacency: Adjacency

    def __init__(
        self,
        noise_multiplier: float,
        sampling: Sampling | None = None,
        adjacency: Adjacency | AdjacencyName | None = None,
    ) -> None:
        scheme = Full() if sampling is None else sampling
        if not isinstance(scheme, Poisson | Uniform | Full):
            rule = "a sampling scheme is Poisson(rate), Uniform(cohort_size, num_clients) or Full()"
            raise InvalidParameter("sampling", sampling, rule)
        relation = scheme.default_adjacency if adjacency is None else adjacency
        object.__setattr__(self, "noise_multiplier", validate.noise_multiplier(noise_multiplier))
        object.__setattr__(self, "sampling", scheme)
        object.__setattr__(self, "adjacency", Adjacency.parse(relation))
        if isinstance(scheme, Poisson) and not scheme.is_plain and scheme.reveals_size is None:
            # No bound is known for any other relation.
            rule, hint = "", "Choose add-remove."
            if self.adjacency is Adjacency.REPLACE_ONE:
                rule = f"{scheme!r} is bounded for users that come or go"
            elif scheme.max_cohort is not None and self.adjacency is Adjacency.ZERO_OUT:
                rule = "a zeroed client still takes a place of a truncated cohort"
            if rule:
                raise InvalidParameter("adjacency", str(self.adjacency), rule, hint)

    @property
    def sampling_rate(self) -> float:
        """The probability with which a client takes part."""
        return self.sampling.sampling_rate

    def __repr__(self) -> str:
        parts = [repr(self.noise_multiplier), repr(self.sampling)]
        if self.adjacency is not self.sampling.default_adjacency:
            parts.append(repr(str(self.adjacency)))
        return f"Round({', '.join(parts)})"

    def scale_noise(self, factor: float) -> Round:
        """Return the round with ``factor`` times its noise multiplier."""
        return Round(factor * self.noise_multiplier, self.sampling, self.adjacency)


class Phase(NamedTuple):
    """The same release, ``rounds`` times in a row."""

    round: Release
    rounds: int


class Repeated(NamedTuple):
    """A schedule, ``times`` times in a row."""

    schedule: Schedule
    times: int

    @property
    def rounds(self) -> int:
        """The number of rounds of all repetitions."""
        return self.times * self.schedule.rounds


@dataclass(frozen=True, init=False, repr=False, eq=False, slots=True)
class Schedule:
    """Rounds in the order in which they run, run-length encoded.

    ``300 * Round(1.0, Poisson(0.1)) + Round(2.0, Full())`` builds one, and ``Schedule()`` is empty.

    Attributes:
        parts: phases, and schedules that are repeated: ``300 * (one + other)`` has one part.
    Raises:
        InvalidParameter: a count that is not a whole number of at least one, or rounds of
            different adjacency.
    """

    parts: tuple[Phase | Repeated, ...]
    _phases: tuple[Phase, ...] | None

    def __init__(self, phases: Iterable[Phase | Repeated] = ()) -> None:
        merged: list[Phase | Repeated] = []
        relation: Adjacency | None = None
        # A generator is read here, once. `several` refuses a set of phases, which loses equal ones.
        read = tuple(phases) if isinstance(phases, Iterator | Schedule) else phases
        for given in validate.several("phases", read, "phases"):
            part = _checked_part(given)
            of_part = part.round if isinstance(part, Phase) else part.schedule
            relation = relation or of_part.adjacency
            if of_part.adjacency is not relation:
                rule = f"all rounds of a schedule share one adjacency, and the first has {relation}"
                raise InvalidParameter("adjacency", str(of_part.adjacency), rule)
            if isinstance(part, Phase):
                _add_phase(merged, part)
            elif part.times > 1 and len(part.schedule.parts) > 1:
                merged.append(part)
            else:
                merged += (part.schedule * part.times).parts
        object.__setattr__(self, "parts", tuple(merged))
        object.__setattr__(self, "_phases", None)
        if merged:
            validate.rounds(self.rounds)
        _check_number_of_phases(len(merged))

    @property
    def phases(self) -> tuple[Phase, ...]:
        """All phases, with repetitions written out.

        Raises:
            InvalidParameter: they are more than `MAX_PHASES`.
        """
        if self._phases is None:
            _check_number_of_phases(_length(self))
            merged: list[Phase | Repeated] = []
            for part in self.parts:
                inner = (part,) if isinstance(part, Phase) else part.schedule.phases
                for phase in inner * (1 if isinstance(part, Phase) else part.times):
                    _add_phase(merged, phase)
            object.__setattr__(self, "_phases", tuple(merged))
        return cast("tuple[Phase, ...]", self._phases)

    @property
    def rounds(self) -> int:
        """The number of rounds."""
        return sum(part.rounds for part in self.parts)

    @property
    def adjacency(self) -> Adjacency:
        """The neighboring relation of all rounds (add-remove for the empty schedule)."""
        first = self.parts[0] if self.parts else None
        if isinstance(first, Repeated):
            return first.schedule.adjacency
        return Adjacency.ADD_REMOVE if first is None else first.round.adjacency

    def only_rounds(self) -> dict[Round, int]:
        """Return the distinct rounds, without other releases."""
        return {kind: n for kind, n in self.distinct().items() if isinstance(kind, Round)}

    def round_phases(self) -> list[tuple[Round, int]]:
        """Return the phases that are rounds, in order, without other releases."""
        return [(kind, n) for kind, n in self.phases if isinstance(kind, Round)]

    def distinct(self) -> dict[Release, int]:
        """Return each different release with its count. Composition depends on nothing else."""
        counts: dict[Release, int] = {}
        for part in self.parts:
            if isinstance(part, Phase):
                counts[part.round] = counts.get(part.round, 0) + part.rounds
                continue
            for round_, count in part.schedule.distinct().items():
                counts[round_] = counts.get(round_, 0) + part.times * count
        return counts

    def only(self, keep: Callable[[Release], bool]) -> Schedule:
        """Return the same schedule without the releases for which ``keep`` is false."""
        kept: list[Phase | Repeated] = []
        for part in self.parts:
            if isinstance(part, Phase):
                kept += [part] if keep(part.round) else []
            elif (inner := part.schedule.only(keep)).parts:
                kept.append(Repeated(inner, part.times))
        return Schedule(kept)

    def map(self, change: Callable[[Release], Release]) -> Schedule:
        """Return the same schedule of changed releases."""
        return Schedule(
            Phase(change(part.round), part.rounds)
            if isinstance(part, Phase)
            else Repeated(part.schedule.map(change), part.times)
            for part in self.parts
        )

    def scale_noise(self, factor: float) -> Schedule:
        """Return the same schedule with every noise multiplier times ``factor``."""
        factor = validate.above_zero("factor", factor, "a factor on the noise")
        return self.map(lambda release: release.scale_noise(factor))

    def plot(self) -> Drawn:
        """Return a picture of noise and sampling rate over the rounds. A notebook shows it.

        Raises:
            InvalidParameter: there are no rounds.
        """
        return drawn("schedule_picture", self)

    def __repr__(self) -> str:
        words = (
            f"{part.rounds} * {part.round!r}"
            if isinstance(part, Phase)
            else f"{part.times} * ({part.schedule!r})"
            for part in self.parts
        )
        return " + ".join(words) or "Schedule()"

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        if self.parts == other.parts:
            return True
        written_out = _length(self), _length(other)
        if written_out == (len(self.parts), len(other.parts)) or max(written_out) > MAX_PHASES:
            return False
        return self.phases == other.phases

    def __hash__(self) -> int:
        return hash(frozenset(self.distinct().items()))

    def __len__(self) -> int:
        return self.rounds

    def __iter__(self) -> Iterator[Phase]:
        return iter(self.phases)

    def __add__(self, other: Release | Schedule) -> Schedule:
        if not isinstance(other, Release | Schedule):
            return NotImplemented
        return Schedule(self.parts + as_schedule(other).parts)

    def __mul__(self, times: int) -> Schedule:
        repeats = validate.count("rounds", times, "the number of repetitions")
        if repeats == 1 or not self.parts:
            return self
        only, *others = self.parts
        if others:
            return Schedule([Repeated(self, repeats)])
        if isinstance(only, Phase):
            return Schedule([Phase(only.round, only.rounds * repeats)])
        return Schedule([Repeated(only.schedule, only.times * repeats)])

    __rmul__ = __mul__


def _checked_part(given: object) -> Phase | Repeated:
    """Return a part of a schedule, a phase for what is repeated once or has one phase."""
    pair: tuple[Any, ...] = cast("tuple[Any, ...]", given) if isinstance(given, tuple) else ()
    if len(pair) != 2 or not isinstance(pair[0], Release | Schedule):
        rule = "a phase is a Round or another release, and how often it runs"
        raise InvalidParameter("phases", cast("object", given), rule)
    content, count = pair[0], validate.rounds(pair[1])
    if isinstance(content, Release):
        return Phase(content, count)
    return Repeated(content, count)


def _length(schedule: Schedule) -> int:
    """Return the number of phases, before equal neighbors are joined."""
    return sum(
        1 if isinstance(part, Phase) else part.times * _length(part.schedule)
        for part in schedule.parts
    )


def _add_phase(parts: list[Phase | Repeated], phase: Phase) -> None:
    """Append a phase, or join it with an equal neighbor."""
    last = parts[-1] if parts else None
    if isinstance(last, Phase) and last.round == phase.round:
        parts[-1] = Phase(phase.round, last.rounds + phase.rounds)
    else:
        parts.append(phase)


def _check_number_of_phases(count: int) -> None:
    if count > MAX_PHASES:
        rule = f"a schedule has at most {MAX_PHASES} phases"
        raise InvalidParameter("schedule", count, rule)


class _NotGiven:
    """The default of `sampling_rate`. None is rejected, since a failed look-up may return it."""

    def __repr__(self) -> str:
        return "<full participation>"


NOT_GIVEN: Any = _NotGiven()


class RoundParts(TypedDict, total=False):
    """A constant schedule by its parts, as accepted by `build_schedule`."""

    noise_multiplier: float | None
    rounds: int | None
    sampling_rate: float
    sampling: Sampling | None
    adjacency: Adjacency | AdjacencyName | None


def find_sampling(sampling_rate: float | None, sampling: Sampling | None) -> Sampling:
    """Return `Poisson` at a rate, or the given scheme, or `Full` if neither is given.

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


def as_schedule(schedule: Schedule | Release) -> Schedule:
    """Return a schedule as it is, or one release as a schedule.

    Raises:
        InvalidParameter: it is neither.
    """
    if not isinstance(schedule, Schedule | Release):
        raise InvalidParameter("schedule", schedule, "a schedule is a Schedule or a Round")
    return schedule if isinstance(schedule, Schedule) else 1 * schedule


def first_rounds(schedule: Schedule, rounds: int) -> Schedule:
    """Return the first ``rounds`` rounds of a schedule."""
    parts: list[Phase | Repeated] = []
    for part in schedule.parts:
        if rounds <= 0:
            break
        if isinstance(part, Phase):
            parts.append(Phase(part.round, min(part.rounds, rounds)))
        else:
            whole, rest = divmod(min(part.rounds, rounds), part.schedule.rounds)
            parts += [Repeated(part.schedule, whole)] if whole else []
            parts += first_rounds(part.schedule, rest).parts
        rounds -= part.rounds
    return Schedule(parts)


def build_schedule(
    schedule: Schedule | Round | None = None,
    noise_multiplier: float | None = None,
    rounds: int | None = None,
    sampling_rate: float = NOT_GIVEN,
    sampling: Sampling | None = None,
    adjacency: Adjacency | AdjacencyName | None = None,
) -> Schedule:
    """Return a given schedule, or the constant one described by its parts.

    Args:
        schedule: a schedule (or one round). Then no other argument may be given.
        noise_multiplier: std of the noise on the sum / clip norm.
        rounds: number of rounds.
        sampling_rate: Poisson sampling at this rate.
        sampling: any sampling scheme, instead of a rate. By default every client takes part.
        adjacency: the neighboring relation. Default: that of the sampling scheme.
    Raises:
        InvalidParameter: a value out of range, or arguments that contradict each other.
    """
    if schedule is not None:
        parts = (noise_multiplier, rounds, sampling_rate, sampling, adjacency)
        for name, value in zip(RoundParts.__annotations__, parts, strict=True):
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
