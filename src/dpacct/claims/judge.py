"""Whether a claim holds: its epsilon against what is proven and what is achieved.

Rule 1: *proven* only where the proven epsilon is at most the one that is stated, *refuted* only
where explicit data sets achieve more.
Rule 2: a claim is worth its weakest reading of what runs; the others are told beside it.
Rule 3: fixed pairs answer first, in milliseconds. An adaptive game answers where they leave the
question open, or where the narrowest bracket is asked for.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from dpacct import validate
from dpacct.accountant import ACCOUNTANTS, DEFAULT_ACCOUNTANT
from dpacct.budget import Interval
from dpacct.calibration.calibrate import Calibration, calibrate
from dpacct.claims.claim import Claim, ClipFrom, Divisor, NoiseBy, Reading, Role
from dpacct.display import chosen, down
from dpacct.errors import InvalidParameter, NotConverged, Unsupported
from dpacct.numerics.rounding import below
from dpacct.rounds import Adjacency, Full, Poisson, Round, Schedule, Uniform

_MEDIAN = (
    "the clip norm is the median of the clients' own norms, and the noise is scaled by it: of "
    "three clients with norms 0, M and that of the target, a target of norm 0 makes it 0, so that "
    "there is no noise at all"
)
_SIZE = (
    "the noise grows with the number of clients who took part, and in a model of many coordinates "
    "its size tells that number"
)


@dataclass(frozen=True, slots=True)
class Leak:
    """Why a reading has no figure.

    Attributes:
        reason: in a clause.
        certain: nothing is private by this reading; else no bound is known here.
    """

    reason: str
    certain: bool


def find_leak(reading: Reading, delta: float) -> Leak | None:
    """The gravest leak of a reading at a delta, or None where its rounds say it all."""
    if reading.unprotected:
        return Leak(reading.unprotected, certain=True)
    if reading.clip_from is ClipFrom.MEDIAN:
        return Leak(_MEDIAN, certain=True)
    return _told_by_the_noise(reading, delta) or _told_by_the_divisor(reading)


def _told_by_the_noise(reading: Reading, delta: float) -> Leak | None:
    """Noise that each participant adds: its variance is their number."""
    scheme, relation = reading.round.sampling, reading.round.adjacency
    if reading.noise_by is not NoiseBy.PARTICIPANTS or not isinstance(scheme, Poisson | Full):
        # In cohorts of fixed size the shares are always as many.
        return None
    if relation is not Adjacency.ADD_REMOVE:
        if isinstance(scheme, Full) or scheme.sampling_rate == 1.0:
            return None
        return Leak(f"{_SIZE}, which no bound here covers", certain=False)
    if isinstance(scheme, Full) or scheme.sampling_rate == 1.0:
        return Leak(f"{_SIZE}: one client less is seen in the first round", certain=True)
    mass = _all_take_part(reading, scheme)
    if mass > delta:
        event = "in some round all clients take part, which one client less rules out"
        shown = f"with probability {down(mass, 2)}, more than delta {chosen(delta, 3)}, {event}"
        return Leak(f"{_SIZE}: {shown}", certain=True)
    return Leak(f"{_SIZE}, which no bound here covers", certain=False)


def _all_take_part(reading: Reading, scheme: Poisson) -> float:
    """A lower bound of the probability that all clients take part in some round."""
    if reading.num_clients is None:
        return 0.0
    once = below(*[scheme.sampling_rate**reading.num_clients] * 2)
    if not 0.0 < once < 1.0:
        return 0.0
    some = -math.expm1(reading.rounds * math.log1p(-once))
    return max(0.0, some * (1 - 1e-9))


def _told_by_the_divisor(reading: Reading) -> Leak | None:
    if reading.divisor is Divisor.PLANNED or not isinstance(reading.round.sampling, Poisson):
        return None
    why = (
        "the noisy sum is divided by the number of clients who took part, so that the size of the "
        "noise tells that number; where it is known a client displaces another, as in a cohort of "
        "fixed size, which no bound here covers"
    )
    return Leak(why, certain=False)


_LINE = "In every round"
_ADDED = {
    Adjacency.ADD_REMOVE: "or is not there",
    Adjacency.ZERO_OUT: "or zero",
    Adjacency.REPLACE_ONE: "or is replaced by a client who contributes -C",
}
_INSTEAD = {
    Adjacency.ADD_REMOVE: "+C instead",
    Adjacency.ZERO_OUT: "+C or -C instead",
    Adjacency.REPLACE_ONE: "+C instead, like the target",
}


def witness(schedule: Schedule, *, adaptive: bool = False) -> str:
    """Two neighboring data sets that tell the most apart, as far as is known here.

    Args:
        schedule: with at least one round; of several kinds the most frequent one is described.
        adaptive: the pair may react to what was released, as an adaptive game has it.
    """
    counts = schedule.distinct()
    round_ = max(counts, key=lambda kind: counts[kind])
    words = _of_round(round_)
    if not adaptive:
        return words
    return (
        f"{words} Depending on what was released so far, the others contribute "
        f"{_INSTEAD[round_.adjacency]}: in each round whatever is worth more at the loss so far, "
        "the logarithm of how much likelier the releases are in one data set than in the other."
    )


def _of_round(round_: Round) -> str:
    scheme, relation = round_.sampling, round_.adjacency
    if not isinstance(scheme, Uniform) or _everybody(round_):
        others = "all other clients contribute zero"
        return f"{_LINE} {others}; the target contributes C, {_ADDED[relation]}."
    match relation:
        case Adjacency.REPLACE_ONE:
            return (
                f"{_LINE} all other clients contribute -C; the target contributes +C, or is "
                "replaced by a client who contributes -C like the others."
            )
        case Adjacency.ADD_REMOVE:
            return (
                f"{_LINE} all other clients contribute -C; the target contributes +C, or is not "
                "there, so that another client takes its place in the cohort."
            )
        case Adjacency.ZERO_OUT:
            return f"{_LINE} all other clients contribute zero; the target contributes C, or zero."


def _everybody(round_: Round) -> bool:
    scheme = round_.sampling
    if not isinstance(scheme, Uniform):
        return round_.sampling_rate == 1.0
    everybody = scheme.cohort_size == scheme.num_clients
    return everybody and round_.adjacency is not Adjacency.ADD_REMOVE


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


def facts_of(judged: Judgment) -> dict[str, Any]:
    """A claim with all its readings."""
    claim = judged.claim
    return {
        "id": claim.id,
        "source": claim.source.name,
        "place": claim.place,
        "data": claim.data,
        "stated": claim.epsilon,
        "delta": claim.delta,
        "stated_accountant": claim.accountant,
        "note": claim.note,
        "verdict": str(judged.verdict),
        "readings": [_reading(one) for one in judged.readings],
    }


def _reading(judged: Judged) -> dict[str, Any]:
    reading = judged.reading
    return {
        "words": reading.words,
        "role": str(reading.role),
        "verdict": str(judged.verdict),
        "epsilon": _both(judged.epsilon),
        "reason": judged.reason,
        "data_sets": judged.data_sets,
        "sufficient_noise": judged.noise,
        "noise_by": str(reading.noise_by),
        "clip_from": str(reading.clip_from),
        "divisor": str(reading.divisor),
        "rounds": reading.rounds,
        "sampling": reading.round.sampling.name,
        "sampling_rate": reading.round.sampling_rate,
        "adjacency": str(reading.round.adjacency),
        "noise_multiplier": reading.round.noise_multiplier,
    }


def _both(found: Interval | None) -> dict[str, float] | None:
    return None if found is None else {"lower": found.lower, "upper": found.upper}
