"""A privacy claim as data: its stated epsilon, its source, and the possible readings of its text.

A value that exists is valid. Whether a claim holds is decided in `judge.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dpacct.outputs import single
from dpacct.rounds import Release, Schedule, Uniform


class Role(StrEnum):
    """The subject of a reading."""

    STATED = "stated"  # the mechanism for which the text computed its epsilon
    RUN = "run"  # the mechanism that its algorithm or code runs


class NoiseBy(StrEnum):
    """The party that adds the noise of a round."""

    SERVER = "server"  # once, to the sum
    CLIENTS = "clients"  # a fixed number of clients add a share each; only their sum is released
    PARTICIPANTS = "participants"  # each client of the cohort, so that larger cohorts add more


class ClipFrom(StrEnum):
    """The origin of the clip norm."""

    CONSTANT = "constant"
    RELEASED = "released"  # a function of earlier releases
    PRIVATE_QUANTILE = "private-quantile"  # a quantile that is released with its own noise
    MEDIAN = "median"  # of the clients' own norms, without noise


class Divisor(StrEnum):
    """The number by which the noisy sum is divided."""

    PLANNED = "planned"  # the expected cohort size
    REALIZED = "realized"  # the size of the cohort that was drawn


@dataclass(frozen=True, slots=True)
class Source:
    """The text that makes the claims. ``link`` leads to it or to its code."""

    name: str
    about: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """One mechanism that the text may mean.

    Attributes:
        words: a description of the reading.
        schedule: the charged rounds, and other releases.
        num_clients: the population, if known.
        unprotected: anything released without noise, in words, or empty.
    """

    words: str
    role: Role
    schedule: Schedule
    num_clients: int | None = None
    noise_by: NoiseBy = NoiseBy.SERVER
    clip_from: ClipFrom = ClipFrom.CONSTANT
    divisor: Divisor = Divisor.PLANNED
    unprotected: str = ""

    @property
    def only(self) -> Release | None:
        """The release, if all are of one kind."""
        return single(self.schedule)

    @property
    def population(self) -> int | None:
        """The number of clients, if the sampling or the text gives it."""
        sampling = getattr(self.only, "sampling", None)
        return sampling.num_clients if isinstance(sampling, Uniform) else self.num_clients


@dataclass(frozen=True, slots=True)
class Claim:
    """A stated epsilon at a delta, with at least one reading of the mechanism that has it.

    Attributes:
        id: a short name that never changes.
        place: a table, section or page of the source.
        epsilon: the stated epsilon, None if the text gives the setting alone.
        printed: epsilon as the text prints it, with its decimals.
        data: the data set, or empty.
        delta_words: delta as the text gives it, such as ``num_clients^-1.1``, or empty.
        accountant: the method by which the text computed epsilon, or empty.
        note: one or two sentences for readers.
    """

    id: str
    source: Source
    place: str
    epsilon: float | None
    delta: float
    readings: tuple[Reading, ...]
    data: str = ""
    delta_words: str = ""
    printed: str = ""
    accountant: str = ""
    note: str = ""


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence about privacy without a figure to compute, judged by hand.

    Attributes:
        text: the sentence.
        holds: "yes", "no" or "in part".
        why: the reason in one or two sentences.
    """

    source: Source
    place: str
    text: str
    holds: str
    why: str


@dataclass(frozen=True, slots=True)
class Claims:
    """The claims and statements of one or more files."""

    claims: tuple[Claim, ...]
    statements: tuple[Statement, ...] = ()
