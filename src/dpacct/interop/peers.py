"""Accountants of dp-accounting and Opacus, asked about our schedules: a second opinion.

Rule 1: A peer is imported when it is asked, never before.
Rule 2: A schedule outside a peer's range raises `Unsupported`. It is never changed to fit.
Rule 3: Messages, log lines and warnings of a peer about its own tables are suppressed.
Rule 4: A peer says which call gives its answer. It is made of the objects that were asked.

The epsilon of a peer carries none of the guarantees of an `Interval`.
"""

from __future__ import annotations

import importlib
import math
import re
import warnings
from abc import abstractmethod
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Protocol

import numpy as np

from dpacct.budget import Budget
from dpacct.display import line
from dpacct.errors import Unsupported
from dpacct.packages import install_command
from dpacct.rounds import Adjacency, Phase, Poisson, Round, Schedule, Uniform

# Characters of a call that are shown.
MOST_WORDS = 120
_NOT_REPLACED = (Adjacency.ADD_REMOVE, Adjacency.ZERO_OUT)


class Peer(Protocol):
    """An accountant of another library, by its ``name`` in tables."""

    name: str

    def epsilon(self, schedule: Schedule, delta: float) -> float:
        """Return its epsilon of the schedule at ``delta``.

        Raises:
            Unsupported: it is not installed, does not know such rounds, or found no answer.
        """
        ...

    def call(self, schedule: Schedule) -> str:
        """Return the call behind `epsilon` in words. Rule 4.

        Raises:
            Unsupported: as for `epsilon`, before any answer.
        """
        ...


class _DpAccounting(Peer):
    """An accountant of dp-accounting, asked about an event."""

    def epsilon(self, schedule: Schedule, delta: float) -> float:
        """Return its epsilon."""
        asked, event = self._asked(schedule)
        return ask(self.name, lambda: asked.compose(event).get_epsilon(delta))

    def call(self, schedule: Schedule) -> str:
        """Return accountant, relation and event. The noise of the event is over the sensitivity."""
        asked, event = self._asked(schedule)
        # The numbers of an event, without the names of its fields.
        words = re.sub(r"\b[a-z_]+=", "", repr(event))
        relation = asked.neighboring_relation.name
        return f"{type(asked).__name__}({relation}), {line(words, MOST_WORDS)}"

    @abstractmethod
    def _asked(self, schedule: Schedule) -> tuple[Any, Any]:
        """Return the accountant and the event."""


@dataclass(frozen=True)
class DpAccountingRdp(_DpAccounting):
    """dp-accounting's Renyi accountant, with its own grid of orders.

    It knows Poisson without replace-one, Uniform with it only, and Full.
    """

    name: str = "dp-accounting RDP"

    def _asked(self, schedule: Schedule) -> tuple[Any, Any]:
        _check_known(self.name, schedule, _NOT_REPLACED, uniform=(Adjacency.REPLACE_ONE,))
        relations = _dp_accounting().NeighboringRelation
        relation = {
            Adjacency.ADD_REMOVE: relations.ADD_OR_REMOVE_ONE,
            Adjacency.REPLACE_ONE: relations.REPLACE_ONE,
            Adjacency.ZERO_OUT: relations.REPLACE_SPECIAL,
        }[schedule.adjacency]
        accountant = _dp_accounting(".rdp").RdpAccountant(neighboring_relation=relation)
        return accountant, to_dp_event(schedule)

    def noise_multiplier(self, budget: Budget, rounds: int, sampling_rate: float) -> float:
        """Return the noise multiplier of its own calibration for Poisson rounds."""
        library, renyi = _dp_accounting(), _dp_accounting(".rdp")

        def event(noise: float) -> Any:
            sampled = library.PoissonSampledDpEvent(sampling_rate, library.GaussianDpEvent(noise))
            return library.SelfComposedDpEvent(sampled, rounds)

        search, target = library.calibrate_dp_mechanism, (budget.epsilon, budget.delta)
        return ask(self.name, lambda: search(renyi.RdpAccountant, event, *target))


@dataclass(frozen=True)
class DpAccountingPld(_DpAccounting):
    """dp-accounting's privacy loss distributions, pessimistic, with its own grid of losses.

    It knows Poisson and Full.
    """

    name: str = "dp-accounting PLD"

    def _asked(self, schedule: Schedule) -> tuple[Any, Any]:
        _check_known(self.name, schedule, Adjacency)
        relations = _dp_accounting().NeighboringRelation
        relation, charged = relations.ADD_OR_REMOVE_ONE, schedule
        if schedule.adjacency is Adjacency.REPLACE_ONE:
            # This accountant doubles the sensitivity, and the event already does.
            relation, charged = relations.REPLACE_ONE, schedule.scale_noise(2.0)
        accountant = _dp_accounting(".pld").PLDAccountant(neighboring_relation=relation)
        return accountant, to_dp_event(charged)


