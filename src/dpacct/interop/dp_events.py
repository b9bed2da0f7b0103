"""dp-accounting's events as schedules, and back: exactly, or refused by the name of the event.

Rule 1: the noise multiplier of an event is the standard deviation of its noise over the clip norm,
the sensitivity to adding or removing one record, as dp-accounting's PLD accountant reads it. What
replacing a record moves, twice the clip norm, is accounted for here and not typed in.
Rule 2: a schedule becomes one event, and that event becomes the same schedule.
Rule 3: Gaussians composed on one Poisson sample are one Gaussian on it, of noise multiplier (sum of
z_i^-2)^(-1/2); a Poisson sample of a Poisson sample is one at the product of the rates.
Whatever else is nested, and whatever is not Gaussian, is refused.
Rule 4: what rounding does not represent is charged more, never less.
Rule 5: rounds of fixed-size cohorts beside rounds of other kinds stay in their order, which their
bound depends on; where the order does not count, rounds are grouped by kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from fractions import Fraction
from math import nextafter
from typing import Any, cast

from dpacct import validate
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.ledger.record.events import joint_noise_of
from dpacct.packages import import_package
from dpacct.rounds import (
    MAX_PHASES,
    Adjacency,
    Full,
    Phase,
    Poisson,
    Round,
    Schedule,
    Uniform,
)


class UnmappedEvent(Unsupported):
    """An event that has no schedule.

    Attributes:
        event: the smallest part of what was given for which that holds.
        reason: a clause.
    """

    def __init__(self, event: object, reason: str) -> None:
        self.event = event
        self.reason = reason
        super().__init__(f"{type(event).__name__} has no schedule: {reason}.")


class NotPrivate(UnmappedEvent):
    """An event whose epsilon is infinite, or noise too small for any bound here."""


def library(part: str = "") -> Any:
    """dp-accounting.

    Raises:
        Unsupported: it is not installed, or too old.
    """
    return import_package(f"dp_accounting{part}", "dp-accounting", "0.6", "dp-accounting")


def relation_of(neighboring_relation: Any) -> Adjacency:
    """Our name of dp-accounting's neighboring relation.

    Raises:
        InvalidParameter: it is none.
    """
    relations = library().NeighboringRelation
    known = {
        relations.ADD_OR_REMOVE_ONE: Adjacency.ADD_REMOVE,
        relations.REPLACE_ONE: Adjacency.REPLACE_ONE,
        relations.REPLACE_SPECIAL: Adjacency.ZERO_OUT,
    }
    if neighboring_relation not in known:
        rule = "it is a NeighboringRelation of dp-accounting"
        raise InvalidParameter("neighboring_relation", neighboring_relation, rule)
    return known[neighboring_relation]


def event_of_schedule(schedule: Schedule) -> Any:
    """The `DpEvent` of a schedule, phase by phase; `schedule_of_event` is its inverse.

    Raises:
        Unsupported: dp-accounting is not installed, or too old.
    """
    events = library()
    parts = [
        _event(events, phase.round)
        if phase.rounds == 1
        else events.SelfComposedDpEvent(_event(events, phase.round), phase.rounds)
        for phase in schedule
    ]
    if len(parts) == 1:
        return parts[0]
    return events.ComposedDpEvent(parts) if parts else events.NoOpDpEvent()


def _event(events: Any, round_: Round) -> Any:
    gaussian = events.GaussianDpEvent(round_.noise_multiplier)
    match round_.sampling:
        case Uniform(cohort_size=cohort, num_clients=clients):
            return events.SampledWithoutReplacementDpEvent(clients, cohort, gaussian)
        case Poisson(sampling_rate=rate):
            return events.PoissonSampledDpEvent(rate, gaussian)
        case Full():
            return gaussian


def schedule_of_event(event: Any, adjacency: Adjacency | str) -> Schedule:
    """The schedule of an event.

    Args:
        event: a `DpEvent`.
        adjacency: the neighboring relation, which an event does not say.
    Returns:
        Rounds in the order of the event, where those of a repeated composition are grouped by kind
        unless their order counts; empty where nothing is released.
    Raises:
        UnmappedEvent: it has none, or a part of it. InvalidParameter: a value out of range.
        Unsupported: dp-accounting is not installed, or too old.
    """
    return Schedule(_phases(library(), event, Adjacency.parse(adjacency)))


def _phases(events: Any, event: Any, adjacency: Adjacency) -> Iterator[Phase]:
    match event:
        case events.NoOpDpEvent():
            return
        case events.ComposedDpEvent():
            parts: Any = event.events
            if not isinstance(parts, Sequence):
                # An iterator would be empty when it is read a second time.
                raise UnmappedEvent(event, "its events are no list")
            for part in cast("Sequence[Any]", parts):
                yield from _phases(events, part, adjacency)
        case events.SelfComposedDpEvent():
            count = _count(event.count)
            if count:
                yield from repeat(event, Schedule(_phases(events, event.event, adjacency)), count)
        case _:
            round_ = _round(events, event, adjacency)
            if round_ is not None:
                yield Phase(round_, 1)


def group(schedule: Schedule) -> Schedule:
    """The same rounds grouped by kind, unless their order counts."""
    if _order_counts(schedule):
        return schedule
    return Schedule(Phase(round_, times) for round_, times in schedule.distinct().items())


def repeat(event: Any, schedule: Schedule, count: int) -> Iterator[Phase]:
    """The phases of a schedule so many times over, grouped by kind unless their order counts.

    Raises:
        UnmappedEvent: of ``event``, where the order counts and has too many phases to be kept.
    """
    if not _order_counts(schedule):
        yield from (Phase(round_, count * times) for round_, times in schedule.distinct().items())
        return
    phases = count * len(schedule.phases)
    if phases > MAX_PHASES:
        why = "rounds of fixed-size samples among others are kept in their order, and it has "
        raise UnmappedEvent(event, f"{why}{phases} phases, more than {MAX_PHASES}")
    for _ in range(count):
        yield from schedule


def _order_counts(schedule: Schedule) -> bool:
    kinds = schedule.distinct()
    return len(kinds) > 1 and any(isinstance(kind.sampling, Uniform) for kind in kinds)


def _round(events: Any, event: Any, adjacency: Adjacency) -> Round | None:
    """An event that is one release; None where it samples nobody."""
    match event:
        case events.GaussianDpEvent():
            return Round(_noise(event), Full(), adjacency)
        case events.PoissonSampledDpEvent():
            given = _plain(event.sampling_probability)
            rate = validate.probability("sampling_probability", given, "it")
            return _poisson(events, event, rate, adjacency) if rate > 0.0 else None
        case events.SampledWithoutReplacementDpEvent():
            if not isinstance(event.event, events.GaussianDpEvent):
                raise UnmappedEvent(event, "of a sample of fixed size one Gaussian alone is known")
            scheme = Uniform(event.sample_size, event.source_dataset_size)
            return Round(_noise(event.event), scheme, adjacency)
        case events.NonPrivateDpEvent():
            raise NotPrivate(event, "it releases without noise, so that epsilon is infinite")
        case _:
            known = "Gaussians, their Poisson and fixed-size samples and compositions are known"
            raise UnmappedEvent(event, known)


def _poisson(events: Any, event: Any, rate: float, adjacency: Adjacency) -> Round | None:
    """What runs on a Poisson sample, as one round."""
    inner = Schedule(_phases(events, event.event, adjacency)).distinct()
    if not inner:
        return None
    if all(isinstance(round_.sampling, Full) for round_ in inner):
        several = sum(inner.values()) > 1
        if several and adjacency is Adjacency.REPLACE_ONE:
            why = "several Gaussians on one sample are known only where no record is replaced"
            raise UnmappedEvent(event, why)
        noise = _joint(event, {round_.noise_multiplier: count for round_, count in inner.items()})
    else:
        (round_, count), *more = inner.items()
        if more or count > 1 or not isinstance(round_.sampling, Poisson):
            why = "what is composed on a Poisson sample may not sample again"
            raise UnmappedEvent(event, why)
        rate, noise = _product(rate, round_.sampling_rate), round_.noise_multiplier
    return Round(noise, Poisson(max(rate, validate.MIN_SAMPLING_RATE)), adjacency)


def _joint(event: Any, counts: dict[float, int]) -> float:
    try:
        return joint_noise_of(counts)
    except InvalidParameter:
        raise NotPrivate(event, "its Gaussians together have too little noise") from None


def _product(rate: float, other: float) -> float:
    """The product of two rates, rounded up."""
    product = rate * other
    exact = Fraction(rate) * Fraction(other)
    return nextafter(product, 1.0) if Fraction(product) < exact else product


def _count(value: object) -> int:
    return 0 if value == 0 else validate.count("count", value, "the number of repetitions")


def _plain(value: Any) -> Any:
    """Return a number of Python for a scalar of numpy, JAX or torch, and anything else as it is."""
    return value.item() if getattr(value, "ndim", None) == 0 else value


def _noise(gaussian: Any) -> float:
    """The noise multiplier, lowered to what a round may have."""
    low, high = validate.NOISE_MULTIPLIER_RANGE
    rule = "a noise multiplier is a number of at least 0"
    noise = validate.real("noise_multiplier", _plain(gaussian.noise_multiplier), rule)
    if noise < 0.0:
        raise InvalidParameter("noise_multiplier", noise, rule)
    if noise < low:
        raise NotPrivate(gaussian, f"no bound is known for noise multipliers below {low:g}")
    return min(noise, high)
