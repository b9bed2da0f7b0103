"""A claim of privacy as data: what was promised, where, and what runs by each reading of the text.

Rule 1: a value that exists is valid; checks that need a line of a file are made where it is read.
Rule 2: nothing here judges: a reading says what a text says, not whether it is right.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dpacct.rounds import Round, Schedule, Uniform


class Role(StrEnum):
    """What a reading is of."""

    STATED = "stated"  # what the epsilon of the text was computed for
    RUN = "run"  # what the algorithm, or the code, does


class NoiseBy(StrEnum):
    """Who adds the noise of a round."""

    SERVER = "server"  # once, to the sum
    CLIENTS = "clients"  # a fixed number of clients, a share each; only their sum is seen
    PARTICIPANTS = "participants"  # each who happens to take part, so that more noise means more


class ClipFrom(StrEnum):
    """Where the clip norm comes from."""

    CONSTANT = "constant"
    RELEASED = "released"  # a function of what was released before
    PRIVATE_QUANTILE = "private-quantile"  # a quantile that is released with noise of its own
    MEDIAN = "median"  # of the norms of the clients themselves, without noise


class Divisor(StrEnum):
    """What the noisy sum is divided by."""

    PLANNED = "planned"
    REALIZED = "realized"  # as many as happened to take part


@dataclass(frozen=True, slots=True)
class Source:
    """A text that makes claims.

    Attributes:
        name: of the method or the text.
        about: one sentence, or nothing.
        link: where it, or its code, is found, or nothing.
    """

    name: str
    about: str = ""
    link: str = ""


@dataclass(frozen=True, slots=True)
class Reading:
    """What runs, by one way of reading a text.

    Attributes:
        words: which way that is.
        role: of what it is a reading.
        rounds, round: how often, and what.
        num_clients: the population, where it is known.
        noise_by, clip_from, divisor: see there.
        unprotected: what is released besides, without noise, in words; or nothing.
        line: of the file, where it begins.
    """

    words: str
    role: Role
    rounds: int
    round: Round
    num_clients: int | None = None
    noise_by: NoiseBy = NoiseBy.SERVER
    clip_from: ClipFrom = ClipFrom.CONSTANT
    divisor: Divisor = Divisor.PLANNED
    unprotected: str = ""
    line: int = 0

    @property
    def schedule(self) -> Schedule:
        """The rounds that are charged."""
        return self.rounds * self.round

    @property
    def population(self) -> int | None:
        """The number of clients, where the sampling or the text says it."""
        sampling = self.round.sampling
        return sampling.num_clients if isinstance(sampling, Uniform) else self.num_clients


@dataclass(frozen=True, slots=True)
class Claim:
    """An epsilon at a delta, and what is meant to have it.

    Attributes:
        id: a short name, the same for ever.
        source: the text.
        place: in the text: a table, a section, a page.
        data: on what it was run, or nothing.
        epsilon: what is promised; None where the text gives the setting alone.
        delta: at which.
        delta_words: how the text gives delta, e.g. ``num_clients^-1.1``; or nothing.
        accountant: how the text says that it was computed, or nothing.
        note: anything else worth knowing, in one or two sentences.
        readings: at least one.
        line: of the file, where it begins.
    """

    id: str
    source: Source
    place: str
    epsilon: float | None
    delta: float
    readings: tuple[Reading, ...]
    data: str = ""
    delta_words: str = ""
    accountant: str = ""
    note: str = ""
    line: int = 0


@dataclass(frozen=True, slots=True)
class Statement:
    """A sentence of a text about privacy, without a figure to compute: judged by hand.

    Attributes:
        source, place: as for a claim.
        text: what it says.
        holds: "yes", "no" or "in part".
        why: in a sentence or two.
    """

    source: Source
    place: str
    text: str
    holds: str
    why: str


@dataclass(frozen=True, slots=True)
class Claims:
    """What a file, or several, hold."""

    claims: tuple[Claim, ...]
    statements: tuple[Statement, ...] = ()
