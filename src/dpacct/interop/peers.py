"""Accountants of dp-accounting and Opacus, asked about our schedules: a second opinion.

Rule 1: a peer is imported when it is asked, never before.
Rule 2: a schedule outside a peer's range raises `Unsupported`. It is never changed to fit.
Rule 3: messages, log lines and warnings of a peer about its own tables are suppressed.

A peer answers in its own way: its epsilon carries none of the guarantees of an `Interval`.
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np

from dpacct.budget import Budget
from dpacct.errors import Unsupported
from dpacct.rounds import Adjacency, Full, Poisson, Round, Schedule, Uniform

_NOT_REPLACED = (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT)


class Peer(Protocol):
    """An accountant of another library."""

    @property
    def name(self) -> str:
        """Its name in tables."""
        ...

    def epsilon(self, schedule: Schedule, delta: float) -> float:
        """Return its epsilon of the schedule at ``delta``.

        Raises:
            Unsupported: it is not installed, does not know such rounds, or found no answer.
        """
        ...


@dataclass(frozen=True, slots=True)
class DpAccountingRdp:
    """dp-accounting's Renyi accountant, with its own grid of orders."""

    name: str = "dp-accounting RDP"

    def epsilon(self, schedule: Schedule, delta: float) -> float:
        """Return its epsilon, for Poisson without replace-one, Uniform with it only, and Full."""
        _check_known(self.name, schedule, _NOT_REPLACED, uniform=(Adjacency.REPLACE_ONE,))
        relations = _dp_accounting().NeighboringRelation
        relation = {
            Adjacency.ADD_REMOVE: relations.ADD_OR_REMOVE_ONE,
            Adjacency.REPLACE_ONE: relations.REPLACE_ONE,
            Adjacency.ZERO_OUT: relations.REPLACE_SPECIAL,
        }[schedule.adjacency]
        library = _dp_accounting(".rdp")
        with asking(self.name):
            accountant = library.RdpAccountant(neighboring_relation=relation)
            return number(self.name, accountant.compose(to_dp_event(schedule)).get_epsilon(delta))

    def noise_multiplier(self, budget: Budget, rounds: int, sampling_rate: float) -> float:
        """Return the noise multiplier of its own calibration for Poisson rounds."""
        library, renyi = _dp_accounting(), _dp_accounting(".rdp")

        def event(noise: float) -> Any:
            sampled = library.PoissonSampledDpEvent(sampling_rate, library.GaussianDpEvent(noise))
            return library.SelfComposedDpEvent(sampled, rounds)

        with asking(self.name):
            found = library.calibrate_dp_mechanism(
                renyi.RdpAccountant, event, budget.epsilon, budget.delta
            )
            return number(self.name, found)


@dataclass(frozen=True, slots=True)
class DpAccountingPld:
    """dp-accounting's privacy loss distributions, pessimistic, with its own grid of losses."""

    name: str = "dp-accounting PLD"

    def epsilon(self, schedule: Schedule, delta: float) -> float:
        """Return its epsilon, for Poisson and Full."""
        _check_known(self.name, schedule, Adjacency)
        library, relations = _dp_accounting(".pld"), _dp_accounting().NeighboringRelation
        relation, charged = relations.ADD_OR_REMOVE_ONE, schedule
        if schedule.adjacency is Adjacency.REPLACE_ONE:
            # This accountant doubles the sensitivity by itself, and the event already does.
            relation, charged = relations.REPLACE_ONE, schedule.scale_noise(2.0)
        with asking(self.name):
            accountant = library.PLDAccountant(neighboring_relation=relation)
            return number(self.name, accountant.compose(to_dp_event(charged)).get_epsilon(delta))


@dataclass(frozen=True, slots=True)
class OpacusRdp:
    """Opacus' Renyi accountant, with its own grid of orders."""

    name: str = "Opacus RDP"

    def epsilon(self, schedule: Schedule, delta: float) -> float:
        """Return its epsilon, for Poisson without replace-one, and Full."""
        return _opacus_epsilon(self.name, "RDPAccountant", schedule, delta)

    def noise_multiplier(self, budget: Budget, rounds: int, sampling_rate: float) -> float:
        """Return the noise multiplier of its own calibration, with its default tolerance."""
        search = import_peer("opacus.accountants.utils", "Opacus").get_noise_multiplier
        with asking(self.name):
            found = search(
                target_epsilon=budget.epsilon,
                target_delta=budget.delta,
                sample_rate=sampling_rate,
                steps=rounds,
                accountant="rdp",
            )
            return number(self.name, found)


@dataclass(frozen=True, slots=True)
class OpacusPrv:
    """Opacus' privacy random variables; the upper end of its error interval."""

    name: str = "Opacus PRV"

    def epsilon(self, schedule: Schedule, delta: float) -> float:
        """Return its epsilon, for Poisson without replace-one, and Full."""
        return _opacus_epsilon(self.name, "PRVAccountant", schedule, delta)