class _Opacus(Peer):
    """An accountant of Opacus, ``kind``, for Poisson without replace-one, and Full."""

    kind: str

    def epsilon(self, schedule: Schedule, delta: float) -> float:
        """Return its epsilon."""
        asked = self._asked(schedule)
        return ask(self.name, lambda: asked.get_epsilon(delta=delta))

    def call(self, schedule: Schedule) -> str:
        """Return accountant and history."""
        asked = self._asked(schedule)
        return f"{type(asked).__name__}, history {line(repr(asked.history), MOST_WORDS)}"

    def _asked(self, schedule: Schedule) -> Any:
        """Return the accountant with a history."""
        _check_known(self.name, schedule, _NOT_REPLACED)
        asked = getattr(import_peer("opacus.accountants", "Opacus"), self.kind)()
        # Peers state noise over sensitivity, and replacing a client moves the sum by 2C.
        sensitivity = 2.0 if schedule.adjacency is Adjacency.REPLACE_ONE else 1.0
        asked.history = [
            (round_.noise_multiplier / sensitivity, round_.sampling_rate, count)
            for round_, count in schedule.only_rounds().items()
        ]
        return asked


@dataclass(frozen=True)
class OpacusRdp(_Opacus):
    """Opacus' Renyi accountant, with its own grid of orders."""

    name: str = "Opacus RDP"
    kind = "RDPAccountant"

    def noise_multiplier(self, budget: Budget, rounds: int, sampling_rate: float) -> float:
        """Return the noise multiplier of its own calibration, with its default tolerance."""
        search = import_peer("opacus.accountants.utils", "Opacus").get_noise_multiplier
        setting = {"sample_rate": sampling_rate, "steps": rounds, "accountant": "rdp"}
        setting |= {"target_epsilon": budget.epsilon, "target_delta": budget.delta}
        return ask(self.name, lambda: search(**setting))


@dataclass(frozen=True)
class OpacusPrv(_Opacus):
    """Opacus' privacy random variables, with the upper end of its error interval."""

    name: str = "Opacus PRV"
    kind = "PRVAccountant"


def installed_peers() -> tuple[Peer, ...]:
    """Return the peers with installed packages, without importing them."""
    dp_accounting: tuple[Peer, ...] = (DpAccountingRdp(), DpAccountingPld())
    opacus: tuple[Peer, ...] = (OpacusRdp(), OpacusPrv())
    return (
        *(dp_accounting if find_spec("dp_accounting") else ()),
        *(opacus if find_spec("opacus") else ()),
    )


def to_dp_event(schedule: Schedule) -> Any:
    """Return the `DpEvent` of a schedule, one self-composed event per distinct round.

    dp-accounting states noise over *sensitivity*. Replacing a client moves the sum by up to twice
    the clip norm, so that under replace-one the event's noise multiplier is half of ours, as its
    Renyi accountant needs it. Its PLD accountant also doubles and then overcounts.

    Raises:
        Unsupported: dp-accounting is not installed.
    """
    from dpacct.interop.dp_accounting import event_of_schedule  # noqa: PLC0415 - Rule 1

    replaced = schedule.adjacency is Adjacency.REPLACE_ONE
    asked = schedule.scale_noise(0.5) if replaced else schedule
    return event_of_schedule(Schedule(Phase(kind, n) for kind, n in asked.distinct().items()))


def _check_known(
    peer: str,
    schedule: Schedule,
    poisson: Collection[Adjacency],
    uniform: Collection[Adjacency] = (),
) -> None:
    """Check the adjacencies that a peer knows for each sampling scheme. Rule 2."""
    for round_ in schedule.distinct():
        if not isinstance(round_, Round):
            raise Unsupported(f"{peer} is asked about rounds only, not {round_!r}.")
        if isinstance(round_.sampling, Poisson) and not round_.sampling.is_plain:
            raise Unsupported(f"{peer} is not asked about {round_.sampling!r}.")
        fixed = isinstance(round_.sampling, Uniform)
        if round_.adjacency in (uniform if fixed else poisson):
            continue
        if fixed or round_.sampling_rate < 1.0:
            kind = "cohorts of fixed size" if fixed else "Poisson sampling"
            raise Unsupported(f"{peer} does not know {kind} under {round_.adjacency}.")


def _dp_accounting(part: str = "") -> Any:
    return import_peer(f"dp_accounting{part}", "dp-accounting")


def import_peer(module: str, distribution: str) -> Any:
    """Return a module of a peer, if it is installed. Rule 1."""
    try:
        with _quietly():
            return importlib.import_module(module)
    except ModuleNotFoundError:
        raise Unsupported(
            f"{distribution} is not installed: {install_command('interop')}"
        ) from None


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


def ask(peer: str, question: Callable[[], Any]) -> float:
    """Return a peer's answer. A failure or NaN becomes `Unsupported`. Rule 3."""
    try:
        with _quietly():
            answer = float(question())
    except (ArithmeticError, RuntimeError, ValueError, MemoryError) as error:
        reason = str(error) or type(error).__name__
        raise Unsupported(f"{peer} found no answer: {reason}") from error
    if math.isnan(answer):
        raise Unsupported(f"{peer} answered NaN.")
    return answer
