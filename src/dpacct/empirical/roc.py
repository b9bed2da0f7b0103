"""How well scores tell members from others: ROC, AUC, TPR at a small FPR, advantage.

A score is larger for what the attack takes for a member (minus a loss, for example). The attack
"member iff the score is above t" has a TPR and an FPR for each t, which make up the curve.

Rule 1: ranks are counted in whole numbers; a tie counts half. Rule 2: every interval holds at its
confidence for any law of the scores and any sample size. What it needs is that the scores of each
side are independent draws; for the AUC, members may also be drawn without replacement from all
members of one model, who are then what it is about.

Scores of examples as scores of those whom they belong to; and scores against shadow models.

Rule: a score depends on its own client's examples alone, so that clients that are independent of
each other have independent scores.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
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

Array = NDArray[np.float64]
Scores = Sequence[float] | NDArray[Any]

SMALL_RATES = (1e-2, 1e-3)


@dataclass(frozen=True, slots=True)
class AtRate:
    """The attack that accuses as many nonmembers as are allowed, and no more.

    Attributes:
        asked: the FPR that was allowed.
        fpr: the one observed, at most that.
        fpr_upper: the attack's FPR is at most this, with half of the error that is allowed.
        tpr: of this attack.
    """

    asked: float
    fpr: float
    fpr_upper: float
    tpr: Estimate


@dataclass(frozen=True, slots=True, eq=False)
class Roc:
    """What scores tell.

    Attributes:
        fpr, tpr: corners of the observed curve from (0, 0) to (1, 1); shape (corners,).
        members, nonmembers: how many scores there were.
        auc: the chance that a member scores above a nonmember, ties as half.
        advantage: the largest TPR - FPR.
        rates: TPR at small FPRs.
        confidence: of each interval by itself.
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
    fpr: Iterable[float] = SMALL_RATES,
) -> Roc:
    """All that is said of an attack.

    Args:
        members, nonmembers: their scores, larger for likely members; infinite ones are fine.
        confidence: of each interval.
        fpr: small false positive rates in (0, 1).
    Returns:
        The curve with its figures. The interval of the AUC is that of a mean of as many values as
        the smaller side has scores; that of the advantage widens the observed one by what either
        distribution function may be off; a TPR is within Clopper and Pearson's limits.
    Error: figures are exact up to one rounding, intervals are rounded outward.
    Raises:
        InvalidParameter: no scores on a side, one that is not a number, or a rate out of range.
    Source: Hoeffding 1963 (10.1080/01621459.1963.10500830), sections 5 and 6, for the AUC;
        Massart 1990 (10.1214/aop/1176990746) for distribution functions.
    """
    inside, outside = _sorted("members", members), _sorted("nonmembers", nonmembers)
    sure = checked_confidence(confidence)
    asked = [_rate(rate) for rate in validate.several("fpr", fpr, "false positive rates")]
    falls, finds = _curve(inside, outside)
    return Roc(
        falls,
        finds,
        len(inside),
        len(outside),
        mean_in_unit_interval(_auc(inside, outside), min(len(inside), len(outside)), sure),
        _advantage(falls, finds, (len(inside), len(outside)), sure),
        tuple(_at(rate, inside, outside, sure) for rate in asked),
        sure,
    )


def auc(members: Scores, nonmembers: Scores) -> float:
    """The share of pairs in which the member scores higher, ties as half; O(n log n).

    Arguments and errors as for `roc`. Error: one rounding.
    """
    return _auc(_sorted("members", members), _sorted("nonmembers", nonmembers))


def null_deviation(members: int, nonmembers: int) -> float:
    """The standard deviation of the AUC where scores say nothing and no two are equal.

    Raises:
        InvalidParameter: not two numbers of at least 1.
    Source: Mann, Whitney 1947 (10.1214/aoms/1177730491).
    """
    n = validate.count("members", members, "the number of members")
    m = validate.count("nonmembers", nonmembers, "the number of nonmembers")
    return math.sqrt((n + m + 1) / (12 * n * m))


