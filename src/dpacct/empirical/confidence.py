"""Confidence intervals for any distribution, and evidence that noise is missing somewhere.

Rule 1: an interval is never narrower than its theorem makes it, because results are rounded
outward. Rule 2: each interval alone holds at its confidence. Several together do not.

Noise may be missing in a round, a tensor, a block or a coordinate. A sum over a whole run hides a
round without noise, and a sum over a model hides a coordinate. So each part has a test of its own,
and all tests share one error.

**One value.** y is a released value, in standard deviations of its charged noise. It is noise plus
a term that does not depend on this noise. For a fraction f < 1, the ratio of two densities

    e_f(y) = exp(-(1 / f^2 - 1) y^2 / 2) / f

has expectation at most 1 if the noise has at least its charged size, and is large if the noise is f
times as large. The same holds for 1 - w + w e_f(y), which is large if a share of values is silent.

**One part.** So the product over the values of a part has expectation at most 1, too. It is above
2^(12 k) for k values without noise.

**All parts.** A weighted mean of such products has expectation at most 1 again. It is at least
1 / a with probability at most a, for every mask and every rule of stopping that follow from past
releases. The proof, and which faults are found, are in docs/derivations/auditing.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import (  # pyright: ignore[reportMissingTypeStubs]
    betainc,
    betaincc,
    betainccinv,
    betaincinv,
    rel_entr,
)

from dpacct import validate
from dpacct.errors import InvalidParameter
from dpacct.numerics.rounding import Array

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


# Of the charged noise, if a whole part is quieter.
FRACTIONS = (0.97, 0.93, 0.85, 0.7, 0.5, 0.3, 0.15, 0.05)
# If some values of a part are silent: f, far above the grid of secure noise and of float32, and w.
SILENT, SHARE = 2.0**-16, 2.0**-4
# Neighboring coordinates that are tested together in a single round.
BLOCK = 32
# Tensors and blocks of a round, tensors and coordinates of the run.
_KINDS = 4
# Rounding of a sum of up to 2^29 squares, and of logarithms.
_ROUNDING = 2.0**-24


class NoiseEvidence:
    """Evidence against noise of the charged size, collected round by round.

    Args:
        sizes: the number of coordinates of each tensor, in the order of the released vector.
    """

    def __init__(self, sizes: Sequence[int]) -> None:
        self._tensors = np.repeat(np.arange(len(sizes)), sizes)
        self._blocks = np.arange(len(self._tensors)) // BLOCK
        # Of each coordinate over the rounds: values, their squares, and log of the product for
        # values of which some are silent.
        self._sums = np.zeros((3, len(self._tensors)))
        self._rounds = 0
        self._total, self._most = -math.inf, (-math.inf, "")

    def see(self, values: Array, rounding: Array | float, carried: NDArray[np.bool_]) -> None:
        """Add a round.

        Args:
            values: released values minus what is known beside the noise, in standard deviations of
                the charged noise, float64 [d]. Any other term that does not depend on this round's
                noise may remain.
            rounding: at least the distance of a value from an unrounded one, float64 [d].
            carried: whether a coordinate has noise in this round, bool [d]. It follows from earlier
                rounds alone.
        """
        self._rounds += 1
        # A value that was rounded toward zero is not smaller noise.
        squares = (np.abs(values) + rounding) ** 2
        silent = math.log(SHARE / SILENT) - (SILENT**-2 - 1) / 2 * squares
        mixed = np.logaddexp(math.log1p(-SHARE), silent)
        sums = np.where(carried, np.stack([np.ones_like(squares), squares, mixed]), 0.0)
        self._sums += sums
        # All rounds together have weight 1, however many they are.
        weight = -math.log(self._rounds * (self._rounds + 1))
        for name, parts in (("tensor", self._tensors), ("block", self._blocks)):
            self._add(_added(parts, sums), f"round {self._rounds}, {name}", weight)

    def conclude(self) -> tuple[float, str]:
        """Return log E and the part that shows most. E >= 1 / a has a probability of at most a.

        Call it once, after the last round.
        """
        self._add(_added(self._tensors, self._sums), "tensor")
        self._add(self._sums, "coordinate")
        return self._total, self._most[1]

    def _add(self, sums: Array, name: str, log_weight: float = 0.0) -> None:
        """Add the mean evidence of parts [3, p], rounded down."""
        terms, squares, mixed = sums
        log_wealth = mixed - _ROUNDING * np.abs(mixed)
        for fraction in FRACTIONS:
            gain, cost = -math.log(fraction) * terms, (fraction**-2 - 1) / 2 * squares
            log_wealth = np.logaddexp(log_wealth, gain * (1 - _ROUNDING) - cost * (1 + _ROUNDING))
        log_wealth += log_weight - math.log(_KINDS * (len(FRACTIONS) + 1) * len(log_wealth))
        place = int(np.argmax(log_wealth))
        self._total = float(np.logaddexp.reduce(log_wealth, initial=self._total))
        self._most = max(self._most, (float(log_wealth[place]), f"{name} {place + 1}"))


def _added(parts: NDArray[np.int64], sums: Array) -> Array:
    """Return sums [3, p] over the coordinates [3, d] of each part."""
    return np.array([np.bincount(parts, weights=row) for row in sums], dtype=np.float64)
