"""What a reading releases without protection, or in a way that no bound here covers.

Rule 1: a leak is told with its reason, and then no figure is: epsilon has no bound, or none at this
delta. What is merely not covered is told as that: neither proven nor refuted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from dpacct.claims.claim import ClipFrom, Divisor, NoiseBy, Reading
from dpacct.display import chosen, down
from dpacct.numerics.rounding import below
from dpacct.rounds import Adjacency, Full, Poisson

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
