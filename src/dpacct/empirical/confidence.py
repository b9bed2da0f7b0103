"""Intervals that hold the truth at least as often as they claim, whatever its law.

Rule 1: an interval is never narrower than its theorem makes it: what is computed is rounded
outward. Rule 2: each holds at its confidence by itself, several of them together do not.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from scipy.special import (  # pyright: ignore[reportMissingTypeStubs]
    betainc,
    betaincc,
    betainccinv,
    betaincinv,
    rel_entr,
)

from dpacct import validate
from dpacct.errors import InvalidParameter

# scipy's incomplete beta function is within 1e-10 of its value in all that is tested; a tail is
# taken as that much larger, and as much again.
OUTWARD = 1 + 1e-9
_FIRST_STEP = 2.0**-48


@dataclass(frozen=True, slots=True)
class Estimate:
    """What was observed, in an interval that holds the truth.

    Attributes:
        value: as observed.
        lower, upper: ends of the interval, at the confidence that it was asked for.
    """

    value: float
    lower: float
    upper: float

    def __contains__(self, value: float) -> bool:
        return self.lower <= value <= self.upper


def checked_confidence(value: object) -> float:
    """A confidence in (0, 1).

    Raises:
        InvalidParameter: it is outside.
    """
    return validate.positive_probability("confidence", value, "a confidence", below_one=True)


def least_probability(successes: int, trials: int, error: float) -> float:
    """The one-sided lower limit of Clopper and Pearson for a probability.

    Args:
        successes, trials: of independent trials that succeed with the same probability p.
        error: the limit is above p with at most this probability, in (0, 1).
    Error: none to the unsafe side; less than 1e-6 relative to the other.
    Raises:
        InvalidParameter: an argument out of range.
    Source: Clopper, Pearson 1934 (10.1093/biomet/26.4.404).
    """
    hits, count, tail = _checked(successes, trials, error)
    if hits == 0:
        return 0.0
    found = float(betaincinv(hits, count - hits + 1, tail))

    def too_high(p: float) -> bool:
        return not float(betainc(hits, count - hits + 1, p)) * OUTWARD <= tail

    return _moved(found, too_high, down=True)


def largest_probability(successes: int, trials: int, error: float) -> float:
    """The one-sided upper limit; arguments and errors as for `least_probability`."""
    hits, count, tail = _checked(successes, trials, error)
    if hits == count:
        return 1.0
    found = float(betainccinv(hits + 1, count - hits, tail))

    def too_low(p: float) -> bool:
        return not float(betaincc(hits + 1, count - hits, p)) * OUTWARD <= tail

    return _moved(found, too_low, down=False)


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> Estimate:
    """The share of successes, and an interval for their probability.

    Args:
        successes, trials: of independent trials that succeed with the same probability.
        confidence: with which the interval holds that probability, in (0, 1); each end fails with
            at most half of what is left.
    Raises:
        InvalidParameter: an argument out of range.
    """
    tail = (1 - checked_confidence(confidence)) / 2
    lower = least_probability(successes, trials, tail)
    upper = largest_probability(successes, trials, tail)
    return Estimate(successes / trials, lower, upper)


def mean_in_unit_interval(mean: float, draws: int, confidence: float = 0.95) -> Estimate:
    """An interval for the expectation of independent values in [0, 1], whatever their laws.

    Holds the expectations A with draws KL(mean, A) <= log(2 / (1 - confidence)), where KL is the
    divergence of two coins. It also holds for values drawn without replacement, and for averages
    of such means (`dpacct.empirical.roc`).

    Args:
        mean: of the values that were observed. draws: how many.
        confidence: in (0, 1).
    Raises:
        InvalidParameter: an argument out of range.
    Source: Hoeffding 1963 (10.1080/01621459.1963.10500830), theorem 1, inverted.
    """
    observed = validate.probability("mean", mean, "a mean")
    count = validate.count("draws", draws, "the number of draws")
    tail = (1 - checked_confidence(confidence)) / 2
    # Divergences are sums of two terms of at most the size of the limit or of rounding.
    limit = -math.log(tail) / count * OUTWARD + 2.0**-50

    def beyond(expectation: float) -> bool:
        parts = rel_entr(observed, expectation) + rel_entr(1 - observed, 1 - expectation)
        return float(parts) > limit

    return Estimate(
        observed,
        _last_within(observed, 0.0, beyond),
        _last_within(observed, 1.0, beyond),
    )


def _checked(successes: int, trials: int, error: float) -> tuple[int, int, float]:
    count = validate.count("trials", trials, "the number of trials")
    rule = f"successes are a whole number from 0 to {count}, the number of trials"
    if isinstance(successes, bool) or int(successes) != successes or not 0 <= successes <= count:
        raise InvalidParameter("successes", successes, rule)
    tail = validate.positive_probability("error", error, "a probability of error", below_one=True)
    return int(successes), count, tail


def _moved(found: float, wrong: Callable[[float], bool], *, down: bool) -> float:
    """The first of ever larger steps outward from a guess at which the tail is small enough."""
    step, moved = _FIRST_STEP, min(max(found, 0.0), 1.0)
    while wrong(moved):
        moved = max(0.0, found * (1 - step)) if down else min(1.0, found * (1 + step))
        step *= 2
        if moved in (0.0, 1.0):
            break
    return moved


def _last_within(inside: float, end: float, beyond: Callable[[float], bool]) -> float:
    """The border between what is within and what is beyond, from the outer side."""
    if not beyond(end):
        return end
    near, far = inside, end
    for _ in range(100):
        middle = (near + far) / 2
        if beyond(middle):
            far = middle
        else:
            near = middle
    return far
