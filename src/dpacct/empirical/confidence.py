"""Confidence intervals that hold at least as often as they claim, for any distribution.

Rule 1: an interval is never narrower than its theorem makes it, because results are rounded
outward. Rule 2: each interval alone holds at its confidence. Several together do not.
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

# In all tests scipy's incomplete beta function is within 1e-10 of its value. A tail is taken as ten
# times that much larger.
OUTWARD = 1 + 1e-9
_FIRST_STEP, _TINY = 2.0**-48, 1e-300


@dataclass(frozen=True, slots=True)
class Estimate:
    """An observed value, and an interval that holds the truth at its confidence."""

    value: float
    lower: float
    upper: float

    def __contains__(self, value: float) -> bool:
        return self.lower <= value <= self.upper


def checked_confidence(value: object) -> float:
    """Return a confidence in (0, 1).

    Raises:
        InvalidParameter: it is outside.
    """
    return validate.positive_probability("confidence", value, "a confidence", below_one=True)


def least_probability(successes: int, trials: int, error: float) -> float:
    """Return Clopper and Pearson's one-sided lower limit for a probability p.

    Args:
        successes, trials: of independent trials that succeed with the same probability p.
        error: the limit is above p with at most this probability, in (0, 1).
    Error: none to the unsafe side, less than 1e-6 relative to the other side.
    Raises:
        InvalidParameter: an argument out of range.
    Source: Clopper, Pearson 1934 (10.1093/biomet/26.4.404).
    """
    hits, count, tail = _checked(successes, trials, error)
    if hits == 0:
        return 0.0
    start = min(float(betaincinv(hits, count - hits + 1, tail)), 1.0)
    limit, step = start, _FIRST_STEP
    # Step down until P(>= hits) is at most the tail, and is a number.
    while limit > 0.0 and not float(betainc(hits, count - hits + 1, limit)) * OUTWARD <= tail:
        limit, step = max(0.0, start * (1 - step)), 2 * step
    return limit


def largest_probability(successes: int, trials: int, error: float) -> float:
    """Return the one-sided upper limit, with arguments and errors as in `least_probability`."""
    hits, count, tail = _checked(successes, trials, error)
    if hits == count:
        return 1.0
    start = max(float(betainccinv(hits + 1, count - hits, tail)), _TINY)
    limit, step = start, _FIRST_STEP
    while limit < 1.0 and not float(betaincc(hits + 1, count - hits, limit)) * OUTWARD <= tail:
        limit, step = min(1.0, start * (1 + step)), 2 * step
    return limit


def clopper_pearson(successes: int, trials: int, confidence: float = 0.95) -> Estimate:
    """Return the share of successes, and an interval for their probability.

    Args:
        successes, trials: of independent trials that succeed with the same probability.
        confidence: in (0, 1). Each end fails with at most half of 1 - confidence.
    Raises:
        InvalidParameter: an argument out of range.
    """
    tail = (1 - checked_confidence(confidence)) / 2
    lower = least_probability(successes, trials, tail)
    upper = largest_probability(successes, trials, tail)
    return Estimate(successes / trials, lower, upper)


def mean_in_unit_interval(mean: float, draws: int, confidence: float = 0.95) -> Estimate:
    """Return an interval for the expectation of independent values in [0, 1].

    It holds the expectations A with draws KL(mean, A) <= log(2 / (1 - confidence)), where KL is the
    divergence of two coins. It also holds for values drawn without replacement, and for averages
    of such means (`dpacct.empirical.roc`).

    Args:
        mean: the observed mean. draws: the number of values.
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
        return coin_divergence(observed, expectation) > limit

    return Estimate(
        observed, first_beyond(observed, 0.0, beyond), first_beyond(observed, 1.0, beyond)
    )


def coin_divergence(one: float, other: float) -> float:
    """Return the Kullback-Leibler divergence of two coins."""
    return float(rel_entr(one, other) + rel_entr(1 - one, 1 - other))


def first_beyond(inside: float, end: float, beyond: Callable[[float], bool]) -> float:
    """Return the first number beyond a border between ``inside`` and ``end``.

    It is ``end`` if the border is not reached.
    """
    if not beyond(end):
        return end
    near, far = inside, end
    # A hundred halvings reach neighboring doubles.
    for _ in range(100):
        middle = (near + far) / 2
        near, far = (near, middle) if beyond(middle) else (middle, far)
    return far


def _checked(successes: int, trials: int, error: float) -> tuple[int, int, float]:
    count = validate.count("trials", trials, "the number of trials")
    rule = f"successes are a whole number from 0 to {count}, the number of trials"
    if isinstance(successes, bool) or int(successes) != successes or not 0 <= successes <= count:
        raise InvalidParameter("successes", successes, rule)
    tail = validate.positive_probability("error", error, "a probability of error", below_one=True)
    return int(successes), count, tail
