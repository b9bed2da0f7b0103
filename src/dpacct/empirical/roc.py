"""Measures of how well scores separate members from non-members: ROC, AUC, TPR, advantage.

A score is larger for likely members (minus a loss, for example). The attack "member if and only if
the score is above t" has a TPR and an FPR for each t, which make up the curve.

Rule 1: ranks are counted in whole numbers, and a tie counts half.
Rule 2: each interval holds at its confidence for any distribution of scores and any sample size, if
the scores of each side are independent draws. For the AUC, members may also be drawn without
replacement from all members of one model, and the AUC is then about these members.
Rule 3: the score of a client depends on its own examples alone, so that independent clients have
independent scores.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr  # pyright: ignore[reportMissingTypeStubs]

from dpacct import validate
from dpacct.empirical.confidence import (
    OUTWARD,
    Estimate,
    checked_confidence,
    clopper_pearson,
    largest_probability,
    mean_in_unit_interval,
)
from dpacct.errors import InvalidParameter
from dpacct.numerics.rounding import Numbers, numbers

Array = NDArray[np.float64]
Scores = Numbers

SMALL_RATES = (1e-2, 1e-3)


@dataclass(frozen=True, slots=True)
class AtRate:
    """The attack that accuses as many non-members as allowed, and no more.

    Attributes:
        asked: the allowed FPR.
        fpr: the observed FPR, at most that.
        fpr_upper: an upper limit of the FPR, with half of the allowed error.
        tpr: of this attack.
    """

    asked: float
    fpr: float
    fpr_upper: float
    tpr: Estimate


@dataclass(frozen=True, slots=True, eq=False)
class Roc:
    """The figures of an attack.

    Attributes:
        fpr, tpr: corners of the observed curve from (0, 0) to (1, 1), shape (corners,).
        members, nonmembers: the numbers of scores.
        auc: the probability that a member scores above a non-member, with ties as half.
        advantage: the largest TPR - FPR.
        rates: the TPR at small FPRs.
        confidence: of each single interval.
    """

    fpr: Array
    tpr: Array
    members: int
    nonmembers: int
    auc: Estimate
    advantage: Estimate
    rates: tuple[AtRate, ...]
    confidence: float


def roc(
    members: Scores,
    nonmembers: Scores,
    *,
    confidence: float = 0.95,
    fpr: Numbers = SMALL_RATES,
) -> Roc:
    """Return the ROC curve of scores, with its figures and their intervals.

    Args:
        members, nonmembers: their scores, larger for likely members. They may be infinite.
        confidence: of each interval.
        fpr: small false positive rates in (0, 1).
    Returns:
        The interval of the AUC is that of a mean of as many values as the smaller side has scores.
        The interval of the advantage adds the error of both distribution functions. A TPR lies
        within Clopper and Pearson's limits.
    Error: figures are exact up to one rounding, intervals are rounded outward.
    Raises:
        InvalidParameter: no scores on a side, a NaN, or a rate out of range.
    Source: Hoeffding 1963 (10.1080/01621459.1963.10500830), sections 5 and 6, for the AUC, and
        Massart 1990 (10.1214/aop/1176990746) for distribution functions.
    """
    inside, outside = _sorted("members", members), _sorted("nonmembers", nonmembers)
    sure = checked_confidence(confidence)
    asked = [_rate(rate) for rate in validate.several("fpr", fpr, "false positive rates")]
    # Corners of the curve: at each threshold the attack accuses all scores of at least that.
    thresholds = np.unique(np.concatenate([inside, outside]))[::-1]
    accused, true = (
        (len(side) - np.searchsorted(side, thresholds, side="left")) / len(side)
        for side in (outside, inside)
    )
    rates, hits = np.concatenate([[0.0], accused]), np.concatenate([[0.0], true])
    best = float(np.max(hits - rates))
    # Each distribution function is off by more with half of the allowed error.
    reach = OUTWARD * sum(
        math.sqrt(math.log(4 / (1 - sure)) / (2 * len(side))) for side in (inside, outside)
    )
    return Roc(
        rates,
        hits,
        len(inside),
        len(outside),
        mean_in_unit_interval(_auc(inside, outside), min(len(inside), len(outside)), sure),
        Estimate(best, max(0.0, best - reach), min(1.0, best + reach)),
        tuple(_at(rate, inside, outside, sure) for rate in asked),
        sure,
    )


def auc(members: Scores, nonmembers: Scores) -> float:
    """Return the share of pairs in which the member scores higher, with ties as half. O(n log n).

    Arguments and errors are as for `roc`. Error: one rounding.
    """
    return _auc(_sorted("members", members), _sorted("nonmembers", nonmembers))


def null_deviation(members: int, nonmembers: int) -> float:
    """Return the standard deviation of the AUC of scores without information or ties.

    Raises:
        InvalidParameter: not two numbers of at least 1.
    Source: Mann, Whitney 1947 (10.1214/aoms/1177730491).
    """
    n = validate.count("members", members, "the number of members")
    m = validate.count("nonmembers", nonmembers, "the number of nonmembers")
    return math.sqrt((n + m + 1) / (12 * n * m))


def needed_nonmembers(fpr: float, confidence: float = 0.95) -> int:
    """Return the number of non-members that shows an FPR of at most this if none is accused.

    Raises:
        InvalidParameter: an argument outside (0, 1).
    """
    tail = (1 - checked_confidence(confidence)) / 2
    count = math.ceil(math.log(tail) / math.log1p(-_rate(fpr)))
    while largest_probability(0, count, tail) > fpr:
        count += 1
    return count


def _rate(value: object) -> float:
    return validate.positive_probability("fpr", value, "a false positive rate", below_one=True)


def _sorted(name: str, scores: Scores) -> Array:
    """Return scores in rising order.

    Raises:
        InvalidParameter: no scores, more than one row, or not a number.
    """
    rule = "scores are numbers in one row, at least one"
    values = numbers(name, scores, "scores")
    if values.ndim != 1 or not values.size:
        raise InvalidParameter(name, f"an array of shape {values.shape}", rule)
    bad = np.flatnonzero(np.isnan(values))
    if bad.size:
        which = f"NaN in place {bad[0]}"
        raise InvalidParameter(name, which, rule, "A model that overflows gives no scores.")
    return np.sort(values)


def _auc(inside: Array, outside: Array) -> float:
    """Return the AUC of sorted scores."""
    left = np.searchsorted(outside, inside, side="left").astype(np.int64)
    right = np.searchsorted(outside, inside, side="right").astype(np.int64)
    # Twice the number of pairs won. A quotient of whole numbers is rounded once.
    return int((left + right).sum()) / (2 * len(inside) * len(outside))


def _at(asked: float, inside: Array, outside: Array, confidence: float) -> AtRate:
    """Return the attack that accuses as many non-members as allowed, from sorted scores."""
    allowed = int(asked * len(outside))
    # The product may be rounded either way.
    while allowed / len(outside) > asked:
        allowed -= 1
    while (allowed + 1) / len(outside) <= asked:
        allowed += 1
    # At most that many non-members score above this.
    threshold = outside[len(outside) - 1 - allowed]
    false = int(np.count_nonzero(outside > threshold))
    right = int(np.count_nonzero(inside > threshold))
    # The non-members chose the threshold. Their probability to be above it is that of an order
    # statistic, which the limit for ``allowed`` accusations bounds, also if scores are equal.
    return AtRate(
        asked,
        false / len(outside),
        largest_probability(allowed, len(outside), (1 - confidence) / 2),
        clopper_pearson(right, len(inside), confidence),
    )


# Scores of clients, and scores against shadow models.

# The spread of an example's shadow scores counts as if this many scores with the spread of all
# examples had been seen before: a few shadow models say little about an example's own spread.
_PRIOR = 8.0


def by_example(scores: Sequence[Array]) -> Array:
    """Return the scores of all clients' examples in one row.

    Raises:
        InvalidParameter: no client has an example.
    """
    known = [own for own in scores if len(own)]
    if not known:
        raise InvalidParameter("scores", len(scores), "at least one client has an example")
    return np.concatenate(known)


def by_client(
    members: Sequence[Array], nonmembers: Sequence[Array], *, seed: int = 0
) -> tuple[Array, Array, int]:
    """Return the mean score of each client, over one common number of examples on both sides.

    A mean of few scores spreads more than a mean of many, so sizes alone could tell members from
    non-members. Each client's mean is therefore that of a random part of one size: the size of the
    smallest client, or, if that is less than half of the size that nine in ten clients of either
    side have, this size. Smaller clients are left out.

    Args:
        members, nonmembers: scores of the examples of each client.
        seed: public, chooses the parts.
    Returns:
        A score for each member and for each non-member that is large enough, and the size.
    Raises:
        InvalidParameter: no client of a side has an example.
    """
    sides = [[own for own in side if len(own)] for side in (members, nonmembers)]
    for name, side in zip(("members", "nonmembers"), sides, strict=True):
        if not side:
            raise InvalidParameter(name, 0, "at least one client has an example")
    sizes = [sorted(map(len, side)) for side in sides]
    usual = min(rising[len(rising) // 10] for rising in sizes)
    least = min(rising[0] for rising in sizes)
    common = least if 2 * least >= usual else usual
    random = np.random.default_rng(seed)
    inside, outside = (
        np.array([random.choice(own, common, replace=False).mean() for own in side if
                  len(own) >= common])
        for side in sides
    )  # fmt: skip
    return inside, outside, common


def likelihood_ratio(margins: NDArray[Any], shadows: NDArray[Any]) -> Array:
    """Return offline likelihood-ratio scores: how unlikely a confidence is without membership.

    Over models trained without an example, the logit of the probability of its right class is about
    normal. The score is -log P(a shadow model is at least as confident), under a Gaussian with
    the mean of that example's shadow margins and their variance, drawn toward that of all examples.

    Args:
        margins: log(p / (1 - p)) under the attacked model, p the probability of the right class,
            of shape (n,).
        shadows: the same under each shadow model, none of which was trained on any of these n
            examples, shape (shadows, n), at least two.
    Returns:
        Float64 (n,), at least 0. A client's score is the mean over its examples (`by_client`).
    Raises:
        InvalidParameter: shapes that do not fit, or values that are not finite.
    Source: Carlini et al. 2022 (arXiv:2112.03570), section V, the offline attack.
    """
    own, out = np.asarray(margins, np.float64), np.asarray(shadows, np.float64)
    if own.ndim != 1 or out.ndim != 2 or out.shape[1] != len(own) or len(out) < 2:
        rule = "margins of n examples, and of each of at least two shadow models"
        raise InvalidParameter("shadows", f"{own.shape} and {out.shape}", rule)
    if not (np.isfinite(own).all() and np.isfinite(out).all()):
        raise InvalidParameter("margins", "not finite", "margins are finite numbers")
    spread = out.var(axis=0, ddof=1)
    degrees = len(out) - 1
    variance = (degrees * spread + _PRIOR * spread.mean()) / (degrees + _PRIOR)
    # If all shadow models agree to the last bit, any difference is as telling as any other.
    deviation = np.sqrt(np.maximum(variance, np.finfo(np.float64).tiny))
    return -np.asarray(log_ndtr((out.mean(axis=0) - own) / deviation), np.float64)
