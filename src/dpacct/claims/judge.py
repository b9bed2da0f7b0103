"""Whether a claim holds: its epsilon against what is proven and what is achieved.

Rule 1: *proven* only where the proven epsilon is at most the one that is stated, *refuted* only
where explicit data sets achieve more.
Rule 2: a claim is worth its weakest reading of what runs; the others are told beside it.
Rule 3: fixed pairs answer first, in milliseconds. An adaptive game answers where they leave the
question open, or where the narrowest bracket is asked for.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from dpacct import validate
from dpacct.accountant import ACCOUNTANTS, DEFAULT_ACCOUNTANT
from dpacct.budget import Interval
from dpacct.calibration.calibrate import Calibration, calibrate
from dpacct.claims.claim import Claim, Reading, Role
from dpacct.claims.leaks import Leak, find_leak
from dpacct.claims.witness import witness
from dpacct.errors import InvalidParameter, NotConverged, Unsupported
from dpacct.rounds import Schedule

QUICK = "pairs"


class Verdict(StrEnum):
    """What can be said of a stated epsilon, from the best to the worst."""

    UNSTATED = "not stated"
    PROVEN = "proven"
    OPEN = "open"
    REFUTED = "refuted"
    NOT_PRIVATE = "not private as described"


def compare(stated: float, spent: Interval) -> Verdict:
    """Where a stated epsilon stands against a bracket."""
    if spent.upper <= stated:
        return Verdict.PROVEN
    return Verdict.REFUTED if spent.lower > stated else Verdict.OPEN


@dataclass(frozen=True, slots=True)
class Answer:
    """What is said of a stated epsilon beside a bracket.

    Attributes:
        verdict: what can be said.
        data_sets: two neighbors that achieve more than is stated, in words; or nothing.
        noise: the schedule with the least noise that makes the claim true; None where it is true,
            or nothing in range does.
    """

    verdict: Verdict
    data_sets: str = ""
    noise: Calibration | None = None


def answer(
    stated: float,
    schedule: Schedule,
    delta: float,
    spent: Interval,
    accountant: str = DEFAULT_ACCOUNTANT,
    *,
    search_noise: bool = True,
) -> Answer:
    """Answer a claim about a schedule of which the bracket is known.

    Raises:
        InvalidParameter: what is stated is no epsilon above 0.
    """
    epsilon = validate.target_epsilon(stated)
    verdict = compare(epsilon, spent)
    if verdict is Verdict.PROVEN:
        return Answer(verdict)
    shown = ""
    if verdict is Verdict.REFUTED:
        of_pairs = ACCOUNTANTS[QUICK].epsilon(schedule, delta).lower
        shown = witness(schedule, adaptive=of_pairs <= epsilon)
    noise = sufficient_noise(epsilon, schedule, delta, accountant) if search_noise else None
    return Answer(verdict, shown, noise)


@dataclass(frozen=True, slots=True)
class Judged:
    """One reading, judged.

    Attributes:
        reading: what was judged.
        verdict: what can be said.
        epsilon: achieved and proven; None where no figure can be told.
        reason: why it is not private, or open without a figure; or nothing.
        data_sets: two neighbors that achieve the lower end, in words; or nothing.
        noise: the noise multiplier, with all else as it is, at which the claim is proven; None
            where it is already, was not asked for, or nothing in range meets it.
    """

    reading: Reading
    verdict: Verdict
    epsilon: Interval | None = None
    reason: str = ""
    data_sets: str = ""
    noise: float | None = None


@dataclass(frozen=True, slots=True)
class Judgment:
    """A claim with all its readings judged."""

    claim: Claim
    readings: tuple[Judged, ...]

    @property
    def verdict(self) -> Verdict:
        """That of the weakest reading of what runs, or of all where none says that it is."""
        run = [judged for judged in self.readings if judged.reading.role is Role.RUN]
        order = list(Verdict)
        return max((j.verdict for j in run or self.readings), key=order.index)

    @property
    def agreed(self) -> bool:
        """Whether all readings have the same verdict."""
        return len({judged.verdict for judged in self.readings}) == 1


def judge(claim: Claim, *, quick: bool = False) -> Judgment:
    """Judge a claim by all its readings.

    Args:
        claim: from a file.
        quick: leave out the noise that would do. The bracket is the same.
    """
    if not isinstance(claim, Claim):
        raise InvalidParameter("claim", claim, "a claim comes from `load_claims`")
    return Judgment(
        claim, tuple(_judged(claim, reading, quick=quick) for reading in claim.readings)
    )


def _judged(claim: Claim, reading: Reading, *, quick: bool) -> Judged:
    leak = find_leak(reading, claim.delta)
    if leak is not None:
        return _leaking(claim, reading, leak)
    return judge_schedule(
        claim.epsilon, reading.schedule, claim.delta, quick=quick, reading=reading
    )


def _leaking(claim: Claim, reading: Reading, leak: Leak) -> Judged:
    if leak.certain:
        return Judged(reading, Verdict.NOT_PRIVATE, reason=leak.reason)
    verdict = Verdict.UNSTATED if claim.epsilon is None else Verdict.OPEN
    return Judged(reading, verdict, reason=leak.reason)


def judge_schedule(
    stated: float | None,
    schedule: Schedule,
    delta: float,
    *,
    reading: Reading,
    quick: bool = False,
) -> Judged:
    """Judge a stated epsilon, or none, of a schedule at a delta."""
    spent = ACCOUNTANTS[DEFAULT_ACCOUNTANT].epsilon(schedule, delta)
    if stated is None:
        return Judged(reading, Verdict.UNSTATED, spent)
    found = answer(stated, schedule, delta, spent, search_noise=not quick)
    noise = None if found.noise is None else found.noise.noise_multiplier
    return Judged(reading, found.verdict, spent, data_sets=found.data_sets, noise=noise)


def sufficient_noise(
    stated: float, schedule: Schedule, delta: float, accountant: str = DEFAULT_ACCOUNTANT
) -> Calibration | None:
    """The schedule with the least noise, scaled by one factor, that keeps an epsilon.

    None where nothing in range does.
    """
    try:
        return calibrate(epsilon=stated, delta=delta, schedule=schedule, accountant=accountant)
    except (NotConverged, Unsupported):
        return None
