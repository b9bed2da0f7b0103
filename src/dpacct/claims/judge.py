"""The verdict on a claim: its stated epsilon against the proven and the achieved one.

Rule 1: a claim is *proven* only if the proven epsilon is at most the stated one, and *refuted*
only if an explicit pair of neighboring data sets achieves more. In between, 3.34 is *true to the
printed digits* if less than 3.345 is proven. A whole number counts as chosen, not as rounded.
Rule 2: the weakest reading of the actual run decides. All other verdicts are listed as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum

from dpacct import validate
from dpacct.accountant import ACCOUNTANTS, DEFAULT_ACCOUNTANT
from dpacct.budget import Interval
from dpacct.calibration.calibrate import Calibration, calibrate
from dpacct.claims.files import Claim, ClipFrom, Divisor, NoiseBy, Reading, Role
from dpacct.display import chosen, down
from dpacct.errors import InvalidParameter, NotConverged, Unsupported
from dpacct.numerics.rounding import below
from dpacct.outputs import JudgedClaim, JudgedReading, mechanism_of, single
from dpacct.rounds import AccountantName, Adjacency, Poisson, Round, Schedule, Uniform


class Verdict(StrEnum):
    """The verdict on a stated epsilon, from the best to the worst."""

    UNSTATED = "not stated"
    PROVEN = "proven"
    ROUNDED = "true to the printed digits"
    OPEN = "open"
    REFUTED = "refuted"
    NOT_PRIVATE = "not private as described"


@dataclass(frozen=True, slots=True)
class Answer:
    """The verdict on an epsilon that is stated for a schedule.

    Attributes:
        data_sets: two neighboring data sets that achieve more, in words, or empty.
        noise: the schedule with the least noise that makes the claim true. None if the claim is
            proven, or if no noise in range suffices.
    """

    verdict: Verdict
    data_sets: str = ""
    noise: Calibration | None = None


@dataclass(frozen=True, slots=True)
class Judged:
    """The verdict on one reading.

    Attributes:
        noise_scale: the factor on all noise that makes the claim true, if the noises differ.
        epsilon: the achieved and the proven epsilon, None if there is no figure.
        reason: the reason for a verdict without a figure, or empty.
        data_sets: two neighboring data sets that achieve the lower bound, in words, or empty.
        noise: the least noise multiplier that makes the claim true, all else unchanged. None if
            the claim is proven, the noise was not asked for, or no noise in range suffices.
    """

    reading: Reading
    verdict: Verdict
    epsilon: Interval | None = None
    reason: str = ""
    data_sets: str = ""
    noise: float | None = None
    noise_scale: float | None = None


@dataclass(frozen=True, slots=True)
class Judgment:
    """A claim with the verdicts on all its readings."""

    claim: Claim
    readings: tuple[Judged, ...]

    @property
    def verdict(self) -> Verdict:
        """The worst verdict on a reading of the actual run, or else on any reading."""
        run = [judged for judged in self.readings if judged.reading.role is Role.RUN]
        order = list(Verdict)
        return max((j.verdict for j in run or self.readings), key=order.index)

    @property
    def agreed(self) -> bool:
        """True if all readings have the same verdict."""
        return len({judged.verdict for judged in self.readings}) == 1


def judge(claim: Claim, *, quick: bool = False) -> Judgment:
    """Judge a claim by each of its readings.

    Args:
        claim: from a file, or shipped.
        quick: do not search for the noise that would make the claim true.
    """
    if not isinstance(claim, Claim):
        raise InvalidParameter("claim", claim, "a claim comes from `load_claims`")
    return Judgment(claim, tuple(_judged(claim, one, quick=quick) for one in claim.readings))


def _judged(claim: Claim, reading: Reading, *, quick: bool) -> Judged:
    leak = _leak(reading, claim.delta)
    if leak is not None:
        reason, certain = leak
        open_or_unstated = Verdict.UNSTATED if claim.epsilon is None else Verdict.OPEN
        return Judged(reading, Verdict.NOT_PRIVATE if certain else open_or_unstated, reason=reason)
    plan = reading.schedule
    spent = ACCOUNTANTS[DEFAULT_ACCOUNTANT].epsilon(plan, claim.delta)
    if claim.epsilon is None:
        return Judged(reading, Verdict.UNSTATED, spent)
    said = answer(
        claim.epsilon, plan, claim.delta, spent, printed=claim.printed, search_noise=not quick
    )
    enough = None if said.noise is None else single(said.noise.schedule)
    level = None if enough is None else enough.noise_range
    return Judged(
        reading,
        said.verdict,
        spent,
        data_sets=said.data_sets,
        noise=None if level is None else level[0],
        noise_scale=said.noise.noise_scale if said.noise is not None and level is None else None,
    )


def compare(stated: float, spent: Interval, printed: str = "") -> Verdict:
    """Return the verdict on a stated epsilon, by an interval that holds the true one.

    ``printed`` has its decimals, as text.
    """
    if spent.upper <= stated:
        return Verdict.PROVEN
    _, _, decimals = printed.lower().partition("e")[0].partition(".")
    if decimals and not printed.lower().count("e"):
        half = Decimal(5).scaleb(-len(decimals) - 1)
        if Decimal(spent.upper) < Decimal(printed) + half:
            return Verdict.ROUNDED
    return Verdict.REFUTED if spent.lower > stated else Verdict.OPEN


def answer(
    stated: float,
    schedule: Schedule,
    delta: float,
    spent: Interval,
    accountant: AccountantName = DEFAULT_ACCOUNTANT,
    *,
    printed: str = "",
    search_noise: bool = True,
) -> Answer:
    """Judge an epsilon that is stated for a schedule at a delta.

    Args:
        spent: the bounds on the epsilon of the schedule.
        accountant: proves the noise that would make the claim true.
        printed: the stated epsilon as the text prints it.
        search_noise: True to search for that noise.
    Raises:
        InvalidParameter: ``stated`` is not an epsilon above 0.
    """
    epsilon = validate.target_epsilon(stated)
    verdict = compare(epsilon, spent, printed)
    if verdict is Verdict.PROVEN:
        return Answer(verdict)
    data_sets, noise = "", None
    if spent.lower > epsilon:
        # If a fixed pair achieves less than is stated, only a pair that adapts refutes the claim.
        fixed = ACCOUNTANTS["pairs"].epsilon(schedule, delta).lower
        data_sets = witness(schedule, adaptive=fixed <= epsilon)
    if search_noise and any(kind.noise_range is not None for kind in schedule.distinct()):
        try:
            noise = calibrate(
                epsilon=epsilon, delta=delta, schedule=schedule, accountant=accountant
            )
        except (NotConverged, Unsupported):
            noise = None
    return Answer(verdict, data_sets, noise)


# Releases that the schedule does not cover.

_MEDIAN = (
    "the clip norm is the median of the clients' own norms, and the noise is scaled by it: if two "
    "other clients have norms 0 and M, a target of norm 0 makes the median 0, so that there is no "
    "noise at all"
)
_SIZE = (
    "the noise grows with the number of clients who took part, and in a model of many coordinates "
    "its size reveals that number"
)
_DIVISOR = (
    "the noisy sum is divided by the number of clients who took part, so that the size of the "
    "noise reveals that number"
)


def _leak(reading: Reading, delta: float) -> tuple[str, bool] | None:
    """Return the gravest leak, and True if it rules out every epsilon. None without a leak.

    If it does not rule out every epsilon, no bound is known here.
    """
    if reading.unprotected:
        return reading.unprotected, True
    if reading.clip_from is ClipFrom.MEDIAN:
        return _MEDIAN, True
    leaks: list[tuple[str, bool]] = []
    for round_, count in reading.schedule.only_rounds().items():
        sampling = round_.sampling
        # A cohort of fixed size adds as many shares and has the same divisor in every round. The
        # bound of a revealed size covers both.
        if isinstance(sampling, Uniform):
            continue
        if getattr(sampling, "reveals_size", None):
            leak = _cohort_size_leak(reading, round_, count, delta)
            leaks += [leak] if leak is not None and leak[1] else []
            continue
        if reading.noise_by is NoiseBy.PARTICIPANTS:
            leak = _cohort_size_leak(reading, round_, count, delta)
            leaks += [] if leak is None else [leak]
        if reading.divisor is Divisor.REALIZED and isinstance(sampling, Poisson):
            leaks.append(
                (f"{_DIVISOR}, and no bound here covers that if num_clients is not given", False)
            )
    # The first one that rules out every epsilon, or else the first.
    return max(leaks, key=lambda leak: leak[1], default=None)


def _cohort_size_leak(
    reading: Reading, round_: Round, count: int, delta: float
) -> tuple[str, bool] | None:
    """Return the leak of noise that tells the size of a random cohort."""
    size = _SIZE if reading.noise_by is NoiseBy.PARTICIPANTS else _DIVISOR
    everybody = round_.sampling_rate == 1.0
    if round_.adjacency is not Adjacency.ADD_REMOVE and everybody:
        return None
    reason, certain = f"{size}, and no bound here covers that", False
    if round_.adjacency is Adjacency.ADD_REMOVE:
        mass = _all_take_part(reading, round_, count)
        if everybody:
            reason, certain = f"{size}: one client less is noticed in the first round", True
        elif mass > delta:
            certain = True
            reason = (
                f"{size}: with probability {down(mass, 2)}, more than delta {chosen(delta, 3)}, "
                "in some round all clients take part, which one client less rules out"
            )
    return reason, certain


def _all_take_part(reading: Reading, round_: Round, count: int) -> float:
    """Return a lower bound on the probability that all clients take part in some round."""
    if reading.num_clients is None:
        return 0.0
    every = round_.sampling_rate**reading.num_clients
    once = below(every, every)
    if not 0.0 < once < 1.0:
        return 0.0
    some = -math.expm1(count * math.log1p(-once))
    return max(0.0, some * (1 - 1e-9))


# Data sets that achieve the lower bound.

_TARGET = {
    Adjacency.ADD_REMOVE: "C, or is not there",
    Adjacency.ZERO_OUT: "C, or zero",
    Adjacency.REPLACE_ONE: "C, or is replaced by a client who contributes -C",
}
_TARGET_IN_COHORT = {
    Adjacency.ADD_REMOVE: (
        "+C, or is not there, so that another client takes its place in the cohort"
    ),
    Adjacency.REPLACE_ONE: "+C, or is replaced by a client who contributes -C like all others",
}
_TARGET_OF_REVEALED = {
    **_TARGET,
    Adjacency.ADD_REMOVE: "+C, or is not there",
    Adjacency.REPLACE_ONE: _TARGET_IN_COHORT[Adjacency.REPLACE_ONE],
}
_INSTEAD = {
    Adjacency.ADD_REMOVE: "+C",
    Adjacency.ZERO_OUT: "+C or -C",
    Adjacency.REPLACE_ONE: "+C, like the target",
}


def witness(schedule: Schedule, *, adaptive: bool = False) -> str:
    """Describe the two neighboring data sets that achieve the most.

    Args:
        schedule: at least one round. The most frequent kind is described.
        adaptive: True if the data sets may react to releases.
    """
    counts = schedule.distinct()
    round_ = max(counts, key=lambda kind: counts[kind])
    if not isinstance(round_, Round):
        return f"The data sets that {round_!r} tells apart best, in every release."
    sampling, adjacency = round_.sampling, round_.adjacency
    # In a cohort of fixed size another client can take the place of the target.
    fixed = isinstance(sampling, Uniform) and (
        sampling.cohort_size < sampling.num_clients or adjacency is Adjacency.ADD_REMOVE
    )
    others, target = "zero", _TARGET[adjacency]
    if fixed and adjacency in _TARGET_IN_COHORT:
        others, target = "-C", _TARGET_IN_COHORT[adjacency]
    if getattr(sampling, "reveals_size", None):
        others, target = "-C", _TARGET_OF_REVEALED[adjacency]
    words = f"In every round all other clients contribute {others}; the target contributes {target}"
    if not adaptive:
        return f"{words}."
    return (
        f"{words}. Depending on earlier releases, all other clients instead contribute "
        f"{_INSTEAD[adjacency]}: in each round the value that tells the data sets apart better, "
        "given the privacy loss so far."
    )


def facts_of(judged: Judgment) -> JudgedClaim:
    """Return the JSON object of a claim with all its readings."""
    claim = judged.claim
    readings: list[JudgedReading] = []
    for one in judged.readings:
        reading, spent = one.reading, one.epsilon
        readings.append(
            {
                "words": reading.words,
                "role": str(reading.role),
                "verdict": str(one.verdict),
                "epsilon": spent and {"lower": spent.lower, "upper": spent.upper},
                "reason": one.reason,
                "data_sets": one.data_sets,
                "sufficient_noise": one.noise,
                "noise_by": str(reading.noise_by),
                "clip_from": str(reading.clip_from),
                "divisor": str(reading.divisor),
                **mechanism_of(reading.schedule),
            }
        )
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
        "readings": readings,
    }