def needed_nonmembers(fpr: float, confidence: float = 0.95) -> int:
    """How many nonmembers it takes to know that an FPR is at most this, where none is accused.

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
    """Scores in rising order.

    Raises:
        InvalidParameter: none, not in one row, or not a number.
    """
    rule = "scores are numbers in one row, at least one"
    try:
        found = np.asarray(scores, np.float64)
    except (TypeError, ValueError):
        raise InvalidParameter(name, type(scores).__name__, rule) from None
    if found.ndim != 1 or not found.size:
        raise InvalidParameter(name, f"an array of shape {found.shape}", rule)
    bad = np.flatnonzero(np.isnan(found))
    if bad.size:
        which = f"NaN in place {bad[0]}"
        raise InvalidParameter(name, which, rule, "A model that overflows gives no scores.")
    return np.sort(found)


def _auc(inside: Array, outside: Array) -> float:
    """Of sorted scores."""
    left = np.searchsorted(outside, inside, side="left").astype(np.int64)
    right = np.searchsorted(outside, inside, side="right").astype(np.int64)
    # Twice the number of pairs won; a quotient of whole numbers is rounded once.
    return int((left + right).sum()) / (2 * len(inside) * len(outside))


def _curve(inside: Array, outside: Array) -> tuple[Array, Array]:
    """Corners of the curve, of sorted scores: accused is whoever scores at least as much."""
    thresholds = np.unique(np.concatenate([inside, outside]))[::-1]
    finds = len(inside) - np.searchsorted(inside, thresholds, side="left")
    falls = len(outside) - np.searchsorted(outside, thresholds, side="left")
    zero = np.zeros(1)
    return (
        np.concatenate([zero, falls / len(outside)]),
        np.concatenate([zero, finds / len(inside)]),
    )


def _advantage(falls: Array, finds: Array, sizes: tuple[int, int], confidence: float) -> Estimate:
    found = float(np.max(finds - falls))
    # Each of both distribution functions is off by more with half of the error that is allowed.
    reach = sum(math.sqrt(math.log(4 / (1 - confidence)) / (2 * size)) for size in sizes) * OUTWARD
    return Estimate(found, max(0.0, found - reach), min(1.0, found + reach))


def _at(asked: float, inside: Array, outside: Array, confidence: float) -> AtRate:
    """The attack that accuses as many nonmembers as are allowed, of sorted scores."""
    allowed = int(asked * len(outside))
    # The product may be rounded either way.
    while allowed / len(outside) > asked:
        allowed -= 1
    while (allowed + 1) / len(outside) <= asked:
        allowed += 1
    # Whoever scores above this, so that at most those many nonmembers do.
    threshold = outside[len(outside) - 1 - allowed]
    false = int(np.count_nonzero(outside > threshold))
    right = int(np.count_nonzero(inside > threshold))
    # The threshold was chosen by the nonmembers: their chance to be above it is that of an order
    # statistic, which the limit for ``allowed`` accusations bounds, also where scores are equal.
    tail = (1 - confidence) / 2
    return AtRate(
        asked,
        false / len(outside),
        largest_probability(allowed, len(outside), tail),
        clopper_pearson(right, len(inside), confidence),
    )


Array = NDArray[np.float64]

# The spread of an example's shadow scores counts as if so many scores with the spread of all
# examples had been seen before: with few shadow models an example's own spread says little.
_PRIOR = 8.0


def by_example(scores: Sequence[Array]) -> Array:
    """The scores of all clients' examples in one row.

    Raises:
        InvalidParameter: no client has an example.
    """
    found = [own for own in scores if len(own)]
    if not found:
        raise InvalidParameter("scores", len(scores), "at least one client has an example")
    return np.concatenate(found)


def by_client(
    members: Sequence[Array], nonmembers: Sequence[Array], *, seed: int = 0
) -> tuple[Array, Array, int]:
    """The mean score of each client, over as many of its examples on both sides.

    A mean of few scores spreads more than one of many, so that sizes alone could tell members from
    others. So each client's mean is that of a random part of one common size: that of the smallest
    client, or, where it has less than half of what nine in ten clients of either side have, that;
    clients with fewer are left out.

    Args:
        members, nonmembers: scores of the examples of each client.
        seed: public, of the parts.
    Returns:
        A score for each member and for each nonmember that is large enough, and the size.
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
    """Offline likelihood-ratio scores: how unlikely a confidence is of a model that never saw it.

    The logit of the probability of the right class is about normal over models trained without an
    example. The score is -log P(a shadow model is at least as confident), under a Gaussian with
    the mean of that example's shadow margins and their variance, drawn toward that of all.

    Args:
        margins: log(p / (1 - p)) under the attacked model, p the probability of the right class;
            shape (n,).
        shadows: the same under each shadow model, none of which was trained on any of these n
            examples; shape (shadows, n), at least two.
    Returns:
        Float64 (n,), at least 0; a client's is the mean over its examples (`by_client`).
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
    # Where all shadow models agree to the last bit, any difference is as telling as any other.
    deviation = np.sqrt(np.maximum(variance, np.finfo(np.float64).tiny))
    return -np.asarray(log_ndtr((out.mean(axis=0) - own) / deviation), np.float64)
