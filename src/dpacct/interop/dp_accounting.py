"""dp-accounting with our bounds: its events as schedules and back, and a `PrivacyAccountant`.

```python
from dpacct.interop.dp_accounting import TightPrivacyAccountant
dp_accounting.calibrate_dp_mechanism(TightPrivacyAccountant, make_event, epsilon, delta)
```

Rule 1: The noise multiplier of an event is the standard deviation of its noise over the clip norm,
    which is the sensitivity to adding or removing one record, as in dp-accounting's PLD accountant.
    Replacing a record moves the sum by twice the clip norm. That factor is added here.
Rule 2: A schedule becomes one event, and that event becomes the same schedule.
Rule 3: Gaussians composed on one Poisson sample are one Gaussian on it, of noise multiplier (sum of
    z_i^-2)^(-1/2). Any other nesting is rejected by its name.
Rule 4: Rounding charges more, never less.
Rule 5: Repeated compositions are repeated parts of a schedule.
Rule 6: Laplace noise, discrete Laplace noise, rho-zCDP and randomized response are mechanisms. The
    epsilon of randomized response and of discrete Laplace noise may come back larger by the
    rounding of their parameters (Rule 4).
Rule 7: RepeatAndSelect is the best of a random number of runs. A truncated Poisson sample has a
    largest cohort. A mixture of Gaussians is known where its shift is the number of records of one
    user that are drawn, each by itself.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

from dpacct import validate
from dpacct.accountant import DEFAULT_ACCOUNTANT, find_accountant
from dpacct.display import up
from dpacct.errors import InvalidParameter, Unsupported
from dpacct.ledger import joint_noise_of
from dpacct.mechanisms import DiscreteLaplace, Laplace, RandomizedResponse, ZeroConcentratedDP
from dpacct.packages import import_package
from dpacct.pairs.dominating import loss_bound
from dpacct.rounds import (
    MAX_PHASES,
    AccountantName,
    Adjacency,
    AdjacencyName,
    Full,
    Phase,
    Poisson,
    Release,
    Repeated,
    Round,
    Schedule,
    Uniform,
)
from dpacct.tuning import BestOf, Runs

__all__ = ["TightPrivacyAccountant", "UnmappedEvent", "event_of_schedule", "schedule_of_event"]

_events: Any = import_package("dp_accounting", "dp-accounting", "0.6", "dp-accounting")
_RELATIONS: dict[Any, Adjacency] = {
    _events.NeighboringRelation.ADD_OR_REMOVE_ONE: Adjacency.ADD_REMOVE,
    _events.NeighboringRelation.REPLACE_ONE: Adjacency.REPLACE_ONE,
    _events.NeighboringRelation.REPLACE_SPECIAL: Adjacency.ZERO_OUT,
}

_MECHANISMS: tuple[Any, ...] = (
    _events.LaplaceDpEvent,
    _events.ZCDpEvent,
    _events.RandomizedResponseDpEvent,
    _events.dp_event.DiscreteLaplaceDpEvent,
    _events.dp_event.RepeatAndSelectDpEvent,
)

# The relative rounding of the probability and of the epsilon of randomized response.
_ROUNDED = 1e-14
# Binomial coefficients of more records overflow a float.
_MOST_RECORDS = 1000


class UnmappedEvent(Unsupported):
    """An event that has no schedule.

    Attributes:
        event: the smallest part of the given event that has none.
        reason: a clause.
    """

    def __init__(self, event: object, reason: str) -> None:
        self.event = event
        self.reason = reason
        super().__init__(f"{type(event).__name__} has no schedule: {reason}.")


class _NotPrivate(UnmappedEvent):
    """An event with infinite epsilon, or with noise too small for any bound here."""


class TightPrivacyAccountant(_events.PrivacyAccountant):
    """A privacy accountant with proven upper bounds.

    Args:
        neighboring_relation: of dp-accounting. Default: adding or removing one record.
        accountant: the name of our accountant that gives the bound.
    Raises:
        InvalidParameter: an unknown relation or accountant.
    """

    def __init__(
        self, neighboring_relation: Any = None, *, accountant: AccountantName = DEFAULT_ACCOUNTANT
    ) -> None:
        if neighboring_relation is None:
            neighboring_relation = _events.NeighboringRelation.ADD_OR_REMOVE_ONE
        if neighboring_relation not in _RELATIONS:
            rule = "it is a NeighboringRelation of dp-accounting"
            raise InvalidParameter("neighboring_relation", neighboring_relation, rule)
        self._adjacency = _RELATIONS[neighboring_relation]
        self._accountant = find_accountant(accountant)
        self._phases: list[Phase | Repeated] = []
        self._count = 0
        self._private = True
        super().__init__(neighboring_relation)  # pyright: ignore[reportUnknownMemberType]

    @property
    def schedule(self) -> Schedule:
        """The composed events as a schedule, grouped by kind unless their order matters.

        Raises:
            InvalidParameter: an event without noise was composed, which has no schedule.
        """
        if not self._private:
            rule = "something without noise was composed, and epsilon is infinite"
            raise InvalidParameter("schedule", None, rule)
        whole = Schedule(self._phases)
        kinds = whole.distinct().items()
        return whole if _order_counts(whole) else Schedule(Phase(*kind) for kind in kinds)

    def _maybe_compose(self, event: Any, count: int, do_compose: bool) -> Any:  # noqa: FBT001 - the base's
        """Compose an event, or return why that is impossible. The base class calls it for both."""
        try:
            once = schedule_of_event(event, self._adjacency)
            # `supports` asks about no composition at all.
            phases = list(_repeated(event, once, count or 1))
            total = self._count + sum(part.rounds for part in phases)
            validate.count("rounds", total or 1, "the number of rounds composed")
        except _NotPrivate:
            self._private = self._private and not (do_compose and count)
            return None
        except UnmappedEvent as error:
            return self.CompositionErrorDetails(error.event, str(error))
        except InvalidParameter as error:
            return self.CompositionErrorDetails(event, str(error))
        if do_compose and count:
            self._phases += phases
            self._count = total
        return None

    def get_epsilon(self, target_delta: float) -> float:
        """Return a proven upper bound of epsilon at a delta in [0, 1]."""
        delta = validate.probability("target_delta", target_delta, "delta")
        if self._private and (delta == 1.0 or not self._phases):
            return 0.0
        if not self._private or delta == 0.0:
            return math.inf
        return self._accountant.upper_epsilon(self.schedule, delta)

    def get_delta(self, target_epsilon: float) -> float:
        """Return a proven upper bound of delta at an epsilon of at least 0, or infinite."""
        if not self._private:
            return 1.0
        if target_epsilon == math.inf or not self._phases:
            return 0.0
        return self._accountant.delta(self.schedule, validate.epsilon(target_epsilon)).upper


def event_of_schedule(schedule: Schedule) -> Any:
    """Return the `DpEvent` of a schedule, phase by phase. `schedule_of_event` is its inverse.

    Raises:
        Unsupported: dp-accounting has no event for some release.
    """
    parts: list[Any] = []
    for part in schedule.parts:
        inner, count = part
        event = _event_of_release(inner) if isinstance(inner, Release) else event_of_schedule(inner)
        parts.append(event if count == 1 else _events.SelfComposedDpEvent(event, count))
    if len(parts) == 1:
        return parts[0]
    return _events.ComposedDpEvent(parts) if parts else _events.NoOpDpEvent()


def _event_of_release(release: Release) -> Any:
    match release:
        case Laplace(noise_multiplier=noise):
            return _events.LaplaceDpEvent(noise)
        case ZeroConcentratedDP(rho=rho):
            return _events.ZCDpEvent(rho)
        case RandomizedResponse(epsilon=epsilon, answers=answers):
            noise = answers * math.exp(-epsilon) / (1 + (answers - 1) * math.exp(-epsilon))
            return _events.RandomizedResponseDpEvent(noise * (1 - _ROUNDED), answers)
        case DiscreteLaplace(scale=scale, shift=int(shift), adjacency=adjacency):
            one, rest = divmod(abs(shift), _moves(adjacency))
            if rest:
                raise Unsupported(f"dp-accounting has no event for {release!r}: its shift is odd")
            return _events.dp_event.DiscreteLaplaceDpEvent(1 / scale * (1 + _ROUNDED), one)
        case BestOf(schedule=schedule, runs=runs):
            shape = math.inf if runs.kind == "poisson" else runs.shape
            run = event_of_schedule(schedule)
            return _events.dp_event.RepeatAndSelectDpEvent(run, runs.mean, shape)
        case Round():
            return _event_of_round(release)
        case _:
            raise Unsupported(f"dp-accounting has no event for {release!r}")


def _event_of_round(round_: Round) -> Any:
    event = _events.GaussianDpEvent(round_.noise_multiplier)
    match round_.sampling:
        case Poisson(reveals_size=str()):
            raise Unsupported(f"dp-accounting has no event for {round_!r}")
        case Poisson(rate, records=1, max_cohort=int(most), num_clients=clients):
            noise = round_.noise_multiplier
            return _events.dp_event.TruncatedSubsampledGaussianDpEvent(clients, rate, most, noise)
        case Poisson(rate, records) if records > 1:
            return _events.dp_event.MixtureOfGaussiansDpEvent(
                round_.noise_multiplier, [*map(float, range(records + 1))], _drawn(records, rate)
            )
        case Uniform(cohort_size=cohort, num_clients=clients):
            return _events.SampledWithoutReplacementDpEvent(clients, cohort, event)
        case Poisson(sampling_rate=rate):
            return _events.PoissonSampledDpEvent(rate, event)
        case Full():
            return event


def schedule_of_event(event: Any, adjacency: Adjacency | AdjacencyName) -> Schedule:
    """Return the schedule of an event.

    Args:
        event: a `DpEvent`.
        adjacency: the neighboring relation, which is no part of an event.
    Returns:
        Rounds in the order of the event. Empty if nothing is released.
    Raises:
        UnmappedEvent: the event or a part has no schedule. InvalidParameter: a value out of range.
    """
    return Schedule(_phases(event, Adjacency.parse(adjacency)))


def _phases(event: Any, adjacency: Adjacency) -> Iterator[Phase | Repeated]:
    match event:
        case _events.NoOpDpEvent():
            return
        case _events.ComposedDpEvent():
            parts: Any = event.events
            if not isinstance(parts, Sequence):
                # An iterator would be empty when it is read a second time.
                raise UnmappedEvent(event, "its events are no list")
            for part in cast("Sequence[Any]", parts):
                yield from _phases(part, adjacency)
        case _events.SelfComposedDpEvent():
            if event.count != 0:
                count = validate.count("count", event.count, "the number of repetitions")
                yield from _repeated(event, Schedule(_phases(event.event, adjacency)), count)
        case _:
            read = _mechanism if isinstance(event, _MECHANISMS) else _round
            release = read(event, adjacency)
            if release is not None:
                yield Phase(release, 1)


def _repeated(event: Any, schedule: Schedule, count: int) -> Iterator[Phase | Repeated]:
    """Yield the parts of a schedule ``count`` times. Rule 5.

    A long order on which the bound depends is rejected by the name of ``event``.
    """
    phases = count * len(schedule.phases) if _order_counts(schedule) else 0
    if phases > MAX_PHASES:
        why = "rounds of fixed-size samples among others are kept in their order, and it has "
        raise UnmappedEvent(event, f"{why}{phases} phases, more than {MAX_PHASES}")
    yield from (schedule * count).parts


def _order_counts(schedule: Schedule) -> bool:
    kinds = schedule.distinct()
    rounds = schedule.only_rounds()
    return len(kinds) > 1 and any(isinstance(kind.sampling, Uniform) for kind in rounds)


def _mechanism(event: Any, adjacency: Adjacency) -> Release | None:
    """Return the mechanism of one of `_MECHANISMS`, or None if it releases nothing. Rule 6."""
    match event:
        case _events.LaplaceDpEvent():
            return Laplace(_noise(event), adjacency=adjacency)
        case _events.ZCDpEvent():
            if _plain(event.xi) != 0.0:
                raise UnmappedEvent(event, "zCDP is known for xi = 0 only")
            return ZeroConcentratedDP(_plain(event.rho), adjacency)
        case _events.dp_event.DiscreteLaplaceDpEvent():
            return _discrete_laplace(event, adjacency)
        case _events.RandomizedResponseDpEvent():
            return _randomized_response(event, adjacency)
        case _events.dp_event.RepeatAndSelectDpEvent():
            run = Schedule(_phases(event.event, adjacency))
            if not run.rounds:
                raise UnmappedEvent(event, "its runs release nothing")
            mean, shape = _plain(event.mean), _plain(event.shape)
            poisson = shape == math.inf
            runs = Runs("poisson", mean) if poisson else Runs("negative-binomial", mean, shape)
            return BestOf(run, runs)
        case _:
            return None


def _discrete_laplace(event: Any, adjacency: Adjacency) -> Release | None:
    rate = validate.real("noise_parameter", _plain(event.noise_parameter), "it is a number")
    if rate <= 0.0:
        raise _NotPrivate(event, "its noise is not defined")
    validate.at_least_zero("sensitivity", shift := _plain(event.sensitivity), "it")
    shift *= _moves(adjacency)
    return DiscreteLaplace(1 / rate * (1 - _ROUNDED), shift, adjacency) if shift else None


def _randomized_response(event: Any, adjacency: Adjacency) -> Release | None:
    noise = validate.probability("noise_parameter", _plain(event.noise_parameter), "it")
    answers = validate.count("num_buckets", _plain(event.num_buckets), "the number of answers")
    if noise == 1.0 and answers > 1:
        raise UnmappedEvent(event, "its answers are always random, so they cost nothing")
    if answers == 1:
        return None
    if noise < 1e-250:
        raise _NotPrivate(event, "its answers are hardly ever random")
    # Each other answer has the probability p / k. Near p = 1, 1 - p is exact.
    epsilon = math.log1p(answers * (1 - noise) / noise)
    return RandomizedResponse(epsilon * (1 + _ROUNDED), adjacency, answers=answers)


def _round(event: Any, adjacency: Adjacency) -> Round | None:
    """Return the round of an event that is one release, or None if its sample is empty."""
    match event:
        case _events.GaussianDpEvent():
            return Round(_noise(event), Full(), adjacency)
        case _events.PoissonSampledDpEvent():
            given = _plain(event.sampling_probability)
            rate = validate.probability("sampling_probability", given, "it")
            return _poisson(event, rate, adjacency) if rate > 0.0 else None
        case _events.dp_event.TruncatedSubsampledGaussianDpEvent():
            return _truncated(event, adjacency)
        case _events.dp_event.MixtureOfGaussiansDpEvent():
            return _records(event, adjacency)
        case _events.SampledWithoutReplacementDpEvent():
            if not isinstance(event.event, _events.GaussianDpEvent):
                raise UnmappedEvent(event, "of a sample of fixed size one Gaussian alone is known")
            scheme = Uniform(event.sample_size, event.source_dataset_size)
            return Round(_noise(event.event), scheme, adjacency)
        case _events.NonPrivateDpEvent():
            raise _NotPrivate(event, "it releases without noise, so that epsilon is infinite")
        case _:
            known = (
                "Gaussians, their Poisson, truncated and fixed-size samples, their mixtures, "
                "Laplace and discrete Laplace noise, zCDP, randomized response, RepeatAndSelect, "
                "and compositions are known. Compose a promise with its proven guarantee in its "
                "place, such as ApproximateDP(epsilon, delta) in a schedule"
            )
            raise UnmappedEvent(event, known)


def _moves(adjacency: Adjacency) -> int:
    """Return how many contributions a change moves."""
    return 2 if adjacency is Adjacency.REPLACE_ONE else 1


def _truncated(event: Any, adjacency: Adjacency) -> Round | None:
    """Return a round with a largest cohort, or None if none is ever drawn."""
    given = _plain(event.sampling_probability)
    rate = validate.probability("sampling_probability", given, "it")
    sizes = {"truncated_batch_size": event.truncated_batch_size, "dataset_size": event.dataset_size}
    most, clients = (validate.at_least_zero(n, _plain(size), "it") for n, size in sizes.items())
    if 0 in (rate, most, clients):
        return None
    # A cohort of all clients is not truncated.
    cut = most < clients
    cohort: Any = {"max_cohort": most, "num_clients": clients} if cut else {}
    return Round(_noise(event), Poisson(rate, **cohort), adjacency)


def _records(event: Any, adjacency: Adjacency) -> Round | None:
    """Return the round of k records, each drawn with probability q, whose number is the shift.

    The cost grows if shifts grow in distribution (Choquette-Choo et al. 2023, arXiv:2310.15526),
    so q is taken large enough that no tail of the given distribution is above the binomial one.
    """
    shifts, drawn = (
        [*validate.several(name, getattr(event, name), "numbers")]
        for name in ("sensitivities", "sampling_probs")
    )
    drawn = [validate.probability("sampling_probs", _plain(one), "each") for one in drawn]
    k, noise = len(shifts) - 1, _noise(event, event.standard_deviation)
    if shifts != [*range(k + 1)] or len(drawn) != k + 1 or k < 1:
        raise UnmappedEvent(event, "the shifts of a mixture are known as 0, 1, ..., k")
    some = math.fsum(drawn[1:])
    none = math.log1p(-some) if some < 0.5 else math.log(max(drawn[0], 1e-300))
    rate = min(1.0, -math.expm1(none / k) * (1 + 1e-12))
    near = _drawn(k, rate)
    tails = [(math.fsum(drawn[j:]), math.fsum(near[j:])) for j in range(1, k + 1)]
    if not rate or any(not (1 - 1e-9) * ours <= given <= ours for given, ours in tails):
        why = "the number of records of a mixture is binomial: each is drawn by itself"
        raise UnmappedEvent(event, why)
    return Round(noise, Poisson(rate, records=k), adjacency)


def _drawn(records: int, rate: float) -> list[float]:
    """Return the probabilities that 0, 1, ... of k records are drawn."""
    if records > _MOST_RECORDS:
        rule = f"are known up to {_MOST_RECORDS:,} records of a user, and here are {records:,}"
        raise Unsupported(f"mixtures of Gaussians {rule}")
    return [
        math.comb(records, j) * rate**j * (1 - rate) ** (records - j) for j in range(records + 1)
    ]


def _poisson(event: Any, rate: float, adjacency: Adjacency) -> Round | None:
    """Return all that runs on a Poisson sample as one round. Rule 3."""
    whole = Schedule(_phases(event.event, adjacency))
    inner = whole.only_rounds()
    for other in whole.distinct():
        if not isinstance(other, Round):
            loss = loss_bound(other)
            way = ""
            if loss is not None and not loss.delta:
                bound = math.log1p(rate * math.expm1(float(loss.epsilon)))
                way = f". PureDP({up(bound)}) in a schedule bounds it"
            raise UnmappedEvent(event, f"{other!r} is not known on a sample{way}")
    if not inner:
        return None
    if not all(isinstance(round_.sampling, Full) for round_ in inner):
        raise UnmappedEvent(event, "events on a Poisson sample may not sample again")
    if sum(inner.values()) > 1 and adjacency is Adjacency.REPLACE_ONE:
        why = "several Gaussians on one sample are known only where no record is replaced"
        raise UnmappedEvent(event, why)
    try:
        noise = joint_noise_of({r.noise_multiplier: count for r, count in inner.items()})
    except InvalidParameter:
        raise _NotPrivate(event, "its Gaussians together have too little noise") from None
    return Round(noise, Poisson(max(rate, validate.MIN_SAMPLING_RATE)), adjacency)


def _noise(gaussian: Any, given: Any = None) -> float:
    """Return the noise multiplier, lowered to the most that a round may have."""
    low, high = validate.NOISE_MULTIPLIER_RANGE
    rule = "a noise multiplier is a number of at least 0"
    level = _plain(gaussian.noise_multiplier if given is None else given)
    noise = validate.real("noise_multiplier", level, rule)
    if noise < 0.0:
        raise InvalidParameter("noise_multiplier", noise, rule)
    if noise < low:
        raise _NotPrivate(gaussian, f"no bound is known for noise multipliers below {low:g}")
    return min(noise, high)


def _plain(value: Any) -> Any:
    """Return a scalar of numpy, JAX or torch as a number of Python, anything else unchanged."""
    return value.item() if getattr(value, "ndim", None) == 0 else value
