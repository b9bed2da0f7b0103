"""The settings of an audit by canaries, and its result, for every kind of training.

A trainer aims its canaries (`Canaries.aim`), lets them take part like all other clients, and shows
each release (`Watch.see`). `conclude` makes a `RunAudit` of that.
"""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from dpacct import validate
from dpacct.accountant import find_accountant
from dpacct.budget import Budget, Spent
from dpacct.empirical.audits import Promise, Shown, best_number, judge
from dpacct.errors import InvalidParameter
from dpacct.fl.auditing.canaries import Canaries, Watch, updates_noise
from dpacct.fl.privacy.findings import AuditFailed
from dpacct.ledger import Event, Ledger
from dpacct.rounds import Phase, Round, Schedule

# Of canaries, and of repetitions of a round.
MOST = 1_000_000
OTHERS = ("silent", "heard")
# If so many canaries are expected, chance leaves out all of them one time in 1e13.
SURELY = 30.0
_NAMES = {
    "guesses": "more canaries were recognized than the charged budget allows",
    "noise": "the released sums carry less noise than was charged for",
    "contribution": "a client moves the sum by more than the clip norm",
}


@dataclass(frozen=True, slots=True)
class RunAudit:
    """The result of an audit of one run by canaries.

    Attributes:
        charged: the epsilon that the rounds which ran are charged, at their delta.
        shown: what canaries prove, beside what was promised.
        gaussian_epsilon: the run exceeds it, if its noise is Gaussian and its sampling as charged;
            that of the updates alone, if a count of clipped clients is released beside them.
        rounds: how many ran. clients: besides the canaries.
        noise_multiplier: of the first round, as charged.
    """

    charged: Spent
    shown: Shown
    gaussian_epsilon: float
    rounds: int
    clients: int
    noise_multiplier: float

    @property
    def passed(self) -> bool:
        """Whether nothing contradicts what was charged."""
        return not self.shown.faults

    @property
    def faults(self) -> tuple[str, ...]:
        """The faults that were found, each in a sentence."""
        return tuple(_NAMES[name] for name in self.shown.faults)

    def require(self) -> None:
        """Raise if something was found.

        Raises:
            AuditFailed: with all that was found.
        """
        if self.faults:
            raise AuditFailed("; ".join(self.faults))


@dataclass(frozen=True, slots=True)
class Wanted:
    """The settings of an audit; see `audit_run`.

    Raises:
        InvalidParameter: a value out of range, or too few canaries for the error.
    """

    canaries: int
    others: str
    error: float
    confidence: float
    generator: torch.Generator | None = None

    def __post_init__(self) -> None:
        number = validate.count("canaries", self.canaries, "canaries of an audit", MOST)
        checked_terms(self.others, self.error, self.confidence)
        least = least_canaries(self.error)
        if number < least:
            words = f"with an error of {self.error:g} an audit needs at least {least}"
            raise InvalidParameter("canaries", number, f"{words}: luck guesses fewer coins")

    @property
    def silent(self) -> bool:
        """Whether the other clients send nothing."""
        return self.others == OTHERS[0]

    def plant(self) -> Canaries:
        """Return the canaries, with their coins."""
        return Canaries(self.canaries, self.generator)


def checked_terms(others: str, error: float, confidence: float) -> tuple[bool, float, float]:
    """Return whether the others are silent, the error, and the confidence; see `audit_run`.

    Raises:
        InvalidParameter: a value out of range.
    """
    sure = validate.positive_probability(
        "confidence", confidence, "the confidence of an audit", below_one=True
    )
    wrong = validate.positive_probability("error", error, "the error of an audit")
    if others not in OTHERS:
        raise InvalidParameter("others", others, f"the other clients are {' or '.join(OTHERS)}")
    return others == "silent", wrong, sure


def least_canaries(error: float) -> int:
    """Return how many coins an observer who knows all of them must guess to refute a claim.

    Args:
        error: probability that chance alone does as well.
    """
    return math.ceil(-math.log2(error / 3)) + 1


def check_functions(**given: object) -> None:
    """Check arguments by name that are called.

    Raises:
        InvalidParameter: one is not a function.
    """
    for name, value in given.items():
        if not callable(value):
            raise InvalidParameter(name, type(value).__name__, "it is a function")


@contextmanager
def passing_ledger(delta: float) -> Generator[Ledger]:
    """A ledger that refuses nothing and is deleted afterward: what is charged is audited."""
    with tempfile.TemporaryDirectory(prefix="dpacct-") as folder:
        path, budget = Path(folder) / "passing.ledger", Budget(sys.float_info.max, delta)
        with Ledger.open(path, budget, passing=True) as ledger:
            yield ledger


def conclude(
    watch: Watch, charged: Spent, accountant: str, wanted: Wanted, clients: int
) -> RunAudit:
    """Return what a run showed, beside what it was charged.

    Args:
        watch: saw its releases, one at least.
        charged: epsilon of the run. accountant: that proves it. clients: besides the canaries.
    """
    seen, events = watch.seen(), watch.events
    promise = Promise.of(_composed(event.charged for event in events), accountant)
    made = best_number(seen, charged.delta, 1 - wanted.confidence)
    shown = judge(seen, promise, made, charged.delta, wanted.error, wanted.confidence)
    # The spread is that of the updates' noise. The noise on a count of clipped clients, which may
    # be released beside them, was not looked at.
    noises = [shown.noise_factor * updates_noise(event) for event in events]
    gaussian = epsilon_as_seen(events, noises, charged.delta, accountant)
    noise = events[0].charged.noise_multiplier
    return RunAudit(charged, shown, gaussian, len(events), clients, noise)


def _composed(rounds: Iterable[Round]) -> Schedule:
    return Schedule(Phase(each, 1) for each in rounds)


def epsilon_as_seen(
    events: Sequence[Event], noises: Sequence[float], delta: float, accountant: str
) -> float:
    """Return an epsilon that rounds of at most these noise multipliers exceed; 0 if any may be.

    Args:
        events: as which they were charged; all but their noise is taken from them.
    """
    low, high = validate.NOISE_MULTIPLIER_RANGE
    if max(noises) > high:
        return 0.0
    # More noise than was seen proves less.
    seen = _composed(
        replace(event.charged, noise_multiplier=max(noise, low))
        for event, noise in zip(events, noises, strict=True)
    )
    return find_accountant(accountant).epsilon(seen, delta).lower
