"""Certificates: a second proof that a schedule is (epsilon, delta)-DP.

`proof` computes delta by ball arithmetic. It shares no code with the accountants, and is read
alone. This module translates schedules for it, and rejects what it does not cover.

Rule 1: a number of a schedule is its shortest decimal: what is written in files and printed.
Rule 2: the proof covers pairs that explicit data sets reach. So its lower bound refutes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from typing import Any

from dpacct import validate
from dpacct.budget import Interval
from dpacct.errors import Unsupported
from dpacct.mechanisms import Laplace
from dpacct.numerics.rounding import decimal
from dpacct.outputs import Certified
from dpacct.packages import import_package
from dpacct.rounds import Adjacency, Full, Poisson, Release, Round, Schedule, Uniform, as_schedule

BITS = 128


class Finding(StrEnum):
    """What a certificate says about a stated delta."""

    PROVEN = "proven"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


@dataclass(frozen=True, slots=True)
class Certificate:
    """The result of the second proof.

    Attributes:
        finding: whether the schedule is (epsilon, stated)-DP.
        epsilon, stated: the claim.
        delta: proven bounds of the delta at this epsilon. Data sets reach the lower one.
    """

    finding: Finding
    epsilon: float
    stated: float
    delta: Interval


def certify(
    schedule: Schedule | Release, *, epsilon: float, delta: float, bits: int = BITS
) -> Certificate:
    """Prove or refute by ball arithmetic that a schedule is (epsilon, delta)-DP.

    >>> from dpacct import Poisson, Round, certify
    >>> str(certify(300 * Round(1.28601, Poisson(0.1)), epsilon=8.0001, delta=1e-5).finding)
    'proven'

    Args:
        schedule: Poisson rounds, full participation and Laplace noise, in any mixture, and cohorts
            of fixed size in which a client comes or goes.
        epsilon: at least 0.
        delta: in (0, 1).
        bits: the precision. Few bits widen the bounds of delta, and never falsify them.
    Raises:
        InvalidParameter: an argument out of range.
        Unsupported: python-flint is missing, the proof does not cover a release, or it would take
            more than about ten seconds (few rounds, or an expected participation below about one).
    Error:
        Bounds of delta about 2^-40 apart, in relation to it.
    Source: docs/derivations/certificates.md.
    """
    plan, at, stated = as_schedule(schedule), validate.epsilon(epsilon), validate.delta(delta)
    validate.rounds(plan.rounds)
    precision = validate.count("bits", bits, "the precision in bits", 4096)
    proof = _proof()
    rows = [_row(proof, release, count) for release, count in plan.distinct().items()]
    try:
        low, high = proof.prove(rows, decimal(at), precision)
    except proof.OutOfReachError as reason:
        raise Unsupported(f"no certificate: {reason}") from None
    finding = Finding.PROVEN if high <= decimal(stated) else Finding.UNDECIDED
    finding = Finding.REFUTED if low > decimal(stated) else finding
    lower = max(0.0, math.nextafter(float(low), -1.0)) if low else 0.0
    return Certificate(finding, at, stated, Interval(lower, math.nextafter(float(high), 2.0)))


def certified(schedule: Schedule, epsilon: float, delta: float) -> Certified:
    """Return the certificate as JSON, or the reason why there is none.

    Raises:
        Unsupported: python-flint is missing.
    """
    _proof()
    try:
        proof = certify(schedule, epsilon=epsilon, delta=delta)
    except Unsupported as reason:
        return {"finding": None, "epsilon": epsilon, "delta": None, "reason": str(reason)}
    ends = proof.delta
    return {
        "finding": str(proof.finding),
        "epsilon": epsilon,
        "delta": {"lower": ends.lower, "upper": ends.upper},
        "reason": "",
    }


def in_words(proof: Certified) -> str:
    """Return a certificate as a sentence without its end."""
    if proof["finding"] is None:
        return proof["reason"].removesuffix(".")
    return f"{proof['finding']} by ball arithmetic as well, independently of the accountants"


def _proof() -> Any:
    return import_package("dpacct.certificates.proof", "python-flint", "0.9", "certify")


def _row(proof: Any, release: Release, count: int) -> tuple[Any, ...]:
    """Return a release for the proof.

    Raises:
        Unsupported: the proof does not cover it.
    """
    replaced = release.adjacency is Adjacency.REPLACE_ONE
    if isinstance(release, Laplace):
        return (
            proof.Laplace,
            Fraction(2 if replaced else 1) / decimal(release.noise_multiplier),
            count,
        )
    if isinstance(release, Round):
        sampling, noise = release.sampling, decimal(release.noise_multiplier)
        if isinstance(sampling, Full) or (sampling == Poisson(1.0)):
            return proof.Gaussian, noise / (2 if replaced else 1), count
        if isinstance(sampling, Poisson) and sampling.is_plain and not replaced:
            return proof.SampledGaussian, decimal(sampling.sampling_rate), noise, count
        if isinstance(sampling, Uniform) and release.adjacency is Adjacency.ADD_REMOVE:
            cohort, clients = sampling.cohort_size, sampling.num_clients
            if cohort < clients:
                # The cohort stays full: an added client displaces another, and moves it by 2 C.
                return proof.SampledGaussian, Fraction(cohort, clients), noise / 2, count
    covered = "sampled rounds in which clients come or go, full participation and Laplace noise"
    raise Unsupported(f"no certificate: the second proof covers {covered}, and not {release!r}")