_BY_PACKAGE: dict[str, tuple[Peer, ...]] = {
    "dp_accounting": (DpAccountingRdp(), DpAccountingPld()),
    "opacus": (OpacusRdp(), OpacusPrv()),
}


def installed_peers() -> tuple[Peer, ...]:
    """Return the peers whose packages are installed, without importing them."""
    return tuple(
        peer
        for package, peers in _BY_PACKAGE.items()
        if find_spec(package) is not None
        for peer in peers
    )


def to_dp_event(schedule: Schedule) -> Any:
    """Return the `DpEvent` of a schedule, one self-composed event per distinct round.

    dp-accounting states noise over *sensitivity*. Replacing a client moves the sum by up to twice
    the clip norm, so that under replace-one the event's noise multiplier is half of ours, as its
    Renyi accountant needs it. Its PLD accountant doubles by itself: there this overcounts.

    Raises:
        Unsupported: dp-accounting is not installed.
    """
    library = _dp_accounting()
    events: list[Any] = []
    for round_, count in schedule.distinct().items():
        event = library.GaussianDpEvent(_noise_over_sensitivity(round_))
        match round_.sampling:
            case Uniform(cohort_size=cohort, num_clients=clients):
                event = library.SampledWithoutReplacementDpEvent(clients, cohort, event)
            case Poisson(sampling_rate=rate) if rate < 1.0:
                event = library.PoissonSampledDpEvent(rate, event)
            case Poisson() | Full():
                pass
        events.append(library.SelfComposedDpEvent(event, count))
    return library.ComposedDpEvent(events)


def _opacus_epsilon(name: str, accountant: str, schedule: Schedule, delta: float) -> float:
    """Return the epsilon of an accountant whose history is (noise / sensitivity, rate, rounds)."""
    _check_known(name, schedule, _NOT_REPLACED)
    asked = getattr(import_peer("opacus.accountants", "Opacus"), accountant)()
    asked.history = [
        (_noise_over_sensitivity(round_), round_.sampling_rate, count)
        for round_, count in schedule.distinct().items()
    ]
    with asking(name):
        return number(name, asked.get_epsilon(delta=delta))


def _noise_over_sensitivity(round_: Round) -> float:
    """Return the noise multiplier as peers state it: replacing a client moves the sum by 2C."""
    return round_.noise_multiplier / (2.0 if round_.adjacency is Adjacency.REPLACE_ONE else 1.0)


def _check_known(
    peer: str,
    schedule: Schedule,
    poisson: Collection[Adjacency],
    uniform: Collection[Adjacency] = (),
) -> None:
    """Check the adjacencies that a peer knows for each sampling scheme. Rule 2."""
    for round_ in schedule.distinct():
        if isinstance(round_.sampling, Uniform):
            if round_.adjacency not in uniform:
                raise Unsupported(
                    f"{peer} does not know cohorts of fixed size under {round_.adjacency}."
                )
        elif round_.sampling_rate < 1.0 and round_.adjacency not in poisson:
            raise Unsupported(f"{peer} does not know Poisson sampling under {round_.adjacency}.")


def _dp_accounting(part: str = "") -> Any:
    return import_peer(f"dp_accounting{part}", "dp-accounting")


def import_peer(module: str, distribution: str) -> Any:
    """Return a module of a peer. Rule 1.

    Raises:
        Unsupported: it is not installed.
    """
    try:
        with _quietly():
            return importlib.import_module(module)
    except ModuleNotFoundError:
        hint = "pip install -e '.[interop]' brings it"
        raise Unsupported(f"{distribution} is not installed; {hint}.") from None


@contextmanager
def _quietly() -> Generator[None]:
    """Suppress warnings and log lines of a peer. Rule 3."""
    import logging  # noqa: PLC0415 - every cold start would pay for it, and few ask a peer

    # The logger of absl-py, which dp-accounting reports its failed orders to.
    logger = logging.getLogger("absl")
    level = logger.level
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        logger.setLevel(logging.CRITICAL)
        try:
            yield
        finally:
            logger.setLevel(level)


@contextmanager
def asking(peer: str) -> Generator[None]:
    """Suppress a peer's messages, and turn its failures into `Unsupported`."""
    try:
        with _quietly():
            yield
    except (ArithmeticError, RuntimeError, ValueError, MemoryError) as error:
        reason = str(error) or type(error).__name__
        raise Unsupported(f"{peer} found no answer: {reason}") from error


def number(peer: str, answer: Any) -> float:
    """Return a peer's answer as float.

    Raises:
        Unsupported: the answer is not a number.
    """
    value = float(answer)
    if math.isnan(value):
        raise Unsupported(f"{peer} answered NaN.")
    return value
