"""What a peer is: somebody else's accountant, asked about one of our schedules.

Rule 1: a peer is imported when it is asked, never before.
Rule 2: a schedule that a peer does not know is refused with `Unsupported`, never bent to fit.
Rule 3: what a peer prints, logs or warns about its own tables stays inside.

A peer answers in its own way: its epsilon carries none of the guarantees of an `Interval`.
"""

from __future__ import annotations

import importlib
import math
import warnings
from collections.abc import Collection, Generator
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from dpacct.errors import Unsupported
from dpacct.rounds import Adjacency, Round, Schedule, Uniform


class Peer(Protocol):
    """Somebody else's accountant."""

    @property
    def name(self) -> str:
        """What a table calls it."""
        ...

    def epsilon(self, schedule: Schedule, delta: float) -> float:
        """Its epsilon of the schedule at ``delta``.

        Raises:
            Unsupported: it is not installed, does not know such rounds, or found no answer.
        """
        ...


def refuse_unknown(
    peer: str,
    schedule: Schedule,
    *,
    poisson: Collection[Adjacency],
    uniform: Collection[Adjacency] = (),
) -> None:
    """Refuse rounds outside the adjacencies that a peer knows for each sampling scheme.

    Raises:
        Unsupported: there is such a round.
    """
    for round_ in schedule.distinct():
        if isinstance(round_.sampling, Uniform):
            if round_.adjacency not in uniform:
                raise Unsupported(
                    f"{peer} does not know cohorts of fixed size under {round_.adjacency}."
                )
        elif round_.sampling_rate < 1.0 and round_.adjacency not in poisson:
            raise Unsupported(f"{peer} does not know Poisson sampling under {round_.adjacency}.")


def noise_over_sensitivity(round_: Round) -> float:
    """The noise multiplier as peers state it; replacing a client moves the sum by twice C."""
    replaced = round_.adjacency is Adjacency.REPLACE_ONE
    return round_.noise_multiplier / (2.0 if replaced else 1.0)


def import_peer(module: str, distribution: str) -> Any:
    """A module of a peer; its types are its own affair.

    Raises:
        Unsupported: it is not installed.
    """
    try:
        with quietly():
            return importlib.import_module(module)
    except ModuleNotFoundError:
        hint = "pip install 'dpacct[interop]' brings it"
        raise Unsupported(f"{distribution} is not installed; {hint}.") from None


@contextmanager
def quietly() -> Generator[None]:
    """Keep warnings and log lines of a peer away from the caller."""
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
    """Quietly, and with the peer's own failures as `Unsupported`."""
    try:
        with quietly():
            yield
    except (ArithmeticError, RuntimeError, ValueError, MemoryError) as error:
        reason = str(error) or type(error).__name__
        raise Unsupported(f"{peer} found no answer: {reason}") from error


def number(peer: str, answer: Any) -> float:
    """A peer's answer as float.

    Raises:
        Unsupported: the answer is not a number.
    """
    value = float(answer)
    if math.isnan(value):
        raise Unsupported(f"{peer} answered NaN.")
    return value
