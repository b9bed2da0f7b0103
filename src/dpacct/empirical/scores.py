"""Scores of examples as scores of those whom they belong to; and scores against shadow models.

Rule: a score depends on its own client's examples alone, so that clients that are independent of
each other have independent scores.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr  # pyright: ignore[reportMissingTypeStubs]

from dpacct.errors import InvalidParameter

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
